//! Rules on a training job, whatever document it was read from: spot, warm pools, volumes,
//! clusters, checkpoints, health. [`super::libraries`] checks distributed training libraries.

use std::collections::BTreeSet;

use bakeoff_domain::catalog::{self, EFA_VARIABLES, InstanceType, regions};
use bakeoff_domain::finding::{FINDINGS_MAX, Finding, Operation, Severity, nearest};
use serde_json::{Value, json};

use super::job::{Group, Job, Located, Member, Origin};
use crate::render::sdk;
use crate::rules::found;

/// A spot job this short may start over after an interruption.
const SPOT_WITHOUT_CHECKPOINT_SECONDS: u64 = 3600;
/// SageMaker's default for MaxRuntimeInSeconds.
const MAX_RUNTIME_DEFAULT: u64 = 86_400;
/// The longest wait on spot for built-in and marketplace algorithms without checkpoints.
const ALGORITHM_WAIT_SECONDS: u64 = 3600;
/// A job may take 30 days in all.
const WAIT_SECONDS_MAX: u64 = 30 * 86_400;
const KEEP_ALIVE_SECONDS_MAX: u64 = bakeoff_domain::lifecycle::pool::KEEP_ALIVE_SECONDS_MAX as u64;
/// Allowed values of ProfilingIntervalInMilliseconds.
const INTERVALS: [u64; 6] = [100, 200, 500, 1000, 5000, 60_000];

pub(super) fn check(job: &Job, findings: &mut Vec<Finding>) {
    // All candidates of an experiment share these, so they are checked once, on the experiment.
    if !matches!(job.origin, Origin::Candidate(_)) {
        spot(job, findings);
        warm_pool(job, findings);
    }
    volumes(job, findings);
    clusters(job, findings);
    observers(job, findings);
    health(job, findings);
    efa(job, findings);
    words(job, findings);
}

fn spot(job: &Job, findings: &mut Vec<Finding>) {
    let runtime = job
        .max_runtime
        .as_ref()
        .map_or(MAX_RUNTIME_DEFAULT, |seconds| seconds.value);
    match (&job.max_wait, job.is_spot) {
        (Some(wait), true) if wait.value < runtime => findings.push(
            found("spot-max-wait-below-max-runtime", &wait.pointer)
                .says(format!(
                    "waiting and training are limited to {} s in total, but the maximum runtime is {runtime} s: the job could never finish",
                    wait.value
                ))
                .fix(format!("set it to at least {runtime}"))
                .patch(job.origin.set(Member::MaxWait, wait_for(runtime))),
        ),
        (None, true) => findings.push(
            found("spot-needs-max-wait", job.pointer(Member::MaxWait))
                .patch(job.origin.set(Member::MaxWait, wait_for(runtime))),
        ),
        (Some(wait), false) => {
            findings.push(found("max-wait-without-spot", &wait.pointer));
        }
        _ => {}
    }
    let waits = job
        .max_wait
        .as_ref()
        .filter(|wait| wait.value > ALGORITHM_WAIT_SECONDS);
    if let Some(wait) = waits.filter(|_| job.is_spot && job.is_algorithm && !job.has_checkpoint) {
        findings.push(found("algorithm-spot-wait", &wait.pointer));
    }
    if job.is_spot && !job.has_checkpoint && runtime > SPOT_WITHOUT_CHECKPOINT_SECONDS {
        findings.push(found(
            "spot-needs-checkpoint",
            job.pointer(Member::Checkpoint),
        ));
    }
}

/// A suitable wait for a runtime: twice as long, within SageMaker's limit.
pub(super) fn wait_for(runtime: u64) -> u64 {
    runtime.saturating_mul(2).min(WAIT_SECONDS_MAX).max(runtime)
}

