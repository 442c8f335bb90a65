//! Finds how to split a model on an instance type: one accelerator, data parallel, sharded (ZeRO),
//! offloaded, tensor parallel; the micro-batch and accumulation that keep the requested global
//! batch; and the traffic that results. [`crate::predict::fit`] estimates memory and
//! [`crate::predict`] estimates speed; this file searches, and explains the result.

mod smallest_change;

use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::spec::{CpuOffload, ParallelLibrary, Precision, ProfileSpec, runs_on};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub use self::smallest_change::{Change, smallest_change};
use crate::predict::fit::{self, Fit, Verdict};
use crate::predict::{Calibration, Case};
use crate::render::deepspeed;
use crate::setup::Setup;

/// How the work is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    SingleAccelerator,
    /// Every accelerator holds the whole model.
    DataParallel,
    /// ZeRO: optimiser, gradients or weights are sharded.
    Sharded,
    /// ZeRO with states in host memory.
    Offloaded,
    TensorParallel,
    /// Tensor parallel within instances, a pipeline between them.
    PipelineParallel,
}

/// Bytes that one accelerator sends in an optimiser step, by collective operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// `all_reduce`, `all_gather`, `reduce_scatter`.
    pub collective: String,
    /// What it carries.
    pub of: String,
    pub bytes_per_step: f64,
}

/// The recommended way to train on one instance type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub strategy: Strategy,
    /// A profile for this type that keeps the global batch, ready to use.
    pub profile: ProfileSpec,
    /// Its DeepSpeed configuration, if DeepSpeed runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deepspeed_config: Option<Map<String, Value>>,
    pub fit: Fit,
    /// Tokens/s of all accelerators together, predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    pub traffic: Vec<Traffic>,
    /// Reasons for this choice.
    pub reasons: Vec<String>,
}

/// Settings whose speeds differ by less count as equally fast, and the simplest one wins.
const INDIFFERENT: f64 = 0.02;
/// Largest number of sequences per accelerator and micro-step in the search.
const MICRO_BATCH_MAX: u64 = 256;
/// Most accumulation steps that a profile allows.
const ACCUMULATION_MAX: u64 = 65_536;
/// ZeRO stages, simplest first.
const STAGES: [u8; 4] = [0, 1, 2, 3];
const OFFLOADS: [CpuOffload; 3] = [
    CpuOffload::None,
    CpuOffload::Optimizer,
    CpuOffload::OptimizerAndParameters,
];

/// The input to [`advise`].
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub model: &'a ModelShape,
    pub precision: Precision,
    /// Sequences per step, over all accelerators.
    pub global_batch: u64,
    pub cluster: Cluster<'a>,
    /// A profile of the same script, for the formats in which it keeps its numbers; the usual ones where there is none.
    pub script: Option<&'a ProfileSpec>,
    pub calibration: &'a Calibration,
}

impl<'a> Question<'a> {
    fn accelerators(&self) -> u32 {
        self.cluster.accelerators()
    }

    fn under<'b>(&'b self, profile: &'b ProfileSpec) -> Setup<'b>
    where
        'a: 'b,
    {
        Setup {
            model: self.model,
            profile,
            precision: self.precision,
            cluster: self.cluster,
        }
    }

    /// The script's own formats, and nothing split.
    fn unsplit(&self) -> ProfileSpec {
        let plain = ProfileSpec::of_batch(self.global_batch, self.accelerators());
        match self.script {
            Some(script) => plain.with_formats_of(script),
            None => plain,
        }
    }

    fn fit(&self, profile: &ProfileSpec) -> Fit {
        fit::fit(self.under(profile))
    }

    /// Predicted tokens/s of all accelerators.
    fn speed(&self, profile: &ProfileSpec) -> Option<f64> {
        let case = Case::new(self.under(profile))?;
        let [_, expected, _] = self.calibration.tokens_per_second(&case);
        Some(expected)
    }
}

/// A profile that fits, with its speed; 0 if there is no prediction.
struct FittingProfile {
    profile: ProfileSpec,
    fit: Fit,
    speed: f64,
}

/// The degrees to which the model itself is split.
#[derive(Debug, Clone, Copy)]
struct Split {
    /// Accelerators that share every layer.
    tensor: u32,
    /// Stages that the layers are distributed over.
    pipeline: u32,
}

