//! An error on the wire.

/// An error on the wire: SageMaker's code and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// What the request itself is wrong with.
pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal {
        code: "ValidationException",
        message: message.into(),
    }
}
