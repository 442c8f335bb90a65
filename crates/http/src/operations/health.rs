//! Health: `/livez` does no I/O, `/readyz` checks the database and whether every task is working.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::dashboard;
use crate::plumbing::extract::Params;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::operations::{DashboardBuild, Health, TaskHealth, Version};
use bakeoff_service::app::App;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReadyParams {
    /// Include the status of each background task.
    #[serde(default)]
    verbose: bool,
}

fn healthy(tasks: Vec<TaskHealth>) -> Json<Health> {
    Json(Health {
        status: "ok".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        tasks,
    })
}

/// Whether the process is alive
#[utoipa::path(get, path = "/livez", operation_id = "livez", tag = "operations", security(()),
    responses((status = 200, description = "Alive", body = Health), Problems))]
pub(crate) async fn livez() -> Json<Health> {
    healthy(Vec::new())
}

/// What this is
///
/// The program's version, whether its dashboard was built in, and the time on its clock, which differs from the caller's
/// in a simulation.
#[utoipa::path(get, path = "/v1/version", operation_id = "getVersion", tag = "operations", security(()),
    responses((status = 200, description = "The version", body = Version), Problems))]
pub(crate) async fn version(State(app): State<App>) -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        dashboard: if dashboard::is_built() {
            DashboardBuild::Built
        } else {
            DashboardBuild::Missing
        },
        now: app.clock.now(),
        clock_factor: app.clock.factor(),
        regions: app.settings.regions.clone(),
    })
}

/// Whether the service is ready
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "operations", security(()), params(ReadyParams),
    responses((status = 200, description = "Ready", body = Health), Problems))]
pub(crate) async fn readyz(
    State(app): State<App>,
    Params(params): Params<ReadyParams>,
) -> Result<Json<Health>, Problem> {
    app.store
        .ping()
        .await
        .map_err(|_| Problem::unavailable("the database does not answer"))?;
    let tasks = if params.verbose {
        task_health(&app).await?
    } else {
        Vec::new()
    };
    let patience = app.settings.patience() * 2;
    let boards = app.places.iter().flat_map(|(region, place)| {
        let failing = place.tasks.failing_for(patience).into_iter();
        failing.map(move |task| format!("{region}: {task}"))
    });
    let mut failing: Vec<String> = boards.collect();
    if !failing.is_empty() {
        failing.extend(tasks.iter().map(TaskHealth::in_words));
        return Err(Problem::unavailable(&failing.join("; ")));
    }
    if app.fence.is_shut_out(app.clock.now()) {
        return Err(Problem::unavailable(
            "another database holds this installation's fence: this one is a copy. To run it beside the other, use `bakeoff migrate --new-installation`; if the original is gone for good, `bakeoff migrate --forget-fence`",
        ));
    }
    Ok(healthy(tasks))
}

/// The status of each task that has run. Errors appear only in the log, because this endpoint needs
/// no key.
async fn task_health(app: &App) -> Result<Vec<TaskHealth>, Problem> {
    let now = app.clock.now();
    let mut health = Vec::new();
    for (region, place) in app.places.iter() {
        let oldest = app.store.oldest_due(region).await?;
        let statuses = place.tasks.statuses().into_iter();
        health.extend(statuses.map(|(task, status)| {
            TaskHealth {
                task: task.to_owned(),
                region: region.clone(),
                runs: status.runs,
                failing: status.is_failing(),
                last_started_at: status.last_started_at,
                last_ended_at: status.last_ended_at,
                last_success_at: status.last_success_at,
                lag_seconds: oldest
                    .of(task)
                    .map(|due| (now - due.unwrap_or(now)).as_seconds_f64().max(0.0)),
            }
        }));
    }
    Ok(health)
}

/// Publishes the same as Prometheus metrics.
pub(crate) async fn measure_tasks(app: &App) -> Result<(), Problem> {
    for health in task_health(app).await? {
        let labels = [("task", health.task), ("region", health.region)];
        if let Some(lag) = health.lag_seconds {
            metrics::gauge!("bakeoff_task_lag_seconds", &labels).set(lag);
        }
        metrics::gauge!("bakeoff_task_failing", &labels).set(if health.failing {
            1.0
        } else {
            0.0
        });
        if let Some(at) = health.last_success_at {
            let at = at.timestamp_micros();
            metrics::gauge!("bakeoff_task_last_success_timestamp_seconds", &labels)
                .set(std::time::Duration::from_micros(at.unsigned_abs()).as_secs_f64());
        }
        metrics::counter!("bakeoff_task_runs_total", &labels).absolute(health.runs);
    }
    Ok(())
}
