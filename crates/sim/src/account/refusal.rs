//! An error on the wire.

/// An error on the wire: SageMaker's code and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// A validation error: the request itself is wrong.
pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal {
        code: "ValidationException",
        message: message.into(),
    }
}
