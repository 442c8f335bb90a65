//! What the scheduler decides, case by case.

mod bills;

use super::*;

const MARKER: &str = "job_1";

pub(super) fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

pub(super) fn attempt(state: AttemptState) -> AttemptFacts {
    let until = (state == AttemptState::Quarantined).then(now);
    AttemptFacts {
        phase: AttemptPhase::of(state, until).expect("a quarantine has its time"),
        failures: 0,
        over_quota: 0,
        no_capacity: 0,
        give_up_at: now() + TimeDelta::hours(72),
        longest_billed_seconds: 100_000,
        is_limited: true,
        marker: MARKER.into(),
        absent: 0,
        postponed: 0,
        may_be_under_way: false,
        started_at: None,
        runtime_limit: None,
        look_every: None,
        waits: Vec::new(),
        ends_at: None,
        is_sent: true,
    }
}

pub(super) fn job(status: JobStatus, secondary: &str) -> ObservedJob {
    ObservedJob {
        ended_at: Some(now() + TimeDelta::seconds(100)),
        billable_seconds: Some(40),
        ..ObservedJob::sample(MARKER, status, secondary, now())
    }
}

fn situation(trial: TrialState, attempt: Option<AttemptFacts>, seen: Look) -> Situation {
    Situation {
        trial,
        stop_requested: false,
        stop_reason: None,
        attempt,
        seen,
        now: now(),
    }
}

pub(super) fn seen(job: ObservedJob) -> Look {
    Look::Job(Box::new(job))
}

#[test]
fn what_sagemaker_would_let_run_on_is_stopped_at_its_limit() {
    let at = |minutes: i64| now() + TimeDelta::minutes(minutes);
    let running = |minutes: i64, started: bool| {
        let mut job = ObservedJob::sample(MARKER, JobStatus::InProgress, "InProgress", now());
        job.started_at = job.started_at.filter(|_| started);
        let facts = AttemptFacts {
            runtime_limit: Some(TimeDelta::hours(1)),
            ..attempt(AttemptState::Running)
        };
        let situation = situation(TrialState::Running, Some(facts), seen(job));
        let situation = Situation {
            now: at(minutes),
            ..situation
        };
        decide(&situation, &Policy::default())
    };
    assert_eq!(running(10, true), Decision::LookAgain { at: at(60) });
    assert_eq!(
        running(10, false),
        Decision::LookAgain { at: at(60) },
        "it may start unseen"
    );
    assert_eq!(running(60, true), Decision::Stop);
}

#[test]
fn a_fresh_trial_reserves_before_it_creates() {
    let policy = Policy::default();
    assert_eq!(
        decide(
            &situation(TrialState::Queued, None, Look::NotLooked),
            &policy
        ),
        Decision::Plan
    );
    let planned = Some(attempt(AttemptState::Planned));
    assert_eq!(
        decide(
            &situation(TrialState::Submitting, planned, Look::NotLooked),
            &policy
        ),
        Decision::Create
    );
}

#[test]
fn a_taken_name_is_adopted_only_with_our_marker() {
    let policy = Policy::default();
    let planned = Some(attempt(AttemptState::Planned));
    let mut found = job(JobStatus::InProgress, "Training");
    let ours = situation(TrialState::Submitting, planned.clone(), seen(found.clone()));
    assert_eq!(decide(&ours, &policy), Decision::Adopt);
    found.marker = None;
    let foreign = situation(TrialState::Submitting, planned, seen(found));
    assert!(
        matches!(decide(&foreign, &policy), Decision::Retry { ending, .. } if ending.billable_seconds.is_none())
    );
}

/// After its scheduled end, a create that may have been carried out is looked for; one that never was is made anew.
#[test]
fn after_its_scheduled_end_only_what_was_sent_is_looked_for() {
    let policy = Policy::default();
    let over = AttemptFacts {
        ends_at: Some(now()),
        ..attempt(AttemptState::Planned)
    };
    let mut case = situation(TrialState::Submitting, Some(over.clone()), Look::Absent);
    assert!(matches!(decide(&case, &policy), Decision::LookAgain { .. }));
    case.attempt = Some(AttemptFacts {
        is_sent: false,
        ..over
    });
    assert!(
        matches!(decide(&case, &policy), Decision::Retry { ending, .. } if ending.billable_seconds.is_none())
    );
    case.stop_requested = true;
    assert!(matches!(
        decide(&case, &policy),
        Decision::Quarantine { .. }
    ));
}

