//! How a profile splits a model over accelerators: degrees that exist, divide, and agree with what
//! the library is given.

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::spec::{CandidateSpec, ParallelLibrary, ProfileSpec};

use crate::rules::found;

/// Checks degrees against the accelerators that there are, against each other, and against what
/// SageMaker's library is given.
pub(super) fn check(
    candidate: &CandidateSpec,
    profile: &ProfileSpec,
    instance: &InstanceType,
    at: &str,
    findings: &mut Vec<Finding>,
) {
    let gpus = candidate.accelerators();
    let split = split(profile);
    if split > gpus {
        let accelerator = instance.accelerator.as_deref().unwrap_or("accelerators");
        findings.push(
            found("parallelism-exceeds-gpus", at)
                .says(format!(
                    "tensor × pipeline × context parallelism is {split}, but {} × {} has {gpus} {accelerator}",
                    candidate.instance_count, instance.instance_type
                ))
                .fix(format!("keep the product at {gpus} or below, or choose a type with {split} accelerators")),
        );
    } else if split > 0 && !gpus.is_multiple_of(split) {
        findings.push(found("parallelism-does-not-divide", at).says(format!(
            "tensor × pipeline × context parallelism of {split} does not divide {gpus} accelerators evenly"
        )));
    }
    if is_smp(profile) {
        degrees(profile, at, findings);
    }
    copies(profile, gpus, at, findings);
    if profile.sequence_parallel && profile.tensor_parallel_degree <= 1 {
        findings.push(found(
            "sequence-parallel",
            format!("{at}/sequence_parallel"),
        ));
    }
}

/// Accelerators that a micro-batch is split over, by what SageMaker's library is given, or else by the
/// profile.
fn split(profile: &ProfileSpec) -> u32 {
    if !is_smp(profile) {
        return profile.accelerators_per_replica();
    }
    let given = profile.smp();
    let degree = |keys: &[&str], own: u32| {
        let asked = keys.iter().find_map(|key| given.get(*key)?.as_u64());
        asked
            .map_or(own, |degree| u32::try_from(degree).unwrap_or(u32::MAX))
            .max(1)
    };
    [
        degree(&["tensor_parallel_degree"], profile.tensor_parallel_degree),
        degree(
            &["pipeline_parallel_degree", "partitions"],
            profile.pipeline_parallel_degree,
        ),
        degree(
            &["context_parallel_degree"],
            profile.context_parallel_degree,
        ),
    ]
    .into_iter()
    .fold(1, u32::saturating_mul)
}

fn is_smp(profile: &ProfileSpec) -> bool {
    matches!(
        profile.library,
        ParallelLibrary::SmpV1 | ParallelLibrary::SmpV2
    )
}

/// Checks groups of accelerators that hold copies of the sharded states. Those that share a sequence
/// share states, too.
fn copies(profile: &ProfileSpec, gpus: u32, at: &str, findings: &mut Vec<Finding>) {
    let Some(degree) = profile.hybrid_shard_degree else {
        return;
    };
    let sharers = gpus / profile.model_parallel_degree();
    let pointer = format!("{at}/hybrid_shard_degree");
    let mut wrong = |why: String| findings.push(found("hybrid-shard", &pointer).says(why));
    if degree == 0 || !sharers.is_multiple_of(degree) {
        wrong(format!(
            "hybrid_shard_degree is {degree}, which does not divide the {sharers} accelerators that can share states (all / (tensor × pipeline))"
        ));
    }
    match profile.library {
        ParallelLibrary::SmpV2 => {}
        ParallelLibrary::Torchrun if profile.zero_stage >= 2 => {}
        ParallelLibrary::Torchrun => wrong(format!(
            "FSDP shards in groups with zero_stage 2 or 3, but zero_stage is {}",
            profile.zero_stage
        )),
        other => wrong(format!(
            "\"library\": \"{}\" does not shard in groups",
            other.as_str()
        )),
    }
}

/// Checks that sequences can be split as the profile asks.
pub(super) fn sequences(
    model: &ModelShape,
    profile: &ProfileSpec,
    at: &str,
    findings: &mut Vec<Finding>,
) {
    let degree = profile.context_parallel_degree;
    if degree > 1 && !model.sequence_length.is_multiple_of(degree) {
        findings.push(
            found("context-parallel", format!("{at}/context_parallel_degree")).says(format!(
                "sequences of {} tokens cannot be split over {degree} accelerators evenly",
                model.sequence_length
            )),
        );
    }
}

/// Finds degrees passed to SageMaker's library that differ from those the profile plans with.
fn degrees(profile: &ProfileSpec, at: &str, findings: &mut Vec<Finding>) {
    for (key, own) in [
        ("tensor_parallel_degree", profile.tensor_parallel_degree),
        ("pipeline_parallel_degree", profile.pipeline_parallel_degree),
        ("partitions", profile.pipeline_parallel_degree),
        ("context_parallel_degree", profile.context_parallel_degree),
    ] {
        let asked = profile
            .smp_parameters
            .get(key)
            .and_then(serde_json::Value::as_u64);
        if let Some(asked) = asked.filter(|asked| *asked > 1 && *asked != u64::from(own)) {
            findings.push(
                found("degrees-differ", format!("{at}/smp_parameters/{key}")).says(format!(
                    "the library is given {key} {asked}, but the profile plans with {own}"
                )),
            );
        }
    }
}
