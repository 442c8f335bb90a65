//! Webhooks that go out: who hears of which events, what has arrived, and what is sent again. Those that come in are in
//! [`crate::ci::incoming`].

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bakeoff_domain::delivery::DeliveryState;
use bakeoff_domain::event::EventSeverity;
use bakeoff_domain::ids::{DeliveryId, WebhookEndpointId};
use bakeoff_domain::webhook_endpoint::{Form, names_a_kind, slack};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::plumbing::auth::{Admin, Caller, Editor};
use crate::plumbing::extract::{Id, Params, Strict};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::page::Page;
use bakeoff_api::webhook_endpoints::{
    ChangeEndpointOfWebhooks, DeliveryView, DeliveryWithAttempts, EndpointOfWebhooks,
    NewEndpointOfWebhooks, SecretOfWebhooks, WebhookTest,
};
use bakeoff_process::ids;
use bakeoff_service::app::App;
use bakeoff_service::auth::secrets::webhook_secret;
use bakeoff_service::outgoing::message::message;
use bakeoff_store::webhook_endpoints::{
    ENDPOINTS_MAX, NewWebhookEndpoint, WebhookChange, WebhookEndpoint,
};

/// How long an old secret signs too.
const OVERLAP: TimeDelta = TimeDelta::days(1);
const KINDS_MAX: usize = 50;

fn no_such(id: WebhookEndpointId) -> Problem {
    Problem::not_found(format!("there is no webhook endpoint {id} in this project"))
}

fn wrong(pointer: &str, detail: impl Into<String>, fix: &str) -> FieldError {
    FieldError {
        pointer: pointer.to_owned(),
        detail: detail.into(),
        fix: fix.to_owned(),
        rule: "webhook-endpoint".to_owned(),
    }
}

/// The address as it is stored, if nothing is wrong with it and the kinds.
fn checked(app: &App, url: Option<&str>, kinds: &[String]) -> Result<Option<String>, Problem> {
    let mut errors = Vec::new();
    let url = url.map(|url| app.outgoing.check(url));
    if let Some(Err(why)) = &url {
        let fix = "name a public address: https://example.com/hooks; networks of your own are allowed by whoever runs the service (--outgoing-allow)";
        errors.push(wrong("/url", why.to_string(), fix));
    }
    if kinds.len() > KINDS_MAX {
        errors.push(wrong(
            "/kinds",
            format!("has more than {KINDS_MAX}"),
            "name groups: trial.*",
        ));
    }
    for (index, kind) in kinds
        .iter()
        .enumerate()
        .filter(|(_, kind)| !names_a_kind(kind))
    {
        let fix = "use a kind of GET /v1/events, such as ci.decided, or a group, such as trial.*";
        errors.push(wrong(
            &format!("/kinds/{index}"),
            format!("no event is called {kind}"),
            fix,
        ));
    }
    if errors.is_empty() {
        Ok(url.and_then(Result::ok).map(String::from))
    } else {
        Err(Problem::invalid(errors))
    }
}

/// Severities as they are stored; all of none.
fn severities(asked: &[EventSeverity]) -> Vec<String> {
    let all = [
        EventSeverity::Info,
        EventSeverity::Warning,
        EventSeverity::Alarm,
    ];
    let wanted = all
        .iter()
        .filter(|one| asked.is_empty() || asked.contains(one));
    wanted.map(|one| one.as_str().to_owned()).collect()
}

fn secret(
    app: &App,
    id: WebhookEndpointId,
    version: u32,
    until: Option<DateTime<Utc>>,
) -> SecretOfWebhooks {
    let secret = webhook_secret(&app.settings.secret_key, id, version);
    SecretOfWebhooks {
        id,
        secret_version: version,
        secret: format!("whsec_{}", STANDARD.encode(secret)),
        previous_secret_until: until,
    }
}

/// Create a webhook endpoint
///
/// From now on it hears of the project's events, each in a POST that is signed as Standard Webhooks 1.0.0 says, or in
/// Slack's form. What does not arrive (2xx within 15 seconds, redirects are not followed) is tried again for a day.
#[utoipa::path(post, path = "/v1/webhook-endpoints", operation_id = "createWebhookEndpoint", tag = "webhooks",
    request_body = NewEndpointOfWebhooks,
    responses((status = 201, description = "Created; the secret is shown this once", body = SecretOfWebhooks), Problems))]
