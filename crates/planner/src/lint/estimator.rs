//! Rules on the arguments of the SageMaker SDK's estimators, as a notebook passes them to
//! `PyTorch(…)`, and reading them into a [`Job`]. [`crate::render::estimator`] has the request that
//! the SDK would send for them.

mod arguments;

use bakeoff_domain::finding::{FINDINGS_MAX, Finding, Operation, Severity, escaped, nearest};
use bakeoff_domain::spec::ParallelLibrary;
use serde_json::{Map, Value, json};

use super::api::Call;
use super::job::{Group, Job, Located, Origin, registry_region, strings};
use super::{bodies, libraries, shape, training};
use crate::render::{estimator, sdk};
use crate::rules::found;

/// Keys of `distribution` (sagemaker 2.257.7).
const DISTRIBUTIONS: [&str; 8] = [
    "smdistributed",
    "torch_distributed",
    "pytorchddp",
    "mpi",
    "parameter_server",
    "multi_worker_mirrored_strategy",
    "pytorchxla",
    "instance_groups",
];
const CLASSES: [&str; 4] = [
    "sagemaker.pytorch.PyTorch",
    "sagemaker.tensorflow.TensorFlow",
    "sagemaker.huggingface.HuggingFace",
    "sagemaker.estimator.Estimator",
];

/// Checks the arguments, and the training job that they make.
pub(super) fn check(document: &Value, findings: &mut Vec<Finding>) {
    let Some(arguments) = document.as_object() else {
        return;
    };
    let (read, wrong) = estimator::read(arguments);
    let read = Value::Object(read);
    findings.extend(arguments::renamed(arguments));
    findings.extend(wrong.iter().map(arguments::of_wrong_type));
    let mut own = Vec::new();
    as_meant(&read, &mut own);
    let job = job(&read);
    training::check(&job, &mut own);
    libraries::check(&job, &mut own);
    rendered(&read, &mut own);
    own.retain(|finding| arguments::is_known(&finding.pointer, &wrong));
    for finding in &mut own {
        arguments::point_at_written(finding, arguments);
    }
    findings.append(&mut own);
}

/// Checks the arguments by themselves, as they were meant.
fn as_meant(document: &Value, findings: &mut Vec<Finding>) {
    let Some(arguments) = document.as_object() else {
        return;
    };
    class(arguments, findings);
    findings.extend(arguments::unknown(arguments));
    if arguments
        .get("compiler_config")
        .is_some_and(Value::is_object)
    {
        findings.push(found("compiler-config-class", "/compiler_config"));
    }
    let has_type =
        arguments.contains_key("instance_type") || arguments.contains_key("instance_groups");
    for (missing, is_there) in [
        ("instance_type", has_type),
        ("role", arguments.contains_key("role")),
    ] {
        if !is_there {
            findings.push(
                found("argument-missing", format!("/{missing}"))
                    .says(format!("{missing} is missing")),
            );
        }
    }
    if arguments.contains_key("instance_type") && arguments.contains_key("instance_groups") {
        findings.push(found("groups-or-type", "/instance_groups"));
    }
    if let Some(distribution) = arguments.get("distribution").and_then(Value::as_object) {
        self::distribution(
            distribution,
            arguments.contains_key("compiler_config"),
            findings,
        );
    }
    engines(document, arguments, findings);
    if let Some(name) = arguments.get("job_name").and_then(Value::as_str) {
        training::fixed_name(name, "/job_name", findings);
    }
}

/// Checks what starts the script against other engines that its settings would start.
fn engines(document: &Value, arguments: &Map<String, Value>, findings: &mut Vec<Finding>) {
    let has_deepspeed = ["deepspeed", "deepspeed_config"].iter().any(|key| {
        document
            .pointer(&format!("/hyperparameters/{key}"))
            .is_some()
    });
    let smp = [ParallelLibrary::SmpV1, ParallelLibrary::SmpV2];
    if has_deepspeed
        && let Some((_, pointer)) = estimator::libraries(arguments)
            .iter()
            .find(|(one, _)| smp.contains(one))
    {
        findings.push(found("two-engines", pointer));
    }
    let is_named = document.pointer("/distribution/instance_groups").is_some();
    let starts = [ParallelLibrary::Horovod, ParallelLibrary::Smddp];
    if is_named
        && !estimator::libraries(arguments)
            .iter()
            .any(|(one, _)| starts.contains(one))
    {
        findings.push(found(
            "groups-without-distribution",
            "/distribution/instance_groups",
        ));
    }
}

