//! The smallest change that makes a profile fit.

use bakeoff_domain::spec::{CpuOffload, ParallelLibrary, ProfileSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::OFFLOADS;
use crate::predict::fit::{self, Verdict};
use crate::setup::Setup;

/// A change to a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub text: String,
    /// Members of the profile, with their new values.
    pub settings: Map<String, Value>,
}

/// The cheapest change that makes a profile fit; `None` if no setting of the profile can.
pub fn smallest_change(setup: Setup<'_>) -> Option<Change> {
    let profile = setup.profile;
    let per_step = profile
        .micro_batch_per_gpu
        .saturating_mul(profile.gradient_accumulation_steps);
    let micros: Vec<u32> = divisors(per_step)
        .into_iter()
        .rev()
        .filter(|micro| *micro <= profile.micro_batch_per_gpu)
        .take(64)
        .collect();
    let stages = profile.zero_stage..=3;
    let mut tried = Vec::new();
    // Cheapest first: accumulate more, shard more, recompute, and only then offload to the host.
    for offload in OFFLOADS
        .into_iter()
        .filter(|offload| *offload as u8 >= profile.cpu_offload as u8)
    {
        for recomputes in [profile.activation_checkpointing, true] {
            for stage in stages.clone() {
                let is_possible = match offload {
                    CpuOffload::None => true,
                    CpuOffload::Optimizer => stage >= 1,
                    CpuOffload::OptimizerAndParameters => stage == 3,
                };
                let is_as_it_is = stage == profile.zero_stage && offload == profile.cpu_offload;
                let is_possible = is_possible && (is_as_it_is || may_shard(profile, stage));
                if is_possible {
                    tried.extend(micros.iter().map(|micro| ProfileSpec {
                        micro_batch_per_gpu: *micro,
                        gradient_accumulation_steps: per_step / micro,
                        activation_checkpointing: recomputes,
                        zero_stage: stage,
                        cpu_offload: offload,
                        ..profile.clone()
                    }));
                }
            }
        }
    }
    let fits = |wanted: &ProfileSpec| fit::fit(setup.under(wanted)).verdict == Verdict::Fits;
    tried
        .into_iter()
        .find(fits)
        .map(|found| difference(profile, &found))
}

/// Whether a profile may shard with ZeRO up to a stage: its library can, and a pipeline shards no gradients.
fn may_shard(profile: &ProfileSpec, stage: u8) -> bool {
    let is_smp = matches!(
        profile.library,
        ParallelLibrary::SmpV1 | ParallelLibrary::SmpV2
    );
    fit::shares(profile.library) && !is_smp && (profile.pipeline_parallel_degree <= 1 || stage <= 1)
}

/// The divisors of a number, in ascending order.
fn divisors(number: u32) -> Vec<u32> {
    let small: Vec<u32> = (1..=number.isqrt())
        .filter(|divisor| number.is_multiple_of(*divisor))
        .collect();
    let large = small
        .iter()
        .rev()
        .map(|divisor| number / divisor)
        .filter(|large| !small.contains(large));
    small.iter().copied().chain(large).collect()
}

fn difference(from: &ProfileSpec, to: &ProfileSpec) -> Change {
    let mut settings = Map::new();
    let mut words = Vec::new();
    let mut set = |name: &str, value: Value, text: String| {
        settings.insert(name.to_owned(), value);
        words.push(text);
    };
    if from.micro_batch_per_gpu != to.micro_batch_per_gpu {
        let (micro, steps) = (to.micro_batch_per_gpu, to.gradient_accumulation_steps);
        set(
            "micro_batch_per_gpu",
            json!(micro),
            format!("micro_batch_per_gpu {micro}"),
        );
        set(
            "gradient_accumulation_steps",
            json!(steps),
            format!("gradient_accumulation_steps {steps} (the same global batch)"),
        );
    }
    if from.activation_checkpointing != to.activation_checkpointing {
        set(
            "activation_checkpointing",
            json!(true),
            "activation_checkpointing true".to_owned(),
        );
    }
    if from.zero_stage != to.zero_stage {
        set(
            "zero_stage",
            json!(to.zero_stage),
            format!("zero_stage {}", to.zero_stage),
        );
    }
    if from.cpu_offload != to.cpu_offload {
        let value = json!(to.cpu_offload);
        let text = format!("cpu_offload {}", value.as_str().unwrap_or(""));
        set("cpu_offload", value, text);
    }
    Change {
        text: format!("set {}", words.join(", ")),
        settings,
    }
}
