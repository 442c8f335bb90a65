//! Convergence curves of a metric against steps, hours and dollars, for trials and external runs
//! together. Reads rollups only, in three queries regardless of the number of curves.

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_domain::ids::TrialId;
use bakeoff_domain::measure::convergence::{self, Stretch};
use bakeoff_domain::measure::eta::Progress;
use bakeoff_domain::measure::metric::{Meaning, STEP, TRAIN_LOSS, VALIDATION_LOSS};
use bakeoff_domain::measure::steady::Bucket;
use bakeoff_domain::money::Usd;
use bakeoff_domain::number::whole;
use bakeoff_domain::ranking::outcome::{Reached, Target, Tokens};
use bakeoff_domain::spec::PurchaseOption;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use rust_decimal::prelude::FromPrimitive;
use uuid::Uuid;

use super::{Evidence, Selection, load_all};
use crate::read::figures::preferred;
use bakeoff_api::comparison::{Convergence, CurvePoint, TargetView};
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::runs::Run;
use bakeoff_store::experiments::trials::{Attempt, Trial};
use bakeoff_store::series::Series;
use bakeoff_store::{Store, StoreError};

/// The trial or run that a curve describes.
struct Subject {
    id: Uuid,
    candidate: String,
    trial_id: Option<TrialId>,
    run_id: Option<bakeoff_domain::ids::RunId>,
    stretches: Vec<Stretch>,
    tokens_per_step: Option<f64>,
}

impl Subject {
    fn tokens(&self, point: &convergence::Point) -> Option<f64> {
        let step = point.step.zip(self.tokens_per_step);
        step.map(|(step, tokens)| tokens * real(step))
    }

    /// Where a trial has reached a loss; one that goes on must have stayed there.
    fn reached(
        &self,
        curve: &[convergence::Point],
        loss: f64,
        is_over: bool,
    ) -> Option<(TrialId, Reached)> {
        let point = if is_over {
            convergence::reached(curve, loss)?
        } else {
            convergence::lasting(curve, loss)?
        };
        // A loss that is there before the first step needs no run.
        let tokens = self.tokens(point).filter(|tokens| *tokens > 0.0)?;
        let (at, usd) = (point.at, point.usd);
        Some((self.trial_id?, Reached { at, tokens, usd }))
    }
}

/// The curves of one metric, and where each of them reached a target.
pub async fn curves(
    store: &Store,
    selection: &Selection,
    metric: &str,
    target: Option<f64>,
    now: DateTime<Utc>,
) -> Result<Convergence, StoreError> {
    let subjects = subjects(store, selection, now).await?;
    let ids: Vec<Uuid> = subjects.iter().map(|subject| subject.id).collect();
    let reports = reports(store, &ids, metric).await?;
    let (mut rows, mut reached) = (Vec::new(), Vec::new());
    for subject in &subjects {
        let curve = reports.curve(subject);
        let point = |point: &convergence::Point| CurvePoint {
            candidate: subject.candidate.clone(),
            at: point.at,
            step: point.step,
            tokens: subject.tokens(point),
            hours: point.hours,
            usd: point.usd,
            value: point.value,
            trial_id: subject.trial_id,
            run_id: subject.run_id,
        };
        if let Some(target) = target {
            let first = convergence::reached(&curve, target);
            reached.push(TargetView {
                candidate: subject.candidate.clone(),
                is_reached: first.is_some(),
                step: first.and_then(|first| first.step),
                tokens: first.and_then(|first| subject.tokens(first)),
                hours: first.map(|first| first.hours),
                usd: first.and_then(|first| first.usd),
                last_value: curve.last().map(|last| last.value),
                trial_id: subject.trial_id,
                run_id: subject.run_id,
            });
        }
        rows.extend(curve.iter().map(point));
    }
    Ok(Convergence {
        metric: metric.to_owned(),
        target,
        reached,
        rows,
        as_of: now,
    })
}

/// What subjects reported, oldest first.
#[derive(Default)]
struct Reports {
    /// Of the metric.
    buckets: BTreeMap<Uuid, Vec<Bucket>>,
    /// Finished steps, by the step metric.
    steps: BTreeMap<Uuid, Vec<Progress>>,
}

impl Reports {
    fn curve(&self, subject: &Subject) -> Vec<convergence::Point> {
        let of_subject = self.buckets.get(&subject.id);
        let steps = self.steps.get(&subject.id);
        convergence::curve(
            of_subject.map_or(&[][..], Vec::as_slice),
            &subject.stretches,
            steps.map_or(&[][..], Vec::as_slice),
        )
    }
}

/// How far an experiment's comparable trials have come towards the loss that its full run is projected to.
pub(super) struct Progression {
    /// Of the full run.
    pub(super) tokens: Tokens,
    /// Where trials have reached it for good.
    pub(super) reached: BTreeMap<TrialId, Reached>,
}