fn class(arguments: &Map<String, Value>, findings: &mut Vec<Finding>) {
    let Some(class) = arguments.get("sdk_class").and_then(Value::as_str) else {
        return;
    };
    if CLASSES.contains(&class) {
        return;
    }
    if class.to_lowercase().contains("horovod") {
        let mut patch = vec![Operation::set("/sdk_class", "sagemaker.pytorch.PyTorch")];
        if !arguments.contains_key("distribution") {
            patch.push(Operation::set(
                "/distribution",
                json!({"mpi": {"enabled": true}}),
            ));
        }
        findings.push(found("horovod-estimator", "/sdk_class").patch(patch));
        return;
    }
    let near = nearest(class, CLASSES.into_iter(), 2);
    let listed = if near.is_empty() {
        CLASSES.join(", ")
    } else {
        near.join(" or ")
    };
    findings.push(
        found("estimator-class", "/sdk_class")
            .says(format!("there is no estimator `{class}`"))
            .fix(format!("use {listed}")),
    );
}

fn distribution(
    distribution: &Map<String, Value>,
    has_compiler: bool,
    findings: &mut Vec<Finding>,
) {
    let unknown = distribution
        .iter()
        .take(FINDINGS_MAX + 1)
        .filter(|(key, _)| !DISTRIBUTIONS.contains(&key.as_str()));
    findings.extend(unknown.map(|(key, value)| unknown_distribution(key, value)));
    if distribution.contains_key("pytorchxla") && !has_compiler {
        findings.push(found("xla-without-compiler", "/distribution/pytorchxla"));
    }
    if distribution.contains_key("pytorchddp") {
        findings.push(found("pytorchddp-is-smddp", "/distribution/pytorchddp"));
        if distribution.contains_key("smdistributed") {
            findings.push(found("two-libraries", "/distribution/smdistributed"));
        }
    }
}

fn unknown_distribution(key: &str, value: &Value) -> Finding {
    let pointer = format!("/distribution/{}", escaped(key));
    let finding =
        found("distribution-key", &pointer).says(format!("the SDK has no distribution `{key}`"));
    let instead = |member: &str, value: Value| {
        vec![
            Operation::remove(&pointer),
            Operation::set(&format!("/distribution/{member}"), value),
        ]
    };
    let inner = key
        .strip_prefix("smdistributed_")
        .or_else(|| key.strip_prefix("smdistributed."));
    match (key, inner) {
        (_, Some(library @ ("dataparallel" | "modelparallel"))) => finding
            .fix(format!(
                "write {{\"smdistributed\": {{\"{library}\": …}}}}"
            ))
            .patch(instead("smdistributed", json!({ library: value }))),
        ("pytorchx" | "pytorch_ddp" | "ddp" | "torchrun" | "torch", _) => finding
            .fix(
                "use torch_distributed, which starts the script with torchrun; pytorchddp is the SDK's option for native DDP, \
                 and becomes SageMaker's data parallel library",
            )
            .patch(instead("torch_distributed", json!({"enabled": true}))),
        ("horovod", _) => finding
            .fix("Horovod is started through mpi")
            .patch(instead("mpi", json!({"enabled": true}))),
        _ => {
            let near = nearest(key, DISTRIBUTIONS.into_iter(), 2);
            finding.fix(match near.as_slice() {
                [] => format!("use one of {}", DISTRIBUTIONS.join(", ")),
                near => format!("did you mean {}?", near.join(" or ")),
            })
        }
    }
}

