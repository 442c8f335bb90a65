//! S3: a real S3 protocol server (`s3s`) over a folder, one subfolder per bucket; before it, what the
//! set-up refuses, and behind it, the region of buckets.

use std::path::Path;
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

use super::setup::{self, S3Ask};
use crate::world::region::Region;

/// Credentials of the simulated account; S3 refuses any others, as it would a wrong key.
const ACCESS_KEY: &str = "simulated";
/// Where S3 says which region a bucket is in.
pub(super) const REGION_HEADER: &str = "x-amz-bucket-region";

#[derive(Clone)]
struct S3 {
    region: Region,
    service: S3Service,
}

/// Serves until the listener fails.
pub(crate) async fn serve(listener: TcpListener, region: Region) -> std::io::Result<()> {
    let files = FileSystem::new(region.s3_root())
        .map_err(|error| std::io::Error::other(format!("{error:?}")))?;
    let mut builder = S3ServiceBuilder::new(files);
    builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, ACCESS_KEY));
    let service = builder.build();
    let router = Router::new().fallback(call);
    axum::serve(listener, router.with_state(S3 { region, service })).await
}

/// Objects are as old as the region's clock says.
fn dated(file: &Path, now: DateTime<Utc>) {
    let file = std::fs::File::options().write(true).open(file);
    let dated = file.and_then(|file| file.set_modified(SystemTime::from(now)));
    if let Err(error) = dated {
        tracing::debug!(%error, "an object could not be dated");
    }
}

async fn call(State(s3): State<S3>, request: Request) -> Response {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let ask = S3Ask {
        method: request.method().as_str(),
        key: path.split_once('/').map_or("", |(_, key)| key),
    };
    let refused = s3.region.with(|world| {
        (
            setup::s3(&world.setup, &world.region, &ask),
            world.region.clone(),
        )
    });
    let (refused, own) = refused;
    if let Some(refused) = refused {
        return refused;
    }
    let written = (request.method() == Method::PUT || request.method() == Method::POST)
        .then(|| s3.region.object_path(&format!("s3://{path}")))
        .flatten();
    let request = request.map(s3s::Body::http_body_unsync);
    let mut answer = match s3.service.call(request).await {
        Ok(answer) => answer.map(Body::new),
        Err(error) => {
            tracing::debug!(?error, "an S3 request failed");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    if let Some(file) = written {
        dated(&file, s3.region.now());
    }
    if let Ok(own) = HeaderValue::from_str(&own) {
        answer.headers_mut().insert(REGION_HEADER, own);
    }
    answer
}
