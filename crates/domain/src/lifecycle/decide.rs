//! The scheduler's decisions: the next action for one trial, from what is stored and what AWS
//! showed. Pure, and without a wildcard arm: a new state does not compile until it is handled.
//!
//! It performs no action itself: `tasks::scheduler` in the service claims trials, polls AWS, calls
//! [`decide`], acts and applies.

mod facts;

use chrono::{DateTime, TimeDelta, Utc};

pub use self::facts::AttemptFacts;
use super::failure::FailureClass;
use super::policy::Policy;
use crate::lifecycle::state::{AttemptPhase, AttemptState, TrialState};
use crate::sagemaker::error::AwsError;
use crate::sagemaker::observed::{self, JobStatus, ObservedJob};
use crate::sagemaker::phase::JobPhase;

/// Time from StopTrainingJob to the end of the job: 120 s of grace, and the upload of any
/// artefacts.
pub const STOP_TAKES: TimeDelta = TimeDelta::seconds(150);

/// What polling AWS showed.
#[derive(Debug, Clone, PartialEq)]
pub enum Look {
    NotLooked,
    Absent,
    Job(Box<ObservedJob>),
    /// Throttled or no answer: the job's state is unknown, never failed.
    NoAnswer(String),
}

/// All inputs of a decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Situation {
    pub trial: TrialState,
    pub stop_requested: bool,
    /// Why, unless a person cancelled it.
    pub stop_reason: Option<String>,
    pub attempt: Option<AttemptFacts>,
    pub seen: Look,
    pub now: DateTime<Utc>,
}

impl Situation {
    fn stop_reason(&self) -> &str {
        self.stop_reason.as_deref().unwrap_or("cancelled")
    }
}

/// Why an attempt was rejected before anything was billed. It does not use up one of the trial's
/// attempts: waiting costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// A quota of the account.
    Quota,
    /// AWS has no such instances at the moment.
    Capacity,
}

/// How an attempt and its trial ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    pub trial: TrialState,
    pub attempt: AttemptState,
    pub reason: String,
    /// Seconds to bill; `None` when no job existed.
    pub billable_seconds: Option<u64>,
    /// True when AWS did not report them and the seconds are our own estimate.
    pub estimated: bool,
    /// Set when the only problem was a lack of quota or capacity.
    pub shortage: Option<Shortage>,
}

/// The next action. It carries everything the executor needs; the executor makes no choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing to do: the trial is over.
    Nothing,
    /// Reserve the worst case and commit a new attempt.
    Plan,
    /// Send CreateTrainingJob for the planned attempt.
    Create,
    /// The job exists and is ours: record it as running.
    Adopt,
    /// Send StopTrainingJob.
    Stop,
    /// Record what was seen and poll again.
    LookAgain { at: DateTime<Utc> },
    /// Hold the cancelled attempt until it is certain that no job exists.
    Quarantine { until: DateTime<Utc> },
    /// Settle the attempt and end the trial.
    End(Ending),
    /// Settle the attempt and queue the trial again.
    Retry { ending: Ending, at: DateTime<Utc> },
    /// Cancelled before any attempt: end the trial, nothing to settle.
    EndUnstarted { reason: String },
}

/// Whether AWS must be polled before deciding.
pub fn needs_look(trial: TrialState, attempt: Option<&AttemptFacts>, now: DateTime<Utc>) -> bool {
    let Some(attempt) = attempt else { return false };
    if trial.is_terminal() {
        return false;
    }
    match attempt.phase {
        AttemptPhase::Running => true,
        AttemptPhase::Quarantined { until } => until <= now,
        // The same name again would be billed twice.
        AttemptPhase::Planned => attempt.has_ended(now),
        AttemptPhase::Over(_) => false,
    }
}

/// Decides the next action for one trial.
pub fn decide(situation: &Situation, policy: &Policy) -> Decision {
    match situation.trial {
        TrialState::Refused | TrialState::Completed | TrialState::Failed | TrialState::Stopped => {
            Decision::Nothing
        }
        TrialState::Parked if !situation.stop_requested => Decision::Nothing,
        TrialState::Queued
        | TrialState::Submitting
        | TrialState::Parked
        | TrialState::Running
        | TrialState::Stopping => match &situation.attempt {
            Some(attempt) => with_attempt(situation, attempt, policy),
            None if situation.stop_requested => Decision::EndUnstarted {
                reason: situation.stop_reason().to_owned(),
            },
            None => Decision::Plan,
        },
    }
}

