//! The loops: scheduler, ingester, concluder, sweeper, listener. A tick takes no input, a wake carries no data: there is one code
//! path, also after a restart. Tasks never import `http`.

pub mod concluder;
pub mod ingester;
mod listener;
pub mod scheduler;
pub mod sweeper;

use std::panic::AssertUnwindSafe;

use chrono::TimeDelta;
use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::App;

/// The longest a loop sleeps without looking, on the domain clock.
const IDLE_MAX: TimeDelta = TimeDelta::seconds(60);
const SWEEP_EVERY: TimeDelta = TimeDelta::minutes(10);
/// The shortest sleep between two looks: a due row that somebody else holds must not spin us.
const PAUSE_REAL: std::time::Duration = std::time::Duration::from_millis(20);

/// Starts all loops; they end when `stop` is cancelled, after the tick in hand.
pub fn spawn(app: &App, tracker: &TaskTracker, stop: &CancellationToken) {
    tracker.spawn(scheduler_loop(app.clone(), stop.clone()));
    tracker.spawn(every(app.clone(), stop.clone(), "ingester", app.settings.metrics_interval / 4, |app| async move {
        ingester::tick(&app).await
    }));
    tracker.spawn(every(app.clone(), stop.clone(), "concluder", TimeDelta::seconds(20), |app| async move {
        concluder::tick(&app).await
    }));
    tracker.spawn(every(
        app.clone(),
        stop.clone(),
        "sweeper",
        SWEEP_EVERY,
        |app| async move { sweeper::tick(&app).await },
    ));
    tracker.spawn(listener::run(app.clone(), stop.clone()));
}

async fn scheduler_loop(app: App, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let wait = match guarded("scheduler", scheduler::tick(&app)).await {
            Some(_) => until_next(&app).await,
            None => TimeDelta::seconds(5),
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = pause(&app, wait) => {}
            () = app.wake.notified() => {}
        }
    }
}

async fn pause(app: &App, wait: TimeDelta) {
    app.clock.sleep(wait).await;
    crate::clock::real_sleep(PAUSE_REAL).await;
}

async fn until_next(app: &App) -> TimeDelta {
    let due = app.store.next_due().await.ok().flatten();
    due.map_or(IDLE_MAX, |at| (at - app.clock.now()).clamp(TimeDelta::zero(), IDLE_MAX))
}

/// A tick that fails, or panics, is logged once, here, and the loop goes on.
async fn guarded(name: &str, tick: impl Future<Output = Result<usize, crate::store::StoreError>>) -> Option<usize> {
    match AssertUnwindSafe(tick).catch_unwind().await {
        Ok(Ok(count)) => Some(count),
        Ok(Err(error)) => {
            tracing::warn!(%error, task = name, "a tick failed; trying again");
            None
        }
        Err(_) => {
            tracing::error!(task = name, "a tick panicked; trying again");
            None
        }
    }
}

/// A loop on a timer of the domain clock.
async fn every<F, T>(app: App, stop: CancellationToken, name: &'static str, interval: TimeDelta, tick: F)
where
    F: Fn(App) -> T + Send,
    T: Future<Output = Result<usize, crate::store::StoreError>> + Send,
{
    while !stop.is_cancelled() {
        guarded(name, tick(app.clone())).await;
        tokio::select! {
            () = stop.cancelled() => return,
            () = pause(&app, interval) => {}
        }
    }
}
