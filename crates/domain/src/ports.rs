//! The ports to AWS: what the service needs from a region, in domain terms. `bakeoff-aws`
//! implements them with the AWS SDKs; the simulated region is reached through the same crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};

use crate::checkpoint::StoredObject;
use crate::doctor::Caller;
use crate::doctor::questions::{Decision, Question, RoleFound};
use crate::model_package::{Approval, ModelPackageRequest, ObservedPackage};
use crate::sagemaker::endpoint::{EndpointRequest, ModelRequest, SmokeTest};
use crate::sagemaker::error::AwsError;
use crate::sagemaker::image::EcrImage;
use crate::sagemaker::job::Job;
use crate::sagemaker::kind::JobKind;
use crate::sagemaker::log::LogLine;
use crate::sagemaker::metrics::{MetricQuery, Series};
use crate::sagemaker::observed::{JobSummary, ObservedJob};
use crate::sagemaker::quota::Quota;
use crate::sagemaker::schedule::ScheduledEnd;
use crate::sagemaker::tuning::TunedTrial;

/// Jobs of every kind. A job's model and an endpoint's configuration are created first ([`Endpoints`]).
#[async_trait]
pub trait Jobs: Send + Sync {
    /// An endpoint is not created once the claim no longer holds: unlike a job's, the name of one that is gone is free
    /// again, and a create that stood still for hours would begin a second life.
    async fn create(&self, job: &Job, holds: ClaimHolds) -> Result<(), AwsError>;
    /// Of a tuning job, without its trials; of an endpoint, without its marker, which is a tag. An endpoint that is not
    /// there any more is not found.
    async fn describe(&self, kind: JobKind, job_name: &str) -> Result<ObservedJob, AwsError>;
    /// An endpoint is deleted.
    async fn stop(&self, kind: JobKind, job_name: &str) -> Result<(), AwsError>;
    /// One page of the jobs whose name contains `fragment`, created after a moment, newest first; without deleted
    /// endpoints. An empty page may have a successor: only a missing token marks the end.
    async fn list(&self, kind: JobKind, page: &PageRequest) -> Result<JobPage, AwsError>;
    /// Ends the warm pool of a finished job by setting its keep-alive to zero.
    async fn end_pool(&self, job_name: &str) -> Result<(), AwsError>;
    /// Tags of a job, by its ARN.
    async fn tags(&self, arn: &str) -> Result<BTreeMap<String, String>, AwsError>;
    /// A page of the trials of a tuning job. What spot saved is not in it.
    async fn trials(
        &self,
        job_name: &str,
        token: Option<String>,
    ) -> Result<Page<TunedTrial>, AwsError>;
}

/// Which configuration an endpoint is to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointUpdate<'a> {
    pub endpoint: &'a str,
    pub config: &'a str,
}

/// Whether the claim on which a call is made still holds, asked right before the call leaves.
pub type ClaimHolds = Arc<dyn Fn() -> bool + Send + Sync>;

/// Models and endpoint configurations, and what an endpoint does beside being a job.
#[async_trait]
pub trait Endpoints: Send + Sync {
    async fn create_model(
        &self,
        name: &str,
        model: &ModelRequest,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), AwsError>;
    /// A configuration with one variant, whose model has the same name.
    async fn create_config(&self, name: &str, request: &EndpointRequest) -> Result<(), AwsError>;
    async fn update(&self, update: EndpointUpdate<'_>) -> Result<(), AwsError>;
    async fn delete_config(&self, name: &str) -> Result<(), AwsError>;
    async fn delete_model(&self, name: &str) -> Result<(), AwsError>;
    /// Sends a request to an endpoint that serves, and returns the answer, at most [`ANSWER_MAX`] bytes of it.
    async fn invoke(&self, name: &str, test: &SmokeTest) -> Result<Vec<u8>, AwsError>;
}

/// One-time schedules at AWS that end jobs which SageMaker itself never ends. A schedule has the name of its job, and
/// is gone once it has ended it.
#[async_trait]
pub trait Schedules: Send + Sync {
    /// Returns its ARN.
    async fn create(&self, end: &ScheduledEnd) -> Result<String, AwsError>;
    /// Moves one that exists, and returns its ARN.
    async fn update(&self, end: &ScheduledEnd) -> Result<String, AwsError>;
    /// `None` if the schedule of that name does something else.
    async fn get(&self, job_name: &str) -> Result<Option<ScheduledEnd>, AwsError>;
    async fn delete(&self, job_name: &str) -> Result<(), AwsError>;
}

/// Bytes of an endpoint's answer that are read.
pub const ANSWER_MAX: usize = 1024 * 1024;

/// Selects a page of a listing of jobs, or of ListModelPackages, where the fragment is the whole name of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    pub fragment: String,
    pub created_after: DateTime<Utc>,
    pub token: Option<String>,
}

