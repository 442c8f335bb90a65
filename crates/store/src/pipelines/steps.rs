//! What the conductor writes of a claimed pipeline's steps. Each function is one transaction that checks the
//! claim: a conductor that another one has overtaken changes nothing.

use bakeoff_domain::ids::{ExperimentId, ModelPackageId, PipelineId};
use bakeoff_domain::pipeline::{PipelineState, StepState};
use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use super::Pipeline;
use crate::events;
use crate::experiments::steps::{self, NewStepWork};
use crate::experiments::{self, NewExperiment};
use crate::model_packages::{self, NewPackage};
use crate::{Store, StoreError, retried};

/// The work that a step begins.
#[derive(Debug)]
pub enum StepWork<'a> {
    Job(NewStepWork<'a>),
    Experiment(NewExperiment<'a>),
    /// A model package that is there already.
    Model(ModelPackageId),
    /// One that is not, or has failed before and is tried again.
    NewModel {
        new: NewPackage<'a>,
        has_failed: bool,
    },
}

/// Whether it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    Done,
    /// Another conductor has the pipeline, or a person has changed its state.
    Stale,
}

/// Whether the claim still holds; it does until the transaction ends.
pub(super) async fn holds(tx: &mut PgConnection, pipeline: &Pipeline) -> Result<bool, StoreError> {
    let row = sqlx::query_scalar!(
        "SELECT claims FROM pipelines WHERE id = $1 AND claims = $2 AND state = $3 FOR NO KEY UPDATE",
        pipeline.id.0,
        pipeline.claims,
        pipeline.state.as_str(),
    );
    Ok(row.fetch_optional(tx).await?.is_some())
}

pub(super) fn place_of(place: usize) -> i32 {
    i32::try_from(place).unwrap_or(i32::MAX)
}

/// A step that begins, with its work.
struct Begun<'a> {
    place: i32,
    experiment: Option<ExperimentId>,
    package: Option<ModelPackageId>,
    fingerprint: Option<&'a [u8]>,
}

/// Marks a waiting step as running; false if it does not wait.
async fn begin(
    tx: &mut PgConnection,
    pipeline: &Pipeline,
    begun: Begun<'_>,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let experiment = begun.experiment.map(|id| id.0);
    let marked = sqlx::query!(
        r#"UPDATE pipeline_steps
           SET state = 'running', reason = NULL, tries = tries + 1, experiment_id = $3, model_package_id = $4,
               fingerprint = $5, started_at = coalesce(started_at, $6), ended_at = NULL
           WHERE pipeline_id = $1 AND place = $2 AND state = 'waiting'"#,
        pipeline.id.0,
        begun.place,
        experiment,
        begun.package.map(|id| id.0),
        begun.fingerprint,
        now,
    );
    if marked.execute(&mut *tx).await?.rows_affected() == 0 {
        return Ok(false);
    }
    if let Some(experiment) = experiment {
        sqlx::query!(
            "INSERT INTO pipeline_works (experiment_id, pipeline_id, place) VALUES ($1, $2, $3)",
            experiment,
            pipeline.id.0,
            begun.place,
        )
        .execute(tx)
        .await?;
    }
    Ok(true)
}

