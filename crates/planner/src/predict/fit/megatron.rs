//! Memory of Megatron's layouts (Korthikanti et al., arXiv 2205.05198), whose coefficients were fitted
//! to measured runs. Everything else that shards states is in [`super`].

use super::terms::{Coefficients, GIB, LOGITS, SLACK, Term, UNFUSED_ATTENTION, slack, term};
use crate::setup::Setup;

/// Head size that is assumed if the number of heads is unknown.
const HEAD: f64 = 128.0;

/// A Megatron-style layout: tensor and pipeline parallel, with or without sharded optimiser states,
/// without FlashAttention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    pub layers: f64,
    pub hidden: f64,
    /// Unknown: heads of size 128.
    pub heads: Option<f64>,
    pub vocabulary: f64,
    pub sequence_length: f64,
    pub tensor: f64,
    pub pipeline: f64,
    pub replicas: f64,
    pub zero_stage: u8,
    pub micro_batch: f64,
    /// Sequences per step over all replicas. Unknown: as many micro-batches as the pipeline can
    /// hold.
    pub global_batch: Option<f64>,
    /// Parameters in the matrices of one layer; `12h²` for a plain transformer.
    pub layer_parameters: f64,
    /// Whether layers are recomputed, and whether attention is.
    pub recomputes: bool,
    pub recomputes_attention: bool,
    /// Whether the tensor-parallel ranks also split what lies between the matrices.
    pub splits_sequence: bool,
    /// Whether the output head is a separate matrix on the last stage.
    pub has_own_head: bool,
}

impl Layout {
    /// The layout of a setup.
    pub(super) fn of(setup: Setup<'_>) -> Self {
        let Setup { model, profile, .. } = setup;
        let tensor = f64::from(profile.tensor_parallel_degree.max(1));
        let pipeline = f64::from(profile.pipeline_parallel_degree.max(1));
        // Ranks that share a sequence shard the states like replicas, and hold their part of the batch.
        let replicas = (f64::from(setup.cluster.accelerators()) / (tensor * pipeline)).max(1.0);
        let micro_batch = f64::from(profile.micro_batch_per_gpu.max(1))
            / f64::from(profile.context_parallel_degree.max(1));
        Self {
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
            recomputes: profile.recomputes_layers(),
            recomputes_attention: profile.activation_checkpointing,
            splits_sequence: profile.sequence_parallel,
            has_own_head: !model.tied_embeddings,
        }
    }
}

/// Memory that the most loaded rank needs, in GiB, by term. `card_gib` is the size of the card.
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
    let between = if layout.splits_sequence { tensor } else { 1.0 };
    let checkpoints = 2.0 * tokens * hidden * in_flight * layers / pipeline / between / GIB;
    let attention = 5.0 * heads * layout.sequence_length * tokens / tensor;
    let layer = (tokens * hidden * (10.0 / between + 24.0 / tensor) + attention) / GIB;
    let kept = in_flight * layers / pipeline;
    let [activations, unfused] = if layout.recomputes {
        [
            fitted.checkpoints * checkpoints + fitted.working_set * layer,
            0.0,
        ]
    } else {
        let held = if layout.recomputes_attention {
            1.0
        } else {
            kept
        };
        [(layer - attention / GIB) * kept, attention / GIB * held]
    };
    vec![
        term(
            "weights, gradients, optimiser",
            megatron_states(layout, fitted) / GIB,
        ),
        term("activations", activations),
        term(UNFUSED_ATTENTION, unfused),
        term(
            LOGITS,
            fitted.logits * tokens * layout.vocabulary / tensor / GIB,
        ),
        term("CUDA, NCCL, workspaces", fitted.context_gib),
        term(SLACK, slack(checkpoints, card_gib, fitted)),
    ]
}

/// Bytes of weights, gradients and optimiser on the most loaded rank: one in the first stage.
fn megatron_states(layout: &Layout, fitted: &Coefficients) -> f64 {
    let Layout {
        layers,
        hidden,
        pipeline,
        replicas,
        ..
    } = *layout;
    // Megatron may count the embedding as a layer, so that layers + 2 are distributed.
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
