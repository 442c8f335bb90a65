//! DeepSpeed: the configuration that follows from a profile, and DeepSpeed's own memory estimates
//! for model states, as in its published functions. Our own estimate of the total memory, checked
//! against measured runs, is in [`crate::predict::fit`].

use bakeoff_domain::spec::{CpuOffload, Precision, ProfileSpec};
use serde_json::{Map, Value, json};

use crate::render::sdk::merge;

/// Results of DeepSpeed's estimators, in bytes: for the host (all its GPUs) and for one GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub host_bytes: f64,
    pub gpu_bytes: f64,
}

/// `estimate_zero2_model_states_mem_needs` (deepspeed 0.15.4, runtime/zero/stage_1_and_2.py) for
/// `parameters` on `nodes` of `gpus_per_node`. The host's share is multiplied by `buffer_factor`,
/// 1.5 by default.
pub fn zero2(
    parameters: f64,
    gpus_per_node: f64,
    nodes: f64,
    offload: bool,
    buffer_factor: f64,
) -> Estimate {
    let gpus = gpus_per_node * nodes;
    let (host, gpu) = if offload {
        (
            parameters * (4.0 * gpus).max(16.0) * buffer_factor,
            2.0 * parameters,
        )
    } else {
        (
            parameters * 4.0 * gpus_per_node * buffer_factor,
            2.0 * parameters + (18.0 * parameters / gpus).trunc(),
        )
    };
    Estimate {
        host_bytes: host.trunc(),
        gpu_bytes: gpu.trunc(),
    }
}

/// The instances as DeepSpeed counts them.
#[derive(Debug, Clone, Copy)]
pub struct Hosts {
    pub gpus_per_node: f64,
    pub nodes: f64,
}

/// `estimate_zero3_model_states_mem_needs` (deepspeed 0.15.4, runtime/zero/stage3.py).
/// `largest_layer` is a number of parameters. `zero_init`: the weights are created in shards, never
/// whole on one host.
pub fn zero3(
    parameters: f64,
    largest_layer: f64,
    hosts: Hosts,
    offload: CpuOffload,
    zero_init: bool,
    buffer_factor: f64,
) -> Estimate {
    let Hosts {
        gpus_per_node,
        nodes,
    } = hosts;
    let share = 1.0 / nodes;
    let gpus = gpus_per_node * nodes;
    let largest = 4.0 * largest_layer;
    let on_host = |bytes: f64| {
        let spread = if zero_init {
            bytes * share
        } else {
            (4.0 * gpus_per_node).max(bytes * share)
        };
        parameters * spread * buffer_factor
    };
    let (host, gpu) = match offload {
        CpuOffload::OptimizerAndParameters => (on_host(18.0), largest),
        CpuOffload::Optimizer => (on_host(16.0), largest + (2.0 * parameters / gpus).trunc()),
        CpuOffload::None => {
            let made_on_host = if zero_init { largest_layer } else { parameters };
            (
                made_on_host * 4.0 * gpus_per_node * buffer_factor,
                largest + (18.0 * parameters / gpus).trunc(),
            )
        }
    };
    Estimate {
        host_bytes: host.trunc(),
        gpu_bytes: gpu.trunc(),
    }
}

/// The configuration of `deepspeed` for a profile, with the user's own settings merged in.
pub fn configuration(
    profile: &ProfileSpec,
    precision: Precision,
    global_batch: u64,
) -> Map<String, Value> {
    let mut zero = Map::new();
    zero.insert("stage".into(), json!(profile.zero_stage));
    if profile.zero_stage > 0 {
        zero.insert("overlap_comm".into(), json!(true));
        zero.insert("contiguous_gradients".into(), json!(true));
    }
    if profile.zero_stage == 3 {
        zero.insert(
            "stage3_gather_16bit_weights_on_model_save".into(),
            json!(true),
        );
    }
    let host = json!({"device": "cpu", "pin_memory": true});
    if profile.cpu_offload != CpuOffload::None {
        zero.insert("offload_optimizer".into(), host.clone());
    }
    if profile.cpu_offload == CpuOffload::OptimizerAndParameters {
        zero.insert("offload_param".into(), host);
    }
    let mut all = Map::new();
    all.insert("train_batch_size".into(), json!(global_batch));
    all.insert(
        "train_micro_batch_size_per_gpu".into(),
        json!(profile.micro_batch_per_gpu),
    );
    all.insert(
        "gradient_accumulation_steps".into(),
        json!(profile.gradient_accumulation_steps),
    );
    all.insert("zero_optimization".into(), Value::Object(zero));
    match precision {
        Precision::Bf16 | Precision::Fp8 => all.insert("bf16".into(), json!({"enabled": true})),
        Precision::Fp16 => all.insert(
            "fp16".into(),
            json!({"enabled": true, "initial_scale_power": 16}),
        ),
        Precision::Fp32 => None,
    };
    if profile.activation_checkpointing && profile.activation_offload {
        let checkpoints = json!({"partition_activations": true, "cpu_checkpointing": true});
        all.insert("activation_checkpointing".into(), checkpoints);
    }
    merge(&mut all, &without_auto(&profile.deepspeed));
    all
}

