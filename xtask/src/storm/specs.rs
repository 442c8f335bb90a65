//! What a seed submits: experiments that share pools, run on spot, fight for a budget, race, and would run for hours.

use serde_json::{Value, json};

use super::plan::Plan;
use super::stage::KEEP_ALIVE_SECONDS;

/// Experiments that the service has accepted.
pub(super) struct Accepted {
    pub(super) id: String,
    pub(super) name: &'static str,
    pub(super) budget_usd: f64,
}

/// An experiment to submit.
pub(super) struct Pending {
    pub(super) name: &'static str,
    pub(super) spec: Value,
    /// Its budget, as a share of the worst cases of all its trials.
    pub(super) budget_share: f64,
}

pub(super) const POOLED: &str = "pooled";
const SPOT: &str = "spot";
pub(super) const TIGHT: &str = "tight";
/// Three types by cost, one after the other: those that do not come first are stopped once they are
/// measured, or not started, and their pools let go.
pub(super) const RACE: &str = "race";
/// Its job would train for ten hours.
pub(super) const LONG: &str = "long";
const LONG_TOKENS_OF_WEEKS: u64 = 150_000_000_000;
const LONG_SECONDS_OF_WEEKS: u32 = 20 * 24 * 3600;
pub(super) const LONG_TYPE: &str = "ml.p5.48xlarge";
/// What an hour of this type costs after the price change, millionths of a dollar.
pub(super) const LONG_TYPE_MICRO_USD: i64 = 70_000_000;

/// The same experiments lasting hours, without pools, which would last only a moment here. The long
/// one would run for weeks, which are minutes here.
fn quiet_specs() -> Vec<Pending> {
    let mut all = specs();
    for Pending { spec, .. } in all.iter_mut().filter(|one| one.name == LONG) {
        spec["workload"]["total_tokens"] = json!(LONG_TOKENS_OF_WEEKS);
        spec["workload"]["trial_tokens"] = json!(LONG_TOKENS_OF_WEEKS);
        spec["max_runtime_seconds"] = json!(LONG_SECONDS_OF_WEEKS);
    }
    for Pending { name, spec, .. } in all.iter_mut().filter(|one| one.name != LONG) {
        spec["workload"]["trial_tokens"] = json!(240_000_000);
        spec["max_runtime_seconds"] = json!(36_000);
        if *name == POOLED {
            with_volumes(spec);
        }
        if *name == SPOT {
            spec["max_wait_seconds"] = json!(72_000);
        }
        if let Some(fields) = spec.as_object_mut() {
            fields.remove("keep_alive_seconds");
        }
    }
    all
}

/// A small model on a type whose volumes are billed, by months of different lengths; the other
/// types have local disks.
fn with_volumes(spec: &mut Value) {
    spec["workload"]["model"] = json!({"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "intermediate": 3072,
                                       "vocabulary": 50_304, "sequence_length": 1024});
    spec["workload"]["precision"] = json!("fp16");
    spec["workload"]["trial_tokens"] = json!(2_400_000_000_u64);
    spec["candidates"][0]["instance_type"] = json!("ml.p3.8xlarge");
    spec["candidates"][0]["profile"] = json!({"micro_batch_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_stage": 0,
                                              "activation_checkpointing": true, "volume_size_gb": 2000});
}

/// Fewer and smaller experiments, for a pace at which a minute takes three seconds.
fn short_specs() -> Vec<Pending> {
    let mut all = specs();
    all.retain(|one| one.name != SPOT && one.name != RACE);
    for Pending { name, spec, .. } in all.iter_mut().filter(|one| one.name != LONG) {
        spec["workload"]["trial_tokens"] = json!(4_000_000);
        if *name == TIGHT {
            spec["candidates"][0]["repeats"] = json!(2);
        }
    }
    all
}

