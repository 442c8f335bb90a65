//! The account's set-up on the wire: what refuses every request, and what IAM denies.

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};

use super::query;
use super::s3::REGION_HEADER;
use crate::account::refusal::Refusal;
use crate::account::setup::{Setup, denied};
use crate::world::region::Region;

/// Replaces the set-up; what is left out is as it should be.
pub(super) async fn set(
    State(region): State<Region>,
    axum::Json(setup): axum::Json<Setup>,
) -> StatusCode {
    region.with(|world| world.setup = setup);
    StatusCode::NO_CONTENT
}

/// Refuses what is signed wrongly, and dates each answer with AWS's clock.
pub(super) async fn signed(State(region): State<Region>, request: Request, next: Next) -> Response {
    if request.uri().path().starts_with("/_sim/") {
        return next.run(request).await;
    }
    let (refusal, off) =
        region.with(|world| (world.setup.refuses_all(), world.setup.clock_off_seconds()));
    let is_query = !request.headers().contains_key("x-amz-target") && request.uri().path() == "/";
    let mut answer = match refusal {
        Some(Refusal { code, message }) if is_query => {
            // The query protocol has codes of its own.
            let code = match code {
                "InvalidSignatureException" => "SignatureDoesNotMatch",
                _ => "InvalidClientTokenId",
            };
            query::error(403, code, &message)
        }
        Some(refusal) => super::refuse(refusal.code, &refusal.message),
        None => next.run(request).await,
    };
    if off != 0
        && let Ok(date) = HeaderValue::from_str(&date(off))
    {
        answer.headers_mut().insert(header::DATE, date);
    }
    answer
}

#[expect(
    clippy::disallowed_methods,
    reason = "signatures are about real time, however fast the world's clock runs"
)]
fn date(off: i64) -> String {
    let now = Utc::now() + TimeDelta::seconds(off);
    now.format("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Refuses an operation that IAM denies. Services have other names in IAM than on the wire.
pub(super) fn authorized(region: &Region, service: &str, operation: &str) -> Result<(), Refusal> {
    let prefix = match service {
        "SageMaker" => "sagemaker",
        "GraniteServiceVersion20100801" => "cloudwatch",
        "Logs_20140328" => "logs",
        "ServiceQuotasV20190624" => "servicequotas",
        "AWSPriceListService" => "pricing",
        "AmazonEC2ContainerRegistry_V20150921" => "ecr",
        "Scheduler" => "scheduler",
        _ => return Ok(()),
    };
    let action = format!("{prefix}:{operation}");
    if region.with(|world| world.setup.denies(&action)) {
        let on = "resource: * because no identity-based policy allows the action";
        return Err(denied(&action, on));
    }
    Ok(())
}

/// ECR's BatchGetImage: every repository has every image, unless there is none.
pub(super) fn batch_get_image(region: &Region, body: &Value) -> Value {
    let has_image = region.with(|world| world.setup.has_image());
    let id = &body["imageIds"][0];
    let repository = &body["repositoryName"];
    if !has_image {
        let failure = json!({
            "imageId": id, "failureCode": "ImageNotFound", "failureReason": "Requested image not found",
        });
        return json!({ "images": [], "failures": [failure] });
    }
    let mut whole = id.clone();
    let tag = id["imageTag"].as_str().or(id["imageDigest"].as_str());
    let name = repository.as_str().unwrap_or_default();
    let digest = region.with(|world| world.images.digest(name, tag.unwrap_or_default()));
    whole["imageDigest"] = json!(digest);
    let image = json!({ "registryId": body["registryId"], "repositoryName": repository, "imageId": whole, "imageManifest": "{}" });
    json!({ "images": [image], "failures": [] })
}

/// Whether S3 carries out a request, by what it answers otherwise. `own` is the region's name.
pub(super) fn s3(setup: &Setup, own: &str, ask: &S3Ask<'_>) -> Option<Response> {
    if let Some(other) = setup.other_bucket_region(own) {
        let code = "PermanentRedirect";
        return Some(s3_error(ask, StatusCode::MOVED_PERMANENTLY, code, other));
    }
    if setup.s3_slows_down() {
        return Some(s3_error(
            ask,
            StatusCode::SERVICE_UNAVAILABLE,
            "SlowDown",
            own,
        ));
    }
    let action = match (ask.method, ask.key.is_empty()) {
        ("GET" | "HEAD", true) => "s3:ListBucket",
        ("GET" | "HEAD", false) => "s3:GetObject",
        ("PUT", _) => "s3:PutObject",
        ("POST" | "DELETE", _) => "s3:DeleteObject",
        _ => return None,
    };
    setup
        .denies(action)
        .then(|| s3_error(ask, StatusCode::FORBIDDEN, "AccessDenied", own))
}

/// A request to S3, in path style.
pub(super) struct S3Ask<'a> {
    pub(super) method: &'a str,
    pub(super) key: &'a str,
}

fn s3_error(ask: &S3Ask<'_>, status: StatusCode, code: &str, region: &str) -> Response {
    let body = if ask.method == "HEAD" {
        Bytes::new()
    } else {
        Bytes::from(format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>{code}, as the set-up asks</Message>\
             <RequestId>simulated</RequestId></Error>"
        ))
    };
    let headers = [
        (header::CONTENT_TYPE.as_str(), "application/xml".to_owned()),
        (REGION_HEADER, region.to_owned()),
    ];
    (status, headers, body).into_response()
}
