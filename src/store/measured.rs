//! Trials of a workload that have run: what plans learn from. Their figures are [`crate::figures`]' business.

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::spec::ExperimentSpec;
use uuid::Uuid;

use super::error::from_text;
use super::{Store, StoreError};

/// A completed trial with the experiment that it is of.
#[derive(Debug)]
pub struct Measured {
    pub trial_id: Uuid,
    pub candidate: String,
    pub spec: ExperimentSpec,
}

/// The newest experiments and trials are enough: a law is moved, not made.
const EXPERIMENTS: i64 = 5;
const TRIALS: i64 = 20;

impl Store {
    /// The newest completed trials of the workloads of that name, whatever their version.
    pub async fn measured(&self, project: ProjectId, workload: &str) -> Result<Vec<Measured>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT t.id, t.plan->>'candidate' AS "candidate!", e.spec::text AS "spec!"
               FROM (SELECT e.id, e.spec FROM workloads w JOIN experiments e ON e.workload_id = w.id
                     WHERE w.project_id = $1 AND w.name = $2 ORDER BY e.id DESC LIMIT $3) e
               JOIN trials t ON t.experiment_id = e.id
               WHERE t.state = 'completed' ORDER BY t.id DESC LIMIT $4"#,
            project.0,
            workload,
            EXPERIMENTS,
            TRIALS,
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let spec = from_text(&row.spec, "experiments", row.id, "spec")?;
                Ok(Measured { trial_id: row.id, candidate: row.candidate, spec })
            })
            .collect()
    }
}
