//! The read model: rows → domain → views. A fixed number of queries, however many trials; rollups,
//! and points only of young series.

pub mod calibration;
pub mod ci_report;
mod convergence;
pub mod diagnosis;
pub mod figures;
pub mod gate;
mod rows;
pub mod sent;
mod trials;

pub use convergence::curves;
pub use trials::{attempts, trial_view, trial_views};

use std::collections::BTreeMap;

use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::steady::Steady;
use bakeoff_domain::money::price::{self, Price};
use bakeoff_domain::number::real;
use bakeoff_domain::ranking::full_run;
use bakeoff_domain::ranking::outcome::{Outcome, Pauses, Tokens, evidence_sha256};
use bakeoff_domain::ranking::race;
use bakeoff_domain::ranking::recommend::recommend;
use bakeoff_domain::ranking::recommendation::{Ranked, Recommendation};
use bakeoff_domain::ranking::start::{self, Start};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::request::TrainingJobRequest;
use bakeoff_domain::spec::{PurchaseOption, StoppingPolicy, WorkloadSpec};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::read::figures::Figures;
use crate::read::trials::by_trial;
use bakeoff_api::comparison::{Comparison, ComparisonRow, ComparisonTable};
use bakeoff_api::experiments::ExperimentView;
use bakeoff_api::looks::{RaceView, RacerView};
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::race::{Judged, Verdict};
use bakeoff_store::experiments::runs::Run;
use bakeoff_store::experiments::trials::{Attempt, Trial};
use bakeoff_store::money::ledger::TrialCost;
use bakeoff_store::{Store, StoreError};

/// The data behind the tables and the ranking of a set of trials.
#[derive(Default)]
struct Evidence {
    trials: Vec<Trial>,
    attempts: BTreeMap<TrialId, Vec<Attempt>>,
    costs: BTreeMap<TrialId, TrialCost>,
    figures: Figures,
    /// Prices of the trials' instance types in all regions, with their history.
    prices: Vec<Price>,
    /// Why a trial's last failed job failed, and what to do.
    failures: BTreeMap<TrialId, String>,
}

async fn load(
    store: &Store,
    project: ProjectId,
    experiments: &[Uuid],
) -> Result<Evidence, StoreError> {
    let (trials, attempts) =
        tokio::try_join!(store.trials_of(experiments), store.attempts_of(experiments))?;
    let subjects: Vec<Uuid> = trials.iter().map(|trial| trial.id.0).collect();
    let mut types: Vec<String> = trials
        .iter()
        .map(|trial| trial.plan.instance_type.clone())
        .collect();
    types.sort_unstable();
    types.dedup();
    // Load costs after attempts, so that whatever is settled in between is counted once; see
    // `rows::so_far`.
    let (costs, figures, prices, failures) = tokio::try_join!(
        store.trial_costs(experiments),
        Figures::load(store, &subjects),
        store.prices_of(project, None, Some(&types)),
        store.failures_of(experiments),
    )?;
    Ok(Evidence {
        trials,
        attempts: by_trial(attempts),
        costs: costs.into_iter().collect(),
        figures,
        prices,
        failures,
    })
}

/// Loads the evidence of several experiments, all of one project.
async fn load_all(store: &Store, experiments: &[Experiment]) -> Result<Evidence, StoreError> {
    let Some(first) = experiments.first() else {
        return Ok(Evidence::default());
    };
    let ids: Vec<Uuid> = experiments
        .iter()
        .map(|experiment| experiment.id.0)
        .collect();
    load(store, first.project_id, &ids).await
}

impl Evidence {
    /// Price per hour of the trial's instance at a given time, which may differ from the planned
    /// price.
    fn price(&self, trial: &Trial, at: DateTime<Utc>) -> Option<Price> {
        let planned = trial.plan.price.as_ref()?;
        price::in_force(&self.prices, &planned.instance_type, &planned.region, at)
            .or_else(|| Some(planned.clone()))
    }

    /// The trial's measured speed, in tokens.
    fn speed(&self, trial: &Trial, workload: &WorkloadSpec) -> Option<Steady> {
        let shape = rows::shape_of_plan(&trial.plan, workload);
        let speed = self.figures.speed(trial.id.0, &shape)?;
        Some(speed.steady)
    }

    /// What is known of its time between steps. Between attempts, and on spot, other things take time.
    fn pauses(&self, trial: &Trial, workload: &WorkloadSpec) -> Pauses {
        let is_whole = self.attempts(trial).len() == 1
            && trial.plan.purchase_option == PurchaseOption::OnDemand;
        let shape = rows::shape_of_plan(&trial.plan, workload);
        if is_whole {
            let divided_by = trial.plan.intervals_divided_by;
            self.figures.pauses(trial.id.0, &shape, divided_by)
        } else {
            Pauses::Unknown
        }
    }

