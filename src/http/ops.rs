//! Health: `/livez` does no I/O, `/readyz` asks the database and whether every task does its work.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::{Problem, Problems};
use crate::app::App;

/// The process is there.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct Health {
    status: String,
    version: String,
}

fn healthy() -> Json<Health> {
    Json(Health {
        status: "ok".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// Whether the process is alive
#[utoipa::path(get, path = "/livez", operation_id = "livez", tag = "operations", security(()),
    responses((status = 200, description = "Alive", body = Health), Problems))]
pub(super) async fn livez() -> Json<Health> {
    healthy()
}

/// Whether the service can do its work
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "operations", security(()),
    responses((status = 200, description = "Ready", body = Health), Problems))]
pub(super) async fn readyz(State(app): State<App>) -> Result<Json<Health>, Problem> {
    app.store
        .ping()
        .await
        .map_err(|_| Problem::unavailable("the database does not answer"))?;
    let failing = app.tasks.failing_for(app.settings.patience() * 2);
    if !failing.is_empty() {
        return Err(Problem::unavailable(&failing.join("; ")));
    }
    if app.fence.is_shut_out(app.clock.now()) {
        return Err(Problem::unavailable(
            "another database holds this installation's fence: this one is a copy",
        ));
    }
    Ok(healthy())
}
