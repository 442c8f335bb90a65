//! Receives EventBridge's "SageMaker Training Job State Change". An event is a hint to poll now,
//! never the truth: it settles nothing, and a lost, repeated or late one changes only when we poll.
//!
//! Events arrive through an API destination, with a key, or through an SNS topic, with a signature
//! ([`bakeoff_service::aws::sns`]). The key belongs to the installation, not to a project, because events
//! concern the whole account. It is derived, so no secret is stored, and it authorises nothing but
//! this endpoint.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use bakeoff_domain::lifecycle::watch::{self, PushedStatus};
use bakeoff_domain::sagemaker::observed::{Actual, JobStatus};
use bakeoff_domain::sagemaker::request::{self, MARKER};
use chrono::{DateTime, Utc};
use serde::Deserialize;
use subtle::ConstantTimeEq;
use utoipa::ToSchema;

use crate::plumbing::extract::{Raw, text_of};
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_service::app::App;
use bakeoff_service::auth::secrets::events_key;
use bakeoff_service::aws::sns::{Opened, SnsError};
use bakeoff_store::jobs::watch::BillingStart;

fn is_event_bridge(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let value = text_of(headers, &header::AUTHORIZATION);
    let given = value.strip_prefix("Bearer ").unwrap_or(value).trim();
    let own = events_key(&app.settings.secret_key);
    if bool::from(given.as_bytes().ct_eq(own.as_bytes())) {
        return Ok(());
    }
    Err(Problem::unproven(
        "send `Authorization: Bearer bke_…`; `bakeoff keys events` prints the key on the host",
    ))
}

/// Extracts the event from an SNS message; `None` if the message is about the subscription.
async fn open_sns(app: &App, body: &[u8]) -> Result<Option<Vec<u8>>, Problem> {
    let Some(sns) = &app.sns else {
        return Err(Problem::unproven(
            "this service does not accept SNS messages: start it with --sns-topic ARN",
        ));
    };
    match sns.open(body).await {
        Ok(Opened::Notification(message)) => Ok(Some(message.into_bytes())),
        Ok(Opened::Subscribed) => {
            tracing::info!("SNS subscription confirmed");
            Ok(None)
        }
        Ok(Opened::Nothing) => Ok(None),
        Err(error @ SnsError::Unreachable(_)) => Err(Problem::unavailable(&error.to_string())),
        Err(error @ SnsError::Malformed(_)) => Err(Problem::malformed(error.to_string())),
        Err(error) => Err(Problem::unproven(&error.to_string())),
    }
}

/// An event, reduced to the fields that are used. AWS adds fields; unknown ones are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AwsEvent {
    source: String,
    #[serde(rename = "detail-type")]
    detail_type: String,
    #[serde(default)]
    account: String,
    #[serde(default)]
    region: String,
    #[serde(default)]
    detail: serde_json::Value,
}

/// Describe's reply in EventBridge's form: times are strings of milliseconds.
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

/// Receive a job's state change from EventBridge
///
/// For an EventBridge API destination (with its key), or an HTTPS subscription of the SNS topic
/// that the service was started with (signed by SNS). Events that are not about our jobs are
/// accepted and dropped, so that they are not redelivered.
#[utoipa::path(post, path = "/v1/aws-events", operation_id = "pushAwsEvent", tag = "webhooks", security(()),
    request_body = AwsEvent,
    responses((status = 202, description = "Accepted; the job is looked at soon"), Problems))]
pub(crate) async fn push(
    State(app): State<App>,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<StatusCode, Problem> {
    let event = if headers.contains_key("x-amz-sns-message-type") {
        let Some(event) = open_sns(&app, &body).await? else {
            return Ok(StatusCode::ACCEPTED);
        };
        event
    } else {
        is_event_bridge(&app, &headers)?;
        body.to_vec()
    };
    let event: AwsEvent =
        serde_json::from_slice(&event).map_err(|error| Problem::malformed(error.to_string()))?;
    let region = Some(event.region.as_str()).filter(|region| !region.is_empty());
    // A job in a region that is not served is not ours, and neither is one of another account.
    let place = app
        .places
        .get(region.unwrap_or(app.settings.home()))
        .filter(|place| event.account.is_empty() || place.aws.may_own(&event.account));
    let is_state_change = event.source == "aws.sagemaker"
        && event.detail_type == "SageMaker Training Job State Change";
    if let Some(place) = place.filter(|_| is_state_change)
        && let Ok(detail) = serde_json::from_value::<Detail>(event.detail)
    {
        take(&app, &place.region, detail).await?;
    }
    Ok(StatusCode::ACCEPTED)
}

async fn take(app: &App, region: &str, detail: Detail) -> Result<(), Problem> {
    let names = [detail.training_job_name.clone()];
    let Some(known) = app
        .store
        .running_attempts(region, Some(&names))
        .await?
        .pop()
    else {
        return Ok(());
    };
    // Ignore jobs that somebody else created under our name. (A truncated event may lack the
    // environment.)
    let marker = detail.environment.get(MARKER);
    if marker.is_some_and(|found| request::marker(found) != known.attempt.to_string()) {
        return Ok(());
    }
    let notice = watch::compare_event(
        &known,
        PushedStatus {
            status: JobStatus::parse(&detail.training_job_status),
            secondary_status: detail.secondary_status.clone(),
            modified_at: moment(detail.last_modified_time.as_ref()),
            started_at: moment(detail.training_start_time.as_ref()).filter(|_| marker.is_some()),
        },
    );
    let started = notice.started_at.map(|at| BillingStart {
        attempt: known.attempt,
        at,
    });
    let now = app.clock.now();
    let looks: &[_] = if notice.look { &[known.trial] } else { &[] };
    app.store
        .notice_event(notice.changed.as_ref(), started, looks, now)
        .await?;
    // The event includes the settings, so no Describe is needed to compare them.
    if marker.is_some() && detail.resource_config.is_some() && !known.is_compared {
        app.store
            .compare_settings(known.attempt, &actual(detail), now)
            .await?;
    }
    Ok(())
}

fn actual(detail: Detail) -> Actual {
    let resources = detail.resource_config.unwrap_or_default();
    let definitions = detail
        .algorithm_specification
        .unwrap_or_default()
        .metric_definitions;
    Actual {
        instance_type: resources.instance_type,
        instance_count: resources.instance_count,
        spot: detail.enable_managed_spot_training,
        keep_alive_seconds: resources.keep_alive_period_in_seconds,
        checkpoint_s3_uri: detail.checkpoint_config.and_then(|config| config.s3_uri),
        metric_names: definitions
            .into_iter()
            .map(|definition| definition.name)
            .collect(),
        config_name: None,
    }
}
