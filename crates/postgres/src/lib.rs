//! A private Postgres cluster: finds or installs the server, initialises a data directory, starts
//! the server, adopts one that outlived its parent, and stops it.
//!
//! It is not a client (no SQL goes through here) and knows nothing of Bakeoff's schema. It blocks,
//! so async callers use a blocking thread. Used by `bakeoff serve --embedded` and by `cargo xtask`,
//! which must start in seconds and so cannot depend on the service.

mod binaries;
mod child;
mod cluster;
mod manifest;
mod owner;
pub mod reaper;
mod role;

pub use binaries::{Binaries, NotFound};
pub use cluster::{Cluster, Config, Error, saved_url};
