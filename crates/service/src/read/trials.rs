//! Trials and their attempts, as the API shows them.

use std::collections::BTreeMap;

use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::spot;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::phase::JobPhase;
use chrono::{DateTime, Utc};

use bakeoff_api::trials::{AttemptOfTrial, AttemptView, TrialView};
use bakeoff_store::experiments::Experiment;
use bakeoff_store::experiments::trials::{Attempt, ShownTrial};
use bakeoff_store::{Store, StoreError};

pub(super) fn by_trial(attempts: Vec<Attempt>) -> BTreeMap<TrialId, Vec<Attempt>> {
    let mut by_trial: BTreeMap<TrialId, Vec<Attempt>> = BTreeMap::new();
    for attempt in attempts {
        by_trial.entry(attempt.trial_id).or_default().push(attempt);
    }
    by_trial
}

/// Trials of an experiment with their attempts, in two queries.
pub async fn trial_views(
    store: &Store,
    project: ProjectId,
    experiment: ExperimentId,
    now: DateTime<Utc>,
) -> Result<Vec<TrialView>, StoreError> {
    let ids = [experiment.0];
    let (trials, attempts) = tokio::try_join!(
        store.heads(project, None, Some(experiment)),
        store.attempts_of(&ids)
    )?;
    let mut attempts = by_trial(attempts);
    let view = |trial: ShownTrial| {
        let attempts = attempts.remove(&trial.id).unwrap_or_default();
        trial_view(ShownTrial { attempts, ..trial }, now)
    };
    Ok(trials.into_iter().map(view).collect())
}

/// All attempts of an experiment, in the order of its trials.
pub async fn attempts(
    store: &Store,
    experiment: &Experiment,
    now: DateTime<Utc>,
) -> Result<Vec<AttemptOfTrial>, StoreError> {
    let views = trial_views(store, experiment.project_id, experiment.id, now).await?;
    let of_trial = |trial: TrialView| {
        let plan = trial.plan;
        trial.attempts.into_iter().filter_map(move |attempt| {
            let plan = plan.as_ref()?;
            Some(AttemptOfTrial {
                trial_id: trial.id,
                candidate: plan.candidate.clone(),
                instance_type: plan.instance_type.clone(),
                purchase_option: plan.purchase_option,
                attempt,
            })
        })
    };
    Ok(views.into_iter().flat_map(of_trial).collect())
}

/// The API's view of a trial.
pub fn trial_view(mut trial: ShownTrial, now: DateTime<Utc>) -> TrialView {
    let attempts = std::mem::take(&mut trial.attempts);
    TrialView {
        attempts: attempts
            .into_iter()
            .map(|attempt| attempt_view(&trial, attempt, now))
            .collect(),
        id: trial.id,
        experiment_id: trial.experiment_id,
        state: trial.state,
        reason: trial.reason,
        plan: trial.plan.map(Into::into),
        retry_of: trial.retry_of,
        created_at: trial.created_at,
        ended_at: trial.ended_at,
        as_of: now,
    }
}

/// The cost of the work that an interruption would undo now; `None` unless on spot and training.
fn at_risk_usd(trial: &ShownTrial, attempt: &Attempt, now: DateTime<Utc>) -> Option<Usd> {
    let is_at_risk =
        trial.is_spot && !attempt.phase.is_over() && attempt.job_phase() == JobPhase::Training;
    let since = attempt.training_since.filter(|_| is_at_risk)?;
    let at_risk = spot::at_risk(
        since,
        attempt.checkpoint_at,
        trial.checkpoint_seconds,
        trial.instance_count,
        attempt.usd_per_hour,
        now,
    );
    Some(at_risk.usd)
}

fn attempt_view(trial: &ShownTrial, attempt: Attempt, now: DateTime<Utc>) -> AttemptView {
    let seconds = |value: Option<i64>| value.and_then(|seconds| u64::try_from(seconds).ok());
    let saved = seconds(attempt.training_seconds)
        .zip(seconds(attempt.billable_seconds))
        .filter(|_| trial.is_spot);
    AttemptView {
        interruptions: spot::interruptions(&attempt.transitions)
            .into_iter()
            .map(Into::into)
            .collect(),
        savings_percent: saved.and_then(|(trained, billed)| spot::savings_percent(trained, billed)),
        checkpoint_at: attempt.checkpoint_at,
        at_risk_usd: at_risk_usd(trial, &attempt, now),
        id: attempt.id,
        number: attempt.number,
        job_name: attempt.job_name,
        state: attempt.phase.state(),
        job_status: attempt.job_status,
        secondary_status: attempt.secondary_status,
        failure_reason: attempt.failure_reason,
        usd_per_hour: attempt.usd_per_hour,
        price_id: attempt.price_id,
        training_seconds: attempt.training_seconds,
        billable_seconds: attempt.billable_seconds,
        billing_estimated: attempt.billing_estimated,
        transitions: attempt.transitions.into_iter().map(Into::into).collect(),
        planned_at: attempt.planned_at,
        started_at: attempt.started_at,
        ended_at: attempt.ended_at,
    }
}
