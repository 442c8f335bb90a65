//! Errors of AWS calls.

use thiserror::Error;

/// Why an AWS call failed. The distinction that matters is between a definite refusal and a lost
/// reply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AwsError {
    /// ResourceInUse: the name is taken.
    #[error("the name is taken: {0}")]
    AlreadyExists(String),
    #[error("not found: {0}")]
    NotFound(String),
    /// The request rate is too high: nothing happened, retry later.
    #[error("throttled: {0}")]
    Throttled(String),
    /// ResourceLimitExceeded: over a quota. Nothing happened.
    #[error("over a quota: {0}")]
    LimitExceeded(String),
    /// No permission: nothing happened, and only a person can change that.
    #[error("denied: {0}")]
    Denied(String),
    /// The credentials have expired: nothing happened, and their provider renews them.
    #[error("expired: {0}")]
    Expired(String),
    /// A definite refusal: nothing happened, and retrying will not help.
    #[error("rejected ({code}): {message}")]
    Rejected { code: String, message: String },
    /// A timeout, a broken connection, a 5xx: the call may have succeeded.
    #[error("no answer: {0}")]
    Unknown(String),
}