/// Settings that follow from profile and workload.
pub(crate) const DERIVED: [&str; 5] = [
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "bf16",
    "fp16",
];

/// Whether DeepSpeed's caller is to fill a value in, as Hugging Face's Trainer and accelerate do.
pub(crate) fn is_auto(value: &Value) -> bool {
    value.get("enabled").unwrap_or(value).as_str() == Some("auto")
}

/// The settings without those that say that they are to be derived.
fn without_auto(settings: &Map<String, Value>) -> Map<String, Value> {
    let mut own = settings.clone();
    own.retain(|key, value| !(DERIVED.contains(&key.as_str()) && is_auto(value)));
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> f64 {
        text.parse().unwrap_or(0.0)
    }

    /// 200 points computed by DeepSpeed's own functions; the head of the file explains how.
    #[test]
    fn deepspeeds_own_estimates_are_reproduced() {
        let grid = include_str!("../../data/deepspeed_estimator_grid.csv");
        let mut rows = 0;
        for line in grid.lines().filter(|line| line.starts_with(['2', '3'])) {
            let cells: Vec<&str> = line.split(',').collect();
            let [
                stage,
                total,
                largest,
                gpus,
                nodes,
                offload,
                zero_init,
                factor,
                cpu,
                gpu,
            ] = cells.as_slice()
            else {
                panic!("{line}")
            };
            let (total, nodes, gpus, factor) =
                (number(total), number(nodes), number(gpus), number(factor));
            let offload = match *offload {
                "none" => CpuOffload::None,
                "optimizer" => CpuOffload::Optimizer,
                _ => CpuOffload::OptimizerAndParameters,
            };
            let found = if *stage == "2" {
                zero2(total, gpus, nodes, offload != CpuOffload::None, factor)
            } else {
                let is_init = zero_init.eq_ignore_ascii_case("true");
                zero3(
                    total,
                    number(largest),
                    Hosts {
                        gpus_per_node: gpus,
                        nodes,
                    },
                    offload,
                    is_init,
                    factor,
                )
            };
            assert_eq!(
                (found.host_bytes, found.gpu_bytes),
                (number(cpu), number(gpu)),
                "{line}"
            );
            rows += 1;
        }
        assert_eq!(rows, 200);
    }

    /// As in the file that Hugging Face's documentation starts from.
    #[test]
    fn auto_means_what_the_profile_says() {
        let profile: ProfileSpec = serde_json::from_value(json!({
            "micro_batch_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_stage": 3,
            "deepspeed": {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
                "fp16": {"enabled": "auto"}, "zero_optimization": {"reduce_bucket_size": "auto"}}
        }))
        .unwrap();
        let made = Value::Object(configuration(&profile, Precision::Bf16, 64));
        assert_eq!(
            (
                &made["train_batch_size"],
                &made["train_micro_batch_size_per_gpu"]
            ),
            (&json!(64), &json!(2))
        );
        assert_eq!(
            (&made["bf16"]["enabled"], made.get("fp16")),
            (&json!(true), None)
        );
        assert_eq!(
            made["zero_optimization"]["reduce_bucket_size"],
            json!("auto")
        );
    }

    #[test]
    fn the_users_own_settings_win() {
        let profile: ProfileSpec = serde_json::from_value(json!({
            "micro_batch_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_stage": 3, "cpu_offload": "optimizer",
            "deepspeed": {"zero_optimization": {"overlap_comm": false}, "gradient_clipping": 1.0}
        }))
        .unwrap();
        let made = Value::Object(configuration(&profile, Precision::Bf16, 64));
        assert_eq!(made["zero_optimization"]["overlap_comm"], json!(false));
        assert_eq!(
            made["zero_optimization"]["offload_optimizer"]["device"],
            json!("cpu")
        );
        assert_eq!(
            (&made["gradient_clipping"], &made["train_batch_size"]),
            (&json!(1.0), &json!(64))
        );
    }
}
