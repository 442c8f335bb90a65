//! The job as it is: its own instances, and how its arguments say that it trains there.

use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::spec::{CpuOffload, ParallelLibrary, ProfileSpec, runs_on};

use super::hyperparameters::Hyperparameters;
use super::material::Material;
use super::trainer_config::Fsdp;
use crate::lint::job::{self, Job};
use crate::predict::fit::{Verdict, fit, shares};
use crate::predict::strategy::{Question, advise};
use crate::setup::Setup;

pub(super) fn own_type(job: &Job) -> Option<Cluster<'static>> {
    let group = job.groups.first()?;
    let instance = catalog::find(&group.instance_type.value)?;
    let count = u32::try_from(group.count.value).ok()?.max(1);
    Some(Cluster { instance, count })
}

/// The job's own type, and the batch that it trains.
#[derive(Clone, Copy)]
pub(super) struct OwnCluster {
    pub(super) cluster: Cluster<'static>,
    pub(super) batch: u64,
}

/// How it trains, as it is.
pub(super) fn own_profile(
    material: &Material,
    told: &Hyperparameters<'_>,
    own: OwnCluster,
) -> ProfileSpec {
    let accelerators = own.cluster.accelerators();
    let job = job::of_body(&material.body);
    let replicas = u64::from(accelerators) / replica_size(&job).max(1);
    let mut profile = ProfileSpec::of_batch(own.batch, count(replicas.max(1)));
    if let Some((micro, _)) = told.micro_batch() {
        let each = own.batch / replicas.max(1);
        profile.micro_batch_per_gpu = count(micro);
        profile.gradient_accumulation_steps = count((each / micro).max(1));
    }
    profile.activation_checkpointing = told.checkpoints_activations();
    let instance = own.cluster.instance;
    let library = job.libraries.first().map(|library| library.value);
    profile.library = library.unwrap_or_else(|| usual_library(own.cluster));
    launched_as(&job, told, &mut profile);
    let deepspeed = material.deepspeed.clone().or_else(|| told.deepspeed());
    if let Some(entries) = deepspeed {
        crate::lint::deepspeed_profile(&entries, &mut profile);
    } else if let Some(fsdp) = material.fsdp.or_else(|| told.fsdp()) {
        split_by_fsdp(fsdp, instance, &mut profile);
    }
    profile.volume_size_gb = job
        .volume_gb
        .and_then(|size| u32::try_from(size.value).ok())
        .filter(|_| own.cluster.instance.nvme_gb == 0);
    profile
}

/// How a script is started where nothing says it.
fn usual_library(cluster: Cluster<'_>) -> ParallelLibrary {
    if cluster.accelerators() <= 1 {
        ParallelLibrary::None
    } else if runs_on(ParallelLibrary::Torchrun, cluster.instance) {
        ParallelLibrary::Torchrun
    } else {
        ParallelLibrary::Deepspeed
    }
}

fn count(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A degree of the model parallel library's, 1 where none is stated; version 1 calls that of the pipeline `partitions`.
fn degree(job: &Job, names: &[&str]) -> u64 {
    let parameters = job.smp.as_ref().map(|smp| &smp.value);
    let mut stated = names
        .iter()
        .filter_map(|name| parameters?.get(*name)?.as_u64());
    stated.next().unwrap_or(1).max(1)
}

const TENSOR: [&str; 1] = ["tensor_parallel_degree"];
const PIPELINE: [&str; 2] = ["pipeline_parallel_degree", "partitions"];
const CONTEXT: [&str; 1] = ["context_parallel_degree"];

/// Accelerators that work on one micro-batch together.
pub(super) fn replica_size(job: &Job) -> u64 {
    [&TENSOR[..], &PIPELINE, &CONTEXT]
        .into_iter()
        .map(|names| degree(job, names))
        .fold(1, u64::saturating_mul)
}

/// With the launcher's own parameters.
fn launched_as(job: &Job, told: &Hyperparameters<'_>, profile: &mut ProfileSpec) {
    if let Some(smp) = &job.smp {
        profile.smp_parameters.clone_from(&smp.value);
        profile.tensor_parallel_degree = count(degree(job, &TENSOR));
        profile.pipeline_parallel_degree = count(degree(job, &PIPELINE));
        profile.context_parallel_degree = count(degree(job, &CONTEXT));
    }
    let processes = job.processes_per_host.as_ref();
    profile.processes_per_host = processes.map(|processes| count(processes.value));
    let options = [
        "sagemaker_mpi_custom_mpi_options",
        "sagemaker_distributed_dataparallel_custom_mpi_options",
    ];
    let options = options.iter().find_map(|name| told.text(name));
    options
        .unwrap_or_default()
        .clone_into(&mut profile.mpi_options);
}

fn split_by_fsdp(fsdp: Fsdp, instance: &InstanceType, profile: &mut ProfileSpec) {
    // It is PyTorch's own, whatever starts the processes.
    if !shares(profile.library) {
        profile.library = ParallelLibrary::Torchrun;
    }
    profile.zero_stage = fsdp.zero_stage;
    profile.cpu_offload = match (fsdp.is_offloaded, fsdp.zero_stage) {
        (false, _) => CpuOffload::None,
        (true, 3) => CpuOffload::OptimizerAndParameters,
        (true, _) => CpuOffload::Optimizer,
    };
    let each = instance.accelerator_count.max(1);
    let has_groups = matches!(
        profile.library,
        ParallelLibrary::Torchrun | ParallelLibrary::SmpV2
    );
    profile.hybrid_shard_degree = (fsdp.is_hybrid && has_groups).then_some(each);
}

/// A job that runs although its model would not fit as its arguments say is split by its script: the first ZeRO stage
/// that fits stands for that, or else the adviser's way. `None` where it fits.
pub(super) fn split_if_needed(question: Question<'_>, stated: &ProfileSpec) -> Option<ProfileSpec> {
    let verdict = |profile: &ProfileSpec| {
        let setup = Setup {
            model: question.model,
            profile,
            precision: question.precision,
            cluster: question.cluster,
        };
        fit(setup).verdict
    };
    // SageMaker's library shards by its own parameters.
    let is_smp = matches!(
        stated.library,
        ParallelLibrary::SmpV1 | ParallelLibrary::SmpV2
    );
    if is_smp || verdict(stated) != Verdict::DoesNotFit {
        return None;
    }
    // Those that split nothing by themselves.
    let library = match stated.library {
        ParallelLibrary::None | ParallelLibrary::Torchrun => ParallelLibrary::Deepspeed,
        own => own,
    };
    let mut split = (stated.zero_stage.max(1)..=3).map(|zero_stage| ProfileSpec {
        zero_stage,
        library,
        hybrid_shard_degree: None,
        ..stated.clone()
    });
    let fitting = split.find(|profile| verdict(profile) == Verdict::Fits);
    let advised = || advise(question).ok().map(|advice| advice.profile);
    let profile = fitting.or_else(advised)?;
    Some(ProfileSpec {
        volume_size_gb: stated.volume_size_gb,
        ..profile
    })
}
