//! Estimates whether a model fits: memory of each accelerator and of the host, with every term
//! named. The formulas are published ones (ZeRO, arXiv 1910.02054; Korthikanti et al., arXiv
//! 2205.05198; DeepSpeed's estimators). Their coefficients were fitted to measured runs and are in
//! `data/coefficients.json` with their provenance. The result is an estimate, not a measurement:
//! near the limit the verdict is `uncertain`.

mod megatron;
mod terms;
mod verdict;

use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::spec::{CpuOffload, OptimizerStates, ParallelLibrary, Precision, ProfileSpec};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::megatron::{Layout, megatron};
pub use self::terms::{Coefficients, Term};
use self::terms::{GIB, LOGITS, SLACK, UNFUSED_ATTENTION, slack, term};
use self::verdict::Need;
use crate::render::deepspeed::{self, Hosts};
use crate::setup::Setup;

/// Whether a setup fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = FitVerdict)]
pub enum Verdict {
    Fits,
    Uncertain,
    DoesNotFit,
    /// The catalog has no memory figure for this type.
    Unknown,
}

/// The verdict with its terms. All figures are estimates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub verdict: Verdict,
    /// Memory of one accelerator, GiB, estimated.
    pub accelerator_gib: f64,
    /// Memory of one accelerator that a job can use, GiB.
    pub accelerator_capacity_gib: Option<f64>,
    /// Host memory for offloaded states, GiB, estimated.
    pub host_gib: f64,
    pub host_capacity_gib: Option<f64>,
    /// Terms of the accelerator's memory.
    pub terms: Vec<Term>,
    /// Terms of the host's memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_terms: Vec<Term>,
}

impl Fit {
    /// `46 of 40 GiB`: what an accelerator needs of what it has.
    pub fn on_accelerator(&self) -> String {
        of_capacity(self.accelerator_gib, self.accelerator_capacity_gib)
    }

    /// The same for the memory of the host.
    pub fn on_host(&self) -> String {
        of_capacity(self.host_gib, self.host_capacity_gib)
    }
}

fn of_capacity(gib: f64, capacity_gib: Option<f64>) -> String {
    match capacity_gib {
        Some(capacity) => format!("{gib:.0} of {capacity:.0} GiB"),
        None => format!("{gib:.0} GiB"),
    }
}

/// Share of the reported memory that a job can use; the driver takes the rest.
const USABLE: f64 = 0.99;
/// The catalog lists 16 GB for a T4, which reports 15.
const USABLE_T4: f64 = 0.92;
const HOST_BUFFER_FACTOR: f64 = 1.5;
/// Names of terms that a script may not need.
const OPTIMISER: &str = "optimiser";
/// Bytes per trained parameter of an Adam optimiser's states: mixed precision, everything in 16 bits,
/// and 8-bit moments.
const MIXED_STATES: f64 = 12.0;
const BF16_STATES: f64 = 4.0;
const INT8_STATES: f64 = 2.0;
/// Width over which reported memory saturates at the card's size, as a share of the card.
const SATURATION: f64 = 0.015;
/// Bytes of one layer's activations outside the MLP, per token and unit of width: 16 bit,
/// FlashAttention, no dropout.
const OUTSIDE_MLP: f64 = 13.0;
/// The same for a plain MLP four times as wide.
const PLAIN_MLP: f64 = 19.0;

/// The memory that a monitor reports for a given need: never more than the card, since the
/// allocator returns what it does not use.
pub fn reported(need_gib: f64, card_gib: f64) -> f64 {
    let width = SATURATION * card_gib;
    let over = (need_gib - card_gib) / width;
    // ln(1 + e^x), without overflow.
    let softplus = if over > 30.0 {
        over
    } else {
        over.exp().ln_1p()
    };
    need_gib - width * softplus
}

/// The verdict on a need for a calibrated layout on a card.
pub fn verdict_of(need_gib: f64, card_gib: f64) -> Verdict {
    verdict::BAND.verdict(Need::exactly(need_gib), Some(card_gib))
}

/// Bytes of a layer's weight as the script holds it.
pub(super) fn weight_bytes(profile: &ProfileSpec, precision: Precision) -> f64 {
    match (profile.base_weight_bits, precision) {
        // Four bits, and their scales.
        (..=4, _) => 0.56,
        (..=8, _) => 1.06,
        (_, Precision::Fp32) => 4.0,
        _ => 2.0,
    }
}

/// Bytes of a frozen base: only the layers' matrices are packed, not the embeddings, the head and the norms.
fn frozen_bytes(model: &ModelShape, profile: &ProfileSpec, precision: Precision) -> f64 {
    let plain = if precision == Precision::Fp32 {
        4.0
    } else {
        2.0
    };
    let packed = f64::from(model.layers) * model.layer_parameters();
    weight_bytes(profile, precision) * packed + plain * (model.parameters() - packed)
}

