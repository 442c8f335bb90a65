//! Pipelines: written with their steps in one transaction, claimed by the conductor, shown. What a step does next
//! is decided by [`bakeoff_domain::pipeline::decide`]; its work is written in the same transaction as the fact
//! that it has begun, so that a crash leaves both or none.

pub mod purchases;
mod steps;

pub use self::steps::{StepEnd, StepWork, WriteOutcome};

use bakeoff_domain::ids::{EndpointId, ExperimentId, ModelPackageId, PipelineId, ProjectId};
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::{PipelineState, StepKind, StepState};
use bakeoff_domain::spec::pipeline::PipelineSpec;
use chrono::{DateTime, TimeDelta, Utc};
use rust_decimal::Decimal;
use serde_json::Value;
use uuid::Uuid;

use crate::requests::{Once, remember_key};
use crate::{Store, StoreError, error, stored};

const TABLE: &str = "pipelines";
const STEPS: &str = "pipeline_steps";

/// A stored pipeline.
#[derive(Debug, Clone)]
pub struct Pipeline {
    pub id: PipelineId,
    pub project_id: ProjectId,
    pub name: String,
    pub region: String,
    pub spec: PipelineSpec,
    pub state: PipelineState,
    pub budget_usd: Usd,
    /// Of the claim that it was read with, or the last one.
    pub claims: i64,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// A stored step, with the work of its last try.
#[derive(Debug, Clone)]
pub struct Step {
    pub pipeline_id: PipelineId,
    pub place: usize,
    pub name: String,
    pub kind: StepKind,
    pub state: StepState,
    pub reason: Option<String>,
    pub tries: u32,
    pub experiment_id: Option<ExperimentId>,
    pub experiment_state: Option<ExperimentState>,
    pub model_package_id: Option<ModelPackageId>,
    pub endpoint_id: Option<EndpointId>,
    pub outputs: Option<Value>,
    pub reused_from: Option<PipelineId>,
    /// Of the experiment of its last try.
    pub budget_usd: Option<Usd>,
    /// What all of its tries have cost, and what is held for those under way.
    pub settled_usd: Usd,
    pub reserved_usd: Usd,
    /// Of its works that are under way: their budgets.
    pub held_usd: Usd,
    /// Of those that are over: what is settled and still held.
    pub spent_usd: Usd,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
}

struct Row {
    id: Uuid,
    project_id: Uuid,
    name: String,
    region: String,
    spec: Value,
    state: String,
    budget_usd: Decimal,
    claims: i64,
    created_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
}

impl TryFrom<Row> for Pipeline {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: PipelineId(row.id),
            project_id: ProjectId(row.project_id),
            name: row.name,
            region: row.region,
            spec: stored::read(row.spec, TABLE, row.id, "spec")?,
            state: PipelineState::parse(&row.state)
                .ok_or_else(|| StoreError::corrupt(TABLE, row.id, "state"))?,
            budget_usd: Usd(row.budget_usd),
            claims: row.claims,
            created_at: row.created_at,
            ended_at: row.ended_at,
        })
    }
}

struct StepRow {
    pipeline_id: Uuid,
    place: i32,
    name: String,
    kind: String,
    state: String,
    reason: Option<String>,
    tries: i32,
    experiment_id: Option<Uuid>,
    experiment_state: Option<String>,
    model_package_id: Option<Uuid>,
    endpoint_id: Option<Uuid>,
    outputs: Option<Value>,
    reused_from: Option<Uuid>,
    budget_usd: Option<Decimal>,
    settled_usd: Decimal,
    reserved_usd: Decimal,
    held_usd: Decimal,
    spent_usd: Decimal,
    started_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
}

impl TryFrom<StepRow> for Step {
    type Error = StoreError;

    fn try_from(row: StepRow) -> Result<Self, StoreError> {
        let corrupt = |column| StoreError::corrupt(STEPS, row.pipeline_id, column);
        let experiment_state = row
            .experiment_state
            .as_deref()
            .map(|state| ExperimentState::parse(state).ok_or_else(|| corrupt("experiment_id")));
        Ok(Self {
            pipeline_id: PipelineId(row.pipeline_id),
            place: error::count(row.place, STEPS, row.pipeline_id, "place")?,
            kind: StepKind::parse(&row.kind).ok_or_else(|| corrupt("kind"))?,
            state: StepState::parse(&row.state).ok_or_else(|| corrupt("state"))?,
            tries: error::count(row.tries, STEPS, row.pipeline_id, "tries")?,
            experiment_state: experiment_state.transpose()?,
            name: row.name,
            reason: row.reason,
            experiment_id: row.experiment_id.map(ExperimentId),
            model_package_id: row.model_package_id.map(ModelPackageId),
            endpoint_id: row.endpoint_id.map(EndpointId),
            outputs: row.outputs,
            reused_from: row.reused_from.map(PipelineId),
            budget_usd: row.budget_usd.map(Usd),
            settled_usd: Usd(row.settled_usd),
            reserved_usd: Usd(row.reserved_usd),
            held_usd: Usd(row.held_usd),
            spent_usd: Usd(row.spent_usd),
            started_at: row.started_at,
            ended_at: row.ended_at,
        })
    }
}

