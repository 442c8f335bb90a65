//! Warm pools: instances that a job leaves behind for the next matching job. A pool is kept while a
//! waiting trial matches it and ended at once otherwise; its cost is settled when SageMaker reports
//! how long it was retained.
//!
//! Rules: SageMaker developer guide, "Train using SageMaker managed warm pools";
//! DescribeTrainingJob, WarmPoolStatus.

use chrono::{DateTime, TimeDelta, Utc};

use crate::lifecycle::policy::Policy;
use crate::sagemaker::observed::{WarmPool, WarmPoolStatus, seconds_between};
use crate::sagemaker::request::TrainingJobRequest;

/// Maximum KeepAlivePeriodInSeconds (CreateTrainingJob's model: 0 to 21600).
pub const KEEP_ALIVE_SECONDS_MAX: u32 = 21_600;
/// How long SageMaker may take to end a pool and to report its cost.
const REPORT_ALLOWANCE: TimeDelta = TimeDelta::minutes(30);

/// Seconds that an unattended pool may have cost: as reported; unlimited while it is idle; 1 if
/// nothing is reported, since the pool may not be visible yet.
pub fn may_cost_seconds(told: Option<&WarmPool>) -> u64 {
    match told {
        Some(pool) if pool.is_idle() => u64::MAX,
        told => told.and_then(|pool| pool.retained_seconds).unwrap_or(1),
    }
}

/// The settings that SageMaker compares before a job may use a pool (developer guide, "Matching
/// training jobs").
pub fn match_key(request: &TrainingJobRequest) -> Option<String> {
    request.keep_alive_seconds.filter(|seconds| *seconds > 0)?;
    Some(format!(
        "{}|{}|{}|{}",
        request.instance_type, request.instance_count, request.volume_size_gb, request.role_arn
    ))
}

/// Stored facts about a pool whose job is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolFacts {
    pub keep_alive_seconds: u32,
    pub job_ended_at: DateTime<Utc>,
    /// A matching trial is waiting, and may create its job: one in quarantine may not for longer
    /// than the instances are worth keeping.
    pub is_wanted: bool,
    /// Consecutive polls that showed no pool, or no job.
    pub absent: u32,
}

/// What polling the pool's job showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolSeen {
    /// The job exists but reports no pool: there was none, or SageMaker does not show it yet.
    NoPool,
    Pool(WarmPool),
    /// The job is gone.
    Absent,
    NoAnswer,
}

/// What to do about a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolDecision {
    LookAgain {
        at: DateTime<Utc>,
    },
    /// Set its keep-alive to zero, and poll again.
    Terminate,
    /// Settle its cost and release the reservation.
    Settle {
        retained_seconds: u64,
        estimated: bool,
    },
}

