//! A whole Bakeoff on one machine: the simulated region, the service with a PostgreSQL of its own, and the demo that runs
//! on them, from nothing to a recommendation. The project's own commands start the same stack.

#![expect(
    clippy::indexing_slicing,
    reason = "only serde_json values are indexed, and those yield null"
)]

mod chaos;
pub mod demo;
pub mod http;
pub mod process;
pub mod stack;
pub mod verify;
