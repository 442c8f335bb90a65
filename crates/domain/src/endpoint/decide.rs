//! What is done about an endpoint next. Creating it, deleting it and billing it is the scheduler's matter; here it
//! is put into service, tested, updated, rolled back, announced as running out, and given up.

use chrono::{DateTime, TimeDelta, Utc};

use super::{EndpointState, EndpointStatus};

/// How long it is left alone while it is created or updated.
const POLL: TimeDelta = TimeDelta::seconds(30);
/// How long it is left alone while it serves.
const REST: TimeDelta = TimeDelta::minutes(10);
/// After an update was accepted, DescribeEndpoint may still show what was before (assumed).
const UPDATE_SHOWS_AFTER: TimeDelta = TimeDelta::minutes(2);
/// Tries of a smoke test that got no answer at all.
const TEST_TRIES_MAX: u32 = 5;
/// The longest time before its end that an endpoint is announced as running out.
const WARN_BEFORE: TimeDelta = TimeDelta::minutes(30);

/// What is stored of an endpoint that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointFacts {
    pub state: EndpointState,
    /// Whether the job of its trial is over: it is deleted, and billed.
    pub is_gone: bool,
    /// Whether its deletion was asked for.
    pub is_stopping: bool,
    /// The revision that serves.
    pub revision: u32,
    /// The one that is to serve.
    pub wanted_revision: u32,
    /// When SageMaker accepted the last update.
    pub update_sent_at: Option<DateTime<Utc>>,
    /// Whether it has a smoke test.
    pub is_tested: bool,
    /// Smoke tests of this revision without an answer.
    pub test_tries: u32,
    pub time_to_live: TimeDelta,
    /// Once it has served.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it must be deleted so that what is reserved for it is enough; once it is billed.
    pub latest_end: Option<DateTime<Utc>>,
    pub is_announced: bool,
}

/// What SageMaker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointSeen {
    /// It is not there yet, or not any more, or there was no answer: nothing is concluded.
    Nothing,
    Endpoint {
        status: EndpointStatus,
        /// The revision of its configuration.
        revision: u32,
    },
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointStep {
    Wait {
        until: DateTime<Utc>,
    },
    /// Send the smoke test.
    Test,
    /// Have SageMaker serve this revision.
    Update {
        revision: u32,
    },
    /// It serves what it should.
    Serve,
    /// SageMaker has put the old revision back, or the test has failed and we have.
    RolledBack,
    /// Tell that it will be deleted soon.
    Announce,
    /// Have it deleted. `failed`: because it never served.
    Delete {
        reason: String,
        failed: bool,
    },
    /// Its job is over.
    End,
}

/// Decides the next step.
pub fn decide(facts: &EndpointFacts, seen: EndpointSeen, now: DateTime<Utc>) -> EndpointStep {
    let wait = EndpointStep::Wait { until: now + POLL };
    if facts.is_gone {
        return EndpointStep::End;
    }
    if facts.is_stopping || facts.state == EndpointState::Deleting {
        return wait;
    }
    if facts.expires_at.is_some_and(|end| end <= now) {
        return EndpointStep::Delete {
            reason: "its time to live is over".to_owned(),
            failed: false,
        };
    }
    // Also if it never served, or nobody could look at it for as long.
    if facts.latest_end.is_some_and(|end| end <= now) {
        return EndpointStep::Delete {
            reason: "what is reserved for it is used up".to_owned(),
            failed: !facts.state.serves(),
        };
    }
    let EndpointSeen::Endpoint { status, revision } = seen else {
        return wait;
    };
    match status {
        EndpointStatus::Failed => EndpointStep::Delete {
            reason: "SageMaker could not create it".to_owned(),
            failed: !facts.state.serves(),
        },
        EndpointStatus::UnderWay | EndpointStatus::Deleting | EndpointStatus::Unknown => wait,
        EndpointStatus::InService => in_service(facts, revision, now),
    }
}

fn in_service(facts: &EndpointFacts, revision: u32, now: DateTime<Utc>) -> EndpointStep {
    let tested = || {
        if facts.is_tested {
            EndpointStep::Test
        } else {
            EndpointStep::Serve
        }
    };
    // Even during an update: the endpoint ends whether or not the update succeeds.
    if facts.state.serves() && is_to_be_announced(facts, now) {
        return EndpointStep::Announce;
    }
    match facts.state {
        EndpointState::Creating => tested(),
        EndpointState::Updating if revision == facts.wanted_revision => tested(),
        EndpointState::Updating => sent(facts, facts.wanted_revision, revision, now),
        EndpointState::RollingBack if revision == facts.revision => EndpointStep::RolledBack,
        EndpointState::RollingBack => sent(facts, facts.revision, revision, now),
        EndpointState::InService => serving(facts, now),
        EndpointState::Deleting | EndpointState::Deleted | EndpointState::Failed => {
            EndpointStep::Wait { until: now + REST }
        }
    }
}

