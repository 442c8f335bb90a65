//! The courier: brings events to webhook endpoints, several at a time, and tries again what has not arrived. Each
//! delivery has one id, by which a receiver knows one that comes twice. When it is tried again is decided by
//! [`bakeoff_domain::webhook`]; where a request may go, by [`crate::outgoing`].

use std::time::Duration;

use bakeoff_domain::ids::WebhookEndpointId;
use bakeoff_domain::webhook::{self, Form, Tried};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use futures::StreamExt;
use hmac::Mac;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue};
use serde_json::json;

use crate::api::events::EventView;
use crate::app::App;
use crate::auth::secrets::{mac, webhook_secret};
use crate::clock::{Stopwatch, real_now};
use crate::crash;
use crate::outgoing::{Answer, NoAnswer};
use crate::store::webhooks::WebhookEndpoint;
use crate::store::webhooks::deliveries::{ClaimedDelivery, NewAttempt};
use crate::store::{StoreError, to_json};

/// Endpoints that are called at the same time, and deliveries to one of them.
const ENDPOINTS_AT_ONCE: usize = 16;
const AT_ONCE: usize = 4;
/// How long one endpoint is served before new ones are looked for.
const TURN: Duration = Duration::from_secs(20);
/// How long a claim is held: longer than its requests may take, a quarter of a minute each.
const HOLD: TimeDelta = TimeDelta::minutes(5);

/// What is sent.
#[derive(Debug)]
pub struct Message {
    pub headers: HeaderMap,
    pub body: String,
}

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
    let body = body(&endpoint, &entry.into(), &experiment)?;
    let message = message(app, &endpoint, &delivery.id.to_string(), body);
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
    let tried = Tried {
        status: attempt.status,
        retry_after_seconds: answer.ok().and_then(|answer| answer.retry_after),
    };
    let next = webhook::next(tried, delivery.number_since_begun, luck(delivery), now);
    let think = |failing_since| webhook::given_up(tried, next, failing_since, now);
    app.store
        .record_delivery(delivery, &attempt, next, think)
        .await
}

/// The same for a try of a delivery, different for each: deliveries that failed together are not tried again together.
fn luck(delivery: &ClaimedDelivery) -> f64 {
    let bytes = delivery.id.0.as_bytes();
    f64::from(
        bytes
            .iter()
            .fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte)),
    ) / 255.0
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
            webhook::slack(event.severity, experiment, &event.message, way_out).to_string()
        }
    })
}

/// A message with its id, the time of this try, and its signatures (Standard Webhooks 1.0.0).
pub fn message(
    app: &App,
    endpoint: &WebhookEndpoint,
    id: &str,
    body: String,
) -> Result<Message, InvalidHeaderValue> {
    // What a receiver compares with its own clock.
    let sent = real_now().timestamp().to_string();
    let newest = endpoint.secret_version;
    let has_previous = newest > 1
        && endpoint
            .previous_secret_until
            .is_some_and(|until| app.clock.now() < until);
    let versions = [Some(newest), has_previous.then(|| newest - 1)];
    let signatures: Vec<String> = versions
        .into_iter()
        .flatten()
        .map(|version| {
            let key = webhook_secret(&app.settings.secret_key, endpoint.id, version);
            signature(&key, id, &sent, &body)
        })
        .collect();
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in [
        ("webhook-id", id),
        ("webhook-timestamp", &sent),
        ("webhook-signature", &signatures.join(" ")),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
    }
    Ok(Message { headers, body })
}

/// `v1,` and the base64 of the HMAC-SHA256 of id, time and body.
fn signature(key: &[u8], id: &str, sent: &str, body: &str) -> String {
    let signed = format!("{id}.{sent}.{body}");
    format!(
        "v1,{}",
        STANDARD.encode(mac(key, signed.as_bytes()).finalize().into_bytes())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Standard Webhooks 1.0.0.
    #[test]
    fn the_published_signature_is_ours() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert_eq!(
            signature(
                &key,
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                "1614265330",
                r#"{"test": 2432232314}"#
            ),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }
}