fn with_attempt(situation: &Situation, attempt: &AttemptFacts, policy: &Policy) -> Decision {
    match attempt.phase {
        AttemptPhase::Planned => planned(situation, attempt, policy),
        AttemptPhase::Quarantined { until } => match &situation.seen {
            Look::NotLooked => Decision::LookAgain { at: until },
            // One look proves nothing: AWS may not show a job yet, or may forget it once.
            Look::Absent if attempt.absent < policy.absent_max => Decision::LookAgain {
                at: situation.now + policy.poll,
            },
            Look::Absent if situation.stop_requested => Decision::End(never_created(
                TrialState::Stopped,
                "cancelled before the job was created",
            )),
            // The create was refused, and no create in flight has arrived: queue another attempt.
            Look::Absent => Decision::Retry {
                ending: Ending {
                    shortage: Some(Shortage::Quota),
                    ..never_created(TrialState::Queued, "create rejected, and no job appeared")
                },
                at: situation.now,
            },
            Look::Job(job) => adopt_or_step_aside(situation, attempt, job, policy),
            Look::NoAnswer(_) => Decision::LookAgain {
                at: situation.now + policy.poll,
            },
        },
        AttemptPhase::Running => match &situation.seen {
            Look::Job(job) => with_job(situation, attempt, job, policy),
            Look::Absent if attempt.absent >= policy.absent_max => {
                Decision::End(vanished(attempt, situation.now))
            }
            // The name is ours, so the job can be stopped even while it cannot be described.
            Look::NoAnswer(_) if situation.stop_requested => Decision::Stop,
            Look::NotLooked | Look::Absent | Look::NoAnswer(_) => Decision::LookAgain {
                at: situation.now + policy.poll,
            },
        },
        // The current attempt is over but the trial is not: its next attempt is due.
        AttemptPhase::Over(_) => {
            if situation.stop_requested {
                Decision::EndUnstarted {
                    reason: situation.stop_reason().to_owned(),
                }
            } else {
                Decision::Plan
            }
        }
    }
}

/// Decides about an attempt whose create has not been confirmed.
fn planned(situation: &Situation, attempt: &AttemptFacts, policy: &Policy) -> Decision {
    match &situation.seen {
        // AWS is polled here only after it replied that the name is taken.
        Look::Job(job) => adopt_or_step_aside(situation, attempt, job, policy),
        // A create may have been carried out, and AWS has ended its job since.
        Look::NotLooked | Look::Absent if attempt.has_ended(situation.now) && attempt.is_sent => {
            Decision::LookAgain {
                at: situation.now + policy.poll,
            }
        }
        Look::NotLooked | Look::Absent | Look::NoAnswer(_) if situation.stop_requested => {
            Decision::Quarantine {
                until: situation.now + policy.quarantine,
            }
        }
        // Its schedule has been carried out, and would not end what is created now: another name gets another one.
        Look::NotLooked | Look::Absent if attempt.has_ended(situation.now) => Decision::Retry {
            ending: Ending {
                shortage: Some(Shortage::Quota),
                ..never_created(
                    TrialState::Queued,
                    "AWS accepted no create before its scheduled end",
                )
            },
            at: situation.now,
        },
        Look::NotLooked | Look::Absent => Decision::Create,
        Look::NoAnswer(_) => Decision::LookAgain {
            at: situation.now + policy.backoff_after(attempt.postponed, &attempt.marker),
        },
    }
}

/// Handles a job with our name: it is ours if it carries our marker; otherwise someone created it
/// manually, and we take another name.
fn adopt_or_step_aside(
    situation: &Situation,
    attempt: &AttemptFacts,
    job: &ObservedJob,
    policy: &Policy,
) -> Decision {
    if job.marker.as_deref() == Some(attempt.marker.as_str()) {
        return Decision::Adopt;
    }
    let reason = format!(
        "a job named {} exists that Bakeoff did not create",
        job.job_name
    );
    if situation.stop_requested || attempt.failures + 1 >= policy.attempts_max {
        let trial = if situation.stop_requested {
            TrialState::Stopped
        } else {
            TrialState::Failed
        };
        return Decision::End(never_created(trial, &reason));
    }
    Decision::Retry {
        ending: never_created(TrialState::Queued, &reason),
        at: situation.now,
    }
}