/// GiB of one accelerator that a job can use.
pub fn usable_gib(accelerator: Option<&str>, reported_gib: f64) -> f64 {
    let share = if accelerator.is_some_and(|name| name.ends_with("T4")) {
        USABLE_T4
    } else {
        USABLE
    };
    reported_gib * share
}

/// Estimates the memory that a setup needs on each accelerator and each host.
pub fn fit(setup: Setup<'_>) -> Fit {
    let Setup {
        model,
        profile,
        precision,
        cluster,
    } = setup;
    let instance = cluster.instance;
    let fitted = Coefficients::shipped();
    let capacity = instance
        .accelerator_memory_gib
        .map(|gib| usable_gib(instance.accelerator.as_deref(), gib));
    let card = capacity.unwrap_or(80.0);
    let is_split = profile.tensor_parallel_degree > 1 || profile.pipeline_parallel_degree > 1;
    // The measured split models: every weight trained, at most the optimiser sharded, no offload,
    // 16 bit.
    let is_megatron = (is_split || profile.library == ParallelLibrary::SmpV1)
        && model.lora_rank.is_none()
        && profile.zero_stage <= 1
        && profile.hybrid_shard_degree.is_none()
        && profile.cpu_offload == CpuOffload::None
        && precision != Precision::Fp32;
    let terms = if is_megatron {
        megatron(&Layout::of(setup), card, &fitted)
    } else {
        sharded(setup, card, &fitted)
    };
    let host_terms = host(setup);
    // An empty sum is -0.
    let sum = |terms: &[Term]| terms.iter().map(|term| term.gib).sum::<f64>() + 0.0;
    let (accelerator_gib, host_gib) = (sum(&terms), sum(&host_terms));
    let on_accelerator = if is_megatron && profile.recomputes_layers() {
        verdict::BAND.verdict(Need::exactly(accelerator_gib), capacity)
    } else {
        verdict::TEXTBOOK_BAND.verdict(verdict::on_accelerator(setup, &terms), capacity)
    };
    let on_host = if host_gib > 0.0 {
        verdict::HOST_BAND.verdict(verdict::on_host(profile, host_gib), instance.memory_gib)
    } else {
        Verdict::Fits
    };
    Fit {
        verdict: worse(on_accelerator, on_host),
        accelerator_gib,
        accelerator_capacity_gib: capacity,
        host_gib,
        host_capacity_gib: instance.memory_gib,
        terms,
        host_terms,
    }
}

/// ZeRO and FSDP with FlashAttention, by textbook formulas; context and allocator slack are fitted.
fn sharded(setup: Setup<'_>, card_gib: f64, fitted: &Coefficients) -> Vec<Term> {
    let Setup {
        model,
        profile,
        precision,
        cluster,
    } = setup;
    let tensor = f64::from(profile.tensor_parallel_degree.max(1));
    let pipeline = f64::from(profile.pipeline_parallel_degree.max(1));
    let split = tensor * pipeline;
    let gpus = f64::from(cluster.instance.accelerator_count) * f64::from(cluster.count.max(1));
    let replicas = if shares(profile.library) {
        (gpus / split).max(1.0)
    } else {
        1.0
    };
    let sharers =
        (profile.hybrid_shard_degree).map_or(replicas, |degree| replicas.min(degree.max(1).into()));
    let wide = if precision == Precision::Fp32 {
        2.0
    } else {
        1.0
    };
    let [hidden, layers, vocabulary] =
        [model.hidden, model.layers, model.vocabulary].map(f64::from);
    let tokens = tokens_held(model, profile);
    let [weights, gradients, optimiser] =
        states(model, profile, precision, sharers).map(|bytes| bytes / split);
    let embeddings = vocabulary * hidden;
    let live = if profile.zero_stage >= 3 {
        2.0 * wide * (2.0 * model.layer_parameters() + embeddings)
    } else {
        0.0
    };
    let mlp = if model.intermediate.is_none() && model.experts.is_none() {
        PLAIN_MLP
    } else {
        2.0 + 8.0 * model.mlp_width()
    };
    let layer = wide * (OUTSIDE_MLP + mlp) * tokens * hidden / tensor / GIB;
    // A full pipeline has as many micro-batches in flight as it has stages, so count the layers of
    // all stages together.
    let between = if profile.sequence_parallel {
        tensor
    } else {
        1.0
    };
    let inputs = wide * 2.0 * tokens * hidden * layers / between / GIB;
    let kept = fitted.checkpoints * inputs;
    let activations = match (profile.recomputes_layers(), profile.activation_offload) {
        (false, _) => layer * layers,
        (true, false) => kept + layer,
        // The inputs of two layers are in transit at a time.
        (true, true) => kept * 2.0 / layers.max(2.0) + layer,
    };
    let logits = if profile.chunked_cross_entropy {
        0.0
    } else {
        4.0 * wide
    };
    vec![
        term("weights", weights / GIB),
        term("gradients", gradients / GIB),
        term(OPTIMISER, optimiser / GIB),
        term("live weights", live / tensor / GIB),
        term("activations", activations),
        term(LOGITS, logits * tokens * vocabulary / tensor / GIB),
        term("CUDA, NCCL, workspaces", fitted.context_gib),
        term(SLACK, slack(inputs, card_gib, fitted)),
    ]
}

