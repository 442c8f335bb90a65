//! Whether a model fits: memory of each accelerator and of the host, each term named. The formulas
//! are published ones (ZeRO, arXiv 1910.02054; Korthikanti et al., arXiv 2205.05198; DeepSpeed's
//! estimators); their coefficients were fitted to measured runs and are in `data/coefficients.json`
//! with their provenance. An estimate, not a measurement: near the limit the verdict is
//! `uncertain`.

use std::sync::LazyLock;

use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::embedded;
use bakeoff_domain::spec::{CpuOffload, ParallelLibrary, Precision, ProfileSpec};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::render::deepspeed::{self, Hosts};
use crate::setup::Setup;

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
    /// What a job can use of it, GiB.
    pub accelerator_capacity_gib: Option<f64>,
    /// Host memory for offloaded states, GiB, estimated.
    pub host_gib: f64,
    pub host_capacity_gib: Option<f64>,
    /// Of the accelerator.
    pub terms: Vec<Term>,
    /// Of the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_terms: Vec<Term>,
}

/// Coefficients of the memory model, positive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Coefficients {
    /// Bytes a parameter that every replica holds whole: 16-bit weights and gradients.
    pub whole: f64,
    /// Bytes a parameter that the replicas share: master weights, two moments, gradients in 32 bit.
    pub shared: f64,
    /// Bytes a parameter of 32-bit gradients that are not shared, where the layout keeps them
    /// whole.
    pub unshared_gradients: f64,
    /// GiB of CUDA context, NCCL and workspaces.
    pub context_gib: f64,
    /// Factor on checkpointed layer inputs, 2sbh each.
    pub checkpoints: f64,
    /// Factor on one layer's working set.
    pub working_set: f64,
    /// Bytes a logit.
    pub logits: f64,
    /// The most that the caching allocator leaves unused, as a share of the card.
    pub slack: f64,
    /// Volume of checkpoints, as a share of the card, at which that slack is taken up.
    pub slack_scale: f64,
}

impl Coefficients {
    /// What the product ships.
    pub fn shipped() -> Self {
        *SHIPPED
    }

    /// In the order of the fit.
    pub fn to_array(self) -> [f64; 9] {
        [
            self.whole,
            self.shared,
            self.unshared_gradients,
            self.context_gib,
            self.checkpoints,
            self.working_set,
            self.logits,
            self.slack,
            self.slack_scale,
        ]
    }

    /// The other way round.
    pub fn from_array(values: [f64; 9]) -> Self {
        let [
            whole,
            shared,
            unshared_gradients,
            context_gib,
            checkpoints,
            working_set,
            logits,
            slack,
            slack_scale,
        ] = values;
        Self {
            whole,
            shared,
            unshared_gradients,
            context_gib,
            checkpoints,
            working_set,
            logits,
            slack,
            slack_scale,
        }
    }
}

#[derive(Deserialize)]
struct Shipped {
    memory: Coefficients,
}

static SHIPPED: LazyLock<Coefficients> = LazyLock::new(|| {
    let shipped: Shipped = embedded::json(
        "coefficients.json",
        include_str!("../../data/coefficients.json"),
    );
    shipped.memory
});

const GIB: f64 = 1_073_741_824.0;
/// Share of the reported memory that a job can have; the rest is the driver's.
const USABLE: f64 = 0.99;
/// The catalog has a T4's 16 GB; it reports 15.
const USABLE_T4: f64 = 0.92;
/// Below this share of the card it fits, and above that one it does not: where held-out estimates
/// of Megatron's layouts never erred.
const BAND: Band = Band {
    fits_below: 0.95,
    fails_above: 1.10,
};
/// The same where the terms are textbook ones, checked on rows that ran and not fitted.
const TEXTBOOK_BAND: Band = Band {
    fits_below: 0.90,
    fails_above: 1.15,
};
/// Of host memory, whose estimate carries DeepSpeed's factor of one and a half for buffers.
const HOST_BAND: Band = Band {
    fits_below: 0.95,
    fails_above: 1.20,
};
const HOST_BUFFER_FACTOR: f64 = 1.5;
/// Width over which the report saturates at the card's size, as a share of it.
const SATURATION: f64 = 0.015;
/// Heads of 128 where the number of heads is not known.
const HEAD: f64 = 128.0;
/// Bytes of one layer's activations per token and unit of width, 16 bit, FlashAttention, no
/// dropout: outside the MLP.
const OUTSIDE_MLP: f64 = 13.0;
/// The same of a plain MLP four times as wide.
const PLAIN_MLP: f64 = 19.0;

