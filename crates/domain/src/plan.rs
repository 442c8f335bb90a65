//! The plan: an experiment that has passed the linter becomes trials, each with its request to
//! SageMaker, its price and its worst case. Nothing is started here, and nothing is reserved: that
//! happens attempt by attempt.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::bill;
use crate::catalog;
use crate::cost;
use crate::finding::{Finding, Severity};
use crate::fit::{self, Fit};
use crate::forecast::{self, Forecast};
use crate::job::TrainingJobRequest;
use crate::metric::HOST_METRICS;
use crate::money::Usd;
use crate::predict::Calibration;
use crate::price::{self, Price, Rate};
use crate::request;
use crate::spec::{CandidateSpec, ExperimentSpec, PurchaseOption, WorkloadSpec};

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
    /// Speed, hours and dollars before it has run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
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
    /// The longest that one instance of the job is billed; 0 in plans from before it was written.
    #[serde(default)]
    pub billed_seconds: u64,
    /// Of that, what weights and data of a known size take beyond the usual allowance.
    #[serde(default)]
    pub transfer_seconds: u64,
}

/// Lays out every trial of an experiment, in the order of its candidates; none of one that is
/// beyond all limits.
pub fn plan(
    spec: &ExperimentSpec,
    findings: &[Finding],
    tariff: Tariff<'_>,
    metrics_interval: TimeDelta,
    now: DateTime<Utc>,
) -> Vec<TrialPlan> {
    // Beyond the limits of the request itself there might be millions of trials.
    if !crate::lint::is_bounded(findings) {
        return Vec::new();
    }
    let incomparable = crate::lint::comparability(spec, findings);
    let calibration = forecast::calibrated(spec);
    let mut trials = Vec::new();
    for (index, candidate) in spec.candidates.iter().enumerate() {
        let is_own = |finding: &&Finding| finding.concerns(index) && finding.candidate().is_some();
        let own: Vec<Finding> = findings
            .iter()
            .filter(|f| is_own(f) || f.refuses(index))
            .cloned()
            .collect();
        let odd = incomparable.get(index).cloned().flatten();
        for option in &candidate.purchase_options {
            let base = trial(
                spec,
                (candidate, *option),
                tariff,
                metrics_interval,
                &calibration,
                now,
            );
            let base = TrialPlan {
                refused: own
                    .iter()
                    .any(|finding| finding.severity >= Severity::Refused),
                findings: own.clone(),
                incomparable: odd.clone(),
                ..base
            };
            trials.extend((1..=candidate.repeats).map(|repeat| TrialPlan {
                repeat,
                ..base.clone()
            }));
        }
    }
    trials
}

fn trial(
    spec: &ExperimentSpec,
    (candidate, purchase_option): (&CandidateSpec, PurchaseOption),
    tariff: Tariff<'_>,
    metrics_interval: TimeDelta,
    calibration: &Calibration,
    now: DateTime<Utc>,
) -> TrialPlan {
    let instance = catalog::find(&candidate.instance_type);
    let workload = spec.workload.as_ref();
    let profile = candidate.profile.as_ref();
    let gpus = instance
        .map_or(1, |found| found.accelerator_count.max(1))
        .saturating_mul(candidate.instance_count);
    let global_batch = profile.map_or(0, |profile| profile.global_batch(gpus));
    let steps = workload.map_or(0, |workload| {
        let tokens_per_step =
            global_batch.saturating_mul(u64::from(workload.model.sequence_length));
        workload.trial_tokens.div_ceil(tokens_per_step.max(1))
    });
    let price = price::in_force(tariff.prices, &candidate.instance_type, &spec.region, now);
    let request = workload.zip(profile).map(|(workload, profile)| {
        request::template(spec, (workload, candidate, profile), purchase_option, steps)
    });
    let transfer = workload.map_or(0, transfer_seconds);
    let worst_case = price
        .as_ref()
        .zip(request.as_ref())
        .map(|(price, request)| {
            worst_case((request, transfer), tariff, price, metrics_interval, now)
        });
    // Of a layout that there cannot be, nothing is estimated.
    let able = workload
        .zip(profile)
        .zip(instance)
        .map(|((workload, profile), instance)| (workload, profile, instance));
    let able = able.filter(|(workload, profile, _)| {
        let split = profile
            .tensor_parallel_degree
            .saturating_mul(profile.pipeline_parallel_degree);
        crate::lint::is_sound(&workload.model) && split <= gpus
    });
    TrialPlan {
        candidate: candidate.name.clone(),
        instance_type: candidate.instance_type.clone(),
        instance_count: candidate.instance_count,
        purchase_option,
        repeat: 1,
        global_batch,
        steps,
        fit: able.map(|(workload, profile, instance)| {
            fit::fit(
                &workload.model,
                profile,
                workload.precision,
                (instance, candidate.instance_count),
            )
        }),
        findings: Vec::new(),
        refused: false,
        incomparable: None,
        forecast: able.and_then(|(workload, profile, _)| {
            let whole = (workload, candidate, profile);
            forecast::forecast(spec, whole, purchase_option, price.as_ref(), calibration)
        }),
        price,
        worst_case,
        request,
    }
}

/// What its weights (two bytes a parameter) and the data whose size it names take to come and go.
fn transfer_seconds(workload: &WorkloadSpec) -> u64 {
    let data: f64 = workload
        .channels
        .iter()
        .filter_map(|channel| channel.size_gb)
        .map(|gb| f64::from(gb) * 1e9)
        .sum();
    let weights = if crate::lint::is_sound(&workload.model) {
        workload.model.parameters() * 2.0
    } else {
        0.0
    };
    cost::transfer_seconds(weights, data)
}

/// The most that one attempt can cost: its longest life, and that of the pool it leaves, at the
/// highest price in force over both, and watching it.
pub fn worst_case(
    (request, transfer_seconds): (&TrainingJobRequest, u64),
    tariff: Tariff<'_>,
    price: &Price,
    metrics_interval: TimeDelta,
    now: DateTime<Utc>,
) -> WorstCase {
    let span = request
        .max_wait_seconds
        .unwrap_or(request.max_runtime_seconds);
    let billed_seconds =
        cost::longest_billed_seconds(request.max_runtime_seconds, transfer_seconds);
    let keep_alive = u64::from(request.keep_alive_seconds.unwrap_or(0));
    let last =
        u64::from(span) + (billed_seconds - u64::from(request.max_runtime_seconds)) + keep_alive;
    let last = now + TimeDelta::seconds(i64::try_from(last).unwrap_or(i64::from(u32::MAX)));
    let ceiling = price::ceiling_over(tariff.prices, price, now, last);
    let interval = u64::try_from(metrics_interval.num_seconds()).unwrap_or(1);
    let series = u64::from(request.instance_count) * HOST_METRICS.len() as u64
        + request.metrics.len() as u64;
    let gb = bill::billed_gb(&request.instance_type, request.volume_size_gb);
    let gb_month = price::storage_ceiling(tariff.rates, &price.region);
    let volumes =
        |seconds: u64| bill::worst_case_storage(gb, request.instance_count, seconds, gb_month);
    let training_usd =
        cost::training(billed_seconds, request.instance_count, ceiling) + volumes(billed_seconds);
    let metrics_usd = cost::worst_case_metrics(series, u64::from(span), interval);
    let pool_usd =
        cost::training(keep_alive, request.instance_count, ceiling) + volumes(keep_alive);
    let total_usd = training_usd + metrics_usd + pool_usd;
    WorstCase {
        training_usd,
        metrics_usd,
        pool_usd,
        total_usd,
        billed_seconds,
        transfer_seconds,
    }
}