/// Tokens of a micro-batch that one accelerator holds.
fn tokens_held(model: &ModelShape, profile: &ProfileSpec) -> f64 {
    f64::from(model.sequence_length) * f64::from(profile.micro_batch_per_gpu)
        / f64::from(profile.context_parallel_degree.max(1))
}

/// Whether a library can shard states across replicas.
pub fn shares(library: ParallelLibrary) -> bool {
    !matches!(
        library,
        ParallelLibrary::Horovod
            | ParallelLibrary::ParameterServer
            | ParallelLibrary::MultiWorkerMirrored
            | ParallelLibrary::None
    )
}

/// Bytes of weights, gradients and optimiser on an accelerator that holds a whole replica: Adam
/// takes 16 bytes per trained parameter in mixed precision (2 + 2 + 12), and 4 + 4 + 8 in 32 bit.
/// The ZeRO stage shards them across replicas. Frozen weights take only the weights' own bytes.
fn states(model: &ModelShape, profile: &ProfileSpec, precision: Precision, n: f64) -> [f64; 3] {
    let (all, trained) = (model.parameters(), model.trainable_parameters());
    let (each, moments) = match (precision, profile.optimizer_states) {
        (Precision::Fp32, OptimizerStates::Mixed) => (4.0, 8.0),
        (Precision::Fp32, _) => (4.0, INT8_STATES),
        (_, OptimizerStates::Mixed) => (2.0, MIXED_STATES),
        (_, OptimizerStates::Bf16) => (2.0, BF16_STATES),
        (_, OptimizerStates::Int8) => (2.0, INT8_STATES),
    };
    let held = if model.lora_rank.is_some() {
        frozen_bytes(model, profile, precision)
    } else {
        each * all
    };
    let (weights, gradients, optimiser) = match profile.zero_stage {
        0 => (held, each * trained, moments * trained),
        1 => (held, each * trained, moments * trained / n),
        2 => (held, each * trained / n, moments * trained / n),
        _ => (held / n, each * trained / n, moments * trained / n),
    };
    // LoRA's adapters are added to the model.
    let adapters = if model.lora_rank.is_some() {
        each * trained
    } else {
        0.0
    };
    match profile.cpu_offload {
        CpuOffload::None => [weights + adapters, gradients, optimiser],
        CpuOffload::Optimizer => [weights + adapters, gradients, 0.0],
        CpuOffload::OptimizerAndParameters => [adapters, gradients, 0.0],
    }
}

/// Host memory of one instance: what DeepSpeed keeps there, according to its estimators, plus
/// offloaded activations.
fn host(setup: Setup<'_>) -> Vec<Term> {
    let Setup { model, profile, .. } = setup;
    let gpus = f64::from(setup.cluster.instance.accelerator_count.max(1));
    let nodes = f64::from(setup.cluster.count.max(1));
    let (all, trained) = (model.parameters(), model.trainable_parameters());
    let mut terms = Vec::new();
    if profile.cpu_offload != CpuOffload::None {
        // For lower stages, DeepSpeed counts all GPUs of all instances on one host; the host runs
        // only its own processes.
        let stage_3 = deepspeed::zero3(
            trained,
            0.0,
            Hosts {
                gpus_per_node: gpus,
                nodes,
            },
            CpuOffload::Optimizer,
            profile.zero_stage >= 3,
            HOST_BUFFER_FACTOR,
        );
        terms.push(term("optimiser states", stage_3.host_bytes / GIB));
    }
    if profile.cpu_offload == CpuOffload::OptimizerAndParameters {
        terms.push(term(
            "weights",
            2.0 * all / nodes * HOST_BUFFER_FACTOR / GIB,
        ));
    }
    if profile.activation_checkpointing && profile.activation_offload {
        let tokens = tokens_held(model, profile);
        let inputs = 2.0 * tokens * f64::from(model.hidden) * f64::from(model.layers);
        terms.push(term("checkpointed activations", inputs * gpus / GIB));
    }
    terms
}

fn worse(left: Verdict, right: Verdict) -> Verdict {
    let rank = |verdict| match verdict {
        Verdict::Fits => 0,
        Verdict::Unknown => 1,
        Verdict::Uncertain => 2,
        Verdict::DoesNotFit => 3,
    };
    if rank(left) >= rank(right) {
        left
    } else {
        right
    }
}

#[cfg(test)]
mod tests;
