//! problem+json (RFC 9457): the only place that names a 4xx or 5xx status. A 5xx reveals no details
//! to the client; they are in the log.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::finding::{FINDINGS_MAX, Finding};
use bakeoff_domain::sagemaker::error::AwsError;
use serde::{Deserialize, Serialize};
use utoipa::{IntoResponses, ToSchema};

use bakeoff_store::StoreError;

/// One error in a request.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// JSON pointer into the body, or the name of a query parameter.
    pub pointer: String,
    pub detail: String,
    /// How to fix it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// The rule that was violated.
    pub rule: String,
}

/// An error, as `application/problem+json`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Stable URI of the problem type.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    /// The path that was requested.
    pub instance: String,
    /// Short code: the last part of `type`.
    pub code: String,
    pub request_id: String,
    /// All errors in the request, reported at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

/// Characters of what AWS said that are shown.
const SAID_MAX: usize = 300;

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

    /// A message of another program that does not prove who has sent it.
    pub fn unproven(detail: &str) -> Self {
        Self {
            title: "The message is not signed as it should be".to_owned(),
            ..Self::unauthenticated(detail)
        }
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            "Not permitted for this key's role",
            detail,
        )
    }

    pub fn not_by_session(detail: &str) -> Self {
        Self {
            title: "Not permitted for a session".to_owned(),
            ..Self::forbidden(detail)
        }
    }

    pub fn not_found(what: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "Not found", what)
    }

    pub fn method_not_allowed() -> Self {
        let detail = "this path does not support this method; /docs lists those it does";
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
            "Invalid parameter",
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
        let detail = format!("a body may have at most {limit} bytes");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            "The body is too large",
            detail,
        )
    }

    /// The client stopped sending.
    pub fn stalled() -> Self {
        let detail = "the rest of the body did not arrive in time";
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
            "this key already has {most} event streams open; close one, or poll with wait_seconds"
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
                detail: format!("more than {} errors", FINDINGS_MAX - 1),
                fix: "fix these first".to_owned(),
                rule: "more-findings".to_owned(),
            });
        }
        let detail = match errors.as_slice() {
            [one] => format!("{}: {}", one.pointer, one.detail),
            many => format!("{} errors; see `errors`", many.len()),
        };
        let problem = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid",
            "Validation failed",
            detail,
        );
        Self { errors, ..problem }
    }

    pub fn conflict(code: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, "Conflict", detail)
    }

    /// What a change is based on has been changed since.
    pub fn changed_since(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            "changed_since",
            "Changed since it was read",
            detail,
        )
    }

    pub fn key_reused() -> Self {
        let detail = "this Idempotency-Key was already used with another body; use a new key for a new request";
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
            "Temporarily unavailable",
            detail,
        );
        Self {
            retryable: true,
            ..problem
        }
    }

    /// AWS refused, and a retry will not help.
    pub fn upstream(code: &str, detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            code,
            "AWS refused the request",
            detail,
        )
    }

    /// What AWS answered instead of `what`, which needs the permissions `allow`.
    pub fn of_aws(error: AwsError, what: &str, allow: &str) -> Self {
        tracing::warn!(%error, what, "AWS did not return what was asked for");
        match error {
            AwsError::Denied(said) => Self::upstream(
                "aws_denied",
                format!(
                    "AWS denies access to {what}: {said}. Allow the service {allow} (deploy/iam/control-plane.json)"
                ),
            ),
            AwsError::NotFound(said) | AwsError::Rejected { message: said, .. } => {
                Self::upstream("aws_refused", format!("AWS refuses {what}: {said}"))
            }
            AwsError::Expired(_) => Self::unavailable(
                "the service's AWS credentials have expired; their provider renews them",
            ),
            AwsError::Throttled(_) => Self::unavailable(&format!(
                "AWS limits how often it is asked, and did not return {what}; try again in a moment"
            )),
            AwsError::AlreadyExists(said)
            | AwsError::LimitExceeded(said)
            | AwsError::Unknown(said) => {
                let said: String = said.chars().take(SAID_MAX).collect();
                Self::unavailable(&format!(
                    "AWS did not return {what}: {said}. If that passes by itself, try again; otherwise it has to be mended first"
                ))
            }
        }
    }

    /// Whether the request would be refused again until something is mended.
    pub fn is_refusal(&self) -> bool {
        let is_final = [StatusCode::FORBIDDEN, StatusCode::UNPROCESSABLE_ENTITY];
        !self.retryable && is_final.iter().any(|one| one.as_u16() == self.status)
    }

    pub fn internal() -> Self {
        let detail = "internal error; the log has the details under this request id";
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
                tracing::info!(constraint, "request conflicts with stored data");
                Self::conflict("conflict", conflict(constraint))
            }
            StoreError::Refused { what } => {
                tracing::warn!(what, "schema refused a value in a request");
                Self::invalid(vec![FieldError {
                    pointer: String::new(),
                    detail: "one of its values cannot be stored".to_owned(),
                    fix: "look for a number or date out of range; the log has the details under this request id"
                        .to_owned(),
                    rule: "schema".to_owned(),
                }])
            }
            StoreError::Database(source) => {
                tracing::error!(%error, ?source, "database error during a request");
                Self::unavailable("the database did not answer; try again")
            }
            StoreError::Corrupt { .. }
            | StoreError::Missing { .. }
            | StoreError::Twice { .. }
            | StoreError::Unreachable(_)
            | StoreError::Migration(_) => {
                tracing::error!(%error, "unreadable or missing row during a request");
                Self::internal()
            }
        }
    }
}

/// Describes what already exists, without exposing names of constraints.
fn conflict(constraint: &str) -> &'static str {
    match constraint {
        "prices_natural_key" | "prices_listed_key" => {
            "a price for this type, region, source and date already exists; give another effective_from or source"
        }
        "experiments_full_run_alive" => {
            "a full run of this experiment is already under way; cancel it first, or wait until it has ended"
        }
        "idempotency_keys_pkey" => "a request with this Idempotency-Key is in progress; retry it",
        "ci_deliveries_pkey" => "this delivery is in progress; retry it",
        "ci_templates_name_key" => "a template of this name already exists; choose another name",
        "workloads_version_key" | "instance_profiles_version_key" => {
            "another request has just stored a version of this name; retry"
        }
        _ => "it already exists, or another request has just written it; read it again",
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
    /// The middleware fills in `instance` and `request_id`, taking the problem from the response's
    /// extensions.
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
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The problems any operation may return, for the API's documentation.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum Problems {
    /// A parameter is unknown or malformed, or the body is not JSON.
    #[response(status = 400, content_type = "application/problem+json")]
    BadRequest(Problem),
    /// Missing or invalid API key.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthenticated(Problem),
    /// The key's role does not permit this operation.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// Not found in this project.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(Problem),
    /// It conflicts with what exists already, or with another request.
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(Problem),
    /// Validation failed; `errors` lists every reason.
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem),
    /// AWS denied access, or returned nothing usable.
    #[response(status = 502, content_type = "application/problem+json")]
    Upstream(Problem),
    /// An unexpected error: the log has the details under the request id.
    #[response(status = 500, content_type = "application/problem+json")]
    Internal(Problem),
    /// Try again later.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}