    /// Tokens trained so far, by the last step that was reported.
    fn tokens_done(&self, trial: &Trial, workload: &WorkloadSpec) -> Option<f64> {
        let step = self.figures.step(trial.id.0)?;
        let shape = rows::shape_of_plan(&trial.plan, workload);
        Some(real(step.unsigned_abs()) * shape.tokens_per_step()?)
    }

    fn attempts(&self, trial: &Trial) -> &[Attempt] {
        self.attempts.get(&trial.id).map_or(&[], Vec::as_slice)
    }
}

fn total(attempts: &[Attempt], seconds: impl Fn(&Attempt) -> Option<i64>) -> u64 {
    attempts
        .iter()
        .filter_map(seconds)
        .filter_map(|value| u64::try_from(value).ok())
        .sum()
}

/// The comparison table of an experiment.
pub async fn comparison(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<Comparison, StoreError> {
    let evidence = load(store, experiment.project_id, &[experiment.id.0]).await?;
    let rows: Vec<ComparisonRow> = evidence
        .trials
        .iter()
        .map(|trial| rows::of_trial(&evidence, experiment, trial, now))
        .collect();
    Ok(Comparison {
        experiment_id: experiment.id,
        name: experiment.name.clone(),
        state: experiment.state,
        currency: "USD".to_owned(),
        budget_usd: experiment.budget_usd,
        reserved_usd: experiment.reserved_usd,
        settled_usd: experiment.settled_usd,
        expectations: rows::expectations(&experiment.resolved.spec().expectations, &rows),
        rows,
        as_of: now,
    })
}

/// Experiments, trials and runs to compare.
#[derive(Debug, Default)]
pub struct Selection {
    /// In row order.
    pub experiments: Vec<Experiment>,
    /// Trials of experiments that were not requested as a whole: only these are shown.
    pub only: Vec<TrialId>,
    pub whole: Vec<ExperimentId>,
    pub runs: Vec<Run>,
}

impl Selection {
    fn trials_of<'a>(
        &self,
        experiment: &Experiment,
        trials: &'a [Trial],
    ) -> impl Iterator<Item = &'a Trial> {
        let (id, is_whole) = (experiment.id, self.whole.contains(&experiment.id));
        trials.iter().filter(move |trial| {
            trial.experiment_id == id && (is_whole || self.only.contains(&trial.id))
        })
    }
}

/// Compares trials of any experiments with external runs, in as many queries as for one experiment.
pub async fn comparison_of(
    store: &Store,
    selection: &Selection,
    now: DateTime<Utc>,
) -> Result<ComparisonTable, StoreError> {
    let (mut table, mut views) = (Vec::new(), Vec::new());
    let evidence = load_all(store, &selection.experiments).await?;
    for experiment in &selection.experiments {
        let own = selection.trials_of(experiment, &evidence.trials);
        let rows: Vec<ComparisonRow> = own
            .map(|trial| rows::of_trial(&evidence, experiment, trial, now))
            .collect();
        views.extend(rows::expectations(
            &experiment.resolved.spec().expectations,
            &rows,
        ));
        table.extend(rows);
    }
    let subjects: Vec<Uuid> = selection.runs.iter().map(|run| run.id.0).collect();
    let figures = Figures::load(store, &subjects).await?;
    for run in &selection.runs {
        let row = rows::of_run(run, &figures, now);
        views.extend(rows::expectations(
            &run.spec.expectations,
            std::slice::from_ref(&row),
        ));
        table.push(row);
    }
    Ok(ComparisonTable {
        currency: "USD".to_owned(),
        rows: table,
        expectations: views,
        as_of: now,
    })
}

