//! The end that an endpoint has at AWS, by a schedule that deletes it without us: when it is, and what is done so
//! that it stays right. The schedule exists before the endpoint does; what is decided here is about one that is
//! billed.

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};

use crate::money::{Usd, cost};

/// How long after the end of its time to live: the service deletes it itself, and knows to the second when.
const AFTER_EXPIRY: TimeDelta = TimeDelta::minutes(5);
/// How often AWS is asked whether the schedule is still what it was: a person may have deleted it.
const CHECK_EVERY: TimeDelta = TimeDelta::hours(1);
/// When it is tried again after a definite refusal.
const REFUSED_FOR: TimeDelta = TimeDelta::hours(1);
/// A schedule is carried out within a minute of its time (EventBridge Scheduler user guide, "Schedule types").
const CARRIED_OUT_WITHIN: TimeDelta = TimeDelta::minutes(2);

/// What is stored of the end at AWS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndFacts {
    /// Whether its deletion was asked for, or it is over.
    pub is_ending: bool,
    /// Once it serves.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it must be deleted so that what is reserved for it is enough; once it is billed.
    pub latest_end: Option<DateTime<Utc>>,
    /// As AWS has confirmed it.
    pub confirmed: Option<DateTime<Utc>>,
    /// A change was sent, and its answer is not known.
    pub is_in_doubt: bool,
    /// Whether AWS has refused the last change.
    pub is_refused: bool,
    /// When AWS was last asked about it.
    pub tried_at: Option<DateTime<Utc>>,
    /// When it was looked at, if it was there then and not being deleted.
    pub seen_at: Option<DateTime<Utc>>,
}

impl EndFacts {
    /// Whether AWS has presumably ended it: its schedule was due, and it has not been seen since. A new schedule would
    /// make it appear to have been billed for longer.
    pub fn has_ended(&self, now: DateTime<Utc>) -> bool {
        let Some(end) = self.confirmed.filter(|end| *end <= now) else {
            return false;
        };
        self.seen_at
            .is_none_or(|seen| seen < end + CARRIED_OUT_WITHIN)
    }
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndStep {
    Nothing,
    /// Have it end then, whatever is scheduled.
    Move {
        to: DateTime<Utc>,
    },
    /// Ask whether it still ends then.
    Check {
        at: DateTime<Utc>,
    },
}

/// When AWS is to end it: never later than what is reserved lasts.
fn wanted(facts: &EndFacts) -> Option<DateTime<Utc>> {
    let latest = facts.latest_end?;
    let end = match (facts.expires_at, facts.confirmed) {
        (Some(end), _) => end + AFTER_EXPIRY,
        // That of its creation, until it serves.
        (None, Some(confirmed)) => confirmed,
        (None, None) => latest,
    };
    Some(end.min(latest).trunc_subsecs(0))
}

/// Decides the next step.
pub fn decide_end(facts: &EndFacts, now: DateTime<Utc>) -> EndStep {
    if facts.is_ending || facts.has_ended(now) {
        return EndStep::Nothing;
    }
    let Some(to) = wanted(facts).filter(|to| *to > now) else {
        return EndStep::Nothing;
    };
    let waits = |time: TimeDelta| facts.tried_at.is_some_and(|at| now < at + time);
    if facts.confirmed != Some(to) || facts.is_in_doubt {
        if facts.is_refused && waits(REFUSED_FOR) {
            return EndStep::Nothing;
        }
        return EndStep::Move { to };
    }
    if waits(CHECK_EVERY) {
        EndStep::Nothing
    } else {
        EndStep::Check { at: to }
    }
}

/// What an endpoint without an end at AWS costs for each day that the service is away.
pub fn usd_per_day_absent(usd_per_hour: Usd, instance_count: u32) -> Usd {
    cost::training(86_400, instance_count, usd_per_hour)
}

/// The same in a sentence.
pub fn no_end(usd_per_day: Usd) -> String {
    format!(
        "no end at AWS: each day that the service is away costs {usd_per_day} beyond the reservation"
    )
}

/// The same where its type or its price is not known yet.
pub const NO_END: &str =
    "no end at AWS: while the service is away, it costs its price beyond the reservation";
/// What ends one that is not created yet.
pub const SCHEDULED: &str = "AWS itself ends it, by a schedule that is made before it is created";
/// What mends it where the service has no role for it.
pub const NO_ROLE: &str =
    "Start the service with --scheduler-role-arn: the role of deploy/iam/scheduler.json";
/// Of an installation that creates nothing without one.
pub const REQUIRED: &str =
    "This installation creates nothing without an end at AWS (--require-scheduled-end)";
/// What mends it where AWS refuses.
pub const REFUSED: &str = "Allow the service scheduler:CreateSchedule, and iam:PassRole of the scheduler's role \
     (deploy/iam/control-plane.json); `bakeoff doctor` shows which is missing";

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

