//! Renders a spec into a job's request: what is sent for one candidate under one purchase option,
//! and what each attempt adds. [`crate::plan`] and [`crate::lint`] judge its cost and whether it is
//! sensible.

use std::collections::BTreeMap;

use bakeoff_domain::sagemaker::request::{Debugger, MARKER, Profiler, TrainingJobRequest};
use bakeoff_domain::spec::{
    Candidate, CandidateSpec, CpuOffload, ExperimentSpec, ParallelLibrary, Precision, ProfileSpec,
    PurchaseOption, WorkloadSpec,
};

use crate::render::deepspeed;
use crate::render::sdk::{self, Launch};

/// EBS volume in GB when the profile does not set one. SageMaker ignores it on types with local
/// NVMe.
const VOLUME_GB_DEFAULT: u32 = 100;

/// The request without name, marker and checkpoint folder: each attempt adds its own.
pub fn template(
    spec: &ExperimentSpec,
    whole: Candidate<'_>,
    option: PurchaseOption,
    steps: u64,
) -> TrainingJobRequest {
    let Candidate {
        workload,
        spec: candidate,
        profile,
    } = whole;
    let is_spot = option == PurchaseOption::Spot;
    let techniques = &workload.techniques;
    TrainingJobRequest {
        job_name: String::new(),
        image: workload.image.clone(),
        container_entrypoint: workload.container_entrypoint.clone(),
        role_arn: workload.role_arn.clone(),
        instance_type: candidate.instance_type.clone(),
        instance_count: candidate.instance_count,
        metrics_time_series: false,
        instance_groups: Vec::new(),
        volume_size_gb: profile.volume_size_gb.unwrap_or(VOLUME_GB_DEFAULT),
        channels: workload.channels.clone(),
        output_s3_uri: workload.output_s3_uri.clone(),
        hyperparameters: hyperparameters(spec, whole, steps),
        environment: sdk::environment(profile, &candidate.instance_type),
        metrics: workload.metrics.clone(),
        max_runtime_seconds: spec.max_runtime_seconds,
        max_wait_seconds: if is_spot { spec.max_wait_seconds } else { None },
        checkpoint: spec.checkpoint.clone(),
        checkpoint_trial: None,
        keep_alive_seconds: spec
            .keep_alive_seconds
            .filter(|seconds| *seconds > 0 && !is_spot),
        retry_attempts: techniques.retry_attempts,
        infra_check: techniques.infra_check,
        profiler: techniques.profiler.as_ref().map(|wanted| Profiler {
            interval_milliseconds: wanted.interval_milliseconds,
            rules: wanted
                .rules
                .iter()
                .map(|rule| sdk::profiler_rule(rule, &spec.region))
                .collect(),
        }),
        debugger: debugger(spec, whole),
        tags: BTreeMap::from([(
            "bakeoff:managed-by".to_owned(),
            "bakeoff-control-plane".to_owned(),
        )]),
    }
}

/// The debugger's rules, and its hook with the collections that they need. The SDK omits the hook
/// where several processes would write checkpoints and tensors to one place.
fn debugger(spec: &ExperimentSpec, candidate: Candidate<'_>) -> Option<Debugger> {
    let wanted = candidate.workload.techniques.debugger.as_ref()?;
    let is_hook_off = has_no_hook(spec.checkpoint.is_some(), candidate);
    let mut debugger = Debugger {
        is_hook_off,
        collections: wanted.collections.clone(),
        rules: Vec::new(),
    };
    for rule in &wanted.rules {
        let (rule, collection) = sdk::debug_rule(rule, &spec.region);
        debugger.rules.push(rule);
        if let Some(name) = collection {
            let every = BTreeMap::from([("save_interval".to_owned(), "500".to_owned())]);
            debugger.collections.entry(name.to_owned()).or_insert(every);
        }
    }
    Some(debugger)
}

/// Whether the SDK omits the debugger's hook.
pub fn has_no_hook(has_checkpoint: bool, candidate: Candidate<'_>) -> bool {
    let library = candidate.profile.library;
    let is_distributed = candidate.spec.instance_count > 1 || library != ParallelLibrary::None;
    library == ParallelLibrary::ParameterServer || has_checkpoint && is_distributed
}