pub(crate) async fn create(
    State(app): State<App>,
    Admin(caller): Admin,
    Strict(new): Strict<NewEndpointOfWebhooks>,
) -> Result<(StatusCode, Json<SecretOfWebhooks>), Problem> {
    let url = checked(&app, Some(&new.url), &new.kinds)?.unwrap_or_default();
    let id = WebhookEndpointId(ids::fresh());
    let written = NewWebhookEndpoint {
        url: &url,
        form: new.form.unwrap_or(Form::Standard),
        kinds: &new.kinds,
        severities: &severities(&new.severities),
    };
    let now = app.clock.now();
    let is_written = app
        .store
        .insert_webhook_endpoint(caller.project, id, written, now)
        .await?;
    if !is_written {
        return Err(Problem::conflict(
            "too-many-webhook-endpoints",
            format!("a project has at most {ENDPOINTS_MAX}: delete one, or tell one of more kinds"),
        ));
    }
    Ok((StatusCode::CREATED, Json(secret(&app, id, 1, None))))
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EndpointsParams {
    /// Items per page, 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// List webhook endpoints
///
/// Newest first.
#[utoipa::path(get, path = "/v1/webhook-endpoints", operation_id = "listWebhookEndpoints", tag = "webhooks", params(EndpointsParams),
    responses((status = 200, description = "One page", body = Page<EndpointOfWebhooks>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<EndpointsParams>,
) -> Result<Json<Page<EndpointOfWebhooks>>, Problem> {
    const FILTER: &str = "webhook-endpoints";
    let size = page::size(params.page_size)?;
    let before = page::read_token(params.page_token.as_deref(), FILTER)?;
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app
        .store
        .webhook_endpoints(caller.project, before, limit)
        .await?;
    Ok(Json(page::cut(
        rows,
        size,
        FILTER,
        |row| row.id.0,
        EndpointOfWebhooks::from,
    )))
}

async fn endpoint(
    app: &App,
    caller: &Caller,
    id: WebhookEndpointId,
) -> Result<WebhookEndpoint, Problem> {
    let found = app.store.webhook_endpoint(caller.project, id).await?;
    found.ok_or_else(|| no_such(id))
}

/// Get a webhook endpoint
#[utoipa::path(get, path = "/v1/webhook-endpoints/{endpoint_id}", operation_id = "getWebhookEndpoint", tag = "webhooks",
    params(("endpoint_id" = WebhookEndpointId, Path)),
    responses((status = 200, description = "The endpoint", body = EndpointOfWebhooks), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<WebhookEndpointId>,
) -> Result<Json<EndpointOfWebhooks>, Problem> {
    Ok(Json(endpoint(&app, &caller, id).await?.into()))
}

/// Change a webhook endpoint
///
/// Its address, what it hears of, and whether anything is sent at all. One where nothing has arrived for three days, or
/// that answers 410, is disabled; this enables it again.
#[utoipa::path(patch, path = "/v1/webhook-endpoints/{endpoint_id}", operation_id = "changeWebhookEndpoint", tag = "webhooks",
    params(("endpoint_id" = WebhookEndpointId, Path)), request_body = ChangeEndpointOfWebhooks,
    responses((status = 200, description = "The endpoint", body = EndpointOfWebhooks), Problems))]
pub(crate) async fn change(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<WebhookEndpointId>,
    Strict(asked): Strict<ChangeEndpointOfWebhooks>,
) -> Result<Json<EndpointOfWebhooks>, Problem> {
    let kinds = asked.kinds.as_deref();
    let url = checked(&app, asked.url.as_deref(), kinds.unwrap_or_default())?;
    let severities = asked.severities.as_deref().map(severities);
    let change = WebhookChange {
        url: url.as_deref(),
        kinds,
        severities: severities.as_deref(),
        is_enabled: asked.enabled,
    };
    let now = app.clock.now();
    if !app
        .store
        .change_webhook_endpoint(caller.project, id, change, now)
        .await?
    {
        return Err(no_such(id));
    }
    Ok(Json(endpoint(&app, &caller, id).await?.into()))
}

/// Delete a webhook endpoint
///
/// Nothing more is sent to it, and what is on its way is given up.
#[utoipa::path(delete, path = "/v1/webhook-endpoints/{endpoint_id}", operation_id = "deleteWebhookEndpoint", tag = "webhooks",
    params(("endpoint_id" = WebhookEndpointId, Path)),
    responses((status = 204, description = "Deleted"), Problems))]
pub(crate) async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<WebhookEndpointId>,
) -> Result<Response, Problem> {
    if app
        .store
        .delete_webhook_endpoint(caller.project, id, app.clock.now())
        .await?
    {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(no_such(id))
    }
}

/// Rotate a webhook endpoint's secret
///
/// Shows the next secret, this once. For a day each message has two signatures, one of the secret before.
#[utoipa::path(post, path = "/v1/webhook-endpoints/{endpoint_id}/rotate-secret", operation_id = "rotateWebhookSecret", tag = "webhooks",
    params(("endpoint_id" = WebhookEndpointId, Path)),
    responses((status = 200, description = "The new secret", body = SecretOfWebhooks), Problems))]
pub(crate) async fn rotate(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<WebhookEndpointId>,
) -> Result<Json<SecretOfWebhooks>, Problem> {
    let now = app.clock.now();
    let until = now + OVERLAP;
    let version = app
        .store
        .rotate_webhook_secret(caller.project, id, until, now)
        .await?;
    let version = version.ok_or_else(|| no_such(id))?;
    Ok(Json(secret(&app, id, version, Some(until))))
}

