//! How long it took others to take over what a dead or frozen replica held.

use std::sync::PoisonError;
use std::time::SystemTime;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::{Verdict, text};
use crate::storm::course::Ground;
use crate::storm::stage::{End, Stage};

/// How long a restarted replica takes to come up.
const RESTART: TimeDelta = TimeDelta::seconds(2);

/// Seconds within which others must have taken over, on any machine; the usual time is asserted
/// over all seeds together.
const RECOVERY_MAX: i64 = 20;

/// A trial that another replica took over.
pub(super) struct Takeover {
    /// Virtual time.
    at: DateTime<Utc>,
    /// The process that held it before.
    pid: u32,
}

pub(super) fn takeover(event: &Value) -> Option<Takeover> {
    // host/pid/unique
    let owner = event["data"]["owner"].as_str()?;
    Some(Takeover {
        at: text(&event["recorded_at"]).parse().ok()?,
        pid: owner.rsplit('/').nth(1)?.parse().ok()?,
    })
}

pub(super) fn count(stage: &Stage, ground: &Ground, takeovers: &[Takeover], verdict: &mut Verdict) {
    for takeover in takeovers {
        let Some((end, waited)) = recovery(stage, ground, takeover) else {
            continue;
        };
        let seconds = waited.as_seconds_f64();
        if waited > TimeDelta::seconds(RECOVERY_MAX) {
            verdict.lost += 1;
            verdict.is_late = true;
            verdict.notes.push(format!(
                "what process {} held was taken over after {seconds:.1} s",
                takeover.pid
            ));
        }
        let of = if end == End::Killed {
            &mut verdict.recoveries
        } else {
            &mut verdict.thaws
        };
        of.push(seconds);
    }
}

/// How the previous holder ended, and the time from then to the takeover. `None` when it did not
/// end, or when nobody had a chance: Postgres was down, or another replica was killed or stopped
/// meanwhile.
fn recovery(stage: &Stage, ground: &Ground, takeover: &Takeover) -> Option<(End, TimeDelta)> {
    let Takeover { at, pid } = takeover;
    let taken = stage.real(*at);
    // Before its death it can have lost a lease because a call took too long: that is no recovery.
    let own = stage
        .deaths
        .iter()
        .filter(|death| death.pid == *pid && DateTime::<Utc>::from(death.at) <= taken);
    let death = own.max_by_key(|death| death.at)?;
    // A frozen replica without others takes over from itself when it continues.
    if death.end == End::Frozen && stage.replicas.len() == 1 {
        return None;
    }
    // Once it has continued it is alive: what it loses later is no takeover of what it held then.
    let own_freeze = stage
        .freezes
        .iter()
        .find(|freeze| freeze.pid == *pid && freeze.from == death.at);
    if own_freeze.is_some_and(|freeze| taken > DateTime::<Utc>::from(freeze.to) + RESTART) {
        return None;
    }
    let died = DateTime::<Utc>::from(death.at);
    let outages = ground
        .outages
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    // Disturbances after the time limit are no excuse: others should have taken over by then.
    let until = taken.min(died + TimeDelta::seconds(RECOVERY_MAX));
    let overlaps = |from: SystemTime, to: SystemTime| {
        DateTime::<Utc>::from(from) < until && died < DateTime::<Utc>::from(to)
    };
    let was_disturbed = outages.iter().any(|(from, to)| overlaps(*from, *to))
        || stage.hindrances().any(|(from, to)| overlaps(from, to))
        || stage
            .freezes
            .iter()
            .any(|freeze| freeze.pid != *pid && overlaps(freeze.from, freeze.to));
    let others = stage.deaths.iter().any(|other| {
        let when = DateTime::<Utc>::from(other.at);
        other.pid != *pid && died - RESTART < when && when < until
    });
    (!was_disturbed && !others).then(|| (death.end, taken - died))
}
