//! Ended trials of a workload, which plans learn from, also those stopped early. Their figures come
//! from [`crate::read::figures`].

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::spec::ResolvedExperiment;
use uuid::Uuid;

use crate::store::experiments::read_resolved;
use crate::store::{Store, StoreError};

/// An ended trial with its experiment.
#[derive(Debug)]
pub struct Measured {
    pub trial_id: Uuid,
    pub candidate: String,
    pub experiment: ResolvedExperiment,
}

/// Limits on how far back to look: enough, because these trials only adjust the fitted model.
const VERSIONS: i64 = 20;
const EXPERIMENTS: i64 = 5;
const TRIALS: i64 = 20;

impl Store {
    /// The newest ended trials of all versions of the named workload.
    pub async fn measured(
        &self,
        project: ProjectId,
        workload: &str,
    ) -> Result<Vec<Measured>, StoreError> {
        let experiments = sqlx::query!(
            r#"SELECT e.id, e.spec::text AS "spec!"
               FROM (SELECT id FROM workloads WHERE project_id = $1 AND name = $2 ORDER BY version DESC LIMIT $3) w
               CROSS JOIN LATERAL (SELECT id, spec FROM experiments WHERE workload_id = w.id AND deleted_at IS NULL ORDER BY id DESC LIMIT $4) e
               ORDER BY e.id DESC LIMIT $4"#,
            project.0,
            workload,
            VERSIONS,
            EXPERIMENTS,
        )
        .fetch_all(&self.pool)
        .await?;
        let ids: Vec<Uuid> = experiments.iter().map(|row| row.id).collect();
        let trials = sqlx::query!(
            r#"SELECT id, experiment_id, candidate FROM trials
               WHERE experiment_id = ANY($1) AND state IN ('completed', 'stopped') ORDER BY id DESC LIMIT $2"#,
            &ids,
            TRIALS,
        )
        .fetch_all(&self.pool)
        .await?;
        let mut all = Vec::with_capacity(trials.len());
        for trial in trials {
            let Some(experiment) = experiments.iter().find(|row| row.id == trial.experiment_id)
            else {
                continue;
            };
            all.push(Measured {
                trial_id: trial.id,
                candidate: trial.candidate,
                experiment: read_resolved(&experiment.spec, experiment.id)?,
            });
        }
        Ok(all)
    }
}