fn warm_pool(job: &Job, findings: &mut Vec<Finding>) {
    let Some(keep_alive) = &job.keep_alive else {
        return;
    };
    if keep_alive.value > KEEP_ALIVE_SECONDS_MAX {
        findings.push(
            found("keep-alive", &keep_alive.pointer)
                .says(format!(
                    "instances would be kept warm for {} s",
                    keep_alive.value
                ))
                .patch(job.origin.set(Member::KeepAlive, KEEP_ALIVE_SECONDS_MAX)),
        );
    }
    if job.is_spot {
        findings.push(found("keep-alive-with-spot", &keep_alive.pointer));
    }
    if job.is_mixed {
        findings.push(found("keep-alive-with-mixed-cluster", &keep_alive.pointer));
    }
}

fn volumes(job: &Job, findings: &mut Vec<Finding>) {
    let is_known = |group: &Group| catalog::find(&group.instance_type.value).is_some();
    let nvme = job.groups.iter().find_map(|group| {
        let kind = catalog::find(&group.instance_type.value)?;
        (kind.nvme_gb > 0).then_some(kind)
    });
    match (nvme, &job.volume_gb) {
        (Some(kind), Some(volume))
            if matches!(job.origin, Origin::Candidate(_)) || volume.value > 30 =>
        {
            findings.push(found("volume-on-nvme", &volume.pointer).says(format!(
                "{} GB are requested, but {} has {} GB of local NVMe: SageMaker creates no volume there",
                volume.value, kind.instance_type, kind.nvme_gb
            )));
        }
        (None, volume)
            if job.origin == Origin::Body
                && !job.groups.is_empty()
                && job.groups.iter().all(is_known)
                && volume.as_ref().is_none_or(|volume| volume.value == 0) =>
        {
            findings.push(
                found("volume-missing", job.pointer(Member::Volume))
                    .patch(job.origin.set(Member::Volume, 30)),
            );
        }
        _ => {}
    }
    if let (Some(kind), Some(pointer)) = (nvme, &job.volume_key) {
        findings.push(
            found("volume-key-on-nvme", pointer)
                .says(format!(
                    "{} has local NVMe, which the instance itself encrypts",
                    kind.instance_type
                ))
                .patch(vec![Operation::remove(pointer)]),
        );
    }
}

fn clusters(job: &Job, findings: &mut Vec<Finding>) {
    let unknown = job
        .groups
        .iter()
        .filter(|group| catalog::find(&group.instance_type.value).is_none());
    for group in unknown.take(FINDINGS_MAX + 1) {
        findings.push(unknown_type(
            &group.instance_type.value,
            &group.instance_type.pointer,
        ));
    }
    if let Some(compiler) = job.compiler.as_ref().filter(|_| job.is_mixed) {
        findings.push(found("compiler-with-mixed-cluster", compiler.clone()));
    }
    if let Some(region) = &job.region {
        let groups = job.groups.iter().take(FINDINGS_MAX + 1);
        findings
            .extend(groups.filter_map(|group| not_in_region(&group.instance_type, &region.value)));
    }
    if let (Some(region), Some((of_image, pointer))) = (&job.region, &job.image_region)
        && *of_image != region.value
    {
        findings.push(found("image-region", pointer).says(format!(
            "the image is in {of_image}, and the job runs in {}",
            region.value
        )));
    }
}

/// Families whose successors are years old: AWS brings them to no other region.
const SUPERSEDED: [&str; 3] = ["p2", "p3", "p3dn"];

/// Reports a type that EC2 does not list in a region: SageMaker cannot have it there.
fn not_in_region(instance_type: &Located<String>, region: &str) -> Option<Finding> {
    let regions = regions::of(&instance_type.value).filter(|all| !all.contains(&region))?;
    let mut finding = found("type-not-in-region", &instance_type.pointer);
    let family = catalog::find(&instance_type.value).map(InstanceType::family);
    if family.is_some_and(|family| SUPERSEDED.contains(&family)) {
        finding.severity = Severity::Refused;
    }
    Some(finding.says(format!(
        "EC2 listed no {} in {region} on {}; it did in {}",
        instance_type.value,
        regions::AS_OF,
        regions.join(", ")
    )))
}

