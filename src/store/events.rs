//! Events, in order. Each is written in the transaction of the change that it reports.

use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::{Store, StoreError};

/// An event.
#[derive(Debug, Clone)]
pub struct Event {
    pub id: i64,
    pub trial_id: Option<TrialId>,
    pub kind: String,
    pub severity: String,
    pub message: String,
    pub recorded_at: DateTime<Utc>,
}

/// An event to be written.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub trial_id: Option<TrialId>,
    /// Dotted name, such as `trial.completed`.
    pub kind: String,
    /// `info`, `warning` or `alarm`.
    pub severity: &'static str,
    pub message: String,
}

/// Inserts an event. Events of an experiment are committed in the order of their ids (the lock is
/// held until the end of the transaction), so a reader that continues after the last id it saw
/// misses none.
pub(crate) async fn insert(
    tx: &mut PgConnection,
    event: &NewEvent,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended($1, 1))",
        event.experiment_id.to_string()
    )
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

/// Inserts many events in two statements: the experiments' locks in order, then all rows.
pub(crate) async fn insert_all(
    tx: &mut PgConnection,
    events: &[NewEvent],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    lock_experiments(tx, events).await?;
    sqlx::query!(
        r#"INSERT INTO events (project_id, experiment_id, trial_id, kind, severity, message, recorded_at)
           SELECT project_id, experiment_id, trial_id, kind, severity, message, $7
           FROM UNNEST($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[])
               AS e(project_id, experiment_id, trial_id, kind, severity, message)"#,
        &events.iter().map(|event| event.project_id.0).collect::<Vec<_>>(),
        &events.iter().map(|event| event.experiment_id.0).collect::<Vec<_>>(),
        &events.iter().map(|event| event.trial_id.map(|trial| trial.0)).collect::<Vec<_>>() as &[Option<uuid::Uuid>],
        &events.iter().map(|event| event.kind.clone()).collect::<Vec<_>>(),
        &events.iter().map(|event| event.severity.to_owned()).collect::<Vec<_>>(),
        &events.iter().map(|event| event.message.clone()).collect::<Vec<_>>(),
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Takes the locks of the events' experiments, in order: they are held until the end of the
/// transaction.
async fn lock_experiments(tx: &mut PgConnection, events: &[NewEvent]) -> Result<(), StoreError> {
    let mut experiments: Vec<String> = events
        .iter()
        .map(|event| event.experiment_id.to_string())
        .collect();
    experiments.sort_unstable();
    experiments.dedup();
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended(id, 1)) FROM (SELECT id FROM UNNEST($1::text[]) AS e(id) ORDER BY 1) e",
        &experiments,
    )
    .fetch_all(tx)
    .await?;
    Ok(())
}

impl Store {
    /// Events of an experiment (or of one of its trials) after the given id, oldest first.
    pub async fn events_after(
        &self,
        experiment: ExperimentId,
        trial: Option<TrialId>,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Event>, StoreError> {
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
            .map(|row| Event {
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
