//! The record of a project's own predictions: what plans said of trials that were measured since.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::calibration::{self, Class, Figure, Score};
use bakeoff_domain::measure::steady::Bucket;
use bakeoff_domain::measure::{eta, speed};
use bakeoff_domain::money::Usd;
use bakeoff_domain::number::real;
use bakeoff_domain::ranking::full_run;
use bakeoff_domain::spec::PurchaseOption;
use chrono::{DateTime, Utc};

use crate::read::{Evidence, load_all, outcome};
use bakeoff_api::calibration::Calibration;
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::lists::{ExperimentFilter, PageOf};
use bakeoff_store::experiments::trials::Trial;
use bakeoff_store::series::Series;
use bakeoff_store::{Store, StoreError};

/// Experiments looked at, the newest first: enough to tell a bias, and bounded as history grows.
const EXPERIMENTS: i64 = 100;

/// Scores the newest experiments' predictions, in a fixed number of queries.
pub async fn of_project(
    store: &Store,
    project: ProjectId,
    now: DateTime<Utc>,
) -> Result<Calibration, StoreError> {
    let filter = ExperimentFilter::default();
    let experiments = store
        .experiments(project, &filter, PageOf::newest(EXPERIMENTS))
        .await?;
    let evidence = load_all(store, &experiments).await?;
    let mut scores = Vec::new();
    for experiment in &experiments {
        let own = evidence
            .trials
            .iter()
            .filter(|trial| trial.experiment_id == experiment.id && trial.state.is_terminal());
        for trial in own {
            scores.extend(of_full_run(&evidence, experiment, trial, now));
            scores.extend(of_trial(&evidence, experiment, trial, now));
            scores.extend(of_speed(&evidence, experiment, trial));
        }
    }
    scores.extend(remaining_hours(store, &evidence).await?);
    Ok(Calibration {
        experiments: u32::try_from(experiments.len()).unwrap_or(u32::MAX),
        rows: calibration::records(&scores)
            .into_iter()
            .map(Into::into)
            .collect(),
        as_of: now,
    })
}

/// What a trial's plan had said of its speed.
fn of_speed(evidence: &Evidence, experiment: &Experiment, trial: &Trial) -> Option<Score> {
    let speed = evidence.speed(trial, experiment.resolved.workload())?;
    let forecast = trial.plan.forecast.as_ref()?;
    let predicted = forecast.tokens_per_second;
    Some(Score {
        class: Class {
            figure: Figure::TokensPerSecond,
            instance_type: trial.plan.instance_type.clone(),
            is_adjusted: forecast.is_rescaled,
        },
        low: predicted.low,
        expected: predicted.expected,
        high: predicted.high,
        measured: speed.mean,
    })
}

/// Finished trials looked at, the newest first, whose steps are read.
const STEPPING: usize = 50;

/// What was estimated to remain of finished trials when half of their steps were done.
async fn remaining_hours(store: &Store, evidence: &Evidence) -> Result<Vec<Score>, StoreError> {
    let done = evidence.trials.iter();
    let mut done: Vec<&Trial> = done
        .filter(|trial| trial.state == TrialState::Completed && trial.plan.steps > 0)
        .collect();
    done.sort_by_key(|trial| Reverse(trial.id.0));
    done.truncate(STEPPING);
    let series = done.iter().filter_map(|trial| {
        let series = evidence.figures.reporting_steps(trial.id.0)?;
        Some((series.id, series))
    });
    let series: BTreeMap<i32, &Series> = series.collect();
    let ids: Vec<i32> = series.keys().copied().collect();
    let mut buckets: BTreeMap<i32, Vec<Bucket>> = BTreeMap::new();
    for (id, bucket) in store.rollups(&ids).await? {
        buckets.entry(id).or_default().push(bucket);
    }
    let looked_back = |trial: &&Trial| {
        let series = evidence.figures.reporting_steps(trial.id.0)?;
        let reports = speed::progress(&series.metric, buckets.get(&series.id)?);
        let planned = i64::try_from(trial.plan.steps).ok()?;
        let looked = eta::estimate_at_half(&reports, planned)?;
        Some(Score {
            class: Class {
                figure: Figure::RemainingHours,
                instance_type: trial.plan.instance_type.clone(),
                is_adjusted: true,
            },
            low: looked.estimate.remaining_hours_low,
            expected: looked.estimate.remaining_hours,
            high: looked.estimate.remaining_hours_high,
            measured: looked.remaining_hours,
        })
    };
    Ok(done.iter().filter_map(looked_back).collect())
}

/// What a finished trial's plan had said of its hours and dollars. A spot trial's hours are not the
/// plan's, which counts no interruptions; its dollars are.
fn of_trial(
    evidence: &Evidence,
    experiment: &Experiment,
    trial: &Trial,
    now: DateTime<Utc>,
) -> Vec<Score> {
    // Earlier plans left out what is billed beside the steps.
    let is_whole = trial.plan.overhead.is_some();
    let is_done = trial.state == TrialState::Completed && experiment.full_run.is_none();
    let Some(forecast) = (trial.plan.forecast.as_ref()).filter(|_| is_done && is_whole) else {
        return Vec::new();
    };
    let ran = outcome(evidence, experiment.resolved.workload(), trial, now);
    let class = |figure: Figure| Class {
        figure,
        instance_type: trial.plan.instance_type.clone(),
        is_adjusted: forecast.is_rescaled,
    };
    let is_on_demand = trial.plan.purchase_option == PurchaseOption::OnDemand;
    let hours = is_on_demand.then(|| Score {
        class: class(Figure::TrialHours),
        low: forecast.trial_hours.low,
        expected: forecast.trial_hours.expected,
        high: forecast.trial_hours.high,
        measured: real(ran.billable_seconds) / 3600.0,
    });
    let usd = forecast.trial_usd.and_then(|predicted| {
        Some(Score {
            class: class(Figure::TrialCostUsd),
            low: predicted.low.as_f64(),
            expected: predicted.expected?.as_f64(),
            high: predicted.high.as_f64(),
            measured: ran.cost_usd.as_f64(),
        })
    });
    hours.into_iter().chain(usd).collect()
}

/// What a finished full run's trial had projected of it: the hours and dollars of all tokens, to which
/// the trial's own count where the run goes on from there.
fn of_full_run(
    evidence: &Evidence,
    experiment: &Experiment,
    trial: &Trial,
    now: DateTime<Utc>,
) -> Vec<Score> {
    let is_done = trial.state == TrialState::Completed;
    let Some(of) = experiment.full_run.as_ref().filter(|_| is_done) else {
        return Vec::new();
    };
    let workload = experiment.resolved.workload();
    let run = outcome(evidence, workload, trial, now);
    let score = |figure: Figure, [low, high]: [f64; 2], expected: f64, measured: f64| Score {
        class: Class {
            figure,
            instance_type: trial.plan.instance_type.clone(),
            is_adjusted: true,
        },
        low,
        expected,
        high,
        measured,
    };
    let hours = of.hours.map(|ends| {
        let took = full_run::hours(&run) + of.head_hours();
        score(Figure::FullRunHours, ends, of.projected_hours, took)
    });
    let usd = of.cost_usd.map(|ends| {
        let cost = (run.cost_usd + of.head_usd()).as_f64();
        let expected = of.projected_cost_usd.as_f64();
        score(
            Figure::FullRunCostUsd,
            ends.map(Usd::as_f64),
            expected,
            cost,
        )
    });
    hours.into_iter().chain(usd).collect()
}
