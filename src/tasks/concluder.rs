//! The concluder: an experiment whose trials are over and whose metrics are read gets its recommendation and ends.

use crate::app::App;
use crate::read;
use crate::store::StoreError;

const CONCLUDE_MAX: i64 = 20;

/// One tick; returns how many experiments were concluded.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let mut concluded = 0;
    for (project, id) in app.store.experiments_to_conclude(CONCLUDE_MAX).await? {
        let Some(experiment) = app.store.experiment(project, id).await? else { continue };
        let now = app.clock.now();
        let recommendation = read::recommendation(&app.store, &experiment, now).await?;
        if app.store.conclude(project, id, &recommendation, now).await? {
            concluded += 1;
        }
    }
    Ok(concluded)
}
