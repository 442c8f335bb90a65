//! The integration tests, one binary: the real service over HTTP, real Postgres, the real AWS SDKs against the simulated
//! region over the wire. No sleeps: the domain clock is stepped, ticks are called.

#![expect(clippy::indexing_slicing, reason = "only serde_json values are indexed, and those yield null")]

mod api;
mod boto;
mod ci;
mod ledger;
mod scheduler;
mod style;
mod support;
