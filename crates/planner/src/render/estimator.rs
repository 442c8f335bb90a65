//! The SDK's estimators: arguments as a notebook passes them, and the request that SageMaker's
//! Python SDK (2.257.7) sends for them. Covers the framework estimators and their distribution
//! options; [`crate::lint`] reports mistakes in the arguments.

mod arguments;
mod filled;
mod image;
mod types;

use std::collections::BTreeMap;

use bakeoff_domain::measure::metric::{Meaning, MetricDefinition};
use bakeoff_domain::sagemaker::request::{Debugger, InstanceGroup, Profiler, TrainingJobRequest};
use bakeoff_domain::spec::technique::ScriptSpec;
use bakeoff_domain::spec::{Channel, CheckpointSpec, ParallelLibrary};
use serde_json::{Map, Value, json};

pub(crate) use self::arguments::{RENAMED, is_enabled, libraries};
use self::arguments::{flag, instances, region, text};
use self::filled::{fill_in, overlay};
pub(crate) use self::image::{image, read_embedded};
pub(crate) use self::types::{WrongType, read};
use crate::render::body;
use crate::render::sdk::{self, Launch};

/// Arguments that belong to what is discontinued, and are not rendered.
const NOT_RENDERED: [&str; 1] = ["compiler_config"];

/// The end of the class of the estimator that needs no script.
const GENERIC: &str = "estimator.Estimator";
const NO_OBJECT: &str = "the document is not an object";

/// Renders the body that the SDK sends, with what it fills in: a name for the job that ends in `stamp`
/// (`2026-11-28-15-51-19-696`), and its default bucket for what has no place of its own.
///
/// # Errors
/// Names the missing information, or the argument that has a wrong type or is not rendered here.
pub fn body(document: &Value, stamp: &str) -> Result<Value, String> {
    let mut filled = document.clone();
    let arguments = filled.as_object_mut().ok_or(NO_OBJECT)?;
    let (meant, wrong) = read(arguments);
    if let Some(wrong) = wrong.into_iter().next() {
        return Err(wrong.why);
    }
    *arguments = meant;
    fill_in(arguments, stamp);
    let request = request(&filled)?;
    let mut body = body::body(&request);
    let empty = Map::new();
    overlay(filled.as_object().unwrap_or(&empty), &mut body);
    Ok(body)
}

/// The part of the request that every document has.
fn request(document: &Value) -> Result<TrainingJobRequest, String> {
    let arguments = document.as_object().ok_or(NO_OBJECT)?;
    if let Some(argument) = NOT_RENDERED
        .iter()
        .find(|argument| arguments.contains_key(**argument))
    {
        return Err(format!("{argument} cannot be rendered"));
    }
    let text = |key: &str| text(arguments, key);
    let flag = |key: &str| flag(arguments, key);
    let seconds = |key: &str| seconds(arguments, key);
    if flag("use_spot_instances") != arguments.contains_key("max_wait") {
        return Err(
            "use_spot_instances and max_wait must be set together: SageMaker rejects one without the other"
                .to_owned(),
        );
    }
    let needs = |key: &str| {
        text(key)
            .map(str::to_owned)
            .ok_or_else(|| format!("{key} is missing"))
    };
    let groups = instances(arguments);
    let (instance_type, instance_count, _) =
        groups.first().copied().ok_or("instance_type is missing")?;
    let is_mixed = arguments.contains_key("instance_groups");
    let job_name = needs("job_name")?;
    let output = needs("output_path")?;
    let mut request = TrainingJobRequest {
        job_name,
        image: image(arguments).ok_or_else(|| image::missing(arguments))?,
        container_entrypoint: words(arguments.get("container_entry_point")),
        role_arn: needs("role")?,
        instance_type: instance_type.to_owned(),
        instance_count,
        volume_size_gb: seconds("volume_size").unwrap_or(30),
        channels: channels(arguments),
        output_s3_uri: output,
        hyperparameters: hyperparameters(arguments, instance_type, is_mixed)?,
        environment: strings(arguments.get("environment")),
        metrics: metrics(arguments),
        max_runtime_seconds: seconds("max_run").unwrap_or(86_400),
        max_wait_seconds: seconds("max_wait"),
        checkpoint: checkpoint(arguments),
        checkpoint_trial: None,
        keep_alive_seconds: seconds("keep_alive_period_in_seconds"),
        metrics_time_series: arguments
            .get("enable_sagemaker_metrics")
            .and_then(Value::as_bool)
            .unwrap_or(true),
        instance_groups: groups
            .iter()
            .filter(|_| is_mixed)
            .map(|(kind, count, name)| InstanceGroup {
                name: (*name).to_owned(),
                instance_type: (*kind).to_owned(),
                instance_count: *count,
            })
            .collect(),
        retry_attempts: seconds("max_retry_attempts"),
        infra_check: flag("enable_infra_check"),
        profiler: (!flag("disable_profiler")).then(|| profiler(arguments)),
        debugger: debugger(arguments),
        tags: BTreeMap::new(),
    };
    sdk::name(&mut request);
    Ok(request)
}

