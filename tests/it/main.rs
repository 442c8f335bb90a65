//! The integration tests, one binary: the real service over HTTP, real Postgres, the real AWS SDKs
//! against the simulated region over the wire. No sleeps: the domain clock is stepped, ticks are
//! called.

#![expect(
    clippy::indexing_slicing,
    reason = "serde_json values yield null; anything else that panics fails the test"
)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails"
)]

mod ci;
mod clients;
mod endpoints;
mod experiments;
mod faults;
mod house;
mod jobs;
mod metrics;
mod money;
mod pipelines;
mod service;
mod support;
