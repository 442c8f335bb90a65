//! Ended trials of a workload, which plans learn from, also those stopped early. Their figures come
//! from [`bakeoff_service::read::figures`].

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::spec::ResolvedExperiment;
use uuid::Uuid;

use crate::experiments::read_resolved;
use crate::{Store, StoreError};

/// An ended trial with its experiment.
#[derive(Debug)]
pub struct Measured {
    pub trial_id: Uuid,
    pub candidate: String,
    pub state: TrialState,
    /// BillableTimeInSeconds of its jobs on demand, and how many of them were billed any.
    pub billable_seconds: i64,
    pub billed_jobs: i64,
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
            r#"SELECT t.id, t.experiment_id, t.candidate, t.state, b.seconds AS "seconds!", b.jobs AS "jobs!"
               FROM (SELECT id, experiment_id, candidate, state, purchase_option FROM trials
                     WHERE experiment_id = ANY($1) AND state IN ('completed', 'stopped') ORDER BY id DESC LIMIT $2) t
               CROSS JOIN LATERAL (SELECT coalesce(sum(billable_seconds), 0)::bigint AS seconds,
                                          count(*) FILTER (WHERE billable_seconds > 0) AS jobs
                                   FROM jobs WHERE experiment_id = t.experiment_id AND trial_id = t.id
                                                AND t.purchase_option = 'on_demand') b
               ORDER BY t.id DESC"#,
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
                state: TrialState::parse(&trial.state)
                    .ok_or_else(|| StoreError::corrupt("trials", trial.id, "state"))?,
                billable_seconds: trial.seconds,
                billed_jobs: trial.jobs,
                experiment: read_resolved(&experiment.spec, experiment.id)?,
            });
        }
        Ok(all)
    }
}
