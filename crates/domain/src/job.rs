//! A SageMaker training job as we ask for it and as we see it. Field names follow SageMaker's; wire
//! formats and SDK types are the AWS crate's business.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::bill;
use crate::metric::MetricDefinition;
use crate::pool::WarmPool;
use crate::requested::Actual;
use crate::spec::{Channel, CheckpointSpec};

/// Environment variable that marks a job as ours; DescribeTrainingJob returns it.
pub const MARKER: &str = "BAKEOFF_ATTEMPT_ID";

/// One kind of instance of a heterogeneous cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InstanceGroup {
    pub name: String,
    pub instance_type: String,
    pub instance_count: u32,
}

/// A rule of the profiler or of the debugger, with the container that evaluates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuleConfiguration {
    pub name: String,
    pub image: String,
    pub parameters: BTreeMap<String, String>,
}

/// What the profiler is told. Its findings go below the job's output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Profiler {
    /// ProfilingIntervalInMilliseconds; SageMaker's own when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_milliseconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleConfiguration>,
}

/// What the debugger is told: tensor collections by name with their parameters, and rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Debugger {
    /// The rules are there, and no DebugHookConfig: nothing saves tensors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_hook_off: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub collections: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleConfiguration>,
}

/// A CreateTrainingJob request. What its JSON is, is in [`crate::body`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrainingJobRequest {
    /// At most 63 characters, unique in account and region.
    pub job_name: String,
    pub image: String,
    pub role_arn: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub volume_size_gb: u32,
    pub channels: Vec<Channel>,
    pub output_s3_uri: String,
    pub hyperparameters: BTreeMap<String, String>,
    pub environment: BTreeMap<String, String>,
    pub metrics: Vec<MetricDefinition>,
    pub max_runtime_seconds: u32,
    /// Present exactly when the job runs on managed spot capacity.
    pub max_wait_seconds: Option<u32>,
    pub checkpoint: Option<CheckpointSpec>,
    /// KeepAlivePeriodInSeconds: how long the instances wait for a matching job. Never with spot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<u32>,
    /// EnableSageMakerMetricsTimeSeries: SageMaker keeps every iteration of the script's metrics.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metrics_time_series: bool,
    /// InstanceGroups of a heterogeneous cluster; then type and count above are the first group's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instance_groups: Vec<InstanceGroup>,
    /// RetryStrategy.MaximumRetryAttempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_attempts: Option<u32>,
    /// InfraCheckConfig.EnableInfraCheck.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub infra_check: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler: Option<Profiler>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debugger: Option<Debugger>,
    /// For people, IAM and cost reports.
    pub tags: BTreeMap<String, String>,
}

/// TrainingJobStatus. A value AWS adds later is kept as text and counts as not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    InProgress,
    Completed,
    Failed,
    Stopping,
    Stopped,
    Unknown(String),
}

impl JobStatus {
    pub fn parse(text: &str) -> Self {
        match text {
            "InProgress" => Self::InProgress,
            "Completed" => Self::Completed,
            "Failed" => Self::Failed,
            "Stopping" => Self::Stopping,
            "Stopped" => Self::Stopped,
            other => Self::Unknown(other.to_owned()),
        }
    }

    /// Nothing comes after it.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stopped)
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::InProgress => "InProgress",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Stopping => "Stopping",
            Self::Stopped => "Stopped",
            Self::Unknown(text) => text,
        }
    }
}

/// One entry of ListTrainingJobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSummary {
    pub job_name: String,
    pub status: JobStatus,
    pub secondary_status: String,
    pub created_at: Option<DateTime<Utc>>,
    pub modified_at: Option<DateTime<Utc>>,
    pub warm_pool: Option<WarmPool>,
}

/// One entry of SecondaryStatusTransitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transition {
    pub status: String,
    pub started_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    pub message: String,
}

/// The last value of one of the job's own metrics, as DescribeTrainingJob has it (32 bits there).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FinalMetric {
    pub name: String,
    pub at: DateTime<Utc>,
    pub value: f64,
}

