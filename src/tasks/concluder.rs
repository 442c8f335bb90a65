//! The concluder: an experiment whose trials are over and whose metrics are read gets its recommendation and ends.

use bakeoff_domain::ids::{ExperimentId, ProjectId};

use crate::app::App;
use crate::read;
use crate::store::StoreError;

const CONCLUDE_MAX: i64 = 20;

/// One tick; returns how many experiments were concluded.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let mut concluded = 0;
    for (project, id) in app.store.experiments_to_conclude(CONCLUDE_MAX).await? {
        app.pulse.beat();
        // One experiment that cannot be read must not keep the others waiting.
        match conclude(app, project, id).await {
            Ok(is_done) => concluded += usize::from(is_done),
            Err(error) => tracing::error!(%error, experiment = %id, "an experiment could not be concluded"),
        }
    }
    Ok(concluded)
}

async fn conclude(app: &App, project: ProjectId, id: ExperimentId) -> Result<bool, StoreError> {
    let Some(experiment) = app.store.experiment(project, id).await? else { return Ok(false) };
    let now = app.clock.now();
    let recommendation = read::recommendation(&app.store, &experiment, now).await?;
    app.store.conclude(project, id, &recommendation, now).await
}
