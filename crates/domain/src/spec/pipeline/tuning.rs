//! What a person writes of a hyperparameter tuning. What is wrong with it is said in [`crate::tuning`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::sagemaker::metrics::MetricDefinition;
use crate::sagemaker::tuning::{Goal, Scaling, Strategy, WarmStart};
use crate::spec::Channel;
use crate::spec::metric_definitions;

/// A hyperparameter tuning: one SageMaker tuning job for each candidate, with as many trials and, where the
/// strategy uses it, the same random seed, so that instance types are compared fairly
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TuningSpec {
    /// Bayesian when absent.
    #[serde(default = "bayesian")]
    pub strategy: Strategy,
    /// What is optimised.
    pub objective: TuningObjective,
    /// Training jobs of each candidate at most, 1 to 750, of `random` 10000; of `grid` the number of combinations.
    pub trials: u32,
    /// How many of them at a time, 1 to 100; 1 when absent.
    #[serde(default = "crate::spec::default::one")]
    pub parallel: u32,
    /// Trials that fall behind are stopped (TrainingJobEarlyStoppingType). Hyperband does so by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early_stopping: bool,
    /// With it, `random` and `hyperband` try the same again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_seed: Option<u32>,
    /// Of `hyperband`: the fewest and most epochs of a trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_resource: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_resource: Option<u32>,
    /// Over when a trial reaches this value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
    /// Over when so many trials in a row have not improved the best, 3 or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_after_not_improving: Option<u32>,
    /// Over when SageMaker finds that it cannot get better.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop_on_convergence: bool,
    /// Longest duration of each tuning job, 120 to 15768000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tuning_seconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<WarmStartSpec>,
    /// What is searched, by hyperparameter; a candidate may have its own. At most 30.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<String, RangeSpec>,
    /// 1 to 10.
    pub candidates: Vec<TuningCandidate>,
    /// ECR URI.
    pub image: String,
    /// The same in all trials.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hyperparameters: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    pub channels: Vec<Channel>,
    /// The objective among them.
    /// As definitions, or as the name of a set of them.
    #[serde(deserialize_with = "metric_definitions::read")]
    pub metrics: Vec<MetricDefinition>,
    /// Where models go; a folder of the pipeline's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_s3_uri: Option<String>,
    /// Execution role; the pipeline's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_arn: Option<String>,
    /// Of each trial. `trials` × this is what is reserved.
    pub max_runtime_seconds: u32,
    /// Managed spot capacity. All trials of a job have one checkpoint folder: the script must write below
    /// `$TRAINING_JOB_NAME`, or trials go on from each other's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// With spot: longest wait and run of a trial together, at least `max_runtime_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_seconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_s3_uri: Option<String>,
    /// GB; 30 when absent.
    #[serde(default = "thirty")]
    pub volume_size_gb: u32,
    /// How often SageMaker starts a trial again that it could not run, 1 to 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_attempts: Option<u32>,
}

/// What a tuning optimises
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TuningObjective {
    /// The name of one of the metrics; its last value counts.
    pub metric: String,
    /// Minimise when absent.
    #[serde(default = "minimize")]
    pub goal: Goal,
}

/// An instance type to tune on
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TuningCandidate {
    pub instance_type: String,
    #[serde(default = "crate::spec::default::one")]
    pub instance_count: u32,
    /// What is searched on this type, instead of what all search.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<String, RangeSpec>,
}

/// The values of a hyperparameter: numbers between `min` and `max`, or one of `values`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RangeSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub min: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub max: Option<Value>,
    /// Whole numbers only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub integer: bool,
    /// `auto` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// 1 to 30.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Earlier tuning jobs to learn from
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WarmStartSpec {
    #[serde(default = "identical")]
    pub kind: WarmStart,
    /// Names of 1 to 5 tuning jobs that are over, with the same objective.
    pub tuning_jobs: Vec<String>,
}

fn bayesian() -> Strategy {
    Strategy::Bayesian
}

fn minimize() -> Goal {
    Goal::Minimize
}

fn identical() -> WarmStart {
    WarmStart::Identical
}

fn thirty() -> u32 {
    30
}
