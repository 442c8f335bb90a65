//! Trials for display, with their attempts.

use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::error;
use crate::experiments::trials::attempt::{Attempt, AttemptRow};
use crate::stored;
use crate::{Store, StoreError};

/// A trial for the API, with its attempts.
#[derive(Debug)]
pub struct ShownTrial {
    pub id: TrialId,
    pub experiment_id: ExperimentId,
    pub state: TrialState,
    pub reason: Option<String>,
    /// Empty when this program cannot read it.
    pub plan: Option<TrialPlan>,
    pub is_spot: bool,
    pub instance_count: u32,
    /// Zero without checkpoints.
    pub checkpoint_seconds: u32,
    /// The trial that this one does once more.
    pub retry_of: Option<TrialId>,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    pub attempts: Vec<Attempt>,
}

/// A trial without attempts.
struct HeadRow {
    id: Uuid,
    experiment_id: Uuid,
    state: String,
    reason: Option<String>,
    plan: Option<String>,
    purchase_option: String,
    instance_count: i32,
    checkpoint_seconds: Option<i32>,
    retry_of: Option<Uuid>,
    created_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
}

impl TryFrom<HeadRow> for ShownTrial {
    type Error = StoreError;

    fn try_from(row: HeadRow) -> Result<Self, StoreError> {
        let plan = row
            .plan
            .and_then(|plan| stored::read_text(&plan, "trials", row.id, "plan").ok());
        Ok(Self {
            id: TrialId(row.id),
            experiment_id: ExperimentId(row.experiment_id),
            state: TrialState::parse(&row.state)
                .ok_or_else(|| StoreError::corrupt("trials", row.id, "state"))?,
            reason: row.reason,
            plan,
            is_spot: row.purchase_option == PurchaseOption::Spot.as_str(),
            instance_count: error::count(row.instance_count, "trials", row.id, "instance_count")?,
            checkpoint_seconds: error::count(
                row.checkpoint_seconds.unwrap_or(0),
                "trials",
                row.id,
                "checkpoint_interval_seconds",
            )?,
            retry_of: row.retry_of.map(TrialId),
            created_at: row.created_at,
            ended_at: row.ended_at,
            attempts: Vec::new(),
        })
    }
}

impl Store {
    /// Trials for display, without attempts: one, or all of an experiment.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn heads(
        &self,
        project: ProjectId,
        trial: Option<TrialId>,
        experiment: Option<ExperimentId>,
    ) -> Result<Vec<ShownTrial>, StoreError> {
        sqlx::query_as!(
            HeadRow,
            r#"SELECT id, experiment_id, state, reason, plan::text, purchase_option, instance_count,
                      checkpoint_interval_seconds AS checkpoint_seconds,
                      retry_of, created_at, ended_at
               FROM trials t WHERE project_id = $1 AND (id = $2 OR experiment_id = $3)
                 AND NOT EXISTS (SELECT FROM experiments e WHERE e.id = t.experiment_id AND e.deleted_at IS NOT NULL)
               ORDER BY ordinal"#,
            project.0,
            trial.map(|id| id.0),
            experiment.map(|id| id.0),
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(ShownTrial::try_from)
        .collect()
    }

    /// A trial for display, with its attempts, in one query.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn shown_trial(
        &self,
        project: ProjectId,
        id: TrialId,
    ) -> Result<Option<ShownTrial>, StoreError> {
        let rows = sqlx::query_as!(
            ShownRow,
            r#"SELECT t.experiment_id, t.state AS trial_state, t.reason, t.purchase_option, t.instance_count,
                      CASE WHEN j.number = 1 THEN t.plan::text END AS plan,
                      t.checkpoint_interval_seconds AS checkpoint_seconds,
                      t.retry_of, t.created_at, t.ended_at AS trial_ended_at,
                      j.id, j.trial_id AS "trial_id!", j.number AS "number!", j.job_name, j.state, j.price_id, j.usd_per_hour,
                      j.reserved_training_usd, j.reserved_metrics_usd, j.quarantine_until, j.absent, j.postponed,
                      j.job_status, j.secondary_status, j.failure_reason, j.transitions::text AS "transitions!",
                      j.training_seconds, j.billable_seconds, j.billing_estimated, j.metrics_requested, j.planned_at,
                      j.started_at, j.ended_at, j.is_compared, j.checkpoint_at, j.checkpoint_times,
                      greatest(j.started_at, j.modified_at) AS training_since, j.modified_at
               FROM trials t JOIN jobs j ON j.trial_id = t.id
               WHERE t.id = $1 AND t.project_id = $2
                 AND NOT EXISTS (SELECT FROM experiments e WHERE e.id = t.experiment_id AND e.deleted_at IS NOT NULL)
               ORDER BY j.number"#,
            id.0,
            project.0,
        )
        .fetch_all(&self.pool)
        .await?;
        let mut rows = rows.into_iter();
        let Some(mut first) = rows.next() else {
            // No attempts yet.
            return Ok(self.heads(project, Some(id), None).await?.pop());
        };
        let mut shown = ShownTrial::try_from(first.head())?;
        for row in std::iter::once(first).chain(rows) {
            shown.attempts.push(row.attempt().shown()?);
        }
        Ok(Some(shown))
    }
}

