//! Extractors that answer with problems: strict query parameters, strict JSON bodies, typed ids in
//! paths.

use std::str::FromStr;
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use bakeoff_domain::finding::Finding;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SemaphorePermit};
use tower_http::timeout::TimeoutError;
use utoipa::ToSchema;

use crate::plumbing::heavy::{BODY_ASIDE_FROM, aside};
use crate::plumbing::problem::{FieldError, Problem};
use bakeoff_service::document;

/// Maximum size of a request's body.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;

/// The bytes of a body, up to the limit.
pub(crate) struct Raw(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        whole(request, BODY_BYTES_MAX).await.map(Self)
    }
}

/// GitHub's webhooks have up to 25 MB: a push of many commits.
const WEBHOOK_BYTES_MAX: usize = 25 * 1024 * 1024;
/// Large bodies of webhooks that are held at a time: who sends one is known only once it was read.
static LARGE: Semaphore = Semaphore::const_new(4);
/// How long one waits for its turn; GitHub waits ten seconds for the answer.
const LARGE_PATIENCE: Duration = Duration::from_secs(5);

/// The body of a webhook that somebody else's program sends.
pub(crate) struct Webhook {
    pub(crate) body: Bytes,
    /// Held until the body is done with.
    _place: Option<SemaphorePermit<'static>>,
}

impl<S: Send + Sync> FromRequest<S> for Webhook {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let told = request.headers().get(header::CONTENT_LENGTH);
        let told: Option<usize> = told.and_then(|told| told.to_str().ok()?.parse().ok());
        let is_large = told.is_some_and(|told| told > BODY_BYTES_MAX);
        let place = if is_large {
            let turn = tokio::time::timeout(LARGE_PATIENCE, LARGE.acquire()).await;
            let busy = "other large webhooks are being read; deliver it again in a moment";
            let turn = turn.ok().and_then(Result::ok);
            Some(turn.ok_or_else(|| Problem::unavailable(busy))?)
        } else {
            None
        };
        let most = if is_large {
            WEBHOOK_BYTES_MAX
        } else {
            BODY_BYTES_MAX
        };
        let body = whole(request, most).await?;
        Ok(Self {
            body,
            _place: place,
        })
    }
}

/// Reads a whole body, up to a limit.
pub(crate) async fn whole(request: Request, limit: usize) -> Result<Bytes, Problem> {
    let body = to_bytes(request.into_body(), limit).await;
    body.map_err(|error| {
        let mut causes = std::iter::successors(Some(&error as &dyn std::error::Error), |cause| {
            cause.source()
        });
        if causes.any(<dyn std::error::Error>::is::<TimeoutError>) {
            Problem::stalled()
        } else {
            Problem::too_large(limit)
        }
    })
}

/// A JSON body without unknown fields.
pub(crate) struct Strict<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + ToSchema + Send + 'static> FromRequest<S> for Strict<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let Raw(bytes) = Raw::from_request(request, state).await?;
        strict(bytes).await.map(Self)
    }
}

async fn strict<T: DeserializeOwned + ToSchema + Send + 'static>(
    bytes: Bytes,
) -> Result<T, Problem> {
    let (value, unknown) = parse(bytes).await?;
    if unknown.is_empty() {
        Ok(value)
    } else {
        Err(Problem::invalid(unknown))
    }
}

/// A JSON body without unknown fields, or none.
pub(crate) struct Optional<T>(pub(crate) T);

impl<S, T> FromRequest<S> for Optional<T>
where
    S: Send + Sync,
    T: Default + DeserializeOwned + ToSchema + Send + 'static,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let Raw(bytes) = Raw::from_request(request, state).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        strict(bytes).await.map(Self)
    }
}

/// Reads JSON of any shape.
pub(crate) fn json(bytes: &[u8]) -> Result<serde_json::Value, Problem> {
    // Postgres does not store NUL, neither in text nor in JSON.
    if has_nul(bytes) {
        return Err(Problem::malformed(
            "a string contains the NUL character (\\u0000)",
        ));
    }
    serde_json::from_slice(bytes).map_err(|error| Problem::malformed(error.to_string()))
}

/// Whether a string has a NUL, as JSON writes it; after an odd number of backslashes it is text.
fn has_nul(bytes: &[u8]) -> bool {
    let mut windows = bytes.windows(6).enumerate();
    windows.any(|(at, window)| {
        window == b"\\u0000" && {
            let before = bytes.get(..at).unwrap_or_default().iter().rev();
            let slashes = before.take_while(|byte| **byte == b'\\');
            slashes.count().is_multiple_of(2)
        }
    })
}

/// Reads JSON; returns unknown fields beside the value, so that they can be reported together with
/// the linter's findings.
pub(crate) async fn parse<T>(bytes: Bytes) -> Result<(T, Vec<FieldError>), Problem>
where
    T: DeserializeOwned + ToSchema + Send + 'static,
{
    if bytes.len() < BODY_ASIDE_FROM {
        return parse_here(&bytes);
    }
    aside(move || parse_here(&bytes)).await?
}

fn parse_here<T: DeserializeOwned + ToSchema>(
    bytes: &[u8],
) -> Result<(T, Vec<FieldError>), Problem> {
    let (value, unknown) = document::read(&json(bytes)?);
    let errors = |findings: &[Finding]| {
        findings
            .iter()
            .map(FieldError::from)
            .collect::<Vec<FieldError>>()
    };
    match value {
        Ok(value) => Ok((value, errors(&unknown))),
        Err(error) => Err(Problem::invalid(errors(&[unknown, vec![error]].concat()))),
    }
}

/// Query parameters; the type denies unknown fields, so that a typo never silently widens a list.
pub(crate) struct Params<T>(pub(crate) T);

/// A header's text; empty if it is absent or not text.
pub(crate) fn text_of<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let value = headers.get(name);
    value.and_then(|value| value.to_str().ok()).unwrap_or("")
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or("");
        if query.contains("%00") {
            return Err(Problem::bad_parameter(
                "a parameter contains the NUL character",
                Vec::new(),
            ));
        }
        serde_html_form::from_str(query)
            .map(Self)
            .map_err(|error| Problem::bad_parameter(error.to_string(), Vec::new()))
    }
}

/// A typed id in the path. A malformed id is answered as not found.
pub(crate) struct Id<T>(pub(crate) T);

impl<S, T> FromRequestParts<S> for Id<T>
where
    S: Send + Sync,
    T: FromStr + Send,
    T::Err: std::fmt::Display,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::not_found(error.to_string()))?;
        text.parse()
            .map(Self)
            .map_err(|error: T::Err| Problem::not_found(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_backslash_makes_no_nul() {
        assert!(json(br#"{"a": "\u0000"}"#).is_err());
        assert!(json(br#"{"a": "[^\\u0000]"}"#).is_ok());
        assert!(json(br#"{"a": "\\\u0000"}"#).is_err());
        // Each run of backslashes is counted once at most.
        let long = format!(r#"{{"a": "{}"}}"#, "\\".repeat(1 << 20));
        assert!(json(long.as_bytes()).is_ok());
    }
}
