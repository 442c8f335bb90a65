//! API views of how good the predictions were.

use bakeoff_domain::measure::calibration::Record;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The predictions of a project's newest experiments, scored by what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Calibration {
    /// Number of experiments looked at.
    pub experiments: u32,
    /// One row for each instance type, with and without own measurements.
    pub rows: Vec<CalibrationRow>,
    pub as_of: DateTime<Utc>,
}

/// The predicted speeds of one instance type against the measured ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CalibrationRow {
    pub instance_type: String,
    /// Whether measurements of this type had adjusted the predictions.
    pub is_adjusted: bool,
    /// Trials with a predicted and a measured speed.
    pub trials: usize,
    /// Share of the 90 % intervals that held the measured speed, 0 to 100: 90 is right.
    pub held_percent: f64,
    /// Median of the absolute error, per cent of the measured speed.
    pub median_error_percent: f64,
    /// Median of the error with its sign: above zero, the predictions are too fast.
    pub bias_percent: f64,
}

impl From<Record> for CalibrationRow {
    fn from(record: Record) -> Self {
        let Record {
            class,
            count,
            held_percent,
            median_error_percent,
            bias_percent,
        } = record;
        Self {
            instance_type: class.instance_type,
            is_adjusted: class.is_adjusted,
            trials: count,
            held_percent,
            median_error_percent,
            bias_percent,
        }
    }
}