const WHOLE: Split = Split {
    tensor: 1,
    pipeline: 1,
};

/// Finds the best way to run a model on an instance type; `Err` explains why there is none.
pub fn advise(question: Question<'_>) -> Result<Advice, String> {
    let gpus = question.accelerators();
    let instance = question.cluster.instance;
    if instance.accelerator_count == 0 {
        return Err(format!("{} has no accelerator", instance.instance_type));
    }
    if instance.accelerator_memory_gib.is_none() {
        return Err(format!(
            "the accelerator memory of {} is unknown",
            instance.instance_type
        ));
    }
    let mut reasons = Vec::new();
    if question.precision == Precision::Bf16 && instance.bf16_tflops.is_none() {
        reasons.push("these accelerators do not support bf16: train in fp16".to_owned());
    }
    for offload in OFFLOADS {
        if let Some(best) = best(search(&question, offload, WHOLE)) {
            why(&question, &best, offload, &mut reasons);
            return Ok(advice(&question, best, reasons));
        }
        if offload == CpuOffload::None && !question.global_batch.is_multiple_of(u64::from(gpus)) {
            reasons.push(format!(
                "a global batch of {} does not divide evenly over {gpus} accelerators",
                question.global_batch
            ));
        } else {
            reasons.push(match offload {
                CpuOffload::None => "no ZeRO stage fits in accelerator memory alone".to_owned(),
                CpuOffload::Optimizer => "nor with the optimiser in host memory".to_owned(),
                CpuOffload::OptimizerAndParameters => {
                    "nor with the weights in host memory".to_owned()
                }
            });
        }
    }
    match split_up(&question, &mut reasons) {
        Some(best) => Ok(advice(&question, best, reasons)),
        None => Err(format!(
            "{} × {}: {}; use more instances or a type with more memory, or train LoRA adapters",
            question.cluster.count,
            instance.instance_type,
            reasons.join(", ")
        )),
    }
}

/// Tries tensor parallel within an instance first, because its traffic occurs in every layer, and
/// then a pipeline between instances.
fn split_up(question: &Question<'_>, reasons: &mut Vec<String>) -> Option<FittingProfile> {
    let each = question.cluster.instance.accelerator_count;
    let within = (1..=4)
        .map(|power| 1u32 << power)
        .filter(|tensor| *tensor <= each)
        .map(|tensor| Split {
            tensor,
            pipeline: 1,
        });
    let between = (1..=6).map(|power| Split {
        tensor: each,
        pipeline: 1u32 << power,
    });
    for split in within.chain(between) {
        let Split { tensor, pipeline } = split;
        if !question
            .accelerators()
            .is_multiple_of(tensor.saturating_mul(pipeline))
        {
            continue;
        }
        let Some(best) = best(search(question, CpuOffload::None, split)) else {
            continue;
        };
        if tensor > 1 {
            reasons.push(format!(
                "every layer is split over {tensor} accelerators of one instance"
            ));
        }
        if pipeline > 1 {
            reasons.push(format!(
                "the layers form a pipeline of {pipeline} stages across the instances"
            ));
        }
        if best.profile.library == ParallelLibrary::Deepspeed {
            reasons.push(
                "the script must support this (with Megatron-DeepSpeed or similar)".to_owned(),
            );
        }
        return Some(best);
    }
    None
}

/// The ZeRO stages to try, simplest first.
fn stages(offload: CpuOffload, replicas: u64, split: Split) -> impl Iterator<Item = u8> {
    let is_whole = split.tensor * split.pipeline == 1;
    STAGES.into_iter().filter(move |stage| match offload {
        // A single replica has nothing to shard.
        CpuOffload::None if replicas == 1 => *stage == 0,
        CpuOffload::None => is_whole || *stage <= 1,
        CpuOffload::Optimizer => *stage >= 2,
        CpuOffload::OptimizerAndParameters => *stage == 3,
    })
}

