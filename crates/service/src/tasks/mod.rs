//! The background loops. A tick takes no input and a wake carries no data, so a restart takes the
//! same path. Tasks never import `http`.

pub mod call_stats;
pub mod checkpoints;
pub mod ci_waits;
pub mod commit_statuses;
pub mod compactor;
pub mod conductor;
pub mod courier;
pub mod deployer;
mod due;
pub mod fence;
pub mod finalizer;
pub mod gate;
pub mod ingester;
mod listener;
pub mod post_mortem;
pub mod price_refresher;
pub mod racer;
pub mod readings;
pub mod registrar;
pub mod repricer;
pub mod scheduler;
pub mod warm_pools;
pub mod watcher;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bakeoff_domain::sagemaker::error::AwsError;
use chrono::TimeDelta;
use futures::FutureExt;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::app::App;
use crate::replica::pulse::Pulse;
use bakeoff_process::clock::{Stopwatch, real_sleep};
use bakeoff_store::StoreError;

/// The longest a loop sleeps without checking, on the domain clock.
const IDLE_MAX: TimeDelta = TimeDelta::seconds(60);
/// The shortest sleep between two checks: a due row that another replica holds must not cause a
/// busy loop.
const PAUSE_REAL: Duration = Duration::from_millis(20);
/// The shortest pause between ticks on a timer, however fast the domain clock runs.
const TICK_REAL: Duration = Duration::from_millis(300);
/// Pause after a failed tick: the database may be unavailable.
const FAILED_REAL: Duration = Duration::from_millis(500);

/// Starts all loops; they end when `stop` is cancelled, after the current tick.
pub fn spawn(app: &App, tracker: &TaskTracker, stop: &CancellationToken) {
    for place in app.places.values() {
        let there = App {
            place: place.clone(),
            ..app.clone()
        };
        spawn_in_region(&there, tracker, stop);
    }
    tracker.spawn(fence_loop(own(app), stop.clone()));
    let start = |name, interval, tick: fn(App) -> Tick| {
        tracker.spawn(every(own(app), stop.clone(), name, interval, tick))
    };
    start("repricer", TimeDelta::seconds(20), |app| {
        async move { repricer::tick(&app).await }.boxed()
    });
    start("finalizer", TimeDelta::seconds(20), |app| {
        async move { finalizer::tick(&app).await }.boxed()
    });
    start("ci_waits", TimeDelta::seconds(20), |app| {
        async move { ci_waits::tick(&app).await }.boxed()
    });
    start("gate", TimeDelta::seconds(20), |app| {
        async move { gate::tick(&app).await }.boxed()
    });
    start("courier", TimeDelta::seconds(2), |app| {
        async move { courier::tick(&app).await }.boxed()
    });
    start("commit_statuses", TimeDelta::seconds(2), |app| {
        async move { commit_statuses::tick(&app).await }.boxed()
    });
    start("racer", TimeDelta::minutes(1), |app| {
        async move { racer::tick(&app).await }.boxed()
    });
    start("compactor", TimeDelta::minutes(5), |app| {
        async move { compactor::tick(&app).await }.boxed()
    });
    tracker.spawn(listener::run(app.clone(), stop.clone()));
}