/// What DescribeTrainingJob told us.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ObservedJob {
    pub job_name: String,
    pub arn: String,
    /// The value of our [`MARKER`], when the job carries one.
    pub marker: Option<String>,
    pub status: JobStatus,
    /// SecondaryStatus as text: shown, and branched on only where the documentation promises the
    /// value.
    pub secondary_status: String,
    pub failure_reason: Option<String>,
    pub created_at: Option<DateTime<Utc>>,
    /// LastModifiedTime.
    pub modified_at: Option<DateTime<Utc>>,
    /// TrainingStartTime: billing begins.
    pub started_at: Option<DateTime<Utc>>,
    /// TrainingEndTime: billing ends.
    pub ended_at: Option<DateTime<Utc>>,
    pub training_seconds: Option<u64>,
    /// BillableTimeInSeconds: with managed spot, less than the training time.
    pub billable_seconds: Option<u64>,
    pub transitions: Vec<Transition>,
    pub warm_pool: Option<WarmPool>,
    /// FinalMetricDataList; empty until the job is over.
    pub final_metrics: Vec<FinalMetric>,
    /// The settings that it runs with.
    pub actual: Actual,
}

/// What SageMaker bills, or would, of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Billing {
    pub seconds: u64,
    /// Our own estimate: SageMaker has not said.
    pub estimated: bool,
}

/// After so long nobody waits for SageMaker's own figure any more: what it says then is taken, or
/// estimated.
const BILL_TOLD_WITHIN: TimeDelta = TimeDelta::minutes(10);
/// Times of several phases are rounded one by one.
const BILL_ROUNDING_SECONDS: u64 = 10;

impl ObservedJob {
    /// One that began to be billed at `start`, for tests.
    #[cfg(test)]
    pub(crate) fn sample(
        marker: &str,
        status: JobStatus,
        secondary_status: &str,
        start: DateTime<Utc>,
    ) -> Self {
        Self {
            job_name: "bakeoff-x-1".into(),
            arn: String::new(),
            marker: Some(marker.into()),
            status,
            secondary_status: secondary_status.into(),
            failure_reason: None,
            created_at: Some(start),
            modified_at: Some(start),
            started_at: Some(start),
            ended_at: None,
            training_seconds: None,
            billable_seconds: None,
            transitions: vec![],
            warm_pool: None,
            final_metrics: vec![],
            actual: Actual::default(),
        }
    }

    /// It is over, and SageMaker may yet say what it bills: just after the end,
    /// TrainingTimeInSeconds and BillableTimeInSeconds can be absent, or less than the time from
    /// TrainingStartTime to TrainingEndTime. Who looks again soon need not estimate.
    pub fn awaits_bill(&self, now: DateTime<Utc>) -> bool {
        let Some((start, end)) = self.started_at.zip(self.ended_at) else {
            return false;
        };
        let ran = || bill::ran(start, end, &bill::waits(&self.transitions));
        let is_low = |trained: u64| trained + BILL_ROUNDING_SECONDS < ran();
        let is_told = self.billable_seconds.is_some() && !self.training_seconds.is_some_and(is_low);
        !is_told && (now - end).abs() < BILL_TOLD_WITHIN
    }

    /// What was billed, as told; or the time that it had instances, to its end or to now: an
    /// estimate, which never exceeds `longest_seconds`.
    pub fn billing(&self, longest_seconds: u64, now: DateTime<Utc>) -> Billing {
        let waits = bill::waits(&self.transitions);
        let since =
            |start| bill::ran(start, self.ended_at.unwrap_or(now), &waits).min(longest_seconds);
        Billing {
            seconds: self
                .billable_seconds
                .unwrap_or_else(|| self.started_at.map_or(0, since)),
            // A job that never started is billed nothing, and that is certain.
            estimated: self.billable_seconds.is_none() && self.started_at.is_some(),
        }
    }
}

/// Whole seconds from `start` to `end`; none when it is the other way round.
pub fn seconds_between(start: DateTime<Utc>, end: DateTime<Utc>) -> u64 {
    u64::try_from((end - start).num_seconds()).unwrap_or_default()
}
