//! Orphaned jobs: running jobs with our marker that no living attempt stands for (a restored
//! backup; a create that arrived after its attempt was over). They are stopped until they are over,
//! and their cost is booked. Nothing is adopted here.

use chrono::{DateTime, TimeDelta, Utc};

use crate::money::cost::STOP_GRACE_SECONDS;
use crate::sagemaker::observed::{Billing, JobStatus, ObservedJob, seconds_between};

/// After SageMaker has reported no such job for this long, the job is gone. A single such reply may
/// come from a lagging replica.
const ABSENT: TimeDelta = TimeDelta::hours(1);
/// After the job has been unreadable for this long, its cost will never be reported.
const UNREADABLE: TimeDelta = TimeDelta::hours(24);
/// A bill that has not arrived this long after the end will not arrive.
const BILL_COMES_WITHIN: TimeDelta = TimeDelta::hours(24);

/// Stored facts about an orphaned job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphanFacts {
    pub found_at: DateTime<Utc>,
    /// When its attempt saw billing begin.
    pub started_at: Option<DateTime<Utc>>,
    /// When SageMaker last described it.
    pub last_seen_at: DateTime<Utc>,
    /// The longest time that an instance of it can be billed, seconds, where SageMaker has a limit; an estimate
    /// never exceeds it.
    pub longest_billed_seconds: u64,
    /// The seconds booked for it, if they are an estimate: another estimate that is no higher adds nothing.
    pub estimated_seconds: Option<u64>,
}

/// The result of polling an orphaned job.
#[derive(Debug, Clone, Copy)]
pub enum OrphanSeen<'a> {
    Job(&'a ObservedJob),
    /// SageMaker reports no such job.
    Absent,
    /// No answer, or an unreadable one.
    Unreadable,
}

/// What to do about an orphaned job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanDecision {
    Stop,
    LookAgain,
    /// It is over, and this is the bill for its whole life.
    Settle(Billing),
}

/// The attempt of a job, settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledAttempt {
    pub settled_at: DateTime<Utc>,
    /// It was settled as one that never had a job.
    pub never_created: bool,
}

/// What a job of ours is that no living attempt stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// It runs, or ran, without a reservation: stopped, billed, and an alarm.
    Orphan,
    /// It had ended when its attempt was settled, with an estimate: only its bill is corrected.
    LateBill,
}

/// Classifies a job that no living attempt stands for, from its attempt, if that has a row.
pub fn classify(attempt: Option<&SettledAttempt>, job: &ObservedJob) -> Sighting {
    let Some(attempt) = attempt.filter(|attempt| !attempt.never_created) else {
        return Sighting::Orphan;
    };
    match job.status {
        JobStatus::InProgress | JobStatus::Stopping => Sighting::Orphan,
        // A job with an end is over, however unheard-of its status.
        JobStatus::Unknown(_)
        | JobStatus::Completed
        | JobStatus::Failed
        | JobStatus::Stopped
        | JobStatus::Deleting => match job.ended_at {
            Some(end) if end <= attempt.settled_at => Sighting::LateBill,
            Some(_) | None => Sighting::Orphan,
        },
    }
}

/// Decides the next action for one orphaned job.
pub fn decide(facts: &OrphanFacts, seen: OrphanSeen<'_>, now: DateTime<Utc>) -> OrphanDecision {
    let silent = now - facts.last_seen_at;
    match seen {
        OrphanSeen::Job(job) => match job.status {
            JobStatus::Unknown(_) if job.ended_at.is_some() => OrphanDecision::LookAgain,
            JobStatus::InProgress | JobStatus::Unknown(_) => OrphanDecision::Stop,
            JobStatus::Stopping => OrphanDecision::LookAgain,
            _ if job.status.is_over() && job.awaits_bill(now) => OrphanDecision::LookAgain,
            JobStatus::Completed | JobStatus::Failed | JobStatus::Stopped | JobStatus::Deleting => {
                let billing = job.billing(facts.longest_billed_seconds, now);
                let may_come = job
                    .ended_at
                    .is_some_and(|end| now < end + BILL_COMES_WITHIN);
                let says_no_more =
                    billing.estimated && facts.estimated_seconds >= Some(billing.seconds);
                if says_no_more && may_come {
                    return OrphanDecision::LookAgain;
                }
                OrphanDecision::Settle(billing)
            }
        },
        OrphanSeen::Absent if silent >= ABSENT => unknown_end(facts),
        OrphanSeen::Unreadable if silent >= UNREADABLE => unknown_end(facts),
        OrphanSeen::Absent | OrphanSeen::Unreadable => OrphanDecision::LookAgain,
    }
}

