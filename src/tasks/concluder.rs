//! The concluder: an experiment whose trials are over and whose metrics are read gets its
//! recommendation and ends.

use bakeoff_domain::ids::{ExperimentId, ProjectId};

use crate::app::App;
use crate::read;
use crate::store::StoreError;

/// Read at a time.
const PAGE: usize = 20;

/// One tick; returns how many experiments were concluded.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let (mut concluded, mut after) = (0, None);
    loop {
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let page = app
            .store
            .experiments_to_conclude(after, limit, app.clock.now())
            .await?;
        for (project, id) in &page {
            app.pulse.beat();
            // One experiment that cannot be read must not keep the others waiting.
            match conclude(app, *project, *id).await {
                Ok(is_done) => concluded += usize::from(is_done),
                Err(error) => {
                    tracing::error!(%error, experiment = %id, "an experiment could not be concluded");
                }
            }
        }
        after = page.last().map(|(_, id)| *id);
        if page.len() < PAGE {
            return Ok(concluded);
        }
    }
}

async fn conclude(app: &App, project: ProjectId, id: ExperimentId) -> Result<bool, StoreError> {
    let Some(experiment) = app.store.experiment(project, id).await? else {
        return Ok(false);
    };
    let now = app.clock.now();
    let recommendation = read::recommendation(&app.store, &experiment, now).await?;
    app.store.conclude(project, id, &recommendation, now).await
}
