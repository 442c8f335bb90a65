//! Rules on one candidate: its instance type, whether its configuration can run on that hardware,
//! and whether its cost can be bounded. How it is split over accelerators: [`split`].

mod checkpoints;
mod fewer;
mod split;

use bakeoff_domain::catalog::model::is_sound;
use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::finding::{Finding, Operation};
use bakeoff_domain::measure::steady;
use bakeoff_domain::money::price::Price;
use bakeoff_domain::number::real;
use bakeoff_domain::spec::{
    Candidate, CandidateSpec, CpuOffload, ExperimentSpec, ParallelLibrary, Precision, ProfileSpec,
    runs_on,
};

use super::LintContext;
use super::request::{COUNT_MAX, profile_bounds};
use super::training::unknown_type;
use crate::comparison;
use crate::predict::fit::{self, Verdict};
use crate::predict::{Calibration, Case, strategy};
use crate::render::deepspeed::{DERIVED, is_auto};
use crate::render::request::{self, deepspeed_json};
use crate::rules::found;
use crate::setup::Setup;

/// The most instances that one candidate may have.
const INSTANCES_MAX: u32 = 64;
/// The longest hyperparameter value (CreateTrainingJob).
const HYPERPARAMETER_CHARS_MAX: usize = 2500;

pub(super) fn check(
    spec: &ExperimentSpec,
    index: usize,
    known: LintContext<'_>,
    findings: &mut Vec<Finding>,
) {
    let Some(candidate) = spec.candidates.get(index) else {
        return;
    };
    let at = format!("/candidates/{index}");
    if candidate.instance_count == 0 || candidate.instance_count > INSTANCES_MAX {
        findings.push(
            found("instance-count", format!("{at}/instance_count"))
                .says(format!("instance_count is {}", candidate.instance_count))
                .fix(format!("choose 1 to {INSTANCES_MAX}")),
        );
        return;
    }
    let Some(instance) = catalog::find(&candidate.instance_type) else {
        findings.push(unknown_type(
            &candidate.instance_type,
            &format!("{at}/instance_type"),
        ));
        return;
    };
    let name = &instance.instance_type;
    let is_priced = |price: &Price| price.instance_type == *name && price.region == spec.region;
    if !known.prices.iter().any(is_priced) {
        findings.push(
            found("price-unknown", format!("{at}/instance_type"))
                .says(format!(
                    "no known price for {name} in {}: its cost cannot be bounded",
                    spec.region
                ))
                .fix(format!("PUT /v1/prices/{name} with your own rate")),
        );
    }
    let Some(profile) = &candidate.profile else {
        return;
    };
    let place = format!("{at}/profile");
    if instance.accelerator_count == 0 {
        findings.push(found("no-accelerator", &place).says(format!("{name} has no accelerator")));
        return;
    }
    split::check(candidate, profile, instance, &place, findings);
    engines(profile, &place, findings);
    if profile.library == ParallelLibrary::None && instance.accelerator_count > 1 {
        findings.push(found("accelerators-idle", &place).says(format!(
            "one process per instance, but {name} has {} accelerators",
            instance.accelerator_count
        )));
    }
    if let Some(candidate) = Candidate::of(spec, candidate) {
        of_workload(spec, candidate, instance, known.calibration, &at, findings);
        checkpoints::interval(spec, candidate, instance, known, findings);
    }
}

/// Checks the candidate against the workload: precision, libraries, speed, memory.
fn of_workload(
    spec: &ExperimentSpec,
    candidate: Candidate<'_>,
    instance: &InstanceType,
    calibration: &Calibration,
    at: &str,
    findings: &mut Vec<Finding>,
) {
    let Candidate {
        workload, profile, ..
    } = candidate;
    let place = format!("{at}/profile");
    precision(
        workload.precision,
        instance,
        "/workload/precision",
        &place,
        findings,
    );
    base_weights(candidate, &place, findings);
    split::sequences(&workload.model, profile, &place, findings);
    if workload.script.is_none()
        && !matches!(
            profile.library,
            ParallelLibrary::Deepspeed | ParallelLibrary::Torchrun | ParallelLibrary::None
        )
    {
        findings.push(found("library-without-script", &place));
    }
    if profile.library == ParallelLibrary::Deepspeed && !profile.deepspeed.is_empty() {
        deepspeed(candidate, &place, findings);
    }
    if !is_computable(candidate) {
        return; // other rules report the figures that are out of bounds
    }
    let has_debugger = workload.techniques.debugger.is_some();
    if has_debugger && request::has_no_hook(spec.checkpoint.is_some(), candidate) {
        findings.push(found(
            "debugger-hook-dropped",
            "/workload/techniques/debugger",
        ));
    }
    as_asked(candidate, &place, findings);
    runtime(
        spec,
        Setup::of(candidate, instance),
        calibration,
        at,
        findings,
    );
    if profile.accelerators_per_replica() > candidate.spec.accelerators() {
        return; // no such layout exists, so skip its estimates
    }
    fewer::instances(spec, candidate, instance, calibration, at, findings);
    memory(Setup::of(candidate, instance), &place, findings);
    needless(Setup::of(candidate, instance), &place, findings);
}

