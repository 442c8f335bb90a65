//! The ports to AWS: what the service needs from a region, in our own words. The real SDKs
//! implement them in `bakeoff-aws`; the simulated region is reached through that same crate.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};

use super::error::AwsError;
use crate::sagemaker::observed::{JobSummary, ObservedJob};
use crate::sagemaker::quota::Quota;
use crate::sagemaker::request::TrainingJobRequest;

/// SageMaker training jobs.
#[async_trait]
pub trait TrainingJobs: Send + Sync {
    async fn create(&self, request: &TrainingJobRequest) -> Result<(), AwsError>;
    async fn describe(&self, job_name: &str) -> Result<ObservedJob, AwsError>;
    async fn stop(&self, job_name: &str) -> Result<(), AwsError>;
    /// One page of the jobs whose name contains `fragment`, created after a moment, newest first.
    /// An empty page may have a successor: only a missing token is the end.
    async fn list(&self, page: &PageRequest) -> Result<JobPage, AwsError>;
    /// Ends the warm pool that a finished job left: its keep-alive becomes zero.
    async fn end_pool(&self, job_name: &str) -> Result<(), AwsError>;
    /// Tags of a job, by its ARN.
    async fn tags(&self, arn: &str) -> Result<BTreeMap<String, String>, AwsError>;
}

/// Which page of ListTrainingJobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    pub fragment: String,
    pub created_after: DateTime<Utc>,
    pub token: Option<String>,
}

/// A page of ListTrainingJobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobPage {
    pub jobs: Vec<JobSummary>,
    pub next: Option<String>,
}

/// A page of something, and where the next one begins. An empty page may have a successor: only a
/// missing token is the end.
///
/// A port answers one page a call, so that whoever paces and counts calls sees each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
}

/// Who is calling.
#[async_trait]
pub trait Identity: Send + Sync {
    /// The account that the credentials belong to, twelve digits (sts:GetCallerIdentity; it needs
    /// no permission).
    async fn account(&self) -> Result<String, AwsError>;
}

/// The account's quotas.
#[async_trait]
pub trait Quotas: Send + Sync {
    /// A page of the quotas on training instances.
    async fn training(&self, token: Option<String>) -> Result<Page<Quota>, AwsError>;
}

/// Objects in S3.
#[async_trait]
pub trait Objects: Send + Sync {
    /// When the objects of a page below an `s3://bucket/prefix` were written.
    async fn written(
        &self,
        s3_uri: &str,
        token: Option<String>,
    ) -> Result<Page<DateTime<Utc>>, AwsError>;
    /// A small object, whole; `None` when there is none of that name.
    async fn get(&self, s3_uri: &str) -> Result<Option<Vec<u8>>, AwsError>;
    /// Puts an object in the place of whatever is there.
    async fn put(&self, s3_uri: &str, body: Vec<u8>) -> Result<(), AwsError>;
}

/// What SageMaker's price list is asked for: instances and, apart from them, volumes, which are of
/// another product family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    TrainingInstances,
    Volumes,
}

/// The AWS Price List.
#[async_trait]
pub trait PriceList: Send + Sync {
    /// A page of the products of a kind in a region: each is a JSON text of its own.
    async fn products(
        &self,
        region: &str,
        kind: Products,
        token: Option<String>,
    ) -> Result<Page<String>, AwsError>;
}

/// One metric of a job as SageMaker itself keeps it, point by point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IterationQuery {
    pub metric: String,
    pub job_arn: String,
}

/// One point of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IterationPoint {
    /// The iteration that the script reported it for, where SageMaker tells as many iterations as
    /// times.
    pub step: Option<i64>,
    pub at: DateTime<Utc>,
    pub value: f64,
}

/// SageMaker's own time series of training metrics (BatchGetMetrics), where a job has
/// EnableSageMakerMetricsTimeSeries.
#[async_trait]
pub trait IterationMetrics: Send + Sync {
    /// Every point, one series per query, in the queries' order; none for a metric that SageMaker
    /// does not know. At most [`ITERATION_QUERIES_MAX`] queries.
    async fn read(&self, queries: &[IterationQuery]) -> Result<Vec<Vec<IterationPoint>>, AwsError>;
}

/// BatchGetMetrics takes 100 queries; each metric needs two, one for each axis.
pub const ITERATION_QUERIES_MAX: usize = 50;

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
    /// CloudWatch says that this is all there is (StatusCode `Complete`). Else more may be there,
    /// and it is to be asked again.
    pub is_complete: bool,
    /// It could not read some of it (`InternalError`, `Forbidden`): whatever the other pages say,
    /// not all is there.
    pub is_failed: bool,
}

impl Series {
    /// What the next page of the same answer has of it.
    pub fn extend(&mut self, next: Self) {
        self.points.extend(next.points);
        self.is_complete |= next.is_complete;
        self.is_failed |= next.is_failed;
    }

    /// Nothing is missing.
    pub fn is_whole(&self) -> bool {
        self.is_complete && !self.is_failed
    }
}

/// What metrics are read over: averages over a period (whole minutes) from `start` (inclusive) to
/// `end` (exclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub period: TimeDelta,
    pub start: DateTime<Utc>,
    pub end: DateTime<Utc>,
}

/// CloudWatch metrics of training jobs.
#[async_trait]
pub trait JobMetrics: Send + Sync {
    /// A page of the answer: one series per query, in the queries' order. At most [`QUERIES_MAX`]
    /// queries. A series is complete when the last page that has any of it says so.
    async fn read(
        &self,
        queries: &[MetricQuery],
        window: Window,
        token: Option<String>,
    ) -> Result<Page<Series>, AwsError>;
}

/// GetMetricData takes at most 500 queries.
pub const QUERIES_MAX: usize = 500;