fn with_job(
    situation: &Situation,
    attempt: &AttemptFacts,
    job: &ObservedJob,
    policy: &Policy,
) -> Decision {
    match &job.outcome() {
        status if status.is_over() && job.awaits_bill(situation.now) => Decision::LookAgain {
            at: situation.now + policy.poll,
        },
        // An unknown status means that the job is not over.
        JobStatus::InProgress | JobStatus::Unknown(_) if situation.stop_requested => Decision::Stop,
        JobStatus::InProgress | JobStatus::Unknown(_) => runs(situation, attempt, job, policy),
        JobStatus::Stopping => Decision::LookAgain {
            at: situation.now + STOP_TAKES,
        },
        JobStatus::Completed => Decision::End(ended(
            job,
            attempt,
            TrialState::Completed,
            AttemptState::Completed,
            "completed",
            situation.now,
        )),
        JobStatus::Stopped | JobStatus::Deleting => {
            let reason = match job.phase() {
                JobPhase::RuntimeLimit => "stopped at its maximum runtime",
                JobPhase::WaitLimit => "stopped at its maximum wait for spot capacity",
                _ if situation.stop_requested => situation.stop_reason(),
                _ if attempt.has_ended(situation.now) => "its time to live is over",
                _ if limit(attempt, job).is_some_and(|limit| limit <= situation.now) => {
                    "stopped at its maximum runtime"
                }
                _ => "stopped in SageMaker by someone else",
            };
            Decision::End(ended(
                job,
                attempt,
                TrialState::Stopped,
                AttemptState::Stopped,
                reason,
                situation.now,
            ))
        }
        JobStatus::Failed => failed(situation, attempt, job, policy),
    }
}

/// A job that nobody wants to stop: a listing or an event requests an earlier poll when there is news.
fn runs(
    situation: &Situation,
    attempt: &AttemptFacts,
    job: &ObservedJob,
    policy: &Policy,
) -> Decision {
    let every = attempt.look_every.unwrap_or(policy.net);
    let net = situation.now + every.min(policy.net);
    match limit(attempt, job) {
        Some(limit) if limit <= situation.now => Decision::Stop,
        limit => Decision::LookAgain {
            at: limit.map_or(net, |limit| limit.min(net)),
        },
    }
}

/// When we stop a job that SageMaker would let run on.
fn limit(attempt: &AttemptFacts, job: &ObservedJob) -> Option<DateTime<Utc>> {
    let begun = job.started_at.or(job.created_at)?;
    Some(begun + attempt.runtime_limit?)
}

fn failed(
    situation: &Situation,
    attempt: &AttemptFacts,
    job: &ObservedJob,
    policy: &Policy,
) -> Decision {
    let reason = job.failure_reason.as_deref().unwrap_or("no reason given");
    let now = situation.now;
    let failed = |trial| ended(job, attempt, trial, AttemptState::Failed, reason, now);
    let class = FailureClass::of(reason);
    if situation.stop_requested {
        return Decision::End(failed(TrialState::Stopped));
    }
    if class == FailureClass::Capacity && job.started_at.is_none() {
        return short_of_capacity(attempt, failed(TrialState::Queued), policy, now);
    }
    if class.is_worth_a_retry(attempt.failures) && attempt.failures + 1 < policy.attempts_max {
        let at = now + policy.backoff_after(attempt.failures + 2, &attempt.marker);
        return Decision::Retry {
            ending: failed(TrialState::Queued),
            at,
        };
    }
    Decision::End(failed(TrialState::Failed))
}

/// A capacity shortage lasts hours and costs nothing: the trial goes back to the queue, without its
/// reservation, until the experiment's deadline.
fn short_of_capacity(
    attempt: &AttemptFacts,
    ending: Ending,
    policy: &Policy,
    now: DateTime<Utc>,
) -> Decision {
    if now >= attempt.give_up_at {
        let tries = attempt.no_capacity + 1;
        let reason = format!(
            "{} Tried {tries} times, until the experiment's deadline (deadline_hours)",
            ending.reason
        );
        return Decision::End(Ending {
            trial: TrialState::Failed,
            reason,
            ..ending
        });
    }
    let at = now + policy.backoff_after(attempt.no_capacity.saturating_add(2), &attempt.marker);
    Decision::Retry {
        ending: Ending {
            shortage: Some(Shortage::Capacity),
            ..ending
        },
        at: at.min(attempt.give_up_at),
    }
}

fn ended(
    job: &ObservedJob,
    facts: &AttemptFacts,
    trial: TrialState,
    attempt: AttemptState,
    reason: &str,
    now: DateTime<Utc>,
) -> Ending {
    let has_run_on = !facts.is_limited && job.ended_at.is_some();
    let longest = (!has_run_on).then_some(facts.longest_billed_seconds);
    let billing = job.billing(longest.unwrap_or(u64::MAX), now);
    Ending {
        trial,
        attempt,
        reason: reason.to_owned(),
        billable_seconds: Some(billing.seconds),
        estimated: billing.estimated,
        shortage: None,
    }
}

fn never_created(trial: TrialState, reason: &str) -> Ending {
    Ending {
        trial,
        attempt: AttemptState::NeverCreated,
        reason: reason.to_owned(),
        billable_seconds: None,
        estimated: false,
        shortage: None,
    }
}

