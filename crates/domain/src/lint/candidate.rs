//! Rules on one candidate: its type, whether its configuration can run on that hardware, whether its cost can be bounded.

use crate::catalog::{self, InstanceType};
use crate::finding::{Finding, Severity};
use crate::fit::{self, Verdict};
use crate::lint::filled;
use crate::price::Price;
use crate::spec::{CandidateSpec, CpuOffload, ExperimentSpec, ParallelLibrary, ProfileSpec};

/// SMP v1's own list (awsdocs, distributed-model-parallel-support).
const SMP_V1_TYPES: [&str; 5] =
    ["ml.g4dn.12xlarge", "ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge"];
/// SMDDP's (sagemaker SDK 2.257.7, SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES).
const SMDDP_TYPES: [&str; 4] = ["ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4d.24xlarge", "ml.p4de.24xlarge"];

/// Accelerators of all instances of a candidate; 1 for an unknown type.
pub(super) fn accelerators(candidate: &CandidateSpec) -> u32 {
    let each = catalog::find(&candidate.instance_type).map_or(1, |found| found.accelerator_count.max(1));
    each.saturating_mul(candidate.instance_count.max(1))
}

pub(super) fn check(spec: &ExperimentSpec, index: usize, prices: &[Price], findings: &mut Vec<Finding>) {
    let Some(candidate) = spec.candidates.get(index) else { return };
    let at = format!("/candidates/{index}");
    if candidate.instance_count == 0 || candidate.instance_count > 64 {
        findings.push(
            Finding::new("instance-count", Severity::Error, format!("{at}/instance_count"))
                .says(format!("{} instances", candidate.instance_count))
                .fix("choose 1 to 64")
                .source("Bakeoff"),
        );
        return;
    }
    let Some(instance) = catalog::find(&candidate.instance_type) else {
        findings.push(unknown_type(&candidate.instance_type, &at));
        return;
    };
    if !prices.iter().any(|price| price.instance_type == instance.instance_type && price.region == spec.region) {
        findings.push(
            Finding::new("price-unknown", Severity::Refused, format!("{at}/instance_type"))
                .says(format!(
                    "no price is known for {} in {}: its cost cannot be bounded",
                    instance.instance_type, spec.region
                ))
                .fix(format!("PUT /v1/prices/{} with your own rate", instance.instance_type))
                .source("invariant 8: the budget refuses to start what it cannot bound"),
        );
    }
    let Some(profile) = &candidate.profile else { return };
    if instance.accelerator_count == 0 {
        findings.push(
            refuse("no-accelerator", &at)
                .says(format!("{} has no accelerator", instance.instance_type))
                .fix("choose a GPU or Trainium type")
                .source("catalog"),
        );
        return;
    }
    parallelism(candidate, profile, instance, &at, findings);
    libraries(profile, instance, &at, findings);
    memory(spec, candidate, profile, instance, &at, findings);
}

fn refuse(rule: &str, at: &str) -> Finding {
    Finding::new(rule, Severity::Refused, format!("{at}/profile"))
}

fn unknown_type(name: &str, at: &str) -> Finding {
    let near = catalog::nearest(name);
    let fix = if near.is_empty() {
        "GET /v1/instance-types lists the legal names".to_owned()
    } else {
        format!("did you mean {}?", near.join(", "))
    };
    Finding::new("unknown-instance-type", Severity::Error, format!("{at}/instance_type"))
        .says(format!("`{name}` is not a SageMaker training instance type"))
        .fix(fix)
        .source("TrainingInstanceType (botocore 1.44.5)")
}

fn parallelism(
    candidate: &CandidateSpec,
    profile: &ProfileSpec,
    instance: &InstanceType,
    at: &str,
    findings: &mut Vec<Finding>,
) {
    let gpus = accelerators(candidate);
    let split = profile.tensor_parallel_degree.saturating_mul(profile.pipeline_parallel_degree);
    if split > gpus {
        let accelerator = instance.accelerator.as_deref().unwrap_or("accelerator");
        findings.push(
            refuse("parallelism-exceeds-gpus", at)
                .says(format!(
                    "tensor × pipeline parallel is {split}, but {} × {} has {gpus} {accelerator}",
                    candidate.instance_count, instance.instance_type
                ))
                .fix(format!("keep the product at {gpus} or below, or choose a type with {split} accelerators"))
                .source("catalog; processes per host cannot exceed its accelerators"),
        );
    } else if split > 0 && !gpus.is_multiple_of(split) {
        findings.push(
            refuse("parallelism-does-not-divide", at)
                .says(format!("tensor × pipeline parallel {split} does not divide {gpus} accelerators"))
                .fix("choose degrees whose product divides the accelerators")
                .source("Bakeoff"),
        );
    }
}

fn libraries(profile: &ProfileSpec, instance: &InstanceType, at: &str, findings: &mut Vec<Finding>) {
    let name = instance.instance_type.as_str();
    let (library, supported): (&str, &[&str]) = match profile.library {
        ParallelLibrary::SmpV1 => ("SageMaker's model parallel library v1", &SMP_V1_TYPES),
        ParallelLibrary::Smddp => ("SageMaker's data parallel library", &SMDDP_TYPES),
        ParallelLibrary::Deepspeed | ParallelLibrary::Torchrun => return,
    };
    if !supported.contains(&name) {
        findings.push(
            refuse("library-not-on-type", at)
                .says(format!("{library} does not run on {name}"))
                .fix(format!("use \"library\": \"deepspeed\" or \"torchrun\", or one of {}", supported.join(", ")))
                .source("SageMaker developer guide, supported instance types"),
        );
    }
    if profile.library == ParallelLibrary::SmpV1 && (profile.zero_stage > 0 || profile.cpu_offload != CpuOffload::None)
    {
        findings.push(
            refuse("two-engines", at)
                .says("the model parallel library and DeepSpeed ZeRO both want to own the model and the optimiser")
                .fix("keep one: zero_stage 0 without offload, or another library")
                .source("both replace the optimiser and the model wrapper"),
        );
    }
}

fn memory(
    spec: &ExperimentSpec,
    candidate: &CandidateSpec,
    profile: &ProfileSpec,
    instance: &InstanceType,
    at: &str,
    findings: &mut Vec<Finding>,
) {
    let Some(workload) = filled(spec) else { return };
    let fit = fit::fit(&workload.model, profile, instance, candidate.instance_count);
    let needs = format!(
        "{:.0} GiB a GPU of {:.0} and {:.0} GiB of host memory of {:.0}, estimated",
        fit.accelerator_gib,
        fit.accelerator_capacity_gib.unwrap_or_default(),
        fit.host_gib,
        fit.host_capacity_gib.unwrap_or_default()
    );
    let finding = match fit.verdict {
        Verdict::DoesNotFit => refuse("does-not-fit", at)
            .says(format!("out of memory: it needs {needs}"))
            .fix("lower micro_batch_per_gpu and raise accumulation, recompute activations, shard more (ZeRO), or train LoRA adapters"),
        Verdict::Uncertain => Finding::new("fit-uncertain", Severity::Info, format!("{at}/profile"))
            .says(format!("it may or may not fit: it needs {needs}"))
            .fix("the trial will tell; a lower micro_batch_per_gpu is safer"),
        Verdict::Fits | Verdict::Unknown => return,
    };
    findings
        .push(finding.source("ZeRO (arXiv 1910.02054), Korthikanti et al. (arXiv 2205.05198), DeepSpeed's estimator"));
}
