//! Experiments: written together with their trials in one transaction, listed by keyset, cancelled,
//! concluded. Beside it: trials, external runs, specifications, and what people ask of an
//! experiment.

pub mod additions;
pub mod archive;
pub mod changes;
pub mod lifecycle;
pub mod lists;
pub mod looks;
pub mod measured;
pub mod new_endpoint;
pub mod race;
pub mod runs;
pub mod specs;
pub mod steps;
pub mod trials;
pub mod waits;

use bakeoff_domain::event::{Conclusion, Created, Event};
use bakeoff_domain::finding::{Finding, Severity, joined};
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId, WorkloadId};
use bakeoff_domain::lifecycle::pool;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::ranking::full_run::FullRunOf;
use bakeoff_domain::ranking::recommendation::Recommendation;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::spec::labels::{self, Labels};
use bakeoff_domain::spec::{ExperimentSpec, ResolvedExperiment};
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::events::{self, EventSubject, NewEvent};
use crate::experiments::trials::PlanColumns;
use crate::pipeline_wake::wake_pipeline;
use crate::stored;
use crate::{Store, StoreError, error};

/// A stored experiment.
#[derive(Debug, Clone)]
pub struct Experiment {
    pub id: ExperimentId,
    pub project_id: ProjectId,
    pub name: String,
    pub workload_id: WorkloadId,
    pub resolved: ResolvedExperiment,
    pub findings: Vec<Finding>,
    pub state: ExperimentState,
    pub budget_usd: Usd,
    pub reserved_usd: Usd,
    pub settled_usd: Usd,
    pub paused_reason: Option<String>,
    /// Of another experiment's answer, if it is its full run.
    pub full_run: Option<FullRunOf>,
    /// Counts from 1; grows with each change by a person.
    pub revision: u32,
    pub labels: Labels,
    /// The API key, the CI template or the pipeline that began it.
    pub created_by: Option<String>,
    pub archived_at: Option<DateTime<Utc>>,
    pub deleted_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// Everything that makes up a new experiment, ids included.
#[derive(Debug)]
pub struct NewExperiment<'a> {
    pub id: ExperimentId,
    pub project_id: ProjectId,
    pub created_by: &'a str,
    pub fresh_workload_id: Uuid,
    pub resolved: &'a ResolvedExperiment,
    pub findings: &'a [Finding],
    pub full_run: Option<&'a FullRunOf>,
    pub trials: &'a [(TrialId, TrialPlan)],
}

struct Row {
    id: Uuid,
    project_id: Uuid,
    name: String,
    workload_id: Uuid,
    spec: String,
    findings: String,
    state: String,
    budget_usd: Decimal,
    reserved_usd: Decimal,
    settled_usd: Decimal,
    paused_reason: Option<String>,
    full_run: Option<String>,
    revision: i32,
    labels: Vec<String>,
    created_by: Option<String>,
    archived_at: Option<DateTime<Utc>>,
    deleted_at: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
}

impl TryFrom<Row> for Experiment {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: ExperimentId(row.id),
            project_id: ProjectId(row.project_id),
            name: row.name,
            workload_id: WorkloadId(row.workload_id),
            resolved: read_resolved(&row.spec, row.id)?,
            findings: stored::read_text(&row.findings, "experiments", row.id, "findings")?,
            state: ExperimentState::parse(&row.state)
                .ok_or_else(|| StoreError::corrupt("experiments", row.id, "state"))?,
            budget_usd: Usd(row.budget_usd),
            reserved_usd: Usd(row.reserved_usd),
            settled_usd: Usd(row.settled_usd),
            paused_reason: row.paused_reason,
            full_run: (row.full_run.as_deref())
                .map(|text| stored::read_text(text, "experiments", row.id, "full_run"))
                .transpose()?,
            revision: error::count(row.revision, "experiments", row.id, "revision")?,
            labels: labels::of_pairs(&row.labels),
            created_by: row.created_by,
            archived_at: row.archived_at,
            deleted_at: row.deleted_at,
            created_at: row.created_at,
            ended_at: row.ended_at,
        })
    }
}

