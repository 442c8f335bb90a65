//! A common form for training jobs: a raw CreateTrainingJob body, the arguments of the SDK's
//! estimator, and a candidate of an experiment are all read into a [`Job`], so that each rule is
//! written once. The rules are in [`super::training`].

use std::collections::BTreeMap;

use bakeoff_domain::finding::{Operation, escaped};
use bakeoff_domain::spec::technique::Techniques;
use bakeoff_domain::spec::{
    CandidateSpec, ExperimentSpec, ParallelLibrary, ProfileSpec, PurchaseOption, WorkloadSpec,
};
use serde_json::{Map, Value};

use crate::render::sdk::{self, Image};

/// A value and its position in the document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) pointer: String,
}

impl<T> Located<T> {
    pub(crate) fn new(value: T, pointer: impl Into<String>) -> Self {
        Self {
            value,
            pointer: pointer.into(),
        }
    }
}

/// Settings that a rule may point at even when they are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Member {
    MaxWait,
    KeepAlive,
    Checkpoint,
    Volume,
    Mpi,
    Retry,
}

/// The kind of document that a job was read from; it determines pointers and patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Body,
    Estimator,
    /// A candidate of an experiment, by its index.
    Candidate(usize),
}

impl Origin {
    pub(crate) fn pointer(self, member: Member) -> String {
        let (body, estimator, experiment) = match member {
            Member::MaxWait => (
                "/StoppingCondition/MaxWaitTimeInSeconds",
                "/max_wait",
                "/max_wait_seconds",
            ),
            Member::KeepAlive => (
                "/ResourceConfig/KeepAlivePeriodInSeconds",
                "/keep_alive_period_in_seconds",
                "/keep_alive_seconds",
            ),
            Member::Checkpoint => ("/CheckpointConfig", "/checkpoint_s3_uri", "/checkpoint"),
            Member::Volume => (
                "/ResourceConfig/VolumeSizeInGB",
                "/volume_size",
                "/profile/volume_size_gb",
            ),
            Member::Mpi => (
                "/HyperParameters/sagemaker_mpi_enabled",
                "/distribution/mpi",
                "/profile/library",
            ),
            Member::Retry => (
                "/RetryStrategy",
                "/max_retry_attempts",
                "/workload/techniques/retry_attempts",
            ),
        };
        match self {
            Self::Body => body.to_owned(),
            Self::Estimator => estimator.to_owned(),
            Self::Candidate(index) => match member {
                Member::Volume | Member::Mpi => format!("/candidates/{index}{experiment}"),
                _ => experiment.to_owned(),
            },
        }
    }

    /// A patch that sets a member whose value has the same form in every document.
    pub(crate) fn set(self, member: Member, value: impl Into<Value>) -> Vec<Operation> {
        vec![Operation::set(&self.pointer(member), value.into())]
    }
}

/// Instances of one type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    pub(crate) instance_type: Located<String>,
    pub(crate) count: Located<u64>,
}

