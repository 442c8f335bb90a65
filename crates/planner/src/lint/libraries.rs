//! Rules on distributed training libraries: which instance types and framework versions they run
//! on, what they cannot be combined with, and the parameters of SageMaker's model parallel library.

use std::ops::RangeInclusive;

use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::finding::escaped;
use bakeoff_domain::finding::{FINDINGS_MAX, Finding, Operation, nearest};
use bakeoff_domain::spec::{ParallelLibrary, runs_on};
use serde_json::{Map, Value};

use super::job::{Job, Located, Member, Origin};
use crate::render::sdk::{Framework, Image};
use crate::rules::found;

/// Training Compiler's instance families (sagemaker SDK 2.257.7, training_compiler/config.py).
const COMPILER_FAMILIES: [&str; 5] = ["p3", "p3dn", "g4dn", "p4d", "g5"];

fn called(library: ParallelLibrary) -> &'static str {
    match library {
        ParallelLibrary::SmpV1 => "SageMaker's model parallel library v1",
        ParallelLibrary::SmpV2 => "SageMaker's model parallel library v2",
        ParallelLibrary::Smddp => "SageMaker's data parallel library",
        ParallelLibrary::Torchrun => "torch_distributed",
        ParallelLibrary::Deepspeed => "DeepSpeed",
        ParallelLibrary::Horovod => "Horovod through MPI",
        ParallelLibrary::ParameterServer => "TensorFlow's parameter server",
        ParallelLibrary::MultiWorkerMirrored => "TensorFlow's MultiWorkerMirroredStrategy",
        ParallelLibrary::None => "no library",
    }
}

pub(super) fn check(job: &Job, findings: &mut Vec<Finding>) {
    for library in &job.libraries {
        on_types(job, library, findings);
        if let Some(image) = &job.image {
            let is_trainium = job
                .groups
                .iter()
                .any(|group| group.instance_type.value.starts_with("ml.trn"));
            versions(library, image, is_trainium, findings);
        }
    }
    together(job, findings);
    processes(job, findings);
    if let Some(parameters) = &job.smp {
        smp(job, parameters, findings);
    }
    if let Some(pointer) = &job.compiler {
        compiler(job, pointer, findings);
    }
    if let Some(script) = job
        .entry_point
        .as_ref()
        .filter(|script| !is_python(&script.value))
        && job
            .libraries
            .iter()
            .any(|found| found.value == ParallelLibrary::Torchrun)
    {
        findings.push(found("torch-distributed-script", &script.pointer));
    }
}

fn is_python(script: &str) -> bool {
    std::path::Path::new(script)
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("py"))
}

fn on_types(job: &Job, library: &Located<ParallelLibrary>, findings: &mut Vec<Finding>) {
    // In a mixed cluster the library runs on only one group, and the request does not say which.
    let kinds = job.groups.iter().filter(|_| !job.is_mixed);
    let wrong = kinds
        .filter_map(|group| catalog::find(&group.instance_type.value))
        .find(|kind| !runs_on(library.value, kind));
    let Some(kind) = wrong else { return };
    if kind.accelerator_count == 0 && matches!(job.origin, Origin::Candidate(_)) {
        return; // already reported for the type
    }
    let mut ways = Vec::new();
    // What is refused is no way out.
    let others = [
        (ParallelLibrary::Torchrun, "\"torchrun\""),
        (ParallelLibrary::Deepspeed, "\"deepspeed\""),
    ];
    let others = others
        .iter()
        .filter(|(other, _)| *other != library.value && runs_on(*other, kind));
    let others: Vec<&str> = others.map(|(_, name)| *name).collect();
    if !others.is_empty() {
        ways.push(format!(
            "use torch_distributed (\"library\": {})",
            others.join(" or ")
        ));
    }
    ways.extend(
        library
            .value
            .instance_types()
            .map(|listed| format!("choose one of {}", listed.join(", "))),
    );
    if kind.accelerator_count == 0 {
        ways.push(format!(
            "leave {} out: on CPUs the script starts without it",
            called(library.value)
        ));
    }
    if ways.is_empty() {
        ways.push("choose a type with GPUs".to_owned());
    }
    let fix = ways.join(", or ");
    findings.push(
        found("library-not-on-type", &library.pointer)
            .says(format!(
                "{} does not run on {}",
                called(library.value),
                kind.instance_type
            ))
            .fix(fix),
    );
}

