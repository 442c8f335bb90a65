//! Optional techniques of a workload, beyond its strategy: script mode, retries, health checks,
//! profiler, debugger, the old compiler. Plain data: `planner::render::sdk` renders them as
//! SageMaker's Python SDK would, and `planner::lint` checks them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Script mode: the framework's container fetches the user's sources and runs a script from them.
/// Without it, the image uses its own entry point and receives hyperparameters unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptSpec {
    /// The script within the sources, such as `train.py`.
    pub entry_point: String,
    /// The sources: `s3://bucket/…/sourcedir.tar.gz`.
    pub source_s3_uri: String,
}

/// Techniques of a workload, each off unless requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Techniques {
    /// RetryStrategy.MaximumRetryAttempts, 1 to 30: SageMaker restarts the job after an
    /// InternalServerError. The maximum runtime covers all attempts together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_attempts: Option<u32>,
    /// InfraCheckConfig.EnableInfraCheck: SageMaker checks the health of the instances and their
    /// network before training.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub infra_check: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler: Option<ProfilerSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debugger: Option<DebuggerSpec>,
    /// SageMaker Training Compiler. It gets no new versions, so it is refused, with the reason.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub training_compiler: bool,
}

/// SageMaker's profiler for system metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfilerSpec {
    /// ProfilingIntervalInMilliseconds: 100, 200, 500, 1000, 5000 or 60000; SageMaker's default of
    /// 500 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_milliseconds: Option<u32>,
    /// Built-in profiler rules, such as `ProfilerReport`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
}

/// SageMaker's debugger for tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DebuggerSpec {
    /// Built-in debugger rules, such as `VanishingGradient`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Tensor collections to save, each with its parameters: `{"gradients": {"save_interval":
    /// "500"}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub collections: BTreeMap<String, BTreeMap<String, String>>,
}
