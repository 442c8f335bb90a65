//! Whether a model fits: memory per accelerator and on the host, from published formulas, each term named.
//! An estimate, not a measurement: a verdict within a fifth of the limit is `uncertain`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::catalog::InstanceType;
use crate::model::ModelShape;
use crate::spec::{CpuOffload, ProfileSpec};

/// Whether it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Fits,
    Uncertain,
    DoesNotFit,
    /// The catalog does not know this type's memory.
    Unknown,
}

/// One addend of the estimate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Term {
    pub name: String,
    pub gib: f64,
}

/// The verdict with its terms. All figures are estimated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Fit {
    pub verdict: Verdict,
    /// Memory of one accelerator, GiB, estimated.
    pub accelerator_gib: f64,
    pub accelerator_capacity_gib: Option<f64>,
    /// Host memory for offloaded states, GiB, estimated.
    pub host_gib: f64,
    pub host_capacity_gib: Option<f64>,
    pub terms: Vec<Term>,
}

const GIB: f64 = 1_073_741_824.0;
/// CUDA context, NCCL buffers, fragmentation.
const OVERHEAD_GIB: f64 = 2.0;
/// DeepSpeed's own buffer factor for host memory (deepspeed/runtime/zero/stage3.py).
const HOST_BUFFER_FACTOR: f64 = 1.5;
/// Share of the capacity that a job can really use.
const USABLE: f64 = 0.97;
/// The estimate's own error: within it the verdict is uncertain.
const BAND: f64 = 0.20;

/// Estimates the memory of `model` under `profile` on `count` instances of `instance`.
pub fn fit(model: &ModelShape, profile: &ProfileSpec, instance: &InstanceType, count: u32) -> Fit {
    let gpus = f64::from(instance.accelerator_count) * f64::from(count.max(1));
    let split = f64::from(profile.tensor_parallel_degree.max(1)) * f64::from(profile.pipeline_parallel_degree.max(1));
    let replicas = (gpus / split).max(1.0);
    let all = model.parameters() / split;
    let trained = model.trainable_parameters() / split;
    let states = accelerator_states(profile, all, trained, replicas);
    let host = host_states(profile, all, trained, f64::from(count.max(1)));
    let terms = vec![
        Term { name: "weights, gradients, optimiser".to_owned(), gib: states / GIB },
        Term { name: "activations".to_owned(), gib: activations(model, profile) / GIB },
        Term { name: "logits".to_owned(), gib: logits(model, profile) / GIB },
        Term { name: "CUDA, NCCL, fragmentation".to_owned(), gib: OVERHEAD_GIB },
    ];
    let accelerator_gib = terms.iter().map(|term| term.gib).sum();
    let host_gib = host / GIB;
    let on_accelerator = verdict(accelerator_gib, instance.accelerator_memory_gib);
    let on_host = if host_gib > 0.0 { verdict(host_gib, instance.memory_gib) } else { Verdict::Fits };
    Fit {
        verdict: worse(on_accelerator, on_host),
        accelerator_gib,
        accelerator_capacity_gib: instance.accelerator_memory_gib,
        host_gib,
        host_capacity_gib: instance.memory_gib,
        terms,
    }
}

/// Bytes per accelerator: Adam in mixed precision is 16 bytes a trained parameter (2 weights, 2 gradients, 12 optimiser);
/// ZeRO shards them over the replicas (Rajbhandari et al., arXiv 1910.02054). Frozen weights cost 2.
fn accelerator_states(profile: &ProfileSpec, all: f64, trained: f64, n: f64) -> f64 {
    let frozen = all - trained;
    let (weights, gradients, optimiser) = match profile.zero_stage {
        0 => (2.0 * all, 2.0 * trained, 12.0 * trained),
        1 => (2.0 * all, 2.0 * trained, 12.0 * trained / n),
        2 => (2.0 * all, 2.0 * trained / n, 12.0 * trained / n),
        _ => (2.0 * (frozen + trained) / n, 2.0 * trained / n, 12.0 * trained / n),
    };
    match profile.cpu_offload {
        CpuOffload::None => weights + gradients + optimiser,
        CpuOffload::Optimizer => weights + gradients,
        CpuOffload::OptimizerAndParameters => gradients,
    }
}

/// Bytes on each host, after DeepSpeed's estimator: 16 (18 with parameters) bytes a parameter over the nodes, × 1.5.
fn host_states(profile: &ProfileSpec, all: f64, trained: f64, nodes: f64) -> f64 {
    let bytes = match profile.cpu_offload {
        CpuOffload::None => 0.0,
        CpuOffload::Optimizer => 16.0 * trained,
        CpuOffload::OptimizerAndParameters => 16.0 * trained + 2.0 * all,
    };
    bytes / nodes * HOST_BUFFER_FACTOR
}

/// Bytes, 16 bit, with FlashAttention (Korthikanti et al., arXiv 2205.05198): `34sbh` a layer, or `2sbh` a layer and one
/// layer's worth when activations are recomputed.
fn activations(model: &ModelShape, profile: &ProfileSpec) -> f64 {
    let sbh = f64::from(model.sequence_length) * f64::from(profile.micro_batch_per_gpu) * f64::from(model.hidden);
    let layers = f64::from(model.layers) / f64::from(profile.pipeline_parallel_degree.max(1));
    let bytes = if profile.activation_checkpointing { 2.0 * sbh * layers + 34.0 * sbh } else { 34.0 * sbh * layers };
    bytes / f64::from(profile.tensor_parallel_degree.max(1))
}

/// Bytes of the output logits and their gradient, fused cross-entropy: 4 a value.
fn logits(model: &ModelShape, profile: &ProfileSpec) -> f64 {
    let tokens = f64::from(model.sequence_length) * f64::from(profile.micro_batch_per_gpu);
    4.0 * tokens * f64::from(model.vocabulary) / f64::from(profile.tensor_parallel_degree.max(1))
}

fn verdict(needed_gib: f64, capacity_gib: Option<f64>) -> Verdict {
    match capacity_gib {
        None => Verdict::Unknown,
        Some(capacity) if needed_gib <= capacity * USABLE / (1.0 + BAND) => Verdict::Fits,
        Some(capacity) if needed_gib <= capacity * USABLE * (1.0 + BAND) => Verdict::Uncertain,
        Some(_) => Verdict::DoesNotFit,
    }
}

fn worse(left: Verdict, right: Verdict) -> Verdict {
    let rank = |verdict| match verdict {
        Verdict::Fits => 0,
        Verdict::Unknown => 1,
        Verdict::Uncertain => 2,
        Verdict::DoesNotFit => 3,
    };
    if rank(left) >= rank(right) { left } else { right }
}
