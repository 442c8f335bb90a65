//! The plan: an experiment that has passed the linter becomes trials, each with its request to SageMaker, its price and
//! its worst case. Nothing is started here, and nothing is reserved: that happens attempt by attempt.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::bill;
use crate::catalog;
use crate::cost;
use crate::finding::{Finding, Severity};
use crate::fit::{self, Fit};
use crate::job::{MARKER, TrainingJobRequest};
use crate::metric::HOST_METRICS;
use crate::money::Usd;
use crate::price::{self, Price, Rate};
use crate::spec::{
    CandidateSpec, CpuOffload, ExperimentSpec, ParallelLibrary, ProfileSpec, PurchaseOption, WorkloadSpec,
};

/// EBS volume where the profile names none, GB. SageMaker ignores it on types with local NVMe.
const VOLUME_GB_DEFAULT: u32 = 100;

/// One trial as it would be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrialPlan {
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    /// Counts from 1.
    pub repeat: u32,
    /// Sequences per optimiser step.
    pub global_batch: u64,
    /// Optimiser steps of the trial.
    pub steps: u64,
    pub fit: Option<Fit>,
    /// Findings about this candidate.
    pub findings: Vec<Finding>,
    /// True when a finding refuses the candidate.
    pub refused: bool,
    /// The finding that keeps the trial out of the ranking.
    pub incomparable: Option<Finding>,
    pub price: Option<Price>,
    /// The most one attempt can cost; empty when its price is unknown.
    pub worst_case: Option<WorstCase>,
    /// The request without name, marker and checkpoint folder: each attempt adds its own.
    pub request: Option<TrainingJobRequest>,
}

/// What things cost: prices of instances and the other rates, each with its history.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tariff<'a> {
    pub prices: &'a [Price],
    pub rates: &'a [Rate],
}

/// The most one attempt can cost, by component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorstCase {
    /// Its instances and their volumes.
    pub training_usd: Usd,
    /// Reading its metrics from CloudWatch.
    pub metrics_usd: Usd,
    /// Its instances and volumes kept warm after it, to the end of the keep-alive.
    #[serde(default)]
    pub pool_usd: Usd,
    pub total_usd: Usd,
}

/// Lays out every trial of an experiment, in the order of its candidates.
pub fn plan(
    spec: &ExperimentSpec,
    findings: &[Finding],
    tariff: Tariff<'_>,
    metrics_interval: TimeDelta,
    now: DateTime<Utc>,
) -> Vec<TrialPlan> {
    let incomparable = crate::lint::comparability(spec, findings);
    let mut trials = Vec::new();
    for (index, candidate) in spec.candidates.iter().enumerate() {
        let at = format!("/candidates/{index}/");
        let own: Vec<Finding> = findings.iter().filter(|f| f.pointer.starts_with(&at)).cloned().collect();
        let odd = incomparable.get(index).cloned().flatten();
        for option in &candidate.purchase_options {
            for repeat in 1..=candidate.repeats {
                let base = trial(spec, candidate, *option, tariff, metrics_interval, now);
                trials.push(TrialPlan {
                    repeat,
                    findings: own.clone(),
                    incomparable: odd.clone(),
                    ..base.marked(&own)
                });
            }
        }
    }
    trials
}

impl TrialPlan {
    fn marked(mut self, findings: &[Finding]) -> Self {
        self.refused = findings.iter().any(|finding| finding.severity >= Severity::Refused);
        self
    }
}

