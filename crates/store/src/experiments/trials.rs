//! Trials: claiming due trials under a lease, and reading trials for display.
//!
//! A lease runs in real time on the database's clock. Its token grows with every claim; a writer
//! whose token is out of date changes nothing (see [`crate::jobs::attempts`]).

mod attempt;
mod columns;
mod shown;

pub use self::attempt::Attempt;
use self::attempt::AttemptRow;
pub(crate) use self::columns::PlanColumns;
pub use self::shown::ShownTrial;

use std::collections::BTreeMap;

use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::cost;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::quota::Usage;
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_domain::spec::labels::{self, Labels};
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::events::{self, EventSubject};
use crate::leases::Holder;
use crate::session::interval;
use crate::stored;
use crate::{Store, StoreError, error};

/// A trial claimed by one scheduler, with its latest attempt.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub id: TrialId,
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub lease_token: i64,
    pub state: TrialState,
    /// What its attempts are to SageMaker.
    pub kind: JobKind,
    pub stop_requested: bool,
    /// Empty when a person cancelled it.
    pub stop_reason: Option<String>,
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    pub region: String,
    pub volume_gb: u32,
    pub is_price_estimated: bool,
    pub checkpoint_interval_seconds: Option<u32>,
    /// The longest that one instance of its job can be billed.
    pub billed_seconds_max: u64,
    /// None when it cannot be read: a running job is still watched, stopped and billed without it.
    pub plan: Option<TrialPlan>,
    /// Of its experiment.
    pub labels: Labels,
    /// Its image is waited for, and run by its digest, once that is known.
    pub pins_image: bool,
    pub image_digest: Option<String>,
    pub created_at: DateTime<Utc>,
    pub attempts_made: u32,
    /// Earlier attempts that failed.
    pub failures: u32,
    pub over_quota: u32,
    pub no_capacity: u32,
    /// Until when to wait for capacity.
    pub give_up_at: DateTime<Utc>,
    /// Set when the last holder never released the trial: its name, and the real seconds since it
    /// took or renewed the lease.
    pub abandoned: Option<(String, f64)>,
    pub attempt: Option<Attempt>,
}

impl Claimed {
    /// The quota that its attempts count against.
    pub fn usage(&self) -> Usage {
        Usage::of(self.kind, self.purchase_option)
    }
}

/// A row returned by a claim.
pub(crate) struct ClaimedRow {
    pub(crate) id: Uuid,
    pub(crate) project_id: Uuid,
    pub(crate) experiment_id: Uuid,
    pub(crate) lease_token: i64,
    pub(crate) state: String,
    pub(crate) job_kind: String,
    pub(crate) stop_requested_at: Option<DateTime<Utc>>,
    pub(crate) stop_reason: Option<String>,
    pub(crate) candidate: String,
    pub(crate) instance_type: String,
    pub(crate) instance_count: i32,
    pub(crate) purchase_option: String,
    pub(crate) region: String,
    pub(crate) volume_gb: i32,
    pub(crate) is_price_estimated: bool,
    pub(crate) checkpoint_interval_seconds: Option<i32>,
    pub(crate) billed_seconds_max: Option<i64>,
    pub(crate) plan: serde_json::Value,
    pub(crate) labels: Vec<String>,
    pub(crate) pins_image: bool,
    pub(crate) image_digest: Option<String>,
    pub(crate) attempts_made: i32,
    pub(crate) failures: i32,
    pub(crate) over_quota: i32,
    pub(crate) no_capacity: i32,
    pub(crate) give_up_at: Option<DateTime<Utc>>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) abandoned_seconds: Option<f64>,
    pub(crate) abandoned_by: Option<String>,
}

