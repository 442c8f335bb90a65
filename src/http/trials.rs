//! Trials: one candidate of an experiment, its attempts and its measured series.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::ids::TrialId;
use bakeoff_domain::steady::{BUCKET_SECONDS, Bucket, Steady, steady};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::Caller;
use super::extract::{Id, Params};
use super::page::Page;
use super::problem::{Problem, Problems};
use crate::app::App;
use crate::read;
use crate::store::trials::Trial;
use crate::view::{AttemptView, TrialView};

pub(super) async fn find(app: &App, caller: Caller, id: TrialId) -> Result<Trial, Problem> {
    let found = app.store.trial(caller.project, id).await?;
    found.ok_or_else(|| Problem::not_found(format!("there is no trial {id} in this project")))
}

async fn view(app: &App, caller: Caller, id: TrialId) -> Result<TrialView, Problem> {
    let trial = find(app, caller, id).await?;
    let mut views = read::trial_views(&app.store, vec![trial], app.clock.now()).await?;
    views.pop().ok_or_else(Problem::internal)
}

/// Get a trial
#[utoipa::path(get, path = "/v1/trials/{trial_id}", operation_id = "getTrial", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "The trial with its plan and attempts", body = TrialView), Problems))]
pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<TrialView>, Problem> {
    Ok(Json(view(&app, caller, id).await?))
}

/// Attempts of a trial
#[utoipa::path(get, path = "/v1/trials/{trial_id}/attempts", operation_id = "listAttempts", tag = "trials",
    params(("trial_id" = TrialId, Path)),
    responses((status = 200, description = "One SageMaker job each, in order", body = Page<AttemptView>), Problems))]
pub(super) async fn attempts(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
) -> Result<Json<Page<AttemptView>>, Problem> {
    Ok(Json(Page { items: view(&app, caller, id).await?.attempts, next_page_token: None }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MetricParams {
    /// Name of a metric definition, or a host metric (`GPUUtilization`: a share of one GPU, 0 to 100).
    metric: String,
}

/// A measured series.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct MetricSeries {
    trial_id: TrialId,
    metric: String,
    /// Width of a bucket.
    bucket_seconds: i64,
    buckets: Vec<Bucket>,
    /// The steady figure, when there is evidence enough.
    steady: Option<Steady>,
}

/// One metric of a trial
#[utoipa::path(get, path = "/v1/trials/{trial_id}/metrics", operation_id = "getTrialMetric", tag = "trials",
    params(("trial_id" = TrialId, Path), MetricParams),
    responses((status = 200, description = "Five-minute buckets, oldest first", body = MetricSeries), Problems))]
pub(super) async fn metrics(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TrialId>,
    Params(params): Params<MetricParams>,
) -> Result<Json<MetricSeries>, Problem> {
    find(&app, caller, id).await?;
    let buckets = app.store.trial_rollups(id, &params.metric).await?;
    let steady = steady(&buckets);
    Ok(Json(MetricSeries { trial_id: id, metric: params.metric, bucket_seconds: BUCKET_SECONDS, buckets, steady }))
}
