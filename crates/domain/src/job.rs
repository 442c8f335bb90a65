//! A SageMaker training job as we ask for it and as we see it. Field names follow SageMaker's; wire formats and SDK
//! types are the AWS crate's business.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::metric::MetricDefinition;
use crate::pool::{WarmPool, WarmPoolStatus};
use crate::requested::Actual;
use crate::spec::{Channel, CheckpointSpec};

/// Environment variable that marks a job as ours; DescribeTrainingJob returns it.
pub const MARKER: &str = "BAKEOFF_ATTEMPT_ID";

/// A CreateTrainingJob request.
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
    pub warm_pool: Option<WarmPoolStatus>,
}

/// One entry of SecondaryStatusTransitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Transition {
    pub status: String,
    pub started_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    pub message: String,
}

/// What DescribeTrainingJob told us.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObservedJob {
    pub job_name: String,
    pub arn: String,
    /// The value of our [`MARKER`], when the job carries one.
    pub marker: Option<String>,
    pub status: JobStatus,
    /// SecondaryStatus as text: shown, and branched on only where the documentation promises the value.
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
    /// The settings that it runs with.
    pub actual: Actual,
}
