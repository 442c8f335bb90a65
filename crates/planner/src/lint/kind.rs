//! The kinds of document that can be linted, and how to tell them apart.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The kinds of document that can be linted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Experiment,
    Workload,
    InstanceProfile,
    /// A CreateTrainingJob body.
    TrainingJob,
    /// Arguments of one of the SDK's estimators.
    Estimator,
    /// An external run.
    Run,
}

impl Kind {
    pub const ALL: [Self; 6] = [
        Self::Experiment,
        Self::Workload,
        Self::InstanceProfile,
        Self::TrainingJob,
        Self::Estimator,
        Self::Run,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Experiment => "experiment",
            Self::Workload => "workload",
            Self::InstanceProfile => "instance_profile",
            Self::TrainingJob => "training_job",
            Self::Estimator => "estimator",
            Self::Run => "run",
        }
    }

    /// Detects the kind of a document by the members that only that kind has.
    pub fn of(document: &Value) -> Option<Self> {
        let has = |names: &[&str]| names.iter().any(|name| document.get(name).is_some());
        let body = [
            "TrainingJobName",
            "AlgorithmSpecification",
            "ResourceConfig",
            "StoppingCondition",
        ];
        let like_body = [
            "algorithm_specification",
            "resource_config",
            "stopping_condition",
            "input_data_config",
        ];
        let arguments = [
            "sdk_class",
            "distribution",
            "max_run",
            "use_spot_instances",
            "compiler_config",
            "framework_version",
        ];
        match () {
            () if has(&["candidates", "objective"]) => Some(Self::Experiment),
            () if has(&body) || has(&like_body) => Some(Self::TrainingJob),
            () if has(&arguments) => Some(Self::Estimator),
            () if has(&["hardware", "accelerator_count"]) => Some(Self::Run),
            () if has(&["micro_batch_per_gpu"])
                || document.pointer("/spec/micro_batch_per_gpu").is_some() =>
            {
                Some(Self::InstanceProfile)
            }
            () if has(&["model", "image", "trial_tokens"]) => Some(Self::Workload),
            () => None,
        }
    }
}
