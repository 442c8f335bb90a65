//! Metrics of a training job: the definitions that find them in its log, what SageMaker measures of its hosts, and how
//! CloudWatch is asked for them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The meaning of a metric of the training script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// Tokens trained per second over all accelerators of the job.
    TokensPerSecond,
    /// Sequences trained per second over all accelerators of the job, each of the workload's
    /// sequence length.
    SamplesPerSecond,
    /// Optimiser steps per second.
    StepsPerSecond,
    /// Tokens trained per second on each accelerator.
    TokensPerSecondPerDevice,
    /// Tokens trained so far over all accelerators.
    TokensSeen,
    /// Sequences trained so far over all accelerators.
    SamplesSeen,
    TrainLoss,
    ValidationLoss,
    /// Optimiser steps done so far.
    Step,
    Other,
}

/// A SageMaker metric definition: a name and the regular expression that finds its value in the
/// job's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MetricDefinition {
    pub name: String,
    /// One capture group around the number.
    pub regex: String,
    pub meaning: Meaning,
}

/// Host metrics of `/aws/sagemaker/TrainingJobs`, one-minute, dimension Host.
pub const HOST_METRICS: [&str; 5] = [
    "CPUUtilization",
    "MemoryUtilization",
    "GPUUtilization",
    "GPUMemoryUtilization",
    "DiskUtilization",
];

/// One series to read: a metric of a job (`TrainingJobName`) or of one of its hosts (`Host`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricQuery {
    pub metric: String,
    pub dimension: &'static str,
    pub value: String,
}

/// The answer to one query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// (minute, value), oldest first.
    pub points: Vec<(DateTime<Utc>, f64)>,
    /// CloudWatch reports that this is everything (StatusCode `Complete`). Otherwise there may be
    /// more, and the query must be repeated.
    pub is_complete: bool,
    /// CloudWatch could not read part of it (`InternalError`, `Forbidden`): data is missing,
    /// whatever the other pages say.
    pub is_failed: bool,
}

impl Series {
    /// Appends this series' part of the next page of the same answer.
    pub fn extend(&mut self, next: Self) {
        self.points.extend(next.points);
        self.is_complete |= next.is_complete;
        self.is_failed |= next.is_failed;
    }

    /// Whether nothing is missing.
    pub fn is_whole(&self) -> bool {
        self.is_complete && !self.is_failed
    }
}

/// GetMetricData takes at most 500 queries.
pub const QUERIES_MAX: usize = 500;