/// Starts the loops that concern the region of an app.
fn spawn_in_region(app: &App, tracker: &TaskTracker, stop: &CancellationToken) {
    tracker.spawn(scheduler_loop(own(app), tracker.clone(), stop.clone()));
    tracker.spawn(watcher_loop(own(app), stop.clone()));
    let start = |name, interval, tick: fn(App) -> Tick| {
        tracker.spawn(every(own(app), stop.clone(), name, interval, tick))
    };
    let poll = app.settings.policy.poll;
    let metrics = app
        .settings
        .metrics_interval
        .map_or(TimeDelta::minutes(2), |interval| interval / 4);
    start("warm_pools", poll / 2, |app| {
        async move { warm_pools::tick(&app).await }.boxed()
    });
    start("checkpoints", TimeDelta::minutes(2), |app| {
        async move { checkpoints::tick(&app).await }.boxed()
    });
    start("readings", TimeDelta::minutes(1), |app| {
        async move { readings::tick(&app).await }.boxed()
    });
    start("post_mortem", TimeDelta::seconds(20), |app| {
        async move { post_mortem::tick(&app).await }.boxed()
    });
    start("conductor", TimeDelta::seconds(10), |app| {
        async move { conductor::tick(&app).await }.boxed()
    });
    start("registrar", TimeDelta::seconds(10), |app| {
        async move { registrar::tick(&app).await }.boxed()
    });
    start("deployer", TimeDelta::seconds(10), |app| {
        async move { deployer::tick(&app).await }.boxed()
    });
    start("ingester", metrics, |app| {
        async move { ingester::tick(&app).await }.boxed()
    });
    start("call_stats", TimeDelta::minutes(1), |app| {
        async move { call_stats::tick(&app).await }.boxed()
    });
    start("price_refresher", TimeDelta::minutes(10), |app| {
        async move { price_refresher::tick(&app).await }.boxed()
    });
}

/// Clones the app with a separate pulse, so that one task's progress does not count for another.
fn own(app: &App) -> App {
    App {
        pulse: Pulse::default(),
        ..app.clone()
    }
}

type Tick = futures::future::BoxFuture<'static, Result<usize, StoreError>>;

async fn scheduler_loop(app: App, tracker: TaskTracker, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(scheduler::SLOTS));
    while !stop.is_cancelled() {
        let claimed = guarded(
            &app,
            "scheduler",
            scheduler::start(&app, &tracker, &slots).boxed(),
        )
        .await;
        tokio::select! {
            // While every slot is taken, nothing needs to be claimed.
            () = stop.cancelled() => return,
            _ = slots.acquire() => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = scheduler_pause(&app, claimed) => {}
            () = app.place.wake.notified() => {}
        }
    }
}

/// Waits until a trial is due, a waiting one may be admitted, or another replica's lease expires.
/// `claimed`: how many trials the last tick claimed, unless it failed.
async fn scheduler_pause(app: &App, claimed: Option<usize>) {
    real_sleep(claimed.map_or(FAILED_REAL, |_| PAUSE_REAL)).await;
    // An unresponsive database must not block the wait forever.
    let next = app
        .pulse
        .patiently(
            app.settings.patience(),
            scheduler_wait(app, claimed.unwrap_or_default()),
        )
        .await;
    let (wait, lease) = next.unwrap_or((TimeDelta::zero(), Duration::ZERO));
    tokio::select! {
        () = app.clock.sleep(wait.clamp(TimeDelta::zero(), IDLE_MAX)) => {}
        () = real_sleep(lease.min(Duration::from_hours(1))) => {}
    }
}

/// How long until something is due (domain clock), and until another replica's lease expires (real
/// time).
async fn scheduler_wait(app: &App, claimed: usize) -> (TimeDelta, Duration) {
    let now = app.clock.now();
    let region = &app.place.region;
    let (due, lease) = app.store.next_due(region).await.unwrap_or_default();
    let mut wait = due.map_or(IDLE_MAX, |at| at - now);
    if let Ok(Some(at)) = app.store.next_waiting(region).await {
        // Those that are left wait for the rate limit, or, if none of them was admitted without it,
        // for room in a quota pool, which work that ends announces.
        let limited = app.place.aws.creates_after();
        let is_full = claimed == 0 && at <= now && limited.is_zero();
        let room = if is_full {
            app.settings.policy.poll / 4
        } else {
            limited
        };
        wait = wait.min((at - now).max(room));
    }
    (
        wait,
        lease.map_or(Duration::MAX, |seconds| {
            Duration::from_secs_f64(seconds.clamp(0.0, 3600.0))
        }),
    )
}

