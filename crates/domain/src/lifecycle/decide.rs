//! The scheduler's mind: from what is stored and what was seen, the next action of one trial. Pure,
//! and without a wildcard arm: a new state does not compile until somebody has thought about it.
//!
//! It performs nothing. `tasks::scheduler` in the service claims, looks, calls [`decide`], acts and
//! applies.

use chrono::{DateTime, TimeDelta, Utc};

use super::policy::Policy;
use crate::lifecycle::state::{AttemptState, TrialState};
use crate::money::bill;
use crate::sagemaker::error::AwsError;
use crate::sagemaker::observed::{JobStatus, ObservedJob};

/// StopTrainingJob to the end: 120 s of grace, and the upload of what there is.
pub const STOP_TAKES: TimeDelta = TimeDelta::seconds(150);

/// What is stored of the attempt in hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptFacts {
    pub state: AttemptState,
    /// Earlier attempts of the trial that came to nothing.
    pub failures: u32,
    /// Creates of the trial that a quota turned down.
    pub over_quota: u32,
    /// Jobs of the trial that found no capacity.
    pub no_capacity: u32,
    /// Until then the trial waits for capacity: the experiment's deadline.
    pub give_up_at: DateTime<Utc>,
    /// The longest that an instance of its job can be billed, seconds: what an estimate never
    /// exceeds.
    pub longest_billed_seconds: u64,
    /// Value of the marker that its job must carry.
    pub marker: String,
    pub quarantine_until: Option<DateTime<Utc>>,
    /// Looks in a row that found no job.
    pub absent: u32,
    /// Creates in a row that were put off.
    pub postponed: u32,
    /// A create of an earlier claim may still be under way: its sender timed out, died, or sleeps.
    pub may_be_under_way: bool,
    /// When billing began, as last seen.
    pub started_at: Option<DateTime<Utc>>,
    /// Spans without instances, as last seen.
    pub waits: Vec<(DateTime<Utc>, DateTime<Utc>)>,
}

/// What a look at AWS showed.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    NotLooked,
    Absent,
    Job(Box<ObservedJob>),
    /// Throttled or no answer: the job's state is unknown, never failed.
    NoAnswer(String),
}

/// Everything the decision rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Situation {
    pub trial: TrialState,
    pub stop_requested: bool,
    pub attempt: Option<AttemptFacts>,
    pub seen: Seen,
    pub now: DateTime<Utc>,
}

/// Why an attempt failed; each class has its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// No capacity: try again later.
    Capacity,
    /// AWS's own fault: try again.
    Internal,
    /// The training code: a retry would fail the same way.
    Algorithm,
    /// The request or its data: likewise.
    Client,
}

impl FailureClass {
    /// By the prefix of FailureReason, and by nothing behind it: that is the script's own text, and
    /// may say anything.
    pub fn of(reason: &str) -> Self {
        let prefixes = [
            ("CapacityError", Self::Capacity),
            ("InternalServerError", Self::Internal),
            ("AlgorithmError", Self::Algorithm),
        ];
        let found = prefixes
            .into_iter()
            .find(|(prefix, _)| reason.trim_start().starts_with(prefix));
        found.map_or(Self::Client, |(_, class)| class)
    }

    pub fn is_worth_a_retry(self) -> bool {
        match self {
            Self::Capacity | Self::Internal => true,
            Self::Algorithm | Self::Client => false,
        }
    }
}

/// What turned an attempt down before anything was billed. It uses up no attempt of the trial's:
/// waiting costs nothing.
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
    /// True when AWS did not say and the seconds are our own estimate.
    pub estimated: bool,
    /// Set when nothing was wrong with it but that there was no room.
    pub shortage: Option<Shortage>,
}

/// The next action. It carries all that the executor needs; the executor has no choices.
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
    /// Record what was seen and look again.
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

/// Whether the decision needs a look at AWS first.
pub fn needs_look(trial: TrialState, attempt: Option<&AttemptFacts>, now: DateTime<Utc>) -> bool {
    let Some(attempt) = attempt else { return false };
    if trial.is_terminal() {
        return false;
    }
    match attempt.state {
        AttemptState::Running => true,
        AttemptState::Quarantined => attempt.quarantine_until.is_none_or(|until| until <= now),
        AttemptState::Planned
        | AttemptState::Completed
        | AttemptState::Failed
        | AttemptState::Stopped
        | AttemptState::NeverCreated => false,
    }
}

