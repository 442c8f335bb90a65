//! Checkpoints: how much work would be lost now? The newest object below each running trial's
//! prefix, once an interval; an alarm when the sync has stopped.

use bakeoff_domain::lifecycle::spot::at_risk;
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use crate::store::StoreError;
use crate::store::checkpoints::CheckpointDue;

const DUE_MAX: i64 = 200;
/// Held while it is looked at.
const HOLD: TimeDelta = TimeDelta::minutes(10);

/// One tick; returns how many attempts were looked at.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let due = app
        .store
        .claim_due_checkpoints(app.clock.now(), HOLD, DUE_MAX)
        .await?;
    let count = due.len();
    for attempt in due {
        app.pulse.beat();
        // One that cannot be written must not keep the others waiting.
        if let Err(error) = look(app, &attempt).await {
            tracing::warn!(%error, attempt = %attempt.attempt_id, "checkpoints could not be looked at");
        }
    }
    Ok(count)
}

async fn look(app: &App, due: &CheckpointDue) -> Result<(), StoreError> {
    let prefix = format!("{}/{}", due.spec.s3_uri.trim_end_matches('/'), due.trial_id);
    let newest = match app.aws.newest_object(&prefix, &app.pulse).await {
        Ok(newest) => newest,
        Err(error) => {
            tracing::info!(%error, prefix, "checkpoints could not be listed; again when the hold is over");
            return Ok(());
        }
    };
    let now = app.clock.now();
    let next_at = now + TimeDelta::seconds(due.spec.interval_seconds.into());
    let alarm = alarm(due, newest, now);
    app.store
        .record_checkpoint(due, newest, alarm.as_deref(), next_at, now)
        .await
}

/// Only training writes checkpoints: while it waits for capacity nothing is at risk.
fn alarm(due: &CheckpointDue, newest: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Option<String> {
    let since = due
        .training_since
        .filter(|_| due.secondary_status.as_deref() == Some("Training"))?;
    let risk = at_risk(
        since,
        newest,
        due.spec.interval_seconds,
        due.instance_count,
        due.usd_per_hour,
        now,
    );
    risk.is_stalled.then(|| {
        format!(
            "no checkpoint for {} minutes, and one every {} was announced: an interruption now would lose work of {}; look \
             whether the script saves to {}",
            risk.seconds / 60,
            due.spec.interval_seconds / 60,
            risk.usd,
            due.spec.local_path
        )
    })
}
