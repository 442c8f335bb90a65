//! The deployer: puts endpoints into service, tests and updates them, and has them deleted in time, one claimed
//! endpoint at a time. What is done next is decided by [`bakeoff_domain::endpoint::decide`]; the scheduler creates
//! and deletes them.

mod scheduled_end;

use std::fmt::Display;

use bakeoff_domain::endpoint::decide::{EndpointSeen, EndpointStep, Tested, after_test, decide};
use bakeoff_domain::endpoint::{EndpointState, EndpointStatus};
use bakeoff_domain::ports::EndpointUpdate;
use bakeoff_domain::sagemaker::endpoint::{EndpointRequest, revision_name};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::ObservedJob;
use bakeoff_domain::spec::pipeline::endpoint::SmokeTest;
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use crate::tasks::due::{self, Due, HOLD};
use bakeoff_process::crash;
use bakeoff_store::StoreError;
use bakeoff_store::endpoints::{Endpoint, EndpointNext};

/// When it is looked at again after a change.
const AGAIN: TimeDelta = TimeDelta::seconds(30);
/// Characters of an answer that are told.
const TOLD_MAX: usize = 200;

/// Runs one tick; returns how many were worked on.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    due::tick::<Endpoint>(app).await
}

impl Due for Endpoint {
    const WHAT: &'static str = "endpoint";

    fn id(&self) -> impl Display {
        self.id
    }

    async fn claim(app: &App, now: DateTime<Utc>) -> Result<Option<Self>, StoreError> {
        let region = &app.place.region;
        app.store.claim_due_endpoint(region, now, HOLD).await
    }

    async fn work(&self, app: &App) -> Result<(), StoreError> {
        work(app, self).await
    }
}

async fn work(app: &App, endpoint: &Endpoint) -> Result<(), StoreError> {
    let looked_at = app.clock.now();
    let seen = look(app, endpoint).await?;
    let is_seen = seen.as_ref().is_some_and(|job| {
        EndpointStatus::parse(&job.secondary_status) != EndpointStatus::Deleting
    });
    let facts = endpoint.facts();
    let now = app.clock.now();
    let told = seen.as_ref().and_then(|job| job.failure_reason.clone());
    let step = decide(&facts, shown(endpoint, seen.as_ref()), now);
    crash::point("before_deploy");
    let mut tries = facts.test_tries;
    let (step, why) = match step {
        EndpointStep::Test => {
            let tested = test(app, endpoint).await;
            let why = match &tested {
                Tested::Passed => None,
                Tested::Failed(why) | Tested::NoAnswer(why) => Some(why.clone()),
            };
            tries += u32::from(matches!(tested, Tested::NoAnswer(_)));
            (after_test(&facts, tested, app.clock.now()), why)
        }
        step => (step, told),
    };
    let change = Change {
        endpoint,
        why,
        tries,
        now,
    };
    let ends = matches!(step, EndpointStep::Delete { .. } | EndpointStep::End);
    let mut next = change.next(app, step).await?;
    crash::point("after_deploy");
    let seen_at = is_seen.then_some(looked_at);
    if !ends && !scheduled_end::keep(app, endpoint, seen_at, now).await? {
        next.due_at = next.due_at.map(|due| due.min(now + AGAIN));
    }
    app.store.record_endpoint(endpoint, &next, now).await?;
    app.wake_schedulers();
    Ok(())
}

/// The endpoint as SageMaker has it; nothing while it is not known to exist, or without an answer.
async fn look(app: &App, endpoint: &Endpoint) -> Result<Option<ObservedJob>, StoreError> {
    let is_over = endpoint.trial_state.is_terminal();
    let Some(name) = endpoint.job_name.as_ref().filter(|_| !is_over) else {
        return Ok(None);
    };
    if super::confirm_account(app).await?.is_err() {
        return Ok(None);
    }
    match app.place.aws.describe(JobKind::Endpoint, name).await {
        Ok(job) => Ok(Some(job)),
        Err(AwsError::NotFound(_)) => Ok(None),
        Err(error) => {
            tracing::info!(%error, endpoint = %endpoint.id, "describing an endpoint failed");
            Ok(None)
        }
    }
}

