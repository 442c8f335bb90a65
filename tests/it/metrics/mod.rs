//! What jobs report and leave behind: metrics, logs, models and checkpoints.

pub(crate) mod artifacts;
pub(crate) mod logs;
pub(crate) mod points;
pub(crate) mod series_table;
pub(crate) mod sources;
