//! Wakes a pipeline, in the transaction of what it waits for.

use bakeoff_domain::ids::ExperimentId;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::StoreError;

/// Makes the pipeline due whose step's work has ended, if it is a step's. Locks an experiment before its
/// pipeline; who locks a pipeline first touches no experiment but new ones.
pub(crate) async fn wake_pipeline(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"UPDATE pipelines p SET due_at = least(due_at, $2) FROM pipeline_works w
           WHERE w.experiment_id = $1 AND p.id = w.pipeline_id AND p.due_at IS NOT NULL"#,
        experiment.0,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}
