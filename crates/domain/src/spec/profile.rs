//! How one instance type is used: micro-batch, sharding, offload, library.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::parallel::ParallelLibrary;

/// Numeric format of the matrix multiplications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    Bf16,
    Fp16,
    Fp32,
    /// 8-bit floating point with scaling factors (Transformer Engine), and BF16 elsewhere.
    Fp8,
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
    /// What activation checkpointing recomputes; without it, nothing is. It is not sent to the script: it
    /// says what the script does.
    #[serde(default, skip_serializing_if = "is_layers")]
    pub recompute: Recompute,
    /// Keep checkpointed activations in host memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub activation_offload: bool,
    /// How the script keeps what its optimiser needs. It is not sent to the script: it says what the
    /// script does.
    #[serde(default, skip_serializing_if = "is_mixed")]
    pub optimizer_states: OptimizerStates,
    /// Bits of a frozen base weight under LoRA, as the script loads it: 16, or 8 or 4 (QLoRA).
    #[serde(default = "sixteen", skip_serializing_if = "is_sixteen")]
    pub base_weight_bits: u8,
    /// The script computes the loss in chunks or in a fused kernel, and never holds all logits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chunked_cross_entropy: bool,
    #[serde(default = "super::default::one")]
    pub tensor_parallel_degree: u32,
    #[serde(default = "super::default::one")]
    pub pipeline_parallel_degree: u32,
    /// Tensor-parallel accelerators also split what lies between the layers' matrices along the
    /// sequence (Megatron's sequence parallelism). It is not sent to the script: it says what the script
    /// does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sequence_parallel: bool,
    /// Accelerators that share each sequence, and pass keys and values around a ring. Above 1, it is sent
    /// as a hyperparameter of this name, and to SMP v2 as its parameter.
    #[serde(default = "super::default::one", skip_serializing_if = "is_one")]
    pub context_parallel_degree: u32,
    /// Accelerators of one sharding group; each group holds a full copy of the states (FSDP's
    /// HYBRID_SHARD: usually the accelerators of an instance). It needs `torchrun` with `zero_stage` 2 or
    /// 3, or `smp_v2`, and is sent as a hyperparameter of this name, and to SMP v2 as its parameter.
    /// States are sharded over all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hybrid_shard_degree: Option<u32>,
    #[serde(default)]
    pub library: ParallelLibrary,
    /// Parameters of SageMaker's model parallel library, sent as `mp_parameters`.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[schema(value_type = Object)]
    pub smp_parameters: serde_json::Map<String, serde_json::Value>,
    /// MPI processes per instance; one per accelerator when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_per_host: Option<u32>,
    /// Additional `mpirun` options.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mpi_options: String,
    /// Additional settings for the generated DeepSpeed configuration, beyond those derived from
    /// this profile.
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

fn sixteen() -> u8 {
    16
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_sixteen(bits: &u8) -> bool {
    *bits == sixteen()
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(degree: &u32) -> bool {
    *degree == 1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_layers(recompute: &Recompute) -> bool {
    *recompute == Recompute::default()
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_mixed(states: &OptimizerStates) -> bool {
    *states == OptimizerStates::default()
}

impl ProfileSpec {
    /// The same split, for a script that keeps weights, optimiser states and logits as another profile's does.
    #[must_use]
    pub fn with_formats_of(self, other: &Self) -> Self {
        Self {
            optimizer_states: other.optimizer_states,
            base_weight_bits: other.base_weight_bits,
            chunked_cross_entropy: other.chunked_cross_entropy,
            ..self
        }
    }

    /// A plain profile that yields a global batch on the given number of accelerators in one
    /// micro-step, rounded up if it does not divide evenly.
    pub fn of_batch(global_batch: u64, accelerators: u32) -> Self {
        let each = global_batch.div_ceil(u64::from(accelerators.max(1))).max(1);
        Self {
            micro_batch_per_gpu: u32::try_from(each).unwrap_or(u32::MAX),
            gradient_accumulation_steps: 1,
            zero_stage: 0,
            cpu_offload: CpuOffload::None,
            activation_checkpointing: false,
            recompute: Recompute::default(),
            activation_offload: false,
            optimizer_states: OptimizerStates::default(),
            base_weight_bits: sixteen(),
            chunked_cross_entropy: false,
            tensor_parallel_degree: 1,
            pipeline_parallel_degree: 1,
            sequence_parallel: false,
            context_parallel_degree: 1,
            hybrid_shard_degree: None,
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

    /// Parameters of SageMaker's model parallel library: the user's, plus the parallel degrees that
    /// the profile sets.
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
            // Version 1 splits layers only if it also runs the data parallelism.
            if self.library == ParallelLibrary::SmpV1 {
                set("ddp", true.into());
            }
        }
        if self.library == ParallelLibrary::SmpV2 {
            let context = Some(self.context_parallel_degree).filter(|degree| *degree > 1);
            for (key, degree) in [
                ("context_parallel_degree", context),
                ("hybrid_shard_degree", self.hybrid_shard_degree),
            ] {
                if let Some(degree) = degree {
                    set(key, degree.into());
                }
            }
        }
        all
    }

    /// Accelerators that a model is split over: tensor × pipeline.
    pub fn model_parallel_degree(&self) -> u32 {
        self.tensor_parallel_degree
            .max(1)
            .saturating_mul(self.pipeline_parallel_degree.max(1))
    }

    /// Accelerators that work on one micro-batch together: tensor × pipeline × context.
    pub fn accelerators_per_replica(&self) -> u32 {
        self.model_parallel_degree()
            .saturating_mul(self.context_parallel_degree.max(1))
    }

    /// Whether activation checkpointing recomputes whole layers.
    pub fn recomputes_layers(&self) -> bool {
        self.activation_checkpointing && self.recompute == Recompute::Layers
    }

    /// Sequences per optimiser step: micro-batch × accumulation × data-parallel accelerators.
    pub fn global_batch(&self, accelerators: u32) -> u64 {
        let replicas = u64::from((accelerators / self.accelerators_per_replica()).max(1));
        let per_replica =
            u64::from(self.micro_batch_per_gpu) * u64::from(self.gradient_accumulation_steps);
        per_replica.saturating_mul(replicas)
    }
}

/// What activation checkpointing recomputes in the backward pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// Each layer, from its inputs.
    #[default]
    Layers,
    /// Attention only (selective recomputation, arXiv 2205.05198); all else is kept.
    Attention,
}

/// What DeepSpeed offloads to host memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CpuOffload {
    #[default]
    None,
    Optimizer,
    OptimizerAndParameters,
}

/// What an Adam optimiser keeps of each trained parameter beside its weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerStates {
    /// 32-bit master weight and moments: 12 bytes under mixed precision.
    #[default]
    Mixed,
    /// Everything in 16 bits, without a master weight: 4 bytes.
    Bf16,
    /// 8-bit moments (bitsandbytes), without a master weight: 2 bytes.
    Int8,
}