fn trial(
    spec: &ExperimentSpec,
    candidate: &CandidateSpec,
    purchase_option: PurchaseOption,
    tariff: Tariff<'_>,
    metrics_interval: TimeDelta,
    now: DateTime<Utc>,
) -> TrialPlan {
    let instance = catalog::find(&candidate.instance_type);
    let workload = spec.workload.as_ref();
    let profile = candidate.profile.as_ref();
    let gpus = instance.map_or(1, |found| found.accelerator_count.max(1)).saturating_mul(candidate.instance_count);
    let global_batch = profile.map_or(0, |profile| profile.global_batch(gpus));
    let steps = workload.map_or(0, |workload| {
        let tokens_per_step = global_batch.saturating_mul(u64::from(workload.model.sequence_length));
        workload.trial_tokens.div_ceil(tokens_per_step.max(1))
    });
    let price = price::in_force(tariff.prices, &candidate.instance_type, &spec.region, now);
    let request = workload
        .zip(profile)
        .map(|(workload, profile)| request(spec, workload, candidate, profile, purchase_option, steps));
    let worst_case = price
        .as_ref()
        .zip(request.as_ref())
        .map(|(price, request)| worst_case(request, tariff, price, metrics_interval, now));
    TrialPlan {
        candidate: candidate.name.clone(),
        instance_type: candidate.instance_type.clone(),
        instance_count: candidate.instance_count,
        purchase_option,
        repeat: 1,
        global_batch,
        steps,
        fit: workload.zip(profile).zip(instance).map(|((workload, profile), instance)| {
            fit::fit(&workload.model, profile, instance, candidate.instance_count)
        }),
        findings: Vec::new(),
        refused: false,
        incomparable: None,
        price,
        worst_case,
        request,
    }
}

/// The most that one attempt can cost: its longest life, at the highest price in force over it, and watching it.
pub fn worst_case(
    request: &TrainingJobRequest,
    tariff: Tariff<'_>,
    price: &Price,
    metrics_interval: TimeDelta,
    now: DateTime<Utc>,
) -> WorstCase {
    let span = request.max_wait_seconds.unwrap_or(request.max_runtime_seconds);
    let ceiling = price::ceiling_over(tariff.prices, price, now, now + TimeDelta::seconds(i64::from(span)));
    let interval = u64::try_from(metrics_interval.num_seconds()).unwrap_or(1);
    let series = u64::from(request.instance_count) * HOST_METRICS.len() as u64 + request.metrics.len() as u64;
    let gb = bill::billed_gb(&request.instance_type, request.volume_size_gb);
    let gb_month = price::storage_ceiling(tariff.rates, &price.region);
    let volumes = |seconds: u64| bill::worst_case_storage(gb, request.instance_count, seconds, gb_month);
    let training_usd = cost::worst_case_training(request.max_runtime_seconds, request.instance_count, ceiling)
        + volumes(cost::longest_billed_seconds(request.max_runtime_seconds));
    let metrics_usd = cost::worst_case_metrics(series, u64::from(span), interval);
    let keep_alive = u64::from(request.keep_alive_seconds.unwrap_or(0));
    let pool_usd = cost::training(keep_alive, request.instance_count, ceiling) + volumes(keep_alive);
    WorstCase { training_usd, metrics_usd, pool_usd, total_usd: training_usd + metrics_usd + pool_usd }
}

fn request(
    spec: &ExperimentSpec,
    workload: &WorkloadSpec,
    candidate: &CandidateSpec,
    profile: &ProfileSpec,
    option: PurchaseOption,
    steps: u64,
) -> TrainingJobRequest {
    let mut hyperparameters = shape_hyperparameters(workload, profile, steps);
    hyperparameters.extend(workload.hyperparameters.clone());
    hyperparameters.extend(profile.hyperparameters.clone());
    let is_spot = option == PurchaseOption::Spot;
    TrainingJobRequest {
        job_name: String::new(),
        image: workload.image.clone(),
        role_arn: workload.role_arn.clone(),
        instance_type: candidate.instance_type.clone(),
        instance_count: candidate.instance_count,
        metrics_time_series: false,
        volume_size_gb: profile.volume_size_gb.unwrap_or(VOLUME_GB_DEFAULT),
        channels: workload.channels.clone(),
        output_s3_uri: workload.output_s3_uri.clone(),
        hyperparameters,
        environment: profile.environment.clone(),
        metrics: workload.metrics.clone(),
        max_runtime_seconds: spec.max_runtime_seconds,
        max_wait_seconds: if is_spot { spec.max_wait_seconds } else { None },
        checkpoint: spec.checkpoint.clone(),
        keep_alive_seconds: spec.keep_alive_seconds.filter(|seconds| *seconds > 0 && !is_spot),
        tags: BTreeMap::from([("bakeoff:managed-by".to_owned(), "bakeoff-control-plane".to_owned())]),
    }
}