    #[expect(
        clippy::unnecessary_wraps,
        reason = "all members that it fills are optional"
    )]
    fn at(minutes: i64) -> Option<DateTime<Utc>> {
        Some(NOW + TimeDelta::minutes(minutes))
    }

    fn facts() -> EndFacts {
        EndFacts {
            is_ending: false,
            expires_at: at(60),
            latest_end: at(120),
            confirmed: at(65),
            is_in_doubt: false,
            is_refused: false,
            tried_at: Some(NOW),
            seen_at: Some(NOW),
        }
    }

    #[test]
    fn one_that_has_ended_is_given_no_later_end_unless_it_is_seen_alive() {
        let extended = |seen_at| EndFacts {
            expires_at: at(110),
            confirmed: at(65),
            seen_at,
            ..facts()
        };
        let now = NOW + TimeDelta::minutes(80);
        for seen_at in [None, at(64), at(66)] {
            let step = decide_end(&extended(seen_at), now);
            assert_eq!(step, EndStep::Nothing, "{seen_at:?}");
        }
        let moved = EndStep::Move {
            to: NOW + TimeDelta::minutes(115),
        };
        assert_eq!(decide_end(&extended(at(79)), now), moved);
        let before = NOW + TimeDelta::minutes(64);
        assert_eq!(decide_end(&extended(None), before), moved);
    }

    #[test]
    fn the_end_is_moved_until_it_is_as_wanted() {
        assert_eq!(decide_end(&facts(), NOW), EndStep::Nothing);
        let moved = EndStep::Move {
            to: NOW + TimeDelta::minutes(65),
        };
        for confirmed in [None, at(120), at(30)] {
            let other = EndFacts {
                confirmed,
                ..facts()
            };
            assert_eq!(decide_end(&other, NOW), moved, "{confirmed:?}");
        }
        let in_doubt = EndFacts {
            is_in_doubt: true,
            ..facts()
        };
        assert_eq!(decide_end(&in_doubt, NOW), moved);
        let refused = EndFacts {
            is_refused: true,
            ..in_doubt
        };
        assert_eq!(decide_end(&refused, NOW), EndStep::Nothing);
        assert_eq!(decide_end(&refused, NOW + REFUSED_FOR), moved, "once more");
    }

    #[test]
    fn the_end_is_never_later_than_what_is_reserved() {
        for (expires_at, confirmed) in [(at(118), None), (at(600), at(600)), (None, None)] {
            let facts = EndFacts {
                expires_at,
                confirmed,
                ..facts()
            };
            let to = NOW + TimeDelta::minutes(120);
            assert_eq!(decide_end(&facts, NOW), EndStep::Move { to });
        }
    }

    #[test]
    fn a_schedule_is_looked_at_each_hour_and_left_alone_at_the_end() {
        let long = EndFacts {
            expires_at: at(600),
            latest_end: at(900),
            confirmed: at(605),
            ..facts()
        };
        let later = NOW + CHECK_EVERY;
        let at = NOW + TimeDelta::minutes(605);
        assert_eq!(decide_end(&long, later), EndStep::Check { at });
        for over in [
            EndFacts {
                is_ending: true,
                ..long
            },
            EndFacts {
                latest_end: None,
                ..long
            },
        ] {
            assert_eq!(decide_end(&over, later), EndStep::Nothing);
        }
        assert_eq!(
            decide_end(&long, NOW + TimeDelta::minutes(605)),
            EndStep::Nothing
        );
    }
}
