//! What nobody stores: looked up at AWS when it is asked for.

pub mod artifacts;
pub mod copies;
pub mod job_log;
pub mod rule_results;
