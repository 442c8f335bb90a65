//! Keys, tokens and secrets; [`bakeoff_http`] uses them to authorise callers.

pub mod keys;
pub mod push_token;
pub mod seal;
pub mod secrets;
