//! How fast a simulated training job runs: the catalog's peak, the model's FLOP per token, and an
//! efficiency that depends on the chosen profile. The figures are plausible, not measured; the
//! product never sees them.

use std::collections::BTreeMap;

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::catalog::model::ModelShape;

/// What the simulated training container reads from its hyperparameters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Training {
    pub(crate) tokens_per_second: f64,
    pub(crate) tokens_per_step: f64,
    pub(crate) steps: f64,
    pub(crate) parameters: f64,
}

/// `None` when the hyperparameters do not describe a language model: such a job only sleeps.
pub(crate) fn training(
    hyper: &BTreeMap<String, String>,
    instance: &InstanceType,
    count: u32,
) -> Option<Training> {
    let number = |key: &str| unquoted(hyper.get(key)?).parse::<u32>().ok();
    let shape = ModelShape {
        layers: number("num_hidden_layers")?,
        hidden: number("hidden_size")?,
        heads: number("num_attention_heads")?,
        kv_heads: number("num_key_value_heads"),
        intermediate: number("intermediate_size"),
        vocabulary: number("vocab_size")?,
        tied_embeddings: false,
        sequence_length: number("max_seq_length")?,
        lora_rank: number("lora_rank"),
        ..ModelShape::default()
    };
    let micro = f64::from(number("per_device_train_batch_size")?);
    let accumulation = f64::from(number("gradient_accumulation_steps")?);
    let gpus = f64::from(instance.accelerator_count * count);
    let peak = instance.peak_tflops()? * 1e12;
    let tokens_in_flight = micro * f64::from(shape.sequence_length);
    let efficiency = efficiency(hyper, instance, count, tokens_in_flight);
    Some(Training {
        tokens_per_second: gpus * peak * efficiency / shape.flops_per_token(),
        tokens_per_step: tokens_in_flight * accumulation * gpus,
        steps: f64::from(number("max_steps")?),
        parameters: shape.parameters(),
    })
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
