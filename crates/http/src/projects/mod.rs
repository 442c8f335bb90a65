//! The caller's project: its budget, and how much of it is used.

pub(crate) mod budgets;
pub(crate) mod keys;
pub(crate) mod spending;

use axum::Json;
use axum::extract::State;
use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::{CapChange, limit_flaw};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::plumbing::auth::{Admin, Caller};
use crate::plumbing::extract::Strict;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::projects::ProjectView;
use bakeoff_service::app::App;

const CONCURRENT_TRIALS_MAX: u32 = 10_000;

/// A project's limits.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewLimits {
    /// Maximum number of concurrent trials, 1 to 10000; no limit when null. Trials already running
    /// continue.
    concurrent_trials_max: Option<u32>,
}

/// A project's caps; what is absent stays.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewBudget {
    /// Hard cap over all experiments; no cap when null. With 0, nothing starts.
    #[serde(default, skip_serializing_if = "CapChange::stays")]
    #[schema(value_type = Option<Usd>)]
    budget_usd: CapChange,
    /// The same per calendar month (UTC): what is settled in it, and what is reserved. No cap when null.
    #[serde(default, skip_serializing_if = "CapChange::stays")]
    #[schema(value_type = Option<Usd>)]
    monthly_budget_usd: CapChange,
}

impl NewBudget {
    fn errors(&self) -> Vec<FieldError> {
        let error = |pointer: &str, detail: String, fix: &str| FieldError {
            pointer: pointer.to_owned(),
            detail,
            fix: fix.to_owned(),
            rule: "budget".to_owned(),
        };
        let named = [
            ("/budget_usd", self.budget_usd),
            ("/monthly_budget_usd", self.monthly_budget_usd),
        ];
        if named.iter().all(|(_, cap)| cap.stays()) {
            let fix = "name budget_usd, monthly_budget_usd or both";
            return vec![error("", "nothing is to be changed".to_owned(), fix)];
        }
        let flaw = |(pointer, cap): (&str, CapChange)| {
            let detail = limit_flaw(cap.usd()?, Usd::ZERO)?;
            let fix = "name such an amount, 0 to have nothing start, or null for no cap";
            Some(error(pointer, detail, fix))
        };
        named.into_iter().filter_map(flaw).collect()
    }
}

async fn view(app: &App, id: ProjectId) -> Result<Json<ProjectView>, Problem> {
    let project = app.store.project(id).await?.ok_or_else(Problem::internal)?;
    let now = app.clock.now();
    let month = app.store.month_of_project(id, now).await?;
    let alarms = app.store.budget_alarms(id, now).await?;
    Ok(Json(ProjectView {
        id,
        name: project.name,
        budget_usd: project.budget_usd,
        monthly_budget_usd: project.monthly_budget_usd,
        reserved_usd: project.reserved_usd,
        settled_usd: project.settled_usd,
        concurrent_trials_max: project.concurrent_trials_max,
        month: month.into(),
        budget_alarms: alarms.into_iter().map(Into::into).collect(),
    }))
}

/// The key's own project
#[utoipa::path(get, path = "/v1/projects/current", operation_id = "getCurrentProject", tag = "projects",
    responses((status = 200, description = "With what is reserved and spent", body = ProjectView), Problems))]
pub(crate) async fn current(
    State(app): State<App>,
    caller: Caller,
) -> Result<Json<ProjectView>, Problem> {
    view(&app, caller.project).await
}

/// Set the project's caps
///
/// In all, and per calendar month. Existing reservations remain; nothing new starts beyond a cap.
#[utoipa::path(put, path = "/v1/projects/current/budget", operation_id = "putProjectBudget", tag = "projects",
    request_body = NewBudget,
    responses((status = 200, description = "The project", body = ProjectView), Problems))]
pub(crate) async fn put_budget(
    State(app): State<App>,
    Admin(caller): Admin,
    Strict(new): Strict<NewBudget>,
) -> Result<Json<ProjectView>, Problem> {
    let (total, monthly) = (new.budget_usd, new.monthly_budget_usd);
    let errors = new.errors();
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    app.store
        .set_project_budgets(caller.project, total, monthly)
        .await?;
    app.wake_schedulers();
    view(&app, caller.project).await
}

/// Set the project's limits
///
/// Trials over the limit wait in the queue without delaying other projects.
#[utoipa::path(put, path = "/v1/projects/current/limits", operation_id = "putProjectLimits", tag = "projects",
    request_body = NewLimits,
    responses((status = 200, description = "The project", body = ProjectView), Problems))]
pub(crate) async fn put_limits(
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
