//! problem+json (RFC 9457): the only place that names a 4xx or 5xx status. A 5xx says nothing to
//! the client and everything to the log.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::finding::{FINDINGS_MAX, Finding};
use serde::{Deserialize, Serialize};
use utoipa::{IntoResponses, ToSchema};

use crate::store::StoreError;

/// One thing that is wrong with a request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// JSON pointer into the body, or the name of a query parameter.
    pub pointer: String,
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// The rule that was broken.
    pub rule: String,
}

/// An error, as `application/problem+json`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Stable URI of the kind of problem.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// The path that was asked for.
    pub instance: String,
    /// The same as the end of `type`.
    pub code: String,
    pub request_id: String,
    /// Everything that is wrong, all at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

impl Problem {
    fn new(status: StatusCode, code: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:bakeoff:problem:{code}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            instance: String::new(),
            code: code.to_owned(),
            request_id: String::new(),
            errors: Vec::new(),
            retryable: false,
        }
    }

    pub fn unauthenticated(detail: &str) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthenticated",
            "No valid API key",
            detail,
        )
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            "This key may not do that",
            detail,
        )
    }

    pub fn not_found(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "Not found", what)
    }

    pub fn method_not_allowed() -> Self {
        let detail = "this path exists, but not with this method; /docs lists what it takes";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "Method not allowed",
            detail,
        )
    }

    pub fn bad_parameter(detail: impl Into<String>, errors: Vec<FieldError>) -> Self {
        let problem = Self::new(
            StatusCode::BAD_REQUEST,
            "bad_parameter",
            "A parameter is not understood",
            detail,
        );
        Self { errors, ..problem }
    }

    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "malformed",
            "The body is not JSON",
            detail,
        )
    }

    pub fn too_large(limit: usize) -> Self {
        let detail = format!("a body may have {limit} bytes");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            "The body is too large",
            detail,
        )
    }

    /// The client stopped sending.
    pub fn stalled() -> Self {
        let detail = "the rest of the body did not come in time";
        let problem = Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "The request took too long",
            detail,
        );
        Self {
            retryable: true,
            ..problem
        }
    }

    pub fn too_many_streams(most: u32) -> Self {
        let detail = format!(
            "{most} event streams are open with this key; close one, or wait with wait_seconds"
        );
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_streams",
            "Too many streams",
            detail,
        )
    }

    pub fn invalid(mut errors: Vec<FieldError>) -> Self {
        if errors.len() > FINDINGS_MAX {
            errors.truncate(FINDINGS_MAX - 1);
            errors.push(FieldError {
                pointer: String::new(),
                detail: format!("more is wrong than these {} things", FINDINGS_MAX - 1),
                fix: "mend these first".to_owned(),
                rule: "more-findings".to_owned(),
            });
        }
        let detail = match errors.as_slice() {
            [one] => format!("{}: {}", one.pointer, one.detail),
            many => format!("{} things are wrong; `errors` lists them all", many.len()),
        };
        let problem = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid",
            "The request makes no sense",
            detail,
        );
        Self { errors, ..problem }
    }

    pub fn conflict(code: &str, detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            code,
            "It conflicts with what is there",
            detail,
        )
    }

    pub fn key_reused() -> Self {
        let detail =
            "this Idempotency-Key came with another body before; use a new key for a new request";
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "idempotency_key_reused",
            "Idempotency-Key was reused",
            detail,
        )
    }

    pub fn unavailable(detail: &str) -> Self {
        let problem = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "Not available right now",
            detail,
        );
        Self {
            retryable: true,
            ..problem
        }
    }

    /// AWS said no, and asking again will not help.
    pub fn upstream(code: &str, detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            code,
            "AWS did not give what was asked for",
            detail,
        )
    }

    pub fn internal() -> Self {
        let detail = "the fault is ours; the request id finds it in the log";
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "Internal error",
            detail,
        )
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Conflict { constraint } => {
                tracing::info!(constraint, "a request conflicts with what is there");
                Self::conflict("conflict", conflict(constraint))
            }
            StoreError::Refused { what } => {
                tracing::warn!(what, "the schema refused what a request wanted to write");
                Self::invalid(vec![FieldError {
                    pointer: String::new(),
                    detail: "a value in it cannot be stored".to_owned(),
                    fix: "look for a figure or a date out of bounds; the request id finds the details in the log"
                        .to_owned(),
                    rule: "schema".to_owned(),
                }])
            }
            StoreError::Database(source) => {
                tracing::error!(%error, ?source, "the database failed a request");
                Self::unavailable("the database did not answer; try again")
            }
            StoreError::Corrupt { .. }
            | StoreError::Missing { .. }
            | StoreError::Twice { .. }
            | StoreError::Migration(_) => {
                tracing::error!(%error, "a request met a row that cannot be read, or is not there");
                Self::internal()
            }
        }
    }
}

/// What exists already, in words of ours: names of constraints are nobody's business.
fn conflict(constraint: &str) -> &'static str {
    match constraint {
        "prices_natural_key" | "prices_listed_key" => {
            "there is a price of this type, region, source and day already; give another effective_from or source"
        }
        "idempotency_keys_pkey" => {
            "a request with this Idempotency-Key is under way; send it again"
        }
        "ci_deliveries_pkey" => "this delivery is under way; send it again",
        "ci_templates_name_key" => "there is a template of this name already; give another name",
        "workloads_version_key" | "instance_profiles_version_key" => {
            "somebody else has just stored a version of this name; send it again"
        }
        _ => "it exists already, or somebody else has just written it; read it again",
    }
}

impl From<&Finding> for FieldError {
    fn from(finding: &Finding) -> Self {
        Self {
            pointer: finding.pointer.clone(),
            detail: finding.message.clone(),
            fix: finding.fix.clone(),
            rule: finding.rule.clone(),
        }
    }
}

impl IntoResponse for Problem {
    /// The middleware fills in `instance` and `request_id`: it takes the problem out of the
    /// response's extensions.
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.to_json()).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.retryable {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl Problem {
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The problems that any operation may answer with, for the API's documentation.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum Problems {
    /// A parameter is unknown or malformed, or the body is not JSON.
    #[response(status = 400, content_type = "application/problem+json")]
    BadRequest(Problem),
    /// No API key, or one that is not valid.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthenticated(Problem),
    /// The key's role may not do that.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// There is none in this project.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(Problem),
    /// The request makes no sense; every reason is listed.
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem),
    /// AWS said no.
    #[response(status = 502, content_type = "application/problem+json")]
    Upstream(Problem),
    /// Try again later.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}
