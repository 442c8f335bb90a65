//! What is trained: the model, its container, its data, how long.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::profile::Precision;
use super::technique::{ScriptSpec, Techniques};
use crate::catalog::model::ModelShape;
use crate::measure::metric::MetricDefinition;

/// What is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkloadSpec {
    pub name: String,
    /// Training image (ECR URI).
    pub image: String,
    /// Execution role of the training jobs.
    pub role_arn: String,
    /// Input channels.
    pub channels: Vec<Channel>,
    /// Where SageMaker puts the model artefacts: `s3://bucket/prefix`.
    pub output_s3_uri: String,
    pub model: ModelShape,
    pub precision: Precision,
    /// Version of the data and its order: trials are compared only within one.
    pub data_version: String,
    /// Version of the training code.
    pub code_version: String,
    /// Tokens of the full training run that the recommendation projects to.
    pub total_tokens: u64,
    /// Tokens that each trial trains.
    pub trial_tokens: u64,
    /// Tokens of one pass over the data, for the cost of an epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_tokens: Option<u64>,
    /// Hyperparameters that every candidate gets (optimiser, learning-rate schedule, seed).
    #[serde(default)]
    pub hyperparameters: BTreeMap<String, String>,
    pub metrics: Vec<MetricDefinition>,
    /// Sequences per optimiser step that every candidate must keep; what the first candidates agree
    /// on when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// Script mode; without it the image has its own entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptSpec>,
    /// The script takes no hyperparameters for model and strategy (`num_hidden_layers`,
    /// `zero_stage`, …): it knows them itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub omit_plan_hyperparameters: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub techniques: Techniques,
}

fn is_default(techniques: &Techniques) -> bool {
    *techniques == Techniques::default()
}

/// One input channel of a training job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Channel {
    pub name: String,
    pub s3_uri: String,
    /// Size of the data, GB, where they are downloaded whole before training (File mode): what that
    /// takes is billed, and so reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_gb: Option<u32>,
}
