//! The ports to AWS: what the service needs from a region, in our own words. The real SDKs implement them in
//! `bakeoff-aws`; the simulated region is reached through that same crate.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use thiserror::Error;

use crate::job::{ObservedJob, TrainingJobRequest};

/// Why a call did not do what was asked. The difference that matters is between a definite no and a lost reply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AwsError {
    /// ResourceInUse: the name is taken.
    #[error("the name is taken: {0}")]
    AlreadyExists(String),
    #[error("not found: {0}")]
    NotFound(String),
    /// The rate is too high: nothing happened, ask again later.
    #[error("throttled: {0}")]
    Throttled(String),
    /// ResourceLimitExceeded: a quota. Nothing happened.
    #[error("over a quota: {0}")]
    LimitExceeded(String),
    /// A definite no: nothing happened, and asking again will not help.
    #[error("rejected ({code}): {message}")]
    Rejected { code: String, message: String },
    /// A timeout, a broken connection, a 5xx: it may have happened.
    #[error("no answer: {0}")]
    Unknown(String),
}

/// SageMaker training jobs.
#[async_trait]
pub trait TrainingJobs: Send + Sync {
    async fn create(&self, request: &TrainingJobRequest) -> Result<(), AwsError>;
    async fn describe(&self, job_name: &str) -> Result<ObservedJob, AwsError>;
    async fn stop(&self, job_name: &str) -> Result<(), AwsError>;
    /// Names of the jobs in progress whose name contains `fragment`, all pages.
    async fn list_in_progress(&self, fragment: &str) -> Result<Vec<String>, AwsError>;
}

/// One series to read: a metric of a job (`TrainingJobName`) or of one of its hosts (`Host`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricQuery {
    pub metric: String,
    pub dimension: &'static str,
    pub value: String,
}

/// The answer to one query: (minute, value), oldest first.
pub type Series = Vec<(DateTime<Utc>, f64)>;

/// CloudWatch metrics of training jobs.
#[async_trait]
pub trait JobMetrics: Send + Sync {
    /// One-minute averages from `start` (inclusive) to `end` (exclusive), one series per query, in the queries' order.
    /// At most [`QUERIES_MAX`] queries.
    async fn read(
        &self,
        queries: &[MetricQuery],
        start: DateTime<Utc>,
        end: DateTime<Utc>,
    ) -> Result<Vec<Series>, AwsError>;
}

/// GetMetricData takes at most 500 queries.
pub const QUERIES_MAX: usize = 500;
