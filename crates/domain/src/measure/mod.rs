//! What is measured: metrics and their formats, rollups, steady figures, curves, hours left.

pub mod convergence;
pub mod eta;
pub mod metric;
pub mod rollup;
pub mod samples;
pub mod steady;
