//! The call statistics: adds our own calls to AWS to their hour, so that the cost of watching is
//! visible across restarts and replicas.

use chrono::{DateTime, DurationRound, TimeDelta};

use crate::app::App;
use bakeoff_store::StoreError;

/// Runs one tick; returns how many operations were called since the last.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let tallies = app.place.aws.take_tallies();
    if tallies.is_empty() {
        return Ok(0);
    }
    let now = app.clock.now();
    let hour_at = now
        .duration_trunc(TimeDelta::hours(1))
        .unwrap_or(DateTime::UNIX_EPOCH);
    app.store
        .add_aws_calls(&app.place.region, hour_at, &tallies)
        .await?;
    Ok(tallies.len())
}
