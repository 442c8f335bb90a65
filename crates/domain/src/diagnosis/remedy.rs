//! Changes of a profile that answer a failure, where a machine can make them. They keep the global batch,
//! so that what is trained stays the same.

use serde_json::json;

use crate::catalog::InstanceType;
use crate::diagnosis::signatures::RemedyKind;
use crate::finding::Operation;
use crate::spec::{CpuOffload, ProfileSpec};

/// A change as a patch of the profile, and in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Remedy {
    pub(super) patch: Vec<Operation>,
    pub(super) change: Option<String>,
}

impl Remedy {
    fn new(change: &str, patch: Vec<Operation>) -> Self {
        Self {
            patch,
            change: Some(change.to_owned()),
        }
    }

    /// `None` where nothing is left to change, or only a person can.
    pub(super) fn of(
        kind: RemedyKind,
        profile: &ProfileSpec,
        instance: Option<&InstanceType>,
    ) -> Option<Self> {
        match kind {
            RemedyKind::LessAcceleratorMemory => less_accelerator_memory(profile, instance),
            RemedyKind::LessHostMemory => less_host_memory(profile),
            RemedyKind::LargerVolume => larger_volume(profile, instance),
            RemedyKind::FewerWorkers => profile
                .hyperparameters
                .get("dataloader_num_workers")
                .and_then(|workers| workers.parse::<u32>().ok())
                .filter(|workers| *workers > 0)
                .map(fewer_workers),
            RemedyKind::NcclDebug => variable(profile, "NCCL_DEBUG", "INFO"),
            RemedyKind::Efa => instance
                .filter(|instance| instance.has_efa() && !instance.needs_efa_variables())
                .and_then(|_| variable(profile, "FI_PROVIDER", "efa")),
        }
    }
}

/// First a smaller micro-batch, then recomputation, then more sharding, then offload: each costs more
/// speed than the one before.
fn less_accelerator_memory(
    profile: &ProfileSpec,
    instance: Option<&InstanceType>,
) -> Option<Remedy> {
    let micro = profile.micro_batch_per_gpu;
    let steps = profile.gradient_accumulation_steps;
    let whole = u64::from(micro) * u64::from(steps);
    let smaller = (1..=micro / 2)
        .rev()
        .find(|smaller| whole.is_multiple_of(u64::from(*smaller)));
    if let Some(smaller) = smaller {
        let more = whole / u64::from(smaller);
        return Some(Remedy::new(
            &format!(
                "Lower the micro-batch from {micro} to {smaller} and raise the accumulation from {steps} to {more}: the \
                 global batch stays the same"
            ),
            vec![
                Operation::set("/micro_batch_per_gpu", smaller),
                Operation::set("/gradient_accumulation_steps", more),
            ],
        ));
    }
    if !profile.activation_checkpointing {
        return Some(Remedy::new(
            "Recompute activations (activation_checkpointing)",
            vec![Operation::set("/activation_checkpointing", true)],
        ));
    }
    let may_shard = profile.pipeline_parallel_degree == 1
        && instance.is_none_or(|instance| instance.accelerator_count > 1);
    if profile.zero_stage < 3 && may_shard {
        return Some(Remedy::new(
            &format!(
                "Shard weights, gradients and optimiser states (zero_stage {} to 3)",
                profile.zero_stage
            ),
            vec![Operation::set("/zero_stage", 3)],
        ));
    }
    (profile.cpu_offload == CpuOffload::None && profile.zero_stage >= 2).then(|| {
        Remedy::new(
            "Keep the optimiser's states in host memory (cpu_offload)",
            vec![Operation::set("/cpu_offload", "optimizer")],
        )
    })
}

fn less_host_memory(profile: &ProfileSpec) -> Option<Remedy> {
    let less = match profile.cpu_offload {
        CpuOffload::OptimizerAndParameters => "optimizer",
        CpuOffload::Optimizer => "none",
        CpuOffload::None => return None,
    };
    Some(Remedy::new(
        &format!("Offload less to host memory (cpu_offload: {less})"),
        vec![Operation::set("/cpu_offload", less)],
    ))
}

fn larger_volume(profile: &ProfileSpec, instance: Option<&InstanceType>) -> Option<Remedy> {
    if let Some(instance) = instance.filter(|instance| instance.nvme_gb > 0) {
        return Some(Remedy::new(
            &format!(
                "Keep fewer files on the disk, or use a type with more local NVMe: {} ignores the volume's size",
                instance.instance_type
            ),
            Vec::new(),
        ));
    }
    let now = profile.volume_size_gb?;
    let larger = now.saturating_mul(2).min(VOLUME_GB_MAX);
    (larger > now).then(|| {
        Remedy::new(
            &format!("Raise the volume from {now} to {larger} GB"),
            vec![Operation::set("/volume_size_gb", larger)],
        )
    })
}

