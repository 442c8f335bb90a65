//! The finalizer: stores the recommendation of an experiment whose trials are over and whose
//! metrics are read, and ends it.

use crate::app::App;
use crate::read;
use bakeoff_store::StoreError;
use bakeoff_store::experiments::Concludable;

/// Experiments read per page.
const PAGE: usize = 20;

/// Runs one tick; returns how many experiments were concluded.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let (mut concluded, mut after) = (0, None);
    loop {
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let page = app
            .store
            .experiments_to_conclude(after, limit, app.clock.now())
            .await?;
        for one in &page {
            app.pulse.beat();
            // An experiment that cannot be read must not hold up the others.
            match conclude(app, *one).await {
                Ok(is_done) => concluded += usize::from(is_done),
                Err(error) => {
                    tracing::error!(%error, experiment = %one.id, "concluding an experiment failed");
                }
            }
        }
        after = page.last().map(|one| one.id);
        if page.len() < PAGE {
            return Ok(concluded);
        }
    }
}

async fn conclude(app: &App, one: Concludable) -> Result<bool, StoreError> {
    if one.is_step {
        return app.store.conclude_step(one, app.clock.now()).await;
    }
    let Some(experiment) = app.store.experiment(one.project, one.id).await? else {
        return Ok(false);
    };
    let now = app.clock.now();
    let recommendation = read::recommendation(&app.store, &experiment, now).await?;
    app.store.conclude(one, &recommendation, now).await
}
