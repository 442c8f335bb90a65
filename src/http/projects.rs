//! The caller's project: its budget, and how much of it is used.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::money::Usd;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Admin, Caller};
use super::extract::Strict;
use super::problem::{FieldError, Problem, Problems};
use crate::api::projects::ProjectView;
use crate::app::App;

const BUDGET_USD_MAX: u32 = 1_000_000_000;
const CONCURRENT_TRIALS_MAX: u32 = 10_000;

/// A project's limits.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct NewLimits {
    /// Maximum number of concurrent trials, 1 to 10000; no limit when null. Trials already running
    /// continue.
    concurrent_trials_max: Option<u32>,
}

/// A project's budget.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct NewBudget {
    /// Hard cap over all experiments; no cap when null.
    budget_usd: Option<Usd>,
}

async fn view(app: &App, id: ProjectId) -> Result<Json<ProjectView>, Problem> {
    let project = app.store.project(id).await?.ok_or_else(Problem::internal)?;
    Ok(Json(ProjectView {
        id,
        name: project.name,
        budget_usd: project.budget_usd,
        reserved_usd: project.reserved_usd,
        settled_usd: project.settled_usd,
        concurrent_trials_max: project.concurrent_trials_max,
    }))
}

/// The key's own project
#[utoipa::path(get, path = "/v1/projects/current", operation_id = "getCurrentProject", tag = "projects",
    responses((status = 200, description = "With what is reserved and spent", body = ProjectView), Problems))]
pub(super) async fn current(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<ProjectView>, Problem> {
    view(&app, caller.project).await
}

/// Set the project's budget
///
/// Existing reservations remain; nothing new starts beyond the cap.
#[utoipa::path(put, path = "/v1/projects/current/budget", operation_id = "putProjectBudget", tag = "projects",
    request_body = NewBudget,
    responses((status = 200, description = "The project", body = ProjectView), Problems))]
pub(super) async fn put_budget(
    State(app): State<App>,
    Admin(caller): Admin,
    Strict(new): Strict<NewBudget>,
) -> Result<Json<ProjectView>, Problem> {
    let is_sound = |usd: Usd| usd.0 > Decimal::ZERO && usd.0 <= Decimal::from(BUDGET_USD_MAX);
    if new.budget_usd.is_some_and(|usd| !is_sound(usd)) {
        return Err(Problem::invalid(vec![FieldError {
            pointer: "/budget_usd".to_owned(),
            detail: "not a valid amount in US dollars".to_owned(),
            fix: format!("give a positive amount up to {BUDGET_USD_MAX}, or null for no cap"),
            rule: "budget".to_owned(),
        }]));
    }
    app.store
        .set_project_budget(caller.project, new.budget_usd)
        .await?;
    view(&app, caller.project).await
}

/// Set the project's limits
///
/// Trials over the limit wait in the queue without delaying other projects.
#[utoipa::path(put, path = "/v1/projects/current/limits", operation_id = "putProjectLimits", tag = "projects",
    request_body = NewLimits,
    responses((status = 200, description = "The project", body = ProjectView), Problems))]
pub(super) async fn put_limits(
    State(app): State<App>,
    Admin(caller): Admin,
    Strict(new): Strict<NewLimits>,
) -> Result<Json<ProjectView>, Problem> {
    if new
        .concurrent_trials_max
        .is_some_and(|most| !(1..=CONCURRENT_TRIALS_MAX).contains(&most))
    {
        return Err(Problem::invalid(vec![FieldError {
            pointer: "/concurrent_trials_max".to_owned(),
            detail: "not a valid limit on concurrent trials".to_owned(),
            fix: format!(
                "give 1 to {CONCURRENT_TRIALS_MAX}, or null for no limit; to stop everything, pause the experiments"
            ),
            rule: "concurrent-trials".to_owned(),
        }]));
    }
    app.store
        .set_project_limits(caller.project, new.concurrent_trials_max)
        .await?;
    view(&app, caller.project).await
}
