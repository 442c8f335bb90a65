//! How fast a simulated training job runs: the catalog's peak, the model's FLOP per token, and an
//! efficiency that depends on the chosen profile. The figures are plausible, not measured; the
//! product never sees them.

use std::collections::BTreeMap;

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::catalog::model::ModelShape;

use crate::machines::curve::{Curve, Habits};

/// What the simulated training container reads from its hyperparameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Training {
    pub(crate) tokens_per_second: f64,
    pub(crate) tokens_per_step: f64,
    /// The step of the checkpoint that it goes on from; 0 without one.
    pub(crate) first_step: f64,
    pub(crate) steps: f64,
    pub(crate) parameters: f64,
    /// Parameters that are trained: with LoRA, those of the adapters.
    pub(crate) trained: f64,
    /// What is added to the loss.
    pub(crate) loss_offset: f64,
}

impl Training {
    /// The training loss after some tokens, without noise.
    pub(crate) fn loss(&self, tokens: f64) -> f64 {
        1.35 + 14.0 * (tokens / 1e4 + 10.0).powf(-0.25) + self.loss_offset
    }
}

/// A training script: what it trains, and how it gets through it.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// `None` if it only sleeps.
    pub(crate) training: Option<Training>,
    pub(crate) curve: Curve,
}

impl Script {
    /// One that does what the law says, after a slow start.
    pub(crate) fn plain(training: Option<Training>) -> Self {
        Self {
            training,
            curve: Curve::of(&Habits::default(), 0.0),
        }
    }

    /// Seconds at full speed that its training takes.
    pub(crate) fn work_seconds(&self) -> Option<f64> {
        let training = self.training.as_ref()?;
        let steps = (training.steps - training.first_step).max(0.0);
        Some(steps * training.tokens_per_step / training.tokens_per_second)
    }
}

/// Tokens that a vision transformer makes of an image.
const TOKENS_OF_IMAGE: f64 = 197.0;

/// The model that a script trains when its hyperparameters describe no language model: a ViT-B/16
/// (arXiv 2010.11929), whose samples are images.
fn vision() -> ModelShape {
    ModelShape {
        layers: 12,
        hidden: 768,
        heads: 12,
        vocabulary: 1000,
        sequence_length: 1,
        ..ModelShape::default()
    }
}

fn number(hyper: &BTreeMap<String, String>, key: &str) -> Option<u32> {
    unquoted(hyper.get(key)?).parse().ok()
}

fn shape(hyper: &BTreeMap<String, String>) -> Option<ModelShape> {
    let number = |key: &str| number(hyper, key);
    let Some(layers) = number("num_hidden_layers") else {
        return Some(vision());
    };
    Some(ModelShape {
        layers,
        hidden: number("hidden_size")?,
        heads: number("num_attention_heads")?,
        kv_heads: number("num_key_value_heads"),
        intermediate: number("intermediate_size"),
        vocabulary: number("vocab_size")?,
        tied_embeddings: false,
        sequence_length: number("max_seq_length")?,
        lora_rank: number("lora_rank"),
        ..ModelShape::default()
    })
}

/// `None` when the hyperparameters say nothing of batches and steps: such a job only sleeps.
pub(crate) fn training(
    hyper: &BTreeMap<String, String>,
    instance: &InstanceType,
    count: u32,
) -> Option<Training> {
    let number = |key: &str| number(hyper, key);
    let shape = shape(hyper)?;
    let tokens_inside = if shape == vision() {
        TOKENS_OF_IMAGE
    } else {
        1.0
    };
    let micro = f64::from(number("per_device_train_batch_size")?);
    let accumulation = f64::from(number("gradient_accumulation_steps")?);
    let gpus = f64::from(instance.accelerator_count * count);
    let model_parallel = degree(hyper, TENSOR) * degree(hyper, PIPELINE) * degree(hyper, CONTEXT);
    let peak = instance.peak_tflops()? * 1e12;
    let tokens_in_flight = micro * f64::from(shape.sequence_length);
    let efficiency = efficiency(hyper, instance, count, tokens_in_flight * tokens_inside)
        * split(hyper, accumulation);
    let flops = shape.flops_per_token() * tokens_inside;
    Some(Training {
        tokens_per_second: gpus * peak * efficiency / flops,
        tokens_per_step: tokens_in_flight * accumulation * gpus / model_parallel,
        first_step: 0.0,
        steps: f64::from(number("max_steps")?),
        parameters: shape.parameters(),
        trained: shape.trainable_parameters(),
        loss_offset: 0.0,
    })
}

const TENSOR: &str = "tensor_parallel_degree";
const PIPELINE: &str = "pipeline_parallel_degree";
const CONTEXT: &str = "context_parallel_degree";

fn degree(hyper: &BTreeMap<String, String>, key: &str) -> f64 {
    let degree = hyper
        .get(key)
        .and_then(|text| unquoted(text).parse::<u32>().ok());
    f64::from(degree.unwrap_or(1).max(1))
}

/// Share of the speed that is left when a model is split: each doubling of the tensor-parallel
/// degree waits for its all-reduces, and a pipeline is empty at the start and end of each step
/// (GPipe, arXiv 1811.06965).
fn split(hyper: &BTreeMap<String, String>, micro_batches: f64) -> f64 {
    let (tensor, stages) = (degree(hyper, TENSOR), degree(hyper, PIPELINE));
    0.88_f64.powf(tensor.log2()) * micro_batches / (micro_batches + stages - 1.0)
}

/// What a job uses that a code can do well or badly.
pub(crate) fn features(hyper: &BTreeMap<String, String>) -> Vec<&'static str> {
    let is_on = |key: &str, off: &[&str]| {
        hyper
            .get(key)
            .is_some_and(|value| !off.contains(&unquoted(value)))
    };
    let all = [
        ("gradient_checkpointing", &["false"][..]),
        ("cpu_offload", &["none"]),
        ("zero_stage", &["0", "1", "2"]),
        (TENSOR, &["1"]),
        (PIPELINE, &["1"]),
    ];
    all.into_iter()
        .filter(|(key, off)| is_on(key, off))
        .map(|(key, _)| key)
        .collect()
}

/// Share of the peak that the chosen profile reaches.
fn efficiency(
    hyper: &BTreeMap<String, String>,
    instance: &InstanceType,
    count: u32,
    tokens_in_flight: f64,
) -> f64 {
    let flag = |key: &str| hyper.get(key).map_or("", |value| unquoted(value));
    // More tokens per kernel hide launch and communication; recomputation costs a forward pass;
    // offloading waits for PCIe.
    let mut share = base_efficiency(instance) * tokens_in_flight / (tokens_in_flight + 900.0);
    if flag("gradient_checkpointing") == "true" {
        share *= 0.80;
    }
    share *= match flag("cpu_offload") {
        "optimizer" => 0.82,
        "optimizer_and_parameters" => 0.55,
        _ => 1.0,
    };
    if flag("zero_stage") == "3" {
        share *= 0.95;
    }
    if count > 1 {
        share *= 0.90;
    }
    share
}

/// Share of the peak that dense training reaches with large micro-batches.
fn base_efficiency(instance: &InstanceType) -> f64 {
    match instance.family() {
        "p4d" => 0.52,
        "p4de" => 0.54,
        "p5" => 0.46,
        "p5e" | "p5en" => 0.50,
        _ => 0.40,
    }
}

/// The SageMaker SDK JSON-encodes hyperparameters: `"\"2\""` is 2.
fn unquoted(text: &str) -> &str {
    text.trim_matches('"')
}
