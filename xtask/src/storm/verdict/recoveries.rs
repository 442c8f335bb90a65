//! How long what a dead or frozen replica held stayed with it, until others took it over.

use std::sync::PoisonError;
use std::time::SystemTime;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::{Verdict, text};
use crate::storm::course::Ground;
use crate::storm::stage::{End, Stage};

/// A replica that is started again is there after this long.
const RESTART: TimeDelta = TimeDelta::seconds(2);

/// Seconds after which others have to have taken over, on any machine; what is usual is asserted of
/// all seeds together.
const RECOVERY_MAX: i64 = 20;

/// Somebody took a trial over.
pub(super) struct Takeover {
    /// Virtual time.
    at: DateTime<Utc>,
    /// Of the process that had held it.
    pid: u32,
}

pub(super) fn takeover(event: &Value) -> Option<Takeover> {
    // host/pid/unique
    let message = text(&event["message"]);
    let (owner, _) = message.rsplit_once(" did not")?;
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

/// From a death to the takeover, and how it ended; `None` when nobody died, or when there was no
/// chance: Postgres was away, or another replica was killed or stopped meanwhile.
fn recovery(stage: &Stage, ground: &Ground, takeover: &Takeover) -> Option<(End, TimeDelta)> {
    let Takeover { at, pid } = takeover;
    let taken = stage.real(*at);
    // Before its death it can have lost a lease by a call that took too long: that is no recovery.
    let own = stage
        .deaths
        .iter()
        .filter(|death| death.pid == *pid && DateTime::<Utc>::from(death.at) <= taken);
    let death = own.max_by_key(|death| death.at)?;
    // Alone, whoever froze takes over from itself once it goes on.
    if death.end == End::Frozen && stage.replicas.len() == 1 {
        return None;
    }
    // Once it has gone on it is one of the living: what it loses later is no takeover of what it
    // held then.
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
    // What comes later than anybody has to wait is no excuse: others should have been there.
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