impl ClaimedRow {
    fn claimed(self, attempt: Option<Attempt>) -> Result<Claimed, StoreError> {
        let corrupt = |column| StoreError::corrupt("trials", self.id, column);
        let count = |value: i32, column| error::count(value, "trials", self.id, column);
        let plan = stored::read::<TrialPlan>(self.plan, "trials", self.id, "plan");
        let job = plan.as_ref().ok().and_then(|plan| plan.job.as_ref());
        let limit = job.map(|job| job.billed_seconds_max(0));
        let longest = self.billed_seconds_max.map(u64::try_from);
        let interval = self
            .checkpoint_interval_seconds
            .map(|seconds| count(seconds, "checkpoint_interval_seconds"));
        Ok(Claimed {
            id: TrialId(self.id),
            project_id: ProjectId(self.project_id),
            experiment_id: ExperimentId(self.experiment_id),
            lease_token: self.lease_token,
            state: TrialState::parse(&self.state).ok_or_else(|| corrupt("state"))?,
            kind: JobKind::parse(&self.job_kind).ok_or_else(|| corrupt("job_kind"))?,
            stop_requested: self.stop_requested_at.is_some(),
            stop_reason: self.stop_reason,
            candidate: self.candidate,
            instance_type: self.instance_type,
            instance_count: count(self.instance_count, "instance_count")?,
            purchase_option: PurchaseOption::parse(&self.purchase_option)
                .ok_or_else(|| corrupt("purchase_option"))?,
            region: self.region,
            volume_gb: count(self.volume_gb, "volume_gb")?,
            is_price_estimated: self.is_price_estimated,
            checkpoint_interval_seconds: interval.transpose()?,
            billed_seconds_max: longest
                .and_then(Result::ok)
                .or(limit)
                .unwrap_or_else(|| cost::longest_billed_seconds(u32::MAX, 0)),
            plan: plan.ok(),
            labels: labels::of_pairs(&self.labels),
            pins_image: self.pins_image,
            image_digest: self.image_digest,
            created_at: self.created_at,
            attempts_made: count(self.attempts_made, "attempts_made")?,
            failures: count(self.failures, "failures")?,
            over_quota: count(self.over_quota, "over_quota")?,
            no_capacity: count(self.no_capacity, "no_capacity")?,
            give_up_at: self
                .give_up_at
                .unwrap_or(self.created_at + WAIT_BEFORE_DEADLINES),
            abandoned: self.abandoned_by.zip(self.abandoned_seconds),
            attempt,
        })
    }
}

impl From<&Claimed> for EventSubject {
    fn from(trial: &Claimed) -> Self {
        Self {
            project: trial.project_id,
            experiment: trial.experiment_id,
            trial: Some(trial.id),
        }
    }
}

/// The latest attempt of a trial, as far as it is readable.
struct Latest {
    trial: Uuid,
    attempt: Result<Attempt, StoreError>,
    /// False when its transitions could not be read.
    is_whole: bool,
}

/// How long trials from before deadlines existed wait for capacity, counted from their creation.
const WAIT_BEFORE_DEADLINES: TimeDelta = TimeDelta::hours(72);

/// A trial for display.
#[derive(Debug, Clone)]
pub struct Trial {
    pub id: TrialId,
    pub experiment_id: ExperimentId,
    pub ordinal: i32,
    pub state: TrialState,
    pub reason: Option<String>,
    pub region: String,
    pub plan: TrialPlan,
    /// Whether the plan is the stored one, not what stands for an unreadable one.
    pub is_readable: bool,
    pub attempts_made: u32,
    /// Since when it may start; empty while it is held back.
    pub released_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

struct TrialRow {
    id: Uuid,
    experiment_id: Uuid,
    ordinal: i32,
    state: String,
    reason: Option<String>,
    candidate: String,
    instance_type: String,
    instance_count: i32,
    purchase_option: String,
    region: String,
    plan: String,
    attempts_made: i32,
    released_at: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    ended_at: Option<DateTime<Utc>>,
}

impl TryFrom<TrialRow> for Trial {
    type Error = StoreError;