/// Whether all figures are within the bounds that estimates can be computed with.
fn is_computable(candidate: Candidate<'_>) -> bool {
    let profile = candidate.profile;
    let counts = [
        profile.micro_batch_per_gpu,
        profile.gradient_accumulation_steps,
        profile.tensor_parallel_degree,
        profile.pipeline_parallel_degree,
        profile.context_parallel_degree,
    ];
    is_sound(&candidate.workload.model)
        && counts.iter().all(|count| (1..=COUNT_MAX).contains(count))
}

/// Checks a stored profile by itself.
pub(super) fn profile(
    instance_type: Option<&str>,
    profile: &ProfileSpec,
    at: &str,
    findings: &mut Vec<Finding>,
) {
    profile_bounds(profile, at, findings);
    let Some(name) = instance_type else { return };
    let Some(instance) = catalog::find(name) else {
        findings.push(unknown_type(name, "/instance_type"));
        return;
    };
    let candidate = CandidateSpec {
        name: String::new(),
        instance_type: name.to_owned(),
        instance_count: 1,
        purchase_options: Vec::new(),
        repeats: 1,
        profile: None,
        profile_id: None,
    };
    split::check(&candidate, profile, instance, at, findings);
    engines(profile, at, findings);
    if !runs_on(profile.library, instance) {
        findings.push(found("library-not-on-type", at).says(format!(
            "\"library\": \"{}\" does not run on {name}",
            profile.library.as_str()
        )));
    }
}

/// Finds two engines that both own the model and optimiser, and settings of one that need another.
fn engines(profile: &ProfileSpec, at: &str, findings: &mut Vec<Finding>) {
    let is_smp = matches!(
        profile.library,
        ParallelLibrary::SmpV1 | ParallelLibrary::SmpV2
    );
    if is_smp && (profile.zero_stage > 0 || profile.cpu_offload != CpuOffload::None) {
        findings.push(found("two-engines", at));
    }
    if !fit::shares(profile.library)
        && (profile.zero_stage > 0 || profile.cpu_offload != CpuOffload::None)
    {
        findings.push(found("library-does-not-shard", at).says(format!(
            "\"library\": \"{}\" keeps a full copy of all training state on each accelerator",
            profile.library.as_str()
        )));
    }
    offload(profile, at, findings);
    if profile.pipeline_parallel_degree > 1 && profile.zero_stage >= 2 {
        findings.push(found("pipeline-with-zero", format!("{at}/zero_stage")));
    }
}

/// Finds offload without the sharding or the checkpointing that it needs.
fn offload(profile: &ProfileSpec, at: &str, findings: &mut Vec<Finding>) {
    if profile.cpu_offload == CpuOffload::OptimizerAndParameters && profile.zero_stage < 3 {
        let pointer = format!("{at}/zero_stage");
        findings.push(
            found("offload-needs-stage", &pointer)
                .says(format!(
                    "parameter offload requires ZeRO stage 3, but the stage is {}",
                    profile.zero_stage
                ))
                .patch(vec![Operation::set(&pointer, 3)]),
        );
    } else if profile.cpu_offload == CpuOffload::Optimizer && profile.zero_stage == 0 {
        let pointer = format!("{at}/zero_stage");
        findings.push(
            found("offload-needs-stage", &pointer)
                .says("optimiser offload requires ZeRO stage 1 to 3, but the stage is 0")
                .patch(vec![Operation::set(&pointer, 1)]),
        );
    }
    if profile.activation_offload && !profile.activation_checkpointing {
        let pointer = format!("{at}/activation_checkpointing");
        findings.push(
            found("activation-offload", &pointer).patch(vec![Operation::set(&pointer, true)]),
        );
    }
}

