//! The compactor: computes steady figures for series that have gone quiet, packs series of ended
//! trials and runs into chunks, and drops what is past its retention: points, deliveries of webhooks, what deleted
//! experiments have measured. It does not call AWS.

use bakeoff_domain::measure::speed;
use bakeoff_domain::measure::steady::steady;
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use bakeoff_store::StoreError;
use bakeoff_store::series::SettledSeries;

/// A series is quiet if nothing has been written to it for this long.
const QUIET: TimeDelta = TimeDelta::minutes(10);
/// Points go into chunks this long after the end: late ones have arrived by then.
const COMPACT_AFTER: TimeDelta = TimeDelta::hours(1);
/// The partition of a month that ended this long ago is dropped once it is empty.
const MONTHS_AFTER: TimeDelta = TimeDelta::days(40);
const SERIES_MAX: i64 = 200;
/// How long deleted experiments can be restored, and how long deliveries of webhooks are shown that are over.
const KEPT: TimeDelta = TimeDelta::days(30);
const PURGED_MAX: i64 = 20;
const FORGOTTEN_MAX: i64 = 5000;

/// Runs one tick; returns how many series changed.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let now = app.clock.now();
    let settled = settle(app, now).await;
    app.pulse.beat();
    let compacted = app
        .store
        .compact(now - COMPACT_AFTER, SERIES_MAX, now)
        .await;
    app.pulse.beat();
    let dropped = app.store.drop_empty_months(now - MONTHS_AFTER).await;
    let forgotten = match app.settings.points_kept {
        Some(keep) => app.store.forget_points(now - keep).await,
        None => Ok(0),
    };
    let purged = purge(app, now).await;
    let deliveries = app.store.forget_deliveries(now - KEPT, FORGOTTEN_MAX).await;
    let unmeasured = app.store.forget_unmeasured(now - KEPT, FORGOTTEN_MAX).await;
    let targets = app.store.forget_status_targets().await;
    // Each step runs on its own: a failure must not prevent the others.
    let done = settled? + compacted?;
    dropped?;
    forgotten?;
    purged?;
    deliveries?;
    unmeasured?;
    targets?;
    Ok(done)
}

async fn purge(app: &App, now: DateTime<Utc>) -> Result<(), StoreError> {
    for experiment in app
        .store
        .experiments_to_purge(now - KEPT, PURGED_MAX)
        .await?
    {
        // One that cannot be purged must not hold up the others.
        if let Err(error) = app.store.purge(experiment, now).await {
            tracing::error!(%error, %experiment, "purging a deleted experiment failed");
        }
        app.pulse.beat();
    }
    Ok(())
}

async fn settle(app: &App, now: DateTime<Utc>) -> Result<usize, StoreError> {
    let quiet = app.store.unsettled_series(now - QUIET, SERIES_MAX).await?;
    if quiet.is_empty() {
        return Ok(0);
    }
    let ids: Vec<i32> = quiet.iter().map(|one| one.id).collect();
    let buckets = app.store.buckets(&ids).await?;
    let settled: Vec<SettledSeries> = quiet
        .into_iter()
        .map(|one| {
            let buckets = buckets.get(&one.id).map_or(&[][..], Vec::as_slice);
            SettledSeries {
                id: one.id,
                points: one.points,
                steady: steady(buckets),
                pace: speed::goodput(&speed::progress(&one.metric, buckets)),
            }
        })
        .collect();
    app.store.settle_series(&settled).await?;
    Ok(settled.len())
}
