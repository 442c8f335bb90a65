//! Turns an experiment that has passed the linter into trials, each with its SageMaker request, its
//! price and its worst case. Nothing is started or reserved here: that happens attempt by attempt.

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_domain::catalog::model::is_sound;
use bakeoff_domain::finding::{BUDGET_BELOW_TRIAL, Finding, Severity};
use bakeoff_domain::ids::TrialId;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::overhead::Overhead;
use bakeoff_domain::money::price::{self, Price};
use bakeoff_domain::money::worst_case::{Tariff, WorstCase, worst_case};
use bakeoff_domain::money::{Usd, cost};
use bakeoff_domain::number::real;
use bakeoff_domain::ranking::outcome::{Outcome, Pauses, Predicted, Tokens, Wait};
use bakeoff_domain::ranking::race::{self, Leader};
use bakeoff_domain::ranking::start::{self, Start};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::request::TrainingJobRequest;
use bakeoff_domain::sagemaker::tuning::TuningJobRequest;
use bakeoff_domain::spec::{
    Candidate, CandidateSpec, ExperimentSpec, PurchaseOption, StoppingPolicy, WorkloadSpec,
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::predict::Calibration;
use crate::predict::billed::BesideSteps;
use crate::predict::fit::{self, Fit};
use crate::predict::forecast::{self, Forecast, Interval};
use crate::recurring::{self, MoreOften};
use crate::render::request;
use crate::rules::found;
use crate::setup::Setup;

/// A trial as it would be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Why the trial does not start, though it could: it cannot change the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Why the trial waits until others have been measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    pub price: Option<Price>,
    /// The most one attempt can cost; empty when its price is unknown.
    pub worst_case: Option<WorstCase>,
    /// What the intervals of its workload's recurring work are divided by in this trial; empty where they
    /// are as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intervals_divided_by: Option<f64>,
    /// How long earlier starts of its type waited; empty without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_wait: Option<Wait>,
    /// What its job is expected to be billed beside its steps; empty in plans from before it was stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Overhead>,
    /// Predicted speed, hours and dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
    /// Its job without name, marker and checkpoint folder: each attempt adds its own. Empty where it cannot run.
    pub job: Option<Job>,
}

impl TrialPlan {
    /// What is known of a trial before anything is computed.
    fn empty(
        candidate: String,
        instance_type: String,
        instance_count: u32,
        purchase_option: PurchaseOption,
    ) -> Self {
        Self {
            candidate,
            instance_type,
            instance_count,
            purchase_option,
            repeat: 1,
            global_batch: 0,
            steps: 0,
            fit: None,
            findings: Vec::new(),
            refused: false,
            incomparable: None,
            skipped: None,
            held: None,
            price: None,
            worst_case: None,
            intervals_divided_by: None,
            expected_wait: None,
            overhead: None,
            forecast: None,
            job: None,
        }
    }

    /// A placeholder for a plan that a newer version wrote: it holds what is known from elsewhere,
    /// and nothing to run or rank by.
    pub fn unreadable(
        candidate: String,
        instance_type: String,
        instance_count: u32,
        purchase_option: PurchaseOption,
    ) -> Self {
        let finding = Finding {
            rule: "plan-unreadable".to_owned(),
            severity: Severity::Refused,
            pointer: String::new(),
            message:
                "the stored plan cannot be read: a newer version of the service may have written it"
                    .to_owned(),
            fix: "run that version again, or create the experiment again".to_owned(),
            source: String::new(),
            patch: Vec::new(),
            candidates: BTreeSet::new(),
        };
        Self {
            incomparable: Some(finding),
            ..Self::empty(candidate, instance_type, instance_count, purchase_option)
        }
    }
}

impl TrialPlan {
    /// A job as a trial of its step, which compares nothing.
    pub fn of_step(name: &str, job: Job, price: Price, worst_case: WorstCase) -> Self {
        let (kind, count) = (job.instance_type().to_owned(), job.instance_count());
        let option = if job.is_spot() {
            PurchaseOption::Spot
        } else {
            PurchaseOption::OnDemand
        };
        Self {
            price: Some(price),
            worst_case: Some(worst_case),
            job: Some(job),
            ..Self::empty(name.to_owned(), kind, count, option)
        }
    }

    /// The kind of its jobs; one that cannot run was to train.
    pub fn kind(&self) -> JobKind {
        self.job.as_ref().map_or(JobKind::Training, Job::kind)
    }