impl Store {
    /// Writes a waiting step's work, and that it has begun, in one transaction.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn start_step(
        &self,
        pipeline: &Pipeline,
        place: usize,
        work: &StepWork<'_>,
        fingerprint: Option<&[u8]>,
        now: DateTime<Utc>,
    ) -> Result<WriteOutcome, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            if !holds(&mut tx, pipeline).await? {
                return Ok(WriteOutcome::Stale);
            }
            let mut told = Vec::new();
            let (experiment, package): (Option<ExperimentId>, Option<ModelPackageId>) = match work {
                StepWork::Job(new) => {
                    steps::insert(&mut tx, new, now).await?;
                    (Some(new.experiment_id), None)
                }
                StepWork::Experiment(new) => {
                    told.push(experiments::insert(&mut tx, new, now).await?);
                    (Some(new.id), None)
                }
                StepWork::Model(id) => (None, Some(*id)),
                StepWork::NewModel { new, has_failed } => {
                    let is_written = if *has_failed {
                        model_packages::restart(&mut tx, new, now).await?
                    } else {
                        model_packages::insert(&mut tx, new, now).await?
                    };
                    // Somebody else was faster: the next look finds theirs.
                    if !is_written {
                        return Ok(WriteOutcome::Stale);
                    }
                    (None, Some(new.id))
                }
            };
            let begun = Begun {
                place: place_of(place),
                experiment,
                package,
                fingerprint,
            };
            if !begin(&mut tx, pipeline, begun, now).await? {
                return Ok(WriteOutcome::Stale);
            }
            sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
                .execute(&mut *tx)
                .await?;
            bakeoff_process::crash::point("in_step");
            events::commit(tx, &told, now).await?;
            Ok(WriteOutcome::Done)
        };
        retried(transaction).await
    }

    /// Ends a step; a completed one with its outputs.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn end_step(
        &self,
        pipeline: &Pipeline,
        place: usize,
        end: &StepEnd<'_>,
        now: DateTime<Utc>,
    ) -> Result<WriteOutcome, StoreError> {
        let mut tx = self.pool.begin().await?;
        if !holds(&mut tx, pipeline).await? {
            return Ok(WriteOutcome::Stale);
        }
        sqlx::query!(
            r#"UPDATE pipeline_steps
               SET state = $3, reason = left($4, 4000), outputs = $5, reused_from = $6, ended_at = $7,
                   started_at = CASE WHEN $3 = 'skipped' THEN started_at ELSE coalesce(started_at, $7) END
               WHERE pipeline_id = $1 AND place = $2 AND state IN ('waiting', 'running')"#,
            pipeline.id.0,
            place_of(place),
            end.state.as_str(),
            end.reason,
            end.outputs,
            end.reused_from.map(|id| id.0),
            now,
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(WriteOutcome::Done)
    }

    /// Lets a running step whose work failed wait, to be tried again.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn try_step_again(
        &self,
        pipeline: &Pipeline,
        place: usize,
        why: &str,
    ) -> Result<WriteOutcome, StoreError> {
        let mut tx = self.pool.begin().await?;
        if !holds(&mut tx, pipeline).await? {
            return Ok(WriteOutcome::Stale);
        }
        sqlx::query!(
            r#"UPDATE pipeline_steps SET state = 'waiting', reason = left($3, 4000), experiment_id = NULL, model_package_id = NULL
               WHERE pipeline_id = $1 AND place = $2 AND state = 'running'"#,
            pipeline.id.0,
            place_of(place),
            format!("tried again: {why}"),
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(WriteOutcome::Done)
    }

    /// Says what a waiting step waits for.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn step_waits(
        &self,
        pipeline: &Pipeline,
        place: usize,
        why: &str,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE pipeline_steps SET reason = left($3, 4000) WHERE pipeline_id = $1 AND place = $2 AND state = 'waiting'",
            pipeline.id.0,
            place_of(place),
            why,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn end_pipeline(
        &self,
        pipeline: &Pipeline,
        state: PipelineState,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE pipelines SET state = $3, ended_at = $4, due_at = NULL WHERE id = $1 AND claims = $2 AND state = $5",
            pipeline.id.0,
            pipeline.claims,
            state.as_str(),
            now,
            pipeline.state.as_str(),
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// The outputs of the newest step of the same project that depended on the same.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn step_alike(
        &self,
        pipeline: &Pipeline,
        fingerprint: &[u8],
    ) -> Result<Option<(PipelineId, Value)>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT coalesce(s.reused_from, s.pipeline_id) AS "id!", s.outputs AS "outputs!"
               FROM pipeline_steps s JOIN pipelines p ON p.id = s.pipeline_id
               WHERE s.fingerprint = $1 AND s.state = 'completed' AND p.project_id = $2 AND p.region = $3
               ORDER BY s.ended_at DESC LIMIT 1"#,
            fingerprint,
            pipeline.project_id.0,
            pipeline.region,
        );
        let row = row.fetch_optional(&self.pool).await?;
        Ok(row.map(|row| (PipelineId(row.id), row.outputs)))
    }
}

/// How a step ends.
#[derive(Debug, Clone, Copy)]
pub struct StepEnd<'a> {
    pub state: StepState,
    pub reason: Option<&'a str>,
    /// Of a completed step, and of no other.
    pub outputs: Option<&'a Value>,
    /// The pipeline whose outputs it uses.
    pub reused_from: Option<PipelineId>,
}