    fn try_from(row: TrialRow) -> Result<Self, StoreError> {
        let corrupt = |column| StoreError::corrupt("trials", row.id, column);
        let (plan, is_readable) = match stored::read_text(&row.plan, "trials", row.id, "plan") {
            Ok(plan) => (plan, true),
            Err(error) => {
                tracing::error!(%error, "unreadable plan; trial shown without it");
                let plan = TrialPlan::unreadable(
                    row.candidate,
                    row.instance_type,
                    error::count(row.instance_count, "trials", row.id, "instance_count")?,
                    PurchaseOption::parse(&row.purchase_option)
                        .ok_or_else(|| corrupt("purchase_option"))?,
                );
                (plan, false)
            }
        };
        Ok(Self {
            id: TrialId(row.id),
            experiment_id: ExperimentId(row.experiment_id),
            ordinal: row.ordinal,
            state: TrialState::parse(&row.state).ok_or_else(|| corrupt("state"))?,
            reason: row.reason,
            region: row.region,
            plan,
            is_readable,
            attempts_made: error::count(row.attempts_made, "trials", row.id, "attempts_made")?,
            released_at: row.released_at,
            created_at: row.created_at,
            ended_at: row.ended_at,
        })
    }
}

impl Store {
    /// Claims unleased trials that are due on the domain clock: first those that a person wants
    /// stopped, then the oldest due. Queued trials are admitted instead (see
    /// [`crate::jobs::queue`]), unless they are to be stopped.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_trials(
        &self,
        holder: Holder<'_>,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Claimed>, StoreError> {
        let rows = sqlx::query_as!(
            ClaimedRow,
            r#"WITH stops AS (
                   SELECT id, lease_expires_at, lease_owner FROM trials
                   WHERE stop_requested_at IS NOT NULL
                     AND state IN ('queued', 'submitting', 'parked', 'running', 'stopping') AND due_at <= $1 AND region = $5
                     AND (lease_expires_at IS NULL OR lease_expires_at < clock_timestamp())
                   ORDER BY due_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED),
               looks AS (
                   SELECT id, lease_expires_at, lease_owner FROM trials
                   WHERE stop_requested_at IS NULL AND state IN ('submitting', 'running', 'stopping') AND due_at <= $1
                     AND region = $5 AND (lease_expires_at IS NULL OR lease_expires_at < clock_timestamp())
                   ORDER BY due_at LIMIT $2 - (SELECT count(*) FROM stops) FOR NO KEY UPDATE SKIP LOCKED),
               due AS (SELECT * FROM stops UNION ALL SELECT * FROM looks)
               UPDATE trials t
               SET lease_owner = $3, lease_expires_at = clock_timestamp() + $4::interval, lease_token = lease_token + 1
               FROM due, experiments e WHERE t.id = due.id AND e.id = t.experiment_id
               RETURNING t.id, t.project_id, t.experiment_id, t.lease_token, t.state, t.job_kind, t.stop_requested_at, t.stop_reason,
                         t.candidate, t.instance_type, t.instance_count, t.purchase_option, t.region, t.volume_gb,
                         t.is_price_estimated, t.checkpoint_interval_seconds, t.billed_seconds_max, t.plan, e.labels AS "labels!",
                         e.pins_image AS "pins_image!", e.image_digest, t.attempts_made, t.failures, t.over_quota, t.no_capacity, t.give_up_at, t.created_at,
                         extract(epoch FROM clock_timestamp() - due.lease_expires_at + $4::interval)::double precision
                             AS abandoned_seconds, due.lease_owner AS abandoned_by"#,
            now,
            limit,
            holder.owner,
            interval(holder.lease),
            holder.region,
        )
        .fetch_all(&self.pool)
        .await?;
        self.claimed(rows, now).await
    }

    /// Combines claimed rows with their latest attempts.
    pub(crate) async fn claimed(
        &self,
        rows: Vec<ClaimedRow>,
        now: DateTime<Utc>,
    ) -> Result<Vec<Claimed>, StoreError> {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        let mut latest = self.latest_attempts(&ids).await?;
        let mut unreadable = Vec::new();
        let mut claimed = Vec::with_capacity(rows.len());
        for row in rows {
            let position = latest.iter().position(|one| one.trial == row.id);
            let latest = position.map(|index| latest.swap_remove(index));
            let is_whole = latest.as_ref().is_none_or(|latest| latest.is_whole);
            let attempt = latest.map(|latest| latest.attempt).transpose();
            let id = TrialId(row.id);
            // An unreadable trial keeps its lease until that expires, and does not delay the
            // others.
            match attempt.and_then(|attempt| row.claimed(attempt)) {
                Ok(trial) => {
                    if trial.plan.is_none() || !is_whole {
                        unreadable.push(id);
                    }
                    claimed.push(trial);
                }
                Err(error) => {
                    tracing::error!(%error, trial = %id, "unreadable trial; skipped");
                }
            }
        }
        for trial in claimed
            .iter()
            .filter(|trial| unreadable.contains(&trial.id))
        {
            // Readable trials do not wait for this alarm: if it fails, it is raised with the next
            // claim.
            if let Err(error) = self.raise_unreadable(trial, now).await {
                tracing::warn!(%error, trial = %trial.id, "raising an alarm failed; retrying");
            }
        }
        Ok(claimed)
    }

    /// Raises an alarm, once, for a trial that this program cannot read in full.
    async fn raise_unreadable(
        &self,
        trial: &Claimed,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        tracing::error!(trial = %trial.id, "stored trial is partly unreadable");
        let mut tx = self.pool.begin().await?;
        let is_told = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM events WHERE experiment_id = $1 AND trial_id = $2 AND kind = $3) AS "told!""#,
            trial.experiment_id.0,
            trial.id.0,
            Event::TrialUnreadable.kind(),
        )
        .fetch_one(&mut *tx)
        .await?;
        if is_told {
            return Ok(());
        }
        let unreadable = EventSubject::from(trial).told(Event::TrialUnreadable);
        events::commit(tx, &[unreadable], now).await
    }

    /// The latest attempt of each trial, as far as it is readable.
    async fn latest_attempts(&self, trials: &[Uuid]) -> Result<Vec<Latest>, StoreError> {
        let rows = sqlx::query_as!(
            AttemptRow,
            r#"SELECT DISTINCT ON (trial_id) id, trial_id AS "trial_id!", number AS "number!", job_name, state, price_id, usd_per_hour,
                      reserved_training_usd, reserved_metrics_usd, quarantine_until, absent, postponed, job_status,
                      secondary_status, failure_reason, transitions::text AS "transitions!", training_seconds, billable_seconds,
                      billing_estimated, metrics_requested, planned_at, started_at, ended_at, is_compared, checkpoint_at, checkpoint_times,
                      greatest(started_at, modified_at) AS training_since, modified_at, delete_asked_at,
                      NULL::timestamptz AS listed_at
               FROM jobs WHERE trial_id = ANY($1) AND NOT is_recovered ORDER BY trial_id, number DESC"#,
            trials,
        )
        .fetch_all(&self.pool)
        .await?;
        let latest = rows.into_iter().map(|row| {
            let transitions = row.transitions();
            Latest {
                trial: row.trial_id,
                is_whole: transitions.is_ok(),
                // The next observation rewrites the transitions.
                attempt: Attempt::with_transitions(row, transitions.unwrap_or_default()),
            }
        });
        Ok(latest.collect())
    }

    /// When the scheduler of a region next has work: the next due time of an unleased trial (domain
    /// clock), and the real seconds until the next lease expires.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn next_due(
        &self,
        region: &str,
    ) -> Result<(Option<DateTime<Utc>>, Option<f64>), StoreError> {
        let row = sqlx::query!(
            r#"SELECT (SELECT due_at FROM trials
                       WHERE (state IN ('submitting', 'running', 'stopping')
                              OR (state IN ('queued', 'parked') AND stop_requested_at IS NOT NULL))
                         AND lease_expires_at IS NULL AND region = $1
                       ORDER BY due_at LIMIT 1) AS due_at,
                      extract(epoch FROM (SELECT min(lease_expires_at) FROM trials
                                          WHERE lease_expires_at IS NOT NULL AND region = $1)
                                         - clock_timestamp())::double precision AS lease_seconds"#,
            region,
        )
        .fetch_one(&self.pool)
        .await?;
        Ok((row.due_at, row.lease_seconds))
    }

    /// All trials of the given experiments, in order. Their plans omit the jobs (before version 3: the requests), which
    /// make up most of a plan and appear in no table.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn trials_of(&self, experiments: &[Uuid]) -> Result<Vec<Trial>, StoreError> {
        sqlx::query_as!(
            TrialRow,
            r#"SELECT id, experiment_id, ordinal, state, reason, candidate, instance_type, instance_count, purchase_option, region,
                      (plan - 'request' - 'job')::text AS "plan!", attempts_made, released_at, created_at, ended_at
               FROM trials WHERE experiment_id = ANY($1) ORDER BY experiment_id, ordinal"#,
            experiments,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(Trial::try_from)
        .collect()
    }

    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn trial(
        &self,
        project: ProjectId,
        id: TrialId,
    ) -> Result<Option<Trial>, StoreError> {
        sqlx::query_as!(
            TrialRow,
            r#"SELECT id, experiment_id, ordinal, state, reason, candidate, instance_type, instance_count, purchase_option, region,
                      plan::text AS "plan!", attempts_made, released_at, created_at, ended_at
               FROM trials t WHERE id = $1 AND project_id = $2
                 AND NOT EXISTS (SELECT FROM experiments e WHERE e.id = t.experiment_id AND e.deleted_at IS NOT NULL)"#,
            id.0,
            project.0,
        )
        .fetch_optional(&self.pool)
        .await?
        .map(Trial::try_from)
        .transpose()
    }

    /// Whether a full run of an experiment that went on in a folder of checkpoints has completed.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn has_completed_from(
        &self,
        experiment: ExperimentId,
        folder: TrialId,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM experiments e JOIN trials t ON t.experiment_id = e.id
                              WHERE e.full_run_of = $1
                                AND t.checkpoint_trial_id = $2 AND t.state = 'completed') AS "exists!""#,
            experiment.0,
            folder.0,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Maps those of the given trials that belong to the project to their experiments.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn experiments_of_trials(
        &self,
        project: ProjectId,
        trials: &[TrialId],
    ) -> Result<BTreeMap<TrialId, ExperimentId>, StoreError> {
        let ids: Vec<Uuid> = trials.iter().map(|id| id.0).collect();
        let rows = sqlx::query!(
            r#"SELECT t.id, t.experiment_id FROM trials t JOIN experiments e ON e.id = t.experiment_id
               WHERE t.id = ANY($2) AND t.project_id = $1 AND e.deleted_at IS NULL"#,
            project.0,
            &ids,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| (TrialId(row.id), ExperimentId(row.experiment_id)))
            .collect())
    }

    /// All attempts of the given experiments, by trial and in order.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn attempts_of(&self, experiments: &[Uuid]) -> Result<Vec<Attempt>, StoreError> {
        sqlx::query_as!(
            AttemptRow,
            r#"SELECT id, trial_id AS "trial_id!", number AS "number!", job_name, state, price_id, usd_per_hour, reserved_training_usd,
                      reserved_metrics_usd, quarantine_until, absent, postponed, job_status, secondary_status,
                      failure_reason, transitions::text AS "transitions!", training_seconds, billable_seconds, billing_estimated,
                      metrics_requested, planned_at, started_at, ended_at, is_compared, checkpoint_at, checkpoint_times,
                      greatest(started_at, modified_at) AS training_since, modified_at, delete_asked_at,
                      CASE WHEN settled_at IS NULL THEN (SELECT max(listed_at) FROM leases l WHERE l.region = jobs.region) END AS listed_at
               FROM jobs WHERE experiment_id = ANY($1) AND trial_id IS NOT NULL ORDER BY trial_id, number"#,
            experiments,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(AttemptRow::shown)
        .collect()
    }
}
