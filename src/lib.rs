//! Bakeoff, the service: HTTP, store, tasks, command line. A library so that integration tests can
//! drive it; its rules are in `bakeoff-domain`, AWS is in `bakeoff-aws`.

pub mod api;
pub mod app;
pub mod artifacts;
pub mod auth;
pub mod aws;
pub mod ci_report;
pub mod cli;
pub mod clock;
pub mod copies;
pub mod crash;
pub mod doctor;
pub mod document;
pub mod event_board;
pub mod fence;
pub mod full_run;
pub mod http;
pub mod ids;
pub mod intake;
pub mod job_log;
pub mod leader;
pub mod model_packages;
pub mod outgoing;
pub mod pipelines;
pub mod pulse;
pub mod read;
pub mod refresh;
pub mod rule_results;
pub mod serving;
pub mod store;
pub mod task_board;
pub mod tasks;
pub mod tls;
