//! Looked up at AWS on request, and never stored: logs, artifacts, checkpoints to copy, late rule results.

pub mod artifacts;
pub mod copies;
pub mod job_log;
pub mod rule_results;
