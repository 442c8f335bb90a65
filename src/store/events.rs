//! What happened, in order. Written in the transaction of the change it tells of.

use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::{Store, StoreError};
use crate::view::EventView;

/// An event to be written.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub trial_id: Option<TrialId>,
    /// Dotted name, `trial.completed`.
    pub kind: String,
    /// `info`, `warning` or `alarm`.
    pub severity: &'static str,
    pub message: String,
}

/// Events of an experiment are committed in the order of their ids (the lock is held to the end of the transaction), so
/// that a reader who goes on after the last id it saw misses none.
pub(crate) async fn insert(tx: &mut PgConnection, event: &NewEvent, now: DateTime<Utc>) -> Result<(), StoreError> {
    sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", event.experiment_id.to_string())
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        r#"INSERT INTO events (project_id, experiment_id, trial_id, kind, severity, message, recorded_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7)"#,
        event.project_id.0,
        event.experiment_id.0,
        event.trial_id.map(|id| id.0),
        event.kind,
        event.severity,
        event.message,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}

impl Store {
    /// Tells the experiment, if there still is one, that a job of it ran without a living attempt.
    pub async fn alarm_stray_job(&self, job_name: &str, now: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query!(
            r#"INSERT INTO events (project_id, experiment_id, trial_id, kind, severity, message, recorded_at)
               SELECT project_id, experiment_id, trial_id, 'trial.stray_job', 'alarm', $2, $3
               FROM attempts WHERE job_name = $1"#,
            job_name,
            format!(
                "{job_name} ran although its attempt was over; it was stopped, and what it cost is not in the ledger"
            ),
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Events of an experiment (or of one of its trials) after an id, oldest first.
    pub async fn events_after(
        &self,
        experiment: ExperimentId,
        trial: Option<TrialId>,
        after: i64,
        limit: i64,
    ) -> Result<Vec<EventView>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, trial_id, kind, severity, message, recorded_at FROM events
               WHERE experiment_id = $1 AND id > $2 AND ($3::uuid IS NULL OR trial_id = $3)
               ORDER BY id LIMIT $4"#,
            experiment.0,
            after,
            trial.map(|id| id.0),
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| EventView {
                id: row.id,
                trial_id: row.trial_id.map(TrialId),
                kind: row.kind,
                severity: row.severity,
                message: row.message,
                recorded_at: row.recorded_at,
            })
            .collect())
    }
}