/// Reads the arguments into a job.
fn job(document: &Value) -> Job {
    let mut job = Job::new(Origin::Estimator);
    let Some(arguments) = document.as_object() else {
        return job;
    };
    let text = |key: &str| arguments.get(key).and_then(Value::as_str);
    let number = |key: &str| {
        arguments
            .get(key)
            .and_then(Value::as_u64)
            .map(|value| Located::new(value, format!("/{key}")))
    };
    let flag = |key: &str| arguments.get(key).and_then(Value::as_bool).unwrap_or(false);
    groups(arguments, &mut job);
    job.region = text("region").map(|region| Located::new(region.to_owned(), "/region"));
    job.is_spot = flag("use_spot_instances");
    job.max_runtime = number("max_run");
    job.max_wait = number("max_wait");
    job.keep_alive = number("keep_alive_period_in_seconds").filter(|seconds| seconds.value > 0);
    job.has_checkpoint = text("checkpoint_s3_uri").is_some();
    job.volume_gb = number("volume_size");
    job.volume_key = text("volume_kms_key").map(|_| "/volume_kms_key".to_owned());
    image(arguments, &mut job);
    job.compiler = arguments
        .get("compiler_config")
        .map(|_| "/compiler_config".to_owned());
    observers(arguments, &mut job);
    job.retries = arguments.contains_key("max_retry_attempts");
    job.checks_infrastructure = flag("enable_infra_check");
    job.environment = strings(arguments.get("environment"));
    job.has_environment = arguments.get("environment").is_some_and(Value::is_object);
    job.entry_point =
        text("entry_point").map(|script| Located::new(script.to_owned(), "/entry_point"));
    for key in ["sdk_class", "base_job_name", "job_name"] {
        job.words
            .extend(text(key).map(|word| Located::new(word.to_owned(), format!("/{key}"))));
    }
    job.words.extend(job.entry_point.clone());
    let hyper = arguments
        .get("hyperparameters")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    job.hyperparameters = hyper
        .map(|(key, _)| Located::new(key.clone(), format!("/hyperparameters/{}", escaped(key))))
        .collect();
    launchers(arguments, &mut job);
    job
}

/// Reads the image, its framework and its region.
fn image(arguments: &Map<String, Value>, job: &mut Job) {
    let place = if arguments.contains_key("image_uri") {
        "/image_uri"
    } else {
        "/framework_version"
    };
    job.image = estimator::image(arguments)
        .and_then(|uri| sdk::image(&uri))
        .map(|image| Located::new(image, place));
    job.image_region = arguments
        .get("image_uri")
        .and_then(Value::as_str)
        .and_then(registry_region)
        .map(|region| (region.to_owned(), "/image_uri".to_owned()));
}

/// Reads one instance type, or several at once.
fn groups(arguments: &Map<String, Value>, job: &mut Job) {
    let of = |members: &Map<String, Value>, place: &str| {
        let kind = members.get("instance_type")?.as_str()?;
        Some(Group {
            instance_type: Located::new(kind.to_owned(), format!("{place}/instance_type")),
            count: Located::new(
                members.get("instance_count")?.as_u64()?,
                format!("{place}/instance_count"),
            ),
        })
    };
    if let Some(listed) = arguments.get("instance_groups").and_then(Value::as_array) {
        job.is_mixed = true;
        let listed = listed.iter().enumerate();
        job.groups = listed
            .filter_map(|(index, group)| {
                of(group.as_object()?, &format!("/instance_groups/{index}"))
            })
            .collect();
        return;
    }
    let mut whole = arguments.clone();
    if !whole.get("instance_count").is_some_and(Value::is_u64) {
        whole.insert("instance_count".to_owned(), 1.into());
    }
    job.groups = of(&whole, "").into_iter().collect();
}

/// Reads Debugger and Profiler.
fn observers(arguments: &Map<String, Value>, job: &mut Job) {
    let is_off = arguments
        .get("disable_profiler")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    job.has_debugger = arguments
        .get("debugger_hook_config")
        .is_some_and(|value| *value != json!(false));
    job.has_profiler = arguments.contains_key("profiler_config") && !is_off;
    job.profiler_disabled = is_off.then(|| "/disable_profiler".to_owned());
    job.profiler_interval = arguments
        .get("profiler_config")
        .and_then(|config| config.get("system_monitor_interval_millis"))
        .and_then(Value::as_u64)
        .map(|ms| Located::new(ms, "/profiler_config/system_monitor_interval_millis"));
    rules(arguments, job);
}

/// Reads `rules`: `{"profiler_rule": "ProfilerReport"}` for ProfilerRule.sagemaker, `{"rule":
/// "VanishingGradient"}` for Rule.sagemaker.
fn rules(arguments: &Map<String, Value>, job: &mut Job) {
    for (index, rule) in arguments
        .get("rules")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
    {
        let named = |key: &str| {
            rule.get(key)
                .and_then(Value::as_str)
                .map(|name| Located::new(name.to_owned(), format!("/rules/{index}/{key}")))
        };
        job.profiler_rules.extend(named("profiler_rule"));
        job.debug_rules.extend(named("rule"));
    }
}

