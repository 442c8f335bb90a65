//! Checkpoints of running attempts: which are due for a check in S3, and what was found.

use std::collections::BTreeSet;

use bakeoff_domain::catalog;
use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{ExperimentId, JobId, ProjectId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::observed::Transition;
use bakeoff_domain::sagemaker::phase::JobPhase;
use bakeoff_domain::spec::CheckpointSpec;
use chrono::{DateTime, TimeDelta, Utc};

use crate::events::{self, EventSubject};
use crate::{Store, StoreError, stored};

/// An attempt whose checkpoints are due for a check.
#[derive(Debug, Clone)]
pub struct CheckpointDue {
    pub job_id: JobId,
    pub trial_id: TrialId,
    /// The trial in whose folder its checkpoints lie.
    pub folder: TrialId,
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub spec: CheckpointSpec,
    pub instance_count: u32,
    pub usd_per_hour: Usd,
    /// While the job trains: start of the current uninterrupted training.
    pub training_since: Option<DateTime<Utc>>,
    /// Of its job, as last seen.
    pub phase: JobPhase,
    pub is_alarmed: bool,
    /// SageMaker's history of the job, as last seen; empty if it cannot be read.
    pub transitions: Vec<Transition>,
    /// When checkpoints were written, as far as is kept.
    pub checkpoint_times: Vec<DateTime<Utc>>,
}

/// Where a trial's checkpoints lie.
#[derive(Debug, Clone)]
pub struct CheckpointPlace {
    pub trial: TrialId,
    /// With the trial's folder, without a slash at its end.
    pub s3_uri: String,
    /// Whether a job saves there, or one may be restored from there.
    pub is_in_use: bool,
    /// Training processes, as far as they are known.
    pub ranks: Option<u32>,
}

impl CheckpointPlace {
    /// The same, with as many training processes as the instances have accelerators.
    #[must_use]
    pub fn on(self, instance_type: &str, instance_count: u32) -> Self {
        let ranks =
            catalog::find(instance_type).map(|kind| kind.accelerator_count * instance_count);
        Self { ranks, ..self }
    }
}

impl Store {
    /// Where a trial's checkpoints lie; `None` if it saves none.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn checkpoint_place(
        &self,
        project: ProjectId,
        trial: TrialId,
    ) -> Result<Option<CheckpointPlace>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT t.checkpoint_s3_uri, coalesce(t.checkpoint_trial_id, t.id) AS "folder!",
                      EXISTS (SELECT FROM trials o
                              WHERE coalesce(o.checkpoint_trial_id, o.id) = coalesce(t.checkpoint_trial_id, t.id)
                                AND (o.state IN ('queued', 'submitting', 'running', 'stopping', 'parked')
                                     OR EXISTS (SELECT FROM jobs j WHERE j.trial_id = o.id
                                                AND j.state IN ('planned', 'quarantined', 'running')))) AS "is_in_use!"
               FROM trials t WHERE t.id = $1 AND t.project_id = $2"#,
            trial.0,
            project.0,
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.and_then(|row| {
            let base = row.checkpoint_s3_uri?;
            Some(CheckpointPlace {
                trial,
                s3_uri: format!("{}/{}", base.trim_end_matches('/'), TrialId(row.folder)),
                is_in_use: row.is_in_use,
                ranks: None,
            })
        }))
    }

    /// Folders of checkpoints that the full runs of an experiment went on in.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn folders_gone_on_in(
        &self,
        experiment: ExperimentId,
    ) -> Result<BTreeSet<TrialId>, StoreError> {
        let folders = sqlx::query_scalar!(
            r#"SELECT t.checkpoint_trial_id AS "folder!" FROM experiments e JOIN trials t ON t.experiment_id = e.id
               WHERE e.full_run_of = $1 AND t.checkpoint_trial_id IS NOT NULL"#,
            experiment.0,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(folders.into_iter().map(TrialId).collect())
    }

    /// Claims attempts whose checkpoints are due. If we crash, they are due again after `hold`.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_checkpoints(
        &self,
        region: &str,
        now: DateTime<Utc>,
        hold: TimeDelta,
        limit: i64,
    ) -> Result<Vec<CheckpointDue>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT id FROM jobs WHERE checkpoint_due_at <= $1 AND region = $4 ORDER BY checkpoint_due_at LIMIT $3
                   FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE jobs j SET checkpoint_due_at = $2
               FROM trials t
               WHERE j.id = ANY (ARRAY(SELECT id FROM due)) AND t.id = j.trial_id
               RETURNING j.id, j.project_id, j.experiment_id AS "experiment_id!", j.trial_id AS "trial_id!",
                         t.instance_count, j.usd_per_hour,
                         greatest(j.started_at, j.modified_at) AS training_since, j.secondary_status,
                         j.checkpoint_alarmed, j.checkpoint_times, j.transitions::text AS "transitions!", coalesce(t.checkpoint_trial_id, t.id) AS "folder!", t.checkpoint_s3_uri, t.checkpoint_local_path,
                         t.checkpoint_interval_seconds"#,
            now,
            now + hold,
            limit,
            region,
        )
        .fetch_all(&self.pool)
        .await?;
        let due = rows.into_iter().filter_map(|row| {
            let spec = || {
                Some(CheckpointSpec {
                    s3_uri: row.checkpoint_s3_uri?,
                    local_path: row.checkpoint_local_path?,
                    interval_seconds: u32::try_from(row.checkpoint_interval_seconds?).ok()?,
                })
            };
            let spec = spec()
                .ok_or_else(|| StoreError::corrupt("trials", row.trial_id, "checkpoint_s3_uri"));
            match spec {
                // The row keeps its hold and does not delay the others.
                Err(error) => {
                    tracing::error!(%error, "checkpoint settings of a trial are unreadable; skipped");
                    None
                }
                Ok(spec) => Some(CheckpointDue {
                    job_id: JobId(row.id),
                    trial_id: TrialId(row.trial_id),
                    folder: TrialId(row.folder),
                    project_id: ProjectId(row.project_id),
                    experiment_id: ExperimentId(row.experiment_id),
                    spec,
                    instance_count: u32::try_from(row.instance_count).unwrap_or(1),
                    usd_per_hour: Usd(row.usd_per_hour),
                    training_since: row.training_since,
                    phase: JobPhase::of(row.secondary_status.as_deref().unwrap_or_default()),
                    is_alarmed: row.checkpoint_alarmed,
                    transitions: stored::read_text(&row.transitions, "jobs", row.id, "transitions")
                        .unwrap_or_default(),
                    checkpoint_times: row.checkpoint_times,
                }),
            }
        });
        Ok(due.collect())
    }

    /// Records the newest checkpoint and the times worth keeping, and raises an alarm once when checkpoint syncing has stopped.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_checkpoint(
        &self,
        due: &CheckpointDue,
        times: &[DateTime<Utc>],
        alarm: Option<Event>,
        next_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let changed = sqlx::query!(
            r#"UPDATE jobs SET checkpoint_at = greatest(checkpoint_at, $2), checkpoint_due_at = $3,
                      checkpoint_alarmed = $4, checkpoint_times = $5
               WHERE id = $1 AND state = 'running'"#,
            due.job_id.0,
            times.last().copied(),
            next_at,
            alarm.is_some(),
            times,
        )
        .execute(&mut *tx)
        .await?;
        let subject = EventSubject {
            project: due.project_id,
            experiment: due.experiment_id,
            trial: Some(due.trial_id),
        };
        let alarm = alarm
            .filter(|_| changed.rows_affected() == 1 && !due.is_alarmed)
            .map(|alarm| subject.told(alarm));
        events::commit(tx, alarm.as_slice(), now).await
    }
}