/// The ranking: the stored one of a concluded experiment, otherwise the current one, which is
/// provisional while trials run.
pub async fn recommendation(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<Recommendation, StoreError> {
    if experiment.ended_at.is_some()
        && let Some(stored) = store.recommendation(experiment.id).await?
    {
        return Ok(stored);
    }
    decide(store, experiment, now).await
}

/// The tokens of an experiment's full run: those to its target loss if a trial has reached it, and otherwise all.
pub async fn full_run_tokens(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<Tokens, StoreError> {
    let evidence = load(store, experiment.project_id, &[experiment.id.0]).await?;
    Ok(standing(store, &evidence, experiment, now).await?.tokens)
}

/// The ranking at current prices, unless a plan is unreadable: a ranking without that trial must
/// not replace a stored one.
pub async fn decide_again(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<Option<Recommendation>, StoreError> {
    let evidence = load(store, experiment.project_id, &[experiment.id.0]).await?;
    let is_readable = evidence.trials.iter().all(|trial| trial.is_readable);
    if !is_readable {
        return Ok(None);
    }
    let standing = standing(store, &evidence, experiment, now).await?;
    Ok(Some(ranking(standing, experiment)))
}

/// The ranking at current prices.
async fn decide(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<Recommendation, StoreError> {
    let evidence = load(store, experiment.project_id, &[experiment.id.0]).await?;
    let standing = standing(store, &evidence, experiment, now).await?;
    Ok(ranking(standing, experiment))
}

fn ranking(standing: TrialOutcomes, experiment: &Experiment) -> Recommendation {
    let TrialOutcomes { outcomes, tokens } = standing;
    let objective = &experiment.resolved.spec().objective;
    let answer = Recommendation {
        evidence_sha256: Some(evidence_sha256(&outcomes, objective, tokens)),
        ..recommend(&outcomes, objective, tokens)
    };
    match (&experiment.full_run, outcomes.first()) {
        (Some(of), Some(outcome)) => full_run::report(of, outcome, answer),
        _ => answer,
    }
}

/// The trial behind a ranked row, as it ran, with its request: of several repeats the one with the
/// newest checkpoint, and of those the first. `None` if its plan cannot be read.
pub async fn trial_behind(
    store: &Store,
    experiment: &Experiment,
    row: &Ranked,
    now: DateTime<Utc>,
) -> Result<Option<(Outcome, TrainingJobRequest)>, StoreError> {
    let evidence = load(store, experiment.project_id, &[experiment.id.0]).await?;
    let workload = experiment.resolved.workload();
    let own = evidence.trials.iter().filter(|trial| {
        let plan = &trial.plan;
        plan.candidate == row.candidate && plan.purchase_option == row.purchase_option
    });
    let outcomes = own.map(|trial| outcome(&evidence, workload, trial, now));
    // One that failed may have left broken checkpoints, and one that is not over goes on in them.
    let is_usable = |outcome: &Outcome| {
        outcome.tokens_per_second.is_some()
            && matches!(outcome.state, TrialState::Completed | TrialState::Stopped)
    };
    let ran = outcomes.filter(is_usable);
    // Of equal ones, the first.
    let Some(outcome) = ran.min_by_key(|outcome| std::cmp::Reverse(outcome.checkpoint_at)) else {
        return Ok(None);
    };
    let trial = store.trial(experiment.project_id, outcome.trial_id).await?;
    Ok(match trial.and_then(|trial| trial.plan.job) {
        Some(Job::Training(request)) => Some((outcome, *request)),
        _ => None,
    })
}

/// How the race stands now: the ranking, and the trials to stop and to start by the experiment's policy. None while
/// a plan is unreadable.
pub async fn look(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<Option<(Recommendation, Verdict)>, StoreError> {
    let evidence = load(store, experiment.project_id, &[experiment.id.0]).await?;
    if !evidence.trials.iter().all(|trial| trial.is_readable) {
        return Ok(None);
    }
    let standing = standing(store, &evidence, experiment, now).await?;
    let verdict = verdict(&standing, experiment, now);
    Ok(Some((ranking(standing, experiment), verdict)))
}

/// How the race went: the looks that were kept, and what became of each trial.
pub async fn race(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<RaceView, StoreError> {
    let ids = [experiment.id.0];
    let (looks, evidence) = tokio::try_join!(
        store.looks(experiment.id),
        load(store, experiment.project_id, &ids)
    )?;
    let racer = |trial: &Trial| RacerView {
        trial_id: trial.id,
        candidate: trial.plan.candidate.clone(),
        instance_type: trial.plan.instance_type.clone(),
        purchase_option: trial.plan.purchase_option,
        state: trial.state,
        reason: why(&evidence, trial).cloned(),
        usd: rows::total_so_far(&evidence, trial, now),
        ended_at: trial.ended_at,
    };
    Ok(RaceView {
        experiment_id: experiment.id,
        looks: looks.into_iter().map(Into::into).collect(),
        trials: evidence.trials.iter().map(racer).collect(),
    })
}

fn verdict(standing: &TrialOutcomes, experiment: &Experiment, now: DateTime<Utc>) -> Verdict {
    let TrialOutcomes { outcomes, tokens } = standing;
    let tokens = *tokens;
    let spec = experiment.resolved.spec();
    let objective = &spec.objective;
    let policy = spec.stopping_policy.unwrap_or(StoppingPolicy::Full);
    let judged = |index: usize, reason: String| {
        let trial = outcomes.get(index)?.trial_id;
        Some(Judged { trial, reason })
    };
    let stops = race::stops(
        outcomes,
        policy,
        objective,
        tokens,
        spec.checkpoint.is_some(),
    );
    let mut verdict = Verdict {
        stops: (stops.into_iter())
            .filter_map(|stop| judged(stop.index, stop.reason))
            .collect(),
        starts: Vec::new(),
        by_hand: false,
    };
    for step in start::starts(outcomes, objective, tokens, now) {
        let judged = judged(step.index, step.reason);
        let is_out = |one: &Judged| verdict.stops.iter().any(|stop| stop.trial == one.trial);
        match (step.start, judged.filter(|one| !is_out(one))) {
            (Start::Now, Some(judged)) => verdict.starts.push(judged),
            (Start::Never, Some(judged)) => verdict.stops.push(judged),
            (Start::Later, _) | (_, None) => (),
        }
    }
    verdict
}

fn outcomes(evidence: &Evidence, experiment: &Experiment, now: DateTime<Utc>) -> Vec<Outcome> {
    let workload = experiment.resolved.workload();
    let trials = evidence.trials.iter();
    trials
        .map(|trial| outcome(evidence, workload, trial, now))
        .collect()
}

/// The outcomes of an experiment's trials, and the tokens of the trials and of the full run.
struct TrialOutcomes {
    outcomes: Vec<Outcome>,
    tokens: Tokens,
}

async fn standing(
    store: &Store,
    evidence: &Evidence,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<TrialOutcomes, StoreError> {
    let mut outcomes = outcomes(evidence, experiment, now);
    let Some(loss) = experiment.resolved.spec().objective.target_loss else {
        let tokens = Tokens::of(experiment.resolved.workload());
        return Ok(TrialOutcomes { outcomes, tokens });
    };
    let progression = convergence::towards(store, evidence, experiment, loss, now).await?;
    for outcome in &mut outcomes {
        outcome.reached = progression.reached.get(&outcome.trial_id).copied();
    }
    let tokens = progression.tokens;
    Ok(TrialOutcomes { outcomes, tokens })
}

/// Why a trial ended as it did: of one whose script ran and failed, what was found out is worth more than
/// what SageMaker reports.
fn why<'a>(evidence: &'a Evidence, trial: &'a Trial) -> Option<&'a String> {
    let found = evidence.failures.get(&trial.id);
    let last = evidence.attempts(trial).last();
    let has_run = last.is_some_and(|attempt| attempt.started_at.is_some());
    let found = found.filter(|_| trial.state == TrialState::Failed && has_run);
    found.or(trial.reason.as_ref())
}

fn outcome(
    evidence: &Evidence,
    workload: &WorkloadSpec,
    trial: &Trial,
    now: DateTime<Utc>,
) -> Outcome {
    let attempts = evidence.attempts(trial);
    let plan = &trial.plan;
    // From submission to SageMaker's own end: waiting for our budget, or for our next poll, is not
    // instance time.
    let wall: i64 = attempts
        .iter()
        .map(|one| {
            (one.ended_at.unwrap_or(now) - one.planned_at)
                .num_seconds()
                .max(0)
        })
        .sum();
    Outcome {
        state: trial.state,
        reason: why(evidence, trial).cloned(),
        price: evidence.price(trial, now),
        tokens_per_second: evidence.speed(trial, workload),
        pauses: evidence.pauses(trial, workload),
        tokens_done: evidence.tokens_done(trial, workload),
        training_seconds: total(attempts, |attempt| attempt.training_seconds),
        billable_seconds: total(attempts, |attempt| attempt.billable_seconds),
        wall_seconds: wall.max(0).unsigned_abs(),
        checkpoint_at: attempts.iter().filter_map(|one| one.checkpoint_at).max(),
        cost_usd: rows::total_so_far(evidence, trial, now),
        released_at: trial.released_at,
        ..plan.outcome(trial.id)
    }
}

/// The API's view of an experiment.
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
        findings: experiment.findings.into_iter().map(Into::into).collect(),
        spec: experiment.resolved.into_spec(),
        full_run_of: experiment.full_run.map(Into::into),
        labels: experiment.labels,
        created_by: experiment.created_by,
        archived_at: experiment.archived_at,
        deleted_at: experiment.deleted_at,
        revision: experiment.revision,
        created_at: experiment.created_at,
        ended_at: experiment.ended_at,
    }
}