/// Settles a job whose cost will never be reported. Its stop had been requested when it was last
/// seen, so it is billed until then, plus the grace period.
fn unknown_end(facts: &OrphanFacts) -> OrphanDecision {
    let start = facts.started_at.unwrap_or(facts.found_at);
    let seconds = (seconds_between(start, facts.last_seen_at) + STOP_GRACE_SECONDS)
        .min(facts.longest_billed_seconds);
    OrphanDecision::Settle(Billing {
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

    fn facts(started_at: Option<i64>) -> OrphanFacts {
        OrphanFacts {
            found_at: at(1000),
            started_at: started_at.map(at),
            last_seen_at: at(1600),
            longest_billed_seconds: 100_000,
            estimated_seconds: None,
        }
    }

    fn job(status: &str) -> ObservedJob {
        ObservedJob {
            ended_at: Some(at(700)),
            ..ObservedJob::sample("", JobStatus::parse(status), status, at(100))
        }
    }

    fn settled(seconds: u64, estimated: bool) -> OrphanDecision {
        OrphanDecision::Settle(Billing { seconds, estimated })
    }

    #[test]
    fn it_is_stopped_until_it_is_over_and_then_billed_as_told() {
        let look = |job: &ObservedJob| decide(&facts(None), OrphanSeen::Job(job), at(2000));
        assert_eq!(look(&job("InProgress")), OrphanDecision::Stop);
        assert_eq!(look(&job("Stopping")), OrphanDecision::LookAgain);
        let dreaming = ObservedJob {
            ended_at: None,
            ..job("Dreaming")
        };
        assert_eq!(
            look(&dreaming),
            OrphanDecision::Stop,
            "not over, whatever it means"
        );
        assert_eq!(
            look(&job("Dreaming")),
            OrphanDecision::LookAgain,
            "it has an end: there is nothing to stop"
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
        let just_over = decide(&facts(None), OrphanSeen::Job(&job("Failed")), at(900));
        assert_eq!(
            just_over,
            OrphanDecision::LookAgain,
            "the figure may yet come"
        );
    }

    #[test]
    fn an_estimate_is_replaced_by_what_sagemaker_tells_and_by_no_other_estimate() {
        let facts = OrphanFacts {
            estimated_seconds: Some(600),
            ..facts(None)
        };
        let look = |job: &ObservedJob, now| decide(&facts, OrphanSeen::Job(job), at(now));
        let silent = job("Stopped");
        assert_eq!(look(&silent, 2000), OrphanDecision::LookAgain);
        let told = ObservedJob {
            billable_seconds: Some(42),
            ..job("Stopped")
        };
        assert_eq!(look(&told, 2000), settled(42, false));
        assert_eq!(look(&silent, 700 + 86_400), settled(600, true));
        // It ran on after its attempt: that is booked, and may pause what it belongs to.
        let longer = ObservedJob {
            ended_at: Some(at(1000)),
            ..job("Stopped")
        };
        assert_eq!(look(&longer, 2000), settled(900, true));
    }

    #[test]
    fn an_alarm_is_raised_only_for_a_job_that_ran_after_its_attempt() {
        let settled = |never_created| SettledAttempt {
            settled_at: at(800),
            never_created,
        };
        let class =
            |attempt: Option<SettledAttempt>, job: &ObservedJob| classify(attempt.as_ref(), job);
        for status in ["Completed", "Failed", "Stopped", "Deleting", "Dreaming"] {
            let ended_at_700 = job(status);
            assert_eq!(
                class(Some(settled(false)), &ended_at_700),
                Sighting::LateBill
            );
            assert_eq!(
                class(Some(settled(true)), &ended_at_700),
                Sighting::Orphan,
                "{status}: a job that was taken not to exist"
            );
            assert_eq!(class(None, &ended_at_700), Sighting::Orphan, "{status}");
            let ended_later = ObservedJob {
                ended_at: Some(at(900)),
                ..job(status)
            };
            assert_eq!(class(Some(settled(false)), &ended_later), Sighting::Orphan);
        }
        for status in ["InProgress", "Stopping"] {
            assert_eq!(class(Some(settled(false)), &job(status)), Sighting::Orphan);
        }
    }

    #[test]
    fn one_that_vanished_is_billed_to_when_it_was_last_seen_and_never_nothing() {
        let absent = |started, now| decide(&facts(started), OrphanSeen::Absent, at(now));
        assert_eq!(
            absent(None, 1700),
            OrphanDecision::LookAgain,
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
        let unreadable = |now| decide(&facts(None), OrphanSeen::Unreadable, at(now));
        assert_eq!(unreadable(1600 + 3600), OrphanDecision::LookAgain);
        assert_eq!(unreadable(1600 + 86_400), settled(720, true));
    }
}