#[test]
fn a_cancel_while_a_create_may_be_under_way_is_held_in_quarantine() {
    let policy = Policy::default();
    let mut case = situation(
        TrialState::Stopping,
        Some(attempt(AttemptState::Planned)),
        Look::NotLooked,
    );
    case.stop_requested = true;
    assert_eq!(
        decide(&case, &policy),
        Decision::Quarantine {
            until: now() + policy.quarantine
        }
    );

    let held = attempt(AttemptState::Quarantined);
    assert!(needs_look(TrialState::Stopping, Some(&held), now()));
    case.attempt = Some(held.clone());
    case.seen = Look::Absent;
    assert_eq!(
        decide(&case, &policy),
        Decision::LookAgain {
            at: now() + policy.poll
        },
        "one look proves nothing"
    );
    case.attempt = Some(AttemptFacts {
        absent: policy.absent_max,
        ..held
    });
    assert!(
        matches!(decide(&case, &policy), Decision::End(end) if end.attempt == AttemptState::NeverCreated)
    );
    case.seen = seen(job(JobStatus::InProgress, "Starting"));
    assert_eq!(decide(&case, &policy), Decision::Adopt);
}

#[test]
fn an_unreadable_or_unheard_of_status_is_never_a_failure() {
    let policy = Policy::default();
    for sight in [
        Look::NoAnswer("timeout".into()),
        Look::Absent,
        seen(job(JobStatus::Unknown("Hibernating".into()), "Dreaming")),
    ] {
        let case = situation(
            TrialState::Running,
            Some(attempt(AttemptState::Running)),
            sight,
        );
        assert!(
            matches!(decide(&case, &policy), Decision::LookAgain { .. }),
            "{case:?}"
        );
    }
}

/// A job may run for hours under an unknown status, or while it cannot be described.
#[test]
fn a_cancelled_job_is_stopped_whatever_is_known_of_it() {
    let dreams = seen(job(JobStatus::Unknown("Hibernating".into()), "Dreaming"));
    for sight in [dreams, Look::NoAnswer("AccessDeniedException".into())] {
        let own = Some(attempt(AttemptState::Running));
        let mut case = situation(TrialState::Stopping, own, sight);
        case.stop_requested = true;
        assert_eq!(decide(&case, &Policy::default()), Decision::Stop);
    }
}

#[test]
fn spot_bills_the_billable_seconds_and_not_the_training_time() {
    let case = situation(
        TrialState::Running,
        Some(attempt(AttemptState::Running)),
        seen(job(JobStatus::Completed, "Completed")),
    );
    let Decision::End(ending) = decide(&case, &Policy::default()) else {
        panic!("not ended")
    };
    assert_eq!(
        (ending.billable_seconds, ending.estimated, ending.trial),
        (Some(40), false, TrialState::Completed)
    );
}

fn failed_job(reason: &str, started_at: Option<DateTime<Utc>>) -> Look {
    let broken = job(JobStatus::Failed, "Failed");
    let billable_seconds = started_at.map(|_| 40);
    seen(ObservedJob {
        failure_reason: Some(reason.into()),
        started_at,
        billable_seconds,
        ..broken
    })
}

const NO_CAPACITY: &str = "CapacityError: Unable to provision requested ML compute capacity.";

