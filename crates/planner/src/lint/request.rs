//! Rules on the request as a whole: limits of SageMaker's API, money, spot.

mod metrics;
pub(super) mod model;
pub(super) mod queueing;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bakeoff_domain::embedded;
use bakeoff_domain::finding::{Finding, Operation};
use bakeoff_domain::measure::metric::Meaning;
use bakeoff_domain::money::cost::TRANSFER_ALLOWANCE_SECONDS;
use bakeoff_domain::spec::{
    CandidateSpec, Channel, ExperimentSpec, ProfileSpec, PurchaseOption, WorkloadSpec,
};
use regex::Regex;
use rust_decimal::Decimal;

use super::training::wait_for;
use crate::recurring;
use crate::render::request::{RESERVED_HYPERPARAMETERS, SHAPE_HYPERPARAMETERS};
use crate::rules::found;

/// 28 days, the limit of StoppingCondition.MaxRuntimeInSeconds.
const MAX_RUNTIME_SECONDS: u32 = 28 * 24 * 3600;
/// A spot trial this short may start over after an interruption.
const SPOT_WITHOUT_CHECKPOINT_SECONDS: u32 = 3600;
const CANDIDATES_MAX: usize = 50;
const MEASUREMENTS_MAX: usize = 100;
const REPEATS_MAX: u32 = 20;
const TRIALS_MAX: u64 = 200;
/// Upper bound for micro-batch, accumulation and degrees of parallelism.
pub(super) const COUNT_MAX: u32 = 65_536;
const NAME_CHARS_MAX: usize = 100;
const GLOBAL_BATCH_MAX: u64 = 1 << 24;
const DIMENSION_MAX: u32 = 100_000_000;
const BUDGET_USD_MAX: u32 = 1_000_000_000;
/// The user's share of the 100 hyperparameters and 100 environment variables that a job may have.
const USER_ENTRIES_MAX: usize = 80;