/// Reports a name that is not in the catalog, with the nearest names.
pub(super) fn unknown_type(name: &str, pointer: &str) -> Finding {
    let near = catalog::nearest(name);
    let fix = if near.is_empty() {
        "GET /v1/instance-types lists the valid names".to_owned()
    } else {
        format!("did you mean {}?", near.join(", "))
    };
    let patch = match near.as_slice() {
        [only] => vec![Operation::set(pointer, *only)],
        _ => Vec::new(),
    };
    found("unknown-instance-type", pointer)
        .says(format!(
            "`{name}` is not a SageMaker training instance type"
        ))
        .fix(fix)
        .patch(patch)
}

fn is_profiler_rule(name: &str) -> bool {
    sdk::profiler_rules().any(|known| known == name)
}

/// The rules to use instead of one that does not exist.
fn instead_of_rule(name: &str, all: Vec<&'static str>) -> String {
    if name.contains("Utilization") {
        return "use the profiler's LowGPUUtilization and CPUBottleneck, or ProfilerReport for all of them"
            .to_owned();
    }
    let close = nearest(name, all.iter().copied(), 2);
    let listed = if close.is_empty() { all } else { close };
    format!("use {}", listed.join(", "))
}

fn profiler_rules(job: &Job, findings: &mut Vec<Finding>) {
    for rule in job
        .profiler_rules
        .iter()
        .filter(|rule| !is_profiler_rule(&rule.value))
        .take(FINDINGS_MAX + 1)
    {
        let fix = if rule.value == "HardwareUtilization" {
            "use LowGPUUtilization and CPUBottleneck, or ProfilerReport for all of them".to_owned()
        } else {
            instead_of_rule(&rule.value, sdk::profiler_rules().collect())
        };
        findings.push(
            found("profiler-rule", &rule.pointer)
                .says(format!("there is no profiler rule `{}`", rule.value))
                .fix(fix),
        );
    }
}

fn debugger_rules(job: &Job, findings: &mut Vec<Finding>) {
    let is_debugger = |name: &str| sdk::debug_rules().any(|known| known == name);
    for rule in job
        .debug_rules
        .iter()
        .filter(|rule| !is_debugger(&rule.value))
        .take(FINDINGS_MAX + 1)
    {
        if is_profiler_rule(&rule.value) {
            findings.push(
                found("profiler-rule-as-debug-rule", &rule.pointer)
                    .says(format!("{} is a profiler rule", rule.value)),
            );
        } else {
            findings.push(
                found("debug-rule", &rule.pointer)
                    .says(format!("there is no debugger rule `{}`", rule.value))
                    .fix(instead_of_rule(&rule.value, sdk::debug_rules().collect())),
            );
        }
    }
}

/// Checks profiler and debugger.
fn observers(job: &Job, findings: &mut Vec<Finding>) {
    profiler_rules(job, findings);
    debugger_rules(job, findings);
    let evaluated = job.profiler_rules.first().or(job.debug_rules.first());
    if let (Some(region), Some(rule)) = (&job.region, evaluated)
        && !sdk::has_rules(&region.value)
    {
        findings.push(found("rules-not-in-region", &rule.pointer).says(format!(
            "AWS has no image in {} to evaluate {}",
            region.value, rule.value
        )));
    }
    if let (Some(disabled), Some(rule)) = (&job.profiler_disabled, job.profiler_rules.first()) {
        findings.push(
            found("profiler-disabled-with-rules", disabled)
                .says(format!(
                    "the profiler is disabled, but {} needs it",
                    rule.value
                ))
                .patch(vec![Operation::remove(disabled)]),
        );
    }
    if let Some(interval) = job
        .profiler_interval
        .as_ref()
        .filter(|ms| !INTERVALS.contains(&ms.value))
    {
        let above = INTERVALS
            .iter()
            .copied()
            .find(|ms| *ms >= interval.value)
            .unwrap_or(60_000);
        findings.push(
            found("profiler-interval", &interval.pointer)
                .says(format!(
                    "{} ms is not a valid profiling interval",
                    interval.value
                ))
                .patch(vec![Operation::set(&interval.pointer, above)]),
        );
    }
}

