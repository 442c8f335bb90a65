//! What SageMaker's Python SDK adds to a request for each way of starting a script: the
//! hyperparameters that the training toolkit in its containers reads, including JSON inside
//! strings. Follows captured requests of sagemaker 2.257.7; [`crate::render::body`] renders the
//! request as a whole.

use std::collections::BTreeMap;

use bakeoff_domain::catalog::{self, EFA_VARIABLES, InstanceType};
use bakeoff_domain::sagemaker::request::{RuleConfiguration, TrainingJobRequest};
use bakeoff_domain::spec::technique::ScriptSpec;
use bakeoff_domain::spec::{ParallelLibrary, ProfileSpec};
use serde_json::{Map, Value, json};

/// The container's framework, according to its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framework {
    Pytorch,
    Tensorflow,
}

/// What the URI of an AWS training image says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub framework: Framework,
    /// `[2, 0, 1]`.
    pub version: Vec<u32>,
    /// `2.0.1`.
    pub version_text: String,
    /// With SageMaker Training Compiler.
    pub has_compiler: bool,
    pub tag: String,
}

/// Parses the URI of an AWS deep learning container; `None` for any other image.
pub fn image(uri: &str) -> Option<Image> {
    let (repository, tag) = uri.rsplit('/').next()?.split_once(':')?;
    let framework = match repository {
        name if name.contains("pytorch") || name == "smdistributed-modelparallel" => {
            Framework::Pytorch
        }
        name if name.contains("tensorflow") => Framework::Tensorflow,
        _ => return None,
    };
    let is_ours = repository.ends_with("-training") || repository == "smdistributed-modelparallel";
    let version_text = tag.split('-').next()?.to_owned();
    let version: Option<Vec<u32>> = version_text
        .split('.')
        .map(|part| part.parse().ok())
        .collect();
    is_ours.then_some(Image {
        framework,
        version: version?,
        version_text,
        has_compiler: repository.contains("trcomp"),
        tag: tag.to_owned(),
    })
}

/// How the script is started on the instances.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    pub library: ParallelLibrary,
    pub instance_type: &'a str,
    pub smp_parameters: &'a Map<String, Value>,
    pub processes_per_host: Option<u32>,
    pub mpi_options: &'a str,
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A hyperparameter as the SDK encodes it, in JSON. A value that parses as a number or boolean
/// becomes one.
pub fn encoded(value: &str) -> String {
    let is_plain = serde_json::from_str::<Value>(value)
        .is_ok_and(|json| json.is_number() || json.is_boolean());
    if is_plain {
        value.to_owned()
    } else {
        quoted(value)
    }
}

