//! Checkpoints: how much work would be lost now? Finds the newest object below each running trial's
//! prefix, once per interval; raises an alarm if the sync has stopped.

use bakeoff_domain::event::{Event, StalledCheckpoint};
use bakeoff_domain::lifecycle::spot::{at_risk, needed_checkpoints};
use bakeoff_domain::sagemaker::phase::JobPhase;
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use bakeoff_store::StoreError;
use bakeoff_store::jobs::checkpoints::CheckpointDue;

const DUE_MAX: i64 = 200;
/// How long a claim is held while the checkpoint is checked.
const HOLD: TimeDelta = TimeDelta::minutes(10);

/// Runs one tick; returns how many attempts were checked.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let due = app
        .store
        .claim_due_checkpoints(&app.place.region, app.clock.now(), HOLD, DUE_MAX)
        .await?;
    let count = due.len();
    for attempt in due {
        app.pulse.beat();
        // A failed write for one attempt must not hold up the others.
        if let Err(error) = look(app, &attempt).await {
            tracing::warn!(%error, attempt = %attempt.job_id, "checking for checkpoints failed");
        }
    }
    Ok(count)
}

async fn look(app: &App, due: &CheckpointDue) -> Result<(), StoreError> {
    let prefix = format!("{}/{}", due.spec.s3_uri.trim_end_matches('/'), due.folder);
    let newest = match app.place.aws.newest_object(&prefix, &app.pulse).await {
        Ok(newest) => newest,
        Err(error) => {
            tracing::info!(%error, prefix, "listing checkpoints failed; retrying when the hold ends");
            return Ok(());
        }
    };
    let now = app.clock.now();
    let next_at = now + TimeDelta::seconds(due.spec.interval_seconds.into());
    let alarm = alarm(due, newest, now);
    let known = due.checkpoint_times.iter().copied().chain(newest);
    let times = needed_checkpoints(&due.transitions, known.collect());
    app.store
        .record_checkpoint(due, &times, alarm, next_at, now)
        .await
}

/// Only training writes checkpoints: nothing is at risk while the job waits for capacity.
fn alarm(due: &CheckpointDue, newest: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Option<Event> {
    let since = due
        .training_since
        .filter(|_| due.phase == JobPhase::Training)?;
    let risk = at_risk(
        since,
        newest,
        due.spec.interval_seconds,
        due.instance_count,
        due.usd_per_hour,
        now,
    );
    let stalled = || StalledCheckpoint {
        since_seconds: risk.seconds,
        interval_seconds: due.spec.interval_seconds.into(),
        at_risk_usd: risk.usd,
        local_path: due.spec.local_path.clone(),
    };
    (risk.is_stalled).then(|| Event::TrialCheckpointStalled(stalled()))
}
