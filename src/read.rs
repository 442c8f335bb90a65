//! The read model: rows → domain → views. A fixed number of queries, however many trials; rollups only, never samples.

use std::collections::BTreeMap;

use bakeoff_domain::attempt::TrialState;
use bakeoff_domain::cost;
use bakeoff_domain::ids::TrialId;
use bakeoff_domain::metric::Meaning;
use bakeoff_domain::money::Usd;
use bakeoff_domain::recommend::{Outcome, Recommendation, Tokens, recommend};
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_domain::spot;
use bakeoff_domain::steady::{Bucket, steady};
use chrono::{DateTime, Utc};

use crate::store::experiments::Experiment;
use crate::store::ledger::TrialCost;
use crate::store::trials::{Attempt, Trial};
use crate::store::{Store, StoreError};
use crate::view::{AttemptView, Comparison, ComparisonRow, ExperimentView, TrialView};

const GPU_METRIC: &str = "GPUUtilization";

/// All that the tables and the ranking of one experiment rest on.
struct Evidence {
    trials: Vec<Trial>,
    attempts: BTreeMap<TrialId, Vec<Attempt>>,
    costs: BTreeMap<TrialId, TrialCost>,
    series: BTreeMap<(TrialId, String), Vec<Bucket>>,
    names: MetricNames,
    trial_tokens: u64,
}

/// The workload's own names for what we rank by.
#[derive(Default)]
struct MetricNames {
    speed: Option<String>,
    loss: Option<String>,
    step: Option<String>,
}

async fn load(store: &Store, experiment: &Experiment) -> Result<Evidence, StoreError> {
    let metrics = experiment.spec.workload.iter().flat_map(|workload| &workload.metrics);
    let mut names = MetricNames::default();
    for metric in metrics {
        match metric.meaning {
            Meaning::TokensPerSecond => names.speed = Some(metric.name.clone()),
            Meaning::TrainLoss => names.loss = Some(metric.name.clone()),
            Meaning::Step => names.step = Some(metric.name.clone()),
            Meaning::ValidationLoss | Meaning::Other => {}
        }
    }
    let wanted: Vec<String> = [&names.speed, &names.loss, &names.step]
        .into_iter()
        .flatten()
        .cloned()
        .chain([GPU_METRIC.to_owned()])
        .collect();
    let (trials, attempts, costs, rollups) = tokio::try_join!(
        store.trials_of(experiment.id),
        store.attempts_of(experiment.id, None),
        store.trial_costs(experiment.id),
        store.rollups_of(experiment.id, &wanted),
    )?;
    let mut by_trial: BTreeMap<TrialId, Vec<Attempt>> = BTreeMap::new();
    for attempt in attempts {
        by_trial.entry(attempt.trial_id).or_default().push(attempt);
    }
    let mut series: BTreeMap<(TrialId, String), Vec<Bucket>> = BTreeMap::new();
    for (trial, metric, bucket) in rollups {
        series.entry((trial, metric)).or_default().push(bucket);
    }
    let trial_tokens = experiment.spec.workload.as_ref().map_or(0, |workload| workload.trial_tokens);
    Ok(Evidence { trials, attempts: by_trial, costs: costs.into_iter().collect(), series, names, trial_tokens })
}

impl Evidence {
    fn series(&self, trial: &Trial, metric: Option<&String>) -> &[Bucket] {
        metric.and_then(|name| self.series.get(&(trial.id, name.clone()))).map_or(&[], Vec::as_slice)
    }

    fn attempts(&self, trial: &Trial) -> &[Attempt] {
        self.attempts.get(&trial.id).map_or(&[], Vec::as_slice)
    }
}

fn total(attempts: &[Attempt], seconds: impl Fn(&Attempt) -> Option<i64>) -> u64 {
    attempts.iter().filter_map(seconds).filter_map(|value| u64::try_from(value).ok()).sum()
}

/// The comparison table.
pub async fn comparison(store: &Store, experiment: &Experiment, now: DateTime<Utc>) -> Result<Comparison, StoreError> {
    let evidence = load(store, experiment).await?;
    Ok(Comparison {
        experiment_id: experiment.id,
        name: experiment.name.clone(),
        state: experiment.state,
        currency: "USD".to_owned(),
        budget_usd: experiment.budget_usd,
        reserved_usd: experiment.reserved_usd,
        settled_usd: experiment.settled_usd,
        rows: evidence.trials.iter().map(|trial| row(&evidence, trial, now)).collect(),
        as_of: now,
    })
}

