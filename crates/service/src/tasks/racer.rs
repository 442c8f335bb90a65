//! The racer: looks at running experiments every two minutes, keeps how they stand, stops the trials that
//! can no longer change the answer or have said what they can, and lets those start whose figure is worth it.

use bakeoff_domain::ids::{ExperimentId, ProjectId};
use chrono::TimeDelta;

use crate::app::App;
use crate::read;
use bakeoff_store::StoreError;

/// Experiments claimed at a time.
const PAGE: usize = 20;
/// Between two looks at an experiment: figures of young series change by the minute.
const AGAIN: TimeDelta = TimeDelta::minutes(2);

/// Runs one tick; returns how many trials were stopped.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let mut stopped = 0;
    loop {
        let now = app.clock.now();
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let page = app.store.claim_races(now + AGAIN, limit, now).await?;
        for (project, id) in &page {
            app.pulse.beat();
            // An experiment that cannot be read must not hold up the others.
            match judge(app, *project, *id).await {
                Ok(count) => stopped += count,
                Err(error) => {
                    tracing::error!(%error, experiment = %id, "judging a race failed");
                }
            }
        }
        if page.len() < PAGE {
            return Ok(stopped);
        }
    }
}

async fn judge(app: &App, project: ProjectId, id: ExperimentId) -> Result<usize, StoreError> {
    let Some(experiment) = app.store.experiment(project, id).await? else {
        return Ok(0);
    };
    let now = app.clock.now();
    let Some((answer, verdict)) = read::look(&app.store, &experiment, now).await? else {
        return Ok(0);
    };
    app.store.keep_look(id, &answer, now).await?;
    if verdict.is_empty() {
        return Ok(0);
    }
    app.store.apply_verdict(project, id, &verdict, now).await
}