/// A pipeline as it begins.
#[derive(Debug)]
pub struct NewPipeline<'a> {
    pub id: PipelineId,
    pub project_id: ProjectId,
    pub spec: &'a PipelineSpec,
    /// Of each step, in order.
    pub kinds: &'a [StepKind],
}

impl Store {
    /// Writes a pipeline with its steps and its idempotency key; due at once.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn create_pipeline(
        &self,
        new: &NewPipeline<'_>,
        once: &Once<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let spec = new.spec;
        sqlx::query!(
            r#"INSERT INTO pipelines (id, project_id, name, region, spec, state, budget_usd, due_at, created_at)
               VALUES ($1, $2, $3, $4, $5, 'running', $6, $7, $7)"#,
            new.id.0,
            new.project_id.0,
            spec.name,
            spec.region,
            stored::write(spec)?,
            spec.budget_usd.0,
            now,
        )
        .execute(&mut *tx)
        .await?;
        let names: Vec<String> = spec.steps.iter().map(|step| step.name.clone()).collect();
        let kinds: Vec<String> = new
            .kinds
            .iter()
            .map(|kind| kind.as_str().to_owned())
            .collect();
        sqlx::query!(
            r#"INSERT INTO pipeline_steps (pipeline_id, place, name, kind, state)
               SELECT $1, nth - 1, name, kind, 'waiting'
               FROM UNNEST($2::text[], $3::text[]) WITH ORDINALITY AS s(name, kind, nth)"#,
            new.id.0,
            &names,
            &kinds,
        )
        .execute(&mut *tx)
        .await?;
        remember_key(&mut tx, new.project_id, once).await?;
        tx.commit().await?;
        Ok(())
    }

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn pipeline(
        &self,
        project: ProjectId,
        id: PipelineId,
    ) -> Result<Option<Pipeline>, StoreError> {
        let row = sqlx::query_as!(
            Row,
            r#"SELECT id, project_id, name, region, spec, state, budget_usd, claims, created_at, ended_at
               FROM pipelines WHERE project_id = $1 AND id = $2"#,
            project.0,
            id.0,
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(Pipeline::try_from).transpose()
    }

    /// A page of a project's pipelines, newest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn pipelines(
        &self,
        project: ProjectId,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Pipeline>, StoreError> {
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT id, project_id, name, region, spec, state, budget_usd, claims, created_at, ended_at
               FROM pipelines WHERE project_id = $1 AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3"#,
            project.0,
            before,
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(Pipeline::try_from).collect()
    }

    /// The steps of some pipelines, in order, with what they cost.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn pipeline_steps(&self, pipelines: &[Uuid]) -> Result<Vec<Step>, StoreError> {
        let rows = sqlx::query_as!(
            StepRow,
            r#"SELECT s.pipeline_id, s.place, s.name, s.kind, s.state, s.reason, s.tries, s.experiment_id,
                      e.state AS "experiment_state?", s.model_package_id,
                      (SELECT p.id FROM endpoints p WHERE p.experiment_id = s.experiment_id) AS endpoint_id, s.outputs, s.reused_from,
                      e.budget_usd AS "budget_usd?", w.settled_usd AS "settled_usd!", w.reserved_usd AS "reserved_usd!",
                      w.held_usd AS "held_usd!", w.spent_usd AS "spent_usd!", s.started_at, s.ended_at
               FROM pipeline_steps s LEFT JOIN experiments e ON e.id = s.experiment_id
                    CROSS JOIN LATERAL (
                        SELECT coalesce(sum(x.settled_usd), 0) AS settled_usd, coalesce(sum(x.reserved_usd), 0) AS reserved_usd,
                               coalesce(sum(greatest(x.budget_usd, x.settled_usd + x.reserved_usd))
                                        FILTER (WHERE x.ended_at IS NULL), 0) AS held_usd,
                               coalesce(sum(x.settled_usd + x.reserved_usd) FILTER (WHERE x.ended_at IS NOT NULL), 0) AS spent_usd
                        FROM pipeline_works pw JOIN experiments x ON x.id = pw.experiment_id
                        WHERE pw.pipeline_id = s.pipeline_id AND pw.place = s.place) w
               WHERE s.pipeline_id = ANY($1) ORDER BY s.pipeline_id, s.place"#,
            pipelines,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(Step::try_from).collect()
    }

    /// Claims the pipeline of a region that is due first. If we crash, it is due again after `hold`.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_pipeline(
        &self,
        region: &str,
        now: DateTime<Utc>,
        hold: TimeDelta,
    ) -> Result<Option<Pipeline>, StoreError> {
        let row = sqlx::query_as!(
            Row,
            r#"WITH due AS (
                   SELECT id FROM pipelines WHERE due_at <= $1 AND region = $3 ORDER BY due_at LIMIT 1
                   FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE pipelines p SET due_at = $2, claims = p.claims + 1
               WHERE p.id = (SELECT id FROM due)
               RETURNING id, project_id, name, region, spec, state, budget_usd, claims, created_at, ended_at"#,
            now,
            now + hold,
            region,
        );
        let row = row.fetch_optional(&self.pool).await?;
        row.map(Pipeline::try_from).transpose()
    }

    /// Says when a claimed pipeline is looked at next, unless something has made it due meanwhile.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn release_pipeline(
        &self,
        pipeline: &Pipeline,
        due_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE pipelines SET due_at = $3
               WHERE id = $1 AND claims = $2 AND due_at > $5 AND state = $4"#,
            pipeline.id.0,
            pipeline.claims,
            due_at,
            pipeline.state.as_str(),
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Cancels a running pipeline; false when it is not running.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn cancel_pipeline(
        &self,
        project: ProjectId,
        id: PipelineId,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let marked = sqlx::query!(
            "UPDATE pipelines SET state = 'cancelling', due_at = $3 WHERE id = $1 AND project_id = $2 AND state = 'running'",
            id.0,
            project.0,
            now,
        );
        Ok(marked.execute(&self.pool).await?.rows_affected() == 1)
    }

    /// Takes up a pipeline that failed or was cancelled, at the steps that have not completed, and raises the budget
    /// if a larger one is given, also that of a running one; false when it is in another state. `spec`: with other
    /// budgets of steps; a conductor that has read the old one changes nothing any more.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn resume_pipeline(
        &self,
        pipeline: &Pipeline,
        budget: Option<Usd>,
        spec: Option<&PipelineSpec>,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let (project, id) = (pipeline.project_id, pipeline.id);
        let mut tx = self.pool.begin().await?;
        // One that has completed is not taken up: what serves on may have more.
        let raised = sqlx::query!(
            r#"UPDATE pipelines SET budget_usd = greatest(budget_usd, $3)
               WHERE id = $1 AND project_id = $2 AND state = 'completed' AND $3::numeric IS NOT NULL"#,
            id.0,
            project.0,
            budget.map(|usd| usd.0),
        );
        if raised.execute(&mut *tx).await?.rows_affected() == 1 {
            tx.commit().await?;
            return Ok(true);
        }
        let resumed = sqlx::query_scalar!(
            r#"UPDATE pipelines p SET state = 'running', ended_at = NULL, due_at = $3, budget_usd = greatest(p.budget_usd, $4),
                      spec = coalesce($5, p.spec), claims = p.claims + CASE WHEN $5::jsonb IS NULL THEN 0 ELSE 1 END
               FROM (SELECT id, state FROM pipelines WHERE id = $1 AND project_id = $2 FOR NO KEY UPDATE) before
               WHERE p.id = before.id AND before.state IN ('running', 'failed', 'cancelled')
               RETURNING before.state"#,
            id.0,
            project.0,
            now,
            budget.map(|usd| usd.0),
            spec.map(stored::write).transpose()?,
        );
        let Some(before) = resumed.fetch_optional(&mut *tx).await? else {
            return Ok(false);
        };
        if before != PipelineState::Running.as_str() {
            sqlx::query!(
                r#"UPDATE pipeline_steps SET state = 'waiting', reason = NULL, tries = 0, experiment_id = NULL,
                          model_package_id = NULL, ended_at = NULL
                   WHERE pipeline_id = $1 AND state IN ('failed', 'skipped', 'cancelled')"#,
                id.0,
            )
            .execute(&mut *tx)
            .await?;
            // What was not approved is asked again.
            sqlx::query!(
                "DELETE FROM pipeline_purchases WHERE pipeline_id = $1 AND state IN ('asked', 'refused')",
                id.0,
            )
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(true)
    }
}