/// A list of strings.
fn words(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

/// A number of seconds, or any other count.
fn seconds(arguments: &Map<String, Value>, key: &str) -> Option<u32> {
    let number = arguments.get(key).and_then(Value::as_u64)?;
    Some(u32::try_from(number).unwrap_or(u32::MAX))
}

fn checkpoint(arguments: &Map<String, Value>) -> Option<CheckpointSpec> {
    let local_path = text(arguments, "checkpoint_local_path").unwrap_or("/opt/ml/checkpoints/");
    Some(CheckpointSpec {
        s3_uri: text(arguments, "checkpoint_s3_uri")?.to_owned(),
        local_path: local_path.to_owned(),
        interval_seconds: 1800,
    })
}

fn strings(value: Option<&Value>) -> BTreeMap<String, String> {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries
        .map(|(key, value)| {
            (
                key.clone(),
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned),
            )
        })
        .collect()
}

fn channels(arguments: &Map<String, Value>) -> Vec<Channel> {
    let channel = |name: &str, input: &Value| {
        // A place, or the arguments of a TrainingInput.
        let uri = input.as_str().or_else(|| input.get("s3_data")?.as_str())?;
        Some(Channel {
            name: name.to_owned(),
            s3_uri: uri.to_owned(),
            size_gb: None,
        })
    };
    match arguments.get("inputs") {
        Some(Value::Object(inputs)) => {
            let all = inputs.iter();
            all.filter_map(|(name, input)| channel(name, input))
                .collect()
        }
        // One place is the channel `training` (Estimator.fit).
        Some(input) => channel("training", input).into_iter().collect(),
        None => Vec::new(),
    }
}

fn metrics(arguments: &Map<String, Value>) -> Vec<MetricDefinition> {
    let all = arguments
        .get("metric_definitions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    all.filter_map(|metric| {
        Some(MetricDefinition {
            name: metric.get("Name")?.as_str()?.to_owned(),
            regex: metric.get("Regex")?.as_str()?.to_owned(),
            meaning: Meaning::Other,
        })
    })
    .collect()
}

