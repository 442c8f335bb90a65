//! What a person changes of an experiment: its budget, its priority, how long it waits for capacity, its labels.

use bakeoff_domain::event::{Change, Event};
use bakeoff_domain::ids::{ExperimentId, ProjectId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::{ExperimentSpec, deadline_after, labels};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::events::{self, EventSubject};
use crate::{Store, StoreError, error, retried, stored};

/// What has become of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    Done,
    /// The experiment is over, or being cancelled.
    Over,
    /// It has been changed since: its revision now.
    Since(u32),
    /// The new budget is less than what is spent and reserved.
    Committed(Usd),
    /// Its budget is its pipeline's.
    OfPipeline,
}

impl Store {
    /// Changes a running experiment, if it still has the revision that the change is based on. What waits for its
    /// budget or its turn is due at once; the race holds the others back until the deadline.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn change_experiment(
        &self,
        project: ProjectId,
        id: ExperimentId,
        change: &Change,
        based_on: Option<u32>,
        now: DateTime<Utc>,
    ) -> Result<Changed, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let row = sqlx::query!(
                r#"SELECT revision, state, reserved_usd + settled_usd AS "committed_usd!", created_at, spec::text,
                          EXISTS (SELECT FROM pipeline_works w WHERE w.experiment_id = e.id) AS "is_step!"
                   FROM experiments e WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL FOR NO KEY UPDATE"#,
                id.0,
                project.0,
            )
            .fetch_optional(&mut *tx)
            .await?;
            let is_open = |state: &str| match state {
                "running" => true,
                // A budget, for what is to be added.
                "completed" | "failed" => change.is_of_what_is_over(),
                _ => change.is_of_labels_only(),
            };
            let Some(row) = row.filter(|row| is_open(&row.state)) else {
                return Ok(Changed::Over);
            };
            let revision = error::count(row.revision, "experiments", id.0, "revision")?;
            if based_on.is_some_and(|based_on| based_on != revision) {
                return Ok(Changed::Since(revision));
            }
            match change.budget_usd {
                Some(_) if row.is_step => return Ok(Changed::OfPipeline),
                Some(budget) if budget.0 < row.committed_usd => {
                    return Ok(Changed::Committed(Usd(row.committed_usd)));
                }
                _ => {}
            }
            let spec = row.spec.map(|spec| changed_spec(&spec, id, change));
            write(&mut tx, id, change, spec.transpose()?).await?;
            if row.state == "running" {
                write_trials(&mut tx, id, change, row.created_at, now).await?;
            }
            sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
                .execute(&mut *tx)
                .await?;
            let subject = EventSubject {
                project,
                experiment: id,
                trial: None,
            };
            let told = Event::ExperimentChanged(change.clone());
            events::commit(tx, &[subject.told(told)], now).await?;
            Ok(Changed::Done)
        };
        retried(transaction).await
    }
}

/// The specification with what is changed: later trials, full runs and rounds of CI go by it.
fn changed_spec(
    written: &str,
    id: ExperimentId,
    change: &Change,
) -> Result<serde_json::Value, StoreError> {
    let mut spec: ExperimentSpec = stored::read_text(written, "experiments", id.0, "spec")?;
    spec.budget_usd = change.budget_usd.unwrap_or(spec.budget_usd);
    spec.priority = change.priority.unwrap_or(spec.priority);
    spec.deadline_hours = change.deadline_hours.or(spec.deadline_hours);
    if let Some(labels) = &change.labels {
        spec.labels.clone_from(labels);
    }
    stored::write(&spec)
}

async fn write(
    tx: &mut PgConnection,
    id: ExperimentId,
    change: &Change,
    spec: Option<serde_json::Value>,
) -> Result<(), StoreError> {
    let labels = change.labels.as_ref().map(labels::pairs);
    sqlx::query!(
        r#"UPDATE experiments
           SET budget_usd = coalesce($2, budget_usd), labels = coalesce($3, labels), spec = coalesce($4, spec),
               revision = revision + 1
           WHERE id = $1"#,
        id.0,
        change.budget_usd.map(|budget| budget.0),
        labels.as_deref(),
        spec,
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn write_trials(
    tx: &mut PgConnection,
    id: ExperimentId,
    change: &Change,
    created_at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let hours = change.deadline_hours;
    let give_up_at = hours.map(|hours| deadline_after(Some(hours), created_at));
    sqlx::query!(
        r#"WITH living AS (
               SELECT id FROM trials
               WHERE experiment_id = $1 AND state IN ('queued', 'submitting', 'parked', 'running', 'stopping')
               ORDER BY id FOR NO KEY UPDATE)
           UPDATE trials t
           SET priority = coalesce($2, priority), give_up_at = coalesce($3, give_up_at),
               due_at = CASE WHEN t.state <> 'queued' THEN t.due_at WHEN t.released_at IS NOT NULL THEN $4
                             ELSE coalesce($3, t.due_at) END
           FROM living WHERE t.id = living.id"#,
        id.0,
        change.priority,
        give_up_at,
        now,
    )
    .execute(tx)
    .await?;
    Ok(())
}