/// What all of them train.
pub(super) fn workload() -> Value {
    json!({
        "name": "storm", "image": "1.dkr.ecr.us-east-1.amazonaws.com/t:1",
        "role_arn": "arn:aws:iam::111122223333:role/train",
        "channels": [{"name": "train", "s3_uri": "s3://storm/train/", "size_gb": 0}], "output_s3_uri": "s3://storm/out",
        "model": {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "intermediate": 18944,
                  "vocabulary": 152_064, "sequence_length": 2048},
        "precision": "bf16", "data_version": "1", "code_version": "1",
        "total_tokens": 3_000_000_000_u64, "trial_tokens": 24_000_000,
        "metrics": [{"name": "tps", "regex": "tokens_per_second=([0-9.]+)", "meaning": "tokens_per_second"}],
    })
}

/// How each type trains it.
pub(super) fn profile() -> Value {
    json!({"micro_batch_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_stage": 2, "activation_checkpointing": true})
}

/// Repeats that can share a warm pool, spot with checkpoints, more eager trials than a small budget
/// can hold at once, one that runs until it is cancelled, and a race.
fn specs() -> Vec<Pending> {
    let workload = workload();
    let profile = profile();
    let spec = |name: &'static str, budget_share: f64, candidates: Value| Pending {
        name,
        budget_share,
        spec: json!({
            // More than anything costs, until the plan says how much that is.
            "name": name, "region": "us-east-1", "budget_usd": 1_000_000, "max_runtime_seconds": 5400,
            "objective": {"minimize": "cost"}, "workload": workload, "candidates": candidates,
        }),
    };
    let candidate = |name: &str, kind: &str, repeats: u32| json!({"name": name, "instance_type": kind, "profile": profile, "repeats": repeats});
    let mut pooled = spec(
        POOLED,
        1.2,
        json!([candidate("p4de", "ml.p4de.24xlarge", 3)]),
    );
    pooled.spec["keep_alive_seconds"] = json!(KEEP_ALIVE_SECONDS);
    let mut spot = spec(SPOT, 0.7, json!([candidate("p5", "ml.p5.48xlarge", 2)]));
    spot.spec["candidates"][0]["purchase_options"] = json!(["on_demand", "spot"]);
    spot.spec["max_wait_seconds"] = json!(10_800);
    spot.spec["stopping_policy"] = json!("full");
    spot.spec["checkpoint"] = json!({"s3_uri": "s3://storm/checkpoints"});
    // 1.6 of three worst cases: one trial at a time fits, whichever comes first.
    let tight = spec(
        TIGHT,
        1.6 / 3.0,
        json!([candidate("p4de", "ml.p4de.24xlarge", 3)]),
    );
    let mut long = spec(LONG, 1.2, json!([candidate("p5", LONG_TYPE, 1)]));
    long.spec["workload"]["trial_tokens"] = json!(1_500_000_000_u64);
    long.spec["max_runtime_seconds"] = json!(43_200);
    let raced = ["p4d.24", "p4de.24", "p5.48"];
    let raced = raced.map(|kind| candidate(kind, &format!("ml.{kind}xlarge"), 1));
    let mut race = spec(RACE, 1.2, json!(raced));
    race.spec["stopping_policy"] = json!("race");
    // A long run is worth more figures.
    race.spec["workload"]["total_tokens"] = json!(300_000_000_000_u64);
    race.spec["workload"]["trial_tokens"] = json!(120_000_000);
    race.spec["max_runtime_seconds"] = json!(10_800);
    race.spec["keep_alive_seconds"] = json!(KEEP_ALIVE_SECONDS);
    vec![pooled, spot, tight, long, race]
}

/// What a seed submits.
pub(super) fn pending(plan: &Plan) -> Vec<Pending> {
    let mut all = match plan.twin {
        _ if plan.is_quiet => quiet_specs(),
        Some(_) => short_specs(),
        None => specs(),
    };
    // Its full run is twice its trial.
    for Pending { spec, .. } in all.iter_mut().filter(|one| one.name == POOLED) {
        let trial = spec["workload"]["trial_tokens"].as_u64().unwrap_or(0);
        spec["workload"]["total_tokens"] = json!(2 * trial);
    }
    all
}