/// A Megatron-style layout: tensor and pipeline parallel, optimiser states shared by the replicas
/// or not, attention without FlashAttention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    pub layers: f64,
    pub hidden: f64,
    /// Not known: heads of 128.
    pub heads: Option<f64>,
    pub vocabulary: f64,
    pub sequence_length: f64,
    pub tensor: f64,
    pub pipeline: f64,
    pub replicas: f64,
    pub zero_stage: u8,
    pub micro_batch: f64,
    /// Sequences a step over all replicas; not known: as many micro-batches as the pipeline can
    /// hold.
    pub global_batch: Option<f64>,
    /// Matrices of one layer, parameters; `12h²` of a plain transformer.
    pub layer_parameters: f64,
    pub recomputes: bool,
    /// The output head is a matrix of its own, on the last stage.
    pub has_own_head: bool,
}

/// What the most loaded rank needs, GiB, by term; and the card, GiB.
pub fn megatron(layout: &Layout, card_gib: f64, fitted: &Coefficients) -> Vec<Term> {
    let Layout {
        layers,
        hidden,
        tensor,
        pipeline,
        replicas,
        ..
    } = *layout;
    let tokens = layout.sequence_length * layout.micro_batch;
    let heads = layout.heads.unwrap_or(hidden / HEAD);
    let micro_batches = layout
        .global_batch
        .map_or(f64::INFINITY, |all| all / (replicas * layout.micro_batch));
    let in_flight = pipeline.min(micro_batches.max(1.0));
    let checkpoints = 2.0 * tokens * hidden * in_flight * layers / pipeline / GIB;
    let attention = 5.0 * heads * layout.sequence_length * tokens / tensor;
    let layer = (tokens * hidden * (10.0 + 24.0 / tensor) + attention) / GIB;
    let activations = if layout.recomputes {
        fitted.checkpoints * checkpoints + fitted.working_set * layer
    } else {
        layer * in_flight * layers / pipeline
    };
    vec![
        term(
            "weights, gradients, optimiser",
            megatron_states(layout, fitted) / GIB,
        ),
        term("activations", activations),
        term(
            "logits",
            fitted.logits * tokens * layout.vocabulary / tensor / GIB,
        ),
        term("CUDA, NCCL, workspaces", fitted.context_gib),
        term("allocator slack", slack(checkpoints, card_gib, fitted)),
    ]
}

/// Bytes of weights, gradients and optimiser on the most loaded rank: one of the first stage.
fn megatron_states(layout: &Layout, fitted: &Coefficients) -> f64 {
    let Layout {
        layers,
        hidden,
        pipeline,
        replicas,
        ..
    } = *layout;
    // Megatron may count the embedding as a layer, so that layers + 2 are shared out.
    let divides = |count: f64| (count / pipeline).fract() == 0.0;
    let is_rebalanced = !divides(layers) && divides(layers + 2.0);
    let first_stage = if is_rebalanced {
        (layers + 2.0) / pipeline - 1.0
    } else {
        (layers / pipeline).ceil()
    };
    let heads_here = if layout.has_own_head && pipeline <= 1.0 {
        2.0
    } else {
        1.0
    };
    let parameters = (first_stage * layout.layer_parameters
        + heads_here * layout.vocabulary * hidden)
        / layout.tensor;
    let keeps_gradients = f64::from(u8::from(is_rebalanced || pipeline <= 1.0));
    let sharers = if layout.zero_stage >= 1 {
        replicas
    } else {
        1.0
    };
    let flat_copy = if layout.zero_stage == 0 { 2.0 } else { 0.0 };
    let per_parameter = fitted.whole
        + fitted.shared / sharers
        + fitted.unshared_gradients * keeps_gradients * (1.0 - 1.0 / sharers)
        + flat_copy;
    parameters * per_parameter
}

