//! The wire: which operation is asked for, in which protocol. What an operation does is in its own file.

mod cloudwatch;
mod describe;
pub(crate) mod s3;
mod sagemaker;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use chrono::TimeDelta;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Region;
use crate::rules::{Refusal, invalid};

pub(crate) fn router(region: Region) -> Router {
    Router::new()
        .route("/", post(aws_json))
        .route("/service/GraniteServiceVersion20100801/operation/{operation}", post(cloudwatch::cbor))
        .route("/_sim/record", get(record))
        .route("/_sim/advance", post(advance))
        .with_state(region)
}

async fn record(State(region): State<Region>) -> Response {
    let now = region.now();
    axum::Json(region.with(|world| world.record(now))).into_response()
}

#[derive(Deserialize)]
struct Advance {
    seconds: u32,
}

async fn advance(State(region): State<Region>, Query(by): Query<Advance>) -> StatusCode {
    let moved = region.advance(TimeDelta::seconds(by.seconds.into()));
    if moved { StatusCode::NO_CONTENT } else { StatusCode::CONFLICT }
}

/// `X-Amz-Target: <service>.<operation>` with a JSON body.
async fn aws_json(State(region): State<Region>, headers: HeaderMap, body: Bytes) -> Response {
    let target = headers.get("x-amz-target").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (service, operation) = target.split_once('.').unwrap_or_default();
    let answer = match serde_json::from_slice::<Value>(&body) {
        Err(error) => Err(Refusal { code: "SerializationException", message: error.to_string() }),
        Ok(body) => match service {
            "SageMaker" => sagemaker::call(&region, operation, body),
            "GraniteServiceVersion20100801" => cloudwatch::call(&region, operation, &body),
            other => Err(invalid(format!("this region has no service {other}"))),
        },
    };
    let content_type = if service == "SageMaker" { "application/x-amz-json-1.1" } else { "application/x-amz-json-1.0" };
    let (status, value) = match answer {
        Ok(value) => (StatusCode::OK, value),
        Err(refusal) => (status_of(&refusal), json!({ "__type": refusal.code, "message": refusal.message })),
    };
    #[expect(clippy::disallowed_methods, reason = "a request id is for logs, not part of the world")]
    let id = uuid::Uuid::now_v7().to_string();
    let headers = [(header::CONTENT_TYPE.as_str(), content_type.to_owned()), ("x-amzn-requestid", id)];
    (status, headers, value.to_string()).into_response()
}

fn status_of(refusal: &Refusal) -> StatusCode {
    if refusal.code == "InternalFailure" { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::BAD_REQUEST }
}
