//! The race, as stored: which experiments are to be judged again, and the stops that follow. Who
//! loses is decided in [`bakeoff_domain::ranking::race`].

use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::store::events::{self, EventSubject};
use crate::store::{Store, StoreError, retried};

/// A trial to be stopped, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialStop {
    pub trial: TrialId,
    pub reason: String,
}

impl Store {
    /// Claims experiments whose race is due, the longest due first, and sets when each is due next:
    /// two replicas never judge the same one at once.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_races(
        &self,
        next: DateTime<Utc>,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<(ProjectId, ExperimentId)>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT id FROM experiments WHERE state = 'running' AND race_due_at <= $1
                   ORDER BY race_due_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE experiments e SET race_due_at = $2 FROM due WHERE e.id = due.id
               RETURNING e.project_id, e.id"#,
            now,
            next,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        let claimed = rows
            .into_iter()
            .map(|row| (ProjectId(row.project_id), ExperimentId(row.id)));
        Ok(claimed.collect())
    }

    /// Requests the stops of living trials, and tells why. Returns how many were not requested
    /// before; none once the experiment is over or being cancelled.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn stop_trials(
        &self,
        project: ProjectId,
        experiment: ExperimentId,
        stops: &[TrialStop],
        now: DateTime<Utc>,
    ) -> Result<usize, StoreError> {
        retried(|| self.stop_trials_once(project, experiment, stops, now)).await
    }

    async fn stop_trials_once(
        &self,
        project: ProjectId,
        experiment: ExperimentId,
        stops: &[TrialStop],
        now: DateTime<Utc>,
    ) -> Result<usize, StoreError> {
        let mut tx = self.pool.begin().await?;
        let running = sqlx::query_scalar!(
            "SELECT id FROM experiments WHERE id = $1 AND project_id = $2 AND state = 'running' FOR NO KEY UPDATE",
            experiment.0,
            project.0,
        );
        if running.fetch_optional(&mut *tx).await?.is_none() {
            return Ok(0);
        }
        let ids: Vec<Uuid> = stops.iter().map(|stop| stop.trial.0).collect();
        let reasons: Vec<String> = stops.iter().map(|stop| stop.reason.clone()).collect();
        let stopped = sqlx::query!(
            r#"WITH living AS (
                   SELECT id FROM trials
                   WHERE experiment_id = $1 AND id = ANY($2) AND stop_requested_at IS NULL
                     AND state IN ('queued', 'submitting', 'parked', 'running', 'stopping')
                   ORDER BY id FOR NO KEY UPDATE)
               UPDATE trials t SET stop_requested_at = $4, due_at = $4, stop_reason = stop.reason
               FROM living JOIN UNNEST($2::uuid[], $3::text[]) AS stop(id, reason) ON stop.id = living.id
               WHERE t.id = living.id
               RETURNING t.id, t.stop_reason AS "reason!""#,
            experiment.0,
            &ids,
            &reasons,
            now,
        )
        .fetch_all(&mut *tx)
        .await?;
        if stopped.is_empty() {
            return Ok(0);
        }
        sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
            .execute(&mut *tx)
            .await?;
        let count = stopped.len();
        let told: Vec<_> = stopped
            .into_iter()
            .map(|row| {
                let subject = EventSubject {
                    project,
                    experiment,
                    trial: Some(TrialId(row.id)),
                };
                subject.told(Event::TrialStopping { reason: row.reason })
            })
            .collect();
        events::commit(tx, &told, now).await?;
        Ok(count)
    }
}
