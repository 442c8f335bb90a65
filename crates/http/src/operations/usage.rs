//! The cost of watching: our own calls to AWS, by operation and per job-hour; and `/metrics` for
//! Prometheus.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::cost;
use chrono::{DurationRound, TimeDelta};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::operations::health;
use crate::plumbing::auth::Caller;
use crate::plumbing::extract::Params;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::operations::{AwsUsage, OperationUsage};
use bakeoff_service::app::App;
use bakeoff_store::calls::RegionTally;

const HOURS_MAX: u32 = 24 * 31;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageParams {
    /// Number of full hours back from now, 1 to 744; 24 when absent.
    hours: Option<u32>,
}

/// AWS API usage, by operation and region
///
/// Counted by every replica and summed each minute.
#[utoipa::path(get, path = "/v1/aws-usage", operation_id = "getAwsUsage", tag = "operations", params(UsageParams),
    responses((status = 200, description = "By operation and per job-hour", body = AwsUsage), Problems))]
pub(crate) async fn aws_usage(
    State(app): State<App>,
    _: Caller,
    Params(params): Params<UsageParams>,
) -> Result<Json<AwsUsage>, Problem> {
    let hours = params.hours.unwrap_or(24);
    if !(1..=HOURS_MAX).contains(&hours) {
        return Err(Problem::bad_parameter(
            format!("hours must be 1 to {HOURS_MAX}, not {hours}"),
            Vec::new(),
        ));
    }
    let until = app.clock.now();
    let since = (until - TimeDelta::hours(i64::from(hours) - 1))
        .duration_trunc(TimeDelta::hours(1))
        .unwrap_or(until);
    let tallies = app.store.aws_calls_since(since).await?;
    let job_hours = app.store.job_hours_since(since, until).await?;
    let rate = |RegionTally { region, tally }: &RegionTally| {
        let rates = app.places.get(region)?.aws.rates();
        let mut own = rates.iter().filter(|(name, _)| *name == tally.operation);
        own.next().map(|(_, rate)| *rate)
    };
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "calls lie far below 2^53"
    )]
    let per_job_hour = |count: i64| (job_hours > 0.0).then(|| count as f64 / job_hours);
    let metrics_requested: i64 = tallies.iter().map(|one| one.tally.metrics).sum();
    let metrics_usd = cost::metrics(metrics_requested.max(0).unsigned_abs(), None);
    let counted = tallies
        .iter()
        .filter(|one| one.tally.operation != "ListObjectsV2");
    Ok(Json(AwsUsage {
        since,
        until,
        job_hours,
        calls_per_job_hour: per_job_hour(counted.map(|one| one.tally.calls).sum()),
        metrics_requested,
        metrics_usd,
        metrics_usd_per_job_hour: per_job_hour(metrics_requested).map(|requested| requested * 1e-5),
        operations: tallies
            .into_iter()
            .map(|one| OperationUsage {
                paced_at_calls_per_second: rate(&one),
                calls_per_job_hour: per_job_hour(one.tally.calls),
                operation: one.tally.operation,
                region: one.region,
                calls: one.tally.calls,
                throttled: one.tally.throttled,
                failed: one.tally.failed,
            })
            .collect(),
    }))
}

/// Metrics for Prometheus
///
/// Requires a key: set `authorization: {credentials: bk_…}` in the scrape configuration.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "operations",
    responses((status = 200, description = "Text exposition format", body = String, content_type = "text/plain"), Problems))]
pub(crate) async fn prometheus(State(app): State<App>, _: Caller) -> Result<Response, Problem> {
    for (state, count) in every_living_state(&app.store.living_trials_by_state().await?) {
        let value = f64::from(i32::try_from(count).unwrap_or(i32::MAX));
        metrics::gauge!("bakeoff_trials", "state" => state.as_str()).set(value);
    }
    health::measure_tasks(&app).await?;
    for (region, place) in app.places.iter() {
        for (operation, rate) in place.aws.rates() {
            let labels = [
                ("operation", operation.to_owned()),
                ("region", region.clone()),
            ];
            metrics::gauge!("bakeoff_aws_paced_calls_per_second", &labels).set(rate);
        }
    }
    let text = app
        .metrics
        .as_ref()
        .map_or_else(String::new, PrometheusHandle::render);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

/// The number of trials in each living state. A state without any is named too: a gauge that is not
/// set again keeps its last value.
fn every_living_state(counted: &[(String, i64)]) -> impl Iterator<Item = (TrialState, i64)> {
    let living = TrialState::ALL.iter().filter(|state| !state.is_terminal());
    living.map(|state| {
        let found = counted.iter().find(|(name, _)| name == state.as_str());
        (*state, found.map_or(0, |(_, count)| *count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prometheus was told of 89 queued trials while all 200 ran.
    #[test]
    fn a_state_that_has_emptied_is_zero() {
        let counted = [(TrialState::Running.as_str().to_owned(), 200)];
        let all: Vec<(TrialState, i64)> = every_living_state(&counted).collect();
        assert!(all.contains(&(TrialState::Running, 200)));
        assert!(all.contains(&(TrialState::Queued, 0)));
        assert!(!all.iter().any(|(state, _)| state.is_terminal()));
    }
}
