//! Stray jobs: they carry our marker, run, and no living attempt stands for them (a restored
//! backup; a create that arrived after its attempt was over). They are stopped until they are over,
//! and what they cost is booked. Nothing is adopted here.

use chrono::{DateTime, TimeDelta, Utc};

use crate::money::cost::STOP_GRACE_SECONDS;
use crate::sagemaker::observed::{Billing, JobStatus, ObservedJob, seconds_between};

/// SageMaker has denied knowing it for so long: it is gone. One denial may be a replica that lags.
const ABSENT: TimeDelta = TimeDelta::hours(1);
/// SageMaker has not let us look for so long: nobody will tell.
const UNREADABLE: TimeDelta = TimeDelta::hours(24);

/// What is stored of a stray job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrayFacts {
    pub found_at: DateTime<Utc>,
    /// When its attempt saw billing begin.
    pub started_at: Option<DateTime<Utc>>,
    /// When SageMaker last described it.
    pub last_seen_at: DateTime<Utc>,
    /// The longest that an instance of it can be billed, seconds: what an estimate never exceeds.
    pub longest_billed_seconds: u64,
}

/// What a look at it came to.
#[derive(Debug, Clone, Copy)]
pub enum StraySeen<'a> {
    Job(&'a ObservedJob),
    /// SageMaker says that there is no such job.
    Absent,
    /// No answer, or none that can be read.
    Unreadable,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrayDecision {
    Stop,
    LookAgain,
    /// It is over, and this was billed in its whole life.
    Settle(Billing),
}

/// Decides on one stray job.
pub fn decide(facts: &StrayFacts, seen: StraySeen<'_>, now: DateTime<Utc>) -> StrayDecision {
    let silent = now - facts.last_seen_at;
    match seen {
        StraySeen::Job(job) => match job.status {
            JobStatus::InProgress | JobStatus::Unknown(_) => StrayDecision::Stop,
            JobStatus::Stopping => StrayDecision::LookAgain,
            _ if job.status.is_over() && job.awaits_bill(now) => StrayDecision::LookAgain,
            JobStatus::Completed | JobStatus::Failed | JobStatus::Stopped => {
                StrayDecision::Settle(job.billing(facts.longest_billed_seconds, now))
            }
        },
        StraySeen::Absent if silent >= ABSENT => unknown_end(facts),
        StraySeen::Unreadable if silent >= UNREADABLE => unknown_end(facts),
        StraySeen::Absent | StraySeen::Unreadable => StrayDecision::LookAgain,
    }
}

/// Nobody will tell what it cost. Whoever last saw it had asked for its stop: billed to then, and
/// the grace on top.
fn unknown_end(facts: &StrayFacts) -> StrayDecision {
    let start = facts.started_at.unwrap_or(facts.found_at);
    let seconds = (seconds_between(start, facts.last_seen_at) + STOP_GRACE_SECONDS)
        .min(facts.longest_billed_seconds);
    StrayDecision::Settle(Billing {
        seconds,
        estimated: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn facts(started_at: Option<i64>) -> StrayFacts {
        StrayFacts {
            found_at: at(1000),
            started_at: started_at.map(at),
            last_seen_at: at(1600),
            longest_billed_seconds: 100_000,
        }
    }

    fn job(status: &str) -> ObservedJob {
        ObservedJob {
            ended_at: Some(at(700)),
            ..ObservedJob::sample("", JobStatus::parse(status), status, at(100))
        }
    }

    fn settled(seconds: u64, estimated: bool) -> StrayDecision {
        StrayDecision::Settle(Billing { seconds, estimated })
    }

    #[test]
    fn it_is_stopped_until_it_is_over_and_then_billed_as_told() {
        let look = |job: &ObservedJob| decide(&facts(None), StraySeen::Job(job), at(2000));
        assert_eq!(look(&job("InProgress")), StrayDecision::Stop);
        assert_eq!(look(&job("Stopping")), StrayDecision::LookAgain);
        assert_eq!(
            look(&job("Dreaming")),
            StrayDecision::Stop,
            "not over, whatever it means"
        );
        assert_eq!(
            look(&ObservedJob {
                billable_seconds: Some(42),
                ..job("Stopped")
            }),
            settled(42, false)
        );
        assert_eq!(
            look(&job("Failed")),
            settled(600, true),
            "no figure: the time that it ran"
        );
        let just_over = decide(&facts(None), StraySeen::Job(&job("Failed")), at(900));
        assert_eq!(
            just_over,
            StrayDecision::LookAgain,
            "the figure may yet come"
        );
    }

    #[test]
    fn one_that_vanished_is_billed_to_when_it_was_last_seen_and_never_nothing() {
        let absent = |started, now| decide(&facts(started), StraySeen::Absent, at(now));
        assert_eq!(
            absent(None, 1700),
            StrayDecision::LookAgain,
            "one denial may be wrong"
        );
        assert_eq!(
            absent(None, 1600 + 3600),
            settled(600 + 120, true),
            "since it was found"
        );
        assert_eq!(
            absent(Some(100), 1600 + 3600),
            settled(1500 + 120, true),
            "since it started"
        );
        let unreadable = |now| decide(&facts(None), StraySeen::Unreadable, at(now));
        assert_eq!(unreadable(1600 + 3600), StrayDecision::LookAgain);
        assert_eq!(unreadable(1600 + 86_400), settled(720, true));
    }
}