/// The hyperparameters that start the script.
pub fn launch(launch: Launch<'_>) -> BTreeMap<String, String> {
    let yes = || "true".to_owned();
    let kind = ("sagemaker_instance_type", quoted(launch.instance_type));
    let mpi = |processes: Option<u32>| {
        let count =
            processes.map(|count| ("sagemaker_mpi_num_of_processes_per_host", count.to_string()));
        let entries = [
            ("sagemaker_mpi_enabled", yes()),
            (
                "sagemaker_mpi_custom_mpi_options",
                quoted(launch.mpi_options),
            ),
        ];
        entries.into_iter().chain(count)
    };
    let smp = || {
        let parameters = python_json(&Value::Object(launch.smp_parameters.clone()));
        [
            ("mp_parameters", parameters),
            (
                "sagemaker_distributed_dataparallel_enabled",
                "false".to_owned(),
            ),
        ]
    };
    let per_accelerator = || {
        let gpus =
            catalog::find(launch.instance_type).map_or(1, |found| found.accelerator_count.max(1));
        launch.processes_per_host.or(Some(gpus))
    };
    let torch = ("sagemaker_torch_distributed_enabled", yes());
    let entries: Vec<(&str, String)> = match launch.library {
        ParallelLibrary::Deepspeed | ParallelLibrary::Torchrun => vec![torch, kind],
        ParallelLibrary::Smddp => vec![
            ("sagemaker_distributed_dataparallel_enabled", yes()),
            (
                "sagemaker_distributed_dataparallel_custom_mpi_options",
                quoted(launch.mpi_options),
            ),
            kind,
        ],
        ParallelLibrary::SmpV1 => smp()
            .into_iter()
            .chain(mpi(per_accelerator()))
            .chain([kind])
            .collect(),
        ParallelLibrary::SmpV2 => smp().into_iter().chain([torch, kind]).collect(),
        ParallelLibrary::Horovod => mpi(launch.processes_per_host).collect(),
        ParallelLibrary::ParameterServer => vec![("sagemaker_parameter_server_enabled", yes())],
        ParallelLibrary::MultiWorkerMirrored => {
            vec![("sagemaker_multi_worker_mirrored_strategy_enabled", yes())]
        }
        ParallelLibrary::None => Vec::new(),
    };
    entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// The hyperparameters of script mode.
pub fn script(script: &ScriptSpec, region: &str) -> BTreeMap<String, String> {
    let entries = [
        ("sagemaker_program", quoted(&script.entry_point)),
        ("sagemaker_submit_directory", quoted(&script.source_s3_uri)),
        ("sagemaker_container_log_level", "20".to_owned()),
        ("sagemaker_region", quoted(region)),
    ];
    entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// A profile's variables, with those that its type needs; its own values win.
pub fn environment(profile: &ProfileSpec, instance_type: &str) -> BTreeMap<String, String> {
    let is_needed = catalog::find(instance_type).is_some_and(InstanceType::needs_efa_variables);
    let needed = EFA_VARIABLES
        .iter()
        .filter(|_| is_needed)
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    needed.chain(profile.environment.clone()).collect()
}

/// Sets the hyperparameters of a script-mode job that contain its own name, which differs per
/// attempt.
pub fn name(request: &mut TrainingJobRequest) {
    if !request.hyperparameters.contains_key("sagemaker_program") {
        return;
    }
    request
        .hyperparameters
        .insert("sagemaker_job_name".to_owned(), quoted(&request.job_name));
    let is_tensorflow =
        image(&request.image).is_some_and(|image| image.framework == Framework::Tensorflow);
    if is_tensorflow && !request.hyperparameters.contains_key("model_dir") {
        let uses_mpi = request
            .hyperparameters
            .contains_key("sagemaker_mpi_enabled");
        let folder = format!(
            "{}/{}/model",
            request.output_s3_uri.trim_end_matches('/'),
            request.job_name
        );
        let model_dir = if uses_mpi {
            quoted("/opt/ml/model")
        } else {
            quoted(&folder)
        };
        request
            .hyperparameters
            .insert("model_dir".to_owned(), model_dir);
    }
}

/// JSON as Python's `json.dumps` writes it: a space after each comma and colon.
pub fn python_json(value: &Value) -> String {
    match value {
        Value::Object(entries) => {
            let inner: Vec<String> = entries
                .iter()
                .map(|(key, value)| format!("{}: {}", quoted(key), python_json(value)))
                .collect();
            format!("{{{}}}", inner.join(", "))
        }
        Value::Array(items) => {
            let inner: Vec<String> = items.iter().map(python_json).collect();
            format!("[{}]", inner.join(", "))
        }
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => python_float(float),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// A number as Python's `repr` writes it: `1e-05` below a ten-thousandth, `1e+16` from there on, plainly in between.
fn python_float(number: f64) -> String {
    let written = format!("{number:e}");
    let Some((digits, exponent)) = written.split_once('e') else {
        return written;
    };
    match exponent.parse::<i32>() {
        Ok(-4..16) => format!("{number:?}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        Err(_) => written,
    }
}

/// Merges `changes` into `base`, object by object (RFC 7396 without its deletions).
pub(crate) fn merge(base: &mut Map<String, Value>, changes: &Map<String, Value>) {
    for (key, value) in changes {
        match (base.get_mut(key), value) {
            (Some(Value::Object(here)), Value::Object(there)) => merge(here, there),
            (Some(here), _) => *here = value.clone(),
            (None, _) => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Built-in profiler rules by class name, with the parameters that the SDK sends
/// (smdebug_rulesconfig 1.0.1).
const PROFILER_RULES: [(&str, &[(&str, &str)]); 11] = [
    (
        "BatchSize",
        &[
            ("cpu_threshold_p95", "70"),
            ("gpu_threshold_p95", "70"),
            ("gpu_memory_threshold_p95", "70"),
            ("patience", "1000"),
            ("window", "500"),
        ],
    ),
    (
        "CPUBottleneck",
        &[
            ("threshold", "50"),
            ("gpu_threshold", "10"),
            ("cpu_threshold", "90"),
            ("patience", "1000"),
        ],
    ),
    (
        "Dataloader",
        &[("min_threshold", "70"), ("max_threshold", "200")],
    ),
    (
        "GPUMemoryIncrease",
        &[("increase", "5"), ("patience", "1000"), ("window", "10")],
    ),
    (
        "IOBottleneck",
        &[
            ("threshold", "50"),
            ("gpu_threshold", "10"),
            ("io_threshold", "50"),
            ("patience", "1000"),
        ],
    ),
    (
        "LoadBalancing",
        &[("threshold", "0.5"), ("patience", "1000")],
    ),
    (
        "LowGPUUtilization",
        &[
            ("threshold_p95", "70"),
            ("threshold_p5", "10"),
            ("window", "500"),
            ("patience", "1000"),
        ],
    ),
    ("MaxInitializationTime", &[("threshold", "20")]),
    ("OverallSystemUsage", &[]),
    ("ProfilerReport", &[]),
    (
        "StepOutlier",
        &[("stddev", "3"), ("mode", "None"), ("n_outliers", "10")],
    ),
];

/// Built-in debugger rules by class name, with the tensor collection that each needs
/// (smdebug_rulesconfig 1.0.1).
const DEBUG_RULES: [(&str, Option<&str>); 21] = [
    ("AllZero", None),
    ("CheckInputImages", None),
    ("ClassImbalance", None),
    ("Confusion", None),
    ("CreateXgboostReport", None),
    ("DeadRelu", None),
    ("ExplodingTensor", None),
    ("FeatureImportanceOverweight", None),
    ("LossNotDecreasing", Some("losses")),
    ("NLPSequenceRatio", None),
    ("Overfit", None),
    ("Overtraining", None),
    ("PoorWeightInitialization", None),
    ("SaturatedActivation", None),
    ("SimilarAcrossRuns", None),
    ("StalledTrainingRule", None),
    ("TensorVariance", None),
    ("TreeDepth", None),
    ("UnchangedTensor", None),
    ("VanishingGradient", Some("gradients")),
    ("WeightUpdateRatio", Some("weights")),
];

/// Names of the built-in profiler rules.
pub fn profiler_rules() -> impl Iterator<Item = &'static str> {
    PROFILER_RULES.iter().map(|(name, _)| *name)
}

/// Names of the built-in debugger rules.
pub fn debug_rules() -> impl Iterator<Item = &'static str> {
    DEBUG_RULES.iter().map(|(name, _)| *name)
}

/// A built-in profiler rule as the SDK configures it.
pub fn profiler_rule(class: &str, region: &str) -> RuleConfiguration {
    let mut rule = rule(class, region);
    let own = PROFILER_RULES
        .iter()
        .find(|(name, _)| *name == class)
        .map_or(&[][..], |(_, own)| own);
    rule.parameters.extend(
        own.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
    );
    if class != "ProfilerReport" {
        rule.parameters
            .insert("scan_interval_us".to_owned(), "60000000".to_owned());
    }
    rule
}

/// A built-in debugger rule as the SDK configures it, and the tensor collection that it needs.
pub fn debug_rule(class: &str, region: &str) -> (RuleConfiguration, Option<&'static str>) {
    let collection = DEBUG_RULES
        .iter()
        .find(|(name, _)| *name == class)
        .and_then(|(_, collection)| *collection);
    (rule(class, region), collection)
}

fn rule(class: &str, region: &str) -> RuleConfiguration {
    RuleConfiguration {
        name: class.to_owned(),
        image: rules_image(region),
        parameters: BTreeMap::from([("rule_to_invoke".to_owned(), class.to_owned())]),
    }
}

/// AWS's account for the image that evaluates rules, by region (sagemaker 2.257.7,
/// image_uri_config/debugger.json).
const RULES_ACCOUNTS: [(&str, &str); 24] = [
    ("af-south-1", "314341159256"),
    ("ap-east-1", "199566480951"),
    ("ap-northeast-1", "430734990657"),
    ("ap-northeast-2", "578805364391"),
    ("ap-northeast-3", "479947661362"),
    ("ap-south-1", "904829902805"),
    ("ap-southeast-1", "972752614525"),
    ("ap-southeast-2", "184798709955"),
    ("ca-central-1", "519511493484"),
    ("cn-north-1", "618459771430"),
    ("cn-northwest-1", "658757709296"),
    ("eu-central-1", "482524230118"),
    ("eu-north-1", "314864569078"),
    ("eu-south-1", "563282790590"),
    ("eu-west-1", "929884845733"),
    ("eu-west-2", "250201462417"),
    ("eu-west-3", "447278800020"),
    ("me-south-1", "986000313247"),
    ("sa-east-1", "818342061345"),
    ("us-east-1", "503895931360"),
    ("us-east-2", "915447279597"),
    ("us-gov-west-1", "515509971035"),
    ("us-west-1", "685455198987"),
    ("us-west-2", "895741380848"),
];

/// Whether AWS evaluates rules in that region.
pub fn has_rules(region: &str) -> bool {
    RULES_ACCOUNTS.iter().any(|(name, _)| *name == region)
}

fn rules_image(region: &str) -> String {
    let account = RULES_ACCOUNTS
        .iter()
        .find(|(name, _)| *name == region)
        .map_or("503895931360", |(_, account)| account);
    format!("{account}.dkr.ecr.{region}.amazonaws.com/sagemaker-debugger-rules:latest")
}

/// A hyperparameter that holds a list, as the SDK writes it.
pub(crate) fn list(items: &[&str]) -> String {
    python_json(&json!(items))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperparameters_are_json_in_a_string() {
        assert_eq!(
            (encoded("0.1"), encoded("3"), encoded("x")),
            ("0.1".into(), "3".into(), "\"x\"".into())
        );
        assert_eq!(
            (encoded("true"), encoded("[1]")),
            ("true".into(), "\"[1]\"".into())
        );
    }

    /// What CPython 3.11 prints for these.
    #[test]
    fn numbers_are_written_as_python_writes_them() {
        for (number, written) in [
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (2.5e-7, "2.5e-07"),
            (1.0, "1.0"),
            (123_456.75, "123456.75"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-1.5e-100, "-1.5e-100"),
        ] {
            assert_eq!(python_json(&json!(number)), written);
        }
        assert_eq!(python_json(&json!({"a": [1, 2e-5]})), "{\"a\": [1, 2e-05]}");
    }

    #[test]
    fn images_say_what_they_are() {
        let of = |tail: &str| {
            image(&format!(
                "763104351884.dkr.ecr.us-east-1.amazonaws.com/{tail}"
            ))
        };
        let torch = of("pytorch-training:2.0.1-gpu-py310").unwrap();
        assert_eq!(
            (torch.framework, torch.version),
            (Framework::Pytorch, vec![2, 0, 1])
        );
        let hugging = of(
            "huggingface-pytorch-trcomp-training:1.11.0-transformers4.21.1-gpu-py38-cu113-ubuntu20.04",
        );
        assert!(hugging.is_some_and(|image| image.has_compiler && image.version == [1, 11, 0]));
        assert_eq!(of("qwen-training:latest"), None);
    }
}
