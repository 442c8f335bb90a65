//! API views of webhooks that go out: endpoints, deliveries, attempts.

use bakeoff_domain::delivery::DeliveryState;
use bakeoff_domain::event::{DisabledWebhook, EventSeverity};
use bakeoff_domain::ids::{DeliveryId, WebhookEndpointId};
use bakeoff_domain::webhook_endpoint::Form;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use bakeoff_store::webhook_endpoints::WebhookEndpoint;
use bakeoff_store::webhook_endpoints::deliveries::{DeliveryAttempt, WebhookDelivery};

/// A new webhook endpoint.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NewEndpointOfWebhooks {
    /// https, at a public address.
    pub url: String,
    /// `standard` (Standard Webhooks) when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
    /// Kinds of events, such as `ci.decided` and `trial.*`; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Severities that are told; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub severities: Vec<EventSeverity>,
}

/// What is to be changed of a webhook endpoint; what is absent stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ChangeEndpointOfWebhooks {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severities: Option<Vec<EventSeverity>>,
    /// False: nothing more is sent, and what is on its way is given up. True: from the next event on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// A webhook endpoint: who hears of which events.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EndpointOfWebhooks {
    pub id: WebhookEndpointId,
    /// Without its path, which may be secret.
    pub url: String,
    pub form: Form,
    pub kinds: Vec<String>,
    pub severities: Vec<String>,
    /// Counts from 1; grows with each rotation.
    pub secret_version: u32,
    /// Until when the secret before this one signs too.
    pub previous_secret_until: Option<DateTime<Utc>>,
    /// Since when nothing has arrived; after three days it is disabled.
    pub failing_since: Option<DateTime<Utc>>,
    pub disabled_at: Option<DateTime<Utc>>,
    pub disabled_reason: Option<String>,
    pub created_at: DateTime<Utc>,
    pub changed_at: DateTime<Utc>,
}

/// A webhook endpoint's secret, which is shown only once: it is derived from the installation's key and never stored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SecretOfWebhooks {
    pub id: WebhookEndpointId,
    pub secret_version: u32,
    /// `whsec_…`, as the libraries of Standard Webhooks take it.
    pub secret: String,
    /// Until when the secret before this one signs too.
    pub previous_secret_until: Option<DateTime<Utc>>,
}

/// What came of a test message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WebhookTest {
    /// Of the answer; 2xx has arrived.
    pub status: Option<u16>,
    /// Why there is no answer.
    pub problem: Option<String>,
    /// The first 4 kB.
    pub answer: Option<String>,
    pub milliseconds: Option<u64>,
}

/// An event on its way to a webhook endpoint.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryView {
    /// Sent as `webhook-id`, the same at each try.
    pub id: DeliveryId,
    pub endpoint_id: WebhookEndpointId,
    /// In the project's feed.
    pub event_id: i64,
    pub kind: String,
    pub state: DeliveryState,
    pub attempts: u32,
    pub created_at: DateTime<Utc>,
    /// When it is tried next.
    pub due_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// A delivery with its attempts.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryWithAttempts {
    #[serde(flatten)]
    pub delivery: DeliveryView,
    /// In order. A try whose process has died left none.
    pub tries: Vec<AttemptOfDelivery>,
}

/// One try of a delivery.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttemptOfDelivery {
    pub number: u32,
    pub attempted_at: DateTime<Utc>,
    pub status: Option<i32>,
    /// Why there was no answer.
    pub problem: Option<String>,
    /// The first 4 kB of the answer.
    pub answer: Option<String>,
    pub milliseconds: Option<i64>,
}

/// An address without what may be secret.
fn shown(url: &str) -> String {
    let parts: Vec<&str> = url.splitn(4, '/').collect();
    match parts.as_slice() {
        [scheme, "", host, rest] if !rest.is_empty() => format!("{scheme}//{host}/…"),
        _ => url.to_owned(),
    }
}

impl From<WebhookEndpoint> for EndpointOfWebhooks {
    fn from(endpoint: WebhookEndpoint) -> Self {
        Self {
            id: endpoint.id,
            url: shown(&endpoint.url),
            form: endpoint.form,
            kinds: endpoint.kinds,
            severities: endpoint.severities,
            secret_version: endpoint.secret_version,
            previous_secret_until: endpoint.previous_secret_until,
            failing_since: endpoint.failing_since,
            disabled_at: endpoint.disabled_at,
            disabled_reason: endpoint.disabled_reason,
            created_at: endpoint.created_at,
            changed_at: endpoint.changed_at,
        }
    }
}

impl From<WebhookDelivery> for DeliveryView {
    fn from(delivery: WebhookDelivery) -> Self {
        Self {
            id: delivery.id,
            endpoint_id: delivery.endpoint_id,
            event_id: delivery.event_id,
            kind: delivery.kind,
            state: delivery.state,
            attempts: delivery.attempts,
            created_at: delivery.created_at,
            due_at: delivery.due_at,
            ended_at: delivery.ended_at,
        }
    }
}

impl From<DeliveryAttempt> for AttemptOfDelivery {
    fn from(attempt: DeliveryAttempt) -> Self {
        Self {
            number: attempt.number,
            attempted_at: attempt.attempted_at,
            status: attempt.status,
            problem: attempt.problem,
            answer: attempt.answer,
            milliseconds: attempt.milliseconds,
        }
    }
}

view! {
    /// An outgoing webhook that is sent nothing more
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = DisabledWebhook)]
    pub struct DisabledWebhookView of DisabledWebhook {
        pub endpoint_id: WebhookEndpointId,
        pub reason: String,
    }
}