/// All profiles that fit under one kind of offload and one split of the model.
fn search(question: &Question<'_>, offload: CpuOffload, split: Split) -> Vec<FittingProfile> {
    let Split { tensor, pipeline } = split;
    let replicas = u64::from(question.accelerators() / (tensor * pipeline));
    if replicas == 0 || !question.global_batch.is_multiple_of(replicas) {
        return Vec::new();
    }
    let each = question.global_batch / replicas;
    let mut all = Vec::new();
    for stage in stages(offload, replicas, split) {
        for recomputes in [false, true] {
            for micro in (1..=each.min(MICRO_BATCH_MAX)).filter(|micro| each.is_multiple_of(*micro))
            {
                // A profile allows no more accumulation steps.
                if each / micro > ACCUMULATION_MAX {
                    continue;
                }
                let count = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
                let profile = ProfileSpec {
                    micro_batch_per_gpu: count(micro),
                    gradient_accumulation_steps: count(each / micro),
                    zero_stage: stage,
                    cpu_offload: offload,
                    activation_checkpointing: recomputes,
                    tensor_parallel_degree: tensor,
                    pipeline_parallel_degree: pipeline,
                    library: library(question, stage, split),
                    ..question.unsplit()
                };
                let fit = question.fit(&profile);
                if fit.verdict != Verdict::Fits {
                    break; // a larger micro-batch needs more
                }
                let speed = question.speed(&profile).unwrap_or_default();
                all.push(FittingProfile {
                    profile,
                    fit,
                    speed,
                });
            }
        }
    }
    all
}

fn library(question: &Question<'_>, stage: u8, split: Split) -> ParallelLibrary {
    let instance = question.cluster.instance;
    let is_whole = split.tensor * split.pipeline == 1;
    // Version 2 of SageMaker's library shards states by itself and has no pipeline.
    let is_smp = split.tensor > 1
        && split.pipeline == 1
        && stage == 0
        && runs_on(ParallelLibrary::SmpV2, instance);
    match stage {
        _ if is_smp => ParallelLibrary::SmpV2,
        0 if is_whole && question.accelerators() == 1 => ParallelLibrary::None,
        0 if is_whole && runs_on(ParallelLibrary::Torchrun, instance) => ParallelLibrary::Torchrun,
        _ => ParallelLibrary::Deepspeed,
    }
}

/// The fastest profile; among equally fast ones, the one that shards and recomputes least.
fn best(found: Vec<FittingProfile>) -> Option<FittingProfile> {
    let fastest = found.iter().map(|one| one.speed).fold(0.0, f64::max);
    let equal = found
        .into_iter()
        .filter(|one| one.speed >= fastest * (1.0 - INDIFFERENT));
    let cost = |one: &FittingProfile| {
        (
            one.profile.zero_stage,
            one.profile.activation_checkpointing,
            one.profile.gradient_accumulation_steps,
        )
    };
    equal.min_by_key(cost)
}

fn why_this_stage(question: &Question<'_>, profile: &ProfileSpec, offload: CpuOffload) -> String {
    match (offload, profile.zero_stage) {
        _ if question.accelerators() == 1 => {
            "one accelerator: nothing to shard and nothing to communicate".to_owned()
        }
        (CpuOffload::None, 0) => {
            "the whole model fits on each accelerator: data parallelism exchanges only gradients"
                .to_owned()
        }
        (CpuOffload::None, stage) => {
            let lower = ProfileSpec {
                zero_stage: stage - 1,
                ..profile.clone()
            };
            let fit = question.fit(&lower);
            if fit.verdict == Verdict::Fits {
                format!(
                    "ZeRO stage {stage} leaves room for a larger micro-batch, and is predicted to be the fastest"
                )
            } else {
                format!(
                    "ZeRO stage {stage} is the lowest that fits here: stage {} needs {}",
                    stage - 1,
                    fit.on_accelerator()
                )
            }
        }
        (_, stage) => {
            format!("ZeRO stage {stage} with states in host memory, which slows every step")
        }
    }
}

