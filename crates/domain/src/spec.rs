//! What a user sends: workload, instance profile, experiment. Plain data as JSON has it; whether it
//! makes sense is [`crate::lint`]'s business, what it would cost is [`crate::plan`]'s.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::catalog;
use crate::claim::Claims;
use crate::forecast::Measurement;
use crate::ids::{ProfileId, WorkloadId};
use crate::metric::MetricDefinition;
use crate::model::ModelShape;
use crate::money::Usd;
use crate::run::Expectation;
use crate::technique::{ScriptSpec, Techniques};

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
    /// Checkpointed activations wait in host memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub activation_offload: bool,
    #[serde(default = "one")]
    pub tensor_parallel_degree: u32,
    #[serde(default = "one")]
    pub pipeline_parallel_degree: u32,
    #[serde(default)]
    pub library: ParallelLibrary,
    /// Parameters of SageMaker's model parallel library, sent as `mp_parameters`.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[schema(value_type = Object)]
    pub smp_parameters: serde_json::Map<String, serde_json::Value>,
    /// Processes per instance of MPI; one per accelerator when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_per_host: Option<u32>,
    /// Further options of `mpirun`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mpi_options: String,
    /// What to set in the generated DeepSpeed configuration beyond what follows from this profile.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[schema(value_type = Object)]
    pub deepspeed: serde_json::Map<String, serde_json::Value>,
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
    /// SageMaker's model parallel library, version 1 (archived).
    SmpV1,
    /// SageMaker's model parallel library, version 2.
    SmpV2,
    /// Horovod, started through MPI.
    Horovod,
    /// TensorFlow's parameter servers.
    ParameterServer,
    /// TensorFlow's MultiWorkerMirroredStrategy.
    MultiWorkerMirrored,
    /// One process on each instance.
    None,
}

impl ParallelLibrary {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deepspeed => "deepspeed",
            Self::Torchrun => "torchrun",
            Self::Smddp => "smddp",
            Self::SmpV1 => "smp_v1",
            Self::SmpV2 => "smp_v2",
            Self::Horovod => "horovod",
            Self::ParameterServer => "parameter_server",
            Self::MultiWorkerMirrored => "multi_worker_mirrored",
            Self::None => "none",
        }
    }
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
    /// How long the instances of an on-demand trial are kept warm for the next trial on the same
    /// type, SageMaker's KeepAlivePeriodInSeconds. They are billed meanwhile, and let go as soon as
    /// no trial waits for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<u32>,
    /// Higher goes first among the project's waiting trials, -100 to 100.
    #[serde(default)]
    pub priority: i32,
    /// Hours after its start until which trials wait while AWS has no capacity for them; 72 when
    /// absent, 0: not at all. Waiting is not billed, and holds no budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_hours: Option<u32>,
    /// What somebody expects, shown beside what is measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Expectation>,
    /// Speeds of this workload that were measured before: they move the predictions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurement>,
    /// What the question takes for true of hardware, prices, sizes and speeds: checked by the
    /// linter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
    /// Free notes, kept with the experiment: why it is asked, what was corrected.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How long trials wait for capacity where the experiment does not say: droughts of p5 last hours,
/// seldom days.
const DEADLINE_HOURS_DEFAULT: u32 = 72;

impl ExperimentSpec {
    /// Until when trials of an experiment that starts now wait for capacity.
    pub fn deadline(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        let hours = self.deadline_hours.unwrap_or(DEADLINE_HOURS_DEFAULT);
        now.checked_add_signed(TimeDelta::hours(hours.into()))
            .unwrap_or(DateTime::<Utc>::MAX_UTC)
    }
}

impl CandidateSpec {
    /// Accelerators of all its instances; one an instance for a type without any, or an unknown
    /// one.
    pub fn accelerators(&self) -> u32 {
        let each =
            catalog::find(&self.instance_type).map_or(1, |found| found.accelerator_count.max(1));
        each.saturating_mul(self.instance_count.max(1))
    }
}

impl ProfileSpec {
    /// A plain profile that makes a global batch on so many accelerators, all of it in one
    /// micro-step where it divides.
    pub fn of_batch(global_batch: u64, accelerators: u32) -> Self {
        let each = global_batch.div_ceil(u64::from(accelerators.max(1))).max(1);
        Self {
            micro_batch_per_gpu: u32::try_from(each).unwrap_or(u32::MAX),
            gradient_accumulation_steps: 1,
            zero_stage: 0,
            cpu_offload: CpuOffload::None,
            activation_checkpointing: false,
            activation_offload: false,
            tensor_parallel_degree: 1,
            pipeline_parallel_degree: 1,
            library: ParallelLibrary::Deepspeed,
            smp_parameters: serde_json::Map::new(),
            processes_per_host: None,
            mpi_options: String::new(),
            deepspeed: serde_json::Map::new(),
            volume_size_gb: None,
            environment: BTreeMap::new(),
            hyperparameters: BTreeMap::new(),
        }
    }

    /// Parameters of SageMaker's model parallel library: the user's, and the degrees that the
    /// profile sets.
    pub fn smp(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut all = self.smp_parameters.clone();
        let mut set = |key: &str, value: serde_json::Value| {
            all.entry(key).or_insert(value);
        };
        if self.pipeline_parallel_degree > 1 && !self.smp_parameters.contains_key("partitions") {
            set(
                "pipeline_parallel_degree",
                self.pipeline_parallel_degree.into(),
            );
        }
        if self.tensor_parallel_degree > 1 {
            set("tensor_parallel_degree", self.tensor_parallel_degree.into());
            // Version 1 splits layers only where it also runs the data parallelism.
            if self.library == ParallelLibrary::SmpV1 {
                set("ddp", true.into());
            }
        }
        all
    }

    /// Sequences per optimiser step: micro-batch × accumulation × data-parallel accelerators.
    pub fn global_batch(&self, accelerators: u32) -> u64 {
        let model_parallel = self
            .tensor_parallel_degree
            .max(1)
            .saturating_mul(self.pipeline_parallel_degree.max(1));
        let replicas = u64::from((accelerators / model_parallel).max(1));
        let per_replica =
            u64::from(self.micro_batch_per_gpu) * u64::from(self.gradient_accumulation_steps);
        per_replica.saturating_mul(replicas)
    }
}
