//! A workload: the model, its container, its data, and how long to train.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::profile::Precision;
use super::technique::{ScriptSpec, Techniques};
use crate::catalog::model::ModelShape;
use crate::sagemaker::locations::Channel;
use crate::sagemaker::metrics::MetricDefinition;
use crate::spec::metric_definitions;

/// How metrics may be given: as definitions, or as the name of a set of them. Answers list definitions.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum MetricsSpec {
    Named(String),
    Listed(Vec<MetricDefinition>),
}

/// A workload: what is trained, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkloadSpec {
    pub name: String,
    /// Training image (ECR URI).
    pub image: String,
    /// Execution role of the training jobs.
    pub role_arn: String,
    /// Input channels.
    pub channels: Vec<Channel>,
    /// Where SageMaker stores the model artefacts: `s3://bucket/prefix`.
    pub output_s3_uri: String,
    pub model: ModelShape,
    pub precision: Precision,
    /// Version of the data and its order; only trials with the same version are compared.
    pub data_version: String,
    /// Version of the training code.
    pub code_version: String,
    /// Tokens of the full training run, to which the recommendation projects.
    pub total_tokens: u64,
    /// Tokens that each trial trains on.
    pub trial_tokens: u64,
    /// Tokens of one pass over the data, for the cost of an epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_tokens: Option<u64>,
    /// Hyperparameters that every candidate gets (optimiser, learning-rate schedule, seed).
    #[serde(default)]
    pub hyperparameters: BTreeMap<String, String>,
    /// Hyperparameters that say every how many steps the script evaluates, saves, or does anything else
    /// between its steps. Name all of them: every pause of the trial is taken to recur at these
    /// intervals, and one left out is underestimated. In a race or a probe they are divided by one
    /// number, so that each takes place in about the first ten minutes (never more often than every 10
    /// steps), and what they take is projected back; the full run gets them as they are. It needs a
    /// prediction (a model with layers), a metric of speed, and no profile that sets them; otherwise they
    /// are sent unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recurring: Vec<String>,
    /// What to read from the log: definitions, or the name of a set of them (`"hf-trainer"`, `"megatron-lm"`,
    /// `"torchtitan"`, …; docs/reference/metric-definitions.md lists them). When absent, the set that the image or the
    /// script is known to print.
    #[serde(default, deserialize_with = "metric_definitions::read")]
    #[schema(value_type = MetricsSpec)]
    pub metrics: Vec<MetricDefinition>,
    /// Sequences per optimiser step that every candidate must keep; when absent, the value that the
    /// first candidates agree on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// Script mode; without it, the image uses its own entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<ScriptSpec>,
    /// A command in place of the image's own entry point (ContainerEntrypoint), 1 to 100 words. Not
    /// together with a script, which that entry point starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub container_entrypoint: Vec<String>,
    /// The script takes no hyperparameters for model and strategy (`num_hidden_layers`,
    /// `zero_stage`, …), because it sets them itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub omit_plan_hyperparameters: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub techniques: Techniques,
}

fn is_default(techniques: &Techniques) -> bool {
    *techniques == Techniques::default()
}