/// A page of a listing of jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobPage {
    pub jobs: Vec<JobSummary>,
    pub next: Option<String>,
}

/// A page of results and the token of the next one. An empty page may have a successor: only a
/// missing token marks the end.
///
/// A port returns one page per call, so that the caller can pace and count each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
}

/// The caller's identity.
#[async_trait]
pub trait Identity: Send + Sync {
    /// Whose the credentials are (sts:GetCallerIdentity, which needs no permission).
    async fn caller(&self) -> CallerReply;
}

/// Who AWS says the caller is, and when it said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerReply {
    pub caller: Result<Caller, AwsError>,
    /// The time at AWS, to the second; refusals carry it, too. `None` without an answer.
    pub answered_at: Option<DateTime<Utc>>,
}

/// What IAM knows about principals.
#[async_trait]
pub trait Permissions: Send + Sync {
    async fn role(&self, name: &str) -> Result<RoleFound, AwsError>;
    /// Whether a principal's policies allow something: one decision per action.
    async fn simulate(
        &self,
        principal_arn: &str,
        question: &Question,
    ) -> Result<Vec<Decision>, AwsError>;
}

/// Training images in Amazon ECR.
#[async_trait]
pub trait Images: Send + Sync {
    /// The digest of an image in this region; `None` if its repository has none of that name.
    async fn digest(&self, image: &EcrImage<'_>) -> Result<Option<String>, AwsError>;
}

/// SageMaker's Model Registry.
#[async_trait]
pub trait ModelRegistry: Send + Sync {
    async fn create_group(&self, group: &str) -> Result<(), AwsError>;
    /// Creates a version, and returns its ARN. The same client token counts once.
    async fn create(&self, request: &ModelPackageRequest) -> Result<String, AwsError>;
    /// A page of the ARNs of a group's versions created after a moment, newest first; `NotFound` without the group.
    async fn list(&self, page: &PageRequest) -> Result<Page<String>, AwsError>;
    async fn describe(&self, arn: &str) -> Result<ObservedPackage, AwsError>;
    /// Approves or rejects a version, with a note why.
    async fn set_approval(
        &self,
        arn: &str,
        approval: Approval,
        note: Option<&str>,
    ) -> Result<(), AwsError>;
}

/// The account's quotas.
#[async_trait]
pub trait Quotas: Send + Sync {
    /// A page of the quotas for instances of jobs.
    async fn instances(&self, token: Option<String>) -> Result<Page<Quota>, AwsError>;
}

/// Selects a page of a log stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRequest {
    /// Of the job, which says in which group its streams are.
    pub kind: JobKind,
    pub stream: String,
    /// Only lines from this moment on.
    pub since: Option<DateTime<Utc>>,
    /// Only lines before this moment.
    pub until: Option<DateTime<Utc>>,
    /// Oldest first from the beginning; otherwise, the last lines.
    pub from_start: bool,
    /// 1 to [`LOG_LINES_MAX`].
    pub limit: u32,
    pub token: Option<String>,
}

/// GetLogEvents returns at most 10,000 events, or 1 MB.
pub const LOG_LINES_MAX: u32 = 10_000;

/// A page of a log stream, oldest first. It may be empty, and still have more behind it: the end is
/// reached when a token leads back to itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPage {
    pub lines: Vec<LogLine>,
    /// Leads to later lines.
    pub forward: Option<String>,
    /// Leads to earlier lines.
    pub backward: Option<String>,
}

/// Looks for words in all streams of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSearch<'a> {
    /// Of the job, which says in which group its streams are.
    pub kind: JobKind,
    /// Of its streams: `NAME/`.
    pub prefix: &'a str,
    /// A line is found if it contains one of them, in this case.
    pub words: &'a [&'a str],
    pub token: Option<String>,
}

/// Logs of training jobs in CloudWatch.
#[async_trait]
pub trait Logs: Send + Sync {
    /// A page of the names of the streams that begin with `prefix`; none before the account's first
    /// job has written anything.
    async fn streams(
        &self,
        kind: JobKind,
        prefix: &str,
        token: Option<String>,
    ) -> Result<Page<String>, AwsError>;
    async fn lines(&self, request: &LogRequest) -> Result<LogPage, AwsError>;
    /// A page of the lines that are found, in no order; it may be empty, and still have more behind it.
    async fn search(&self, search: &LogSearch<'_>) -> Result<Page<LogLine>, AwsError>;
}

/// What is copied, if it has not been written again since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySource<'a> {
    /// `s3://bucket/key`.
    pub s3_uri: &'a str,
    pub written_at: DateTime<Utc>,
}

