//! What jobs write: logs, metrics, reports of rules, checkpoints.

pub(crate) mod checkpoints;
pub(crate) mod evaluations;
pub(crate) mod logs;
pub(crate) mod metrics;
