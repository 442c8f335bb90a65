//! The `bakeoff` program as a library: its command line, and what connects the service to AWS (`cli::aws`). A library so
//! that integration tests can drive it.

pub mod cli;
