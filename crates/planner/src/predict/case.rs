//! The input to the speed law: a model under a profile on a number of instances.

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::spec::{CpuOffload, Precision, Recompute};

use super::fit::weight_bytes;
use super::{EFFECTS, Hardware, Setting, UNFITTED};
use crate::setup::Setup;

/// Host to accelerator, PCIe 4.0 x16, bytes/s (physics, not fitted).
const PCIE: f64 = 25e9;
/// Memory bandwidth of an optimiser on the host's CPUs, bytes/s: half of what two sockets with eight
/// channels of DDR4-3200 have (physics, not fitted).
const HOST_MEMORY: f64 = 200e9;
/// Bytes/s between an accelerator and pageable host memory, copied layer by layer without overlap:
/// one published log of two runs reached about this.
const PAGEABLE: f64 = 1.5e9;

/// Bytes moved in each micro-step for a frozen weight that is held in 4 or 8 bits and unpacked for each pass: by pairs of
/// published runs with and without (Qwen's 1.8B and 7B on one A100, six lengths each; QwenLM/Qwen, README), which took
/// 20 and 27 ps longer a weight, at 2 TB/s. More than the passes themselves move: the kernels do not reach the bandwidth.
const UNPACKED: f64 = 48.0;

/// The hardware of an instance type; `None` if the catalog lacks a figure that speed depends on.
pub fn hardware(instance: &InstanceType, precision: Precision) -> Option<Hardware> {
    let count = f64::from(instance.accelerator_count);
    let peak = match precision {
        Precision::Bf16 | Precision::Fp16 | Precision::Fp8 => instance.peak_tflops()?,
        // Half the 16-bit rate with TF32, an eighth without.
        Precision::Fp32 => instance
            .bf16_tflops
            .map_or(instance.fp16_tflops? / 8.0, |tflops| tflops / 2.0),
    };
    let is_trainium = instance.family().starts_with("trn");
    let pcie = if instance.family() == "g4dn" {
        32.0
    } else {
        64.0
    };
    let link = instance.accelerator_link_gb_s.unwrap_or(pcie);
    (!is_trainium && count > 0.0).then_some(Hardware {
        peak: peak * 1e12,
        bandwidth: instance.accelerator_bandwidth_gb_s? * 1e9,
        link: link * 1e9,
        network: instance.network_gbps? * 1e9 / 8.0 / count,
        per_instance: count,
    })
}

/// Bytes per number, relative to 16 bits.
fn width(precision: Precision) -> f64 {
    if precision == Precision::Fp32 {
        2.0
    } else {
        1.0
    }
}

/// Bytes that all layers hand on for one micro-batch, over all accelerators that share it.
fn layer_bytes(setup: Setup<'_>) -> f64 {
    let model = setup.model;
    let tokens =
        f64::from(model.sequence_length) * f64::from(setup.profile.micro_batch_per_gpu.max(1));
    2.0 * width(setup.precision) * tokens * f64::from(model.hidden) * f64::from(model.layers)
}

/// Bytes that an accelerator moves to unpack the layers' frozen weights; embeddings and the head are not packed.
fn unpacked_bytes(setup: Setup<'_>) -> f64 {
    let (model, profile) = (setup.model, setup.profile);
    if profile.base_weight_bits >= 16 {
        return 0.0;
    }
    let degrees = [
        profile.tensor_parallel_degree,
        profile.pipeline_parallel_degree,
    ];
    let split: f64 = degrees
        .map(|degree| f64::from(degree.max(1)))
        .iter()
        .product();
    // Also those of experts that few tokens are sent to.
    UNPACKED * f64::from(model.layers) * model.layer_parameters() / split
}

/// Seconds spent waiting for the host.
struct Waiting {
    per_micro_step: f64,
    per_step: f64,
}

fn waiting_for_host(setup: Setup<'_>) -> Waiting {
    let (model, profile) = (setup.model, setup.profile);
    let n = f64::from(setup.cluster.accelerators());
    let (parameters, trained) = (model.parameters(), model.trainable_parameters());
    // Gradients go to the host, weights come back, and the host processes 28 bytes per parameter.
    let per_step = match profile.cpu_offload {
        CpuOffload::None => 0.0,
        _ => 4.0 * trained / n / PCIE + 28.0 * trained / HOST_MEMORY / (n / 8.0).max(1.0),
    };
    let of_weights = match profile.cpu_offload {
        CpuOffload::OptimizerAndParameters => 2.0 * 2.0 * parameters / n / PCIE,
        _ => 0.0,
    };
    // The inputs of every checkpointed layer go to the host and come back.
    let of_activations = if profile.activation_checkpointing && profile.activation_offload {
        let each = layer_bytes(setup) / f64::from(profile.accelerators_per_replica());
        2.0 * each / PAGEABLE
    } else {
        0.0
    };
    Waiting {
        per_micro_step: of_weights + of_activations,
        per_step,
    }
}

/// Bytes that an accelerator passes around the ring of those that share a sequence: keys and values
/// in the forward pass, and twice that in the backward pass.
fn ring_bytes(setup: Setup<'_>) -> f64 {
    let (model, profile) = (setup.model, setup.profile);
    let context = f64::from(profile.context_parallel_degree.max(1));
    let split = f64::from(profile.accelerators_per_replica()) / context;
    let kv_share = f64::from(model.kv_heads.unwrap_or(model.heads)) / f64::from(model.heads);
    3.0 * 2.0 * kv_share * layer_bytes(setup) / split * (context - 1.0) / context
}

