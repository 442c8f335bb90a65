//! The repricer: applies prices that have taken effect to everything that depends on them. Settled
//! attempts are corrected, ended experiments are decided again, and each records the reason.
//! Repeating it changes nothing.

use std::cmp::Ordering;

use bakeoff_domain::ids::PriceId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{self, Price};
use bakeoff_domain::ranking::recommendation::Recommendation;
use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::app::App;
use crate::read;
use crate::store::StoreError;
use crate::store::money::repricing::{Change, Dependent, Effect, Revision};

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
                let own: Vec<&Change> = changes
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
        let changes: Vec<&Change> = changes.iter().collect();
        count += usize::from(apply_or_put_off(app, &changes, &dependent, now).await?);
    }
    Ok(count)
}

/// An experiment that cannot be read must neither hold up the others nor be forgotten: it is
/// retried.
async fn apply_or_put_off(
    app: &App,
    changes: &[&Change],
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
    changes: &[&Change],
    dependent: &Dependent,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let (project, id) = (dependent.project_id, dependent.experiment_id);
    let Some(experiment) = app.store.experiment(project, id).await? else {
        return Ok(false);
    };
    let mut decided = None;
    if experiment.ended_at.is_some()
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
    let reason = |effect: &Effect| reason(effect, changes, &prices, decided, now);
    app.store
        .reprice(dependent, changes, decided, reason, now)
        .await
}

/// Describes the change in words: the relevant prices, and the effect on the bill and on the
/// ranking; also returns those prices.
fn reason(
    effect: &Effect,
    changes: &[&Change],
    prices: &[Price],
    decided: Option<Revision<'_>>,
    now: DateTime<Utc>,
) -> (String, Vec<PriceId>) {
    let (mut said, mut due_to): (Vec<String>, Vec<PriceId>) = (Vec::new(), Vec::new());
    for change in changes {
        let is_billed = effect.prices.contains(&change.price_id);
        let Some(new) = prices.iter().find(|price| price.id == change.price_id) else {
            if is_billed {
                said.push(format!(
                    "The price of a GB-month of storage in {} has changed.",
                    change.region
                ));
                due_to.push(change.price_id);
            }
            continue;
        };
        let current = price::in_force(prices, &new.instance_type, &new.region, now);
        let is_ranked = effect.is_decided_anew && current.is_some_and(|price| price.id == new.id);
        if is_billed || is_ranked {
            said.push(describe(new, before(prices, new).as_ref()));
            due_to.push(change.price_id);
        }
    }
    said.extend(billing(effect));
    if let Some(revision) = decided.filter(|_| effect.is_decided_anew) {
        said.push(ranking(revision));
    }
    (said.join(" "), due_to)
}

/// The effect on the bill; `None` if it stays the same.
fn billing(effect: &Effect) -> Option<String> {
    let attempts = effect.attempts.len();
    let (difference, direction) = match effect.usd.cmp(&Usd::ZERO) {
        Ordering::Equal => return None,
        Ordering::Greater => (effect.usd, "more"),
        Ordering::Less => (Usd::ZERO - effect.usd, "less"),
    };
    Some(format!(
        "Usage since then by {attempts} attempts is billed {difference} {direction}."
    ))
}

fn ranking(revision: Revision<'_>) -> String {
    let first = |one: &Recommendation| one.ranked.first().map(|row| row.candidate.clone());
    match (first(revision.before), first(revision.after)) {
        (Some(old), Some(new)) if old == new => format!("{new} remains first."),
        (Some(old), Some(new)) => format!("{new} is now first; {old} was."),
        _ => "The ranking has changed.".to_owned(),
    }
}

/// The price in force before this one began; otherwise the one assumed for it.
fn before(prices: &[Price], new: &Price) -> Option<Price> {
    let others: Vec<Price> = prices
        .iter()
        .filter(|price| price.id != new.id)
        .cloned()
        .collect();
    let in_force = |at| price::in_force(&others, &new.instance_type, &new.region, at);
    in_force(new.effective_from - TimeDelta::seconds(1)).or_else(|| in_force(new.effective_from))
}

fn describe(new: &Price, old: Option<&Price>) -> String {
    let rate = |price: &Price| format!("${}", price.usd_per_hour.0.round_dp(4).normalize());
    let was = old.map_or_else(
        || "no earlier price known".to_owned(),
        |old| {
            let share = (new.usd_per_hour.as_f64() / old.usd_per_hour.as_f64() - 1.0) * 100.0;
            format!("previously {}, {share:+.1} %", rate(old))
        },
    );
    let (kind, region, since) = (
        &new.instance_type,
        &new.region,
        new.effective_from.format("%Y-%m-%d"),
    );
    format!(
        "{kind} in {region} costs {} per hour from {since} ({was}; {}).",
        rate(new),
        new.label()
    )
}
