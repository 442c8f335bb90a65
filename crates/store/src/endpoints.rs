//! Endpoints: the row beside the trial whose job is the endpoint, claims of those that are due, and what became of
//! them. The job itself, its money and its deletion are written as those of every trial.

mod changes;
mod own_budget;
mod schedule;

pub use self::changes::{EndpointNext, NewRevision};
pub use self::own_budget::{Extended, Extension};
pub use self::schedule::{EndTrouble, EndpointClaim, StoredEnd};

use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::endpoint::decide::EndpointFacts;
use bakeoff_domain::endpoint::scheduled_end::{EndFacts, usd_per_day_absent};
use bakeoff_domain::ids::{EndpointId, ExperimentId, ModelPackageId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::endpoint::{EndpointRequest, ModelRequest};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::spec::pipeline::endpoint::EndpointSpec;
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, TimeDelta, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::experiments::steps::{self, NewStepWork};
use crate::requests::{Once, remember_key};
use crate::{Store, StoreError, error, stored};

const TABLE: &str = "endpoints";

/// A stored endpoint, with what its trial says of its job.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub id: EndpointId,
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub trial_id: TrialId,
    pub name: String,
    pub owner: String,
    pub region: String,
    pub spec: EndpointSpec,
    pub state: EndpointState,
    pub reason: Option<String>,
    pub revision: u32,
    pub wanted_revision: u32,
    pub update_sent_at: Option<DateTime<Utc>>,
    pub test_tries: u32,
    pub time_to_live: TimeDelta,
    pub in_service_at: Option<DateTime<Utc>>,
    pub expires_at: Option<DateTime<Utc>>,
    pub announced_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    /// Of the claim that it was read with, or the last one.
    pub claims: i64,
    pub trial_state: TrialState,
    pub trial_reason: Option<String>,
    pub is_stopping: bool,
    /// EndpointName: that of the job of its last attempt.
    pub job_name: Option<String>,
    /// EndpointStatus, as last seen.
    pub status: Option<String>,
    pub model_package_id: Option<ModelPackageId>,
    pub usd_per_hour: Option<Usd>,
    pub budget_usd: Usd,
    pub settled_usd: Usd,
    pub reserved_usd: Usd,
    /// Since when it is billed.
    pub started_at: Option<DateTime<Utc>>,
    /// When it must be deleted so that what is reserved is enough.
    pub latest_end: Option<DateTime<Utc>>,
    /// Its end at AWS.
    pub end: StoredEnd,
    plan: serde_json::Value,
}

impl Endpoint {
    pub fn facts(&self) -> EndpointFacts {
        EndpointFacts {
            state: self.state,
            is_gone: self.trial_state.is_terminal(),
            is_stopping: self.is_stopping,
            revision: self.revision,
            wanted_revision: self.wanted_revision,
            update_sent_at: self.update_sent_at,
            is_tested: self.spec.smoke_test.is_some(),
            test_tries: self.test_tries,
            time_to_live: self.time_to_live,
            expires_at: self.expires_at,
            latest_end: self.latest_end,
            is_announced: self.announced_at.is_some(),
        }
    }

    pub fn claim(&self) -> EndpointClaim {
        EndpointClaim {
            id: self.id,
            claims: self.claims,
        }
    }

    /// The facts about its end at AWS. `seen_at`: when it was described, if it existed and was not being deleted.
    pub fn end_facts(&self, seen_at: Option<DateTime<Utc>>) -> EndFacts {
        EndFacts {
            is_ending: self.is_stopping
                || self.trial_state.is_terminal()
                || self.state == EndpointState::Deleting
                || self.state.is_over(),
            expires_at: self.expires_at,
            latest_end: self.latest_end,
            confirmed: self.end.at,
            is_in_doubt: self.end.is_in_doubt,
            is_refused: self.end.is_refused,
            tried_at: self.end.tried_at,
            seen_at,
        }
    }

    /// What each day costs that the service is away, where AWS does not end it: at its price, or the one of its plan.
    pub fn usd_per_day_absent(&self) -> Option<Usd> {
        let plan = || -> Option<TrialPlan> {
            let id = self.trial_id;
            stored::read(self.plan.clone(), "trials", id, "plan").ok()
        };
        let rate = (self.usd_per_hour).or_else(|| Some(plan()?.price?.usd_per_hour))?;
        Some(usd_per_day_absent(rate, self.spec.instance_count))
    }

    /// The request that it was created with.
    pub fn request(&self) -> Result<EndpointRequest, StoreError> {
        let plan: TrialPlan = stored::read(self.plan.clone(), "trials", self.trial_id, "plan")?;
        match plan.job {
            Some(Job::Endpoint(request)) => Ok(*request),
            _ => Err(StoreError::corrupt("trials", self.trial_id, "plan")),
        }
    }
}