/// SageMaker neither checks hardware nor restarts jobs unless told to.
fn health(job: &Job, findings: &mut Vec<Finding>) {
    if job.instances() > 1 && !job.retries && !job.checks_infrastructure {
        let patch = match job.origin {
            Origin::Body => vec![
                Operation::set("/RetryStrategy", json!({"MaximumRetryAttempts": 3})),
                Operation::set("/InfraCheckConfig", json!({"EnableInfraCheck": true})),
            ],
            Origin::Estimator => {
                vec![
                    Operation::set("/max_retry_attempts", 3),
                    Operation::set("/enable_infra_check", true),
                ]
            }
            Origin::Candidate(_) => {
                vec![Operation::set(
                    "/workload/techniques",
                    json!({"retry_attempts": 3, "infra_check": true}),
                )]
            }
        };
        let is_free = !(matches!(job.origin, Origin::Candidate(_))
            && (job.has_profiler || job.has_debugger || job.compiler.is_some()));
        findings.push(
            found("health-is-opt-in", job.pointer(Member::Retry))
                .says(format!(
                    "{} instances with neither InfraCheckConfig nor RetryStrategy: by default, SageMaker neither checks the hardware \
                     nor restarts the job after an internal fault",
                    job.instances()
                ))
                .patch(if is_free { patch } else { Vec::new() }),
        );
    }
}

/// The network between instances, where SageMaker's toolkit does not set it up.
fn efa(job: &Job, findings: &mut Vec<Finding>) {
    let is_meant = |group: &&Group| {
        catalog::find(&group.instance_type.value).is_some_and(InstanceType::needs_efa_variables)
    };
    let Some(group) = job.groups.iter().find(is_meant) else {
        return;
    };
    let missing: Vec<_> = EFA_VARIABLES
        .into_iter()
        .filter(|(name, value)| job.environment.get(*name).is_none_or(|own| own != value))
        .collect();
    if job.instances() < 2 || missing.is_empty() {
        return;
    }
    let place = match job.origin {
        // The request that is sent has them.
        Origin::Candidate(_) => {
            let note = found("efa-variables-are-set", &group.instance_type.pointer);
            return findings.push(note);
        }
        Origin::Body => "/Environment",
        Origin::Estimator => "/environment",
    };
    let wanted: Vec<String> = missing
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    findings.push(
        found("efa-variables", &group.instance_type.pointer)
            .says(format!(
                "{} instances of {} without {}: SageMaker's training toolkit does not set all of them there, and NCCL may fall \
                 back to TCP or hang",
                job.instances(),
                group.instance_type.value,
                wanted.join(" and "),
            ))
            .patch(with_variables(place, job.has_environment, &missing)),
    );
}

/// A patch that sets variables, and keeps the others.
fn with_variables(place: &str, is_there: bool, variables: &[(&str, &str)]) -> Vec<Operation> {
    let object = (!is_there).then(|| Operation::set(place, json!({})));
    let set = |(name, value): &(&str, &str)| Operation::set(&format!("{place}/{name}"), *value);
    object
        .into_iter()
        .chain(variables.iter().map(set))
        .collect()
}

/// Reports names that are mistaken for features.
fn words(job: &Job, findings: &mut Vec<Finding>) {
    let is_invented = |word: &str| word.to_lowercase().contains("hyperscaler");
    for word in job.words.iter().filter(|word| is_invented(&word.value)) {
        findings.push(found("hyperscaler", &word.pointer));
    }
    for key in &job.hyperparameters {
        let meant = match key.value.as_str() {
            "amp" => "mixed precision is up to the script: SageMaker has no such setting",
            "use_nvme_cache" => {
                "an NVMe cache is up to the script; instance types with NVMe mount it as the volume anyway"
            }
            "use_smddp" | "use_spot" | "use_spot_instances" => {
                "the script cannot turn this on from inside the job"
            }
            _ => continue,
        };
        findings.push(
            found("only-the-script-sees-it", &key.pointer)
                .says(format!("`{}`: {meant}", key.value)),
        );
    }
}

/// Reports fixed job names, which can be used only once.
pub(super) fn fixed_name(name: &str, pointer: &str, findings: &mut Vec<Finding>) {
    if !name.is_empty() && !name.chars().any(|letter| letter.is_ascii_digit()) {
        findings.push(found("fixed-job-name", pointer).says(format!(
            "`{name}` contains nothing unique, such as a date or a number"
        )));
    }
}