/// A range of an object that becomes a part of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartCopy<'a> {
    pub source: CopySource<'a>,
    pub to: &'a str,
    pub upload: &'a str,
    /// From 1.
    pub number: i32,
    /// First and last byte.
    pub first: u64,
    pub last: u64,
}

/// Objects in S3.
#[async_trait]
pub trait Objects: Send + Sync {
    /// A page of the objects below an `s3://bucket/prefix`, with keys relative to it.
    async fn list(
        &self,
        s3_uri: &str,
        token: Option<String>,
    ) -> Result<Page<StoredObject>, AwsError>;
    /// A page of all objects whose addresses begin with an `s3://bucket/prefix`, as jobs read their inputs: an
    /// object itself, or what lies below. Keys are what follows.
    async fn list_prefix(
        &self,
        s3_uri: &str,
        token: Option<String>,
    ) -> Result<Page<StoredObject>, AwsError>;
    /// The region of a bucket; `None` if S3 does not say.
    async fn bucket_region(&self, bucket: &str) -> Result<Option<String>, AwsError>;
    /// Deletes objects below an `s3://bucket/prefix`, by their keys relative to it, at most 1,000. One
    /// that is not there is no error.
    async fn delete(&self, s3_uri: &str, keys: &[String]) -> Result<(), AwsError>;
    /// Copies an object of at most 5 GB to another address.
    async fn copy(&self, source: CopySource<'_>, to: &str) -> Result<(), AwsError>;
    /// Begins a multipart upload, and returns its id.
    async fn begin_upload(&self, to: &str) -> Result<String, AwsError>;
    /// Copies a range into a part of an upload, and returns its ETag.
    async fn copy_part(&self, part: &PartCopy<'_>) -> Result<String, AwsError>;
    /// Completes an upload of parts with these ETags, in order; `None` gives it up.
    async fn end_upload(
        &self,
        to: &str,
        upload: &str,
        etags: Option<&[String]>,
    ) -> Result<(), AwsError>;
    /// Reads a small object whole; `None` if it does not exist.
    async fn get(&self, s3_uri: &str) -> Result<Option<Vec<u8>>, AwsError>;
    /// Writes an object, replacing any existing one.
    async fn put(&self, s3_uri: &str, body: Vec<u8>) -> Result<(), AwsError>;
}

/// Products to request from SageMaker's price list: instances by what they are used for, and volumes, which
/// belong to another product family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    TrainingInstances,
    ProcessingInstances,
    HostingInstances,
    TransformInstances,
    Volumes,
}

/// The AWS Price List.
#[async_trait]
pub trait PriceList: Send + Sync {
    /// A page of the products of one kind in a region; each is a JSON document in itself.
    async fn products(
        &self,
        region: &str,
        kind: Products,
        token: Option<String>,
    ) -> Result<Page<String>, AwsError>;
}

/// A query for one metric of a job as SageMaker itself stores it, point by point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IterationQuery {
    pub metric: String,
    pub job_arn: String,
}

/// One point of such a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IterationPoint {
    /// The iteration that the script reported, if SageMaker returns as many iterations as times.
    pub step: Option<i64>,
    pub at: DateTime<Utc>,
    pub value: f64,
}

/// SageMaker's own time series of training metrics (BatchGetMetrics), for jobs with
/// EnableSageMakerMetricsTimeSeries.
#[async_trait]
pub trait IterationMetrics: Send + Sync {
    /// Reads all points, one series per query in query order; the series is empty for a metric that
    /// SageMaker does not know. At most [`ITERATION_QUERIES_MAX`] queries.
    async fn read(&self, queries: &[IterationQuery]) -> Result<Vec<Vec<IterationPoint>>, AwsError>;
}

/// BatchGetMetrics takes 100 queries; each metric needs two, one per axis.
pub const ITERATION_QUERIES_MAX: usize = 50;

/// The window of a metric read: averages over a period (whole minutes) from `start` (inclusive) to
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
    /// A page of the answer: one series per query, in query order. At most [`crate::sagemaker::metrics::QUERIES_MAX`] queries.
    /// A series is complete when the last page that contains any of it says so.
    async fn read(
        &self,
        queries: &[MetricQuery],
        window: Window,
        token: Option<String>,
    ) -> Result<Page<Series>, AwsError>;
}