fn row(evidence: &Evidence, trial: &Trial, now: DateTime<Utc>) -> ComparisonRow {
    let attempts = evidence.attempts(trial);
    let plan = &trial.plan;
    let running = so_far(attempts, plan.instance_count, now);
    let cost = evidence.costs.get(&trial.id).copied().unwrap_or_default();
    let speed = steady(evidence.series(trial, evidence.names.speed.as_ref()));
    let gpu = evidence.series(trial, Some(&GPU_METRIC.to_owned()));
    let step = evidence.series(trial, evidence.names.step.as_ref()).last().map(|bucket| bucket.last);
    let training_seconds = total(attempts, |attempt| attempt.training_seconds);
    let billable_seconds = total(attempts, |attempt| attempt.billable_seconds);
    let price = plan.price.as_ref();
    ComparisonRow {
        trial_id: trial.id,
        candidate: plan.candidate.clone(),
        instance_type: plan.instance_type.clone(),
        instance_count: plan.instance_count,
        purchase_option: plan.purchase_option,
        state: trial.state,
        reason: trial.reason.clone(),
        secondary_status: attempts.last().and_then(|attempt| attempt.secondary_status.clone()),
        attempts: trial.attempts_made,
        interruptions: interruptions(attempts),
        global_batch: plan.global_batch,
        comparable: plan.incomparable.is_none(),
        progress: progress(trial, step),
        gpu_utilization_percent: steady(gpu).map(|figure| figure.mean),
        train_loss: evidence.series(trial, evidence.names.loss.as_ref()).last().map(|bucket| bucket.last),
        usd_per_million_tokens: per_million(
            trial,
            speed.as_ref().map(|s| s.mean),
            evidence.trial_tokens,
            billable_seconds,
        ),
        tokens_per_second: speed,
        training_seconds,
        billable_seconds,
        cost_usd: cost.training_usd + running,
        metrics_cost_usd: cost.metrics_usd,
        other_cost_usd: cost.other_usd,
        cost_estimated: cost.estimated || running > Usd::ZERO,
        usd_per_hour: price.map(|price| price.usd_per_hour),
        price_source: price.map(|price| price.source.clone()),
        price_status: price.map(|price| price.status),
        price_effective_from: price.map(|price| price.effective_from),
        price_note: price.map(|price| price.note.clone()),
    }
}

/// What running attempts have cost at most: the time since billing began. Spot's saving is known only at its end.
fn so_far(attempts: &[Attempt], instance_count: u32, now: DateTime<Utc>) -> Usd {
    let running = attempts.iter().filter(|attempt| !attempt.state.is_terminal());
    running.fold(Usd::ZERO, |sum, attempt| {
        let seconds = attempt.started_at.map_or(0, |start| (attempt.ended_at.unwrap_or(now) - start).num_seconds());
        sum + cost::training(u64::try_from(seconds).unwrap_or_default(), instance_count, attempt.usd_per_hour)
    })
}

fn interruptions(attempts: &[Attempt]) -> u32 {
    let count: usize = attempts.iter().map(|attempt| spot::interruptions(&attempt.transitions).len()).sum();
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "step counts lie far below 2^53")]
fn progress(trial: &Trial, step: Option<f64>) -> Option<f64> {
    if trial.state == TrialState::Completed {
        return Some(1.0);
    }
    step.filter(|_| trial.plan.steps > 0).map(|step| (step / trial.plan.steps as f64).clamp(0.0, 1.0))
}

/// Spot's billed share (billed over productive time, as in the ranking) is observed, so a spot trial has no figure before
/// its end.
#[expect(clippy::cast_precision_loss, reason = "seconds and tokens lie far below 2^53")]
fn per_million(trial: &Trial, tokens_per_second: Option<f64>, trial_tokens: u64, billable: u64) -> Option<Usd> {
    let speed = tokens_per_second.filter(|speed| *speed > 0.0)?;
    let share = match trial.plan.purchase_option {
        PurchaseOption::OnDemand => 1.0,
        PurchaseOption::Spot if trial.state == TrialState::Completed => billable as f64 / (trial_tokens as f64 / speed),
        PurchaseOption::Spot => return None,
    };
    let rate = trial.plan.price.as_ref()?.usd_per_hour;
    cost::usd_per_million_tokens(rate, trial.plan.instance_count, speed, share)
}