    /// The request of a trial that trains, which is every one of an experiment.
    pub fn training(&self) -> Option<&TrainingJobRequest> {
        self.job.as_ref().and_then(Job::training)
    }

    /// The request of a trial that is a tuning job.
    pub fn tuning(&self) -> Option<&TuningJobRequest> {
        match &self.job {
            Some(Job::Tuning(request)) => Some(request),
            _ => None,
        }
    }

    /// Whether the trial is to be started.
    pub fn starts(&self) -> bool {
        !self.refused && self.skipped.is_none()
    }

    /// The trial as the ranking sees it before it has run.
    pub fn outcome(&self, trial_id: TrialId) -> Outcome {
        let refusals = self
            .findings
            .iter()
            .filter(|finding| finding.severity >= Severity::Refused);
        let forecast = self.forecast.as_ref();
        Outcome {
            trial_id,
            candidate: self.candidate.clone(),
            instance_type: self.instance_type.clone(),
            instance_count: self.instance_count,
            purchase_option: self.purchase_option,
            state: if self.refused {
                TrialState::Refused
            } else {
                TrialState::Queued
            },
            reason: None,
            released_at: None,
            refusals: refusals.cloned().collect(),
            incomparable: self.incomparable.clone(),
            price: self.price.clone(),
            tokens_per_second: None,
            pauses: Pauses::Unknown,
            intervals_divided_by: self.intervals_divided_by,
            expected_wait: self.expected_wait,
            overhead: self.overhead,
            tokens_done: None,
            predicted: forecast.map(|forecast| {
                let shared = forecast.shared_log_sd.unwrap_or(SHARED_LOG_SD);
                predicted(forecast.tokens_per_second, shared)
            }),
            training_seconds: 0,
            billable_seconds: 0,
            wall_seconds: 0,
            checkpoint_at: None,
            reached: None,
            cost_usd: Usd::ZERO,
            predicted_usd: forecast
                .and_then(|forecast| forecast.trial_usd)
                .and_then(|usd| usd.expected),
        }
    }
}

/// What plans assumed of a code before they stated it.
const SHARED_LOG_SD: f64 = 0.10;

/// A forecast as the ranking sees it. `shared_log_sd`: standard deviation of the part of its
/// logarithm that all types share.
pub fn predicted(tokens_per_second: Interval, shared_log_sd: f64) -> Predicted {
    let log_sd = tokens_per_second.log_sd();
    Predicted {
        tokens_per_second: tokens_per_second.expected,
        log_sd,
        own_log_sd: (log_sd.powi(2) - shared_log_sd.powi(2)).max(0.0).sqrt(),
    }
}

/// Why each plan can never be the one to buy; empty where it can, or too little is known. What is
/// refused, also by the budget, or not comparable is not among the contenders.
pub fn cannot_win(spec: &ExperimentSpec, plans: &[TrialPlan]) -> Vec<Option<String>> {
    let mut reasons: Vec<Option<String>> = plans.iter().map(|_| None).collect();
    let Some(workload) = &spec.workload else {
        return reasons;
    };
    let nobody = TrialId(Uuid::nil());
    let outcomes: Vec<Outcome> = plans.iter().map(|plan| plan.outcome(nobody)).collect();
    let tokens = Tokens::of(workload);
    let losers = race::losers(&outcomes, &spec.objective, tokens, Leader::Predicted);
    for loser in losers {
        if let Some(slot) = reasons.get_mut(loser.index) {
            *slot = Some(loser.reason);
        }
    }
    reasons
}

/// Decides which plans start at once, which wait until others have been measured, and which never
/// start.
pub fn choose_starts(spec: &ExperimentSpec, plans: &mut [TrialPlan], now: DateTime<Utc>) {
    skip_pointless(spec, plans);
    hold_back(spec, plans, now);
}

/// Marks the plans that cannot change the answer, unless the experiment asks for all of them, or
/// nothing would be left to start.
fn skip_pointless(spec: &ExperimentSpec, plans: &mut [TrialPlan]) {
    if spec.stopping_policy.unwrap_or_default() == StoppingPolicy::Full {
        return;
    }
    let reasons = cannot_win(spec, plans);
    let pointless: Vec<Option<String>> = plans
        .iter()
        .zip(reasons)
        .map(|(plan, reason)| {
            let why = plan.incomparable.as_ref().map_or(reason, |finding| {
                Some(format!("it would not be ranked: {}", finding.message))
            })?;
            Some(format!(
                "not started: {why} (\"stopping_policy\": \"full\" runs it all the same)"
            ))
        })
        .collect();
    let starts =
        |(plan, pointless): (&TrialPlan, &Option<String>)| !plan.refused && pointless.is_none();
    if !plans.iter().zip(&pointless).any(starts) {
        return;
    }
    for (plan, reason) in plans.iter_mut().zip(pointless) {
        plan.skipped = reason.filter(|_| !plan.refused);
    }
}