/// Decides the next action for a pool.
pub fn decide(
    facts: &PoolFacts,
    seen: &PoolSeen,
    now: DateTime<Utc>,
    policy: &Policy,
) -> PoolDecision {
    let soon = PoolDecision::LookAgain {
        at: now + policy.poll,
    };
    let retained = seconds_between(facts.job_ended_at, now);
    let at_most = retained.min(u64::from(facts.keep_alive_seconds));
    let is_overdue = now
        > facts.job_ended_at
            + TimeDelta::seconds(facts.keep_alive_seconds.into())
            + REPORT_ALLOWANCE;
    match seen {
        // A single answer may come from a lagging replica, and a pool waiting behind it is billed.
        PoolSeen::NoPool | PoolSeen::Absent if facts.absent < policy.absent_max => soon,
        PoolSeen::NoPool => PoolDecision::Settle {
            retained_seconds: 0,
            estimated: false,
        },
        PoolSeen::Absent => PoolDecision::Settle {
            retained_seconds: at_most,
            estimated: true,
        },
        PoolSeen::Pool(pool) => match (&pool.status, pool.retained_seconds) {
            (WarmPoolStatus::Available, _) if facts.is_wanted => soon,
            (WarmPoolStatus::Available, _) => PoolDecision::Terminate,
            (WarmPoolStatus::Reused | WarmPoolStatus::Terminated, Some(seconds)) => {
                PoolDecision::Settle {
                    retained_seconds: seconds,
                    estimated: false,
                }
            }
            // Still in use, or of an unknown status: nothing is kept beyond the keep-alive period.
            (
                WarmPoolStatus::Reused
                | WarmPoolStatus::Terminated
                | WarmPoolStatus::InUse
                | WarmPoolStatus::Unknown(_),
                told,
            ) if is_overdue => PoolDecision::Settle {
                retained_seconds: told.unwrap_or(at_most),
                estimated: true,
            },
            (
                WarmPoolStatus::Reused
                | WarmPoolStatus::Terminated
                | WarmPoolStatus::InUse
                | WarmPoolStatus::Unknown(_),
                _,
            ) => soon,
        },
        PoolSeen::NoAnswer => soon,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(status: WarmPoolStatus, retained_seconds: Option<u64>) -> PoolSeen {
        PoolSeen::Pool(WarmPool {
            status,
            retained_seconds,
            reused_by: None,
        })
    }

    fn decided(is_wanted: bool, seen: &PoolSeen) -> PoolDecision {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let policy = Policy::default();
        let job_ended_at = now - TimeDelta::seconds(100);
        let facts = PoolFacts {
            keep_alive_seconds: 1800,
            job_ended_at,
            is_wanted,
            absent: policy.absent_max,
        };
        decide(&facts, seen, now, &policy)
    }

    /// A pool that shows a job long finished, or an unknown status, is not polled for ever.
    #[test]
    fn a_pool_is_settled_after_its_time_whatever_is_told_of_it() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let facts = PoolFacts {
            keep_alive_seconds: 1800,
            job_ended_at: now - TimeDelta::days(1),
            is_wanted: true,
            absent: 0,
        };
        for status in [
            WarmPoolStatus::InUse,
            WarmPoolStatus::Unknown("Dreaming".to_owned()),
        ] {
            let decision = decide(&facts, &seen(status, None), now, &Policy::default());
            let settled = PoolDecision::Settle {
                retained_seconds: 1800,
                estimated: true,
            };
            assert_eq!(decision, settled);
        }
    }

    #[test]
    fn one_answer_without_a_pool_ends_nothing() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let job_ended_at = now - TimeDelta::seconds(100);
        let facts = PoolFacts {
            keep_alive_seconds: 1800,
            job_ended_at,
            is_wanted: false,
            absent: 0,
        };
        for seen in [PoolSeen::NoPool, PoolSeen::Absent] {
            let decision = decide(&facts, &seen, now, &Policy::default());
            assert!(
                matches!(decision, PoolDecision::LookAgain { .. }),
                "{decision:?}"
            );
        }
    }

    #[test]
    fn a_pool_that_waits_or_is_not_told_of_may_cost_more_than_is_booked() {
        let told = |status, retained_seconds| {
            may_cost_seconds(Some(&WarmPool {
                status,
                retained_seconds,
                reused_by: None,
            }))
        };
        assert_eq!(told(WarmPoolStatus::Available, Some(5)), u64::MAX);
        assert_eq!(
            told(WarmPoolStatus::Terminated, Some(0)),
            0,
            "it cost nothing, and that is all"
        );
        assert_eq!(
            (
                told(WarmPoolStatus::Reused, Some(70)),
                told(WarmPoolStatus::InUse, None)
            ),
            (70, 1)
        );
        assert_eq!(may_cost_seconds(None), 1);
    }

    #[test]
    fn an_idle_pool_is_kept_only_for_somebody() {
        assert_eq!(
            decided(false, &seen(WarmPoolStatus::Available, None)),
            PoolDecision::Terminate
        );
        assert!(matches!(
            decided(true, &seen(WarmPoolStatus::Available, None)),
            PoolDecision::LookAgain { .. }
        ));
    }

    #[test]
    fn it_is_billed_what_sagemaker_says_and_estimated_only_when_nobody_will_say() {
        let settled = |seconds, estimated| PoolDecision::Settle {
            retained_seconds: seconds,
            estimated,
        };
        assert_eq!(
            decided(true, &seen(WarmPoolStatus::Reused, Some(70))),
            settled(70, false)
        );
        assert_eq!(decided(false, &PoolSeen::Absent), settled(100, true));
        assert_eq!(decided(false, &PoolSeen::NoPool), settled(0, false));
        let waits = |status| {
            matches!(
                decided(false, &seen(status, None)),
                PoolDecision::LookAgain { .. }
            )
        };
        assert!(
            waits(WarmPoolStatus::Terminated) && waits(WarmPoolStatus::Unknown("Resting".into()))
        );
    }
}