/// Send a test message
///
/// A signed message of the type `test`, once and at once; the answer says what came of it.
#[utoipa::path(post, path = "/v1/webhook-endpoints/{endpoint_id}/test", operation_id = "testWebhookEndpoint", tag = "webhooks",
    params(("endpoint_id" = WebhookEndpointId, Path)),
    responses((status = 200, description = "What came of it", body = WebhookTest), Problems))]
pub(crate) async fn test(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<WebhookEndpointId>,
) -> Result<Json<WebhookTest>, Problem> {
    let endpoint = endpoint(&app, &caller, id).await?;
    let text = "Bakeoff tells its events here";
    let body = match endpoint.form {
        Form::Standard => {
            json!({"type": "test", "timestamp": app.clock.now(), "data": {"message": text}})
        }
        Form::Slack => slack(EventSeverity::Info, "test", text, None),
    };
    let message_id = DeliveryId(ids::fresh()).to_string();
    let (key, now) = (&app.settings.secret_key, app.clock.now());
    let message = message(key, &endpoint, &message_id, body.to_string(), now);
    let message = message.map_err(|_| Problem::internal())?;
    let answer = app
        .outgoing
        .post(&endpoint.url, message.headers, message.body)
        .await;
    Ok(Json(match answer {
        Ok(answer) => WebhookTest {
            status: Some(answer.status),
            problem: None,
            answer: Some(answer.body),
            milliseconds: Some(answer.milliseconds),
        },
        Err(error) => WebhookTest {
            status: None,
            problem: Some(error.to_string()),
            answer: None,
            milliseconds: None,
        },
    }))
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeliveriesParams {
    state: Option<DeliveryState>,
    /// Items per page, 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// List deliveries
///
/// Those of the newest events first; they are deleted 30 days after they end.
#[utoipa::path(get, path = "/v1/webhook-endpoints/{endpoint_id}/deliveries", operation_id = "listWebhookDeliveries", tag = "webhooks",
    params(("endpoint_id" = WebhookEndpointId, Path), DeliveriesParams),
    responses((status = 200, description = "One page", body = Page<DeliveryView>), Problems))]
pub(crate) async fn deliveries(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<WebhookEndpointId>,
    Params(params): Params<DeliveriesParams>,
) -> Result<Json<Page<DeliveryView>>, Problem> {
    endpoint(&app, &caller, id).await?;
    let size = page::size(params.page_size)?;
    let filter = format!("deliveries {id} {:?}", params.state);
    let before = page::read_token(params.page_token.as_deref(), &filter)?;
    // Tokens hold ids; here it is the event's number.
    let before = before.and_then(|id| i64::try_from(id.as_u128()).ok());
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app
        .store
        .webhook_deliveries(id, params.state, before, limit)
        .await?;
    let number = |event: i64| Uuid::from_u128(event.unsigned_abs().into());
    Ok(Json(page::cut(
        rows,
        size,
        &filter,
        |row| number(row.event_id),
        DeliveryView::from,
    )))
}

async fn delivery(
    app: &App,
    caller: &Caller,
    id: DeliveryId,
) -> Result<DeliveryWithAttempts, Problem> {
    let found = app.store.webhook_delivery(caller.project, id).await?;
    let none = || Problem::not_found(format!("there is no delivery {id} in this project"));
    let (delivery, attempts) = found.ok_or_else(none)?;
    Ok(DeliveryWithAttempts {
        delivery: delivery.into(),
        tries: attempts.into_iter().map(Into::into).collect(),
    })
}

/// Get a delivery
///
/// With every try and its answer.
#[utoipa::path(get, path = "/v1/webhook-deliveries/{delivery_id}", operation_id = "getWebhookDelivery", tag = "webhooks",
    params(("delivery_id" = DeliveryId, Path)),
    responses((status = 200, description = "The delivery", body = DeliveryWithAttempts), Problems))]
pub(crate) async fn get_delivery(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<DeliveryId>,
) -> Result<Json<DeliveryWithAttempts>, Problem> {
    Ok(Json(delivery(&app, &caller, id).await?))
}

/// Replay a delivery
///
/// Sends it again under its old id, and tries for another day.
#[utoipa::path(post, path = "/v1/webhook-deliveries/{delivery_id}/replay", operation_id = "replayWebhookDelivery", tag = "webhooks",
    params(("delivery_id" = DeliveryId, Path)),
    responses((status = 202, description = "It is due", body = DeliveryWithAttempts), Problems))]
pub(crate) async fn replay(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<DeliveryId>,
) -> Result<(StatusCode, Json<DeliveryWithAttempts>), Problem> {
    delivery(&app, &caller, id).await?;
    if !app.store.replay_delivery(id, app.clock.now()).await? {
        return Err(Problem::conflict(
            "webhook-endpoint-disabled",
            "its endpoint is disabled or deleted; enable it first: PATCH /v1/webhook-endpoints/{endpoint_id} with enabled",
        ));
    }
    Ok((
        StatusCode::ACCEPTED,
        Json(delivery(&app, &caller, id).await?),
    ))
}
