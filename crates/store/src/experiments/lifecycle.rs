//! Commands on a running experiment: cancel, pause, resume. They are idempotent, and have no effect
//! once the experiment is over; only a resume takes up one that was concluded without its parked
//! trials.

use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{ExperimentId, ProjectId};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::events::{self, EventSubject};
use crate::{Store, StoreError, retried};

/// A command for an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExperimentCommand {
    /// Marks the experiment and its living trials; the trials become due at once.
    Cancel,
    /// Starts nothing new; running jobs continue.
    Pause,
    /// Lifts a pause, whatever its cause, and queues parked trials again. An experiment that was
    /// concluded without them goes on.
    Resume,
}

impl Store {
    /// Applies a command. False, with no change, when the experiment is over or being cancelled.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn command(
        &self,
        project: ProjectId,
        id: ExperimentId,
        command: ExperimentCommand,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let Some(event) = apply(&mut tx, project, id, command, now).await? else {
                return Ok(false);
            };
            let subject = EventSubject {
                project,
                experiment: id,
                trial: None,
            };
            events::commit(tx, &[subject.told(event)], now).await?;
            Ok(true)
        };
        retried(transaction).await
    }
}

/// Applies a command; returns the event to be told, `None` when the experiment is over or being cancelled.
pub(crate) async fn apply(
    tx: &mut PgConnection,
    project: ProjectId,
    id: ExperimentId,
    command: ExperimentCommand,
    now: DateTime<Utc>,
) -> Result<Option<Event>, StoreError> {
    // A verdict is not looked at again: what ran now would be paid for in vain.
    if command == ExperimentCommand::Resume && is_judged(tx, id).await? {
        return Ok(None);
    }
    if !mark(tx, project, id, command, now).await? {
        return Ok(None);
    }
    let event = match command {
        ExperimentCommand::Cancel => {
            stop_living(tx, id, now).await?;
            Event::ExperimentCancelling
        }
        ExperimentCommand::Pause => Event::ExperimentPaused,
        ExperimentCommand::Resume => {
            let requeued = unpark(tx, id, now).await?;
            Event::ExperimentResumed { requeued }
        }
    };
    sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
        .execute(tx)
        .await?;
    Ok(Some(event))
}

/// Whether an experiment is of a CI run that has its verdict, and none is written before the transaction ends.
async fn is_judged(tx: &mut PgConnection, id: ExperimentId) -> Result<bool, StoreError> {
    let verdict = sqlx::query_scalar!(
        r#"SELECT r.verdict FROM ci_rounds o JOIN ci_runs r ON r.id = o.run_id WHERE o.experiment_id = $1 FOR SHARE OF r"#,
        id.0,
    );
    Ok(verdict.fetch_optional(tx).await?.flatten().is_some())
}

async fn mark(
    tx: &mut PgConnection,
    project: ProjectId,
    id: ExperimentId,
    command: ExperimentCommand,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let marked = sqlx::query!(
        r#"UPDATE experiments
           SET state = CASE $3 WHEN 'cancel' THEN 'cancelling' ELSE 'running' END,
               ended_at = NULL, archived_at = NULL,
               -- What it starts must not be concluded with what was before.
               revision = revision + CASE WHEN $3 = 'resume' THEN 1 ELSE 0 END,
               cancel_requested_at = CASE WHEN $3 = 'cancel' THEN $4 ELSE cancel_requested_at END,
               paused_reason = CASE $3 WHEN 'pause' THEN coalesce(paused_reason, 'paused by hand')
                                       WHEN 'resume' THEN NULL ELSE paused_reason END
           WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL
             AND (state = 'running'
                  OR $3 = 'resume' AND state IN ('completed', 'failed')
                     AND EXISTS (SELECT FROM trials t WHERE t.experiment_id = $1 AND t.state = 'parked')
                     -- What its step has left over belongs to the pipeline's other steps.
                     AND NOT EXISTS (SELECT FROM pipeline_works w WHERE w.experiment_id = $1))"#,
        id.0,
        project.0,
        match command {
            ExperimentCommand::Cancel => "cancel",
            ExperimentCommand::Pause => "pause",
            ExperimentCommand::Resume => "resume",
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

/// Queues parked trials again; returns the number of trials.
async fn unpark(
    tx: &mut PgConnection,
    id: ExperimentId,
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    let unparked = sqlx::query!(
        r#"WITH parked AS (
               SELECT id FROM trials WHERE experiment_id = $1 AND state = 'parked'
               ORDER BY id FOR NO KEY UPDATE)
           UPDATE trials t
           SET state = 'queued', due_at = $2, released_at = $2, reason = NULL, over_quota = 0, no_capacity = 0,
               -- Whoever resumes it gives it as long again, three days at most: it may have waited beyond its deadline.
               give_up_at = greatest(give_up_at, $2::timestamptz + least(give_up_at - created_at, interval '3 days'))
           FROM parked WHERE t.id = parked.id"#,
        id.0,
        now,
    )
    .execute(&mut *tx)
    .await?;
    // The person who resumes may know of new quotas before we do: mark the quotas as doubted, so
    // that they are read again.
    sqlx::query!(
        r#"UPDATE quotas q SET is_doubted = true, held_until = NULL
           FROM (SELECT DISTINCT region, instance_type, usage_of(job_kind, purchase_option) AS usage FROM trials
                 WHERE experiment_id = $1 AND state = 'queued') quota_pool
           WHERE q.region = quota_pool.region AND q.instance_type = quota_pool.instance_type AND q.usage = quota_pool.usage"#,
        id.0,
    )
    .execute(tx)
    .await?;
    Ok(unparked.rows_affected())
}