/// A training job as a document describes it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) origin: Origin,
    pub(crate) groups: Vec<Group>,
    /// More than one instance type.
    pub(crate) is_mixed: bool,
    /// Only one of the groups is used, depending on availability.
    pub(crate) is_either: bool,
    pub(crate) region: Option<Located<String>>,
    pub(crate) is_spot: bool,
    /// A built-in or marketplace algorithm.
    pub(crate) is_algorithm: bool,
    pub(crate) max_runtime: Option<Located<u64>>,
    pub(crate) max_wait: Option<Located<u64>>,
    pub(crate) keep_alive: Option<Located<u64>>,
    pub(crate) has_checkpoint: bool,
    pub(crate) volume_gb: Option<Located<u64>>,
    pub(crate) volume_key: Option<String>,
    pub(crate) image: Option<Located<Image>>,
    /// The region of the registry that the image is in, and the image's pointer.
    pub(crate) image_region: Option<(String, String)>,
    /// Every launcher that is requested for the script.
    pub(crate) libraries: Vec<Located<ParallelLibrary>>,
    pub(crate) smp: Option<Located<Map<String, Value>>>,
    pub(crate) has_mpi: bool,
    pub(crate) has_torch_distributed: bool,
    pub(crate) processes_per_host: Option<Located<u64>>,
    pub(crate) compiler: Option<String>,
    pub(crate) has_debugger: bool,
    pub(crate) has_profiler: bool,
    pub(crate) profiler_disabled: Option<String>,
    pub(crate) profiler_interval: Option<Located<u64>>,
    pub(crate) profiler_rules: Vec<Located<String>>,
    pub(crate) debug_rules: Vec<Located<String>>,
    pub(crate) entry_point: Option<Located<String>>,
    pub(crate) hyperparameters: Vec<Located<String>>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) has_environment: bool,
    pub(crate) retries: bool,
    pub(crate) checks_infrastructure: bool,
    /// Names that people chose: of jobs, scripts, classes.
    pub(crate) words: Vec<Located<String>>,
}

impl Job {
    pub(crate) fn new(origin: Origin) -> Self {
        Self {
            origin,
            groups: Vec::new(),
            is_mixed: false,
            is_either: false,
            region: None,
            is_spot: false,
            is_algorithm: false,
            max_runtime: None,
            max_wait: None,
            keep_alive: None,
            has_checkpoint: false,
            volume_gb: None,
            volume_key: None,
            image: None,
            image_region: None,
            libraries: Vec::new(),
            smp: None,
            has_mpi: false,
            has_torch_distributed: false,
            processes_per_host: None,
            compiler: None,
            has_debugger: false,
            has_profiler: false,
            profiler_disabled: None,
            profiler_interval: None,
            profiler_rules: Vec::new(),
            debug_rules: Vec::new(),
            entry_point: None,
            hyperparameters: Vec::new(),
            environment: BTreeMap::new(),
            has_environment: false,
            retries: false,
            checks_infrastructure: false,
            words: Vec::new(),
        }
    }

    pub(crate) fn pointer(&self, member: Member) -> String {
        self.origin.pointer(member)
    }

    pub(crate) fn instances(&self) -> u64 {
        let counts = self.groups.iter().map(|group| group.count.value);
        if self.is_either {
            counts.max().unwrap_or(0)
        } else {
            counts.fold(0, u64::saturating_add)
        }
    }
}