fn slack(checkpoints_gib: f64, card_gib: f64, fitted: &Coefficients) -> f64 {
    fitted.slack * card_gib * (1.0 - (-checkpoints_gib / (fitted.slack_scale * card_gib)).exp())
}

/// What a monitor shows of a need: never more than the card, since the allocator gives back what it
/// does not use.
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

/// The verdict of a need on a card, for a calibrated layout.
pub fn verdict_of(need_gib: f64, card_gib: f64) -> Verdict {
    BAND.verdict(need_gib, Some(card_gib))
}

/// Shares of the capacity between which nobody knows whether a need fits.
#[derive(Debug, Clone, Copy)]
struct Band {
    fits_below: f64,
    fails_above: f64,
}

impl Band {
    fn verdict(self, need: f64, capacity: Option<f64>) -> Verdict {
        match capacity {
            None => Verdict::Unknown,
            Some(capacity) if need < self.fits_below * capacity => Verdict::Fits,
            Some(capacity) if need <= self.fails_above * capacity => Verdict::Uncertain,
            Some(_) => Verdict::DoesNotFit,
        }
    }
}

fn term(name: &str, gib: f64) -> Term {
    Term {
        name: name.to_owned(),
        gib,
    }
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

/// Estimates the memory that a setup needs, on each accelerator and on each host.
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
    // What was measured of split models: every weight trained, optimiser at most shared, nothing on
    // the host, 16 bit.
    let is_megatron = (is_split || profile.library == ParallelLibrary::SmpV1)
        && model.lora_rank.is_none()
        && profile.zero_stage <= 1
        && profile.cpu_offload == CpuOffload::None
        && precision != Precision::Fp32;
    let terms = if is_megatron {
        megatron(&layout(setup), card, &fitted)
    } else {
        sharded(setup, card, &fitted)
    };
    let host_terms = host(setup);
    // Nothing at all sums up to -0.
    let sum = |terms: &[Term]| terms.iter().map(|term| term.gib).sum::<f64>() + 0.0;
    let (accelerator_gib, host_gib) = (sum(&terms), sum(&host_terms));
    let band = if is_megatron && profile.activation_checkpointing {
        BAND
    } else {
        TEXTBOOK_BAND
    };
    let on_accelerator = band.verdict(accelerator_gib, capacity);
    let on_host = if host_gib > 0.0 {
        HOST_BAND.verdict(host_gib, instance.memory_gib)
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

fn layout(setup: Setup<'_>) -> Layout {
    let Setup { model, profile, .. } = setup;
    let tensor = f64::from(profile.tensor_parallel_degree.max(1));
    let pipeline = f64::from(profile.pipeline_parallel_degree.max(1));
    let replicas = (f64::from(setup.cluster.accelerators()) / (tensor * pipeline)).max(1.0);
    let micro_batch = f64::from(profile.micro_batch_per_gpu.max(1));
    Layout {
        layers: f64::from(model.layers),
        hidden: f64::from(model.hidden),
        heads: Some(f64::from(model.heads)),
        vocabulary: f64::from(model.vocabulary),
        sequence_length: f64::from(model.sequence_length),
        tensor,
        pipeline,
        replicas,
        zero_stage: profile.zero_stage.min(1),
        micro_batch,
        global_batch: Some(
            micro_batch * f64::from(profile.gradient_accumulation_steps.max(1)) * replicas,
        ),
        layer_parameters: model.layer_parameters(),
        recomputes: profile.activation_checkpointing,
        has_own_head: !model.tied_embeddings,
    }
}

/// ZeRO and FSDP with FlashAttention, by the textbook; context and allocator slack as fitted.
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
    let wide = if precision == Precision::Fp32 {
        2.0
    } else {
        1.0
    };
    let [hidden, layers, vocabulary] =
        [model.hidden, model.layers, model.vocabulary].map(f64::from);
    let tokens = f64::from(model.sequence_length) * f64::from(profile.micro_batch_per_gpu);
    let [weights, gradients, optimiser] =
        states(model, profile, precision, replicas).map(|bytes| bytes / split);
    let embeddings = vocabulary * hidden;
    let live = if profile.zero_stage >= 3 {
        2.0 * wide * (2.0 * model.layer_parameters() + embeddings)
    } else {
        0.0
    };
    let mlp = model
        .intermediate
        .map_or(PLAIN_MLP, |width| 2.0 + 8.0 * f64::from(width) / hidden);
    let layer = wide * (OUTSIDE_MLP + mlp) * tokens * hidden / tensor / GIB;
    // A full pipeline has as many micro-batches under way as it has stages: the layers of all of
    // them together.
    let inputs = wide * 2.0 * tokens * hidden * layers / GIB;
    let kept = fitted.checkpoints * inputs;
    let activations = match (profile.activation_checkpointing, profile.activation_offload) {
        (false, _) => layer * layers,
        (true, false) => kept + layer,
        // Two layers' inputs are on their way at a time.
        (true, true) => kept * 2.0 / layers.max(2.0) + layer,
    };
    vec![
        term("weights", weights / GIB),
        term("gradients", gradients / GIB),
        term("optimiser", optimiser / GIB),
        term("live weights", live / tensor / GIB),
        term("activations", activations),
        term("logits", 4.0 * wide * tokens * vocabulary / tensor / GIB),
        term("CUDA, NCCL, workspaces", fitted.context_gib),
        term("allocator slack", slack(inputs, card_gib, fitted)),
    ]
}

/// Whether a library shares states between replicas when it is told to.
pub fn shares(library: ParallelLibrary) -> bool {
    !matches!(
        library,
        ParallelLibrary::Horovod
            | ParallelLibrary::ParameterServer
            | ParallelLibrary::MultiWorkerMirrored
            | ParallelLibrary::None
    )
}

/// Bytes of weights, gradients and optimiser of a whole replica's accelerator: Adam in mixed
/// precision is 16 bytes a trained parameter (2 + 2 + 12), in 32 bit 4 + 4 + 8; ZeRO's stage shares
/// them over the replicas. Frozen weights cost what weights cost.
fn states(model: &ModelShape, profile: &ProfileSpec, precision: Precision, n: f64) -> [f64; 3] {
    let (all, trained) = (model.parameters(), model.trainable_parameters());
    let (each, moments) = if precision == Precision::Fp32 {
        (4.0, 8.0)
    } else {
        (2.0, 12.0)
    };
    let (weights, gradients, optimiser) = match profile.zero_stage {
        0 => (each * all, each * trained, moments * trained),
        1 => (each * all, each * trained, moments * trained / n),
        2 => (each * all, each * trained / n, moments * trained / n),
        _ => (each * all / n, each * trained / n, moments * trained / n),
    };
    // LoRA's adapters come on top of the model.
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

/// Host memory of one instance: what DeepSpeed keeps there, as its estimators have it, and
/// offloaded activations.
fn host(setup: Setup<'_>) -> Vec<Term> {
    let Setup { model, profile, .. } = setup;
    let gpus = f64::from(setup.cluster.instance.accelerator_count.max(1));
    let nodes = f64::from(setup.cluster.count.max(1));
    let (all, trained) = (model.parameters(), model.trainable_parameters());
    let mut terms = Vec::new();
    if profile.cpu_offload != CpuOffload::None {
        // DeepSpeed reckons lower stages with all GPUs of all instances on one host; the host has
        // its own processes only.
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
        let tokens = f64::from(model.sequence_length) * f64::from(profile.micro_batch_per_gpu);
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
