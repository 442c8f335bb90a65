//! What the end of a job costs, as far as it is known.

use super::*;

#[test]
fn a_vanished_job_is_billed_to_the_last_moment() {
    let policy = Policy::default();
    let lost = AttemptFacts {
        absent: policy.absent_max,
        started_at: Some(now() - TimeDelta::hours(2)),
        ..attempt(AttemptState::Running)
    };
    let case = situation(TrialState::Running, Some(lost), Look::Absent);
    let Decision::End(ending) = decide(&case, &policy) else {
        panic!("not ended")
    };
    assert_eq!(
        (ending.billable_seconds, ending.estimated),
        (Some(7200), true)
    );
}

/// The service was down for three days, and the job was deleted meanwhile. Only a job that SageMaker never ends by
/// itself has run on:
/// an endpoint is billed until its end, where that is known.
#[test]
fn an_estimate_never_exceeds_the_longest_life_of_the_job() {
    let policy = Policy::default();
    let began = Some(now() - TimeDelta::days(3));
    let told = |is_limited, seen| {
        let facts = AttemptFacts {
            absent: policy.absent_max,
            started_at: began,
            longest_billed_seconds: 15_420,
            is_limited,
            ..attempt(AttemptState::Running)
        };
        let case = situation(TrialState::Running, Some(facts), seen);
        match decide(&case, &policy) {
            Decision::End(ending) => (ending.billable_seconds, ending.estimated),
            other => panic!("not ended: {other:?}"),
        }
    };
    let untold = |ended_at| {
        seen(ObservedJob {
            billable_seconds: None,
            started_at: began,
            ended_at,
            ..job(JobStatus::Stopped, "Stopped")
        })
    };
    let after_a_day = Some(now() - TimeDelta::days(2));
    for is_limited in [true, false] {
        assert_eq!(told(is_limited, Look::Absent), (Some(15_420), true));
        assert_eq!(told(is_limited, untold(None)), (Some(15_420), true));
    }
    assert_eq!(told(true, untold(after_a_day)), (Some(15_420), true));
    assert_eq!(told(false, untold(after_a_day)), (Some(86_400), true));
}

/// Spot has no instances while it waits for capacity, and is not billed.
#[test]
fn an_estimate_leaves_out_the_waits_of_spot() {
    let wait = crate::sagemaker::observed::Transition {
        status: "Interrupted".into(),
        started_at: now() + TimeDelta::seconds(20),
        ended_at: Some(now() + TimeDelta::seconds(90)),
        message: String::new(),
    };
    let untold = ObservedJob {
        billable_seconds: None,
        transitions: vec![wait],
        ..job(JobStatus::Completed, "Completed")
    };
    let mut case = situation(
        TrialState::Running,
        Some(attempt(AttemptState::Running)),
        seen(untold),
    );
    case.now += TimeDelta::hours(1);
    let Decision::End(ending) = decide(&case, &Policy::default()) else {
        panic!("not ended")
    };
    assert_eq!(
        (ending.billable_seconds, ending.estimated),
        (Some(30), true)
    );
}

/// Just after the end the figure may be absent or too low: wait for it, but not forever.
#[test]
fn a_bill_that_is_not_told_yet_is_waited_for() {
    let of = |training_seconds, billable_seconds| {
        let over = job(JobStatus::Completed, "Completed");
        seen(ObservedJob {
            training_seconds,
            billable_seconds,
            ..over
        })
    };
    let decided = |seen: Look, minutes| {
        let mut case = situation(
            TrialState::Running,
            Some(attempt(AttemptState::Running)),
            seen,
        );
        case.now += TimeDelta::minutes(minutes);
        decide(&case, &Policy::default())
    };
    let again = |minutes| Decision::LookAgain {
        at: now() + TimeDelta::minutes(minutes) + Policy::default().poll,
    };
    assert_eq!(decided(of(None, None), 5), again(5), "absent");
    assert_eq!(
        decided(of(Some(80), Some(32)), 5),
        again(5),
        "less than the hundred seconds that it ran"
    );
    for (told, seconds) in [(of(Some(100), Some(40)), 40), (of(None, Some(40)), 40)] {
        assert!(
            matches!(decided(told, 5), Decision::End(end) if end.billable_seconds == Some(seconds)),
            "told"
        );
    }
    for (late, expected) in [
        (of(None, None), (Some(100), true)),
        (of(Some(80), Some(32)), (Some(32), false)),
    ] {
        let Decision::End(ending) = decided(late, 15) else {
            panic!("it is waited for for ever")
        };
        assert_eq!((ending.billable_seconds, ending.estimated), expected);
    }
}