struct Row {
    id: Uuid,
    project_id: Uuid,
    experiment_id: Uuid,
    trial_id: Uuid,
    name: String,
    owner: String,
    region: String,
    spec: serde_json::Value,
    state: String,
    reason: Option<String>,
    revision: i32,
    wanted_revision: i32,
    update_sent_at: Option<DateTime<Utc>>,
    test_tries: i32,
    time_to_live_seconds: i64,
    in_service_at: Option<DateTime<Utc>>,
    expires_at: Option<DateTime<Utc>>,
    announced_at: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
    claims: i64,
    trial_state: String,
    trial_reason: Option<String>,
    is_stopping: bool,
    job_name: Option<String>,
    status: Option<String>,
    model_package_id: Option<Uuid>,
    usd_per_hour: Option<Decimal>,
    budget_usd: Decimal,
    settled_usd: Decimal,
    reserved_usd: Decimal,
    started_at: Option<DateTime<Utc>>,
    latest_end: Option<DateTime<Utc>>,
    scheduled_end_at: Option<DateTime<Utc>>,
    schedule_in_doubt: bool,
    schedule_tried_at: Option<DateTime<Utc>>,
    schedule_trouble: Option<String>,
    schedule_refused_at: Option<DateTime<Utc>>,
    plan: serde_json::Value,
}

impl TryFrom<Row> for Endpoint {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        let corrupt = |column| StoreError::corrupt(TABLE, row.id, column);
        Ok(Self {
            id: EndpointId(row.id),
            project_id: ProjectId(row.project_id),
            experiment_id: ExperimentId(row.experiment_id),
            trial_id: TrialId(row.trial_id),
            state: EndpointState::parse(&row.state).ok_or_else(|| corrupt("state"))?,
            trial_state: TrialState::parse(&row.trial_state)
                .ok_or_else(|| StoreError::corrupt("trials", row.trial_id, "state"))?,
            revision: error::count(row.revision, TABLE, row.id, "revision")?,
            wanted_revision: error::count(row.wanted_revision, TABLE, row.id, "wanted_revision")?,
            test_tries: error::count(row.test_tries, TABLE, row.id, "test_tries")?,
            spec: stored::read(row.spec, TABLE, row.id, "spec")?,
            time_to_live: TimeDelta::try_seconds(row.time_to_live_seconds)
                .ok_or_else(|| corrupt("time_to_live_seconds"))?,
            name: row.name,
            owner: row.owner,
            region: row.region,
            reason: row.reason,
            update_sent_at: row.update_sent_at,
            in_service_at: row.in_service_at,
            expires_at: row.expires_at,
            announced_at: row.announced_at,
            created_at: row.created_at,
            ended_at: row.ended_at,
            claims: row.claims,
            trial_reason: row.trial_reason,
            is_stopping: row.is_stopping,
            job_name: row.job_name,
            status: row.status,
            model_package_id: row.model_package_id.map(ModelPackageId),
            usd_per_hour: row.usd_per_hour.map(Usd),
            budget_usd: Usd(row.budget_usd),
            settled_usd: Usd(row.settled_usd),
            reserved_usd: Usd(row.reserved_usd),
            started_at: row.started_at,
            latest_end: row.latest_end,
            end: StoredEnd {
                at: row.scheduled_end_at,
                is_in_doubt: row.schedule_in_doubt,
                tried_at: row.schedule_tried_at,
                trouble: row.schedule_trouble,
                is_refused: row.schedule_refused_at.is_some(),
            },
            plan: row.plan,
        })
    }
}

