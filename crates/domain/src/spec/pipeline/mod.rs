//! A pipeline: a small graph of steps under one budget. Plain data that mirrors the JSON; what is wrong with it,
//! and what happens next, is in [`crate::pipeline`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

pub mod endpoint;
pub mod tuning;

use self::endpoint::{EndpointSpec, TransformSpec};
use self::tuning::TuningSpec;
use super::ExperimentSpec;
use crate::money::Usd;

/// Data preparation, experiments, tuning, full runs, evaluation, registration and endpoints as dependent steps
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PipelineSpec {
    pub name: String,
    /// Where all of it runs, such as `us-east-1`.
    pub region: String,
    /// Execution role of the processing jobs, where a step names no other.
    pub role_arn: String,
    /// Where processing jobs put their outputs: `s3://bucket/prefix`. Each output has its own folder below it,
    /// `<pipeline>/<step>/<output>`.
    pub output_s3_uri: String,
    /// Hard cap on what all steps may spend together.
    pub budget_usd: Usd,
    /// Labels to find its comparisons by, at most 20; all its jobs carry them as tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// 1 to 50 steps.
    pub steps: Vec<StepSpec>,
}

/// A step: exactly one of `processing`, `experiment`, `full_run`, `tuning`, `model`, `transform` and `endpoint`
///
/// Any text in it may refer to outputs of earlier steps: `${prepare.outputs.train}`,
/// `${prepare.message.train.records}`, `${compare.winner.instance_type}`. A text that is nothing but a reference
/// becomes the value, of whatever type; `$${` is a literal `${`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepSpec {
    /// Lowercase letters, digits and hyphens, at most 40.
    pub name: String,
    /// Steps that must have completed before, beside those that it refers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// From which P(best) it acts on an answer that only leads: a `full_run` without a candidate of a person's, or a
    /// reference to the winner of a comparison. Without it the answer must be clear, and what is provisional is never
    /// bought: the step waits for a person to approve a candidate.
    #[serde(default, rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<PurchaseCondition>,
    /// How often it is tried again when it fails, 0 to 5. Failures of AWS itself are retried without it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: u32,
    /// A SageMaker processing job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ProcessingSpec>)]
    pub processing: Option<Value>,
    /// A comparison, as for `POST /v1/experiments`. It gets at most what is left of the pipeline's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ExperimentSpec>)]
    pub experiment: Option<Value>,
    /// The full run of an experiment's answer: `experiment_id`, and the members of
    /// `POST /v1/experiments/{experiment_id}/full-run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub full_run: Option<Value>,
    /// A hyperparameter tuning. Later steps use `${tune.best.hyperparameters.<name>}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TuningSpec>)]
    pub tuning: Option<Value>,
    /// A trial's model into the Model Registry, as for `POST /v1/model-packages`. The step has completed when
    /// the version is registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub model: Option<Value>,
    /// A batch transform job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TransformSpec>)]
    pub transform: Option<Value>,
    /// A model put into service, as for `POST /v1/endpoints`. The step has completed when it serves and its smoke
    /// test has passed; it serves on until its time to live is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<EndpointSpec>)]
    pub endpoint: Option<Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// When a step acts on an answer without a person
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PurchaseCondition {
    /// The least P(best) of the first row, above 0 and at most 1.
    pub at_least: f64,
}

/// A SageMaker processing job
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessingSpec {
    /// ECR URI.
    pub image: String,
    /// A Python script in S3: it is run with `python3`, and lies in `/opt/ml/processing/input/code`. Without it
    /// `entrypoint` is run, or what the image does by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_s3_uri: Option<String>,
    /// ContainerEntrypoint, at most 100 words of 256 characters. Not together with a script.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// ContainerArguments, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    pub instance_type: String,
    /// 1 to 100.
    #[serde(default = "super::default::one")]
    pub instance_count: u32,
    /// GB, 1 to 16384; 30 when absent.
    #[serde(default = "volume")]
    pub volume_size_gb: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputSpec>,
    /// At most 90 variables of 256 characters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// StoppingCondition; one hour when absent, nine days at most. It is what is reserved.
    #[serde(default = "an_hour")]
    pub max_runtime_seconds: u32,
    /// Execution role; the pipeline's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_arn: Option<String>,
    /// Use the outputs of an earlier run of the same step, in any pipeline of the project, whose inputs, code and
    /// settings were the same. An image is taken to be the same while its URI is; outputs with an `s3_uri` of their
    /// own are never reused, since anybody may have written there. Yes when absent.
    #[serde(default = "yes")]
    pub reuse_if_unchanged: bool,
}

fn volume() -> u32 {
    30
}

fn an_hour() -> u32 {
    3600
}

fn yes() -> bool {
    true
}

/// An input of a processing job
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputSpec {
    pub name: String,
    /// An object, or a prefix with everything below it.
    pub s3_uri: String,
    /// `/opt/ml/processing/input/<name>` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_path: Option<String>,
    /// Each instance gets a part of the objects (ShardedByS3Key), not all of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sharded: bool,
}

/// An output of a processing job
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputSpec {
    pub name: String,
    /// A folder of the pipeline's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3_uri: Option<String>,
    /// `/opt/ml/processing/output/<name>` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_path: Option<String>,
    /// Copied to S3 while the job runs (Continuous), not only at its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continuous: bool,
}
