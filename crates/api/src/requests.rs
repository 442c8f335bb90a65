//! API views of CreateTrainingJob requests.

use std::collections::BTreeMap;

use bakeoff_domain::ids::TrialId;
use bakeoff_domain::measure::metric::MetricDefinition;
use bakeoff_domain::sagemaker::request::{
    Debugger, InstanceGroup, Profiler, RuleConfiguration, TrainingJobRequest,
};
use bakeoff_domain::spec::{Channel, CheckpointSpec};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

view! {
    /// A CreateTrainingJob request.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = TrainingJobRequest)]
    pub struct RequestView of TrainingJobRequest {
        /// At most 63 characters; unique within the account and region.
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
        /// Set if and only if the job uses managed spot.
        pub max_wait_seconds: Option<u32>,
        pub checkpoint: Option<CheckpointSpec>,
        /// The trial in whose folder, below the checkpoint URI, this one's checkpoints lie; its own when
        /// absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub checkpoint_trial: Option<TrialId>,
        /// KeepAlivePeriodInSeconds: how long the instances wait for a matching job. Never used with
        /// spot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub keep_alive_seconds: Option<u32>,
        /// EnableSageMakerMetricsTimeSeries: SageMaker keeps the script's metrics for every iteration.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub metrics_time_series: bool,
        /// InstanceGroups of a heterogeneous cluster. If set, `instance_type` and `instance_count` are
        /// those of the first group.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub instance_groups: Vec<InstanceGroupView> as each,
        /// RetryStrategy.MaximumRetryAttempts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub retry_attempts: Option<u32>,
        /// InfraCheckConfig.EnableInfraCheck.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub infra_check: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub profiler: Option<ProfilerView> as maybe,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub debugger: Option<DebuggerView> as maybe,
        /// Tags for people, IAM and cost reports.
        pub tags: BTreeMap<String, String>,
    }
}

view! {
    /// One instance group of a heterogeneous cluster.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = InstanceGroup)]
    pub struct InstanceGroupView of InstanceGroup {
        pub name: String,
        pub instance_type: String,
        pub instance_count: u32,
    }
}

view! {
    /// Configuration of the profiler. Its results are stored below the job's output.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Profiler)]
    pub struct ProfilerView of Profiler {
        /// ProfilingIntervalInMilliseconds; SageMaker's default when empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub interval_milliseconds: Option<u32>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub rules: Vec<RuleConfigurationView> as each,
    }
}

view! {
    /// Configuration of the debugger: tensor collections (parameters by name) and rules.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Debugger)]
    pub struct DebuggerView of Debugger {
        /// True when there are rules but no DebugHookConfig, so no tensors are saved.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub is_hook_off: bool,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub collections: BTreeMap<String, BTreeMap<String, String>>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub rules: Vec<RuleConfigurationView> as each,
    }
}

view! {
    /// A profiler or debugger rule, with the container that evaluates it.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = RuleConfiguration)]
    pub struct RuleConfigurationView of RuleConfiguration {
        pub name: String,
        pub image: String,
        pub parameters: BTreeMap<String, String>,
    }
}