impl Store {
    /// Writes an endpoint of its own, outside of any pipeline, with its idempotency key.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn create_endpoint(
        &self,
        work: &NewStepWork<'_>,
        once: &Once<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        steps::insert(&mut tx, work, now).await?;
        remember_key(&mut tx, work.project_id, once).await?;
        sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Endpoints of a project: one, that of an experiment, or a page of all, newest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn endpoints(
        &self,
        project: ProjectId,
        which: WhichEndpoints,
        limit: i64,
    ) -> Result<Vec<Endpoint>, StoreError> {
        let (id, before, experiments): (Option<Uuid>, Option<Uuid>, Option<Vec<Uuid>>) = match which
        {
            WhichEndpoints::One(id) => (Some(id.0), None, None),
            WhichEndpoints::Before(id) => (None, id, None),
            WhichEndpoints::OfExperiments(ids) => (None, None, Some(ids)),
        };
        let rows = sqlx::query_as!(
            Row,
            r#"SELECT e.id, e.project_id, e.experiment_id, e.trial_id, e.name, e.owner, e.region, e.spec, e.state, e.reason,
                      e.revision, e.wanted_revision, e.update_sent_at, e.test_tries, e.time_to_live_seconds,
                      e.in_service_at, e.expires_at, e.announced_at, e.created_at, e.ended_at, e.claims,
                      t.state AS trial_state, t.reason AS trial_reason, t.stop_requested_at IS NOT NULL AS "is_stopping!",
                      j.job_name AS "job_name?", j.secondary_status AS status, r.model_package_id,
                      j.usd_per_hour AS "usd_per_hour?", x.budget_usd, x.settled_usd, x.reserved_usd,
                      j.started_at AS "started_at?", t.plan,
                      j.started_at + make_interval(secs => t.billed_seconds_max) - interval '15 minutes' AS latest_end,
                      CASE WHEN e.scheduled_job = j.job_name THEN e.scheduled_end_at END AS scheduled_end_at,
                      e.schedule_in_doubt, e.schedule_tried_at, e.schedule_trouble, e.schedule_refused_at
               FROM endpoints e JOIN trials t ON t.id = e.trial_id JOIN experiments x ON x.id = e.experiment_id
                    JOIN endpoint_revisions r ON r.endpoint_id = e.id AND r.revision = e.revision
                    LEFT JOIN LATERAL (SELECT * FROM jobs WHERE trial_id = e.trial_id ORDER BY number DESC LIMIT 1) j ON true
               WHERE e.project_id = $1 AND ($2::uuid IS NULL OR e.id = $2) AND ($3::uuid IS NULL OR e.id < $3)
                 AND ($4::uuid[] IS NULL OR e.experiment_id = ANY($4))
               ORDER BY e.id DESC LIMIT $5"#,
            project.0,
            id,
            before,
            experiments.as_deref(),
            limit,
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        rows.map(Endpoint::try_from).collect()
    }

    /// Claims the endpoint of a region that is due first. If we crash, it is due again after `hold`.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_endpoint(
        &self,
        region: &str,
        now: DateTime<Utc>,
        hold: TimeDelta,
    ) -> Result<Option<Endpoint>, StoreError> {
        let claimed = sqlx::query!(
            r#"WITH due AS (
                   SELECT id FROM endpoints WHERE due_at <= $1 AND region = $3 ORDER BY due_at LIMIT 1
                   FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE endpoints e SET due_at = $2, claims = e.claims + 1
               WHERE e.id = (SELECT id FROM due)
               RETURNING id, project_id, claims"#,
            now,
            now + hold,
            region,
        )
        .fetch_optional(&self.pool)
        .await?;
        let Some(claimed) = claimed else {
            return Ok(None);
        };
        let one = WhichEndpoints::One(EndpointId(claimed.id));
        let found = self
            .endpoints(ProjectId(claimed.project_id), one, 1)
            .await?;
        Ok(found.into_iter().next().map(|found| Endpoint {
            claims: claimed.claims,
            ..found
        }))
    }

    /// The highest revision of the endpoint of a trial; 0 where it has none.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn endpoint_revisions_of(&self, trial: TrialId) -> Result<u32, StoreError> {
        let highest = sqlx::query_scalar!(
            r#"SELECT coalesce(max(r.revision), 0) AS "highest!" FROM endpoint_revisions r JOIN endpoints e ON e.id = r.endpoint_id
               WHERE e.trial_id = $1"#,
            trial.0,
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(u32::try_from(highest).unwrap_or(0))
    }

    /// The model of a revision.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn revision_model(
        &self,
        endpoint: EndpointId,
        revision: u32,
    ) -> Result<ModelRequest, StoreError> {
        let missing = || StoreError::Missing {
            table: "endpoint_revisions",
            id: endpoint.to_string(),
        };
        let model = sqlx::query_scalar!(
            "SELECT model FROM endpoint_revisions WHERE endpoint_id = $1 AND revision = $2",
            endpoint.0,
            i32::try_from(revision).unwrap_or(i32::MAX),
        )
        .fetch_optional(&self.pool)
        .await?;
        stored::read(
            model.ok_or_else(missing)?,
            "endpoint_revisions",
            endpoint.0,
            "model",
        )
    }

    /// The revisions of an endpoint, oldest first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn endpoint_revisions(
        &self,
        endpoint: EndpointId,
    ) -> Result<Vec<Revision>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT revision, model_package_id, created_at, outcome FROM endpoint_revisions
               WHERE endpoint_id = $1 ORDER BY revision"#,
            endpoint.0,
        )
        .fetch_all(&self.pool)
        .await?;
        let revisions = rows.into_iter().map(|row| {
            Ok(Revision {
                revision: error::count(row.revision, "endpoint_revisions", endpoint.0, "revision")?,
                model_package_id: row.model_package_id.map(ModelPackageId),
                created_at: row.created_at,
                outcome: row.outcome,
            })
        });
        revisions.collect()
    }
}

/// Which endpoints are read.
#[derive(Debug, Clone)]
pub enum WhichEndpoints {
    One(EndpointId),
    /// Those older than this one.
    Before(Option<Uuid>),
    OfExperiments(Vec<Uuid>),
}

/// A revision of an endpoint.
#[derive(Debug, Clone)]
pub struct Revision {
    pub revision: u32,
    pub model_package_id: Option<ModelPackageId>,
    pub created_at: DateTime<Utc>,
    pub outcome: Option<String>,
}
