//! Random workloads × six instance types, as experiments: what a seed draws is always the same.

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// A decoder, by its public configuration.
struct Model {
    name: &'static str,
    layers: u32,
    hidden: u32,
    heads: u32,
    kv_heads: u32,
    intermediate: u32,
    vocabulary: u32,
    billions: f64,
}

const fn model(name: &'static str, billions: f64, shape: [u32; 6]) -> Model {
    let [layers, hidden, heads, kv_heads, intermediate, vocabulary] = shape;
    Model {
        name,
        layers,
        hidden,
        heads,
        kv_heads,
        intermediate,
        vocabulary,
        billions,
    }
}

const MODELS: [Model; 6] = [
    model("qwen2.5-0.5b", 0.49, [24, 896, 14, 2, 4864, 151_936]),
    model("llama3.2-1b", 1.24, [16, 2048, 32, 8, 8192, 128_256]),
    model("qwen2.5-1.5b", 1.54, [28, 1536, 12, 2, 8960, 151_936]),
    model("llama3.2-3b", 3.21, [28, 3072, 24, 8, 8192, 128_256]),
    model("qwen2.5-7b", 7.62, [28, 3584, 28, 4, 18_944, 152_064]),
    model("llama3.1-8b", 8.03, [32, 4096, 32, 8, 14_336, 128_256]),
];

/// An instance type with eight accelerators, and the GiB of each.
struct Kind {
    name: &'static str,
    memory_gib: f64,
}

const fn kind(name: &'static str, memory_gib: f64) -> Kind {
    Kind { name, memory_gib }
}

const KINDS: [Kind; 7] = [
    kind("g5.48xlarge", 22.0),
    kind("g6.48xlarge", 22.0),
    kind("p4d.24xlarge", 40.0),
    kind("p4de.24xlarge", 80.0),
    kind("p5.48xlarge", 80.0),
    kind("p5e.48xlarge", 141.0),
    kind("p5en.48xlarge", 141.0),
];
/// The type whose hours the lengths of runs are drawn in.
const YARDSTICK_TFLOPS: f64 = 125.0;
const GPUS: f64 = 8.0;
pub(super) const TYPES: usize = 6;

fn objective(dice: &mut StdRng, full_hours: f64) -> Value {
    let minimized = ["cost", "cost", "time", "usd_per_million_tokens"];
    let mut objective = json!({ "minimize": minimized.choose(dice).unwrap_or(&"cost") });
    if dice.random_bool(0.2) {
        objective["full_run_deadline_hours"] =
            json!((full_hours * dice.random_range(0.8..2.0)).ceil());
    }
    objective
}

/// A trial reserves what its whole runtime may cost. One budget in eight is tight.
fn budget_usd(dice: &mut StdRng, runtime_hours: f64) -> f64 {
    let per_hour = if dice.random_bool(0.125) {
        dice.random_range(30.0..100.0)
    } else {
        dice.random_range(150.0..450.0)
    };
    f64::round(runtime_hours * per_hour)
}

