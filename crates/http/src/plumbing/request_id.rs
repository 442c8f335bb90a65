//! `X-Request-Id`: taken from the caller if it is valid, otherwise generated; included in every
//! response, every problem, and the log.

use std::any::Any;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::Instrument;

use crate::plumbing::access::RequestSpan;
use crate::plumbing::problem::Problem;

const HEADER: &str = "x-request-id";
const LENGTH_MAX: usize = 128;

pub(crate) async fn attach(mut request: Request, next: Next) -> Response {
    let given = request
        .headers()
        .get(HEADER)
        .and_then(|value| value.to_str().ok());
    let is_sane = |id: &&str| {
        (1..=LENGTH_MAX).contains(&id.len())
            && id
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let id = given
        .filter(is_sane)
        .map_or_else(|| bakeoff_process::ids::fresh().to_string(), str::to_owned);
    let path = request.uri().path().to_owned();
    let span = RequestSpan::of(&id, &request);
    request.extensions_mut().insert(span.clone());
    let mut response = next.run(request).instrument(span.0).await;
    if let Some(mut problem) = response.extensions_mut().remove::<Problem>() {
        problem.request_id.clone_from(&id);
        problem.instance = path;
        response
            .headers_mut()
            .remove(axum::http::header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(problem.to_json());
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// A panic is a bug: its details go to the log, and the client gets a plain 500.
#[expect(clippy::needless_pass_by_value, reason = "the layer's signature")]
pub(crate) fn panicked(cause: Box<dyn Any + Send + 'static>) -> Response {
    let text = cause
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| cause.downcast_ref::<String>().map(String::as_str));
    tracing::error!(cause = text.unwrap_or("unknown"), "a handler panicked");
    Problem::internal().into_response()
}
