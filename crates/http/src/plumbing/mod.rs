//! What every handler stands on: who asks, what is read from a request, how an answer or an error is written, and the
//! server with its limits.

pub(crate) mod access;
pub(crate) mod auth;
pub(crate) mod etag;
pub(crate) mod extract;
pub(crate) mod heavy;
pub(crate) mod page;
pub(crate) mod parameters;
pub(crate) mod problem;
pub(crate) mod request_id;
pub(crate) mod server;
pub(crate) mod table;
pub(crate) mod web;