/// ResourceConfig, VolumeSizeInGB.
const VOLUME_GB_MAX: u32 = 16_384;

fn fewer_workers(workers: u32) -> Remedy {
    let fewer = workers / 2;
    Remedy::new(
        &format!("Use {fewer} data-loader workers instead of {workers}"),
        vec![Operation::set(
            "/hyperparameters/dataloader_num_workers",
            json!(fewer.to_string()),
        )],
    )
}

/// Sets an environment variable that is not set.
fn variable(profile: &ProfileSpec, name: &str, value: &str) -> Option<Remedy> {
    let is_set = profile.environment.contains_key(name);
    (!is_set).then(|| {
        Remedy::new(
            &format!("Set {name}={value} in the job's environment"),
            vec![Operation::set(&format!("/environment/{name}"), value)],
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patched(profile: &ProfileSpec, remedy: &Remedy) -> ProfileSpec {
        let mut document = serde_json::to_value(profile).unwrap();
        let patch = serde_json::to_value(&remedy.patch).unwrap();
        json_patch::patch(
            &mut document,
            &serde_json::from_value::<json_patch::Patch>(patch).unwrap(),
        )
        .unwrap();
        serde_json::from_value(document).unwrap()
    }

    /// Each change leads to another until none is left; none of them touches the global batch.
    #[test]
    fn a_micro_batch_is_halved_before_anything_is_recomputed_or_moved() {
        let mut profile = ProfileSpec {
            gradient_accumulation_steps: 4,
            ..ProfileSpec::of_batch(16, 8)
        };
        let mut said = Vec::new();
        while let Some(remedy) = less_accelerator_memory(&profile, None) {
            profile = patched(&profile, &remedy);
            said.push(remedy.change.unwrap());
            assert_eq!(
                profile.micro_batch_per_gpu * profile.gradient_accumulation_steps,
                8
            );
        }
        assert_eq!(
            said,
            [
                "Lower the micro-batch from 2 to 1 and raise the accumulation from 4 to 8: the global batch stays the same",
                "Recompute activations (activation_checkpointing)",
                "Shard weights, gradients and optimiser states (zero_stage 0 to 3)",
                "Keep the optimiser's states in host memory (cpu_offload)",
            ]
        );
    }

    #[test]
    fn a_volume_grows_only_where_there_is_one() {
        let profile = ProfileSpec {
            volume_size_gb: Some(100),
            ..ProfileSpec::of_batch(8, 8)
        };
        let on = |kind: &str| larger_volume(&profile, crate::catalog::find(kind));
        assert_eq!(
            on("ml.p3.16xlarge").unwrap().patch,
            [Operation::set("/volume_size_gb", 200)]
        );
        let nvme = on("ml.p5.48xlarge").unwrap();
        assert!(nvme.patch.is_empty() && nvme.change.unwrap().contains("ignores the volume"));
        let unknown = ProfileSpec::of_batch(8, 8);
        assert_eq!(larger_volume(&unknown, None), None);
    }

    #[test]
    fn what_is_set_is_left_alone() {
        let mut profile = ProfileSpec::of_batch(8, 8);
        assert!(variable(&profile, "NCCL_DEBUG", "INFO").is_some());
        profile
            .environment
            .insert("NCCL_DEBUG".into(), "WARN".into());
        assert_eq!(variable(&profile, "NCCL_DEBUG", "INFO"), None);
    }

    proptest! {
        #[test]
        fn less_memory_never_changes_what_is_trained(micro in 1_u32..4096, steps in 1_u32..4096) {
            let profile = ProfileSpec {
                micro_batch_per_gpu: micro,
                gradient_accumulation_steps: steps,
                ..ProfileSpec::of_batch(8, 8)
            };
            let after = patched(&profile, &less_accelerator_memory(&profile, None).unwrap());
            let global = |profile: &ProfileSpec| {
                u64::from(profile.micro_batch_per_gpu) * u64::from(profile.gradient_accumulation_steps)
            };
            prop_assert_eq!(global(&profile), global(&after));
            prop_assert!(after.micro_batch_per_gpu <= micro.max(1));
            prop_assert!(micro == 1 || after.micro_batch_per_gpu < micro);
        }
    }
}