/// A trial joined with one of its attempts.
struct ShownRow {
    experiment_id: Uuid,
    trial_state: String,
    reason: Option<String>,
    purchase_option: String,
    instance_count: i32,
    /// Only in the row of the first attempt.
    plan: Option<String>,
    checkpoint_seconds: Option<i32>,
    retry_of: Option<Uuid>,
    created_at: DateTime<Utc>,
    trial_ended_at: Option<DateTime<Utc>>,
    id: Uuid,
    trial_id: Uuid,
    number: i32,
    job_name: String,
    state: String,
    price_id: Uuid,
    usd_per_hour: Decimal,
    reserved_training_usd: Decimal,
    reserved_metrics_usd: Decimal,
    quarantine_until: Option<DateTime<Utc>>,
    absent: i32,
    postponed: i32,
    job_status: Option<String>,
    secondary_status: Option<String>,
    failure_reason: Option<String>,
    transitions: String,
    training_seconds: Option<i64>,
    billable_seconds: Option<i64>,
    billing_estimated: bool,
    metrics_requested: i64,
    planned_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
    is_compared: bool,
    checkpoint_at: Option<DateTime<Utc>>,
    checkpoint_times: Vec<DateTime<Utc>>,
    training_since: Option<DateTime<Utc>>,
    modified_at: Option<DateTime<Utc>>,
}

impl ShownRow {
    /// The trial without attempts. Moves the plan out of the row.
    fn head(&mut self) -> HeadRow {
        HeadRow {
            id: self.trial_id,
            experiment_id: self.experiment_id,
            state: std::mem::take(&mut self.trial_state),
            reason: self.reason.take(),
            plan: self.plan.take(),
            purchase_option: std::mem::take(&mut self.purchase_option),
            instance_count: self.instance_count,
            checkpoint_seconds: self.checkpoint_seconds,
            retry_of: self.retry_of,
            created_at: self.created_at,
            ended_at: self.trial_ended_at,
        }
    }

    fn attempt(self) -> AttemptRow {
        AttemptRow {
            id: self.id,
            trial_id: self.trial_id,
            number: self.number,
            job_name: self.job_name,
            state: self.state,
            price_id: self.price_id,
            usd_per_hour: self.usd_per_hour,
            reserved_training_usd: self.reserved_training_usd,
            reserved_metrics_usd: self.reserved_metrics_usd,
            quarantine_until: self.quarantine_until,
            absent: self.absent,
            postponed: self.postponed,
            job_status: self.job_status,
            secondary_status: self.secondary_status,
            failure_reason: self.failure_reason,
            transitions: self.transitions,
            training_seconds: self.training_seconds,
            billable_seconds: self.billable_seconds,
            billing_estimated: self.billing_estimated,
            metrics_requested: self.metrics_requested,
            planned_at: self.planned_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
            is_compared: self.is_compared,
            checkpoint_at: self.checkpoint_at,
            checkpoint_times: self.checkpoint_times,
            training_since: self.training_since,
            modified_at: self.modified_at,
            delete_asked_at: None,
            listed_at: None,
        }
    }
}
