//! What people ask of an experiment that runs: cancel, pause, resume. Asked twice is asked once;
//! what is over stays over.

use bakeoff_domain::ids::{ExperimentId, ProjectId};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::events::{self, NewEvent};
use crate::store::{Store, StoreError, retried};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// The experiment and its living trials are marked, and the trials become due at once.
    Cancel,
    /// Nothing new is started; what runs goes on.
    Pause,
    /// A pause is lifted, whoever set it, and parked trials are queued again.
    Resume,
}

impl Store {
    /// Writes what is asked; false when the experiment is over or being cancelled, and nothing
    /// changes.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn wish(
        &self,
        project: ProjectId,
        id: ExperimentId,
        wish: Wish,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        retried(|| self.wish_once(project, id, wish, now)).await
    }

    async fn wish_once(
        &self,
        project: ProjectId,
        id: ExperimentId,
        wish: Wish,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        if !mark(&mut tx, project, id, wish, now).await? {
            return Ok(false);
        }
        let (kind, message) = match wish {
            Wish::Cancel => {
                stop_living(&mut tx, id, now).await?;
                ("cancelling", "a cancel was asked for".to_owned())
            }
            Wish::Pause => ("paused", "paused by hand".to_owned()),
            Wish::Resume => {
                let unparked = unpark(&mut tx, id, now).await?;
                (
                    "resumed",
                    format!("resumed; {unparked} parked trials are queued again"),
                )
            }
        };
        let event = NewEvent {
            project_id: project,
            experiment_id: id,
            trial_id: None,
            kind: format!("experiment.{kind}"),
            severity: "info",
            message,
        };
        events::insert(&mut tx, &event, now).await?;
        sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(true)
    }
}

async fn mark(
    tx: &mut PgConnection,
    project: ProjectId,
    id: ExperimentId,
    wish: Wish,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let marked = sqlx::query!(
        r#"UPDATE experiments
           SET state = CASE WHEN $3 = 'cancel' THEN 'cancelling' ELSE state END,
               cancel_requested_at = CASE WHEN $3 = 'cancel' THEN $4 ELSE cancel_requested_at END,
               paused_reason = CASE $3 WHEN 'pause' THEN coalesce(paused_reason, 'paused by hand')
                                       WHEN 'resume' THEN NULL ELSE paused_reason END
           WHERE id = $1 AND project_id = $2 AND state = 'running'"#,
        id.0,
        project.0,
        match wish {
            Wish::Cancel => "cancel",
            Wish::Pause => "pause",
            Wish::Resume => "resume",
        },
        now,
    )
    .execute(tx)
    .await?;
    Ok(marked.rows_affected() > 0)
}

async fn stop_living(
    tx: &mut PgConnection,
    id: ExperimentId,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"WITH living AS (
               SELECT id FROM trials
               WHERE experiment_id = $1 AND state IN ('queued', 'submitting', 'parked', 'running', 'stopping')
               ORDER BY id FOR NO KEY UPDATE)
           UPDATE trials t SET stop_requested_at = $2, due_at = $2 FROM living WHERE t.id = living.id"#,
        id.0,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Queues parked trials again; returns how many.
async fn unpark(
    tx: &mut PgConnection,
    id: ExperimentId,
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    let unparked = sqlx::query!(
        r#"WITH parked AS (
               SELECT id FROM trials WHERE experiment_id = $1 AND state = 'parked'
               ORDER BY id FOR NO KEY UPDATE)
           UPDATE trials t SET state = 'queued', due_at = $2, reason = NULL, over_quota = 0, no_capacity = 0
           FROM parked WHERE t.id = parked.id"#,
        id.0,
        now,
    )
    .execute(&mut *tx)
    .await?;
    // Whoever resumes knows of new quotas before we do: they are read again before they are
    // believed.
    sqlx::query!(
        r#"UPDATE quotas q SET is_doubted = true, held_until = NULL
           FROM (SELECT DISTINCT instance_type, purchase_option FROM trials
                 WHERE experiment_id = $1 AND state = 'queued') lane
           WHERE q.instance_type = lane.instance_type AND q.usage = lane.purchase_option"#,
        id.0,
    )
    .execute(tx)
    .await?;
    Ok(unparked.rows_affected())
}
