//! What CI runs without a verdict wait for, besides their trials; and those that a newer commit has taken the place of.

use bakeoff_domain::ids::{CiRunId, ExperimentId, ProjectId, TemplateId};
use chrono::{DateTime, Utc};

use super::commit_statuses;
use super::runs::CiRun;
use crate::{Store, StoreError};

/// A run whose wait has changed since it was shown, or has lasted for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingRun {
    pub project: ProjectId,
    pub run: CiRunId,
    pub template: TemplateId,
    /// `paused` or `image`, as it is now; `None` if it waits for its trials alone.
    pub kind: Option<String>,
    /// As it was shown last.
    pub shown: Option<String>,
    /// Why its experiment is paused, or what its trials say.
    pub why: Option<String>,
}

/// A run that a newer commit has taken the place of, and its newest experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupersededRun {
    pub project: ProjectId,
    pub run: CiRunId,
    pub experiment: ExperimentId,
}

impl Store {
    /// Runs whose wait has to be shown, and those that have waited since before a moment and of which no job runs. Oldest
    /// first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn waiting_ci_runs(
        &self,
        waited_before: DateTime<Utc>,
        after: Option<CiRunId>,
        limit: i64,
    ) -> Result<Vec<WaitingRun>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT r.project_id, r.id, r.template_id, w.kind, r.waits, coalesce(w.paused_reason, w.trial_reason) AS why
               FROM ci_runs r JOIN ci_waits w ON w.run_id = r.id
               WHERE r.verdict IS NULL AND r.superseded_by IS NULL AND ($1::uuid IS NULL OR r.id > $1)
                 AND (w.kind IS DISTINCT FROM r.waits
                      OR r.waits IS NOT NULL AND r.waits_since <= $2 AND NOT w.is_busy)
               ORDER BY r.id LIMIT $3"#,
            after.map(|id| id.0),
            waited_before,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        Ok(rows
            .map(|row| WaitingRun {
                project: ProjectId(row.project_id),
                run: CiRunId(row.id),
                template: TemplateId(row.template_id),
                kind: row.kind,
                shown: row.waits,
                why: row.why,
            })
            .collect())
    }

    /// Notes what a run waits for, and has it shown.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn note_wait(
        &self,
        waiting: &WaitingRun,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let written = sqlx::query!(
            r#"UPDATE ci_runs SET waits = $2::text, waits_since = CASE WHEN $2 IS NOT NULL THEN $3::timestamptz END
               WHERE id = $1 AND verdict IS NULL AND waits IS DISTINCT FROM $2"#,
            waiting.run.0,
            waiting.kind,
            now,
        );
        if written.execute(&mut *tx).await?.rows_affected() == 0 {
            return Ok(false);
        }
        commit_statuses::tell(&mut tx, waiting.run, waiting.template, now).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Runs without a verdict that a newer commit has taken the place of, oldest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn superseded_ci_runs(
        &self,
        after: Option<CiRunId>,
        limit: i64,
    ) -> Result<Vec<SupersededRun>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT project_id, id, experiment_id FROM ci_runs
               WHERE verdict IS NULL AND superseded_by IS NOT NULL AND ($1::uuid IS NULL OR id > $1)
               ORDER BY id LIMIT $2"#,
            after.map(|id| id.0),
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        Ok(rows
            .map(|row| SupersededRun {
                project: ProjectId(row.project_id),
                run: CiRunId(row.id),
                experiment: ExperimentId(row.experiment_id),
            })
            .collect())
    }
}

impl CiRun {
    /// Why nothing of it runs, as far as it is known.
    pub fn waits_for(&self) -> Option<String> {
        match (&self.paused_reason, &self.trial_reason) {
            (Some(why), _) => Some(format!("paused: {why}")),
            (None, Some(why)) if !self.is_busy => Some(why.clone()),
            (None, _) => None,
        }
    }
}