/// The next action of one trial.
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
                reason: "cancelled".to_owned(),
            },
            None => Decision::Plan,
        },
    }
}

fn with_attempt(situation: &Situation, attempt: &AttemptFacts, policy: &Policy) -> Decision {
    match attempt.state {
        AttemptState::Planned => match &situation.seen {
            // A look happens here only after AWS said that the name is taken.
            Seen::Job(job) => adopt_or_step_aside(situation, attempt, job, policy),
            Seen::NotLooked | Seen::Absent | Seen::NoAnswer(_) if situation.stop_requested => {
                Decision::Quarantine {
                    until: situation.now + policy.quarantine,
                }
            }
            Seen::NotLooked | Seen::Absent => Decision::Create,
            Seen::NoAnswer(_) => Decision::LookAgain {
                at: situation.now + policy.backoff_after(attempt.postponed, &attempt.marker),
            },
        },
        AttemptState::Quarantined => match &situation.seen {
            Seen::NotLooked => Decision::LookAgain {
                at: attempt
                    .quarantine_until
                    .unwrap_or(situation.now + policy.quarantine),
            },
            Seen::Absent if situation.stop_requested => Decision::End(never_created(
                TrialState::Stopped,
                "cancelled before it was created",
            )),
            // It was refused, and whatever was under way has not arrived: another attempt, in its
            // turn.
            Seen::Absent => Decision::Retry {
                ending: Ending {
                    shortage: Some(Shortage::Quota),
                    ..never_created(TrialState::Queued, "refused, and no job came of it")
                },
                at: situation.now,
            },
            Seen::Job(job) => adopt_or_step_aside(situation, attempt, job, policy),
            Seen::NoAnswer(_) => Decision::LookAgain {
                at: situation.now + policy.poll,
            },
        },
        AttemptState::Running => match &situation.seen {
            Seen::Job(job) => with_job(situation, attempt, job, policy),
            Seen::Absent if attempt.absent >= policy.absent_max => {
                Decision::End(vanished(attempt, situation.now))
            }
            Seen::NotLooked | Seen::Absent | Seen::NoAnswer(_) => Decision::LookAgain {
                at: situation.now + policy.poll,
            },
        },
        // The attempt in hand is over and the trial is not: its next one is due.
        AttemptState::Completed
        | AttemptState::Failed
        | AttemptState::Stopped
        | AttemptState::NeverCreated => {
            if situation.stop_requested {
                Decision::EndUnstarted {
                    reason: "cancelled".to_owned(),
                }
            } else {
                Decision::Plan
            }
        }
    }
}

