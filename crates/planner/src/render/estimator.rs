//! The SDK's estimators: arguments as a notebook passes them, and the request that SageMaker's
//! Python SDK (2.257.7) sends for them. Covers the framework estimators and their distribution
//! options; [`crate::lint`] reports mistakes in the arguments.

use std::collections::BTreeMap;

use bakeoff_domain::catalog;
use bakeoff_domain::measure::metric::{Meaning, MetricDefinition};
use bakeoff_domain::sagemaker::request::{Debugger, InstanceGroup, Profiler, TrainingJobRequest};
use bakeoff_domain::spec::technique::ScriptSpec;
use bakeoff_domain::spec::{Channel, CheckpointSpec, ParallelLibrary};
use serde_json::{Map, Value, json};

use crate::render::sdk::{self, Framework, Launch};

/// The account of AWS's deep learning containers in most regions.
const CONTAINERS: &str = "763104351884";

/// Whether the value contains `"enabled": true`.
pub(crate) fn is_enabled(value: Option<&Value>) -> bool {
    value.is_some_and(|value| {
        value
            .get("enabled")
            .and_then(Value::as_bool)
            .unwrap_or(false)
    })
}

/// Every library that `distribution` requests, with its pointer. Common alternative keys are
/// understood.
pub(crate) fn libraries(arguments: &Map<String, Value>) -> Vec<(ParallelLibrary, String)> {
    let Some(distribution) = arguments.get("distribution").and_then(Value::as_object) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let inner = distribution.get("smdistributed");
    let is_on = |key: &str| is_enabled(distribution.get(key));
    let data = [
        inner.and_then(|inner| inner.get("dataparallel")),
        distribution.get("smdistributed_dataparallel"),
    ];
    let model = [
        inner.and_then(|inner| inner.get("modelparallel")),
        distribution.get("smdistributed_modelparallel"),
    ];
    for (value, pointer) in data
        .into_iter()
        .zip(["smdistributed/dataparallel", "smdistributed_dataparallel"])
    {
        if is_enabled(value) {
            found.push((ParallelLibrary::Smddp, format!("/distribution/{pointer}")));
        }
    }
    let has_model = model.iter().any(|value| is_enabled(*value));
    for (value, pointer) in model
        .into_iter()
        .zip(["smdistributed/modelparallel", "smdistributed_modelparallel"])
    {
        if is_enabled(value) {
            let version = if is_on("torch_distributed") {
                ParallelLibrary::SmpV2
            } else {
                ParallelLibrary::SmpV1
            };
            found.push((version, format!("/distribution/{pointer}")));
        }
    }
    if is_on("pytorchddp") {
        found.push((
            ParallelLibrary::Smddp,
            "/distribution/pytorchddp".to_owned(),
        ));
    }
    for (key, library) in [
        ("torch_distributed", ParallelLibrary::Torchrun),
        ("mpi", ParallelLibrary::Horovod),
        ("parameter_server", ParallelLibrary::ParameterServer),
        (
            "multi_worker_mirrored_strategy",
            ParallelLibrary::MultiWorkerMirrored,
        ),
    ] {
        let belongs_to_model = has_model
            && matches!(
                library,
                ParallelLibrary::Torchrun | ParallelLibrary::Horovod
            );
        if is_on(key) && !belongs_to_model {
            found.push((library, format!("/distribution/{key}")));
        }
    }
    found
}

fn framework(arguments: &Map<String, Value>) -> Framework {
    let class = arguments
        .get("sdk_class")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if class.contains("tensorflow") {
        Framework::Tensorflow
    } else {
        Framework::Pytorch
    }
}