/// An update that SageMaker does not show: not sent yet, not visible yet, or undone by SageMaker. It is sent again
/// if neither it nor what served before is shown: a way back that failed leaves the bad model in service.
fn sent(facts: &EndpointFacts, revision: u32, shown: u32, now: DateTime<Utc>) -> EndpointStep {
    match facts.update_sent_at {
        Some(at) if now < at + UPDATE_SHOWS_AFTER => EndpointStep::Wait { until: now + POLL },
        Some(_) if shown == facts.revision => EndpointStep::RolledBack,
        Some(_) | None => EndpointStep::Update { revision },
    }
}

/// When people are told of its end.
fn announce_at(facts: &EndpointFacts) -> Option<DateTime<Utc>> {
    let end = facts.expires_at?;
    Some(end - WARN_BEFORE.min(facts.time_to_live / 4))
}

fn is_to_be_announced(facts: &EndpointFacts, now: DateTime<Utc>) -> bool {
    !facts.is_announced && announce_at(facts).is_some_and(|at| at <= now)
}

fn serving(facts: &EndpointFacts, now: DateTime<Utc>) -> EndpointStep {
    let Some(end) = facts.expires_at else {
        return EndpointStep::Serve;
    };
    let next = announce_at(facts).filter(|_| !facts.is_announced);
    let next = next.unwrap_or(end);
    EndpointStep::Wait {
        until: next.min(now + REST),
    }
}

/// What a smoke test has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tested {
    Passed,
    Failed(String),
    NoAnswer(String),
}

