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
    /// Lines that were skipped, if skipping was requested: the first 20.
    pub skipped: Vec<SkippedLine>,
    pub skipped_in_all: u64,
    /// What was recognised as what, what was not read and why, and what is odd.
    pub report: MetricsReport,
}

view! {
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    pub struct SkippedLine of LineError {
        pub line: usize,
        pub detail: String,
    }
}

view! {
    /// How a body was read.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    pub struct MetricsReport of Report {
        /// Who wrote it, in words: `W&B's history`; null if nothing says so.
        pub format: Option<String>,
        /// The column that times were read from.
        pub time: Option<String>,
        /// The column that steps were read from.
        pub step: Option<String>,
        pub columns: Vec<ReadMetricColumn> as each,
        pub not_read: Vec<UnreadMetricColumn> as each,
        /// The first 50.
        pub conflicts: Vec<MetricConflict> as each,
        pub conflicts_in_all: u64,
        /// Caveats about the figures.
        pub notes: Vec<MetricsNote> as each,
    }
}

view! {
    /// A column that became a metric.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    pub struct ReadMetricColumn of ReadColumn {
        /// As it is called in what was sent.
        pub column: String,
        /// The standard metric that it is; null for a metric of one's own, which is stored under its own name.
        pub metric: Option<String>,
        pub points: u64,
        /// How values were converted, if they were: `seconds a step, stored as steps a second`.
        pub converted: Option<String>,
    }
}

view! {
    /// Values of a column that are not stored.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    pub struct UnreadMetricColumn of NotRead {
        pub column: String,
        pub why: String,
        pub cells: u64,
    }
}

view! {
    /// Two values for one metric at one time and step; the first was kept.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    pub struct MetricConflict of Conflict {
        pub metric: String,
        pub at: DateTime<Utc>,
        pub step: Option<i32>,
        /// Null where it is no finite number.
        pub kept: Option<f64>,
        pub ignored: Option<f64>,
    }
}

view! {
    /// Something that a reader should know.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    pub struct MetricsNote of Note {
        pub rule: String,
        pub detail: String,
    }
}