fn why(
    question: &Question<'_>,
    best: &FittingProfile,
    offload: CpuOffload,
    reasons: &mut Vec<String>,
) {
    let profile = &best.profile;
    reasons.push(why_this_stage(question, profile, offload));
    let kept = ProfileSpec {
        activation_checkpointing: false,
        ..profile.clone()
    };
    reasons.push(
        match (
            profile.activation_checkpointing,
            question.fit(&kept).verdict,
        ) {
            (false, _) => "activations fit, so nothing is recomputed".to_owned(),
            (true, Verdict::Fits) => {
                "activations are recomputed, and this is still predicted to be the fastest"
                    .to_owned()
            }
            (true, _) => {
                format!(
                    "the activations of micro-batch {} do not fit, so they are recomputed",
                    profile.micro_batch_per_gpu
                )
            }
        },
    );
    reasons.push(format!(
        "micro-batch {} × accumulation {} × {} accelerators keeps the global batch of {}",
        profile.micro_batch_per_gpu,
        profile.gradient_accumulation_steps,
        question.accelerators(),
        question.global_batch
    ));
    if question.cluster.count > 1 && runs_on(ParallelLibrary::Smddp, question.cluster.instance) {
        reasons.push(
            "between instances of this type, SageMaker's data parallel library speeds up AllReduce and AllGather"
                .to_owned(),
        );
    }
}

fn advice(question: &Question<'_>, found: FittingProfile, reasons: Vec<String>) -> Advice {
    let profile = found.profile;
    let strategy = match (&profile, question.accelerators()) {
        (profile, _) if profile.pipeline_parallel_degree > 1 => Strategy::PipelineParallel,
        (profile, _) if profile.tensor_parallel_degree > 1 => Strategy::TensorParallel,
        (profile, _) if profile.cpu_offload != CpuOffload::None => Strategy::Offloaded,
        (_, 1) => Strategy::SingleAccelerator,
        (profile, _) if profile.zero_stage > 0 => Strategy::Sharded,
        _ => Strategy::DataParallel,
    };
    Advice {
        strategy,
        deepspeed_config: (profile.library == ParallelLibrary::Deepspeed)
            .then(|| deepspeed::configuration(&profile, question.precision, question.global_batch)),
        traffic: traffic(question.model, &profile, question.accelerators()),
        tokens_per_second: (found.speed > 0.0).then_some(found.speed),
        fit: found.fit,
        profile,
        reasons,
    }
}

/// What each accelerator sends in one optimiser step (ring algorithms, 16 bit).
pub fn traffic(model: &ModelShape, profile: &ProfileSpec, accelerators: u32) -> Vec<Traffic> {
    let tensor = f64::from(profile.tensor_parallel_degree.max(1));
    let pipeline = f64::from(profile.pipeline_parallel_degree.max(1));
    let n = (f64::from(accelerators) / (tensor * pipeline)).max(1.0);
    let steps = f64::from(profile.gradient_accumulation_steps.max(1));
    let share = (n - 1.0) / n / (tensor * pipeline);
    let weights = 2.0 * model.parameters() * share;
    let gradients = 2.0 * model.trainable_parameters() * share;
    let mut all = Vec::new();
    let mut push = |collective: &str, of: &str, bytes: f64| {
        if bytes > 0.0 {
            all.push(Traffic {
                collective: collective.to_owned(),
                of: of.to_owned(),
                bytes_per_step: bytes.round(),
            });
        }
    };
    match profile.zero_stage {
        0 => push("all_reduce", "gradients", 2.0 * gradients),
        1 => {
            push("reduce_scatter", "gradients", gradients);
            push("all_gather", "weights", gradients);
        }
        2 => {
            push("reduce_scatter", "gradients", gradients * steps);
            push("all_gather", "weights", gradients);
        }
        _ => {
            push(
                "all_gather",
                "weights, forward and backward",
                2.0 * weights * steps,
            );
            push("reduce_scatter", "gradients", gradients * steps);
        }
    }
    let tokens = f64::from(model.sequence_length) * f64::from(profile.micro_batch_per_gpu) * steps;
    let of_layer = 2.0 * tokens * f64::from(model.hidden);
    let reduces = if profile.activation_checkpointing {
        6.0
    } else {
        4.0
    };
    let layers = f64::from(model.layers) / pipeline;
    push(
        "all_reduce",
        "activations, tensor parallel",
        reduces * 2.0 * of_layer * layers * (tensor - 1.0) / tensor,
    );
    push(
        "send_receive",
        "activations, pipeline",
        if pipeline > 1.0 {
            2.0 * of_layer / tensor
        } else {
            0.0
        },
    );
    all
}

#[cfg(test)]
mod tests;