/// What follows from a smoke test.
pub fn after_test(facts: &EndpointFacts, tested: Tested, now: DateTime<Utc>) -> EndpointStep {
    let why = match tested {
        Tested::Passed => return EndpointStep::Serve,
        Tested::NoAnswer(_) if facts.test_tries + 1 < TEST_TRIES_MAX => {
            return EndpointStep::Wait { until: now + POLL };
        }
        Tested::NoAnswer(why) | Tested::Failed(why) => why,
    };
    if facts.state == EndpointState::Updating {
        return EndpointStep::Update {
            revision: facts.revision,
        };
    }
    EndpointStep::Delete {
        reason: format!("the smoke test failed: {why}"),
        failed: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

    fn facts(state: EndpointState) -> EndpointFacts {
        EndpointFacts {
            state,
            is_gone: false,
            is_stopping: false,
            revision: 0,
            wanted_revision: u32::from(state == EndpointState::Updating),
            update_sent_at: None,
            is_tested: true,
            test_tries: 0,
            time_to_live: TimeDelta::hours(4),
            expires_at: None,
            latest_end: None,
            is_announced: false,
        }
    }

    /// People are told that an endpoint is about to end even while an update of it is stuck.
    #[test]
    fn an_end_is_announced_whatever_becomes_of_a_change() {
        for state in [
            EndpointState::InService,
            EndpointState::Updating,
            EndpointState::RollingBack,
        ] {
            let facts = EndpointFacts {
                expires_at: Some(NOW + TimeDelta::minutes(1)),
                ..facts(state)
            };
            let step = decide(&facts, seen(EndpointStatus::InService, 0), NOW);
            assert_eq!(step, EndpointStep::Announce, "{state:?}");
            let told = EndpointFacts {
                is_announced: true,
                ..facts
            };
            let step = decide(&told, seen(EndpointStatus::InService, 0), NOW);
            assert_ne!(step, EndpointStep::Announce, "{state:?}");
        }
    }

    fn seen(status: EndpointStatus, revision: u32) -> EndpointSeen {
        EndpointSeen::Endpoint { status, revision }
    }

    #[test]
    fn it_serves_once_the_test_has_passed_and_is_deleted_if_it_has_not() {
        let new = facts(EndpointState::Creating);
        assert_eq!(
            decide(&new, seen(EndpointStatus::InService, 0), NOW),
            EndpointStep::Test
        );
        assert_eq!(after_test(&new, Tested::Passed, NOW), EndpointStep::Serve);
        let deleted = after_test(&new, Tested::Failed("no".into()), NOW);
        assert!(matches!(deleted, EndpointStep::Delete { failed: true, .. }));
        let silent = after_test(&new, Tested::NoAnswer("503".into()), NOW);
        assert!(matches!(silent, EndpointStep::Wait { .. }));
        let given_up = EndpointFacts {
            test_tries: 4,
            ..new
        };
        let silent = after_test(&given_up, Tested::NoAnswer("503".into()), NOW);
        assert!(matches!(silent, EndpointStep::Delete { .. }));
    }

    #[test]
    fn an_update_is_sent_once_waited_for_and_tested() {
        let wanted = facts(EndpointState::Updating);
        let old = seen(EndpointStatus::InService, 0);
        assert_eq!(
            decide(&wanted, old, NOW),
            EndpointStep::Update { revision: 1 }
        );
        let sent = EndpointFacts {
            update_sent_at: Some(NOW),
            ..wanted
        };
        assert!(matches!(decide(&sent, old, NOW), EndpointStep::Wait { .. }));
        let later = NOW + UPDATE_SHOWS_AFTER;
        assert_eq!(
            decide(&sent, old, later),
            EndpointStep::RolledBack,
            "SageMaker has undone it"
        );
        let new = seen(EndpointStatus::InService, 1);
        assert_eq!(decide(&sent, new, NOW), EndpointStep::Test);
        assert_eq!(
            after_test(&sent, Tested::Failed("wrong".into()), NOW),
            EndpointStep::Update { revision: 0 }
        );
    }

    #[test]
    fn its_end_is_announced_once_and_comes_in_every_state() {
        let serving = EndpointFacts {
            expires_at: Some(NOW + TimeDelta::minutes(20)),
            ..facts(EndpointState::InService)
        };
        let shown = seen(EndpointStatus::InService, 0);
        assert_eq!(decide(&serving, shown, NOW), EndpointStep::Announce);
        let announced = EndpointFacts {
            is_announced: true,
            ..serving
        };
        assert_eq!(
            decide(&announced, shown, NOW),
            EndpointStep::Wait { until: NOW + REST }
        );
        for state in EndpointState::ALL.iter().filter(|state| state.serves()) {
            let over = EndpointFacts {
                state: *state,
                expires_at: Some(NOW),
                ..facts(*state)
            };
            let step = decide(&over, EndpointSeen::Nothing, NOW);
            assert!(
                matches!(step, EndpointStep::Delete { failed: false, .. }),
                "{state:?}"
            );
        }
    }

    #[test]
    fn what_is_reserved_is_enough_even_if_nobody_could_look() {
        for state in EndpointState::ALL {
            let used_up = EndpointFacts {
                latest_end: Some(NOW),
                ..facts(*state)
            };
            let step = decide(&used_up, EndpointSeen::Nothing, NOW);
            assert_eq!(
                matches!(step, EndpointStep::Delete { .. }),
                *state != EndpointState::Deleting,
                "{state:?}"
            );
        }
    }

    #[test]
    fn a_way_back_that_failed_is_tried_again() {
        let back = EndpointFacts {
            wanted_revision: 1,
            update_sent_at: Some(NOW),
            ..facts(EndpointState::RollingBack)
        };
        let bad = seen(EndpointStatus::InService, 1);
        assert!(matches!(decide(&back, bad, NOW), EndpointStep::Wait { .. }));
        let later = NOW + UPDATE_SHOWS_AFTER;
        assert_eq!(
            decide(&back, bad, later),
            EndpointStep::Update { revision: 0 }
        );
        let good = seen(EndpointStatus::InService, 0);
        assert_eq!(decide(&back, good, later), EndpointStep::RolledBack);
    }

    #[test]
    fn nothing_is_concluded_from_silence_or_a_status_of_later() {
        for unclear in [EndpointSeen::Nothing, seen(EndpointStatus::Unknown, 0)] {
            for state in [EndpointState::Creating, EndpointState::Updating] {
                let step = decide(&facts(state), unclear, NOW);
                assert!(matches!(step, EndpointStep::Wait { .. }));
            }
        }
        let failed = decide(
            &facts(EndpointState::Creating),
            seen(EndpointStatus::Failed, 0),
            NOW,
        );
        assert!(matches!(failed, EndpointStep::Delete { failed: true, .. }));
    }
}
