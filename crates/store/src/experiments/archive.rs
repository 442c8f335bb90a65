//! Experiments that are put away: archived ones are left out of lists; deleted ones are shown to nobody, and what they
//! measured is purged some time later. What was spent stays, in the ledger and in the project's totals.

use bakeoff_domain::event::{Change, Event};
use bakeoff_domain::ids::{ExperimentId, ProjectId};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::events::{self, EventSubject};
use crate::{Store, StoreError, retried};

/// What is done with an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAway {
    Archive,
    Unarchive,
    Delete,
    Restore,
}

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Away {
    Done,
    /// There is none, or none any more.
    Absent,
    /// It is not over.
    Running,
    /// A pipeline or a CI run consists of it.
    PartOfMore,
}

impl Store {
    /// Puts an experiment away, or takes it back. Safe to repeat.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn put_away(
        &self,
        project: ProjectId,
        id: ExperimentId,
        how: PutAway,
        now: DateTime<Utc>,
    ) -> Result<Away, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let row = sqlx::query!(
                r#"SELECT ended_at IS NOT NULL AS "is_over!", deleted_at IS NOT NULL AS "is_deleted!",
                          purged_at IS NOT NULL AS "is_purged!", archived_at IS NOT NULL AS "is_archived!",
                          EXISTS (SELECT FROM pipeline_works w WHERE w.experiment_id = e.id)
                          OR EXISTS (SELECT FROM ci_rounds r WHERE r.experiment_id = e.id) AS "is_part!"
                   FROM experiments e WHERE id = $1 AND project_id = $2 AND kind = 'comparison' FOR NO KEY UPDATE"#,
                id.0,
                project.0,
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(row) = row.filter(|row| !row.is_purged) else {
                return Ok(Away::Absent);
            };
            match how {
                PutAway::Archive | PutAway::Unarchive if row.is_deleted => return Ok(Away::Absent),
                PutAway::Archive | PutAway::Delete if !row.is_over => return Ok(Away::Running),
                PutAway::Delete if row.is_part => return Ok(Away::PartOfMore),
                _ => {}
            }
            let (archived, deleted) = match how {
                PutAway::Archive => (Some(true), None),
                PutAway::Unarchive => (Some(false), None),
                PutAway::Delete => (None, Some(true)),
                PutAway::Restore => (None, Some(false)),
            };
            sqlx::query!(
                r#"UPDATE experiments
                   SET archived_at = CASE WHEN $2::boolean THEN coalesce(archived_at, $4) WHEN NOT $2 THEN NULL ELSE archived_at END,
                       deleted_at = CASE WHEN $3::boolean THEN coalesce(deleted_at, $4) WHEN NOT $3 THEN NULL ELSE deleted_at END
                   WHERE id = $1"#,
                id.0,
                archived,
                deleted,
                now,
            )
            .execute(&mut *tx)
            .await?;
            let archived = archived.filter(|wanted| *wanted != row.is_archived);
            let deleted = deleted.filter(|wanted| *wanted != row.is_deleted);
            if archived.is_none() && deleted.is_none() {
                tx.commit().await?;
                return Ok(Away::Done);
            }
            let change = Change {
                archived,
                deleted,
                ..Change::default()
            };
            let subject = EventSubject {
                project,
                experiment: id,
                trial: None,
            };
            let told = subject.told(Event::ExperimentChanged(change));
            events::commit(tx, &[told], now).await?;
            Ok(Away::Done)
        };
        retried(transaction).await
    }

    /// Experiments that were deleted before a moment, and not purged yet.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiments_to_purge(
        &self,
        deleted_before: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<ExperimentId>, StoreError> {
        let ids: Vec<Uuid> = sqlx::query_scalar!(
            r#"SELECT id FROM experiments WHERE deleted_at < $1 AND purged_at IS NULL ORDER BY deleted_at LIMIT $2"#,
            deleted_before,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(ids.into_iter().map(ExperimentId).collect())
    }

    /// Forgets what a deleted experiment has measured, and its log lines. False if it was restored meanwhile.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn purge(&self, id: ExperimentId, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let marked = sqlx::query!(
                r#"UPDATE experiments SET purged_at = $2
                   WHERE id = $1 AND deleted_at IS NOT NULL AND purged_at IS NULL"#,
                id.0,
                now,
            );
            if marked.execute(&mut *tx).await?.rows_affected() == 0 {
                return Ok(false);
            }
            let series: Vec<i32> = sqlx::query_scalar!(
                "SELECT s.id FROM series s JOIN trials t ON t.id = s.trial_id WHERE t.experiment_id = $1",
                id.0,
            )
            .fetch_all(&mut *tx)
            .await?;
            sqlx::query!("DELETE FROM samples WHERE series_id = ANY($1)", &series)
                .execute(&mut *tx)
                .await?;
            sqlx::query!(
                "DELETE FROM sample_chunks WHERE series_id = ANY($1)",
                &series
            )
            .execute(&mut *tx)
            .await?;
            sqlx::query!("DELETE FROM rollups WHERE series_id = ANY($1)", &series)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM series WHERE id = ANY($1)", &series)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM post_mortems WHERE experiment_id = $1", id.0)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM race_looks WHERE experiment_id = $1", id.0)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(true)
        };
        retried(transaction).await
    }
}
