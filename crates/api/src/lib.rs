//! Types of the API's responses, with units in field names. Clients see no other types. They are
//! built from domain types and database rows, and know nothing of SQL or HTTP.

#[macro_use]
mod view;

pub mod artifacts;
pub mod budgets;
pub mod calibration;
pub mod catalog;
pub mod checkpoints;
pub mod ci;
pub mod ci_runs;
pub mod commit_status;
pub mod comparison;
pub mod decisions;
pub mod diagnosis;
pub mod doctor;
pub mod endpoints;
pub mod events;
pub mod experiments;
pub mod findings;
pub mod full_runs;
pub mod imports;
pub mod keys;
pub mod logs;
pub mod looks;
pub mod model_packages;
pub mod money;
pub mod operations;
pub mod page;
pub mod pipelines;
pub mod plans;
pub mod prices;
pub mod projects;
pub mod purchases;
pub mod pushed;
pub mod requests;
pub mod runs;
pub mod series;
pub mod sessions;
pub mod specs;
pub mod trials;
pub mod troubles;
pub mod tuning;
pub mod webhook_endpoints;
