//! External runs: created, read, and ended by the client that reports them.

use bakeoff_domain::ids::{ProjectId, RunId};
use bakeoff_domain::lifecycle::state::RunState;
use bakeoff_domain::spec::run::RunSpec;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::stored;
use crate::{Store, StoreError};

/// A stored external run.
#[derive(Debug, Clone)]
pub struct Run {
    pub id: RunId,
    pub spec: RunSpec,
    pub state: RunState,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
}

struct Row {
    id: Uuid,
    spec: serde_json::Value,
    state: String,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
}

impl TryFrom<Row> for Run {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: RunId(row.id),
            spec: stored::read(row.spec, "runs", row.id, "spec")?,
            state: RunState::parse(&row.state)
                .ok_or_else(|| StoreError::corrupt("runs", row.id, "state"))?,
            created_at: row.created_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
        })
    }
}

impl Store {
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn insert_run(
        &self,
        project: ProjectId,
        id: RunId,
        spec: &RunSpec,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"INSERT INTO runs (id, project_id, name, spec, state, created_at, started_at)
               VALUES ($1, $2, $3, $4, 'running', $5, $6)"#,
            id.0,
            project.0,
            spec.name,
            stored::write(spec)?,
            now,
            spec.started_at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Ends a run; false when it had already ended.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn end_run(
        &self,
        project: ProjectId,
        id: RunId,
        state: RunState,
        at: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let ended = sqlx::query!(
            "UPDATE runs SET state = $3, ended_at = $4 WHERE id = $1 AND project_id = $2 AND state = 'running'",
            id.0,
            project.0,
            state.as_str(),
            at,
        )
        .execute(&self.pool)
        .await?;
        Ok(ended.rows_affected() == 1)
    }

    /// Runs of a project by id, in the order of their ids.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn runs_by_id(
        &self,
        project: ProjectId,
        ids: &[RunId],
    ) -> Result<Vec<Run>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, spec, state, created_at, started_at, ended_at FROM runs
               WHERE project_id = $1 AND id = ANY($2) ORDER BY id"#,
            project.0,
            &ids.iter().map(|id| id.0).collect::<Vec<_>>(),
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(Run::try_from)
        .collect()
    }

    /// A page of a project's runs, newest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn runs(
        &self,
        project: ProjectId,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Run>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, spec, state, created_at, started_at, ended_at FROM runs
               WHERE project_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3"#,
            project.0,
            before,
            limit,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(Run::try_from)
        .collect()
    }
}
