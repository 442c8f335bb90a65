//! The scheduler: claim → look → decide → act → apply. It has no choices of its own: what to do is
//! [`bakeoff_domain::lifecycle::decide`]'s, how to write it is `store::attempts`'.
//!
//! On a crash between "create" and "record" the attempt's row is there (it was committed first), so
//! the next claim sends the same create again, is told that the name is taken, finds our marker on
//! the job, and adopts it.

mod hand;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bakeoff_domain::lifecycle::decide::{Seen, Situation, decide, needs_look};
use bakeoff_domain::lifecycle::queue::{self, Waiting};
use chrono::TimeDelta;
use futures::{FutureExt, StreamExt};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use self::hand::Hand;
use crate::app::App;
use crate::clock::Stopwatch;
use crate::crash;
use crate::pulse::{Pulse, meanwhile};
use crate::store::StoreError;
use crate::store::trials::Claimed;

/// Trials claimed in one tick.
const CLAIM_MAX: i64 = 64;
/// Trials admitted in one tick.
const ADMIT_MAX: usize = 64;
/// Worked on at once.
pub(super) const SLOTS: usize = 32;
/// How long an earlier job of a trial that turned up late holds the next one back.
const EARLIER_JOB_HOLDS: TimeDelta = TimeDelta::hours(1);
const UNREADABLE: &str = "its stored plan cannot be read by this version of Bakeoff; go back to the one that wrote it, then resume";
const EARLIER_JOB: &str = "held back: an earlier job of this trial is still being stopped";
/// Plan, create, look, adopt: what one claim can go through.
const STEPS_MAX: usize = 4;

/// One tick, to its end; returns how many trials were worked on.
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

/// The same for a loop: as many trials as there are free slots are claimed and worked on aside, so
/// that one whose call to AWS hangs keeps nobody else waiting.
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
        });
    }
    Ok(count)
}

/// Trials that are due, and those whose turn it is, at most `room`; each with the moment before its
/// lease began.
async fn claim(app: &App, room: usize) -> Result<Vec<(Claimed, Stopwatch)>, StoreError> {
    // Taken before the claim is sent: the lease cannot have begun earlier than the database says.
    let claimed_at = Stopwatch::start();
    let settings = &app.settings;
    let most = i64::try_from(room).unwrap_or(CLAIM_MAX).min(CLAIM_MAX);
    if most == 0 {
        return Ok(Vec::new());
    }
    let now = app.clock.now();
    if !app.newest.is_known()
        && let Some(listed_at) = app.store.last_listed().await?
    {
        // It may have been stepped back while nobody ran.
        app.newest.reached(listed_at);
    }
    if let Some(back) = app.newest.step_back(now) {
        let woken = app
            .store
            .clock_stepped_back(now, settings.policy.quarantine)
            .await?;
        tracing::warn!(
            seconds = back.num_seconds(),
            woken,
            "the clock was stepped back; all is looked at anew"
        );
    }
    app.newest.reached(now);
    let claimed = app
        .store
        .claim_due_trials(&settings.owner, settings.lease, now, most)
        .await?;
    let admitted_at = Stopwatch::start();
    // Whoever is claimed already must not wait for a lease to run out because nobody can be
    // admitted.
    let admitted = admit(app, room - claimed.len().min(room))
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(%error, "nobody could be admitted; trying again");
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
    let held_since = HeldSince(Mutex::new(claimed_at));
    let work = AssertUnwindSafe(work(app, &trial, &held_since).boxed()).catch_unwind();
    // If it expired, another replica would start the same work over, just as slowly, and no one
    // would finish.
    let renew = || async {
        let asked = Stopwatch::start();
        match app.store.renew_claim(&trial, lease).await {
            Ok(true) => held_since.renewed(asked),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, trial = %trial.id, "the lease on a trial could not be renewed");
            }
        }
    };
    let kept = meanwhile(lease / 3, work, renew);
    let Some(done) = Pulse::default()
        .patiently(app.settings.patience(), kept)
        .await
    else {
        tracing::warn!(trial = %trial.id, "work on a trial got no answer and is given up; its lease will pass on");
        return;
    };
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, trial = %trial.id, "a trial could not be worked on; its lease will pass on");
        }
        Err(_) => {
            tracing::error!(trial = %trial.id, "work on a trial panicked; its lease will pass on");
        }
    }
}

/// Whose turn it is among those that wait, as many as may be created now.
async fn admit(app: &App, room: usize) -> Result<Vec<Claimed>, StoreError> {
    let now = app.clock.now();
    let creates = app.aws.creates_available().min(ADMIT_MAX).min(room);
    if creates == 0
        || !app.fence.may_act(now)
        || app.store.next_waiting().await?.is_none_or(|at| at > now)
    {
        return Ok(Vec::new());
    }
    let holder = app.settings.holder();
    let think = |waiting: &[Waiting], capacity| queue::admit(waiting, capacity, now);
    app.store.admit(holder, creates, now, think).await
}

/// Since when the lease on a trial is certain: its begin, or the last renewal.
struct HeldSince(Mutex<Stopwatch>);

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
}

async fn work(app: &App, trial: &Claimed, held_since: &HeldSince) -> Result<(), StoreError> {
    crash::point("claimed");
    if let Some((owner, seconds)) = &trial.abandoned {
        tracing::warn!(trial = %trial.id, owner, seconds, "its last scheduler never gave it back; taken over");
        metrics::histogram!("bakeoff_takeover_seconds").record(*seconds);
        app.store
            .record_takeover(trial, owner, *seconds, app.clock.now())
            .await?;
    }
    let mut hand = Hand {
        app,
        trial,
        attempt: trial.attempt.clone(),
        seen: Seen::NotLooked,
        held_since,
        planned_here: None,
    };
    let facts = hand.facts();
    if needs_look(trial.state, facts.as_ref(), app.clock.now()) {
        hand.look().await;
    }
    for _ in 0..STEPS_MAX {
        let situation = Situation {
            trial: trial.state,
            stop_requested: trial.stop_requested,
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