/// Checks InstancePreferences: what they cannot be combined with, and how counts are given.
pub(super) fn preferences(body: &Value, findings: &mut Vec<Finding>) {
    let at = "/ResourceConfig/InstancePreferences";
    let Some(preferences) = body.pointer(at).and_then(Value::as_array) else {
        return;
    };
    let resources = body.get("ResourceConfig").unwrap_or(&Value::Null);
    let is_spot = body.get("EnableManagedSpotTraining") == Some(&Value::Bool(true));
    let beside: Vec<&str> = ["InstanceType", "InstanceGroups", "InstancePlacementConfig"]
        .into_iter()
        .filter(|name| resources.get(name).is_some())
        .chain(is_spot.then_some("managed spot training"))
        .collect();
    if !beside.is_empty() {
        findings.push(found("preferences-alone", at).says(format!(
            "InstancePreferences cannot be combined with {}",
            beside.join(", ")
        )));
    }
    let counted = preferences
        .iter()
        .filter(|one| one.get("InstanceCount").is_some())
        .count();
    let on_all = resources.get("InstanceCount").is_some();
    if (counted > 0 && (counted < preferences.len() || on_all)) || (counted == 0 && !on_all) {
        findings.push(found("preferences-counts", at));
    }
    let kinds: Vec<&str> = preferences
        .iter()
        .filter_map(|one| one.get("InstanceType")?.as_str())
        .collect();
    if kinds.iter().collect::<BTreeSet<_>>().len() < kinds.len() {
        findings.push(found("preferences-twice", at));
    }
    let has_plans = preferences
        .iter()
        .any(|one| one.get("TrainingPlanArns").is_some());
    if has_plans && resources.get("TrainingPlanArn").is_some() {
        findings.push(
            found("preferences-training-plan", at)
                .patch(vec![Operation::remove("/ResourceConfig/TrainingPlanArn")]),
        );
    }
}

/// Finds channels that name no instance group although others do.
fn channel_groups(body: &Value, findings: &mut Vec<Finding>) {
    let channels = body.get("InputDataConfig").and_then(Value::as_array);
    let assigned = |channel: &&Value| {
        channel
            .pointer("/DataSource/S3DataSource/InstanceGroupNames")
            .is_some()
    };
    let total = channels.map_or(0, Vec::len);
    let count = channels.into_iter().flatten().filter(assigned).count();
    if count > 0 && count < total {
        findings.push(found("channel-groups", "/InputDataConfig"));
    }
}

/// Checks instance groups: they must be complete, replace the single type, and have their channels
/// assigned.
pub(super) fn groups(body: &Value, findings: &mut Vec<Finding>) {
    let at = "/ResourceConfig/InstanceGroups";
    let Some(groups) = body.pointer(at).and_then(Value::as_array) else {
        return;
    };
    let has = |member: &str| body.pointer(&format!("/ResourceConfig/{member}")).is_some();
    if has("InstanceType") || has("InstanceCount") {
        findings.push(found("groups-or-type", at));
    }
    for (index, group) in groups.iter().enumerate() {
        let missing = ["InstanceGroupName", "InstanceType", "InstanceCount"]
            .into_iter()
            .filter(|m| group.get(m).is_none());
        let missing: Vec<&str> = missing.collect();
        if !missing.is_empty() {
            findings.push(
                found("group-incomplete", format!("{at}/{index}"))
                    .says(format!("{} is missing", missing.join(", "))),
            );
        }
    }
    channel_groups(body, findings);
    let starts = [
        "sagemaker_mpi_enabled",
        "sagemaker_distributed_dataparallel_enabled",
    ];
    let hyper = body.get("HyperParameters").unwrap_or(&Value::Null);
    if hyper
        .get("sagemaker_distribution_instance_groups")
        .is_some()
        && !starts.iter().any(|key| hyper.get(key).is_some())
    {
        findings.push(found(
            "groups-without-distribution",
            "/HyperParameters/sagemaker_distribution_instance_groups",
        ));
    }
}