/// The speed law's inputs for a setup.
fn setting(setup: Setup<'_>) -> Setting {
    let Setup {
        model,
        profile,
        precision,
        cluster,
    } = setup;
    let tensor = f64::from(profile.tensor_parallel_degree.max(1));
    let pipeline = f64::from(profile.pipeline_parallel_degree.max(1));
    let context = f64::from(profile.context_parallel_degree.max(1));
    let accumulation = f64::from(profile.gradient_accumulation_steps.max(1));
    let is_lora = model.lora_rank.is_some();
    let n = f64::from(cluster.accelerators());
    let (parameters, trained) = (model.parameters(), model.trainable_parameters());
    let share = trained / parameters;
    // All-gather forward and backward, and reduce-scatter of the trained parameters' gradients;
    // without sharded weights, the all-gather happens once per step.
    let collectives = match profile.zero_stage {
        0 | 1 => 2.0 * share / accumulation,
        2 => share * (1.0 + 1.0 / accumulation),
        // Two gathers, relative to weights of two bytes; packed weights travel as they are kept.
        _ => weight_bytes(profile, Precision::Bf16) + share,
    };
    let is_copied_between = profile.hybrid_shard_degree.is_some_and(|degree| {
        f64::from(degree) * tensor * pipeline <= f64::from(cluster.instance.accelerator_count)
    });
    // Groups inside an instance exchange gradients with each other once per step.
    let collectives_between = if is_copied_between {
        2.0 * share / accumulation
    } else {
        collectives
    };
    let host = waiting_for_host(setup);
    let sharers = profile
        .hybrid_shard_degree
        .map_or(n / (tensor * pipeline), |degree| f64::from(degree.max(1)));
    Setting {
        parameters,
        layer_parameters: model.active_layer_parameters(),
        layers: f64::from(model.layers),
        hidden: f64::from(model.hidden),
        vocabulary: f64::from(model.vocabulary),
        sequence_length: f64::from(model.sequence_length),
        accelerators: n,
        micro_batch: f64::from(profile.micro_batch_per_gpu.max(1)),
        accumulation,
        collectives,
        collectives_between,
        recomputes: profile.recomputes_layers(),
        recomputes_attention: profile.activation_checkpointing
            && profile.recompute == Recompute::Attention,
        is_fp8: precision == Precision::Fp8,
        products: if is_lora { 4.0 } else { 6.0 },
        optimised: trained
            / (tensor * pipeline)
            / if profile.zero_stage == 0 {
                1.0
            } else {
                sharers
            },
        width: width(precision),
        unpacked_bytes: unpacked_bytes(setup),
        split: tensor * pipeline * context,
        tensor,
        pipeline,
        context,
        context_bytes: ring_bytes(setup),
        host_per_micro_step: host.per_micro_step,
        host_per_step: host.per_step,
    }
}

/// Which of the effects a setup has: 1 or 0, in the order of [`super::EFFECT_NAMES`].
fn effects(setup: Setup<'_>) -> [f64; EFFECTS] {
    let profile = setup.profile;
    [
        profile.accelerators_per_replica() > 1,
        setup.cluster.instance.bf16_tflops.is_none(),
        setup.precision == Precision::Fp16,
        setup.model.lora_rank.is_some(),
        profile.activation_offload,
        profile.cpu_offload != CpuOffload::None,
    ]
    .map(|applies| f64::from(u8::from(applies)))
}

/// Uncertainty of 32-bit training, of which no run is known, as a standard deviation in logarithms.
const FP32: f64 = 0.30;

/// Uncertainty of sequences that are split, of which no run is known.
const CONTEXT: f64 = 0.25;

/// Uncertainty of a mixture of experts, of which no run is known: how evenly tokens are spread over
/// experts, and what sending them there costs.
const EXPERTS: f64 = 0.40;

/// Uncertainty of frozen weights of 4 or 8 bits, of which two models on one machine are known.
const PACKED: f64 = 0.15;

/// Scatter of what was not fitted, as a standard deviation in logarithms.
fn unfitted(setup: Setup<'_>) -> f64 {
    let has_effect = effects(setup).iter().any(|effect| *effect > 0.0);
    let of_effects = if has_effect { UNFITTED } else { 0.0 };
    let of_precision = if setup.precision == Precision::Fp32 {
        FP32
    } else {
        0.0
    };
    let of_experts = if setup.model.experts.is_some() {
        EXPERTS
    } else {
        0.0
    };
    let of_context = if setup.profile.context_parallel_degree > 1 {
        CONTEXT
    } else {
        0.0
    };
    let of_packed = if setup.profile.base_weight_bits < 16 {
        PACKED
    } else {
        0.0
    };
    of_precision
        .hypot(of_packed)
        .hypot(of_effects)
        .hypot(of_experts)
        .hypot(of_context)
}

/// A training run on instances of one type, as the law sees it.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The accelerator's name.
    pub kind: &'a str,
    pub hardware: Hardware,
    pub setting: Setting,
    /// Which of the effects it has: 1 or 0.
    pub effects: [f64; EFFECTS],
    /// Standard deviation of what the law does not model in this setting, in logarithms.
    pub extra: f64,
}

impl<'a> Case<'a> {
    /// `None` if the catalog lacks a figure that speed depends on.
    pub fn new(setup: Setup<'a>) -> Option<Self> {
        let instance = setup.cluster.instance;
        Some(Self {
            kind: instance.accelerator.as_deref().unwrap_or_default(),
            hardware: hardware(instance, setup.precision)?,
            setting: setting(setup),
            effects: effects(setup),
            extra: unfitted(setup),
        })
    }
}