#[test]
fn a_drought_of_capacity_is_waited_for_until_the_deadline_and_uses_up_no_attempt() {
    let policy = Policy::default();
    let facts = AttemptFacts {
        failures: policy.attempts_max - 1,
        no_capacity: 40,
        ..attempt(AttemptState::Running)
    };
    let mut case = situation(
        TrialState::Running,
        Some(facts.clone()),
        failed_job(NO_CAPACITY, None),
    );
    let Decision::Retry { ending, at } = decide(&case, &policy) else {
        panic!("given up")
    };
    assert_eq!(
        (ending.shortage, ending.billable_seconds),
        (Some(Shortage::Capacity), Some(0))
    );
    assert!(at > now() + TimeDelta::minutes(5) && at <= facts.give_up_at);
    case.now = facts.give_up_at;
    let Decision::End(ending) = decide(&case, &policy) else {
        panic!("it waits for ever")
    };
    assert!(
        ending.trial == TrialState::Failed && ending.reason.contains("deadline_hours"),
        "{}",
        ending.reason
    );
}

#[test]
fn capacity_lost_while_it_ran_counts_as_an_attempt() {
    let policy = Policy::default();
    let broken = failed_job(NO_CAPACITY, Some(now()));
    let mut case = situation(
        TrialState::Running,
        Some(attempt(AttemptState::Running)),
        broken,
    );
    assert!(
        matches!(decide(&case, &policy), Decision::Retry { ending, .. } if ending.shortage.is_none())
    );
    case.attempt = Some(AttemptFacts {
        failures: policy.attempts_max - 1,
        ..attempt(AttemptState::Running)
    });
    assert!(
        matches!(decide(&case, &policy), Decision::End(end) if end.trial == TrialState::Failed)
    );
}

#[test]
fn the_users_code_is_not_run_again_whatever_its_message_says() {
    for reason in [
        "AlgorithmError: ExecuteUserScriptError: exit code 1",
        "AlgorithmError: ExecuteUserScriptError: ExpertCapacityError: 3 tokens dropped",
        "AlgorithmError: InternalServerError in my_server.py",
        "ClientError: CapacityError",
    ] {
        let case = situation(
            TrialState::Running,
            Some(attempt(AttemptState::Running)),
            failed_job(reason, Some(now())),
        );
        let decision = decide(&case, &Policy::default());
        assert!(
            matches!(&decision, Decision::End(end) if end.trial == TrialState::Failed),
            "{reason}: {decision:?}"
        );
    }
}

#[test]
fn a_defective_accelerator_is_worth_another_machine() {
    let reason = |class: &str| {
        format!(
            "{class}: ExecuteUserScriptError:\nExitCode 1\nErrorMessage \"RuntimeError: CUDA error: uncorrectable ECC error encountered\""
        )
    };
    assert_eq!(
        FailureClass::of(&reason("ClientError")),
        FailureClass::Client
    );
    let policy = Policy::default();
    let job = failed_job(&reason("AlgorithmError"), Some(now()));
    let mut case = situation(
        TrialState::Running,
        Some(attempt(AttemptState::Running)),
        job,
    );
    let decision = decide(&case, &policy);
    assert!(
        matches!(&decision, Decision::Retry { ending, .. } if ending.shortage.is_none()),
        "{decision:?}"
    );
    // Once: the words are the script's own.
    case.attempt = Some(AttemptFacts {
        failures: 1,
        ..attempt(AttemptState::Running)
    });
    assert!(matches!(decide(&case, &policy), Decision::End(_)));
}

#[test]
fn only_a_definite_no_ends_an_attempt_that_was_sent() {
    let policy = Policy::default();
    let facts = attempt(AttemptState::Planned);
    let reply = |error| after_create(Err(error), &facts, now(), &policy);
    assert!(matches!(
        reply(AwsError::Unknown("timeout".into())),
        AfterCreate::Postpone { .. }
    ));
    assert!(matches!(
        reply(AwsError::Throttled("Rate exceeded".into())),
        AfterCreate::Postpone { .. }
    ));
    assert!(matches!(
        reply(AwsError::Expired("the token is expired".into())),
        AfterCreate::Postpone { .. }
    ));
    assert_eq!(
        reply(AwsError::AlreadyExists("name".into())),
        AfterCreate::LookFirst
    );
    let no = AwsError::Rejected {
        code: "ValidationException".into(),
        message: "bad".into(),
    };
    assert!(
        matches!(reply(no), AfterCreate::Rejected { ending, .. } if ending.trial == TrialState::Failed)
    );
    let denied = AwsError::Denied("not authorized".into());
    assert!(
        matches!(reply(denied), AfterCreate::Rejected { ending, .. } if ending.trial == TrialState::Parked)
    );
}

