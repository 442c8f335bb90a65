//! Keys, tokens and secrets; [`crate::http`] uses them to authorise callers.

pub mod keys;
pub mod push_token;
pub mod seal;
pub mod secrets;
