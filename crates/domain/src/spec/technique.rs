//! Techniques that a workload can ask for beyond its strategy: script mode, retries, health checks,
//! profiler, debugger, the old compiler. Plain data; `planner::render::sdk` turns them into what
//! SageMaker's Python SDK would send, `planner::lint` judges them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Script mode: the framework's container fetches the user's sources and starts a script in them.
/// Without it, the image has its own entry point, and hyperparameters reach it as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptSpec {
    /// The script within the sources, `train.py`.
    pub entry_point: String,
    /// The sources: `s3://bucket/…/sourcedir.tar.gz`.
    pub source_s3_uri: String,
}

/// Techniques of a workload, each off unless asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Techniques {
    /// RetryStrategy.MaximumRetryAttempts, 1 to 30: SageMaker starts the job again after an
    /// InternalServerError. The maximum runtime covers all attempts together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_attempts: Option<u32>,
    /// InfraCheckConfig.EnableInfraCheck: the health of the instances and of their network is
    /// checked before the training.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub infra_check: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler: Option<ProfilerSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debugger: Option<DebuggerSpec>,
    /// SageMaker Training Compiler. No new versions are made of it, so it is refused, with the
    /// reason.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub training_compiler: bool,
}

/// SageMaker's profiler of system metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProfilerSpec {
    /// ProfilingIntervalInMilliseconds: 100, 200, 500, 1000, 5000 or 60000; SageMaker's 500 when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_milliseconds: Option<u32>,
    /// Built-in profiler rules, `ProfilerReport`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
}

/// SageMaker's debugger of tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DebuggerSpec {
    /// Built-in debugger rules, `VanishingGradient`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// Tensor collections to save, each with its parameters: `{"gradients": {"save_interval":
    /// "500"}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub collections: BTreeMap<String, BTreeMap<String, String>>,
}
