//! The service itself: its API, its feed, its program, and who may do what.

pub(crate) mod api;
pub(crate) mod browsers;
pub(crate) mod docs;
pub(crate) mod doctor;
pub(crate) mod embedded;
pub(crate) mod events;
pub(crate) mod keys;
pub(crate) mod operations;
pub(crate) mod program;
pub(crate) mod security;
pub(crate) mod security_wire;
pub(crate) mod sessions;
pub(crate) mod webhook_endpoints;
