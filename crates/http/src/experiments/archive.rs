//! Experiments that are put away: archived, deleted, taken back.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::ExperimentId;

use crate::experiments::{find, no_such};
use crate::plumbing::auth::{Admin, Caller, Editor};
use crate::plumbing::extract::Id;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::experiments::ExperimentView;
use bakeoff_service::app::App;
use bakeoff_service::read;
use bakeoff_store::experiments::archive::{Away, PutAway};

async fn put(app: &App, caller: Caller, id: ExperimentId, how: PutAway) -> Result<(), Problem> {
    let now = app.clock.now();
    match app.store.put_away(caller.project, id, how, now).await? {
        Away::Done => Ok(()),
        Away::Absent => Err(no_such(id)),
        Away::Running => Err(Problem::conflict(
            "not_over",
            "the experiment has not ended: wait for its end, or cancel it (POST /v1/experiments/{experiment_id}/cancel)",
        )),
        Away::PartOfMore => Err(Problem::conflict(
            "part_of_more",
            "a pipeline or a CI run rests on it: archive it instead (POST /v1/experiments/{experiment_id}/archive)",
        )),
    }
}

async fn shown(
    app: &App,
    caller: Caller,
    id: ExperimentId,
    how: PutAway,
) -> Result<Json<ExperimentView>, Problem> {
    put(app, caller, id, how).await?;
    Ok(Json(read::experiment_view(find(app, caller, id).await?)))
}

/// Archive an experiment
///
/// Lists leave it out, unless they ask for `archived=true`. Possible once it has ended; safe to repeat.
#[utoipa::path(post, path = "/v1/experiments/{experiment_id}/archive", operation_id = "archiveExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "Archived", body = ExperimentView), Problems))]
pub(crate) async fn archive(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ExperimentId>,
) -> Result<Json<ExperimentView>, Problem> {
    shown(&app, caller, id, PutAway::Archive).await
}

/// Take an experiment out of the archive
#[utoipa::path(post, path = "/v1/experiments/{experiment_id}/unarchive", operation_id = "unarchiveExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "In lists again", body = ExperimentView), Problems))]
pub(crate) async fn unarchive(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<ExperimentId>,
) -> Result<Json<ExperimentView>, Problem> {
    shown(&app, caller, id, PutAway::Unarchive).await
}

/// Delete an experiment
///
/// One that is over is shown to nobody from now on, and tells no later plan how fast it was. For 30 days it can be
/// restored; then its metrics and log lines are purged. What it has spent stays in the ledger and in the project's
/// spending, and its files on S3 are yours.
#[utoipa::path(delete, path = "/v1/experiments/{experiment_id}", operation_id = "deleteExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 204, description = "Deleted"), Problems))]
pub(crate) async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<ExperimentId>,
) -> Result<Response, Problem> {
    put(&app, caller, id, PutAway::Delete).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Restore a deleted experiment
///
/// Possible for 30 days after its deletion; `GET /v1/experiments?deleted=true` lists what can be restored.
#[utoipa::path(post, path = "/v1/experiments/{experiment_id}/restore", operation_id = "restoreExperiment", tag = "experiments",
    params(("experiment_id" = ExperimentId, Path)),
    responses((status = 200, description = "Restored", body = ExperimentView), Problems))]
pub(crate) async fn restore(
    State(app): State<App>,
    Admin(caller): Admin,
    Id(id): Id<ExperimentId>,
) -> Result<Json<ExperimentView>, Problem> {
    shown(&app, caller, id, PutAway::Restore).await
}
