//! The scheduler: claim → look → decide → act → apply. It makes no choices of its own:
//! [`bakeoff_domain::lifecycle::decide`] decides what to do, and `store::jobs::attempts` writes it.
//!
//! After a crash between "create" and "record" the attempt's row exists (it was committed first),
//! so the next claim sends the same create again, learns that the name is taken, finds our marker
//! on the job, and adopts it.

mod claimed_trial;
mod image;
mod plan;
mod scheduled_end;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bakeoff_domain::lifecycle::decide::{Look, Situation, decide, needs_look};
use bakeoff_domain::lifecycle::queue::{self, Waiting};
use bakeoff_domain::ports::ClaimHolds;
use chrono::TimeDelta;
use futures::{FutureExt, StreamExt};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use self::claimed_trial::ClaimedTrial;
use crate::app::App;
use crate::replica::pulse::{Pulse, meanwhile};
use bakeoff_process::clock::Stopwatch;
use bakeoff_process::crash;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::trials::Claimed;

/// Trials claimed in one tick.
const CLAIM_MAX: i64 = 64;
/// Trials admitted in one tick.
const ADMIT_MAX: usize = 64;
/// Trials worked on concurrently.
pub(super) const SLOTS: usize = 32;
/// How long an earlier job of a trial, found late, holds back the next one.
const EARLIER_JOB_HOLDS: TimeDelta = TimeDelta::hours(1);
const UNREADABLE: &str = "this version of Bakeoff cannot read its stored plan; go back to the one that wrote it, then resume";
const EARLIER_JOB: &str = "held back: an earlier job of this trial is still being stopped";
/// Maximum steps of one claim: plan, create, look, adopt.
const STEPS_MAX: usize = 4;

/// Runs one tick to its end; returns how many trials were worked on.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let claimed = claim(app, usize::MAX).await?;
    let count = claimed.len();
    let all = futures::stream::iter(claimed);
    all.for_each_concurrent(SLOTS, |(trial, claimed_at)| {
        work_logged(app, trial, claimed_at)
    })
    .await;
    Ok(count)
}

/// The same for a loop: claims as many trials as there are free slots and works on them in separate
/// tasks, so that a trial with a hanging call to AWS does not hold up the others.
pub(super) async fn start(
    app: &App,
    aside: &TaskTracker,
    slots: &Arc<Semaphore>,
) -> Result<usize, StoreError> {
    let claimed = claim(app, slots.available_permits()).await?;
    let count = claimed.len();
    for (trial, claimed_at) in claimed {
        let (app, slot) = (app.clone(), slots.clone().acquire_owned().await);
        aside.spawn(async move {
            work_logged(&app, trial, claimed_at).await;
            drop(slot);
            // It may have made room in a quota pool.
            app.place.wake.notify_one();
        });
    }
    Ok(count)
}

/// Claims at most `room` trials, due ones and then those to be admitted; each with a time before
/// its lease began.
async fn claim(app: &App, room: usize) -> Result<Vec<(Claimed, Stopwatch)>, StoreError> {
    // Started before the claim is sent: the lease cannot begin earlier on the database's clock.
    let claimed_at = Stopwatch::start();
    let settings = &app.settings;
    let most = i64::try_from(room).unwrap_or(CLAIM_MAX).min(CLAIM_MAX);
    if most == 0 {
        return Ok(Vec::new());
    }
    let now = app.clock.now();
    if !app.place.newest.is_known()
        && let Some(listed_at) = app.store.last_listed().await?
    {
        // The clock may have been stepped back while no replica ran.
        app.place.newest.reached(listed_at);
    }
    let back = app.place.newest.step_back(now);
    let is_again = app.place.newest.is_to_be_handled_again(settings.lease);
    if back.is_some() || is_again {
        let woken = app
            .store
            .clock_stepped_back(now, settings.policy.quarantine)
            .await?;
        let seconds = back.map(|back| back.num_seconds());
        tracing::warn!(
            seconds,
            woken,
            is_again,
            "clock stepped back; checking everything again"
        );
    }
    if is_again {
        // Work without progress for that long has been given up. A process that is frozen for
        // longer is not covered, nor is reading the metrics of very many jobs.
        app.place
            .newest
            .has_been_handled_again(settings.patience() * 2);
    }
    app.place.newest.reached(now);
    let claimed = app.store.claim_due_trials(app.holder(), now, most).await?;
    let admitted_at = Stopwatch::start();
    // A failed admission must not leave trials already claimed waiting for their leases to expire.
    let admitted = admit(app, room - claimed.len().min(room))
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(%error, "admission failed; retrying");
            Vec::new()
        });
    let since = |trials: Vec<Claimed>, since: Stopwatch| {
        trials.into_iter().map(move |trial| (trial, since))
    };
    Ok(since(claimed, claimed_at)
        .chain(since(admitted, admitted_at))
        .collect())
}