async fn watcher_loop(app: App, stop: CancellationToken) {
    let mut memory = watcher::Memory::default();
    while !stop.is_cancelled() {
        let next = guarded(&app, "watcher", watcher::tick(&app, &mut memory).boxed()).await;
        // A lease is real time: it must be renewed however slow the domain clock is.
        let pause = async {
            real_sleep(if next.is_some() {
                PAUSE_REAL
            } else {
                FAILED_REAL
            })
            .await;
            tokio::select! {
                () = app.clock.sleep(next.unwrap_or(TimeDelta::seconds(1))) => {}
                () = real_sleep(app.settings.lease / 3) => {}
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = pause => {}
        }
    }
    // A database that does not answer must not keep the process alive.
    app.pulse
        .patiently(app.settings.lease / 3, app.place.watcher.resign(&app.store))
        .await
        .unwrap_or_default();
}

async fn fence_loop(app: App, stop: CancellationToken) {
    let mut memory = fence::Memory::default();
    while !stop.is_cancelled() {
        let next = guarded(&app, "fence", fence::tick(&app, &mut memory).boxed()).await;
        let pause = async {
            real_sleep(if next.is_some() {
                TICK_REAL
            } else {
                FAILED_REAL
            })
            .await;
            app.clock.sleep(next.unwrap_or(TimeDelta::seconds(5))).await;
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = pause => {}
        }
    }
    // A database that does not answer must not keep the process alive.
    app.pulse
        .patiently(app.settings.lease / 3, app.renewer.resign(&app.store))
        .await
        .unwrap_or_default();
}

/// Confirms that the credentials belong to the account that owns the installation's jobs: the first
/// one ever seen.
async fn confirm_account(app: &App) -> Result<Result<(), AwsError>, StoreError> {
    if !app.place.aws.knows_account() {
        let seen = match app.place.aws.caller_account().await {
            Ok(seen) => seen,
            Err(error) => return Ok(Err(error)),
        };
        if let Some(expected) = app.store.pin_account(Some(&seen)).await? {
            app.place.aws.expect_account(&expected);
        }
    }
    Ok(app.place.aws.confirm_account().await)
}

/// Logs a tick that fails, panics, or gets no answer, once, here; the loop continues.
async fn guarded<T>(
    app: &App,
    name: &'static str,
    tick: impl Future<Output = Result<T, StoreError>>,
) -> Option<T> {
    let patience = app.settings.patience();
    app.place.tasks.started(name);
    let span = tracing::info_span!("tick", task = name);
    let ticking = AssertUnwindSafe(tick).catch_unwind().instrument(span);
    let took = Stopwatch::start();
    let outcome = app.pulse.patiently(patience, ticking).await;
    metrics::histogram!("bakeoff_tick_seconds", "task" => name).record(took.elapsed());
    match outcome {
        Some(Ok(Ok(done))) => {
            app.place.tasks.succeeded(name);
            return Some(done);
        }
        Some(Ok(Err(error))) => {
            tracing::warn!(%error, task = name, "tick failed; retrying");
        }
        Some(Err(_)) => tracing::error!(task = name, "tick panicked; retrying"),
        None => {
            tracing::error!(
                task = name,
                seconds = patience.as_secs(),
                "tick timed out; retrying"
            );
        }
    }
    app.place.tasks.failed(name);
    None
}

/// Runs a loop on a timer of the domain clock.
async fn every(
    app: App,
    stop: CancellationToken,
    name: &'static str,
    interval: TimeDelta,
    tick: fn(App) -> Tick,
) {
    while !stop.is_cancelled() {
        let is_done = guarded(&app, name, tick(app.clone())).await.is_some();
        let pause = async {
            tokio::join!(
                real_sleep(if is_done { TICK_REAL } else { FAILED_REAL }),
                app.clock.sleep(interval)
            );
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = pause => {}
        }
    }
}
