//! A tick over what is due, one claimed row at a time: a claim is held while its own calls are made, and not while
//! those of others are. What is done with a row is in the file of its task.

use std::fmt::Display;

use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use bakeoff_store::StoreError;

/// Rows worked on in one tick.
const TICK_MAX: usize = 50;
/// How long a claim is held: longer than all calls for one row may take.
pub(super) const HOLD: TimeDelta = TimeDelta::minutes(5);

/// A row that says when it is due.
pub(super) trait Due: Sized {
    /// The word for it in messages.
    const WHAT: &'static str;

    fn id(&self) -> impl Display;

    /// Takes the one that is due for the longest time, and holds it for [`HOLD`].
    fn claim(
        app: &App,
        now: DateTime<Utc>,
    ) -> impl Future<Output = Result<Option<Self>, StoreError>> + Send;

    fn work(&self, app: &App) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Runs one tick; returns how many were worked on.
pub(super) async fn tick<T: Due>(app: &App) -> Result<usize, StoreError> {
    for count in 0..TICK_MAX {
        let now = app.clock.now();
        // A copy of the database must not do what its original does.
        if !app.fence.may_act(now) {
            return Ok(count);
        }
        let row = match T::claim(app, now).await {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(count),
            // One that a newer version wrote must not hold up the others.
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(%error, what = T::WHAT, "unreadable; skipped");
                continue;
            }
            Err(error) => return Err(error),
        };
        app.pulse.beat();
        // One that fails must not hold up the others.
        if let Err(error) = row.work(app).await {
            tracing::warn!(%error, what = T::WHAT, id = %row.id(), "work failed; it is due again later");
        }
    }
    Ok(TICK_MAX)
}