#[test]
fn a_rejected_attempt_ends_only_when_a_look_finds_no_job_of_ours() {
    let (policy, facts) = (Policy::default(), attempt(AttemptState::Planned));
    let after = |sight: Look| {
        after_rejection(
            never_created(TrialState::Failed, "no"),
            None,
            &sight,
            &facts,
            now(),
            &policy,
        )
    };
    let mut found = job(JobStatus::InProgress, "Training");
    assert_eq!(after(seen(found.clone())), AfterCreate::Running);
    found.marker = None;
    assert!(matches!(after(seen(found)), AfterCreate::Rejected { .. }));
    assert!(matches!(after(Look::Absent), AfterCreate::Rejected { .. }));
    assert!(matches!(
        after(Look::NoAnswer("timeout".into())),
        AfterCreate::Postpone { .. }
    ));
}

/// A sender that froze between its check and its send wakes after the refusal. Found by the storm
/// (fault injection).
#[test]
fn a_refusal_does_not_end_an_attempt_whose_create_may_still_arrive() {
    let policy = Policy::default();
    let facts = AttemptFacts {
        may_be_under_way: true,
        ..attempt(AttemptState::Planned)
    };
    let refused = never_created(TrialState::Queued, "quota");
    let AfterCreate::Hold { until, .. } =
        after_rejection(refused, Some(now()), &Look::Absent, &facts, now(), &policy)
    else {
        panic!("it is let go while a create may be under way")
    };
    assert_eq!(until, now() + policy.quarantine);
    let held = AttemptFacts {
        phase: AttemptPhase::Quarantined { until },
        ..attempt(AttemptState::Quarantined)
    };
    let mut case = situation(
        TrialState::Submitting,
        Some(held.clone()),
        seen(job(JobStatus::InProgress, "Starting")),
    );
    assert_eq!(decide(&case, &policy), Decision::Adopt, "it has arrived");
    case.seen = Look::Absent;
    assert!(
        matches!(decide(&case, &policy), Decision::LookAgain { .. }),
        "one look proves nothing"
    );
    case.attempt = Some(AttemptFacts {
        absent: policy.absent_max,
        ..held
    });
    assert!(
        matches!(decide(&case, &policy), Decision::Retry { ending, .. } if ending.trial == TrialState::Queued)
    );
}

#[test]
fn a_quota_is_waited_for_without_holding_money_and_then_parked() {
    let policy = Policy::default();
    let reply = |over_quota| {
        let facts = AttemptFacts {
            over_quota,
            ..attempt(AttemptState::Planned)
        };
        after_create(
            Err(AwsError::LimitExceeded("quota.".into())),
            &facts,
            now(),
            &policy,
        )
    };
    let AfterCreate::Rejected { ending, again_at } = reply(3) else {
        panic!("it keeps its reservation")
    };
    assert!(
        ending.trial == TrialState::Queued
            && ending.attempt == AttemptState::NeverCreated
            && again_at > Some(now())
    );
    let AfterCreate::Rejected { ending, again_at } = reply(policy.over_quota_max) else {
        panic!("it waits for ever")
    };
    assert!(
        ending.trial == TrialState::Parked
            && again_at.is_none()
            && ending.reason.contains("resume")
    );
}

#[test]
fn those_turned_down_together_do_not_come_back_together() {
    let policy = Policy::default();
    let waits: std::collections::BTreeSet<_> = (0..100)
        .map(|trial| policy.backoff_after(2, &format!("job_{trial}")))
        .collect();
    assert!(waits.len() > 60, "{} different waits of 100", waits.len());
    let (shortest, longest) = (*waits.first().unwrap(), *waits.last().unwrap());
    assert!(
        shortest >= policy.backoff * 2 && longest <= policy.backoff * 4,
        "{shortest} to {longest}"
    );
}
