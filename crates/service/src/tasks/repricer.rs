//! The repricer: applies prices that have taken effect to everything that depends on them. Settled
//! attempts are corrected, ended experiments are decided again, and each records the reason.
//! Repeating it changes nothing.

use bakeoff_domain::ids::PriceId;
use bakeoff_domain::ranking::repricing::{self, Dependent, Effect, PriceChange, Revision};
use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::app::App;
use crate::read;
use bakeoff_store::StoreError;

/// Prices applied at once: one refresh of AWS's list is one change.
const PRICES: i64 = 1000;
/// Experiments looked up at once.
const BATCH: i64 = 100;
/// Delay before retrying an experiment that could not be repriced.
const RETRY_AFTER: TimeDelta = TimeDelta::minutes(30);

/// Runs one tick; returns how many experiments were changed.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let mut count = retry(app, app.clock.now()).await?;
    loop {
        let now = app.clock.now();
        let changes = app.store.prices_to_apply(now, PRICES).await?;
        if changes.is_empty() {
            return Ok(count);
        }
        let mut after = Uuid::nil();
        loop {
            let dependents = app.store.dependents(&changes, after, BATCH).await?;
            let Some(last) = dependents.last() else { break };
            after = last.experiment_id.0;
            for dependent in dependents {
                let own: Vec<&PriceChange> = changes
                    .iter()
                    .filter(|change| dependent.is_hit_by(change))
                    .collect();
                if !own.is_empty() {
                    count += usize::from(apply_or_put_off(app, &own, &dependent, now).await?);
                }
            }
        }
        app.store.prices_are_applied(&changes, now).await?;
    }
}

/// Retries the repricings that failed.
async fn retry(app: &App, now: DateTime<Utc>) -> Result<usize, StoreError> {
    let mut count = 0;
    for (dependent, changes) in app.store.repricings_to_retry(now).await? {
        let changes: Vec<&PriceChange> = changes.iter().collect();
        count += usize::from(apply_or_put_off(app, &changes, &dependent, now).await?);
    }
    Ok(count)
}

/// An experiment that cannot be read must neither hold up the others nor be forgotten: it is
/// retried.
async fn apply_or_put_off(
    app: &App,
    changes: &[&PriceChange],
    dependent: &Dependent,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    app.pulse.beat();
    let experiment = dependent.experiment_id;
    match apply(app, changes, dependent, now).await {
        Ok(is_changed) => {
            app.store.repricing_done(experiment, changes).await?;
            Ok(is_changed)
        }
        // If the database is unavailable, this write fails as well.
        Err(error) => {
            tracing::error!(%error, %experiment, "repricing an experiment failed; retrying");
            let prices: Vec<PriceId> = changes.iter().map(|change| change.price_id).collect();
            app.store
                .repricing_failed(experiment, &prices, now + RETRY_AFTER)
                .await?;
            Ok(false)
        }
    }
}

async fn apply(
    app: &App,
    changes: &[&PriceChange],
    dependent: &Dependent,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let (project, id) = (dependent.project_id, dependent.experiment_id);
    // A step's work has no answer, only a bill.
    let experiment = app.store.experiment(project, id).await?;
    let mut decided = None;
    if let Some(experiment) = experiment.filter(|experiment| experiment.ended_at.is_some())
        && let Some(before) = app.store.recommendation(id).await?
    {
        let after = read::decide_again(&app.store, &experiment, now).await?;
        decided = after
            .filter(|after| before.differs(after))
            .map(|after| (before, after));
    }
    let types: Vec<String> = changes
        .iter()
        .filter_map(|change| change.instance_type.clone())
        .collect();
    let region = changes.first().map(|change| change.region.as_str());
    let prices = app.store.prices_of(project, region, Some(&types)).await?;
    let decided = decided
        .as_ref()
        .map(|(before, after)| Revision { before, after });
    let reason = |effect: &Effect| repricing::reason(effect, changes, &prices, decided, now);
    app.store
        .reprice(dependent, changes, decided, reason, now)
        .await
}
