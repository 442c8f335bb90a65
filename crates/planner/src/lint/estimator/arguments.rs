//! The arguments by themselves: which there are, under which names, and of which types.

use bakeoff_domain::finding::{FINDINGS_MAX, Finding, Operation, distance, escaped, nearest};
use serde_json::{Map, Value, json};

use crate::render::estimator::{self, WrongType};
use crate::rules::found;

/// Arguments of the framework estimators (sagemaker 2.257.7), plus ours: `sdk_class`, `region`,
/// `inputs`, `job_name`, `claims`.
const ARGUMENTS: [&str; 67] = [
    "sdk_class",
    "region",
    "inputs",
    "job_name",
    "claims",
    "notes",
    "entry_point",
    "source_dir",
    "code_location",
    "role",
    "framework_version",
    "pytorch_version",
    "tensorflow_version",
    "transformers_version",
    "py_version",
    "image_uri",
    "instance_type",
    "instance_count",
    "instance_groups",
    "volume_size",
    "volume_kms_key",
    "max_run",
    "max_wait",
    "use_spot_instances",
    "keep_alive_period_in_seconds",
    "checkpoint_s3_uri",
    "checkpoint_local_path",
    "hyperparameters",
    "environment",
    "distribution",
    "compiler_config",
    "rules",
    "debugger_hook_config",
    "profiler_config",
    "disable_profiler",
    "max_retry_attempts",
    "enable_infra_check",
    "output_path",
    "output_kms_key",
    "metric_definitions",
    "enable_sagemaker_metrics",
    "base_job_name",
    "tags",
    "subnets",
    "security_group_ids",
    "encrypt_inter_container_traffic",
    "enable_network_isolation",
    "input_mode",
    "dependencies",
    "container_log_level",
    "container_arguments",
    "container_entry_point",
    "disable_output_compression",
    "enable_remote_debug",
    "enable_session_tag_chaining",
    "git_config",
    "instance_placement_config",
    "model_channel_name",
    "model_dir",
    "model_uri",
    "recipe_overrides",
    "sagemaker_session",
    "tensorboard_output_config",
    "training_plan",
    "training_recipe",
    "training_repository_access_mode",
    "training_repository_credentials_provider_arn",
];
/// What no estimator takes.
pub(super) fn unknown(arguments: &Map<String, Value>) -> impl Iterator<Item = Finding> {
    let unknown = arguments
        .keys()
        .filter(|key| !ARGUMENTS.contains(&key.as_str()));
    unknown
        .take(FINDINGS_MAX + 1)
        .map(|key| unknown_argument(key, arguments))
}

fn unknown_argument(key: &str, arguments: &Map<String, Value>) -> Finding {
    let pointer = format!("/{}", escaped(key));
    let finding =
        found("unknown-argument", &pointer).says(format!("no estimator takes an argument `{key}`"));
    if key == "deepspeed_config" {
        return deepspeed_config(finding, arguments);
    }
    let known: Vec<&str> = ARGUMENTS
        .into_iter()
        .filter(|known| !arguments.contains_key(*known))
        .collect();
    match nearest(key, known.into_iter(), 1).as_slice() {
        [near] => {
            let value = arguments.get(key).cloned().unwrap_or_default();
            let rename = vec![
                Operation::remove(&pointer),
                Operation::set(&format!("/{near}"), value),
            ];
            // A typo is fixed automatically; a more distant name is left to the user.
            let is_slip = distance(key, near) * 5 <= key.chars().count();
            finding
                .fix(format!("did you mean {near}?"))
                .patch(if is_slip { rename } else { Vec::new() })
        }
        _ => finding.fix("remove it, or pass it to the script in hyperparameters"),
    }
}

/// Explains that the script takes the DeepSpeed configuration, and moves it to the hyperparameters.
fn deepspeed_config(finding: Finding, arguments: &Map<String, Value>) -> Finding {
    let Some(value) = arguments.get("deepspeed_config").cloned() else {
        return finding;
    };
    let mut all = arguments
        .get("hyperparameters")
        .cloned()
        .unwrap_or_else(|| json!({}));
    if let Value::Object(entries) = &mut all {
        entries.insert("deepspeed".to_owned(), value);
    }
    let patch = vec![
        Operation::remove(&finding.pointer),
        Operation::set("/hyperparameters", all),
    ];
    finding
        .says("the DeepSpeed configuration is an argument of the script (Hugging Face's Trainer: --deepspeed), not of the estimator")
        .fix("pass it in hyperparameters, and ship the file with the sources")
        .patch(patch)
}

/// Arguments under their names in the SDK's first version.
pub(super) fn renamed(arguments: &Map<String, Value>) -> impl Iterator<Item = Finding> {
    let old = estimator::RENAMED.into_iter();
    old.filter_map(|(old, new)| {
        let value = arguments.get(old)?.clone();
        let pointer = format!("/{old}");
        let finding = found("renamed-argument", &pointer)
            .says(format!("the SDK's second version calls {old} {new}"))
            .fix(format!("call it {new}"));
        Some(if arguments.contains_key(new) {
            finding
        } else {
            finding.patch(vec![
                Operation::remove(&pointer),
                Operation::set(&format!("/{new}"), value),
            ])
        })
    })
}

pub(super) fn of_wrong_type(wrong: &WrongType) -> Finding {
    let pointer = format!("/{}", wrong.written);
    let patch = wrong
        .certainly()
        .map(|value| Operation::set(&pointer, value.clone()));
    found("argument-type", &pointer)
        .says(wrong.why.clone())
        .fix(wrong.fix())
        .patch(patch.into_iter().collect())
}

/// Arguments that are judged together: where one was not read, what is said of another need not be so.
const OF_SPOT: [&str; 4] = [
    "use_spot_instances",
    "max_run",
    "max_wait",
    "checkpoint_s3_uri",
];

/// Whether what is said at a place rests on arguments that were read.
pub(super) fn is_known(pointer: &str, wrong: &[WrongType]) -> bool {
    let argument = pointer.split('/').nth(1).unwrap_or_default();
    let is_unread = |name: &str| {
        let mut own = wrong.iter().filter(|one| one.argument == name);
        own.any(|one| one.meant.is_none())
    };
    let is_wrong = wrong.iter().any(|one| one.argument == argument);
    let of_spot = OF_SPOT.contains(&argument) && OF_SPOT.iter().any(|name| is_unread(name));
    !is_wrong && !of_spot
}

/// Says what was found of an argument under its name in the SDK's first version, where the document has that.
pub(super) fn point_at_written(finding: &mut Finding, arguments: &Map<String, Value>) {
    for (old, new) in estimator::RENAMED {
        let is_old = arguments.contains_key(old) && !arguments.contains_key(new);
        let rest = finding.pointer.strip_prefix(&format!("/{new}"));
        if let Some(rest) = rest.filter(|rest| is_old && (rest.is_empty() || rest.starts_with('/')))
        {
            finding.pointer = format!("/{old}{rest}");
        }
    }
}