/// Holds back the plans of a race that are only worth starting once others have been measured.
fn hold_back(spec: &ExperimentSpec, plans: &mut [TrialPlan], now: DateTime<Utc>) {
    let is_race = spec.stopping_policy.unwrap_or_default() == StoppingPolicy::Race;
    let Some(workload) = spec.workload.as_ref().filter(|_| is_race) else {
        return;
    };
    let started = plans.iter_mut().filter(|plan| plan.starts());
    let mut started: Vec<&mut TrialPlan> = started.collect();
    let nobody = TrialId(Uuid::nil());
    let outcomes: Vec<Outcome> = started.iter().map(|plan| plan.outcome(nobody)).collect();
    let tokens = Tokens::of(workload);
    for step in start::starts(&outcomes, &spec.objective, tokens, now) {
        if let Some(plan) = started.get_mut(step.index) {
            plan.held = (step.start != Start::Now).then_some(step.reason);
        }
    }
}

/// What an experiment is planned with, beyond its own content.
#[derive(Debug, Clone, Copy)]
pub struct PlanContext<'a> {
    pub tariff: Tariff<'a>,
    /// The linter's own.
    pub calibration: &'a Calibration,
    /// How often a job's metrics are read.
    pub metrics_interval: TimeDelta,
    pub now: DateTime<Utc>,
}

