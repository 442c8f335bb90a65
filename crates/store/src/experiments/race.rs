//! The race, as stored: which experiments are to be judged again, and the stops and starts that
//! follow. Who loses is decided in [`bakeoff_domain::ranking::race`], and who starts in
//! [`bakeoff_domain::ranking::start`].

use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::events::{self, EventSubject};
use crate::{Store, StoreError, retried};

/// A trial to be stopped or started, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    pub trial: TrialId,
    pub reason: String,
}

/// What becomes of an experiment's trials.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    pub stops: Vec<Judged>,
    /// Trials that were held back, and may start now.
    pub starts: Vec<Judged>,
    /// A person asks for it: trials that a person has had done once more are stopped too.
    pub by_hand: bool,
}

impl Verdict {
    pub fn is_empty(&self) -> bool {
        self.stops.is_empty() && self.starts.is_empty()
    }
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

    /// Requests the stops of living trials, lets those start that were held back, and tells why.
    /// Returns how many stops were not requested before; none once the experiment is over or being
    /// cancelled.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn apply_verdict(
        &self,
        project: ProjectId,
        experiment: ExperimentId,
        verdict: &Verdict,
        now: DateTime<Utc>,
    ) -> Result<usize, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let running = sqlx::query_scalar!(
                "SELECT id FROM experiments WHERE id = $1 AND project_id = $2 AND state = 'running' FOR NO KEY UPDATE",
                experiment.0,
                project.0,
            );
            if running.fetch_optional(&mut *tx).await?.is_none() {
                return Ok(0);
            }
            let stopped = stop(&mut tx, experiment, verdict, now).await?;
            let started = release(&mut tx, experiment, &verdict.starts, now).await?;
            if stopped.is_empty() && started.is_empty() {
                return Ok(0);
            }
            sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
                .execute(&mut *tx)
                .await?;
            let count = stopped.len();
            let subject = |trial| EventSubject {
                project,
                experiment,
                trial: Some(trial),
            };
            let stops = stopped.into_iter().map(|one| {
                let reason = one.reason;
                subject(one.trial).told(Event::TrialStopping { reason })
            });
            let starts = started.into_iter().map(|one| {
                let reason = one.reason;
                subject(one.trial).told(Event::TrialReleased { reason })
            });
            let told: Vec<_> = stops.chain(starts).collect();
            events::commit(tx, &told, now).await?;
            Ok(count)
        };
        retried(transaction).await
    }
}

/// Requests stops; returns those that were not requested before.
pub(crate) async fn stop(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    verdict: &Verdict,
    now: DateTime<Utc>,
) -> Result<Vec<Judged>, StoreError> {
    let (ids, reasons) = columns(&verdict.stops);
    let rows = sqlx::query!(
        r#"WITH living AS (
               SELECT id FROM trials
               WHERE experiment_id = $1 AND id = ANY($2) AND stop_requested_at IS NULL AND ($5 OR retry_of IS NULL OR is_automatic)
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
        verdict.by_hand,
    );
    let judged = rows.fetch_all(tx).await?.into_iter().map(|row| Judged {
        trial: TrialId(row.id),
        reason: row.reason,
    });
    Ok(judged.collect())
}

/// Lets trials start; returns those that were still held back.
async fn release(
    tx: &mut PgConnection,
    experiment: ExperimentId,
    starts: &[Judged],
    now: DateTime<Utc>,
) -> Result<Vec<Judged>, StoreError> {
    let (ids, reasons) = columns(starts);
    let rows = sqlx::query!(
        r#"WITH held AS (
               SELECT id FROM trials
               WHERE experiment_id = $1 AND id = ANY($2) AND stop_requested_at IS NULL
                 AND state = 'queued' AND released_at IS NULL
               ORDER BY id FOR NO KEY UPDATE)
           UPDATE trials t SET released_at = $4, due_at = $4, reason = NULL
           FROM held JOIN UNNEST($2::uuid[], $3::text[]) AS start(id, reason) ON start.id = held.id
           WHERE t.id = held.id
           RETURNING t.id, start.reason AS "reason!""#,
        experiment.0,
        &ids,
        &reasons,
        now,
    );
    let judged = rows.fetch_all(tx).await?.into_iter().map(|row| Judged {
        trial: TrialId(row.id),
        reason: row.reason,
    });
    Ok(judged.collect())
}

fn columns(judged: &[Judged]) -> (Vec<Uuid>, Vec<String>) {
    let one = |one: &Judged| (one.trial.0, one.reason.clone());
    judged.iter().map(one).unzip()
}
