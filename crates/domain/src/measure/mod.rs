//! Measurements: metrics, their formats and their reads from CloudWatch, rollups, steady figures, curves, remaining hours.

pub mod calibration;
pub mod cloudwatch;
pub mod convergence;
pub mod derived;
pub mod detector;
pub mod eta;
pub mod metric;
pub mod overhead;
pub mod pace;
pub mod rollup;
pub mod samples;
pub mod speed;
pub mod steady;