async fn work_logged(app: &App, trial: Claimed, claimed_at: Stopwatch) {
    let lease = app.settings.lease;
    let held_since = HeldSince(Arc::new(Mutex::new(claimed_at)));
    let pulse = Pulse::default();
    let work = AssertUnwindSafe(work(app, &trial, &held_since, &pulse).boxed()).catch_unwind();
    // If the lease expired, another replica would start the same work over, just as slowly, and
    // neither would finish.
    let renew = || async {
        let asked = Stopwatch::start();
        let renewed = app.store.renew_claim(trial.id, trial.lease_token, lease);
        match renewed.await {
            Ok(true) => held_since.renewed(asked),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, trial = %trial.id, "renewing the lease on a trial failed");
            }
        }
    };
    let kept = meanwhile(lease / 3, work, renew);
    let Some(done) = pulse.patiently(app.settings.patience(), kept).await else {
        tracing::warn!(trial = %trial.id, "work on a trial timed out; its lease will expire");
        return;
    };
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, trial = %trial.id, "work on a trial failed; its lease will expire");
        }
        Err(_) => {
            tracing::error!(trial = %trial.id, "work on a trial panicked; its lease will expire");
        }
    }
}

/// Admits waiting trials in turn, as many as may be created now.
async fn admit(app: &App, room: usize) -> Result<Vec<Claimed>, StoreError> {
    let now = app.clock.now();
    let creates = app.place.aws.creates_available().min(ADMIT_MAX).min(room);
    if creates == 0
        || !app.fence.may_act(now)
        || app
            .store
            .next_waiting(&app.place.region)
            .await?
            .is_none_or(|at| at > now)
    {
        return Ok(Vec::new());
    }
    let think = |waiting: &[Waiting], capacity| queue::admit(waiting, capacity, now);
    app.store.admit(app.holder(), creates, now, think).await
}

/// The time from which the lease on a trial is certain: its start, or the last renewal.
#[derive(Clone)]
struct HeldSince(Arc<Mutex<Stopwatch>>);

impl HeldSince {
    fn renewed(&self, at: Stopwatch) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    fn elapsed(&self) -> Duration {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }

    /// Whether the lease is certainly still ours, to be asked by a call right before it leaves.
    fn holds(&self, lease: Duration) -> ClaimHolds {
        let since = self.clone();
        Arc::new(move || since.elapsed() < lease)
    }
}

#[tracing::instrument(name = "trial", skip_all, fields(trial = %trial.id))]
async fn work(
    app: &App,
    trial: &Claimed,
    held_since: &HeldSince,
    pulse: &Pulse,
) -> Result<(), StoreError> {
    crash::point("claimed");
    if let Some((owner, seconds)) = &trial.abandoned {
        tracing::warn!(trial = %trial.id, owner, seconds, "trial taken over; its last scheduler never released it");
        metrics::histogram!("bakeoff_takeover_seconds").record(*seconds);
        app.store
            .record_takeover(trial, owner, *seconds, app.clock.now())
            .await?;
    }
    let mut hand = ClaimedTrial {
        app,
        trial,
        attempt: trial.attempt.clone(),
        seen: Look::NotLooked,
        held_since,
        planned_here: None,
        image: None,
        ends_at: None,
        is_sent: true,
    };
    hand.load_scheduled_end().await?;
    let facts = hand.facts();
    if needs_look(trial.state, facts.as_ref(), app.clock.now()) {
        hand.look().await;
    }
    for _ in 0..STEPS_MAX {
        pulse.beat();
        let situation = Situation {
            trial: trial.state,
            stop_requested: trial.stop_requested,
            stop_reason: trial.stop_reason.clone(),
            attempt: hand.facts(),
            seen: hand.seen.clone(),
            now: app.clock.now(),
        };
        let decision = decide(&situation, &app.settings.policy);
        tracing::debug!(trial = %trial.id, ?decision, "decided");
        if !hand.carry_out(decision, situation.now).await? {
            return Ok(());
        }
    }
    app.store
        .release_lease(trial, app.clock.now() + app.settings.policy.poll, None)
        .await
}
