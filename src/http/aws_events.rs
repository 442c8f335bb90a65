//! What EventBridge pushes: "SageMaker Training Job State Change". A hint to look now, never the truth: nothing is settled by
//! it, and a lost, repeated or late one changes nothing but when we look.
//!
//! The key is one of the installation, not of a project: events are of the whole account. It is derived, so nothing secret is
//! stored, and opens nothing but this door.

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use bakeoff_domain::job::{JobStatus, MARKER};
use bakeoff_domain::requested::Actual;
use bakeoff_domain::watch::{Change, deserves_a_look};
use chrono::{DateTime, Utc};
use hmac::Mac;
use serde::Deserialize;
use subtle::ConstantTimeEq;
use utoipa::ToSchema;

use super::ci::mac;
use super::extract::Raw;
use super::problem::{Problem, Problems};
use crate::app::App;

/// The key of an installation's events, as an API destination sends it: `Authorization: Bearer bke_…`.
pub fn events_key(secret_key: &[u8; 32]) -> String {
    format!("bke_{}", hex::encode(mac(secret_key, b"aws-events").finalize().into_bytes()))
}

/// A caller that has the events' key.
pub(super) struct EventBridge;

impl FromRequestParts<App> for EventBridge {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let value = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let given = value.strip_prefix("Bearer ").unwrap_or(value).trim();
        let own = events_key(&app.settings.secret_key);
        if bool::from(given.as_bytes().ct_eq(own.as_bytes())) {
            return Ok(Self);
        }
        Err(Problem::unauthenticated(
            "send `Authorization: Bearer bke_…`; `bakeoff keys events` prints the key on the host",
        ))
    }
}

/// An event, as far as it is read. AWS adds fields; what is not known is left alone.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct AwsEvent {
    source: String,
    #[serde(rename = "detail-type")]
    detail_type: String,
    #[serde(default)]
    region: String,
    #[serde(default)]
    detail: serde_json::Value,
}

/// Describe's reply as EventBridge has it: times are strings of milliseconds.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Detail {
    training_job_name: String,
    training_job_status: String,
    secondary_status: String,
    last_modified_time: Option<serde_json::Value>,
    training_start_time: Option<serde_json::Value>,
    environment: BTreeMap<String, String>,
    enable_managed_spot_training: Option<bool>,
    resource_config: Option<Resources>,
    checkpoint_config: Option<Checkpoint>,
    algorithm_specification: Option<Algorithm>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Resources {
    instance_type: Option<String>,
    instance_count: Option<u32>,
    keep_alive_period_in_seconds: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Checkpoint {
    #[serde(rename = "S3Uri")]
    s3_uri: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Algorithm {
    metric_definitions: Vec<Definition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Definition {
    name: String,
}

fn moment(value: Option<&serde_json::Value>) -> Option<DateTime<Utc>> {
    let millis = match value? {
        serde_json::Value::String(text) => text.parse().ok()?,
        serde_json::Value::Number(number) => number.as_i64()?,
        _ => return None,
    };
    DateTime::from_timestamp_millis(millis)
}

/// A state change that EventBridge pushed
///
/// For an EventBridge API destination. Whatever cannot be of use is taken and dropped, so that it is not sent again.
#[utoipa::path(post, path = "/v1/aws-events", operation_id = "pushAwsEvent", tag = "webhooks", security(()),
    request_body = AwsEvent,
    responses((status = 202, description = "Taken as a hint"), Problems))]
pub(super) async fn push(State(app): State<App>, _: EventBridge, Raw(body): Raw) -> Result<StatusCode, Problem> {
    let event: AwsEvent = serde_json::from_slice(&body).map_err(|error| Problem::malformed(error.to_string()))?;
    let is_ours = event.source == "aws.sagemaker"
        && event.detail_type == "SageMaker Training Job State Change"
        && (event.region.is_empty() || event.region == app.settings.region);
    if is_ours && let Ok(detail) = serde_json::from_value::<Detail>(event.detail) {
        take(&app, detail).await?;
    }
    Ok(StatusCode::ACCEPTED)
}

async fn take(app: &App, detail: Detail) -> Result<(), Problem> {
    let names = [detail.training_job_name.clone()];
    let Some(known) = app.store.running_attempts(Some(&names)).await?.pop() else { return Ok(()) };
    // A job that somebody made under our name tells us nothing. (A truncated event may have no environment at all.)
    let marker = detail.environment.get(MARKER);
    if marker.is_some_and(|marker| *marker != known.attempt.to_string()) {
        return Ok(());
    }
    let status = JobStatus::parse(&detail.training_job_status);
    let modified_at = moment(detail.last_modified_time.as_ref());
    let started_at = moment(detail.training_start_time.as_ref()).filter(|_| marker.is_some());
    let is_old = known.modified_at.zip(modified_at).is_some_and(|(ours, theirs)| theirs < ours);
    let is_new = known.secondary_status.as_deref() != Some(detail.secondary_status.as_str());
    let has_started = known.has_started || started_at.is_some();
    let look = !is_old && deserves_a_look(has_started, &status, &detail.secondary_status);
    let change = Change {
        attempt: known.attempt,
        trial: known.trial,
        status,
        secondary_status: detail.secondary_status.clone(),
        modified_at,
    };
    let now = app.clock.now();
    let looks: &[_] = if look { &[known.trial] } else { &[] };
    let started = started_at.filter(|_| !known.has_started).map(|at| (known.attempt, at));
    app.store.notice_event((is_new && !is_old).then_some(&change), started, looks, now).await?;
    // With the settings in the event, no Describe is needed to compare them.
    if marker.is_some() && detail.resource_config.is_some() && !known.is_compared {
        app.store.compare_settings(known.attempt, &actual(detail), now).await?;
    }
    Ok(())
}

fn actual(detail: Detail) -> Actual {
    let resources = detail.resource_config.unwrap_or_default();
    let definitions = detail.algorithm_specification.unwrap_or_default().metric_definitions;
    Actual {
        instance_type: resources.instance_type,
        instance_count: resources.instance_count,
        spot: detail.enable_managed_spot_training,
        keep_alive_seconds: resources.keep_alive_period_in_seconds,
        checkpoint_s3_uri: detail.checkpoint_config.and_then(|config| config.s3_uri),
        metric_names: definitions.into_iter().map(|definition| definition.name).collect(),
    }
}
