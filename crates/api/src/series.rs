//! API views of measured series.

use bakeoff_domain::ids::{RunId, TrialId};
use bakeoff_domain::measure::metric::Source;
use bakeoff_domain::measure::steady::{Bucket, Steady};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

view! {
    /// One time bucket of a metric: a summary of its points.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Bucket)]
    pub struct BucketView of Bucket {
        pub start_at: DateTime<Utc>,
        pub points: u32,
        pub mean: f64,
        pub min: f64,
        pub max: f64,
        pub last_at: DateTime<Utc>,
        pub last_step: Option<i32>,
        pub last: f64,
    }
}

view! {
    /// A steady-state mean with the window it was measured over.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Steady)]
    pub struct SteadyView of Steady {
        pub mean: f64,
        /// Half width of the 95 % interval of a long run's mean: Student's, corrected for
        /// autocorrelation, and at least 2 % of the mean.
        pub half_width: f64,
        pub points: u32,
        pub buckets: u32,
        /// Buckets at the start that were dropped as warm-up.
        pub buckets_dropped: u32,
        pub from_at: DateTime<Utc>,
        pub until_at: DateTime<Utc>,
    }
}

/// A measured series.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MetricSeries {
    /// The standard metric name, or the reported one if there is no standard name.
    pub metric: String,
    /// The name as reported.
    pub name: String,
    pub unit: Option<String>,
    pub source: Source,
    /// Stored points, including non-finite ones.
    pub stored_points: i64,
    pub non_finite_points: i64,
    /// With `auto` and `raw`: the points in columns, oldest first.
    pub points: Option<PointColumns>,
    /// With `buckets`, and with `auto` for long series: five-minute buckets, oldest first.
    pub buckets: Vec<BucketView>,
    pub bucket_seconds: i64,
    /// The steady-state figure, when there is enough evidence.
    pub steady: Option<SteadyView>,
}

/// Points in columns. Non-finite values (NaN, infinities) are null.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PointColumns {
    /// Unix time in seconds.
    pub at_seconds: Vec<f64>,
    /// Null where the source reports no step.
    pub step: Vec<Option<i32>>,
    pub value: Vec<Option<f64>>,
}

/// Series of several trials and runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SeriesTable {
    /// By trial or run, then by metric.
    pub series: Vec<SeriesLine>,
    /// Metrics that these trials and runs have, also those that were not asked for, by name.
    pub metrics: Vec<MetricName>,
    pub as_of: DateTime<Utc>,
}

/// One series of a table.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SeriesLine {
    /// Of a trial.
    pub trial_id: Option<TrialId>,
    /// Of a run outside SageMaker.
    pub run_id: Option<RunId>,
    /// The candidate's name, or the run's.
    pub candidate: String,
    /// The standard metric name, or the reported one if there is no standard name.
    pub metric: String,
    pub unit: Option<String>,
    pub source: Source,
    /// Stored points, including non-finite ones.
    pub stored_points: i64,
    /// True where the points are five-minute means, because there are too many: each at the time and step of its last.
    pub are_means: bool,
    /// Oldest first, thinned to at most `points`; extremes of what is thinned are kept.
    pub points: PointColumns,
}

/// A metric that is there to be asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MetricName {
    pub metric: String,
    pub unit: Option<String>,
    /// How many of the trials and runs have it.
    pub subjects: u32,
}