/// The region of the registry that an image of ECR is in.
pub(crate) fn registry_region(image: &str) -> Option<&str> {
    image.split_once(".dkr.ecr.")?.1.split('.').next()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The value at a pointer, with that pointer; `None` if it is absent or of another type.
fn at<T>(
    document: &Value,
    pointer: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Option<Located<T>> {
    document
        .pointer(pointer)
        .and_then(read)
        .map(|value| Located::new(value, pointer))
}

/// The strings of an object.
pub(crate) fn strings(value: Option<&Value>) -> BTreeMap<String, String> {
    let members = value.and_then(Value::as_object).into_iter().flatten();
    members
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Reads a CreateTrainingJob body.
pub(crate) fn of_body(body: &Value) -> Job {
    let mut job = Job::new(Origin::Body);
    groups_of_body(body, &mut job);
    job.is_spot = body
        .get("EnableManagedSpotTraining")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    job.is_algorithm = body
        .pointer("/AlgorithmSpecification/AlgorithmName")
        .is_some();
    job.max_runtime = at(
        body,
        "/StoppingCondition/MaxRuntimeInSeconds",
        Value::as_u64,
    );
    job.max_wait = at(
        body,
        "/StoppingCondition/MaxWaitTimeInSeconds",
        Value::as_u64,
    );
    job.environment = strings(body.get("Environment"));
    job.has_environment = body.get("Environment").is_some_and(Value::is_object);
    job.keep_alive = at(
        body,
        "/ResourceConfig/KeepAlivePeriodInSeconds",
        Value::as_u64,
    )
    .filter(|s| s.value > 0);
    job.has_checkpoint = body.pointer("/CheckpointConfig/S3Uri").is_some();
    job.volume_gb = at(body, "/ResourceConfig/VolumeSizeInGB", Value::as_u64);
    job.volume_key = at(body, "/ResourceConfig/VolumeKmsKeyId", text).map(|key| key.pointer);
    job.image = at(body, "/AlgorithmSpecification/TrainingImage", |uri| {
        sdk::image(uri.as_str()?)
    });
    // A job runs where its image is: a body names no region.
    job.region = at(body, "/AlgorithmSpecification/TrainingImage", |uri| {
        registry_region(uri.as_str()?).map(str::to_owned)
    });
    observers_of_body(body, &mut job);
    job.retries = body
        .pointer("/RetryStrategy/MaximumRetryAttempts")
        .is_some();
    job.checks_infrastructure = body
        .pointer("/InfraCheckConfig/EnableInfraCheck")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    job.words.extend(at(body, "/TrainingJobName", text));
    started_by(body, &mut job);
    job
}

/// Reads one instance type, several at once, or a choice among several.
fn groups_of_body(body: &Value, job: &mut Job) {
    let group = |group: &Value, place: &str| {
        let count = group
            .get("InstanceCount")
            .and_then(Value::as_u64)
            .unwrap_or(1);
        Some(Group {
            instance_type: Located::new(
                text(group.get("InstanceType")?)?,
                format!("{place}/InstanceType"),
            ),
            count: Located::new(count, format!("{place}/InstanceCount")),
        })
    };
    let listed = |place: &str| -> Option<Vec<Group>> {
        let groups = body.pointer(place)?.as_array()?.iter().enumerate();
        Some(
            groups
                .filter_map(|(index, one)| group(one, &format!("{place}/{index}")))
                .collect(),
        )
    };
    if let Some(groups) = listed("/ResourceConfig/InstanceGroups") {
        job.is_mixed = true;
        job.groups = groups;
    } else if let Some(groups) = listed("/ResourceConfig/InstancePreferences") {
        job.is_either = true;
        job.groups = groups;
    } else if let Some(resources) = body.get("ResourceConfig") {
        job.groups = group(resources, "/ResourceConfig").into_iter().collect();
    }
}

/// Reads Debugger and Profiler.
fn observers_of_body(body: &Value, job: &mut Job) {
    job.has_debugger =
        body.get("DebugHookConfig").is_some() || body.get("DebugRuleConfigurations").is_some();
    let profiler = body.get("ProfilerConfig");
    let is_disabled = profiler
        .and_then(|config| config.get("DisableProfiler"))
        .and_then(Value::as_bool);
    job.has_profiler = profiler.is_some() && is_disabled != Some(true);
    job.profiler_disabled =
        (is_disabled == Some(true)).then(|| "/ProfilerConfig/DisableProfiler".to_owned());
    job.profiler_interval = at(
        body,
        "/ProfilerConfig/ProfilingIntervalInMilliseconds",
        Value::as_u64,
    );
    job.profiler_rules = rules_of(body, "ProfilerRuleConfigurations");
    job.debug_rules = rules_of(body, "DebugRuleConfigurations");
}

fn rules_of(body: &Value, member: &str) -> Vec<Located<String>> {
    let rules = body
        .get(member)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate();
    rules
        .filter_map(|(index, rule)| {
            let name = rule
                .pointer("/RuleParameters/rule_to_invoke")
                .or_else(|| rule.get("RuleConfigurationName"))?;
            Some(Located::new(text(name)?, format!("/{member}/{index}")))
        })
        .collect()
}

/// How the script is started, judged by the hyperparameters that the SDK would have set.
fn started_by(body: &Value, job: &mut Job) {
    let Some(hyper) = body.get("HyperParameters").and_then(Value::as_object) else {
        return;
    };
    let is_on = |key: &str| {
        hyper
            .get(key)
            .and_then(Value::as_str)
            .is_some_and(|value| value.trim_matches('"') == "true")
    };
    let mp = hyper
        .get("mp_parameters")
        .and_then(Value::as_str)
        .and_then(|json| serde_json::from_str(json).ok());
    let has_torch = is_on("sagemaker_torch_distributed_enabled");
    let libraries = libraries_of(is_on, mp.is_some(), has_torch);
    job.libraries.extend(
        libraries.map(|(key, library)| Located::new(library, format!("/HyperParameters/{key}"))),
    );
    job.smp = mp.map(|parameters| Located::new(parameters, "/HyperParameters/mp_parameters"));
    job.has_mpi = is_on("sagemaker_mpi_enabled");
    job.has_torch_distributed = has_torch;
    if is_on("sagemaker_training_compiler_enabled") {
        job.compiler = Some("/HyperParameters/sagemaker_training_compiler_enabled".to_owned());
    }
    let text = |key: &str| {
        let text = hyper.get(key)?.as_str()?.trim_matches('"');
        Some(Located::new(
            text.to_owned(),
            format!("/HyperParameters/{key}"),
        ))
    };
    let processes = text("sagemaker_mpi_num_of_processes_per_host");
    job.processes_per_host =
        processes.and_then(|count| Some(Located::new(count.value.parse().ok()?, count.pointer)));
    job.entry_point = text("sagemaker_program");
    job.words.extend(job.entry_point.clone());
    let own = hyper.keys().filter(|key| !key.starts_with("sagemaker_"));
    job.hyperparameters = own
        .map(|key| Located::new(key.clone(), format!("/HyperParameters/{}", escaped(key))))
        .collect();
}

/// Each enabled library, with the hyperparameter that enables it.
fn libraries_of(
    is_on: impl Fn(&str) -> bool,
    has_mp: bool,
    has_torch: bool,
) -> impl Iterator<Item = (&'static str, ParallelLibrary)> {
    let model_parallel = match (has_mp, has_torch) {
        (true, true) => Some(("mp_parameters", ParallelLibrary::SmpV2)),
        (true, false) => Some(("mp_parameters", ParallelLibrary::SmpV1)),
        (false, true) => Some((
            "sagemaker_torch_distributed_enabled",
            ParallelLibrary::Torchrun,
        )),
        (false, false) => {
            let by_mpi = ("sagemaker_mpi_enabled", ParallelLibrary::Horovod);
            Some(by_mpi).filter(|(key, _)| is_on(key))
        }
    };
    let switched = |key, library| Some((key, library)).filter(|_| is_on(key));
    let started = [
        switched(
            "sagemaker_distributed_dataparallel_enabled",
            ParallelLibrary::Smddp,
        ),
        model_parallel,
        switched(
            "sagemaker_parameter_server_enabled",
            ParallelLibrary::ParameterServer,
        ),
        switched(
            "sagemaker_multi_worker_mirrored_strategy_enabled",
            ParallelLibrary::MultiWorkerMirrored,
        ),
    ];
    started.into_iter().flatten()
}

/// Reads a candidate of an experiment.
pub(crate) fn of_candidate(
    spec: &ExperimentSpec,
    workload: &WorkloadSpec,
    index: usize,
    candidate: &CandidateSpec,
) -> Job {
    let mut job = Job::new(Origin::Candidate(index));
    let place = format!("/candidates/{index}");
    job.groups = vec![Group {
        instance_type: Located::new(
            candidate.instance_type.clone(),
            format!("{place}/instance_type"),
        ),
        count: Located::new(
            u64::from(candidate.instance_count),
            format!("{place}/instance_count"),
        ),
    }];
    job.region = Some(Located::new(spec.region.clone(), "/region"));
    job.is_spot = candidate.purchase_options.contains(&PurchaseOption::Spot);
    job.max_runtime = Some(Located::new(
        u64::from(spec.max_runtime_seconds),
        "/max_runtime_seconds",
    ));
    job.max_wait = spec
        .max_wait_seconds
        .map(|wait| Located::new(u64::from(wait), "/max_wait_seconds"));
    job.has_checkpoint = spec.checkpoint.is_some();
    job.words = vec![Located::new(spec.name.clone(), "/name")];
    of_workload(workload, &mut job);
    if let Some(profile) = &candidate.profile {
        of_profile(profile, &format!("{place}/profile"), &mut job);
    }
    job
}

fn of_workload(workload: &WorkloadSpec, job: &mut Job) {
    job.image = sdk::image(&workload.image).map(|image| Located::new(image, "/workload/image"));
    job.image_region = registry_region(&workload.image)
        .map(|region| (region.to_owned(), "/workload/image".to_owned()));
    of_techniques(&workload.techniques, job);
    job.entry_point = workload
        .script
        .as_ref()
        .map(|script| Located::new(script.entry_point.clone(), "/workload/script/entry_point"));
    job.words
        .push(Located::new(workload.name.clone(), "/workload/name"));
    job.words.extend(job.entry_point.clone());
    job.hyperparameters = keys(&workload.hyperparameters, "/workload/hyperparameters").collect();
}

/// The keys of an object, each with its pointer.
fn keys(object: &BTreeMap<String, String>, place: &str) -> impl Iterator<Item = Located<String>> {
    object
        .keys()
        .map(move |key| Located::new(key.clone(), format!("{place}/{}", escaped(key))))
}

fn of_techniques(techniques: &Techniques, job: &mut Job) {
    let of = |member: &str| format!("/workload/techniques/{member}");
    job.compiler = techniques
        .training_compiler
        .then(|| of("training_compiler"));
    job.has_debugger = techniques.debugger.is_some();
    job.has_profiler = techniques.profiler.is_some();
    job.retries = techniques.retry_attempts.is_some();
    job.checks_infrastructure = techniques.infra_check;
    let named = |rules: &[String], member: &str| -> Vec<Located<String>> {
        let numbered = rules.iter().enumerate();
        numbered
            .map(|(i, rule)| Located::new(rule.clone(), format!("{}/{i}", of(member))))
            .collect()
    };
    if let Some(profiler) = &techniques.profiler {
        job.profiler_rules = named(&profiler.rules, "profiler/rules");
        job.profiler_interval = profiler
            .interval_milliseconds
            .map(|ms| Located::new(u64::from(ms), of("profiler/interval_milliseconds")));
    }
    if let Some(debugger) = &techniques.debugger {
        job.debug_rules = named(&debugger.rules, "debugger/rules");
    }
}

fn of_profile(profile: &ProfileSpec, place: &str, job: &mut Job) {
    let own = format!("{place}/hyperparameters");
    job.hyperparameters
        .extend(keys(&profile.hyperparameters, &own));
    job.environment.clone_from(&profile.environment);
    job.volume_gb = profile
        .volume_size_gb
        .map(|gb| Located::new(u64::from(gb), format!("{place}/volume_size_gb")));
    if profile.library != ParallelLibrary::None {
        job.libraries.push(Located::new(profile.library, place));
    }
    let is_smp = matches!(
        profile.library,
        ParallelLibrary::SmpV1 | ParallelLibrary::SmpV2
    );
    job.smp = is_smp.then(|| Located::new(profile.smp(), format!("{place}/smp_parameters")));
    // The rendered request contains what each library needs.
    job.has_mpi = matches!(
        profile.library,
        ParallelLibrary::SmpV1 | ParallelLibrary::Horovod
    );
    job.has_torch_distributed = profile.library == ParallelLibrary::SmpV2;
    job.processes_per_host = profile
        .processes_per_host
        .map(|count| Located::new(u64::from(count), format!("{place}/processes_per_host")));
}
