//! What was read of what was sent, so that nothing is dropped without a word.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::Point;

/// Maximum columns, cells and conflicts that are named one by one; the rest are counted.
pub(super) const NAMED_MAX: usize = 50;

/// What a reading made of a body.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Who wrote it, in words: `W&B's history`; null if nothing says so.
    pub format: Option<String>,
    /// The column that times were read from.
    pub time: Option<String>,
    /// The column that steps were read from.
    pub step: Option<String>,
    pub columns: Vec<ReadColumn>,
    pub not_read: Vec<NotRead>,
    /// The first 50.
    pub conflicts: Vec<Conflict>,
    pub conflicts_in_all: u64,
    /// What a reader should know before using the figures.
    pub notes: Vec<Note>,
}

/// A column that became a metric.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadColumn {
    /// As it is called in what was sent.
    pub column: String,
    /// The standard metric that it is; null for a metric of one's own, which is stored under its own name.
    pub metric: Option<String>,
    pub points: u64,
    /// How values were converted, if they were: `seconds a step, stored as steps a second`.
    pub converted: Option<String>,
}

/// Values of a column that are not stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotRead {
    pub column: String,
    pub why: String,
    pub cells: u64,
}

/// Two values for one metric at one time and step; the first was kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conflict {
    pub metric: String,
    pub at: DateTime<Utc>,
    pub step: Option<i32>,
    /// Null where it is no finite number.
    pub kept: Option<f64>,
    pub ignored: Option<f64>,
}

/// Something that a reader should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    pub rule: String,
    pub detail: String,
}

/// Whether two values are one, NaN among them.
pub(super) fn is_same(one: f64, other: f64) -> bool {
    one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan())
}

/// A finite number: JSON has no other.
fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

impl Report {
    /// Adds a conflict with what was stored before.
    pub fn add_conflict(&mut self, conflict: Conflict) {
        if self.conflicts.len() < NAMED_MAX {
            self.conflicts.push(conflict);
        }
    }

    /// Counts and names a second value of one metric at one moment.
    pub(super) fn conflict(&mut self, metric: Option<&String>, ignored: &Point, kept: f64) {
        self.conflicts_in_all += 1;
        self.add_conflict(Conflict {
            metric: metric.cloned().unwrap_or_default(),
            at: ignored.at,
            step: ignored.step,
            kept: finite(kept),
            ignored: finite(ignored.value),
        });
    }

    pub(super) fn note(&mut self, rule: &str, detail: String) {
        self.notes.push(Note {
            rule: rule.to_owned(),
            detail,
        });
    }
}
