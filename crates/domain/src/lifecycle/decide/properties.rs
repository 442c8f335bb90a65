//! Two properties that hold in every situation: never two live jobs, and no transition outside the
//! state diagram.

use proptest::prelude::*;

use super::tests::{attempt, job, now, seen};
use super::*;

fn any_seen() -> impl Strategy<Value = Look> {
    let statuses = prop_oneof![
        Just(JobStatus::InProgress),
        Just(JobStatus::Stopping),
        Just(JobStatus::Completed),
        Just(JobStatus::Stopped),
        Just(JobStatus::Failed),
        Just(JobStatus::Deleting),
        Just(JobStatus::Unknown("New".into())),
    ];
    prop_oneof![
        Just(Look::NotLooked),
        Just(Look::Absent),
        Just(Look::NoAnswer("x".into())),
        (statuses, any::<bool>()).prop_map(|(status, ours)| {
            let mut found = job(status, "Whatever");
            if !ours {
                found.marker = None;
            }
            seen(found)
        }),
    ]
}

proptest! {
    /// No decision ever creates a second job while one may exist: Plan comes only without a live
    /// attempt, Create only for a planned one without a stop request.
    #[test]
    fn never_two_live_jobs_for_a_trial(
        trial in prop::sample::select(TrialState::ALL),
        state in prop::option::of(prop::sample::select(AttemptState::ALL)),
        stop_requested in any::<bool>(),
        sight in any_seen(),
        absent in 0..8_u32,
    ) {
        let facts = |state| AttemptFacts { absent, ..attempt(state) };
        let case = Situation { trial, stop_requested, stop_reason: None, attempt: state.map(facts), seen: sight, now: now() };
        match decide(&case, &Policy::default()) {
            Decision::Plan => prop_assert!(!stop_requested && state.is_none_or(AttemptState::is_terminal)),
            Decision::Create => prop_assert!(!stop_requested && state == Some(AttemptState::Planned)),
            Decision::End(_) | Decision::Retry { .. } | Decision::Stop | Decision::Adopt =>
                prop_assert!(state.is_some_and(|state| !state.is_terminal()) && !trial.is_terminal()),
            Decision::Nothing => prop_assert!(trial.is_terminal() || trial == TrialState::Parked),
            Decision::LookAgain { at } => prop_assert!(at >= now()),
            Decision::Quarantine { .. } => prop_assert!(stop_requested),
            Decision::EndUnstarted { .. } =>
                prop_assert!(stop_requested && state.is_none_or(AttemptState::is_terminal)),
        }
    }
}

proptest! {
    /// Every decision is a transition in the state diagram.
    #[test]
    fn endings_follow_the_drawing(
        trial in prop::sample::select(TrialState::ALL),
        state in prop::sample::select(AttemptState::ALL),
        stop_requested in any::<bool>(),
        sight in any_seen(),
        absent in 0..8_u32,
    ) {
        // Only combinations that the store can hold.
        let fits = match trial {
            TrialState::Submitting =>
                matches!(state, AttemptState::Planned | AttemptState::Quarantined) || state.is_terminal(),
            TrialState::Running => state == AttemptState::Running,
            TrialState::Stopping =>
                stop_requested && matches!(state, AttemptState::Planned | AttemptState::Quarantined | AttemptState::Running),
            TrialState::Queued
            | TrialState::Parked
            | TrialState::Refused
            | TrialState::Completed
            | TrialState::Failed
            | TrialState::Stopped => state.is_terminal(),
        };
        prop_assume!(fits);
        let case = Situation { trial, stop_requested, stop_reason: None, attempt: Some(AttemptFacts { absent, ..attempt(state) }), seen: sight, now: now() };
        match decide(&case, &Policy::default()) {
            Decision::End(ending) | Decision::Retry { ending, .. } => {
                prop_assert!(trial.followers().contains(&ending.trial), "{trial:?} to {:?}", ending.trial);
                prop_assert!(state.followers().contains(&ending.attempt), "{state:?} to {:?}", ending.attempt);
            }
            Decision::EndUnstarted { .. } => prop_assert!(trial.followers().contains(&TrialState::Stopped)),
            Decision::Adopt => prop_assert!(state.followers().contains(&AttemptState::Running)),
            Decision::Quarantine { .. } => prop_assert!(state.followers().contains(&AttemptState::Quarantined)),
            Decision::Plan => prop_assert!(matches!(trial, TrialState::Queued | TrialState::Submitting)),
            Decision::Nothing | Decision::Create | Decision::Stop | Decision::LookAgain { .. } => {}
        }
    }
}
