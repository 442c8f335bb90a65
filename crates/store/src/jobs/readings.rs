//! Training jobs that are due for a look at what they teach, and the troubles that were found: each kind once of a
//! trial. What is one is decided by [`bakeoff_domain::diagnosis::fruitless`].

use bakeoff_domain::diagnosis::fruitless::TroubleKind;
use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::money::Usd;
use chrono::{DateTime, TimeDelta, Utc};

use crate::events::{self, EventSubject};
use crate::experiments::race::{Judged, Verdict, stop};
use crate::{Store, StoreError, retried};

/// A job that trains.
#[derive(Debug, Clone)]
pub struct ReadingsDue {
    pub job_name: String,
    pub trial_id: TrialId,
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub instance_count: u32,
    pub usd_per_hour: Usd,
    /// Start of the current uninterrupted training.
    pub training_since: DateTime<Utc>,
}

/// A trouble to be told, and the trials to be stopped for it.
#[derive(Debug, Clone)]
pub struct FoundTrouble {
    pub kind: TroubleKind,
    pub event: Event,
    pub stops: Vec<Judged>,
}

impl Store {
    /// Claims jobs that have trained since a moment and are due. If we crash, they are due again after `hold`.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_readings(
        &self,
        region: &str,
        trained_since: DateTime<Utc>,
        now: DateTime<Utc>,
        hold: TimeDelta,
        limit: i64,
    ) -> Result<Vec<ReadingsDue>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT id FROM jobs
                   WHERE state = 'running' AND region = $4 AND kind = 'training' AND trial_id IS NOT NULL
                     AND secondary_status = 'Training' AND greatest(started_at, modified_at) <= $5
                     AND coalesce(readings_due_at, planned_at) <= $1
                   ORDER BY coalesce(readings_due_at, planned_at) LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE jobs j SET readings_due_at = $2 FROM trials t
               WHERE j.id = ANY (ARRAY(SELECT id FROM due)) AND t.id = j.trial_id
               RETURNING j.job_name, j.project_id, j.experiment_id AS "experiment_id!", j.trial_id AS "trial_id!",
                         t.instance_count, j.usd_per_hour,
                         greatest(j.started_at, j.modified_at) AS "training_since!""#,
            now,
            now + hold,
            limit,
            region,
            trained_since,
        )
        .fetch_all(&self.pool)
        .await?;
        let due = rows.into_iter().map(|row| ReadingsDue {
            job_name: row.job_name,
            trial_id: TrialId(row.trial_id),
            project_id: ProjectId(row.project_id),
            experiment_id: ExperimentId(row.experiment_id),
            instance_count: u32::try_from(row.instance_count).unwrap_or(1),
            usd_per_hour: Usd(row.usd_per_hour),
            training_since: row.training_since,
        });
        Ok(due.collect())
    }

    /// Tells of a trouble and requests the stops that follow, once of a trial and kind; false if it was told before, or
    /// the experiment is over or being cancelled.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_trouble(
        &self,
        due: &ReadingsDue,
        found: &FoundTrouble,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let running = sqlx::query_scalar!(
                "SELECT id FROM experiments WHERE id = $1 AND project_id = $2 AND state = 'running' FOR NO KEY UPDATE",
                due.experiment_id.0,
                due.project_id.0,
            );
            if running.fetch_optional(&mut *tx).await?.is_none() {
                return Ok(false);
            }
            let inserted = sqlx::query!(
                "INSERT INTO trial_troubles (trial_id, kind, told_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                due.trial_id.0,
                found.kind.as_str(),
                now,
            )
            .execute(&mut *tx)
            .await?;
            if inserted.rows_affected() == 0 {
                return Ok(false);
            }
            let verdict = Verdict {
                stops: found.stops.clone(),
                starts: Vec::new(),
                by_hand: true,
            };
            let stopped = stop(&mut tx, due.experiment_id, &verdict, now).await?;
            if !stopped.is_empty() {
                sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
                    .execute(&mut *tx)
                    .await?;
            }
            let subject = |trial| EventSubject {
                project: due.project_id,
                experiment: due.experiment_id,
                trial: Some(trial),
            };
            let told = [subject(due.trial_id).told(found.event.clone())];
            let stops = stopped.into_iter().map(|one| {
                let reason = one.reason;
                subject(one.trial).told(Event::TrialStopping { reason })
            });
            let told: Vec<_> = told.into_iter().chain(stops).collect();
            events::commit(tx, &told, now).await?;
            Ok(true)
        };
        retried(transaction).await
    }
}
