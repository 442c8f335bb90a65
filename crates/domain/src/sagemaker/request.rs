//! A SageMaker training job as requested. Field names follow SageMaker's; wire formats and SDK
//! types belong to the AWS crate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::TrialId;
use crate::sagemaker::locations::{Channel, CheckpointSpec};
use crate::sagemaker::metrics::MetricDefinition;

/// Environment variable that marks a job as ours; DescribeTrainingJob returns it.
pub const MARKER: &str = "BAKEOFF_ATTEMPT_ID";

/// A job's marker as it is written today: the id of the job. Jobs of the first versions carry it with
/// another prefix.
pub fn marker(found: &str) -> String {
    found
        .strip_prefix("att_")
        .map_or_else(|| found.to_owned(), |digits| format!("job_{digits}"))
}

/// One kind of instance of a heterogeneous cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceGroup {
    pub name: String,
    pub instance_type: String,
    pub instance_count: u32,
}

/// A rule of the profiler or of the debugger, with the container that evaluates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleConfiguration {
    pub name: String,
    pub image: String,
    pub parameters: BTreeMap<String, String>,
}

/// Profiler configuration. Its findings go below the job's output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profiler {
    /// ProfilingIntervalInMilliseconds; SageMaker's default when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_milliseconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleConfiguration>,
}

/// Debugger configuration: tensor collections by name with their parameters, and rules.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Debugger {
    /// Send the rules without a DebugHookConfig: nothing saves tensors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_hook_off: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub collections: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleConfiguration>,
}

/// A CreateTrainingJob request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingJobRequest {
    /// At most 63 characters, unique in account and region.
    pub job_name: String,
    pub image: String,
    /// ContainerEntrypoint; the image's own when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_entrypoint: Vec<String>,
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
    /// The trial in whose folder, below the checkpoint URI, this one's checkpoints lie; its own when
    /// empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_trial: Option<TrialId>,
    /// KeepAlivePeriodInSeconds: how long the instances wait for a matching job. Never with spot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<u32>,
    /// EnableSageMakerMetricsTimeSeries: SageMaker keeps every iteration of the script's metrics.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub metrics_time_series: bool,
    /// InstanceGroups of a heterogeneous cluster; the type and count above are then those of the
    /// first group.
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
