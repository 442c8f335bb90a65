//! Arguments of the SDK's ModelTrainer (version 3, `sagemaker.train.ModelTrainer`): they are the
//! request's members under other names, so they are read into its body, and what is found there is
//! said of the argument.

use bakeoff_domain::finding::{Finding, escaped, nearest};
use serde_json::{Map, Value, json};

use super::api::Call;
use super::bodies::{self, Body};
use super::shape::{camel, shaped};
use crate::render::body::set;
use crate::render::sdk;
use crate::rules::found;

/// Arguments, and the member of the request that each is or belongs in; nothing for what the SDK uses
/// itself.
const ARGUMENTS: [(&str, &str); 27] = [
    ("sdk_class", ""),
    ("training_mode", ""),
    ("sagemaker_session", ""),
    ("base_job_name", "/TrainingJobName"),
    ("role", "/RoleArn"),
    ("source_code", ""),
    ("distributed", ""),
    ("compute", "/ResourceConfig"),
    ("networking", "/VpcConfig"),
    ("stopping_condition", "/StoppingCondition"),
    ("algorithm_name", "/AlgorithmSpecification/AlgorithmName"),
    ("training_image", "/AlgorithmSpecification/TrainingImage"),
    (
        "training_image_config",
        "/AlgorithmSpecification/TrainingImageConfig",
    ),
    (
        "training_input_mode",
        "/AlgorithmSpecification/TrainingInputMode",
    ),
    (
        "metric_definitions",
        "/AlgorithmSpecification/MetricDefinitions",
    ),
    ("output_data_config", "/OutputDataConfig"),
    ("input_data_config", "/InputDataConfig"),
    ("checkpoint_config", "/CheckpointConfig"),
    ("environment", "/Environment"),
    ("hyperparameters", "/HyperParameters"),
    ("tags", "/Tags"),
    ("local_container_root", ""),
    ("remote_debug_config", "/RemoteDebugConfig"),
    ("tensorboard_output_config", "/TensorBoardOutputConfig"),
    ("retry_strategy", "/RetryStrategy"),
    ("infra_check_config", "/InfraCheckConfig"),
    ("session_chaining_config", "/SessionChainingConfig"),
];

/// Arguments of `compute` and `networking` that are members of the request itself.
const MOVED: [(&str, &str, &str); 4] = [
    (
        "compute",
        "enable_managed_spot_training",
        "/EnableManagedSpotTraining",
    ),
    (
        "networking",
        "enable_network_isolation",
        "/EnableNetworkIsolation",
    ),
    (
        "networking",
        "enable_inter_container_traffic_encryption",
        "/EnableInterContainerTrafficEncryption",
    ),
    ("networking", "default_subnet", ""),
];

/// Whether a document is arguments of a ModelTrainer.
pub(super) fn is_trainer(document: &Map<String, Value>) -> bool {
    let class = document.get("sdk_class").and_then(Value::as_str);
    class.is_some_and(|class| class.ends_with("ModelTrainer"))
        || ["source_code", "compute", "training_image"]
            .iter()
            .filter(|member| document.contains_key(**member))
            .count()
            >= 2
}

/// Checks the arguments.
pub(super) fn check(document: &Value, findings: &mut Vec<Finding>) {
    let Some(arguments) = document.as_object() else {
        return;
    };
    let known = ARGUMENTS.map(|(name, _)| name);
    for key in arguments
        .keys()
        .filter(|key| !known.contains(&key.as_str()))
    {
        let near = nearest(key, known.into_iter(), 2);
        let finding = found("trainer-argument", format!("/{}", escaped(key)))
            .says(format!("ModelTrainer has no argument `{key}`"));
        findings.push(match near.as_slice() {
            [] => finding.fix("pass it to the script in hyperparameters, or set it on the request"),
            near => finding.fix(format!("did you mean {}?", near.join(" or "))),
        });
    }
    script(arguments, findings);
    let body = body(arguments);
    let mut own = Vec::new();
    let written = Body {
        call: Call::TrainingJob,
        value: &body,
        is_named_later: false,
        is_loose: false,
    };
    bodies::check(written, &mut own);
    for mut finding in own {
        finding.pointer = origin(arguments, &finding.pointer);
        // The fix of a body is no fix of arguments.
        finding.patch = Vec::new();
        findings.push(finding);
    }
}

