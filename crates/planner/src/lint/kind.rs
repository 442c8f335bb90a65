//! The kinds of document that can be linted, and how to tell them apart.

use bakeoff_domain::catalog::hugging_face;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::api::Call;
use super::{bodies, config_json, documents, trainer};

/// The kinds of document that can be linted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Experiment,
    Workload,
    InstanceProfile,
    /// An external run.
    Run,
    /// A CreateTrainingJob body.
    TrainingJob,
    /// A CreateHyperParameterTuningJob body.
    TuningJob,
    /// A CreateProcessingJob body.
    ProcessingJob,
    /// A CreateTransformJob body.
    TransformJob,
    /// A CreateEndpointConfig body.
    EndpointConfig,
    /// A CreateModel body.
    SagemakerModel,
    /// Arguments of one of the SDK's estimators.
    Estimator,
    /// Arguments of version 3 of the SDK's ModelTrainer.
    ModelTrainer,
    /// The definition of a SageMaker pipeline.
    PipelineDefinition,
    /// A state machine of Step Functions.
    StateMachine,
    /// A template of CloudFormation, as JSON.
    CloudformationTemplate,
    /// A model's `config.json`, as Hugging Face's Transformers writes it.
    ModelConfig,
    /// DeepSpeed's configuration.
    DeepspeedConfig,
}

impl Kind {
    pub const ALL: [Self; 17] = [
        Self::Experiment,
        Self::Workload,
        Self::InstanceProfile,
        Self::Run,
        Self::TrainingJob,
        Self::TuningJob,
        Self::ProcessingJob,
        Self::TransformJob,
        Self::EndpointConfig,
        Self::SagemakerModel,
        Self::Estimator,
        Self::ModelTrainer,
        Self::PipelineDefinition,
        Self::StateMachine,
        Self::CloudformationTemplate,
        Self::ModelConfig,
        Self::DeepspeedConfig,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Experiment => "experiment",
            Self::Workload => "workload",
            Self::InstanceProfile => "instance_profile",
            Self::Run => "run",
            Self::TrainingJob => "training_job",
            Self::TuningJob => "tuning_job",
            Self::ProcessingJob => "processing_job",
            Self::TransformJob => "transform_job",
            Self::EndpointConfig => "endpoint_config",
            Self::SagemakerModel => "sagemaker_model",
            Self::Estimator => "estimator",
            Self::ModelTrainer => "model_trainer",
            Self::PipelineDefinition => "pipeline_definition",
            Self::StateMachine => "state_machine",
            Self::CloudformationTemplate => "cloudformation_template",
            Self::ModelConfig => "model_config",
            Self::DeepspeedConfig => "deepspeed_config",
        }
    }

    /// What it is, in words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Experiment => "an experiment",
            Self::Workload => "a workload",
            Self::InstanceProfile => "an instance profile",
            Self::Run => "an external run",
            Self::TrainingJob => "a CreateTrainingJob body",
            Self::TuningJob => "a CreateHyperParameterTuningJob body",
            Self::ProcessingJob => "a CreateProcessingJob body",
            Self::TransformJob => "a CreateTransformJob body",
            Self::EndpointConfig => "a CreateEndpointConfig body",
            Self::SagemakerModel => "a CreateModel body",
            Self::Estimator => "arguments of an SDK estimator",
            Self::ModelTrainer => "arguments of the SDK's ModelTrainer (v3)",
            Self::PipelineDefinition => "a SageMaker pipeline definition",
            Self::StateMachine => "a Step Functions state machine",
            Self::CloudformationTemplate => "a CloudFormation template",
            Self::ModelConfig => "a Hugging Face config.json",
            Self::DeepspeedConfig => "a DeepSpeed configuration",
        }
    }

    /// Detects the kind of a document by the members that only that kind has.
    pub fn of(document: &Value) -> Option<Self> {
        let entries = document.as_object()?;
        Self::of_ours(document, entries)
            .or_else(|| Self::of_container(entries))
            .or_else(|| {
                Some(match bodies::call_of(document)? {
                    Call::TrainingJob => Self::TrainingJob,
                    Call::TuningJob => Self::TuningJob,
                    Call::ProcessingJob => Self::ProcessingJob,
                    Call::TransformJob => Self::TransformJob,
                    Call::EndpointConfig => Self::EndpointConfig,
                    Call::Model => Self::SagemakerModel,
                })
            })
            .or_else(|| Self::of_job(entries))
            .or_else(|| {
                let has = |name: &str| entries.contains_key(name);
                match () {
                    () if config_json::is_deepspeed(entries) => Some(Self::DeepspeedConfig),
                    () if hugging_face::is_config(document) => Some(Self::ModelConfig),
                    () if has("hardware") || has("accelerator_count") => Some(Self::Run),
                    () if has("model") || has("image") || has("trial_tokens") => {
                        Some(Self::Workload)
                    }
                    () => None,
                }
            })
    }

    /// Our own kinds that have members of no other's.
    fn of_ours(document: &Value, entries: &Map<String, Value>) -> Option<Self> {
        if ["candidates", "objective"]
            .iter()
            .any(|name| entries.contains_key(*name))
        {
            Some(Self::Experiment)
        } else if entries.contains_key("micro_batch_per_gpu")
            || document.pointer("/spec/micro_batch_per_gpu").is_some()
        {
            Some(Self::InstanceProfile)
        } else {
            None
        }
    }

    /// Documents that hold bodies.
    fn of_container(entries: &Map<String, Value>) -> Option<Self> {
        match () {
            () if documents::is_state_machine(entries) => Some(Self::StateMachine),
            () if documents::is_template(entries) => Some(Self::CloudformationTemplate),
            () if documents::is_pipeline(entries) => Some(Self::PipelineDefinition),
            () => None,
        }
    }

    /// A training job as a body or as arguments of either version of the SDK.
    fn of_job(entries: &Map<String, Value>) -> Option<Self> {
        let has = |names: &[&str]| {
            names.iter().any(|name| {
                entries.contains_key(*name) || entries.contains_key(&format!("{name}.$"))
            })
        };
        let body = [
            "TrainingJobName",
            "AlgorithmSpecification",
            "ResourceConfig",
            "StoppingCondition",
        ];
        let like_body = ["algorithm_specification", "resource_config"];
        let arguments = [
            "sdk_class",
            "distribution",
            "max_run",
            "use_spot_instances",
            "compiler_config",
            "framework_version",
            "entry_point",
            "instance_count",
        ];
        match () {
            () if has(&body) || has(&like_body) => Some(Self::TrainingJob),
            () if trainer::is_trainer(entries) => Some(Self::ModelTrainer),
            () if has(&["stopping_condition", "input_data_config"]) => Some(Self::TrainingJob),
            () if has(&arguments) => Some(Self::Estimator),
            () => None,
        }
    }
}