/// The ranking; provisional while trials run.
pub async fn recommendation(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<Recommendation, StoreError> {
    if let Some(stored) = &experiment.recommendation {
        return Ok(stored.clone());
    }
    let evidence = load(store, experiment).await?;
    let outcomes: Vec<Outcome> = evidence.trials.iter().map(|trial| outcome(&evidence, trial, now)).collect();
    let tokens = experiment.spec.workload.as_ref().map_or(Tokens { trial: 0, total: 0 }, |workload| Tokens {
        trial: workload.trial_tokens,
        total: workload.total_tokens,
    });
    Ok(recommend(&outcomes, &experiment.spec.objective, tokens))
}

fn outcome(evidence: &Evidence, trial: &Trial, now: DateTime<Utc>) -> Outcome {
    let attempts = evidence.attempts(trial);
    let plan = &trial.plan;
    // From submission to SageMaker's own end: waiting for our budget, or for us to look, is not the instance's time.
    let wall: i64 =
        attempts.iter().map(|one| (one.ended_at.unwrap_or(now) - one.planned_at).num_seconds().max(0)).sum();
    Outcome {
        trial_id: trial.id,
        candidate: plan.candidate.clone(),
        instance_type: plan.instance_type.clone(),
        instance_count: plan.instance_count,
        purchase_option: plan.purchase_option,
        state: trial.state,
        reason: trial.reason.clone(),
        refusals: plan
            .findings
            .iter()
            .filter(|finding| finding.severity >= bakeoff_domain::finding::Severity::Refused)
            .cloned()
            .collect(),
        incomparable: plan.incomparable.clone(),
        price: plan.price.clone(),
        tokens_per_second: steady(evidence.series(trial, evidence.names.speed.as_ref())),
        training_seconds: total(attempts, |attempt| attempt.training_seconds),
        billable_seconds: total(attempts, |attempt| attempt.billable_seconds),
        wall_seconds: u64::try_from(wall).unwrap_or_default(),
    }
}

/// An experiment as the API shows it.
pub fn experiment_view(experiment: Experiment) -> ExperimentView {
    ExperimentView {
        id: experiment.id,
        name: experiment.name,
        state: experiment.state,
        workload_id: experiment.workload_id,
        budget_usd: experiment.budget_usd,
        reserved_usd: experiment.reserved_usd,
        settled_usd: experiment.settled_usd,
        paused_reason: experiment.paused_reason,
        findings: experiment.findings,
        spec: experiment.spec,
        created_at: experiment.created_at,
        ended_at: experiment.ended_at,
    }
}

/// Trials with their attempts, in two queries.
pub async fn trial_views(store: &Store, trials: Vec<Trial>, now: DateTime<Utc>) -> Result<Vec<TrialView>, StoreError> {
    let Some(experiment) = trials.first().map(|trial| trial.experiment_id) else { return Ok(Vec::new()) };
    let only = if let [trial] = trials.as_slice() { Some(trial.id) } else { None };
    let mut attempts: BTreeMap<TrialId, Vec<Attempt>> = BTreeMap::new();
    for attempt in store.attempts_of(experiment, only).await? {
        attempts.entry(attempt.trial_id).or_default().push(attempt);
    }
    let view = |trial: Trial| TrialView {
        attempts: attempts
            .remove(&trial.id)
            .unwrap_or_default()
            .into_iter()
            .map(|attempt| attempt_view(&trial, attempt, now))
            .collect(),
        id: trial.id,
        experiment_id: trial.experiment_id,
        state: trial.state,
        reason: trial.reason,
        plan: trial.plan,
        created_at: trial.created_at,
        ended_at: trial.ended_at,
    };
    Ok(trials.into_iter().map(view).collect())
}

fn attempt_view(trial: &Trial, attempt: Attempt, now: DateTime<Utc>) -> AttemptView {
    let is_spot = trial.plan.purchase_option == PurchaseOption::Spot;
    let seconds = |value: Option<i64>| value.and_then(|seconds| u64::try_from(seconds).ok());
    let interval = trial.plan.request.as_ref().and_then(|request| Some(request.checkpoint.as_ref()?.interval_seconds));
    let is_at_risk = is_spot && !attempt.state.is_terminal() && attempt.secondary_status.as_deref() == Some("Training");
    let at_risk = attempt.training_since.filter(|_| is_at_risk).map(|since| {
        let price = (trial.plan.instance_count, attempt.usd_per_hour);
        spot::at_risk(since, attempt.checkpoint_at, interval.unwrap_or(0), price, now).usd
    });
    let saved = seconds(attempt.training_seconds).zip(seconds(attempt.billable_seconds)).filter(|_| is_spot);
    AttemptView {
        interruptions: spot::interruptions(&attempt.transitions),
        savings_percent: saved.and_then(|(trained, billed)| spot::savings_percent(trained, billed)),
        checkpoint_at: attempt.checkpoint_at,
        at_risk_usd: at_risk,
        id: attempt.id,
        number: attempt.number,
        job_name: attempt.job_name,
        state: attempt.state,
        job_status: attempt.job_status,
        secondary_status: attempt.secondary_status,
        failure_reason: attempt.failure_reason,
        usd_per_hour: attempt.usd_per_hour,
        price_id: attempt.price_id,
        training_seconds: attempt.training_seconds,
        billable_seconds: attempt.billable_seconds,
        billing_estimated: attempt.billing_estimated,
        transitions: attempt.transitions,
        planned_at: attempt.planned_at,
        started_at: attempt.started_at,
        ended_at: attempt.ended_at,
    }
}