/// The spec of an accepted experiment, from its row.
pub(super) fn read_resolved(text: &str, id: Uuid) -> Result<ResolvedExperiment, StoreError> {
    let spec: ExperimentSpec = stored::read_text(text, "experiments", id, "spec")?;
    ResolvedExperiment::of(spec).ok_or_else(|| StoreError::corrupt("experiments", id, "spec"))
}

/// An experiment that can be concluded.
#[derive(Debug, Clone, Copy)]
pub struct Concludable {
    pub project: ProjectId,
    pub id: ExperimentId,
    /// The work of a pipeline's step: it has no answer.
    pub is_step: bool,
    /// When it was ready: what people have changed since may have started something.
    pub revision: i32,
}

/// Writes the experiment, its workload version and its trials inside the caller's transaction.
/// Returns the event to commit it with.
pub(crate) async fn insert(
    tx: &mut PgConnection,
    new: &NewExperiment<'_>,
    now: DateTime<Utc>,
) -> Result<NewEvent, StoreError> {
    let spec = new.resolved.spec();
    let workload = new.resolved.workload();
    let workload_id = specs::put_workload(tx, new.project_id, new.fresh_workload_id, workload, now)
        .await?
        .id;
    sqlx::query!(
        r#"INSERT INTO experiments (id, project_id, name, workload_id, spec, findings, state, budget_usd, created_at, region,
                                    race_due_at, full_run, full_run_of, created_by, labels)
           VALUES ($1, $2, $3, $4, $5, $6, 'running', $7, $8, $9, $8, $10, $11, $12, $13)"#,
        new.id.0,
        new.project_id.0,
        spec.name,
        workload_id.0,
        stored::write(spec)?,
        stored::write(&new.findings.to_vec())?,
        spec.budget_usd.0,
        now,
        spec.region,
        new.full_run.map(stored::write).transpose()?,
        new.full_run.map(|of| of.experiment_id.0),
        new.created_by,
        &labels::pairs(&spec.labels),
    )
    .execute(&mut *tx)
    .await?;
    let of = TrialOf {
        project: new.project_id,
        experiment: new.id,
        region: &spec.region,
        priority: spec.priority,
        deadline: spec.deadline(now),
    };
    for (ordinal, (id, plan)) in (0i32..).zip(new.trials) {
        insert_trial(tx, of, *id, ordinal, plan, now).await?;
    }
    let refused = new.trials.iter().filter(|(_, plan)| plan.refused).count();
    let skipped = new.trials.iter().filter(|(_, plan)| plan.skipped.is_some());
    let skipped = skipped.count();
    let subject = EventSubject {
        project: new.project_id,
        experiment: new.id,
        trial: None,
    };
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Ok(subject.told(Event::ExperimentCreated(Created {
        name: spec.name.clone(),
        trials: count(new.trials.len()),
        refused: count(refused),
        skipped: count(skipped),
    })))
}

/// Why a plan was refused.
fn refusal(plan: &TrialPlan) -> String {
    let refusals = plan
        .findings
        .iter()
        .filter(|finding| finding.severity >= Severity::Refused);
    joined(refusals.map(|finding| finding.message.as_str()))
}

/// What a trial has of its experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrialOf<'a> {
    pub(crate) project: ProjectId,
    pub(crate) experiment: ExperimentId,
    pub(crate) region: &'a str,
    pub(crate) priority: i32,
    pub(crate) deadline: DateTime<Utc>,
}

