//! What a user sends: workload, instance profile, experiment. Plain data as JSON has it; whether it makes sense is
//! [`crate::lint`]'s business, what it would cost is [`crate::plan`]'s.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{ProfileId, WorkloadId};
use crate::metric::MetricDefinition;
use crate::model::ModelShape;
use crate::money::Usd;
use crate::run::Expectation;

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
}

/// One input channel of a training job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Channel {
    pub name: String,
    pub s3_uri: String,
}

/// Numeric format of the matrix multiplications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    Bf16,
    Fp16,
    Fp32,
}

/// A user's configuration for one instance type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfileSpec {
    /// Sequences per accelerator in one forward pass.
    pub micro_batch_per_gpu: u32,
    pub gradient_accumulation_steps: u32,
    /// DeepSpeed ZeRO stage, 0 to 3.
    #[serde(default)]
    pub zero_stage: u8,
    #[serde(default)]
    pub cpu_offload: CpuOffload,
    #[serde(default)]
    pub activation_checkpointing: bool,
    #[serde(default = "one")]
    pub tensor_parallel_degree: u32,
    #[serde(default = "one")]
    pub pipeline_parallel_degree: u32,
    #[serde(default)]
    pub library: ParallelLibrary,
    /// EBS volume, GB. Ignored by SageMaker on types with local NVMe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_size_gb: Option<u32>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Hyperparameters of this candidate only.
    #[serde(default)]
    pub hyperparameters: BTreeMap<String, String>,
}

fn one() -> u32 {
    1
}

/// What DeepSpeed keeps in host memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CpuOffload {
    #[default]
    None,
    Optimizer,
    OptimizerAndParameters,
}

/// The library that splits the work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ParallelLibrary {
    #[default]
    Deepspeed,
    Torchrun,
    /// SageMaker's distributed data parallel library.
    Smddp,
    /// SageMaker's model parallel library, version 1.
    SmpV1,
}

/// How capacity is bought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PurchaseOption {
    OnDemand,
    /// Managed spot training.
    Spot,
}

impl PurchaseOption {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on_demand",
            Self::Spot => "spot",
        }
    }
}

/// One instance type with a profile, to be tried under each of its purchase options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CandidateSpec {
    pub name: String,
    pub instance_type: String,
    #[serde(default = "one")]
    pub instance_count: u32,
    #[serde(default = "on_demand")]
    pub purchase_options: Vec<PurchaseOption>,
    #[serde(default = "one")]
    pub repeats: u32,
    /// An inline profile; exactly one of `profile` and `profile_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_id: Option<ProfileId>,
}

fn on_demand() -> Vec<PurchaseOption> {
    vec![PurchaseOption::OnDemand]
}

/// What the full training run should be best at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Minimize {
    /// USD of the full run.
    Cost,
    /// Hours of the full run.
    Time,
}

/// How the recommendation ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ObjectiveSpec {
    pub minimize: Minimize,
    /// Candidates whose projected full run costs more are not recommended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_run_budget_usd: Option<Usd>,
    /// Candidates whose projected full run takes longer are not recommended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_run_deadline_hours: Option<f64>,
}

/// Where checkpoints go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointSpec {
    /// Each attempt writes below a prefix of its own trial.
    pub s3_uri: String,
    #[serde(default = "default_checkpoint_path")]
    pub local_path: String,
    /// How often the script saves: a checkpoint older than twice this raises an alarm.
    #[serde(default = "default_checkpoint_interval")]
    pub interval_seconds: u32,
}

fn default_checkpoint_interval() -> u32 {
    1800
}

fn default_checkpoint_path() -> String {
    "/opt/ml/checkpoints".to_owned()
}

/// One question: a workload on candidates, an objective, a budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExperimentSpec {
    pub name: String,
    pub region: String,
    /// An inline workload; exactly one of `workload` and `workload_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_id: Option<WorkloadId>,
    pub candidates: Vec<CandidateSpec>,
    pub objective: ObjectiveSpec,
    /// Hard cap on what this experiment may spend.
    pub budget_usd: Usd,
    /// The longest a trial may train, SageMaker's MaxRuntimeInSeconds.
    pub max_runtime_seconds: u32,
    /// The longest a spot trial may wait and train together, SageMaker's MaxWaitTimeInSeconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_seconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
    /// How long the instances of an on-demand trial are kept warm for the next trial on the same type, SageMaker's
    /// KeepAlivePeriodInSeconds. They are billed meanwhile, and let go as soon as no trial waits for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<u32>,
    /// Higher goes first among the project's waiting trials, -100 to 100.
    #[serde(default)]
    pub priority: i32,
    /// What somebody expects, shown beside what is measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Expectation>,
    /// Free notes, kept with the experiment: why it is asked, what was corrected.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl ProfileSpec {
    /// Sequences per optimiser step: micro-batch × accumulation × data-parallel accelerators.
    pub fn global_batch(&self, accelerators: u32) -> u64 {
        let model_parallel = self.tensor_parallel_degree.max(1).saturating_mul(self.pipeline_parallel_degree.max(1));
        let replicas = u64::from((accelerators / model_parallel).max(1));
        let per_replica = u64::from(self.micro_batch_per_gpu) * u64::from(self.gradient_accumulation_steps);
        per_replica.saturating_mul(replicas)
    }
}