/// Checks the image against a library's version range (sagemaker SDK 2.257.7, fw_utils.py).
fn versions(
    library: &Located<ParallelLibrary>,
    image: &Located<Image>,
    is_trainium: bool,
    findings: &mut Vec<Finding>,
) {
    let framework = image.value.framework;
    let version = &image.value.version;
    let support = match support(library.value, framework, is_trainium) {
        Support::For(versions) => versions,
        Support::ForAll => return,
        Support::ForAnother => {
            findings.push(found("library-framework", &library.pointer).says(format!(
                "{} does not support this image's framework ({framework:?})",
                called(library.value)
            )));
            return;
        }
    };
    if !support.contains(&version.as_slice()) {
        findings.push(found("library-version", &image.pointer).says(format!(
            "{} does not support {framework:?} {}",
            called(library.value),
            image.value.version_text
        )));
    }
}

/// The framework versions that a library is built for.
enum Support {
    For(RangeInclusive<&'static [u32]>),
    ForAll,
    ForAnother,
}

fn support(library: ParallelLibrary, framework: Framework, is_trainium: bool) -> Support {
    let (least, most): (&[u32], &[u32]) = match (library, framework) {
        (ParallelLibrary::Smddp, Framework::Pytorch) => (&[1, 6], &[2, 2, u32::MAX]),
        (ParallelLibrary::Smddp, Framework::Tensorflow) => (&[2, 3], &[2, 11, u32::MAX]),
        (ParallelLibrary::Torchrun | ParallelLibrary::Deepspeed, Framework::Pytorch)
            if is_trainium =>
        {
            (&[1, 11], &[2, 0, 0])
        }
        (ParallelLibrary::Torchrun | ParallelLibrary::Deepspeed, Framework::Pytorch) => {
            (&[1, 13, 1], &[u32::MAX])
        }
        (ParallelLibrary::SmpV1, Framework::Pytorch) => (&[1, 6], &[2, 0, u32::MAX]),
        (ParallelLibrary::SmpV2, Framework::Pytorch) => (&[2, 0], &[u32::MAX]),
        (ParallelLibrary::MultiWorkerMirrored, Framework::Tensorflow) => (&[2, 9], &[u32::MAX]),
        (ParallelLibrary::ParameterServer, Framework::Tensorflow)
        | (ParallelLibrary::Horovod | ParallelLibrary::None, _) => return Support::ForAll,
        _ => return Support::ForAnother,
    };
    Support::For(least..=most)
}

fn together(job: &Job, findings: &mut Vec<Finding>) {
    let smdistributed = [ParallelLibrary::Smddp, ParallelLibrary::SmpV1];
    let is_refused = |image: &&Located<Image>| image.value.tag.contains("2.0.1-gpu-py310-cu121");
    if let Some(image) = job.image.as_ref().filter(is_refused)
        && job
            .libraries
            .iter()
            .any(|library| smdistributed.contains(&library.value))
    {
        findings.push(
            found("library-version", &image.pointer)
                .says("SageMaker's distributed libraries do not run on this image (cu121)"),
        );
    }
    mixed_cluster(job, findings);
    let names: Vec<&Located<ParallelLibrary>> = job.libraries.iter().collect();
    if let [_, second, ..] = names.as_slice() {
        let all: Vec<&str> = names.iter().map(|found| called(found.value)).collect();
        findings.push(
            found("two-libraries", &second.pointer)
                .says(format!("{} are requested together", all.join(" and "))),
        );
    }
    for library in &job.libraries {
        if library.value == ParallelLibrary::SmpV1 {
            smp_v1(job, library, findings);
        }
    }
}

/// Checks that the image's framework is recent enough for a mixed cluster.
fn mixed_cluster(job: &Job, findings: &mut Vec<Finding>) {
    let Some(image) = job.image.as_ref().filter(|_| job.is_mixed) else {
        return;
    };
    let least: &[u32] = match image.value.framework {
        Framework::Pytorch => &[1, 10],
        Framework::Tensorflow => &[2, 6],
    };
    if image.value.version.as_slice() < least {
        findings.push(found("mixed-cluster-version", &image.pointer));
    }
}

fn smp_v1(job: &Job, library: &Located<ParallelLibrary>, findings: &mut Vec<Finding>) {
    findings.push(found("smp-v1-archived", &library.pointer));
    if job.has_mpi {
        return;
    }
    let patch = match job.origin {
        Origin::Estimator => vec![Operation::set(
            "/distribution/mpi",
            serde_json::json!({"enabled": true}),
        )],
        Origin::Body => job.origin.set(Member::Mpi, "true"),
        Origin::Candidate(_) => Vec::new(),
    };
    findings.push(found("smp-needs-mpi", job.pointer(Member::Mpi)).patch(patch));
}

fn processes(job: &Job, findings: &mut Vec<Finding>) {
    let Some(processes) = &job.processes_per_host else {
        return;
    };
    let least = job
        .groups
        .iter()
        .filter_map(|group| catalog::find(&group.instance_type.value));
    let Some(kind) = least
        .filter(|kind| kind.accelerator_count > 0)
        .min_by_key(|kind| kind.accelerator_count)
    else {
        return;
    };
    if processes.value > u64::from(kind.accelerator_count) {
        findings.push(
            found("processes-exceed-accelerators", &processes.pointer)
                .says(format!(
                    "{} processes per instance, but {} has {} accelerators",
                    processes.value, kind.instance_type, kind.accelerator_count
                ))
                .fix(format!("use at most {}", kind.accelerator_count)),
        );
    }
}

/// Integer parameters of SMP v1, each at least one.
const COUNTS: [&str; 7] = [
    "partitions",
    "pipeline_parallel_degree",
    "tensor_parallel_degree",
    "microbatches",
    "active_microbatches",
    "sharded_data_parallel_degree",
    "activation_loading_horizon",
];
/// Further parameters of SMP v1 (smd_model_parallel_general.rst).
const OTHERS: [&str; 25] = [
    "optimize",
    "pipeline",
    "placement_strategy",
    "auto_partition",
    "default_partition",
    "ddp",
    "ddp_port",
    "ddp_dist_backend",
    "horovod",
    "contiguous",
    "memory_weight",
    "offload_activations",
    "shard_optimizer_state",
    "prescaled_batch",
    "fp16",
    "bf16",
    "fp16_params",
    "skip_tracing",
    "deterministic_server",
    "delayed_parameter_initialization",
    "sdp_reduce_bucket_size",
    "sdp_param_persistence_threshold",
    "sdp_max_live_parameters",
    "sdp_hierarchical_allgather",
    "sdp_gradient_clipping",
];
/// Parameters of SMP v2 (sagemaker SDK 2.257.7, modules/distributed.py).
const V2: [&str; 9] = [
    "hybrid_shard_degree",
    "sm_activation_offloading",
    "activation_loading_horizon",
    "fsdp_cache_flush_warnings",
    "allow_empty_shards",
    "tensor_parallel_degree",
    "context_parallel_degree",
    "expert_parallel_degree",
    "random_seed",
];

fn smp(job: &Job, parameters: &Located<Map<String, Value>>, findings: &mut Vec<Finding>) {
    let is_v2 = job.has_torch_distributed;
    let at = |key: &str| format!("{}/{}", parameters.pointer, escaped(key));
    let known: Vec<&str> = if is_v2 {
        V2.to_vec()
    } else {
        COUNTS.into_iter().chain(OTHERS).collect()
    };
    for key in parameters
        .value
        .keys()
        .filter(|key| !known.contains(&key.as_str()))
        .take(FINDINGS_MAX + 1)
    {
        findings.push(smp_unknown(key, &at(key), &known, job.origin));
    }
    if is_v2 {
        return;
    }
    smp_values(&parameters.value, at, findings);
    smp_degrees(parameters, at, findings);
    let pipeline = pipeline_degree(&parameters.value).unwrap_or(1).max(1);
    smp_together(&parameters.value, pipeline, at, findings);
    let split = pipeline.saturating_mul(degree(&parameters.value, "tensor_parallel_degree"));
    smp_split(job, split, &parameters.pointer, findings);
}

fn number(parameters: &Map<String, Value>, key: &str) -> Option<u64> {
    parameters.get(key).and_then(Value::as_u64)
}

/// A degree of parallelism; 1 if it is not given.
fn degree(parameters: &Map<String, Value>, key: &str) -> u64 {
    number(parameters, key).unwrap_or(1).max(1)
}

/// The pipeline's degree, under either of its names.
fn pipeline_degree(parameters: &Map<String, Value>) -> Option<u64> {
    number(parameters, "pipeline_parallel_degree").or_else(|| number(parameters, "partitions"))
}

/// Checks that some degree is given, and that the two names of the pipeline's degree agree.
fn smp_degrees(
    parameters: &Located<Map<String, Value>>,
    at: impl Fn(&str) -> String,
    findings: &mut Vec<Finding>,
) {
    let number = |key: &str| number(&parameters.value, key);
    if let (Some(partitions), Some(pipeline)) =
        (number("partitions"), number("pipeline_parallel_degree"))
        && partitions != pipeline
    {
        findings.push(found("smp-two-degrees", at("pipeline_parallel_degree")).says(format!(
            "partitions is {partitions} but pipeline_parallel_degree is {pipeline}: they are two names for one setting"
        )));
    }
    if pipeline_degree(&parameters.value).is_none()
        && degree(&parameters.value, "tensor_parallel_degree") == 1
        && degree(&parameters.value, "sharded_data_parallel_degree") == 1
    {
        findings.push(found("smp-no-degree", &parameters.pointer));
    }
}

/// Checks settings that exclude or require each other.
fn smp_together(
    parameters: &Map<String, Value>,
    pipeline: u64,
    at: impl Fn(&str) -> String,
    findings: &mut Vec<Finding>,
) {
    let degree = |key: &str| degree(parameters, key);
    let is_on = |key: &str| {
        parameters
            .get(key)
            .and_then(Value::as_bool)
            .unwrap_or(false)
    };
    if degree("sharded_data_parallel_degree") > 1
        && (degree("tensor_parallel_degree") > 1 || pipeline > 1 || is_on("shard_optimizer_state"))
    {
        findings.push(found(
            "smp-sharded-alone",
            at("sharded_data_parallel_degree"),
        ));
    }
    if degree("tensor_parallel_degree") > 1 && !is_on("ddp") {
        findings.push(found("smp-tensor-needs-ddp", at("tensor_parallel_degree")));
    }
    if is_on("ddp") && is_on("horovod") {
        findings.push(found("smp-ddp-and-horovod", at("horovod")));
    }
    if is_on("offload_activations") && degree("microbatches") < 2 {
        findings.push(found(
            "smp-offload-needs-microbatches",
            at("offload_activations"),
        ));
    }
    if is_on("shard_optimizer_state") {
        findings.push(found(
            "smp-sharded-optimizer-saving",
            at("shard_optimizer_state"),
        ));
    }
}

/// Checks for values that the library rejects.
fn smp_values(
    parameters: &Map<String, Value>,
    at: impl Fn(&str) -> String,
    findings: &mut Vec<Finding>,
) {
    for key in COUNTS.iter().filter(|key| {
        parameters
            .get(**key)
            .is_some_and(|value| value.as_u64().is_none_or(|n| n == 0))
    }) {
        findings.push(
            found("smp-value", at(key)).says(format!("{key} must be a whole number of at least 1")),
        );
    }
    let choices: [(&str, &[&str]); 3] = [
        ("pipeline", &["simple", "interleaved", "_only_forward"]),
        ("placement_strategy", &["spread", "cluster"]),
        ("optimize", &["speed", "memory"]),
    ];
    for (key, allowed) in choices {
        let given = parameters
            .get(key)
            .map(|value| value.as_str().unwrap_or_default());
        if given.is_some_and(|given| !allowed.contains(&given)) {
            findings.push(
                found("smp-value", at(key))
                    .says(format!("{key} must be one of {}", allowed.join(", "))),
            );
        }
    }
    smp_partition(parameters, at, findings);
}

fn smp_partition(
    parameters: &Map<String, Value>,
    at: impl Fn(&str) -> String,
    findings: &mut Vec<Finding>,
) {
    let weight = parameters.get("memory_weight").map(Value::as_f64);
    if weight.is_some_and(|weight| weight.is_none_or(|weight| !(0.0..=1.0).contains(&weight))) {
        findings.push(
            found("smp-value", at("memory_weight")).says("memory_weight must be between 0 and 1"),
        );
    }
    let is_manual = parameters.get("auto_partition") == Some(&Value::Bool(false));
    if is_manual && !parameters.contains_key("default_partition") {
        findings.push(
            found("smp-value", at("auto_partition"))
                .says("auto_partition false requires default_partition"),
        );
    }
    if let Some(key) = ["ddp_port", "ddp_dist_backend"]
        .into_iter()
        .find(|key| parameters.contains_key(*key))
        && !parameters.contains_key("ddp")
    {
        findings.push(found("smp-value", at(key)).says(format!("{key} requires ddp")));
    }
}

fn smp_unknown(key: &str, pointer: &str, known: &[&str], origin: Origin) -> Finding {
    let near = nearest(key, known.iter().copied(), 2);
    let fix = match key {
        "activation_checkpointing" => {
            "call smp.set_activation_checkpointing in the script instead".to_owned()
        }
        _ if near.is_empty() => "remove it".to_owned(),
        _ => format!("did you mean {}?", near.join(" or ")),
    };
    // In a request, the parameters are JSON inside a string, which a patch cannot reach into.
    let patch = if origin == Origin::Body {
        Vec::new()
    } else {
        vec![Operation::remove(pointer)]
    };
    found("smp-parameter", pointer)
        .says(format!("the library has no parameter `{key}`"))
        .fix(fix)
        .patch(patch)
}

fn smp_split(job: &Job, split: u64, pointer: &str, findings: &mut Vec<Finding>) {
    let known: Option<Vec<&InstanceType>> = job
        .groups
        .iter()
        .map(|group| catalog::find(&group.instance_type.value))
        .collect();
    // A candidate's split is checked together with its profile.
    let is_checked = job.is_mixed || matches!(job.origin, Origin::Candidate(_));
    let Some(kinds) = known.filter(|_| !is_checked) else {
        return;
    };
    let each = kinds
        .iter()
        .map(|kind| u64::from(kind.accelerator_count))
        .sum::<u64>();
    let all = each.saturating_mul(job.instances());
    if split > all && all > 0 {
        let names: Vec<&str> = kinds
            .iter()
            .map(|kind| kind.instance_type.as_str())
            .collect();
        findings.push(found("parallelism-exceeds-gpus", pointer).says(format!(
            "the model is split over {split} accelerators, but {} × {} has {all}",
            job.instances(),
            names.join(", ")
        )));
    }
}

fn compiler(job: &Job, pointer: &str, findings: &mut Vec<Finding>) {
    findings.push(found("compiler-ended", pointer).patch(match job.origin {
        Origin::Estimator | Origin::Candidate(_) => vec![Operation::remove(pointer)],
        Origin::Body => Vec::new(),
    }));
    let smdistributed = [
        ParallelLibrary::Smddp,
        ParallelLibrary::SmpV1,
        ParallelLibrary::SmpV2,
    ];
    if job
        .libraries
        .iter()
        .any(|library| smdistributed.contains(&library.value))
    {
        findings.push(found("compiler-with-smdistributed", pointer));
    }
    let outside = job
        .groups
        .iter()
        .filter_map(|group| catalog::find(&group.instance_type.value));
    if let Some(kind) = outside
        .into_iter()
        .find(|kind| !COMPILER_FAMILIES.contains(&kind.family()))
    {
        findings.push(found("compiler-on-type", pointer).says(format!(
            "Training Compiler does not run on {}",
            kind.instance_type
        )));
    }
    if job.has_debugger || job.has_profiler {
        findings.push(found("compiler-with-debugger", pointer));
    }
}