/// Ends an attempt whose job vanished. Its cost will never be reported, so it is billed until now,
/// without the known waits, and never for longer than its limits allow. A person who knows better
/// can correct it manually.
fn vanished(attempt: &AttemptFacts, now: DateTime<Utc>) -> Ending {
    let ran = attempt
        .started_at
        .map_or(0, |start| observed::ran(start, now, &attempt.waits));
    Ending {
        trial: TrialState::Failed,
        attempt: AttemptState::Failed,
        reason: "the job vanished: SageMaker no longer knows it; its cost is estimated".to_owned(),
        billable_seconds: Some(ran.min(attempt.longest_billed_seconds)),
        estimated: true,
        shortage: None,
    }
}

/// What a reply to CreateTrainingJob means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterCreate {
    /// The job exists and is ours.
    Running,
    /// The name is taken: check whether it is ours.
    LookFirst,
    /// Uncertain, or nothing has happened yet: the attempt stays planned, and the same create is
    /// sent again later.
    Postpone { at: DateTime<Utc>, why: String },
    /// A definite refusal of this create. An earlier one may have succeeded unseen: describe the
    /// job, and settle only if there is none. `again_at`: when the trial is queued again.
    Rejected {
        ending: Ending,
        again_at: Option<DateTime<Utc>>,
    },
    /// A definite refusal, but an earlier create may still arrive: hold the attempt, with its
    /// reservation, until that is ruled out.
    Hold { until: DateTime<Utc>, why: String },
}

/// Interprets the reply to CreateTrainingJob. Sending the same name again is safe, so any doubt is
/// resolved by retrying.
pub fn after_create(
    reply: Result<(), AwsError>,
    attempt: &AttemptFacts,
    now: DateTime<Utc>,
    policy: &Policy,
) -> AfterCreate {
    let later = now + policy.backoff_after(attempt.postponed, &attempt.marker);
    match reply {
        Ok(()) => AfterCreate::Running,
        Err(AwsError::AlreadyExists(_)) => AfterCreate::LookFirst,
        Err(AwsError::LimitExceeded(why)) => over_quota(&why, attempt, now, policy),
        // Repeated uncertain answers: do not hold the reservation forever.
        Err(AwsError::Unknown(why) | AwsError::Expired(why)) if now >= attempt.give_up_at => {
            rejected(
                TrialState::Parked,
                &format!(
                    "no definite answer from AWS by the experiment's deadline: {why}. Investigate, then resume the experiment"
                ),
            )
        }
        Err(AwsError::Throttled(why) | AwsError::Unknown(why) | AwsError::Expired(why)) => {
            AfterCreate::Postpone { at: later, why }
        }
        Err(AwsError::Denied(why)) => rejected(
            TrialState::Parked,
            &format!(
                "AWS denied CreateTrainingJob: {why}. Fix the permission, then resume the experiment"
            ),
        ),
        Err(error @ (AwsError::NotFound(_) | AwsError::Rejected { .. })) => {
            rejected(TrialState::Failed, &error.to_string())
        }
    }
}

fn rejected(trial: TrialState, why: &str) -> AfterCreate {
    AfterCreate::Rejected {
        ending: never_created(trial, why),
        again_at: None,
    }
}

fn over_quota(
    why: &str,
    attempt: &AttemptFacts,
    now: DateTime<Utc>,
    policy: &Policy,
) -> AfterCreate {
    if attempt.over_quota >= policy.over_quota_max {
        return rejected(
            TrialState::Parked,
            &format!(
                "{why} Tried {} times; request a quota increase, then resume the experiment",
                attempt.over_quota + 1
            ),
        );
    }
    // Back to the queue, without its reservation: other trials may have room.
    AfterCreate::Rejected {
        ending: Ending {
            shortage: Some(Shortage::Quota),
            ..never_created(TrialState::Queued, why)
        },
        again_at: Some(now + policy.backoff_after(attempt.over_quota, &attempt.marker)),
    }
}

/// Interprets a definite refusal of a create, after a Describe: an earlier create may have
/// succeeded unseen.
pub fn after_rejection(
    ending: Ending,
    again_at: Option<DateTime<Utc>>,
    seen: &Look,
    attempt: &AttemptFacts,
    now: DateTime<Utc>,
    policy: &Policy,
) -> AfterCreate {
    match seen {
        Look::Job(job) if job.marker.as_deref() == Some(attempt.marker.as_str()) => {
            AfterCreate::Running
        }
        Look::Absent if attempt.may_be_under_way => AfterCreate::Hold {
            until: now + policy.quarantine,
            why: ending.reason,
        },
        // The name belongs to another job, or no create is in flight: no create of ours can still
        // succeed.
        Look::Job(_) | Look::Absent => AfterCreate::Rejected { ending, again_at },
        Look::NotLooked | Look::NoAnswer(_) => {
            let at = now + policy.backoff_after(attempt.postponed, &attempt.marker);
            AfterCreate::Postpone {
                at,
                why: ending.reason,
            }
        }
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
