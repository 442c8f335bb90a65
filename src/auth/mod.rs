//! Keys, tokens and secrets: who may do what is decided with them, in [`crate::http`].

pub mod keys;
pub mod push_token;
pub mod secrets;