/// What was seen, with the revision of its configuration.
fn shown(endpoint: &Endpoint, seen: Option<&ObservedJob>) -> EndpointSeen {
    let Some(job) = seen else {
        return EndpointSeen::Nothing;
    };
    let config = job.actual.config_name.as_deref();
    let is_of = |revision: &u32| config == Some(&revision_name(&job.job_name, *revision));
    let known = [endpoint.revision, endpoint.wanted_revision];
    EndpointSeen::Endpoint {
        status: EndpointStatus::parse(&job.secondary_status),
        // One that somebody else has put into it is none of ours.
        revision: known.into_iter().find(is_of).unwrap_or(u32::MAX),
    }
}

/// Sends the smoke test.
async fn test(app: &App, endpoint: &Endpoint) -> Tested {
    let (Some(test), Some(name)) = (&endpoint.spec.smoke_test, &endpoint.job_name) else {
        return Tested::Passed;
    };
    match app.place.aws.invoke(name, test).await {
        Ok(answer) => judged(test, &answer),
        Err(AwsError::Rejected { code, message }) => Tested::Failed(format!("{code}: {message}")),
        Err(error @ (AwsError::Denied(_) | AwsError::NotFound(_))) => {
            Tested::Failed(format!("InvokeEndpoint: {error}"))
        }
        Err(error) => Tested::NoAnswer(error.to_string()),
    }
}

fn judged(test: &SmokeTest, answer: &[u8]) -> Tested {
    let answer = String::from_utf8_lossy(answer);
    let is_fine = test
        .expect
        .as_ref()
        .is_none_or(|expected| answer.contains(expected.as_str()));
    if is_fine {
        return Tested::Passed;
    }
    let told: String = answer
        .chars()
        .filter(|c| *c != '\0')
        .take(TOLD_MAX)
        .collect();
    let expected = test.expect.as_deref().unwrap_or_default();
    Tested::Failed(format!("the answer does not contain `{expected}`: {told}"))
}

/// A step that is carried out.
struct Change<'a> {
    endpoint: &'a Endpoint,
    /// Of a failure: what is told of it.
    why: Option<String>,
    tries: u32,
    now: DateTime<Utc>,
}

impl Change<'_> {
    async fn next(self, app: &App, step: EndpointStep) -> Result<EndpointNext, StoreError> {
        let soon = Some(self.now + AGAIN);
        let kept = EndpointNext {
            reason: self.endpoint.reason.clone(),
            test_tries: self.tries,
            due_at: soon,
            ..EndpointNext::default()
        };
        Ok(match step {
            EndpointStep::Wait { until } => EndpointNext {
                reason: self.waits(),
                due_at: Some(until),
                ..kept
            },
            // Its outcome is carried out above.
            EndpointStep::Test => kept,
            EndpointStep::Serve => self.serves(),
            EndpointStep::Update { revision } => self.update(app, revision).await?,
            EndpointStep::RolledBack => EndpointNext {
                state: Some(EndpointState::InService),
                reason: Some(self.rolled_back()),
                wanted_revision: Some(self.endpoint.revision),
                outcome: Some(self.rolled_back()),
                update_forgotten: true,
                test_tries: 0,
                ..kept
            },
            EndpointStep::Announce => EndpointNext {
                announced: true,
                ..kept
            },
            EndpointStep::Delete { reason, failed } => {
                let reason = match &self.why {
                    Some(why) if failed && !reason.contains(why.as_str()) => {
                        format!("{reason}: {why}")
                    }
                    _ => reason,
                };
                EndpointNext {
                    state: Some(EndpointState::Deleting),
                    reason: Some(reason.clone()),
                    delete: Some(reason),
                    ..kept
                }
            }
            EndpointStep::End => self.ended(),
        })
    }

    fn waits(&self) -> Option<String> {
        let endpoint = self.endpoint;
        let of_job = || endpoint.trial_reason.clone();
        match endpoint.state {
            EndpointState::Creating => self.why.clone().or_else(of_job),
            _ => self.why.clone().or_else(|| endpoint.reason.clone()),
        }
    }

    fn rolled_back(&self) -> String {
        let why = self.why.clone().or_else(|| self.endpoint.reason.clone());
        let why = why.unwrap_or_else(|| "SageMaker has undone the update".to_owned());
        format!("the update was rolled back: {why}")
    }

    fn serves(&self) -> EndpointNext {
        let is_update = self.endpoint.state == EndpointState::Updating;
        let tested = if self.endpoint.spec.smoke_test.is_some() {
            "it serves, and the smoke test has passed"
        } else {
            "it serves"
        };
        EndpointNext {
            state: Some(EndpointState::InService),
            revision: Some(self.endpoint.wanted_revision),
            outcome: Some(tested.to_owned()),
            update_forgotten: is_update,
            in_service: true,
            due_at: Some(self.now + AGAIN),
            ..EndpointNext::default()
        }
    }

    /// Has SageMaker serve a revision: the wanted one, or the one before it.
    async fn update(self, app: &App, revision: u32) -> Result<EndpointNext, StoreError> {
        let endpoint = self.endpoint;
        let is_back = revision == endpoint.revision && revision != endpoint.wanted_revision;
        let mut next = EndpointNext {
            state: Some(if is_back {
                EndpointState::RollingBack
            } else {
                EndpointState::Updating
            }),
            reason: self.why.clone().or_else(|| endpoint.reason.clone()),
            due_at: Some(self.now + AGAIN),
            // What was sent before was another revision.
            update_forgotten: is_back,
            ..EndpointNext::default()
        };
        let Some(name) = &endpoint.job_name else {
            return Ok(next);
        };
        match send(app, endpoint, name, revision).await? {
            Ok(()) => (next.update_sent, next.update_forgotten) = (true, false),
            Err(error) if !is_back && is_refusal(&error) => {
                let why = format!("the update was refused: {error}");
                next.state = Some(EndpointState::InService);
                next.wanted_revision = Some(endpoint.revision);
                next.outcome = Some(why.clone());
                next.reason = Some(why);
            }
            Err(error) => next.reason = Some(format!("UpdateEndpoint: {error}")),
        }
        Ok(next)
    }

    /// It is deleted and billed.
    fn ended(&self) -> EndpointNext {
        let endpoint = self.endpoint;
        let has_served = endpoint.in_service_at.is_some();
        let reason = endpoint
            .reason
            .clone()
            .filter(|_| endpoint.state == EndpointState::Deleting);
        EndpointNext {
            state: Some(if has_served {
                EndpointState::Deleted
            } else {
                EndpointState::Failed
            }),
            reason: reason
                .or_else(|| endpoint.trial_reason.clone())
                .or_else(|| Some("it is gone".to_owned())),
            ..EndpointNext::default()
        }
    }
}

