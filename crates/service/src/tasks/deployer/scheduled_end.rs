//! Keeps the end that a serving endpoint has at AWS as it should be: moved to the end of its time to live, moved on
//! each extension, after that is reserved, and looked at now and then. What is done is decided by
//! [`bakeoff_domain::endpoint::scheduled_end`].

use bakeoff_domain::endpoint::scheduled_end::{EndFacts, EndStep, NO_END, decide_end, no_end};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::schedule::{ScheduledAction, ScheduledEnd};
use chrono::{DateTime, Utc};

use crate::app::App;
use crate::tasks::confirm_account;
use bakeoff_store::StoreError;
use bakeoff_store::endpoints::{EndTrouble, Endpoint, WhichEndpoints};

/// Does what is to be done about the end of an endpoint; false if it must be tried again soon. `seen_at`: when it was
/// looked at, if it was there and not being deleted.
pub(super) async fn keep(
    app: &App,
    endpoint: &Endpoint,
    seen_at: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let role = app.settings.scheduler_role_arn.as_ref();
    let (Some(job_name), Some(role_arn)) = (endpoint.job_name.clone(), role.cloned()) else {
        return Ok(true);
    };
    let end = |at| ScheduledEnd {
        action: ScheduledAction::DeleteEndpoint,
        job_name,
        at,
        role_arn,
    };
    let known = EndpointAndFacts {
        endpoint,
        facts: endpoint.end_facts(seen_at),
        now,
    };
    match decide_end(&known.facts, now) {
        EndStep::Nothing => Ok(true),
        EndStep::Move { to } => change(app, &known, end(to)).await,
        EndStep::Check { at } => check(app, &known, end(at)).await,
    }
}

/// The endpoint, and the facts that a step was decided on.
struct EndpointAndFacts<'a> {
    endpoint: &'a Endpoint,
    facts: EndFacts,
    now: DateTime<Utc>,
}

/// Whether this process may change what the account has.
async fn may_act(app: &App, now: DateTime<Utc>) -> Result<bool, StoreError> {
    Ok(app.fence.may_act(now) && confirm_account(app).await?.is_ok())
}

/// Moves it. That its outcome is not known is written before: a crash or a claim in between has it sent again.
async fn change(
    app: &App,
    known: &EndpointAndFacts<'_>,
    end: ScheduledEnd,
) -> Result<bool, StoreError> {
    let (endpoint, now) = (known.endpoint, known.now);
    if !may_act(app, now).await? || !app.store.doubt_scheduled_end(endpoint.claim(), now).await? {
        return Ok(false);
    }
    let aws = &app.place.aws;
    let mut call = "UpdateSchedule";
    let mut reply = aws.move_end(&end).await;
    let is_gone = matches!(reply, Err(AwsError::NotFound(_)));
    if is_gone {
        // It was carried out while the change was on its way: what AWS has ended stays ended.
        if known.facts.has_ended(app.clock.now()) {
            return Ok(true);
        }
        call = "CreateSchedule";
        reply = aws.create_schedule(&end).await;
    }
    match reply {
        Ok(()) => confirmed(app, endpoint, &end, now).await,
        Err(error) => {
            let failure = Failure {
                call,
                is_gone,
                error,
            };
            failed(app, endpoint, &failure, now).await
        }
    }
}

async fn confirmed(
    app: &App,
    endpoint: &Endpoint,
    end: &ScheduledEnd,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let store = &app.store;
    let is_recorded = store
        .record_scheduled_end(endpoint.claim(), &end.job_name, end.at, now)
        .await?;
    if !is_recorded && is_over(app, endpoint).await? {
        // It was deleted meanwhile, and its schedule before this one.
        if let Err(error) = app.place.aws.unschedule_end(&end.job_name).await {
            tracing::warn!(%error, job = end.job_name, "a schedule is left behind; it deletes itself at its time");
        }
    }
    Ok(true)
}

async fn is_over(app: &App, endpoint: &Endpoint) -> Result<bool, StoreError> {
    let one = WhichEndpoints::One(endpoint.id);
    let found = app.store.endpoints(endpoint.project_id, one, 1).await?;
    Ok(found
        .first()
        .is_none_or(|found| found.trial_state.is_terminal()))
}

/// Asks whether it is still scheduled as it was; otherwise it is moved there again.
async fn check(
    app: &App,
    known: &EndpointAndFacts<'_>,
    end: ScheduledEnd,
) -> Result<bool, StoreError> {
    let (endpoint, now) = (known.endpoint, known.now);
    if !may_act(app, now).await? {
        return Ok(false);
    }
    match app.place.aws.scheduled_end(&end).await {
        Ok(at) if at == end.at => confirmed(app, endpoint, &end, now).await,
        Ok(_) | Err(AwsError::NotFound(_)) => {
            tracing::warn!(
                job = end.job_name,
                "the schedule of an endpoint was changed at AWS; putting it back"
            );
            change(app, known, end).await
        }
        // The schedule was fine an hour ago: not being allowed to look is told when it is to be moved.
        Err(AwsError::Denied(_)) => confirmed(app, endpoint, &end, now).await,
        Err(error) => {
            let failure = Failure {
                call: "GetSchedule",
                is_gone: false,
                error,
            };
            failed(app, endpoint, &failure, now).await
        }
    }
}

/// A call that did not succeed.
struct Failure {
    call: &'static str,
    /// There is no schedule any more.
    is_gone: bool,
    error: AwsError,
}

/// Says that it is not as it should be. What is at AWS is the end before, or none.
async fn failed(
    app: &App,
    endpoint: &Endpoint,
    failure: &Failure,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let Failure {
        call,
        is_gone,
        error,
    } = failure;
    let is_refusal = match error {
        AwsError::Throttled(_) | AwsError::Unknown(_) | AwsError::Expired(_) => false,
        AwsError::AlreadyExists(_)
        | AwsError::LimitExceeded(_)
        | AwsError::Denied(_)
        | AwsError::NotFound(_)
        | AwsError::Rejected { .. } => true,
    };
    let at = endpoint.end.at.filter(|_| !is_gone);
    let stands = match (at, endpoint.usd_per_day_absent()) {
        (Some(at), _) => format!("its end at AWS is still {}", at.to_rfc3339()),
        (None, Some(usd)) => no_end(usd),
        (None, None) => NO_END.to_owned(),
    };
    let why = format!("{stands}; {call}: {error}");
    tracing::warn!(endpoint = %endpoint.id, why, "the end of an endpoint at AWS is not as it should be; retrying");
    let trouble = EndTrouble {
        why: &why,
        is_refusal,
        is_gone: *is_gone,
    };
    let store = &app.store;
    store
        .record_end_trouble(endpoint.trial_id, trouble, now)
        .await?;
    Ok(is_refusal)
}
