//! API views of how good the predictions were.

use bakeoff_domain::measure::calibration::{Figure, Record};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The predictions of a project's newest experiments, scored by what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Calibration {
    /// Number of experiments looked at.
    pub experiments: u32,
    /// One row for each figure and instance type, with and without own measurements.
    pub rows: Vec<CalibrationRow>,
    pub as_of: DateTime<Utc>,
}

/// The predictions of one figure on one instance type against what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CalibrationRow {
    /// What was predicted: a trial's speed, hours or cost by its plan, what was left of it at half of
    /// its steps, or a full run's hours or cost by its trial.
    pub figure: Figure,
    pub instance_type: String,
    /// Whether measurements of this type had adjusted the predictions.
    pub is_adjusted: bool,
    /// Trials, or full runs, with a predicted and a measured figure.
    pub trials: usize,
    /// Share of the intervals that contained the measured figure, 0 to 100: well calibrated where it is
    /// close to `stated_percent`.
    pub held_percent: f64,
    /// What the intervals state, 0 to 100.
    pub stated_percent: u8,
    /// Median of the absolute error, per cent of the measured figure.
    pub median_error_percent: f64,
    /// Median of the error with its sign: above zero, the predictions are too high.
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
            figure: class.figure,
            instance_type: class.instance_type,
            is_adjusted: class.is_adjusted,
            trials: count,
            held_percent,
            stated_percent: class.figure.stated_percent(),
            median_error_percent,
            bias_percent,
        }
    }
}
