//! The courier: brings events to webhook endpoints, several at a time, and tries again what has not arrived. Each
//! delivery has one id, by which a receiver knows one that comes twice. When it is tried again is decided by
//! [`bakeoff_domain::webhook_endpoint`]; where a request may go, by [`crate::outgoing`].

use std::time::Duration;

use bakeoff_domain::delivery::{self, TryOutcome};
use bakeoff_domain::ids::WebhookEndpointId;
use bakeoff_domain::webhook_endpoint::{Form, slack};
use chrono::{DateTime, TimeDelta, Utc};
use futures::StreamExt;
use serde_json::json;

use crate::app::App;
use crate::outgoing::message::message;
use crate::outgoing::{Answer, NoAnswer};
use bakeoff_api::events::EventView;
use bakeoff_process::clock::Stopwatch;
use bakeoff_process::crash;
use bakeoff_store::webhook_endpoints::WebhookEndpoint;
use bakeoff_store::webhook_endpoints::deliveries::{ClaimedDelivery, NewAttempt};
use bakeoff_store::{StoreError, to_json};

/// Endpoints that are called at the same time, and deliveries to one of them.
const ENDPOINTS_AT_ONCE: usize = 16;
const AT_ONCE: usize = 4;
/// How long one endpoint is served before new ones are looked for.
const TURN: Duration = Duration::from_secs(20);
/// What stands in a message to Slack for the experiment, where there is none.
const NO_EXPERIMENT: &str = "this installation";
/// How long a claim is held: longer than its requests may take, a quarter of a minute each.
const HOLD: TimeDelta = TimeDelta::minutes(5);

/// Runs one tick; returns how many deliveries were tried. Each endpoint has a turn of its own: one that is slow holds
/// up no other.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let due = app.store.endpoints_due(app.clock.now()).await?;
    let turns = futures::stream::iter(due).map(|endpoint| turn(app, endpoint));
    let turns = turns
        .buffer_unordered(ENDPOINTS_AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    turns.into_iter().sum()
}

async fn turn(app: &App, endpoint: WebhookEndpointId) -> Result<usize, StoreError> {
    let (mut tried, took) = (0, Stopwatch::start());
    while took.elapsed() < TURN {
        let now = app.clock.now();
        // A copy of the database must not tell what its original tells.
        if !app.fence.may_act(now) {
            break;
        }
        let limit = i64::try_from(AT_ONCE).unwrap_or(i64::MAX);
        let claimed = app
            .store
            .claim_deliveries(endpoint, now, HOLD, limit)
            .await?;
        let count = claimed.len();
        let each = futures::stream::iter(claimed);
        each.for_each_concurrent(AT_ONCE, |delivery| async move {
            app.pulse.beat();
            if let Err(error) = deliver(app, &delivery).await {
                tracing::warn!(%error, delivery = %delivery.id, "a delivery was not recorded; it is due again later");
            }
        })
        .await;
        tried += count;
        if count < AT_ONCE {
            break;
        }
    }
    Ok(tried)
}

async fn deliver(app: &App, delivery: &ClaimedDelivery) -> Result<(), StoreError> {
    // As it is now: it may have been disabled, moved or given another secret since the claim.
    let Some(endpoint) = app.store.endpoint_to_call(delivery.endpoint_id).await? else {
        return app.store.drop_delivery(delivery, app.clock.now()).await;
    };
    let (entry, experiment) = app.store.event(delivery.event_id).await?;
    let of = experiment.as_deref().unwrap_or(NO_EXPERIMENT);
    let body = body(&endpoint, &entry.into(), of)?;
    let key = &app.settings.secret_key;
    let id = delivery.id.to_string();
    let message = message(key, &endpoint, &id, body, app.clock.now());
    if !app.store.begin_delivery(delivery).await? {
        return Ok(());
    }
    crash::point("before_delivery");
    let answer = match message {
        Ok(message) => {
            app.outgoing
                .post(&endpoint.url, message.headers, message.body)
                .await
        }
        Err(error) => Err(NoAnswer::Failed(error.to_string())),
    };
    crash::point("after_delivery");
    let now = app.clock.now();
    let attempt = attempt(&answer, now);
    let tried = TryOutcome {
        status: attempt.status,
        retry_after_seconds: answer.ok().and_then(|answer| answer.number("retry-after")),
    };
    let luck = delivery::luck(delivery.id.0.as_bytes());
    let next = delivery::next(tried, delivery.number_since_begun, luck, now);
    let think = |failing_since| delivery::given_up(tried, next, failing_since, now);
    app.store
        .record_delivery(delivery, &attempt, next, think)
        .await
}

fn attempt(answer: &Result<Answer, NoAnswer>, at: DateTime<Utc>) -> NewAttempt {
    let (problem, answer) = match answer {
        Ok(answer) => (None, Some(answer)),
        Err(error) => (Some(error.to_string()), None),
    };
    NewAttempt {
        at,
        status: answer.map(|answer| answer.status),
        problem,
        answer: answer.map(|answer| answer.body.clone()),
        milliseconds: answer.map(|answer| answer.milliseconds),
    }
}

/// The body of an event in an endpoint's form.
fn body(
    endpoint: &WebhookEndpoint,
    event: &EventView,
    experiment: &str,
) -> Result<String, StoreError> {
    Ok(match endpoint.form {
        Form::Standard => {
            let (kind, at) = (event.kind.clone(), event.recorded_at);
            json!({"type": kind, "timestamp": at, "data": to_json(event)?}).to_string()
        }
        Form::Slack => {
            let way_out = event.way_out.as_deref();
            slack(event.severity, experiment, &event.message, way_out).to_string()
        }
    })
}