/// Checks in how many bits frozen weights are loaded.
fn base_weights(candidate: Candidate<'_>, at: &str, findings: &mut Vec<Finding>) {
    let lora_rank = candidate.workload.model.lora_rank;
    let bits = candidate.profile.base_weight_bits;
    let pointer = format!("{at}/base_weight_bits");
    if ![4, 8, 16].contains(&bits) {
        findings.push(found("base-weight-bits", &pointer).says(format!(
            "base_weight_bits is {bits}: weights are loaded in 16, 8 or 4 bits"
        )));
    } else if bits < 16 && lora_rank.is_none() {
        findings.push(found("base-weight-bits", &pointer).says(format!(
            "weights of {bits} bits cannot be trained: only a base that LoRA leaves frozen is loaded in {bits} bits"
        )));
    }
}

fn precision(
    precision: Precision,
    instance: &InstanceType,
    pointer: &str,
    place: &str,
    findings: &mut Vec<Finding>,
) {
    let has_bf16 = instance.bf16_tflops.is_some();
    match precision {
        Precision::Bf16 if !has_bf16 && instance.fp16_tflops.is_some() => {
            findings.push(found("precision-not-on-type", place).says(format!(
                "{} ({}) does not support bf16",
                instance.instance_type,
                instance.accelerator.as_deref().unwrap_or("unknown")
            )));
        }
        Precision::Fp8 if !instance.has_fp8() => {
            findings.push(found("precision-not-on-type", place).says(format!(
                "{} ({}) does not support fp8",
                instance.instance_type,
                instance.accelerator.as_deref().unwrap_or("unknown")
            )).fix("use \"precision\": \"bf16\", or a type with L4, L40S, H100, H200 or Blackwell accelerators"));
        }
        Precision::Fp16 if has_bf16 => findings.push(found("bf16-is-safer", pointer)),
        _ => {}
    }
}

/// Checks the user's DeepSpeed settings against those derived from the profile.
fn deepspeed(candidate: Candidate<'_>, at: &str, findings: &mut Vec<Finding>) {
    let profile = candidate.profile;
    let stage = profile
        .deepspeed
        .get("zero_optimization")
        .and_then(|zero| zero.get("stage"));
    let is_set = |key: &&str| {
        profile
            .deepspeed
            .get(*key)
            .is_some_and(|value| !is_auto(value))
    };
    let keys = DERIVED.into_iter().filter(is_set).map(str::to_owned);
    for key in keys.chain(stage.map(|_| "zero_optimization/stage".to_owned())) {
        let pointer = format!("{at}/deepspeed/{key}");
        findings.push(
            found("deepspeed-owned", &pointer)
                .says(format!(
                    "{key} is derived from the profile and the workload"
                ))
                .patch(vec![Operation::remove(&pointer)]),
        );
    }
    let length = deepspeed_json(candidate).chars().count();
    if length > HYPERPARAMETER_CHARS_MAX {
        findings.push(found("deepspeed-too-long", format!("{at}/deepspeed")).says(format!(
            "the DeepSpeed configuration has {length} characters; a hyperparameter may have at most {HYPERPARAMETER_CHARS_MAX}"
        )));
    }
}

fn memory(setup: Setup<'_>, at: &str, findings: &mut Vec<Finding>) {
    let fit = fit::fit(setup);
    let needs = format!(
        "{} per GPU and {} of host memory (estimated)",
        fit.on_accelerator(),
        fit.on_host()
    );
    match fit.verdict {
        Verdict::DoesNotFit => {
            let finding = found("does-not-fit", at).says(format!("out of memory: needs {needs}"));
            findings.push(match strategy::smallest_change(setup) {
                Some(change) => {
                    let patch = change
                        .settings
                        .iter()
                        .map(|(key, value)| Operation::set(&format!("{at}/{key}"), value.clone()));
                    finding.fix(change.text.clone()).patch(patch.collect())
                }
                None => finding,
            });
        }
        Verdict::Uncertain => {
            findings.push(
                found("fit-uncertain", at).says(format!("may or may not fit: needs {needs}")),
            );
        }
        Verdict::Fits | Verdict::Unknown => {}
    }
}