/// The image that the SDK chooses; `None` if only the SDK itself could tell.
pub(crate) fn image(arguments: &Map<String, Value>) -> Option<String> {
    let text = |key: &str| arguments.get(key).and_then(Value::as_str);
    if let Some(uri) = text("image_uri") {
        return Some(uri.to_owned());
    }
    if text("sdk_class")
        .is_some_and(|class| class.contains("huggingface") || class.contains("estimator.Estimator"))
    {
        return None;
    }
    let kinds: Vec<&str> = instances(arguments).iter().map(|group| group.0).collect();
    let has_gpu = kinds
        .iter()
        .any(|kind| catalog::find(kind).is_some_and(|found| found.accelerator_count > 0));
    let has_compiler = arguments.contains_key("compiler_config");
    let name = match (framework(arguments), has_compiler) {
        (Framework::Pytorch, false) => "pytorch-training",
        (Framework::Pytorch, true) => "pytorch-trcomp-training",
        (Framework::Tensorflow, _) => "tensorflow-training",
    };
    let version = text("framework_version")?;
    let python = text("py_version")?;
    let processor = if has_gpu { "gpu" } else { "cpu" };
    if libraries(arguments)
        .iter()
        .any(|(library, _)| *library == ParallelLibrary::SmpV2)
    {
        let on_p5 = kinds.iter().any(|kind| kind.contains("p5"));
        let newer = ["2.1", "2.2", "2.3", "2.4"]
            .iter()
            .any(|part| version.contains(part));
        let cuda = match (version.contains("2.5"), on_p5 || newer) {
            (true, _) => "cu124",
            (false, true) => "cu121",
            (false, false) => "cu118",
        };
        let repository = "smdistributed-modelparallel";
        return Some(format!(
            "658645717510.dkr.ecr.{}.amazonaws.com/{repository}:{version}-gpu-{python}-{cuda}",
            region(arguments)
        ));
    }
    Some(format!(
        "{CONTAINERS}.dkr.ecr.{}.amazonaws.com/{name}:{version}-{processor}-{python}",
        region(arguments)
    ))
}

fn region(arguments: &Map<String, Value>) -> &str {
    arguments
        .get("region")
        .and_then(Value::as_str)
        .unwrap_or("us-east-1")
}

/// Type, count and name of each group of instances.
fn instances(arguments: &Map<String, Value>) -> Vec<(&str, u32, &str)> {
    let one = |group: &'_ Value| -> Option<u32> {
        u32::try_from(group.get("instance_count")?.as_u64()?).ok()
    };
    if let Some(groups) = arguments.get("instance_groups").and_then(Value::as_array) {
        let read = groups.iter().filter_map(|group| {
            let name = group.get("instance_group_name")?.as_str()?;
            Some((group.get("instance_type")?.as_str()?, one(group)?, name))
        });
        return read.collect();
    }
    let kind = arguments.get("instance_type").and_then(Value::as_str);
    let count = arguments
        .get("instance_count")
        .and_then(Value::as_u64)
        .unwrap_or(1);
    kind.map(|kind| (kind, u32::try_from(count).unwrap_or(u32::MAX), ""))
        .into_iter()
        .collect()
}

/// Arguments that the linter understands but that are not rendered into a request here.
const NOT_RENDERED: [&str; 14] = [
    "input_mode",
    "subnets",
    "security_group_ids",
    "volume_kms_key",
    "output_kms_key",
    "tags",
    "encrypt_inter_container_traffic",
    "enable_network_isolation",
    "container_log_level",
    "compiler_config",
    "disable_output_compression",
    "training_plan",
    "container_entry_point",
    "container_arguments",
];

/// Renders the request that the SDK sends; `Err` names the missing information, or the argument
/// that is not rendered here.
pub fn request(document: &Value) -> Result<TrainingJobRequest, String> {
    let arguments = document
        .as_object()
        .ok_or("the document is not an object")?;
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
        image: image(arguments)
            .ok_or("image_uri (or framework_version and py_version) is missing")?,
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

fn text<'a>(arguments: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    arguments.get(key).and_then(Value::as_str)
}

fn flag(arguments: &Map<String, Value>, key: &str) -> bool {
    arguments.get(key).and_then(Value::as_bool).unwrap_or(false)
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
    let inputs = arguments
        .get("inputs")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    inputs
        .filter_map(|(name, uri)| {
            Some(Channel {
                name: name.clone(),
                s3_uri: uri.as_str()?.to_owned(),
                size_gb: None,
            })
        })
        .collect()
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
    Ok(ScriptSpec {
        entry_point: entry_point.to_owned(),
        source_s3_uri: format!("{folder}/source/sourcedir.tar.gz"),
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