pub(super) async fn towards(
    store: &Store,
    evidence: &Evidence,
    experiment: &Experiment,
    loss: f64,
    now: DateTime<Utc>,
) -> Result<Progression, StoreError> {
    let trials = evidence.trials.iter();
    let compared = trials.filter(|trial| trial.plan.incomparable.is_none());
    let subjects: Vec<Subject> = compared
        .map(|trial| of_trial(evidence, experiment, trial, now))
        .collect();
    let ids: Vec<Uuid> = subjects.iter().map(|subject| subject.id).collect();
    // What the workload says, also before the first evaluation; a script may push it unasked.
    let workload = experiment.resolved.workload();
    let mut meanings = workload.metrics.iter().map(|metric| metric.meaning);
    let validation = reports(store, &ids, VALIDATION_LOSS).await?;
    let is_validation = meanings.any(|meaning| meaning == Meaning::ValidationLoss)
        || !validation.buckets.is_empty();
    let reports = if is_validation {
        validation
    } else {
        reports(store, &ids, TRAIN_LOSS).await?
    };
    let over: BTreeSet<Uuid> = (evidence.trials.iter())
        .filter(|trial| trial.state.is_terminal())
        .map(|trial| trial.id.0)
        .collect();
    let (mut reached, mut least, mut reporting) = (Vec::new(), None::<f64>, 0);
    let mut by_trial = BTreeMap::new();
    for subject in &subjects {
        let curve = reports.curve(subject);
        reporting += usize::from(!curve.is_empty());
        let own = subject.reached(&curve, loss, over.contains(&subject.id));
        reached.extend(own.map(|(_, reached)| reached.tokens));
        by_trial.extend(own);
        least = curve
            .iter()
            .map(|point| point.value)
            .chain(least)
            .reduce(f64::min);
    }
    let target = Target {
        loss,
        is_validation,
        trials: reporting,
        reached_by: reached.len(),
        least,
    };
    Ok(Progression {
        tokens: Tokens::of(workload).towards(target, &reached),
        reached: by_trial,
    })
}

async fn reports(store: &Store, subjects: &[Uuid], metric: &str) -> Result<Reports, StoreError> {
    let wanted = [metric.to_owned(), STEP.to_owned()];
    let series = preferred(store.series_of(subjects, Some(&wanted)).await?);
    let of_series: BTreeMap<i32, &Series> = series.iter().map(|one| (one.id, one)).collect();
    let mut reports = Reports::default();
    for (id, bucket) in store
        .rollups(&of_series.keys().copied().collect::<Vec<_>>())
        .await?
    {
        let Some(one) = of_series.get(&id) else {
            continue;
        };
        if one.metric == STEP {
            let report = whole(bucket.last).map(|step| Progress {
                at: bucket.last_at,
                step,
            });
            reports
                .steps
                .entry(one.subject_id)
                .or_default()
                .extend(report);
        }
        if one.metric == metric {
            reports
                .buckets
                .entry(one.subject_id)
                .or_default()
                .push(bucket);
        }
    }
    Ok(reports)
}

async fn subjects(
    store: &Store,
    selection: &Selection,
    now: DateTime<Utc>,
) -> Result<Vec<Subject>, StoreError> {
    let evidence = load_all(store, &selection.experiments).await?;
    let mut subjects = Vec::new();
    for experiment in &selection.experiments {
        let own = selection.trials_of(experiment, &evidence.trials);
        subjects.extend(own.map(|trial| of_trial(&evidence, experiment, trial, now)));
    }
    subjects.extend(selection.runs.iter().map(|run| of_run(run, now)));
    Ok(subjects)
}

fn of_trial(
    evidence: &Evidence,
    experiment: &Experiment,
    trial: &Trial,
    now: DateTime<Utc>,
) -> Subject {
    let sequence = f64::from(experiment.resolved.workload().model.sequence_length);
    let batch = i64::try_from(trial.plan.global_batch)
        .ok()
        .filter(|batch| *batch > 0);
    Subject {
        id: trial.id.0,
        candidate: trial.plan.candidate.clone(),
        trial_id: Some(trial.id),
        run_id: None,
        stretches: evidence
            .attempts(trial)
            .iter()
            .filter_map(|one| stretch(trial, one, now))
            .collect(),
        tokens_per_step: batch.map(|batch| sequence * real(batch)),
    }
}

/// An attempt's time with instances, and its cost per hour. For spot, the cost is what was billed,
/// once known.
fn stretch(trial: &Trial, attempt: &Attempt, now: DateTime<Utc>) -> Option<Stretch> {
    let from = attempt.started_at?;
    let until = attempt.ended_at.unwrap_or(now).max(from);
    let full = attempt.usd_per_hour * Decimal::from(trial.plan.instance_count);
    let usd_per_hour = match (trial.plan.purchase_option, attempt.billable_seconds) {
        (PurchaseOption::OnDemand, _) => Some(full),
        (PurchaseOption::Spot, Some(billed)) if attempt.ended_at.is_some() => {
            let hours = (until - from).as_seconds_f64();
            Decimal::from_f64(real(billed) / hours.max(1.0)).map(|share| full * share)
        }
        (PurchaseOption::Spot, _) => None,
    };
    Some(Stretch {
        from,
        until,
        usd_per_hour,
    })
}

fn of_run(run: &Run, now: DateTime<Utc>) -> Subject {
    let until = run.ended_at.unwrap_or(now);
    let from = run.started_at.unwrap_or(run.created_at).min(until);
    let spec = &run.spec;
    let sequence = spec
        .model
        .as_ref()
        .map(|model| f64::from(model.sequence_length));
    let batch = spec
        .global_batch
        .and_then(|batch| i64::try_from(batch).ok());
    let usd_per_hour: Option<Usd> = spec.usd_per_hour;
    Subject {
        id: run.id.0,
        candidate: spec.name.clone(),
        trial_id: None,
        run_id: Some(run.id),
        stretches: vec![Stretch {
            from,
            until,
            usd_per_hour,
        }],
        tokens_per_step: sequence
            .zip(batch)
            .map(|(sequence, batch)| sequence * real(batch)),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "steps, seconds and sequences lie far below 2^53"
)]
fn real(count: i64) -> f64 {
    count as f64
}
