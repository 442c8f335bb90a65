//! Measurements: metrics and their formats, rollups, steady figures, curves, remaining hours.

pub mod convergence;
pub mod eta;
pub mod metric;
pub mod pace;
pub mod rollup;
pub mod samples;
pub mod steady;