/// What people read as it stands: nothing in it steers a terminal or turns the direction of other text around.
fn is_name(name: &str) -> bool {
    let is_order = |one: char| {
        one.is_control() || matches!(one, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    !name.trim().is_empty() && name.chars().count() <= NAME_CHARS_MAX && !name.contains(is_order)
}

fn name_length(pointer: &str) -> Finding {
    found("name-length", pointer)
        .says("the name is empty, too long, or has characters that are not shown")
        .fix(format!(
            "use 1 to {NAME_CHARS_MAX} characters, without control characters"
        ))
}

pub(super) fn experiment(spec: &ExperimentSpec, findings: &mut Vec<Finding>) {
    if !is_name(&spec.name) {
        findings.push(name_length("/name"));
    }
    let count = spec.candidates.len();
    if !(1..=CANDIDATES_MAX).contains(&count) {
        findings.push(
            found("candidate-count", "/candidates")
                .says(format!("the experiment has {count} candidates"))
                .fix(format!("list 1 to {CANDIDATES_MAX} candidates")),
        );
    }
    let trials: u64 = spec
        .candidates
        .iter()
        .map(|c| u64::from(c.repeats) * c.purchase_options.len() as u64)
        .sum();
    if trials > TRIALS_MAX {
        findings.push(
            found("trial-count", "/candidates")
                .says(format!(
                    "candidates × purchase options × repeats make {trials} trials"
                ))
                .fix(format!("reduce it to {TRIALS_MAX} or fewer")),
        );
    }
    if !super::is_bounded(findings) {
        return;
    }
    for index in 0..spec.candidates.len() {
        candidate(spec, index, findings);
    }
}

/// Reports names that the plan itself sets from model and profile.
fn reserved(
    entries: &BTreeMap<String, String>,
    derived: &[&str],
    pointer: &str,
    findings: &mut Vec<Finding>,
) {
    for key in entries.keys().filter(|key| derived.contains(&key.as_str())) {
        findings.push(
            found("reserved-hyperparameter", format!("{pointer}/{key}"))
                .says(format!(
                    "{key} is derived from the model and the profile; setting it here would train something else"
                ))
                .fix("remove it, and set the field of the model or the profile instead"),
        );
    }
}

/// Checks that the candidate has exactly one profile, within bounds.
fn own_profile(candidate: &CandidateSpec, pointer: &str, findings: &mut Vec<Finding>) {
    match (&candidate.profile, candidate.profile_id) {
        (Some(profile), None) => profile_bounds(profile, pointer, findings),
        (Some(_), Some(_)) => findings.push(
            found("profile-twice", pointer)
                .says("both profile and profile_id are given")
                .fix("keep one of them"),
        ),
        (None, _) => findings.push(
            found("profile-missing", pointer)
                .says("the candidate has no profile, or this project has no profile with its profile_id")
                .fix("set an inline profile (micro_batch_per_gpu, gradient_accumulation_steps, …) or a profile_id"),
        ),
    }
}

/// Checks a candidate's own settings: name, repeats, options, profile.
fn candidate(spec: &ExperimentSpec, index: usize, findings: &mut Vec<Finding>) {
    let Some(candidate) = spec.candidates.get(index) else {
        return;
    };
    let at = format!("/candidates/{index}");
    if !is_name(&candidate.name) {
        findings.push(name_length(&format!("{at}/name")));
    }
    if candidate.repeats == 0 || candidate.repeats > REPEATS_MAX {
        findings.push(
            found("repeats", format!("{at}/repeats"))
                .says(format!("repeats is {}", candidate.repeats))
                .fix(format!("choose 1 to {REPEATS_MAX}")),
        );
    }
    let mut earlier = spec.candidates.iter().take(index);
    if earlier.any(|earlier| earlier.name == candidate.name) {
        findings.push(
            found("candidate-name-twice", format!("{at}/name"))
                .says(format!("two candidates are named {}", candidate.name))
                .fix("give each candidate a unique name"),
        );
    }
    let options = &candidate.purchase_options;
    if options.is_empty()
        || options
            .iter()
            .enumerate()
            .any(|(i, o)| options.iter().take(i).any(|e| e == o))
    {
        findings.push(
            found("purchase-options", format!("{at}/purchase_options"))
                .says("the list is empty or contains an option twice")
                .fix("use [\"on_demand\"], [\"spot\"] or both; raise repeats for more trials"),
        );
    }
    own_profile(candidate, &format!("{at}/profile"), findings);
}

pub(super) fn profile_bounds(profile: &ProfileSpec, at: &str, findings: &mut Vec<Finding>) {
    let counts = [
        ("micro_batch_per_gpu", profile.micro_batch_per_gpu),
        (
            "gradient_accumulation_steps",
            profile.gradient_accumulation_steps,
        ),
        ("tensor_parallel_degree", profile.tensor_parallel_degree),
        ("pipeline_parallel_degree", profile.pipeline_parallel_degree),
        ("context_parallel_degree", profile.context_parallel_degree),
    ];
    for (field, value) in counts {
        if !(1..=COUNT_MAX).contains(&value) {
            findings.push(
                found("profile-count", format!("{at}/{field}"))
                    .says(format!("{field} is {value}"))
                    .fix("use a whole number from 1 to 65536"),
            );
        }
    }
    let (own, place) = (&profile.hyperparameters, format!("{at}/hyperparameters"));
    reserved(own, &RESERVED_HYPERPARAMETERS, &place, findings);
    reserved(own, &SHAPE_HYPERPARAMETERS, &place, findings);
    if profile.zero_stage > 3 {
        findings.push(
            found("zero-stage", format!("{at}/zero_stage"))
                .says(format!("ZeRO has no stage {}", profile.zero_stage))
                .fix("use 0, 1, 2 or 3"),
        );
    }
    for (field, entries) in [
        ("environment", &profile.environment),
        ("hyperparameters", &profile.hyperparameters),
    ] {
        if entries.len() > USER_ENTRIES_MAX {
            findings.push(
                found("too-many-entries", format!("{at}/{field}"))
                    .says(format!("{field} has {} entries", entries.len()))
                    .fix(format!("use at most {USER_ENTRIES_MAX}")),
            );
        }
    }
}

pub(super) fn limits(spec: &ExperimentSpec, findings: &mut Vec<Finding>) {
    if spec.budget_usd.0 <= Decimal::ZERO || spec.budget_usd.0 > Decimal::from(BUDGET_USD_MAX) {
        findings.push(
            found("budget", "/budget_usd")
                .says(format!("the budget is {}", spec.budget_usd))
                .fix(format!(
                    "set a positive amount in US dollars, at most {BUDGET_USD_MAX}: a hard cap on what the experiment may spend"
                )),
        );
    }
    if spec.max_runtime_seconds == 0 || spec.max_runtime_seconds > MAX_RUNTIME_SECONDS {
        findings.push(
            found("max-runtime", "/max_runtime_seconds")
                .says(format!(
                    "max_runtime_seconds is {}",
                    spec.max_runtime_seconds
                ))
                .fix(format!("choose 1 to {MAX_RUNTIME_SECONDS} (28 days)")),
        );
    }
    let objective = &spec.objective;
    if objective
        .full_run_budget_usd
        .is_some_and(|budget| budget.0 <= Decimal::ZERO)
    {
        findings.push(
            found("full-run-budget", "/objective/full_run_budget_usd")
                .says("the budget is not positive")
                .fix("raise it, or omit it"),
        );
    }
    if objective
        .full_run_deadline_hours
        .is_some_and(|hours| !(hours.is_finite() && hours > 0.0))
    {
        findings.push(
            found("full-run-deadline", "/objective/full_run_deadline_hours")
                .says("the deadline is not positive")
                .fix("raise it, or omit it"),
        );
    }
    target_loss(spec, findings);
}

/// Checks that a loss to project to is one, and that something reports it.
fn target_loss(spec: &ExperimentSpec, findings: &mut Vec<Finding>) {
    let Some(loss) = spec.objective.target_loss else {
        return;
    };
    let mut wrong = |why: &str| {
        findings.push(found("target-loss", "/objective/target_loss").says(why));
    };
    if !(loss.is_finite() && loss > 0.0) {
        wrong("the loss is not positive");
    }
    let is_reported = |workload: &WorkloadSpec| {
        let mut meanings = workload.metrics.iter().map(|metric| metric.meaning);
        meanings.any(|one| matches!(one, Meaning::TrainLoss | Meaning::ValidationLoss))
    };
    if !spec.workload.as_ref().is_none_or(is_reported) {
        wrong("no metric of the workload is a loss");
    }
}

pub(super) fn spot(spec: &ExperimentSpec, findings: &mut Vec<Finding>) {
    let wants_spot = spec
        .candidates
        .iter()
        .any(|c| c.purchase_options.contains(&PurchaseOption::Spot));
    match (wants_spot, spec.max_wait_seconds) {
        (true, Some(wait)) if wait < spec.max_runtime_seconds => findings.push(
            found("spot-max-wait-below-max-runtime", "/max_wait_seconds")
                .says(format!(
                    "a spot trial may wait and train for {wait} s in total, but its maximum runtime is {} s: it could never finish",
                    spec.max_runtime_seconds
                ))
                .fix(format!("set max_wait_seconds to at least {}", spec.max_runtime_seconds))
                .patch(vec![Operation::set("/max_wait_seconds", wait_for(u64::from(spec.max_runtime_seconds)))]),
        ),
        (true, None) => findings.push(
            found("spot-needs-max-wait", "/max_wait_seconds")
                .says("a candidate uses spot, but max_wait_seconds is missing")
                .fix(format!("set max_wait_seconds, for example {}", wait_for(u64::from(spec.max_runtime_seconds))))
                .patch(vec![Operation::set("/max_wait_seconds", wait_for(u64::from(spec.max_runtime_seconds)))]),
        ),
        (false, Some(_)) => findings.push(
            found("max-wait-without-spot", "/max_wait_seconds")
                .says("no candidate uses spot; SageMaker rejects a maximum wait without it")
                .fix("omit max_wait_seconds, or add \"spot\" to a candidate's purchase_options"),
        ),
        _ => {}
    }
    if wants_spot
        && spec.checkpoint.is_none()
        && spec.max_runtime_seconds > SPOT_WITHOUT_CHECKPOINT_SECONDS
    {
        findings.push(
            found("spot-needs-checkpoint", "/checkpoint")
                .says(format!(
                    "a spot trial without checkpoints starts over after every interruption; a trial longer than {} minutes \
                     needs checkpoints",
                    SPOT_WITHOUT_CHECKPOINT_SECONDS / 60
                ))
                .fix("set checkpoint.s3_uri; the script must save to and load from /opt/ml/checkpoints itself"),
        );
    }
    if let Some(checkpoint) = &spec.checkpoint
        && !is_s3(&checkpoint.s3_uri)
    {
        findings.push(not_s3("/checkpoint/s3_uri", &checkpoint.s3_uri));
    }
}

/// Checks speeds that were measured earlier.
pub(super) fn measurements(spec: &ExperimentSpec, findings: &mut Vec<Finding>) {
    if spec.measurements.len() > MEASUREMENTS_MAX {
        findings.push(
            found("measured-speed", "/measurements")
                .says(format!("more than {MEASUREMENTS_MAX} measurements")),
        );
    }
    for (index, measurement) in spec.measurements.iter().enumerate().take(MEASUREMENTS_MAX) {
        let at = format!("/measurements/{index}");
        if bakeoff_domain::catalog::find(&measurement.instance_type).is_none() {
            findings.push(super::training::unknown_type(
                &measurement.instance_type,
                &format!("{at}/instance_type"),
            ));
        }
        if !(1.0..1e12).contains(&measurement.tokens_per_second) {
            findings.push(found("measured-speed", format!("{at}/tokens_per_second")));
        }
        let overhead = measurement.overhead_seconds;
        if overhead.is_some_and(|seconds| !(0.0..=86_400.0).contains(&seconds)) {
            findings.push(
                found("measured-speed", format!("{at}/overhead_seconds"))
                    .says("a job is billed 0 to 86,400 seconds beside its steps")
                    .fix("give the billed seconds less those of the steps, or leave it out"),
            );
        }
        profile_bounds(&measurement.profile, &format!("{at}/profile"), findings);
    }
}

pub(super) static ROLE: LazyLock<Regex> = LazyLock::new(|| {
    embedded::pattern(r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
});

pub(super) fn workload_missing() -> Finding {
    found("workload-missing", "/workload")
        .says("the workload is missing, or this project has no workload with its workload_id")
        .fix("set an inline workload, or the workload_id of a stored one")
}

pub(super) fn workload(workload: &WorkloadSpec, findings: &mut Vec<Finding>) {
    if !is_name(&workload.name) {
        findings.push(name_length("/workload/name"));
    }
    let (own, at) = (&workload.hyperparameters, "/workload/hyperparameters");
    reserved(own, &RESERVED_HYPERPARAMETERS, at, findings);
    if workload.model.is_described() {
        reserved(own, &SHAPE_HYPERPARAMETERS, at, findings);
    }
    if !ROLE.is_match(&workload.role_arn) {
        findings.push(
            found("role-arn", "/workload/role_arn")
                .says(format!("`{}` is not the ARN of an IAM role", workload.role_arn))
                .fix("use arn:aws:iam::<12 digits>:role/<name>, the role that the training jobs assume"),
        );
    }
    if workload.image.is_empty() || workload.image.len() > 255 {
        findings.push(
            found("image", "/workload/image")
                .says("the image is empty or longer than 255 characters")
                .fix("set its ECR URI"),
        );
    }
    channels(&workload.channels, findings);
    if !is_s3(&workload.output_s3_uri) {
        findings.push(not_s3("/workload/output_s3_uri", &workload.output_s3_uri));
    }
    if workload.trial_tokens == 0 || workload.trial_tokens > workload.total_tokens {
        findings.push(
            found("trial-tokens", "/workload/trial_tokens")
                .says(format!(
                    "a trial trains {} of {} tokens",
                    workload.trial_tokens, workload.total_tokens
                ))
                .fix("choose at least one token and no more than total_tokens"),
        );
    }
    model::model_shape(&workload.model, findings);
    techniques(workload, findings);
    recurring::check(workload, findings);
    metrics::check(workload, findings);
}

fn channels(channels: &[Channel], findings: &mut Vec<Finding>) {
    if channels.len() > 20 {
        findings.push(
            found("channels", "/workload/channels")
                .says(format!("the workload has {} channels", channels.len()))
                .fix("define at most 20 input channels"),
        );
    }
    for (index, channel) in channels.iter().enumerate() {
        if !is_s3(&channel.s3_uri) {
            let pointer = format!("/workload/channels/{index}/s3_uri");
            findings.push(not_s3(&pointer, &channel.s3_uri));
        }
    }
    data_sizes(channels, findings);
}

/// Download time is reserved according to data size. One finding, at the first channel without a
/// size.
fn data_sizes(channels: &[Channel], findings: &mut Vec<Finding>) {
    let unnamed: Vec<(usize, &str)> = (0..)
        .zip(channels)
        .filter(|(_, channel)| channel.size_gb.is_none())
        .map(|(index, channel)| (index, channel.name.as_str()))
        .take(20)
        .collect();
    if let Some((first, _)) = unnamed.first() {
        let names: Vec<&str> = unnamed.iter().map(|(_, name)| *name).collect();
        findings.push(found("data-size-unnamed", format!("/workload/channels/{first}/size_gb")).says(format!(
            "data size not given ({}): the worst case allows {} minutes for downloads, image and upload",
            names.join(", "),
            TRANSFER_ALLOWANCE_SECONDS / 60
        )));
    }
}

/// Checks script mode, retries, and hyperparameters that the plan leaves to the script.
fn techniques(workload: &WorkloadSpec, findings: &mut Vec<Finding>) {
    if let Some(script) = &workload.script {
        if !workload.container_entrypoint.is_empty() {
            findings.push(found("script", "/workload/container_entrypoint").says(
                "it replaces the entry point that would start the script, which would never run",
            ));
        }
        if script.entry_point.is_empty() || script.entry_point.len() > 256 {
            findings.push(
                found("script", "/workload/script/entry_point")
                    .says("the script's name is empty or longer than 256 characters"),
            );
        }
        if !is_s3(&script.source_s3_uri) {
            findings.push(not_s3(
                "/workload/script/source_s3_uri",
                &script.source_s3_uri,
            ));
        }
    }
    if let Some(attempts) = workload
        .techniques
        .retry_attempts
        .filter(|attempts| !(1..=30).contains(attempts))
    {
        findings.push(
            found("retry-attempts", "/workload/techniques/retry_attempts")
                .says(format!("retry_attempts is {attempts}; 1 to 30 are allowed"))
                .patch(vec![Operation::set(
                    "/workload/techniques/retry_attempts",
                    attempts.clamp(1, 30),
                )]),
        );
    }
    if workload.omit_plan_hyperparameters {
        findings.push(found(
            "plan-hyperparameters-omitted",
            "/workload/omit_plan_hyperparameters",
        ));
    }
    if workload
        .global_batch
        .is_some_and(|batch| !(1..=GLOBAL_BATCH_MAX).contains(&batch))
    {
        findings.push(found("model-shape", "/workload/global_batch").says(format!(
            "global_batch is not between 1 and {GLOBAL_BATCH_MAX}"
        )));
    }
}

fn is_s3(uri: &str) -> bool {
    uri.strip_prefix("s3://")
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && uri.len() <= 1024)
}

fn not_s3(pointer: &str, uri: &str) -> Finding {
    found("s3-uri", pointer)
        .says(format!("`{uri}` is not an S3 URI"))
        .fix("use s3://bucket/prefix")
}