fn hyperparameters(
    spec: &ExperimentSpec,
    whole: Candidate<'_>,
    steps: u64,
) -> BTreeMap<String, String> {
    let Candidate {
        workload,
        spec: candidate,
        profile,
    } = whole;
    let mut own = BTreeMap::new();
    if !workload.omit_plan_hyperparameters {
        own = shape_hyperparameters(workload, profile, steps);
        if profile.library == ParallelLibrary::Deepspeed {
            own.insert(DEEPSPEED.to_owned(), deepspeed_json(whole));
        }
    }
    own.extend(workload.hyperparameters.clone());
    own.extend(profile.hyperparameters.clone());
    let Some(script) = &workload.script else {
        return own;
    };
    let mut all: BTreeMap<String, String> = own
        .into_iter()
        .map(|(key, value)| (key, sdk::encoded(&value)))
        .collect();
    all.extend(sdk::script(script, &spec.region));
    all.extend(sdk::launch(Launch {
        library: profile.library,
        instance_type: &candidate.instance_type,
        smp_parameters: &profile.smp(),
        processes_per_host: profile
            .processes_per_host
            .or_else(|| processes(candidate, profile)),
        mpi_options: &profile.mpi_options,
    }));
    all
}

/// MPI starts one process per instance unless told otherwise; a plan assumes one per accelerator.
fn processes(candidate: &CandidateSpec, profile: &ProfileSpec) -> Option<u32> {
    let each = candidate.accelerators() / candidate.instance_count.max(1);
    (profile.library == ParallelLibrary::Horovod).then_some(each)
}

/// The argument of Hugging Face's Trainer that takes DeepSpeed's configuration, as a path or as
/// JSON. A user's own value is kept.
pub const DEEPSPEED: &str = "deepspeed";

/// DeepSpeed's configuration as one line of JSON.
pub fn deepspeed_json(candidate: Candidate<'_>) -> String {
    let Candidate {
        workload, profile, ..
    } = candidate;
    let batch = candidate.global_batch();
    serde_json::Value::Object(deepspeed::configuration(profile, workload.precision, batch))
        .to_string()
}

/// Hyperparameters derived from model and profile: a user's own values would make a job train
/// something other than its plan says.
pub const RESERVED_HYPERPARAMETERS: [&str; 16] = [
    "max_seq_length",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "max_steps",
    "zero_stage",
    "cpu_offload",
    "distributed_library",
    "tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
    "hybrid_shard_degree",
    "bf16",
    "fp16",
    "fp8",
    "activation_offload",
];

/// The same of a decoder's layers. Nothing is derived of another model, whose script may take its own.
pub const SHAPE_HYPERPARAMETERS: [&str; 10] = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "num_key_value_heads",
    "intermediate_size",
    "head_dim",
    "num_local_experts",
    "num_experts_per_tok",
    "lora_rank",
];

