//! External runs: create one, send its metrics (see [`crate::samples`]), end it, compare it with
//! trials.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_domain::ids::RunId;
use bakeoff_domain::lifecycle::state::RunState;
use bakeoff_domain::spec::run::RunSpec;
use bakeoff_planner::lint;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::plumbing::auth::{Caller, Editor};
use crate::plumbing::extract::{Id, Params, Strict};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use crate::specs::PageParams;
use bakeoff_api::comparison::ComparisonRow;
use bakeoff_api::page::Page;
use bakeoff_api::runs::RunView;
use bakeoff_process::ids;
use bakeoff_service::app::App;
use bakeoff_service::read::{self, Selection};
use bakeoff_store::experiments::runs::Run;

fn view(run: Run, figures: Option<ComparisonRow>) -> RunView {
    RunView {
        id: run.id,
        state: run.state,
        spec: run.spec,
        created_at: run.created_at,
        started_at: run.started_at,
        ended_at: run.ended_at,
        figures,
    }
}

async fn find(app: &App, caller: Caller, id: RunId) -> Result<Run, Problem> {
    let found = app.store.runs_by_id(caller.project, &[id]).await?.pop();
    found.ok_or_else(|| Problem::not_found(format!("there is no run {id} in this project")))
}

async fn shown(app: &App, caller: Caller, id: RunId) -> Result<RunView, Problem> {
    let run = find(app, caller, id).await?;
    let mut table = read::comparison_of(
        &app.store,
        &Selection {
            runs: vec![run.clone()],
            ..Selection::default()
        },
        app.clock.now(),
    )
    .await?;
    Ok(view(run, table.rows.pop()))
}

/// Record an external run
///
/// Training outside SageMaker: on another cloud, or on a machine of your own. Its metrics are
/// pushed; its cost is its duration at the rate you give.
#[utoipa::path(post, path = "/v1/runs", operation_id = "createRun", tag = "runs", request_body = RunSpec,
    responses((status = 201, description = "Recorded", body = RunView,
        headers(("Location" = String, description = "Path of the run"))), Problems))]
pub(crate) async fn create(
    State(app): State<App>,
    Editor(caller): Editor,
    Strict(spec): Strict<RunSpec>,
) -> Result<Response, Problem> {
    let findings = lint::run::check(&spec);
    if !findings.is_empty() {
        return Err(Problem::invalid(
            findings.iter().map(FieldError::from).collect(),
        ));
    }
    let id = RunId(ids::fresh());
    app.store
        .insert_run(caller.project, id, &spec, app.clock.now())
        .await?;
    let run = view(find(&app, caller, id).await?, None);
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, format!("/v1/runs/{id}"))],
        Json(run),
    )
        .into_response())
}

/// List external runs
#[utoipa::path(get, path = "/v1/runs", operation_id = "listRuns", tag = "runs", params(PageParams),
    responses((status = 200, description = "A page, newest first", body = Page<RunView>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<PageParams>,
) -> Result<Json<Page<RunView>>, Problem> {
    let size = page::size(params.page_size)?;
    let before = page::read_token(params.page_token.as_deref(), "runs")?;
    let rows = app
        .store
        .runs(
            caller.project,
            before,
            i64::try_from(size + 1).unwrap_or(i64::MAX),
        )
        .await?;
    Ok(Json(page::cut(
        rows,
        size,
        "runs",
        |run| run.id.0,
        |run| view(run, None),
    )))
}

/// Get an external run
#[utoipa::path(get, path = "/v1/runs/{run_id}", operation_id = "getRun", tag = "runs", params(("run_id" = RunId, Path)),
    responses((status = 200, description = "With its figures, and what is left of it", body = RunView), Problems))]
pub(crate) async fn get(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<RunId>,
) -> Result<Json<RunView>, Problem> {
    Ok(Json(shown(&app, caller, id).await?))
}

/// How a run ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub(crate) struct RunEnd {
    /// `completed` or `failed`.
    state: RunState,
    /// Time the run ended; now when absent.
    ended_at: Option<DateTime<Utc>>,
}

/// End an external run
///
/// Idempotent: only the first end counts.
#[utoipa::path(post, path = "/v1/runs/{run_id}/end", operation_id = "endRun", tag = "runs", params(("run_id" = RunId, Path)),
    request_body = RunEnd,
    responses((status = 200, description = "Ended", body = RunView), Problems))]
pub(crate) async fn end(
    State(app): State<App>,
    Editor(caller): Editor,
    Id(id): Id<RunId>,
    Strict(end): Strict<RunEnd>,
) -> Result<Json<RunView>, Problem> {
    let run = find(&app, caller, id).await?;
    let now = app.clock.now();
    let ended_at = end.ended_at.unwrap_or(now);
    if end.state == RunState::Running {
        return Err(Problem::invalid(vec![FieldError {
            pointer: "/state".to_owned(),
            detail: "a run that ends is not `running`".to_owned(),
            fix: "give state completed or failed".to_owned(),
            rule: "run-end".to_owned(),
        }]));
    }
    let is_sound = ended_at <= now
        && run
            .started_at
            .is_none_or(|started_at| started_at <= ended_at);
    if !is_sound {
        return Err(Problem::invalid(vec![FieldError {
            pointer: "/ended_at".to_owned(),
            detail: "a run must end after its start, and not in the future".to_owned(),
            fix: "omit ended_at to use the current time".to_owned(),
            rule: "run-end".to_owned(),
        }]));
    }
    app.store
        .end_run(caller.project, id, end.state, ended_at)
        .await?;
    Ok(Json(shown(&app, caller, id).await?))
}