/// The experiment of one workload.
pub(super) fn experiment(seed: u64, number: u32) -> Value {
    let mut dice = StdRng::seed_from_u64(seed ^ (u64::from(number) << 20));
    let model = MODELS.choose(&mut dice).unwrap_or(&MODELS[0]);
    let sequence = *[1024_u32, 2048, 4096].choose(&mut dice).unwrap_or(&2048);
    let lora = dice.random_bool(0.3);
    let global_batch = *[64_u32, 128].choose(&mut dice).unwrap_or(&64);
    let flops_per_token = model.billions * 1e9 * if lora { 4.0 } else { 6.0 };
    let tokens_per_second = GPUS * YARDSTICK_TFLOPS * 1e12 / flops_per_token;
    // Long enough for a figure on the fastest type, as the linter asks: a race stops it before its end.
    let trial_hours = 2.0 * 2_f64.powf(dice.random_range(0.0..1.0));
    let full_hours = 20.0 * 10_f64.powf(dice.random_range(0.0..1.0));
    let mut kinds: Vec<&Kind> = KINDS.iter().collect();
    kinds.shuffle(&mut dice);
    let candidates: Vec<Value> = kinds
        .into_iter()
        .take(TYPES)
        .map(|kind| candidate(kind, model, sequence, lora, global_batch))
        .collect();
    let mut shape = json!({
        "layers": model.layers, "hidden": model.hidden, "heads": model.heads, "kv_heads": model.kv_heads,
        "intermediate": model.intermediate, "vocabulary": model.vocabulary, "sequence_length": sequence,
    });
    if lora {
        shape["lora_rank"] = json!(16);
    }
    let objective = objective(&mut dice, full_hours);
    // The slowest type takes several times as long as the yardstick.
    let runtime_hours = trial_hours * 8.0;
    let budget_usd = budget_usd(&mut dice, runtime_hours);
    let mut spec = json!({
        "name": format!("workload-{number}"),
        "region": "us-east-1",
        "budget_usd": budget_usd,
        "max_runtime_seconds": whole(runtime_hours * 3600.0),
        "objective": objective,
        "workload": {
            "name": format!("{}-{number}", model.name),
            "image": format!("111122223333.dkr.ecr.us-east-1.amazonaws.com/code-{number}:1.0"),
            "role_arn": "arn:aws:iam::111122223333:role/bakeoff-training-execution",
            "channels": [{ "name": "training", "s3_uri": "s3://bakeoff-example/hebrew/train/", "size_gb": 5 }],
            "output_s3_uri": "s3://bakeoff-example/decisions/models/",
            "model": shape,
            "precision": "bf16",
            "data_version": "1",
            "code_version": "1.0",
            "total_tokens": whole(full_hours * 3600.0 * tokens_per_second),
            "trial_tokens": whole(trial_hours * 3600.0 * tokens_per_second),
            "hyperparameters": { "eval_steps": dice.random_range(50..300).to_string(), "seed": number.to_string() },
            "metrics": [
                { "name": "train:tokens_per_second", "regex": "tokens_per_second=([0-9.]+)", "meaning": "tokens_per_second" },
                { "name": "train:loss", "regex": "(?:^|\\s)loss=([0-9.]+)", "meaning": "train_loss" },
                { "name": "train:step", "regex": "step=([0-9]+)", "meaning": "step" },
            ],
        },
        "candidates": candidates,
    });
    if dice.random_bool(0.5) {
        spec["checkpoint"] = json!({ "s3_uri": "s3://bakeoff-example/decisions/checkpoints/" });
    }
    spec
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive count"
)]
fn whole(count: f64) -> u64 {
    count.round() as u64
}

/// A profile that should fit: the micro-batch by the memory that is left for activations, and the
/// optimizer moved to the host where its states are too large.
fn candidate(kind: &Kind, model: &Model, sequence: u32, lora: bool, global_batch: u32) -> Value {
    let states_gib =
        if lora { 2.4 } else { 16.0 } * model.billions * 1e9 / GPUS / f64::from(1 << 30);
    // Sharded states; 16-bit weights and gradients remain where the optimizer is offloaded.
    let (offload, held) = if states_gib < 0.4 * kind.memory_gib {
        ("none", states_gib)
    } else {
        ("optimizer", states_gib / 4.0)
    };
    let room = 0.75 * kind.memory_gib - held - 2.0;
    let sample = f64::from(sequence)
        * (f64::from(model.hidden) * f64::from(model.layers) * 2.5
            + f64::from(model.vocabulary) * 10.0
            + f64::from(model.intermediate) * 12.0)
        / f64::from(1 << 30);
    let per_gpu = global_batch / 8;
    let micro = [8_u32, 4, 2]
        .into_iter()
        .find(|micro| f64::from(*micro) * sample < room && *micro <= per_gpu)
        .unwrap_or(1);
    json!({
        "name": kind.name,
        "instance_type": format!("ml.{}", kind.name),
        "profile": {
            "micro_batch_per_gpu": micro,
            "gradient_accumulation_steps": per_gpu / micro,
            "zero_stage": 3,
            "cpu_offload": offload,
            "activation_checkpointing": true,
        },
    })
}