/// What the training script needs to build this model with this strategy, under Hugging Face's
/// argument names.
fn shape_hyperparameters(
    workload: &WorkloadSpec,
    profile: &ProfileSpec,
    steps: u64,
) -> BTreeMap<String, String> {
    let shape = &workload.model;
    let described = |count: u32| Some(count).filter(|_| shape.is_described());
    let is_given = |length: &u32| shape.is_described() || *length > 1;
    let sequence_length = Some(shape.sequence_length).filter(is_given);
    let degree = profile.context_parallel_degree;
    let offload = match profile.cpu_offload {
        CpuOffload::None => "none",
        CpuOffload::Optimizer => "optimizer",
        CpuOffload::OptimizerAndParameters => "optimizer_and_parameters",
    };
    let mut entries = vec![
        (
            "per_device_train_batch_size",
            profile.micro_batch_per_gpu.to_string(),
        ),
        (
            "gradient_accumulation_steps",
            profile.gradient_accumulation_steps.to_string(),
        ),
        (
            "gradient_checkpointing",
            profile.activation_checkpointing.to_string(),
        ),
        ("max_steps", steps.to_string()),
        ("zero_stage", profile.zero_stage.to_string()),
        ("cpu_offload", offload.to_owned()),
        ("distributed_library", profile.library.as_str().to_owned()),
        (
            "tensor_parallel_degree",
            profile.tensor_parallel_degree.to_string(),
        ),
        (
            "pipeline_parallel_degree",
            profile.pipeline_parallel_degree.to_string(),
        ),
    ];
    let optional = [
        ("num_hidden_layers", described(shape.layers)),
        ("hidden_size", described(shape.hidden)),
        ("num_attention_heads", described(shape.heads)),
        ("vocab_size", described(shape.vocabulary)),
        ("max_seq_length", sequence_length),
        (
            "context_parallel_degree",
            Some(degree).filter(|degree| *degree > 1),
        ),
        ("hybrid_shard_degree", profile.hybrid_shard_degree),
        ("num_key_value_heads", shape.kv_heads),
        ("intermediate_size", shape.intermediate),
        ("head_dim", shape.head_dim),
        ("num_local_experts", shape.experts),
        ("num_experts_per_tok", shape.experts_per_token),
        ("lora_rank", shape.lora_rank),
    ];
    match workload.precision {
        Precision::Bf16 => entries.push(("bf16", "true".to_owned())),
        Precision::Fp16 => entries.push(("fp16", "true".to_owned())),
        Precision::Fp32 => {}
        Precision::Fp8 => {
            entries.push(("bf16", "true".to_owned()));
            entries.push(("fp8", "true".to_owned()));
        }
    }
    if profile.activation_offload {
        entries.push(("activation_offload", "true".to_owned()));
    }
    entries.extend(
        optional
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?.to_string()))),
    );
    entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// Environment variables for the script: its trial, and the URL and token for pushing the trial's
/// metrics.
pub const TRIAL_VARIABLE: &str = "BAKEOFF_TRIAL_ID";
pub const URL_VARIABLE: &str = "BAKEOFF_URL";
pub const PUSH_TOKEN_VARIABLE: &str = "BAKEOFF_PUSH_TOKEN";

/// The request of a full run: that of its trial, with the length and the limits that were rendered
/// for the full run. `changed`: hyperparameters that were changed on purpose.
#[must_use]
pub fn of_full_run<'a>(
    trial: &TrainingJobRequest,
    rendered: &TrainingJobRequest,
    changed: impl Iterator<Item = &'a String>,
) -> TrainingJobRequest {
    let mut hyperparameters = trial.hyperparameters.clone();
    for key in changed.map(String::as_str).chain([LENGTH]) {
        if let Some(value) = rendered.hyperparameters.get(key) {
            hyperparameters.insert(key.to_owned(), value.clone());
        }
    }
    TrainingJobRequest {
        hyperparameters,
        max_runtime_seconds: rendered.max_runtime_seconds,
        max_wait_seconds: rendered.max_wait_seconds,
        keep_alive_seconds: rendered.keep_alive_seconds,
        ..trial.clone()
    }
}

/// The hyperparameter that tells a script how long to train.
pub const LENGTH: &str = "max_steps";

/// The request of one attempt: its deterministic name, its marker, and its trial's own checkpoint
/// folder, or that of the trial it follows. A retry keeps the folder, so that it resumes where the
/// last attempt stopped.
#[must_use]
pub fn for_attempt(
    template: &TrainingJobRequest,
    job_name: &str,
    marker: &str,
    trial: &str,
) -> TrainingJobRequest {
    let mut request = template.clone();
    job_name.clone_into(&mut request.job_name);
    request
        .environment
        .insert(MARKER.to_owned(), marker.to_owned());
    request
        .environment
        .insert(TRIAL_VARIABLE.to_owned(), trial.to_owned());
    let folder = template
        .checkpoint_trial
        .map_or_else(|| trial.to_owned(), |id| id.to_string());
    if let Some(checkpoint) = &mut request.checkpoint {
        checkpoint.s3_uri = format!("{}/{folder}", checkpoint.s3_uri.trim_end_matches('/'));
    }
    request
        .tags
        .insert("bakeoff:trial".to_owned(), trial.to_owned());
    sdk::name(&mut request);
    request
}