/// Finds offload and sharding that cost time to save memory that is not needed.
pub(super) fn needless(setup: Setup<'_>, at: &str, findings: &mut Vec<Finding>) {
    let profile = setup.profile;
    let without = ProfileSpec {
        cpu_offload: CpuOffload::None,
        ..profile.clone()
    };
    let fit = fit::fit(setup.under(&without));
    let room = |fit: &fit::Fit| format!("{} per GPU", fit.on_accelerator());
    if profile.cpu_offload != CpuOffload::None && fit.verdict == Verdict::Fits {
        let pointer = format!("{at}/cpu_offload");
        findings.push(
            found("offload-not-needed", &pointer)
                .says(format!(
                    "without offload it needs {}: offload only slows it down",
                    room(&fit)
                ))
                .patch(vec![Operation::set(&pointer, "none")]),
        );
    }
    let lower = ProfileSpec {
        zero_stage: 1,
        ..without
    };
    let fit = fit::fit(setup.under(&lower));
    if profile.zero_stage == 3 && fit.verdict == Verdict::Fits {
        let pointer = format!("{at}/zero_stage");
        let mut patch = vec![
            Operation::set(&format!("{at}/cpu_offload"), "none"),
            Operation::set(&pointer, 1),
        ];
        if profile.hybrid_shard_degree.is_some() {
            // Groups need stage 2 or 3.
            patch.push(Operation::remove(&format!("{at}/hybrid_shard_degree")));
        }
        findings.push(
            found("sharding-not-needed", &pointer)
                .says(format!(
                    "with stage 1 it needs {}: stage 3 gathers every weight in every micro-step, forward and backward",
                    room(&fit)
                ))
                .patch(patch),
        );
    }
}

/// Compares the global batch with the one that the workload requests.
fn as_asked(candidate: Candidate<'_>, at: &str, findings: &mut Vec<Finding>) {
    let here = candidate.global_batch();
    let asked = candidate.workload.global_batch;
    let Some(wanted) = asked.filter(|wanted| *wanted != here) else {
        return;
    };
    let fix = comparison::batch_fix(candidate.profile, candidate.spec.accelerators(), wanted);
    findings.push(
        found("global-batch-not-as-asked", at)
            .says(format!(
                "{} trains {here} sequences per step, but the workload asks for {wanted}",
                candidate.spec.name
            ))
            .fix(fix),
    );
}

/// Finds a trial that cannot finish in its time, even at the fast end of the prediction, and one
/// that is too short to be measured, even at the slow end.
fn runtime(
    spec: &ExperimentSpec,
    setup: Setup<'_>,
    calibration: &Calibration,
    at: &str,
    findings: &mut Vec<Finding>,
) {
    let (Some(workload), Some(case)) = (&spec.workload, Case::new(setup)) else {
        return;
    };
    let [slowest, expected, fastest] = calibration.tokens_per_second(&case);
    let seconds = |speed: f64| real(workload.trial_tokens) / speed;
    let needed = f64::from(steady::SECONDS_MIN);
    if seconds(slowest) < needed {
        let enough = needed * fastest;
        findings.push(
            found("trial-too-short", format!("{at}/instance_type"))
                .says(format!(
                    "a trial of {} tokens takes {:.1} minutes at the {expected:.0} tokens/s predicted for {} × {}: \
                     a measured speed needs {:.0}, and without one it is not ranked",
                    workload.trial_tokens,
                    seconds(expected) / 60.0,
                    setup.cluster.count,
                    setup.cluster.instance.instance_type,
                    needed / 60.0
                ))
                .fix(format!("set trial_tokens to {enough:.0} or more")),
        );
    }
    if seconds(fastest) > f64::from(spec.max_runtime_seconds) {
        findings.push(
            found("runtime-too-short", format!("{at}/instance_type"))
                .says(format!(
                    "a trial of {} tokens takes {:.1} h at the {expected:.0} tokens/s predicted for {} × {}, but max_runtime_seconds allows {:.1} h",
                    workload.trial_tokens,
                    seconds(expected) / 3600.0,
                    setup.cluster.count,
                    setup.cluster.instance.instance_type,
                    f64::from(spec.max_runtime_seconds) / 3600.0
                ))
                .fix(format!(
                    "set max_runtime_seconds to {:.0}, or lower trial_tokens",
                    (seconds(expected) * 1.3 + 600.0).ceil()
                )),
        );
    }
}
