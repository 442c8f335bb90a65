//! Why a call to AWS did not do what was asked.

use thiserror::Error;

/// Why a call did not do what was asked. The difference that matters is between a definite no and a
/// lost reply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AwsError {
    /// ResourceInUse: the name is taken.
    #[error("the name is taken: {0}")]
    AlreadyExists(String),
    #[error("not found: {0}")]
    NotFound(String),
    /// The rate is too high: nothing happened, ask again later.
    #[error("throttled: {0}")]
    Throttled(String),
    /// ResourceLimitExceeded: a quota. Nothing happened.
    #[error("over a quota: {0}")]
    LimitExceeded(String),
    /// No permission: nothing happened, and only a person can change that.
    #[error("denied: {0}")]
    Denied(String),
    /// The credentials have expired: nothing happened, and whoever gave them renews them.
    #[error("expired: {0}")]
    Expired(String),
    /// A definite no: nothing happened, and asking again will not help.
    #[error("rejected ({code}): {message}")]
    Rejected { code: String, message: String },
    /// A timeout, a broken connection, a 5xx: it may have happened.
    #[error("no answer: {0}")]
    Unknown(String),
}
