//! Experiments that tests start.

use serde_json::{Value, json};

/// Two candidates whose trials take about an hour.
pub(crate) fn spec() -> Value {
    json!({
        "name": "test", "stopping_policy": "full", "region": "us-east-1", "budget_usd": 1000, "max_runtime_seconds": 14_400,
        "objective": {"minimize": "cost"},
        "workload": {
            "name": "qwen", "image": "1.dkr.ecr.us-east-1.amazonaws.com/t:1",
            "role_arn": "arn:aws:iam::111122223333:role/train",
            "channels": [{"name": "train", "s3_uri": "s3://tests/train/", "size_gb": 0}], "output_s3_uri": "s3://tests/out",
            "model": {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "intermediate": 18944,
                      "vocabulary": 152_064, "sequence_length": 2048},
            "precision": "bf16", "data_version": "1", "code_version": "1",
            "total_tokens": 3_000_000_000_u64, "trial_tokens": 100_000_000,
            "metrics": [
                {"name": "tps", "regex": "tokens_per_second=([0-9.]+)", "meaning": "tokens_per_second"},
                {"name": "step", "regex": "step=([0-9]+)", "meaning": "step"}]
        },
        "candidates": [
            {"name": "p4de", "instance_type": "ml.p4de.24xlarge", "profile": {
                "micro_batch_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_stage": 2, "activation_checkpointing": true}},
            {"name": "p5", "instance_type": "ml.p5.48xlarge", "profile": {
                "micro_batch_per_gpu": 8, "gradient_accumulation_steps": 1, "zero_stage": 2, "activation_checkpointing": true}}]
    })
}

/// One candidate, on p5.
pub(crate) fn on_p5(repeats: u32) -> Value {
    let mut spec = spec();
    spec["candidates"]
        .as_array_mut()
        .expect("candidates")
        .remove(0);
    spec["candidates"][0]["repeats"] = json!(repeats);
    spec["budget_usd"] = json!(100_000);
    spec
}

/// LoRA on g5, on demand and spot.
pub(crate) fn spot_spec() -> Value {
    let mut spec = spec();
    spec["max_runtime_seconds"] = json!(72_000);
    spec["max_wait_seconds"] = json!(144_000);
    spec["checkpoint"] = json!({"s3_uri": "s3://tests/checkpoints"});
    spec["workload"]["model"]["lora_rank"] = json!(16);
    spec["workload"]["trial_tokens"] = json!(40_000_000);
    spec["candidates"] = json!([{"name": "g5", "instance_type": "ml.g5.12xlarge", "purchase_options": ["on_demand", "spot"],
        "profile": {"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 16, "zero_stage": 2, "activation_checkpointing": true}}]);
    spec
}
