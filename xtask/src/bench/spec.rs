//! The experiment used for measurements.

use serde_json::{Value, json};

/// Ten series per job: five of its host, five of its script. A race would hold most of them back.
pub(super) fn spec(number: u32, trials: u32, tokens: u64, runtime_seconds: u32) -> Value {
    let metric = |name: &str, key: &str, meaning: &str| json!({"name": name, "regex": format!("{key}=([0-9.e+-]+)"), "meaning": meaning});
    let candidates: Vec<Value> = (0..trials.div_ceil(20))
        .map(|candidate| {
            json!({
                "name": format!("candidate-{candidate}"), "instance_type": "ml.p4de.24xlarge",
                "repeats": 20.min(trials - candidate * 20),
                "profile": {"micro_batch_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_stage": 2,
                            "activation_checkpointing": true},
            })
        })
        .collect();
    json!({
        "name": format!("bench-{number}"), "region": "us-east-1", "budget_usd": 100_000_000,
        "max_runtime_seconds": runtime_seconds, "objective": {"minimize": "cost"}, "stopping_policy": "full",
        "candidates": candidates,
        "workload": {
            "name": "bench", "image": "1.dkr.ecr.us-east-1.amazonaws.com/t:1",
            "role_arn": "arn:aws:iam::111122223333:role/train",
            "channels": [{"name": "train", "s3_uri": "s3://bench/train/", "size_gb": 0}], "output_s3_uri": "s3://bench/out",
            "model": {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "intermediate": 18944,
                      "vocabulary": 152_064, "sequence_length": 2048},
            "precision": "bf16", "data_version": "1", "code_version": "1",
            "total_tokens": 10_000_000_000_u64.max(tokens), "trial_tokens": tokens,
            "metrics": [
                metric("tps", "tokens_per_second", "tokens_per_second"), metric("step", "step", "step"),
                metric("loss", "loss", "train_loss"), metric("lr", "learning_rate", "other"),
                metric("norm", "grad_norm", "other"),
            ],
        },
    })
}
