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

mod additions;
mod api;
mod artifacts;
mod between;
mod bill;
mod budgets;
mod caught;
mod ci;
mod ci_one_bill;
mod ci_waits;
mod clients;
mod commit_status;
mod control;
mod doctor;
mod documents;
mod embedded;
mod endpoint_lives;
mod endpoints;
mod events;
mod fence;
mod fleet;
mod fleet_events;
mod forgeries;
mod forms;
mod full_run;
mod fuzz;
mod gate;
mod holds;
mod holds_account;
mod holds_fleet;
mod holds_listings;
mod holds_locks;
mod holds_money;
mod holds_reserved;
mod images;
mod ledger;
mod logs;
mod metrics;
mod metrics_sources;
mod operations;
mod orphans;
mod pipeline_examples;
mod pipelines;
mod places;
mod plans;
mod preview;
mod prices;
mod processing;
mod processing_jobs;
mod program;
mod purchase;
mod race;
mod reads;
mod recommendations;
mod registry;
mod scheduled_end;
mod scheduled_end_faults;
mod scheduler;
mod sdk_pipelines;
mod sdk_requests;
mod security;
mod security_wire;
mod snapshots;
mod specs;
mod states;
mod style;
mod support;
mod teaches_nothing;
mod tuning;
mod unreadable;
mod upgrade;
mod webhooks_out;