pub(crate) async fn insert_trial(
    tx: &mut PgConnection,
    of: TrialOf<'_>,
    id: TrialId,
    ordinal: i32,
    plan: &TrialPlan,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let columns = PlanColumns::of(plan)?;
    sqlx::query!(
        r#"INSERT INTO trials (id, project_id, experiment_id, ordinal, candidate, instance_type, instance_count,
                               purchase_option, plan, worst_case_training_usd, worst_case_metrics_usd, price_id, state,
                               reason, due_at, created_at, ended_at, priority, pool_key, give_up_at, region,
                               is_price_estimated, volume_gb, keep_alive_seconds, checkpoint_s3_uri,
                               checkpoint_local_path, checkpoint_interval_seconds, metrics, billed_seconds_max,
                               released_at, checkpoint_trial_id, job_kind, quota_instances)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $29, $15, $16, $17, $18, $19, $20, $21, $22,
                   $23, $24, $25, $26, $27, $28, $30, $31, $32, $33)"#,
        id.0,
        of.project.0,
        of.experiment.0,
        ordinal,
        plan.candidate,
        plan.instance_type,
        i32::try_from(plan.instance_count).unwrap_or(i32::MAX),
        plan.purchase_option.as_str(),
        columns.plan,
        plan.worst_case.map(|worst| worst.training_usd.0),
        plan.worst_case.map(|worst| worst.metrics_usd.0),
        plan.price.as_ref().map(|price| price.id.0),
        if plan.refused {
            TrialState::Refused
        } else if plan.skipped.is_some() {
            TrialState::Stopped
        } else {
            TrialState::Queued
        }
        .as_str(),
        if plan.refused {
            Some(refusal(plan))
        } else {
            plan.skipped.as_ref().or(plan.held.as_ref()).cloned()
        },
        now,
        (!plan.starts()).then_some(now),
        of.priority,
        plan.training().and_then(pool::match_key),
        of.deadline,
        of.region,
        columns.is_price_estimated,
        columns.volume_gb,
        columns.keep_alive_seconds,
        columns.checkpoint_s3_uri,
        columns.checkpoint_local_path,
        columns.checkpoint_interval_seconds,
        columns.metrics,
        columns.billed_seconds_max,
        // Should nobody judge the race any more, it starts then.
        if plan.held.is_some() { of.deadline } else { now },
        plan.held.is_none().then_some(now),
        plan.training().and_then(|request| Some(request.checkpoint_trial?.0)),
        columns.job_kind,
        plan.job
            .as_ref()
            .map(Job::instances_at_once)
            .filter(|at_once| *at_once != plan.instance_count)
            .and_then(|at_once| i32::try_from(at_once).ok()),
    )
    .execute(tx)
    .await?;
    Ok(())
}