/// Plans every trial of an experiment, in the order of its candidates; none if the experiment
/// exceeds the limits on its size.
pub fn plan(
    spec: &ExperimentSpec,
    findings: &[Finding],
    context: PlanContext<'_>,
) -> Vec<TrialPlan> {
    // Beyond the limits of the request itself there could be millions of trials.
    if !crate::lint::is_bounded(findings) {
        return Vec::new();
    }
    let incomparable = crate::lint::comparability(spec, findings);
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
            let base = trial(spec, candidate, *option, context);
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

/// Makes a plan send what a trial has sent, but for its length and its limits: a later version might
/// render the same spec another way, and it would not be what was measured.
pub fn send_as_measured(
    plan: &mut TrialPlan,
    spec: &ExperimentSpec,
    measured: &Measured,
    context: PlanContext<'_>,
) {
    let PlanContext {
        tariff,
        metrics_interval,
        now,
        ..
    } = context;
    let (Some(rendered), Some(workload)) = (plan.training(), &spec.workload) else {
        return;
    };
    // The trial may have evaluated more often than the full run does.
    let changed = measured.changed.keys().chain(&workload.recurring);
    let sent = request::of_full_run(&measured.request, rendered, changed);
    let sent = Job::Training(Box::new(TrainingJobRequest {
        checkpoint_trial: measured.checkpoint_trial,
        ..sent
    }));
    plan.worst_case = plan.price.as_ref().map(|price| {
        let transfer = transfer_seconds(workload);
        worst_case(&sent, transfer, tariff, price, metrics_interval, now)
    });
    plan.job = Some(sent);
}

/// What a full run sends again.
#[derive(Debug, Clone)]
pub struct Measured {
    /// As its trial sent it.
    pub request: TrainingJobRequest,
    /// Hyperparameters that differ on purpose.
    pub changed: BTreeMap<String, String>,
    /// The trial in whose checkpoints it goes on, if in any.
    pub checkpoint_trial: Option<TrialId>,
}

/// Refuses the plans that the whole budget could not reserve once, and says so for each candidate:
/// after the start, the scheduler would refuse their trials one by one.
pub fn refuse_above_budget(spec: &ExperimentSpec, plans: &mut [TrialPlan]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    // A budget of zero or less is an error of its own.
    if spec.budget_usd <= Usd::ZERO {
        return findings;
    }
    for plan in plans.iter_mut().filter(|plan| !plan.refused) {
        let needed = plan.worst_case.map(|worst| worst.total_usd);
        let Some(needed) = needed.filter(|needed| *needed > spec.budget_usd) else {
            continue;
        };
        let index = spec
            .candidates
            .iter()
            .position(|candidate| candidate.name == plan.candidate);
        let Some(index) = index else { continue };
        let finding = found(BUDGET_BELOW_TRIAL, "/budget_usd")
            .says(format!(
                "one trial of {} may cost {needed}, which is reserved before it starts: raise budget_usd, which is {} in all",
                plan.candidate, spec.budget_usd
            ))
            .fix(format!(
                "set budget_usd to at least {:.0}, or lower max_runtime_seconds",
                needed.as_f64().ceil()
            ));
        let finding = Finding {
            candidates: BTreeSet::from([index]),
            ..finding
        };
        plan.refused = true;
        plan.findings.push(finding.clone());
        if !findings.iter().any(|other| other.concerns(index)) {
            findings.push(finding);
        }
    }
    findings
}

fn trial(
    spec: &ExperimentSpec,
    candidate: &CandidateSpec,
    purchase_option: PurchaseOption,
    context: PlanContext<'_>,
) -> TrialPlan {
    let prices = context.tariff.prices;
    let price = price::in_force(prices, &candidate.instance_type, &spec.region, context.now);
    let profile = candidate.profile.as_ref();
    let bare = TrialPlan {
        price,
        global_batch: profile.map_or(0, |own| own.global_batch(candidate.accelerators())),
        ..TrialPlan::empty(
            candidate.name.clone(),
            candidate.instance_type.clone(),
            candidate.instance_count,
            purchase_option,
        )
    };
    match Candidate::of(spec, candidate) {
        Some(candidate) => resolved(spec, candidate, bare, context),
        // Only a draft lacks something, and the linter has said what.
        None => bare,
    }
}

/// Completes the plan of a candidate that has a workload and a profile.
fn resolved(
    spec: &ExperimentSpec,
    candidate: Candidate<'_>,
    bare: TrialPlan,
    context: PlanContext<'_>,
) -> TrialPlan {
    let PlanContext {
        tariff,
        calibration,
        metrics_interval,
        now,
    } = context;
    let workload = candidate.workload;
    let sequence_length = u64::from(workload.model.sequence_length);
    let tokens_per_step = bare.global_batch.saturating_mul(sequence_length);
    let steps = workload.trial_tokens.div_ceil(tokens_per_step.max(1));
    let setup = Setup::resolved(candidate);
    let price = bare.price.as_ref();
    let beside = BesideSteps::of(spec, candidate);
    let option = bare.purchase_option;
    let forecast = setup.and_then(|setup| {
        forecast::forecast(spec, candidate, setup, option, price, calibration, beside)
    });
    // Of spot, all hours are projected as they were: what the trial did more often, too.
    let is_measured_for_minutes = spec.stopping_policy.unwrap_or_default() != StoppingPolicy::Full
        && option == PurchaseOption::OnDemand;
    let more_often = forecast
        .as_ref()
        .filter(|_| is_measured_for_minutes)
        .and_then(|forecast| more_often(candidate, forecast, tokens_per_step));
    let sent = more_often.as_ref().map_or(candidate, |often| Candidate {
        workload: &often.workload,
        ..candidate
    });
    let intervals_divided_by = more_often.as_ref().map(|often| often.divided_by);
    let own = beside.oftener(intervals_divided_by);
    let forecast = forecast.map(|one| one.of_trial(own, candidate, price, option));
    let job = Job::Training(Box::new(request::template(spec, sent, option, steps)));
    let transfer = transfer_seconds(workload);
    let worst_case = bare
        .price
        .as_ref()
        .map(|price| worst_case(&job, transfer, tariff, price, metrics_interval, now));
    TrialPlan {
        steps,
        fit: setup.map(fit::fit),
        forecast,
        overhead: Some(beside.overhead),
        intervals_divided_by,
        worst_case,
        job: Some(job),
        ..bare
    }
}

/// The workload as a trial of a few minutes gets it, at its predicted speed.
fn more_often(
    candidate: Candidate<'_>,
    forecast: &Forecast,
    tokens_per_step: u64,
) -> Option<MoreOften> {
    let tokens_per_second = forecast.tokens_per_second.expected;
    recurring::more_often(candidate, tokens_per_second / real(tokens_per_step.max(1)))
}

/// Time to transfer the weights (two bytes per parameter) and the data of known size.
fn transfer_seconds(workload: &WorkloadSpec) -> u64 {
    let data: f64 = workload
        .channels
        .iter()
        .filter_map(|channel| channel.size_gb)
        .map(|gb| f64::from(gb) * 1e9)
        .sum();
    let weights = if is_sound(&workload.model) || !workload.model.is_described() {
        workload.model.parameters() * 2.0
    } else {
        0.0
    };
    cost::transfer_seconds(weights, data)
}