fn hyperparameters(
    arguments: &Map<String, Value>,
    instance_type: &str,
    is_mixed: bool,
) -> Result<BTreeMap<String, String>, String> {
    let own = arguments
        .get("hyperparameters")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    let mut all: BTreeMap<String, String> = own
        .map(|(key, value)| (key.clone(), sdk::python_json(value)))
        .collect();
    // The generic estimator runs what its image starts.
    let is_generic = text(arguments, "sdk_class").is_some_and(|class| class.ends_with(GENERIC));
    if is_generic && text(arguments, "entry_point").is_none() {
        return Ok(all);
    }
    all.extend(sdk::script(&script(arguments)?, region(arguments)));
    let empty = json!({});
    let distribution = arguments.get("distribution").unwrap_or(&empty);
    let mpi = distribution.get("mpi");
    let smp = distribution
        .pointer("/smdistributed/modelparallel/parameters")
        .and_then(Value::as_object);
    let data = distribution.pointer("/smdistributed/dataparallel");
    let options = |value: Option<&Value>, key: &str| -> String {
        value
            .and_then(|value| value.get(key))
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let processes = mpi
        .and_then(|mpi| mpi.get("processes_per_host"))
        .and_then(Value::as_u64);
    for (library, _) in libraries(arguments) {
        let mpi_options = match library {
            ParallelLibrary::Smddp => options(data, "custom_mpi_options"),
            _ => options(mpi, "custom_mpi_options"),
        };
        all.extend(sdk::launch(Launch {
            library,
            instance_type,
            smp_parameters: smp.unwrap_or(&Map::new()),
            processes_per_host: processes.and_then(|count| u32::try_from(count).ok()),
            mpi_options: &mpi_options,
        }));
    }
    if is_mixed
        && let Some(groups) = distribution
            .get("instance_groups")
            .and_then(Value::as_array)
    {
        let names: Vec<&str> = groups.iter().filter_map(Value::as_str).collect();
        all.insert(
            "sagemaker_distribution_instance_groups".to_owned(),
            sdk::list(&names),
        );
    }
    Ok(all)
}

/// The script, and where the SDK puts its sources.
fn script(arguments: &Map<String, Value>) -> Result<ScriptSpec, String> {
    let entry_point = text(arguments, "entry_point").ok_or("entry_point is missing")?;
    let bucket = text(arguments, "code_location")
        .ok_or("code_location is missing: the S3 location where the SDK puts the sources")?;
    let folder = format!(
        "{}/{}",
        bucket.trim_end_matches('/'),
        text(arguments, "job_name").unwrap_or_default()
    );
    // What is in S3 already is not uploaded anew.
    let own = text(arguments, "source_dir").filter(|place| place.starts_with("s3://"));
    let uploaded = || format!("{folder}/source/sourcedir.tar.gz");
    Ok(ScriptSpec {
        entry_point: entry_point.to_owned(),
        source_s3_uri: own.map_or_else(uploaded, str::to_owned),
    })
}

fn profiler(arguments: &Map<String, Value>) -> Profiler {
    let interval = arguments
        .get("profiler_config")
        .and_then(|config| config.get("system_monitor_interval_millis"));
    let rules = arguments
        .get("rules")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let named = rules.filter_map(|rule| rule.get("profiler_rule")?.as_str());
    Profiler {
        interval_milliseconds: interval
            .and_then(Value::as_u64)
            .and_then(|ms| u32::try_from(ms).ok()),
        rules: named
            .map(|name| sdk::profiler_rule(name, region(arguments)))
            .collect(),
    }
}

/// Whether the SDK omits its hook: it does so on request, with a parameter server, and where several
/// processes would share one folder.
fn is_hook_off(arguments: &Map<String, Value>) -> bool {
    let is_off = arguments.get("debugger_hook_config") == Some(&json!(false));
    let libraries = libraries(arguments);
    let has_server = libraries
        .iter()
        .any(|(library, _)| *library == ParallelLibrary::ParameterServer);
    let instances: u32 = instances(arguments)
        .iter()
        .map(|(_, count, _)| *count)
        .fold(0, u32::saturating_add);
    let writes = arguments.contains_key("checkpoint_s3_uri")
        && arguments.contains_key("checkpoint_local_path");
    is_off || has_server || writes && (instances > 1 || arguments.contains_key("distribution"))
}

/// The SDK's default hook, and the rules to evaluate.
fn debugger(arguments: &Map<String, Value>) -> Option<Debugger> {
    let is_hook_off = is_hook_off(arguments);
    let has_rules = arguments
        .get("rules")
        .and_then(Value::as_array)
        .is_some_and(|rules| !rules.is_empty());
    if is_hook_off && !has_rules {
        return None;
    }
    let mut debugger = Debugger {
        is_hook_off,
        ..Debugger::default()
    };
    let rules = arguments
        .get("rules")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    for name in rules.filter_map(|rule| rule.get("rule")?.as_str()) {
        let (rule, collection) = sdk::debug_rule(name, region(arguments));
        debugger.rules.push(rule);
        if let Some(collection) = collection {
            let every = BTreeMap::from([("save_interval".to_owned(), "500".to_owned())]);
            debugger.collections.insert(collection.to_owned(), every);
        }
    }
    Some(debugger)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As version 2.257.2 of the SDK sent it (its client replaced by one that keeps the request).
    #[test]
    fn a_hugging_face_estimator_is_rendered_as_the_sdk_sends_it() {
        let arguments = json!({
            "sdk_class": "sagemaker.huggingface.HuggingFace", "entry_point": "run_sft.py", "source_dir": "scripts",
            "role": "arn:aws:iam::111122223333:role/trainer", "transformers_version": "4.49.0", "pytorch_version": "2.5.1",
            "py_version": "py311", "instance_type": "ml.p4d.24xlarge", "instance_count": 1, "volume_size": 500, "max_run": 172_800,
            "distribution": {"torch_distributed": {"enabled": true}}, "hyperparameters": {"config": "/opt/ml/llama3.yaml"},
            "environment": {"HF_TOKEN": "x"}, "disable_output_compression": true, "keep_alive_period_in_seconds": 1800,
            "subnets": ["subnet-1"], "security_group_ids": ["sg-1"], "tags": [{"Key": "team", "Value": "nlp"}]
        });
        let name = "huggingface-pytorch-training-2026-11-28-15-51-19-696";
        let bucket = "s3://sagemaker-us-east-1-111122223333/";
        assert_eq!(
            body(&arguments, "2026-11-28-15-51-19-696").unwrap(),
            json!({
                "AlgorithmSpecification": {"TrainingInputMode": "File", "EnableSageMakerMetricsTimeSeries": true,
                    "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04"},
                "OutputDataConfig": {"S3OutputPath": bucket, "CompressionType": "NONE"},
                "TrainingJobName": name, "StoppingCondition": {"MaxRuntimeInSeconds": 172_800},
                "ResourceConfig": {"VolumeSizeInGB": 500, "KeepAlivePeriodInSeconds": 1800, "InstanceCount": 1, "InstanceType": "ml.p4d.24xlarge"},
                "RoleArn": "arn:aws:iam::111122223333:role/trainer",
                "HyperParameters": {
                    "config": "\"/opt/ml/llama3.yaml\"", "sagemaker_program": "\"run_sft.py\"", "sagemaker_container_log_level": "20",
                    "sagemaker_submit_directory": format!("\"{bucket}{name}/source/sourcedir.tar.gz\""),
                    "sagemaker_job_name": format!("\"{name}\""), "sagemaker_region": "\"us-east-1\"",
                    "sagemaker_torch_distributed_enabled": "true", "sagemaker_instance_type": "\"ml.p4d.24xlarge\""},
                "Environment": {"HF_TOKEN": "x"}, "Tags": [{"Key": "team", "Value": "nlp"}],
                "VpcConfig": {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
                "DebugHookConfig": {"S3OutputPath": bucket, "CollectionConfigurations": []},
                "ProfilerConfig": {"S3OutputPath": bucket, "DisableProfiler": false}
            })
        );
    }

    #[test]
    fn every_other_argument_has_its_member() {
        let arguments = json!({
            "sdk_class": "sagemaker.pytorch.PyTorch", "entry_point": "t.py", "role": "trainer", "framework_version": "2.5.1",
            "py_version": "py311", "instance_type": "ml.p4d.24xlarge", "instance_count": 1, "input_mode": "FastFile",
            "volume_kms_key": "k1", "output_kms_key": "k2", "encrypt_inter_container_traffic": true, "enable_network_isolation": true,
            "container_log_level": 10, "base_job_name": "my-base", "container_entry_point": ["a"], "container_arguments": ["b"],
            "training_plan": "arn:aws:sagemaker:us-east-1:111122223333:training-plan/plan-a"
        });
        let made = body(&arguments, "1").unwrap();
        assert_eq!(
            made["AlgorithmSpecification"]["ContainerArguments"],
            json!(["b"])
        );
        assert_eq!(
            made["AlgorithmSpecification"]["TrainingInputMode"],
            json!("FastFile")
        );
        assert_eq!(
            made["OutputDataConfig"],
            json!({"S3OutputPath": "s3://sagemaker-us-east-1-ACCOUNT/", "KmsKeyId": "k2"})
        );
        assert_eq!(made["ResourceConfig"]["VolumeKmsKeyId"], json!("k1"));
        assert_eq!(made["RoleArn"], json!("arn:aws:iam::ACCOUNT:role/trainer"));
        assert_eq!(
            made["HyperParameters"]["sagemaker_container_log_level"],
            json!("10")
        );
        assert_eq!(
            made["HyperParameters"]["sagemaker_submit_directory"],
            json!("\"/opt/ml/input/data/code/sourcedir.tar.gz\"")
        );
        let code = &made["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"];
        assert_eq!(
            code,
            &json!("s3://sagemaker-us-east-1-ACCOUNT/my-base-1/source/sourcedir.tar.gz")
        );
        assert_eq!(
            (
                &made["EnableNetworkIsolation"],
                &made["EnableInterContainerTrafficEncryption"]
            ),
            (&json!(true), &json!(true))
        );
    }
}
