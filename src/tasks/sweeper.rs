//! The sweeper: jobs in the region that carry our name and that no living attempt stands for. They should not exist; if one
//! does (a database restored from a backup, a hand in the wrong place), it is stopped and an alarm is raised.
//!
//! It never touches a job of another installation, nor one without our marker.

use bakeoff_domain::job::JobStatus;

use crate::app::App;
use crate::store::StoreError;

/// One tick; returns how many jobs were stopped.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let prefix = format!("bakeoff-{}-", app.settings.installation);
    let names = match app.ports.jobs.list_in_progress(&prefix).await {
        Ok(names) => names,
        Err(error) => {
            tracing::info!(%error, "the sweep could not list jobs; next time");
            return Ok(0);
        }
    };
    // Listed first and looked up after: an attempt that was planned meanwhile is found, and its job left alone.
    let strays = app.store.without_living_attempt(&names).await?;
    let mut stopped = 0;
    for name in strays {
        let Ok(job) = app.ports.jobs.describe(&name).await else { continue };
        // It may have ended, and been settled, between the listing and now.
        if job.marker.is_none() || job.status != JobStatus::InProgress {
            continue;
        }
        tracing::error!(job = name, "a job of ours runs without a living attempt; stopping it");
        match app.ports.jobs.stop(&name).await {
            Ok(()) => {
                stopped += 1;
                app.store.alarm_stray_job(&name, app.clock.now()).await?;
            }
            Err(error) => tracing::warn!(%error, job = name, "a stray job could not be stopped; next time"),
        }
    }
    Ok(stopped)
}