/// Checks what is run: an image or an algorithm, and a script with its folder.
fn script(arguments: &Map<String, Value>, findings: &mut Vec<Finding>) {
    let Some(source) = arguments.get("source_code") else {
        return;
    };
    if source.get("entry_script").is_none() && source.get("command").is_none() {
        findings.push(
            found("trainer-source", "/source_code")
                .says("source_code names neither entry_script nor command")
                .fix("add \"entry_script\": \"train.py\""),
        );
    }
    let is_script = source.get("entry_script").is_some();
    if arguments.contains_key("distributed") && !is_script {
        findings.push(
            found("trainer-source", "/distributed")
                .says("distributed starts entry_script, which source_code does not name")
                .fix("name source_code.entry_script, or start the processes in command"),
        );
    }
}

/// The body that the SDK sends, as far as the rules read it. What the SDK fills in is filled in.
fn body(arguments: &Map<String, Value>) -> Value {
    let body = json!({
        "TrainingJobName": "job-1", "RoleArn": "arn:aws:iam::111122223333:role/default",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/output"},
        "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    });
    filled(body, arguments)
}

/// The members of the body that the arguments say; what the SDK would fill in is absent.
pub(crate) fn said(arguments: &Map<String, Value>) -> Value {
    let empty = json!({
        "AlgorithmSpecification": {}, "OutputDataConfig": {}, "ResourceConfig": {}, "StoppingCondition": {},
    });
    filled(empty, arguments)
}

fn filled(mut body: Value, arguments: &Map<String, Value>) -> Value {
    for (name, place) in ARGUMENTS {
        if let Some(value) = arguments.get(name).filter(|_| !place.is_empty()) {
            put(&mut body, name, place, value);
        }
    }
    for (holder, name, place) in MOVED {
        let value = arguments.get(holder).and_then(|holder| holder.get(name));
        if let Some(value) = value.filter(|_| !place.is_empty()) {
            set(&mut body, place, value.clone());
        }
    }
    started(arguments, &mut body);
    body
}

/// Sets what an argument says in the body.
fn put(body: &mut Value, name: &str, place: &str, value: &Value) {
    let made = match name {
        "base_job_name" => value.as_str().map(|base| format!("{base}-1").into()),
        // A role may be given by its name.
        "role" => value
            .as_str()
            .filter(|role| role.starts_with("arn:"))
            .map(Into::into),
        "hyperparameters" => value.as_object().map(|entries| {
            let texts = entries
                .iter()
                .map(|(key, value)| (key.clone(), sdk::python_json(value).into()));
            Value::Object(texts.collect())
        }),
        "environment" => Some(value.clone()),
        "input_data_config" => value
            .as_array()
            .map(|all| all.iter().map(channel).collect()),
        "compute" | "networking" => {
            let mut own = value.clone();
            if let Some(entries) = own.as_object_mut() {
                entries.retain(|key, _| {
                    MOVED
                        .iter()
                        .all(|(holder, moved, _)| *holder != name || moved != key)
                });
            }
            Some(shaped(&own))
        }
        _ => Some(shaped(value)),
    };
    let Some(made) = made else { return };
    match (body.pointer_mut(place), made) {
        (Some(Value::Object(there)), Value::Object(own)) if name != "hyperparameters" => {
            there.extend(own);
        }
        (_, made) => set(body, place, made),
    }
}

/// A channel, whose source may be a URI or a folder of one's own, which the SDK uploads.
fn channel(input: &Value) -> Value {
    let mut made = shaped(input);
    if let Some(source) = made.get("DataSource").and_then(Value::as_str) {
        let uri = if source.starts_with("s3://") {
            source
        } else {
            "s3://bucket/uploaded"
        };
        let whole = json!({"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}});
        set(&mut made, "/DataSource", whole);
    }
    made
}

/// The hyperparameters that the SDK sets for the script and its launcher, by which the rules know them.
fn started(arguments: &Map<String, Value>, body: &mut Value) {
    let entry = arguments
        .get("source_code")
        .and_then(|source| source.get("entry_script")?.as_str());
    let mut own = body
        .get("HyperParameters")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    if let Some(entry) = entry {
        own.insert("sagemaker_program".to_owned(), entry.into());
    }
    let distributed = arguments.get("distributed");
    let named = distributed.and_then(|one| one.get("class").or_else(|| one.get("type"))?.as_str());
    let is = |name: &str| {
        named.is_some_and(|class| class.ends_with(name))
            || distributed.is_some_and(|one| one.get(name).is_some())
            || distributed
                .and_then(Value::as_str)
                .is_some_and(|class| class.ends_with(name))
    };
    if is("Torchrun") {
        own.insert(
            "sagemaker_torch_distributed_enabled".to_owned(),
            "true".into(),
        );
    } else if is("MPI") {
        own.insert("sagemaker_mpi_enabled".to_owned(), "true".into());
    }
    if !own.is_empty() {
        set(body, "/HyperParameters", Value::Object(own));
    }
}

/// The argument that a member of the body comes from; the member that it would set if there is none.
fn origin(arguments: &Map<String, Value>, pointer: &str) -> String {
    let of_launcher = ["torch_distributed", "mpi_"]
        .iter()
        .any(|part| pointer.contains(part));
    if pointer.starts_with("/HyperParameters/sagemaker_") {
        return if of_launcher {
            "/distributed"
        } else {
            "/source_code/entry_script"
        }
        .to_owned();
    }
    if let Some((holder, name, _)) = MOVED.iter().find(|(_, _, place)| *place == pointer) {
        return format!("/{holder}/{name}");
    }
    let by_place = ARGUMENTS.iter().filter(|(_, place)| {
        !place.is_empty()
            && pointer
                .strip_prefix(place)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    let Some((name, place)) = by_place.max_by_key(|(_, place)| place.len()) else {
        return pointer.to_owned();
    };
    let rest = pointer.strip_prefix(place).unwrap_or_default();
    // Follows the argument as far as it goes, under its own names.
    let mut found = format!("/{name}");
    let mut here = arguments.get(*name);
    for segment in rest.split('/').skip(1) {
        let own = here.and_then(Value::as_object).and_then(|entries| {
            let mut names = entries.keys();
            names
                .find(|key| *key == segment || camel(key) == segment)
                .cloned()
        });
        let next = own.unwrap_or_else(|| segment.to_owned());
        here = match here {
            Some(Value::Object(entries)) => entries.get(&next),
            Some(Value::Array(items)) => segment
                .parse()
                .ok()
                .and_then(|index: usize| items.get(index)),
            _ => None,
        };
        if here.is_none()
            && !matches!(
                *name,
                "compute" | "networking" | "stopping_condition" | "hyperparameters" | "environment"
            )
        {
            break;
        }
        found = format!(
            "{found}/{}",
            if here.is_some() { next } else { snake(segment) }
        );
    }
    found
}

/// `VolumeSizeInGB` as the SDK writes it, `volume_size_in_gb`.
fn snake(name: &str) -> String {
    let mut made = String::new();
    let mut was_upper = true;
    for letter in name.chars() {
        if letter.is_uppercase() && !was_upper {
            made.push('_');
        }
        was_upper = letter.is_uppercase();
        made.extend(letter.to_lowercase());
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::pointers::told_by;

    #[test]
    fn what_is_wrong_is_said_of_the_argument() {
        let found = told_by(
            check,
            &json!({
                "training_image": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312",
                "source_code": {"source_dir": "src", "entry_script": "train.py"}, "distributed": {"class": "Torchrun"},
                "compute": {"instance_type": "ml.g5.12xlarg", "instance_count": 1, "enable_managed_spot_training": true},
                "hyperparameters": {"epochs": 3}, "environment": {"HF_HOME": "/tmp/hf"}, "nonsense": 1,
                "input_data_config": [{"channel_name": "a b", "data_source": "s3://team-a/train/"}]
            }),
        );
        let has =
            |rule: &str, pointer: &str| found.iter().any(|one| one.0 == rule && one.1 == pointer);
        assert!(has("trainer-argument", "/nonsense"), "{found:?}");
        assert!(
            has("unknown-instance-type", "/compute/instance_type"),
            "{found:?}"
        );
        assert!(
            has(
                "spot-needs-max-wait",
                "/stopping_condition/max_wait_time_in_seconds"
            ),
            "{found:?}"
        );
        assert!(
            has("channel-name", "/input_data_config/0/channel_name"),
            "{found:?}"
        );
        assert_eq!(found.len(), 4, "{found:?}");
    }

    #[test]
    fn names_are_written_as_the_sdk_writes_them() {
        assert_eq!(snake("VolumeSizeInGB"), "volume_size_in_gb");
        assert_eq!(snake("MaxWaitTimeInSeconds"), "max_wait_time_in_seconds");
    }
}
