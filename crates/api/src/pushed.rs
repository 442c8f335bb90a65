//! API views of what became of metrics that were sent.

use bakeoff_domain::measure::samples::{Conflict, LineError, NotRead, Note, ReadColumn, Report};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The result of pushing metrics.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Pushed {
    /// Points newly stored.
    pub stored: u64,
    /// Points that were already stored; they keep their first value.
    pub duplicates: u64,
    /// Lines that were skipped, if skipping was requested.
    pub skipped: Vec<SkippedLine>,
    /// What was recognised as what, what was not read and why, and what is odd.
    pub report: MetricsReport,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SkippedLine {
    pub line: usize,
    pub detail: String,
}

impl From<LineError> for SkippedLine {
    fn from(error: LineError) -> Self {
        let LineError { line, detail } = error;
        Self { line, detail }
    }
}

/// What a reading made of a body.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MetricsReport {
    /// Who wrote it, in words: `W&B's history`; null if nothing says so.
    pub format: Option<String>,
    /// The column that times were read from.
    pub time: Option<String>,
    /// The column that steps were read from.
    pub step: Option<String>,
    pub columns: Vec<ReadMetricColumn>,
    pub not_read: Vec<UnreadMetricColumn>,
    /// The first 50.
    pub conflicts: Vec<MetricConflict>,
    pub conflicts_in_all: u64,
    /// What a reader should know before using the figures.
    pub notes: Vec<MetricsNote>,
}

impl From<Report> for MetricsReport {
    fn from(report: Report) -> Self {
        let Report {
            format,
            time,
            step,
            columns,
            not_read,
            conflicts,
            conflicts_in_all,
            notes,
        } = report;
        Self {
            format,
            time,
            step,
            columns: columns.into_iter().map(Into::into).collect(),
            not_read: not_read.into_iter().map(Into::into).collect(),
            conflicts: conflicts.into_iter().map(Into::into).collect(),
            conflicts_in_all,
            notes: notes.into_iter().map(Into::into).collect(),
        }
    }
}

/// A column that became a metric.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReadMetricColumn {
    /// As it is called in what was sent.
    pub column: String,
    /// The standard metric that it is; null for a metric of one's own, which is stored under its own name.
    pub metric: Option<String>,
    pub points: u64,
    /// How values were converted, if they were: `seconds a step, stored as steps a second`.
    pub converted: Option<String>,
}

impl From<ReadColumn> for ReadMetricColumn {
    fn from(read: ReadColumn) -> Self {
        let ReadColumn {
            column,
            metric,
            points,
            converted,
        } = read;
        Self {
            column,
            metric,
            points,
            converted,
        }
    }
}

/// Values of a column that are not stored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnreadMetricColumn {
    pub column: String,
    pub why: String,
    pub cells: u64,
}

impl From<NotRead> for UnreadMetricColumn {
    fn from(left: NotRead) -> Self {
        let NotRead { column, why, cells } = left;
        Self { column, why, cells }
    }
}

/// Two values for one metric at one time and step; the first was kept.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MetricConflict {
    pub metric: String,
    pub at: DateTime<Utc>,
    pub step: Option<i32>,
    /// Null where it is no finite number.
    pub kept: Option<f64>,
    pub ignored: Option<f64>,
}

impl From<Conflict> for MetricConflict {
    fn from(conflict: Conflict) -> Self {
        let Conflict {
            metric,
            at,
            step,
            kept,
            ignored,
        } = conflict;
        Self {
            metric,
            at,
            step,
            kept,
            ignored,
        }
    }
}

/// Something that a reader should know.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MetricsNote {
    pub rule: String,
    pub detail: String,
}

impl From<Note> for MetricsNote {
    fn from(note: Note) -> Self {
        let Note { rule, detail } = note;
        Self { rule, detail }
    }
}