fn launchers(arguments: &Map<String, Value>, job: &mut Job) {
    for (library, pointer) in estimator::libraries(arguments) {
        job.libraries.push(Located::new(library, pointer));
    }
    let Some(distribution) = arguments.get("distribution").and_then(Value::as_object) else {
        return;
    };
    let is_on = |key: &str| estimator::is_enabled(distribution.get(key));
    job.has_mpi = is_on("mpi");
    job.has_torch_distributed = is_on("torch_distributed");
    job.processes_per_host = distribution
        .get("mpi")
        .and_then(|mpi| mpi.get("processes_per_host"))
        .and_then(Value::as_u64)
        .map(|count| Located::new(count, "/distribution/mpi/processes_per_host"));
    let is_smp = job
        .libraries
        .iter()
        .find(|found| matches!(found.value, ParallelLibrary::SmpV1 | ParallelLibrary::SmpV2));
    let Some(library) = is_smp else { return };
    let parameters = distribution
        .values()
        .chain(
            distribution
                .get("smdistributed")
                .and_then(|inner| inner.get("modelparallel")),
        )
        .find_map(|value| value.get("parameters")?.as_object().cloned());
    let place = format!("{}/parameters", library.pointer);
    job.smp = Some(Located::new(parameters.unwrap_or_default(), place));
}

/// Reports what SageMaker itself would refuse in the request that the SDK sends, beyond what the
/// rules above have reported.
fn rendered(document: &Value, findings: &mut Vec<Finding>) {
    let Some(arguments) = document.as_object() else {
        return;
    };
    let mut whole = document.clone();
    if let Some(arguments) = whole.as_object_mut() {
        arguments
            .entry("image_uri")
            .or_insert_with(|| "image:1".into());
    }
    let Ok(body) = estimator::body(&whole, "1") else {
        return;
    };
    let mut refused = Vec::new();
    shape::check(Call::TrainingJob, &body, &mut refused);
    bodies::security_groups(&body, &mut refused);
    for mut finding in refused
        .into_iter()
        .filter(|finding| finding.severity >= Severity::Refused)
    {
        // A role may be given by name: the SDK looks up its ARN. Debugger and Profiler write to the job's own
        // output, of which the same is said.
        let is_of_output = [
            "/DebugHookConfig/S3OutputPath",
            "/ProfilerConfig/S3OutputPath",
        ]
        .contains(&finding.pointer.as_str());
        if finding.rule == "role-arn" || is_of_output {
            continue;
        }
        let place = match origin(&finding.pointer) {
            "/job_name" if !arguments.contains_key("job_name") => "/base_job_name",
            place => place,
        };
        place.clone_into(&mut finding.pointer);
        finding.patch = Vec::new();
        findings.push(finding);
    }
}

/// The argument that sets a member of the request.
fn origin(member: &str) -> &'static str {
    const PLACES: [(&str, &str); 23] = [
        ("/VpcConfig/Subnets", "/subnets"),
        ("/VpcConfig/SecurityGroupIds", "/security_group_ids"),
        ("/VpcConfig", "/subnets"),
        ("/Tags", "/tags"),
        ("/OutputDataConfig/KmsKeyId", "/output_kms_key"),
        ("/ResourceConfig/VolumeKmsKeyId", "/volume_kms_key"),
        ("/ResourceConfig/TrainingPlanArn", "/training_plan"),
        ("/AlgorithmSpecification/TrainingInputMode", "/input_mode"),
        (
            "/AlgorithmSpecification/ContainerArguments",
            "/container_arguments",
        ),
        ("/TrainingJobName", "/job_name"),
        ("/HyperParameters", "/hyperparameters"),
        ("/Environment", "/environment"),
        (
            "/AlgorithmSpecification/MetricDefinitions",
            "/metric_definitions",
        ),
        ("/AlgorithmSpecification", "/image_uri"),
        ("/InputDataConfig", "/inputs"),
        ("/OutputDataConfig", "/output_path"),
        ("/CheckpointConfig", "/checkpoint_s3_uri"),
        ("/StoppingCondition/MaxWaitTimeInSeconds", "/max_wait"),
        ("/StoppingCondition", "/max_run"),
        ("/RetryStrategy", "/max_retry_attempts"),
        ("/ResourceConfig/VolumeSizeInGB", "/volume_size"),
        (
            "/ResourceConfig/KeepAlivePeriodInSeconds",
            "/keep_alive_period_in_seconds",
        ),
        ("/ResourceConfig", "/instance_count"),
    ];
    PLACES
        .iter()
        .find(|(prefix, _)| member.starts_with(prefix))
        .map_or("/distribution", |(_, argument)| argument)
}

#[cfg(test)]
mod tests;