/// A job with our name: ours if it carries our marker, else somebody made it by hand and we take
/// another name.
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
    match &job.status {
        status if status.is_over() && job.awaits_bill(situation.now) => Decision::LookAgain {
            at: situation.now + policy.poll,
        },
        // A status that nobody has heard of means that it is not over.
        JobStatus::InProgress | JobStatus::Unknown(_) if situation.stop_requested => Decision::Stop,
        // A listing or an event says when there is more to see.
        JobStatus::InProgress | JobStatus::Unknown(_) => Decision::LookAgain {
            at: situation.now + policy.net,
        },
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
        JobStatus::Stopped => {
            let reason = match job.secondary_status.as_str() {
                "MaxRuntimeExceeded" => "stopped at its maximum runtime",
                "MaxWaitTimeExceeded" => "stopped at its maximum wait for spot capacity",
                _ if situation.stop_requested => "cancelled",
                _ => "stopped in SageMaker by somebody else",
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
    if class.is_worth_a_retry() && attempt.failures + 1 < policy.attempts_max {
        let at = now + policy.backoff_after(attempt.failures + 2, &attempt.marker);
        return Decision::Retry {
            ending: failed(TrialState::Queued),
            at,
        };
    }
    Decision::End(failed(TrialState::Failed))
}

/// A drought lasts hours and costs nothing: the trial goes back to the queue, without its
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
            "{} It was asked for {tries} times, until the experiment's deadline (deadline_hours)",
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
    let billing = job.billing(facts.longest_billed_seconds, now);
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

/// Nobody will tell what it cost: billed to this moment, without the waits that are known, and
/// never for longer than a job of its limits can be. Whoever knows better corrects it by hand.
fn vanished(attempt: &AttemptFacts, now: DateTime<Utc>) -> Ending {
    let ran = attempt
        .started_at
        .map_or(0, |start| bill::ran(start, now, &attempt.waits));
    Ending {
        trial: TrialState::Failed,
        attempt: AttemptState::Failed,
        reason: "the job vanished: SageMaker no longer knows it; its cost is our own estimate"
            .to_owned(),
        billable_seconds: Some(ran.min(attempt.longest_billed_seconds)),
        estimated: true,
        shortage: None,
    }
}

/// What a reply to CreateTrainingJob means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterCreate {
    /// The job is there and ours.
    Running,
    /// The name is taken: look whether by us.
    LookFirst,
    /// Nothing is certain, or nothing happened yet: the attempt stays planned; the same create is
    /// sent again later.
    Postpone { at: DateTime<Utc>, why: String },
    /// A definite no to this create. One sent before may have succeeded unseen: look, and settle
    /// only if there is no job. `again_at`: the trial is queued again.
    Rejected {
        ending: Ending,
        again_at: Option<DateTime<Utc>>,
    },
    /// A definite no, but an earlier create may still arrive: held, with its reservation, until
    /// that is certain.
    Hold { until: DateTime<Utc>, why: String },
}

/// Reads the reply to CreateTrainingJob. Sending the same name again is safe, so doubt is answered
/// by asking again.
pub fn after_create(
    reply: Result<(), AwsError>,
    attempt: &AttemptFacts,
    now: DateTime<Utc>,
    policy: &Policy,
) -> AfterCreate {
    let later = now + policy.backoff_after(attempt.postponed, &attempt.marker);
    let rejected = |trial, why: String| AfterCreate::Rejected {
        ending: never_created(trial, &why),
        again_at: None,
    };
    match reply {
        Ok(()) => AfterCreate::Running,
        Err(AwsError::AlreadyExists(_)) => AfterCreate::LookFirst,
        Err(AwsError::LimitExceeded(why)) if attempt.over_quota >= policy.over_quota_max => {
            rejected(
                TrialState::Parked,
                format!(
                    "{why} It was asked {} times; ask AWS for more, then resume the experiment",
                    attempt.over_quota + 1
                ),
            )
        }
        // Back into the queue, without its reservation: others may have room.
        Err(AwsError::LimitExceeded(why)) => AfterCreate::Rejected {
            ending: Ending {
                shortage: Some(Shortage::Quota),
                ..never_created(TrialState::Queued, &why)
            },
            again_at: Some(now + policy.backoff_after(attempt.over_quota, &attempt.marker)),
        },
        // An answer that nobody understands, again and again: its reservation is not held for ever.
        Err(AwsError::Unknown(why) | AwsError::Expired(why)) if now >= attempt.give_up_at => {
            rejected(
                TrialState::Parked,
                format!(
                    "AWS gave no certain answer until the experiment's deadline: {why}. Look into it, then resume"
                ),
            )
        }
        Err(AwsError::Throttled(why) | AwsError::Unknown(why) | AwsError::Expired(why)) => {
            AfterCreate::Postpone { at: later, why }
        }
        Err(AwsError::Denied(why)) => rejected(
            TrialState::Parked,
            format!(
                "AWS denies CreateTrainingJob: {why}. Mend the permission, then resume the experiment"
            ),
        ),
        Err(error @ (AwsError::NotFound(_) | AwsError::Rejected { .. })) => {
            rejected(TrialState::Failed, error.to_string())
        }
    }
}

/// Reads a definite no to a create, after a look: one sent before may have succeeded unseen.
pub fn after_rejection(
    ending: Ending,
    again_at: Option<DateTime<Utc>>,
    seen: &Seen,
    attempt: &AttemptFacts,
    now: DateTime<Utc>,
    policy: &Policy,
) -> AfterCreate {
    match seen {
        Seen::Job(job) if job.marker.as_deref() == Some(attempt.marker.as_str()) => {
            AfterCreate::Running
        }
        Seen::Absent if attempt.may_be_under_way => AfterCreate::Hold {
            until: now + policy.quarantine,
            why: ending.reason,
        },
        // Somebody else has the name: no create of ours can succeed any more.
        Seen::Job(_) | Seen::Absent => AfterCreate::Rejected { ending, again_at },
        Seen::NotLooked | Seen::NoAnswer(_) => {
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