impl Store {
    /// An experiment, a deleted one too.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiment(
        &self,
        project: ProjectId,
        id: ExperimentId,
    ) -> Result<Option<Experiment>, StoreError> {
        let mut found = self.any_by_id(project, &[id.0]).await?;
        Ok(found.pop())
    }

    /// Experiments of a project by id, oldest first. Unknown and deleted ones are left out.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiments_by_id(
        &self,
        project: ProjectId,
        ids: &[Uuid],
    ) -> Result<Vec<Experiment>, StoreError> {
        let mut found = self.any_by_id(project, ids).await?;
        found.retain(|one| one.deleted_at.is_none());
        Ok(found)
    }

    /// Whether a project has an experiment that is not deleted, be it one that was asked for or the one that holds the
    /// dollars and the events of a pipeline's step or of an endpoint.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn has_experiment(
        &self,
        project: ProjectId,
        id: ExperimentId,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM experiments WHERE id = $2 AND project_id = $1 AND deleted_at IS NULL) AS "has!""#,
            project.0,
            id.0,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    pub(crate) async fn any_by_id(
        &self,
        project: ProjectId,
        ids: &[Uuid],
    ) -> Result<Vec<Experiment>, StoreError> {
        sqlx::query_as!(
            Row,
            r#"SELECT id, project_id, name, workload_id AS "workload_id!", spec::text AS "spec!", findings::text AS "findings!", state,
                      budget_usd, reserved_usd, settled_usd, paused_reason, full_run::text, revision, labels, created_by, archived_at, deleted_at, created_at, ended_at
               FROM experiments WHERE id = ANY($2) AND project_id = $1 AND kind = 'comparison' ORDER BY id"#,
            project.0,
            ids,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(Experiment::try_from)
        .collect()
    }

    /// The recommendation that concluded an experiment.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn recommendation(
        &self,
        id: ExperimentId,
    ) -> Result<Option<Recommendation>, StoreError> {
        let stored =
            sqlx::query_scalar!("SELECT recommendation FROM experiments WHERE id = $1", id.0)
                .fetch_optional(&self.pool)
                .await?
                .flatten();
        stored
            .map(|value| stored::read(value, "experiments", id, "recommendation"))
            .transpose()
    }

    /// Number of living experiments, orphaned jobs and warm pools in regions other than those that
    /// this service serves.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn living_elsewhere(&self, regions: &[String]) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT (SELECT count(*) FROM experiments
                       WHERE state IN ('running', 'cancelling') AND region <> ALL($1))
                    + (SELECT count(*) FROM orphaned_jobs WHERE settled_at IS NULL AND region <> ALL($1))
                    + (SELECT count(*) FROM warm_pools WHERE due_at IS NOT NULL AND region <> ALL($1)) AS "count!""#,
            regions,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Experiments ready to be concluded, in order, after the given one: all trials are over or wait
    /// for a person, all metrics have been read, and no price that they depend on is being applied.
    /// An experiment that only waits for a person has nothing to conclude.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiments_to_conclude(
        &self,
        after: Option<ExperimentId>,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<Vec<Concludable>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT e.project_id, e.id, e.kind = 'step' AS "is_step!", e.revision FROM experiments e
               WHERE e.state IN ('running', 'cancelling')
                 AND NOT EXISTS (SELECT FROM trials t WHERE t.experiment_id = e.id
                                 AND (t.state IN ('queued', 'submitting', 'running', 'stopping')
                                      OR t.state = 'parked' AND (t.stop_requested_at IS NOT NULL OR e.state = 'cancelling')))
                 AND EXISTS (SELECT FROM trials t WHERE t.experiment_id = e.id AND t.state <> 'parked')
                 AND NOT EXISTS (SELECT FROM jobs j WHERE j.experiment_id = e.id AND j.metrics_due_at IS NOT NULL)
                 AND NOT EXISTS (SELECT FROM post_mortems p WHERE p.experiment_id = e.id AND p.due_at IS NOT NULL)
                 AND NOT EXISTS (SELECT FROM warm_pools p WHERE p.experiment_id = e.id AND p.state <> 'settled')
                 AND NOT awaits_prices(e, $3)
                 AND ($2::uuid IS NULL OR e.id > $2)
               ORDER BY e.id LIMIT $1"#,
            limit,
            after.map(|id| id.0),
            now,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Concludable {
                project: ProjectId(row.project_id),
                id: ExperimentId(row.id),
                is_step: row.is_step,
                revision: row.revision,
            })
            .collect())
    }

    /// Writes the recommendation and ends the experiment. False when another replica already did, when a person has
    /// changed it since it was found ready, or when a relevant price change is being applied: the recommendation might
    /// rest on the old price.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn conclude(
        &self,
        one: Concludable,
        recommendation: &Recommendation,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let Concludable { project, id, .. } = one;
        let mut tx = self.pool.begin().await?;
        let state = sqlx::query_scalar!(
            r#"UPDATE experiments
               SET state = CASE
                       WHEN state = 'cancelling' THEN 'cancelled'
                       WHEN EXISTS (SELECT FROM trials t
                                    WHERE t.experiment_id = $1 AND t.state IN ('completed', 'stopped')) THEN 'completed'
                       ELSE 'failed' END,
                   recommendation = $3, ended_at = $4
               WHERE id = $1 AND project_id = $2 AND state IN ('running', 'cancelling') AND revision = $5
                 AND NOT awaits_prices(experiments, $4)
               RETURNING state"#,
            id.0,
            project.0,
            stored::write(recommendation)?,
            now,
            one.revision,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(state) = state else { return Ok(false) };
        let state = ExperimentState::parse(&state)
            .ok_or_else(|| StoreError::corrupt("experiments", id, "state"))?;
        looks::write_standing(&mut tx, id, recommendation, now).await?;
        wake_pipeline(&mut tx, id, now).await?;
        let subject = EventSubject {
            project,
            experiment: id,
            trial: None,
        };
        let concluded = Event::ExperimentConcluded(Conclusion {
            state,
            headline: recommendation.headline.clone(),
            winner: recommendation.winner().map(ToOwned::to_owned),
        });
        events::commit(tx, &[subject.told(concluded)], now).await?;
        Ok(true)
    }
}