/// Hyperparameters that follow from model and profile: a user's own would make a job train something else than its plan says.
pub const RESERVED_HYPERPARAMETERS: [&str; 17] = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
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
    "num_key_value_heads",
    "intermediate_size",
    "lora_rank",
];

/// What the training script needs to build this model and this strategy, under Hugging Face's argument names.
fn shape_hyperparameters(workload: &WorkloadSpec, profile: &ProfileSpec, steps: u64) -> BTreeMap<String, String> {
    let shape = &workload.model;
    let offload = match profile.cpu_offload {
        CpuOffload::None => "none",
        CpuOffload::Optimizer => "optimizer",
        CpuOffload::OptimizerAndParameters => "optimizer_and_parameters",
    };
    let library = match profile.library {
        ParallelLibrary::Deepspeed => "deepspeed",
        ParallelLibrary::Torchrun => "torchrun",
        ParallelLibrary::Smddp => "smddp",
        ParallelLibrary::SmpV1 => "smp_v1",
    };
    let mut entries = vec![
        ("num_hidden_layers", shape.layers.to_string()),
        ("hidden_size", shape.hidden.to_string()),
        ("num_attention_heads", shape.heads.to_string()),
        ("vocab_size", shape.vocabulary.to_string()),
        ("max_seq_length", shape.sequence_length.to_string()),
        ("per_device_train_batch_size", profile.micro_batch_per_gpu.to_string()),
        ("gradient_accumulation_steps", profile.gradient_accumulation_steps.to_string()),
        ("gradient_checkpointing", profile.activation_checkpointing.to_string()),
        ("max_steps", steps.to_string()),
        ("zero_stage", profile.zero_stage.to_string()),
        ("cpu_offload", offload.to_owned()),
        ("distributed_library", library.to_owned()),
        ("tensor_parallel_degree", profile.tensor_parallel_degree.to_string()),
        ("pipeline_parallel_degree", profile.pipeline_parallel_degree.to_string()),
    ];
    let optional = [
        ("num_key_value_heads", shape.kv_heads),
        ("intermediate_size", shape.intermediate),
        ("lora_rank", shape.lora_rank),
    ];
    entries.extend(optional.into_iter().filter_map(|(key, value)| Some((key, value?.to_string()))));
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The request of one attempt: its deterministic name, its marker, its trial's own checkpoint folder.
/// A retry keeps the folder, so that it resumes where the last attempt left off.
#[must_use]
pub fn for_attempt(template: &TrainingJobRequest, job_name: &str, marker: &str, trial: &str) -> TrainingJobRequest {
    let mut request = template.clone();
    job_name.clone_into(&mut request.job_name);
    request.environment.insert(MARKER.to_owned(), marker.to_owned());
    if let Some(checkpoint) = &mut request.checkpoint {
        checkpoint.s3_uri = format!("{}/{trial}", checkpoint.s3_uri.trim_end_matches('/'));
    }
    request.tags.insert("bakeoff:trial".to_owned(), trial.to_owned());
    request
}

/// `bakeoff-<installation>-<attempt>`: 8 + 8 + 1 + 32 of SageMaker's 63 characters.
pub fn job_name(installation: &str, attempt: uuid::Uuid) -> String {
    format!("bakeoff-{installation}-{}", attempt.as_simple())
}