/// Whether asking again would change nothing: what serves goes on serving. An endpoint that is being changed takes no
/// other change, and will.
fn is_refusal(error: &AwsError) -> bool {
    match error {
        AwsError::Rejected { message, .. } => !message.contains("in-progress"),
        AwsError::LimitExceeded(_) | AwsError::Denied(_) => true,
        _ => false,
    }
}

async fn send(
    app: &App,
    endpoint: &Endpoint,
    name: &str,
    revision: u32,
) -> Result<Result<(), AwsError>, StoreError> {
    let config = revision_name(name, revision);
    let first = endpoint.request()?;
    let model = app.store.revision_model(endpoint.id, revision).await?;
    let request = EndpointRequest { model, ..first };
    let aws = &app.place.aws;
    if let Err(error) = aws.create_revision(&config, &request).await {
        return Ok(Err(error));
    }
    let update = EndpointUpdate {
        endpoint: name,
        config: &config,
    };
    Ok(aws.update_endpoint(update).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_asking_again_does_not_change_is_a_refusal() {
        let rejected = |message: &str| AwsError::Rejected {
            code: "ValidationException".to_owned(),
            message: message.to_owned(),
        };
        assert!(is_refusal(&rejected("no such model")));
        assert!(!is_refusal(&rejected("an update is in-progress")));
        // Blue and green need twice the instances for a while.
        assert!(is_refusal(&AwsError::LimitExceeded(String::new())));
        assert!(is_refusal(&AwsError::Denied(String::new())));
        assert!(!is_refusal(&AwsError::Throttled(String::new())));
        assert!(!is_refusal(&AwsError::Unknown(String::new())));
    }

    #[test]
    fn an_answer_is_held_against_what_is_expected() {
        let test = |expect: Option<&str>| SmokeTest {
            body: "{}".to_owned(),
            content_type: "application/json".to_owned(),
            expect: expect.map(str::to_owned),
        };
        assert_eq!(judged(&test(None), b"\xff"), Tested::Passed);
        assert_eq!(judged(&test(Some("ok")), b"{\"ok\": 1}"), Tested::Passed);
        assert!(matches!(
            judged(&test(Some("ok")), b"no\0pe"),
            Tested::Failed(why) if why.ends_with("nope")
        ));
    }
}
