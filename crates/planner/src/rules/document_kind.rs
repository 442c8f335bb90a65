//! The kinds of document that can be linted; [`crate::lint::kind_of`] tells them apart.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
}
