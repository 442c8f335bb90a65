//! What a listing or an event of AWS's changes: statuses for people to see, and trials that become due. Stray jobs, stopped
//! and billed.

use bakeoff_domain::bill::{Agreed, Usage};
use bakeoff_domain::ids::{AttemptId, ExperimentId, PriceId, ProjectId, TrialId};
use bakeoff_domain::job::Billing;
use bakeoff_domain::money::Usd;
use bakeoff_domain::stray::StrayFacts;
use bakeoff_domain::watch::{Change, Known};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use super::bill::{self, What};
use super::events::{self, NewEvent};
use super::leases::{self, Term};
use super::ledger::Account;
use super::{Store, StoreError, budget};

/// A stray job whose cost is not known yet.
#[derive(Debug, Clone)]
pub struct Stray {
    pub job_name: String,
    pub facts: StrayFacts,
    /// Booked already, by its attempt or by an earlier settlement.
    billed_seconds: u64,
    /// Whose it is: empty when no row of ours has that name.
    pub owner: Option<StrayOwner>,
}

/// The attempt that a stray job belongs to.
#[derive(Debug, Clone)]
pub struct StrayOwner {
    pub account: Account,
    pub instance_type: String,
    pub region: String,
    pub volume_gb: u32,
    pub instance_count: u32,
    pub usd_per_hour: Usd,
}

impl Store {
    /// What is stored of the running attempts (of those with these names, when given).
    pub async fn running_attempts(&self, job_names: Option<&[String]>) -> Result<Vec<Known>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, trial_id, job_name, secondary_status, modified_at, started_at IS NOT NULL AS "has_started!",
                      running_at AS "running_at!", is_compared
               FROM attempts WHERE state = 'running' AND running_at IS NOT NULL
                 AND ($1::text[] IS NULL OR job_name = ANY($1))"#,
            job_names,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| Known {
                attempt: AttemptId(row.id),
                trial: TrialId(row.trial_id),
                job_name: row.job_name,
                secondary_status: row.secondary_status,
                modified_at: row.modified_at,
                has_started: row.has_started,
                running_at: row.running_at,
                is_compared: row.is_compared,
            })
            .collect())
    }

    /// When the oldest job that is still of interest was planned.
    pub async fn oldest_watched(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT least((SELECT min(planned_at) FROM attempts WHERE state = 'running'),
                            (SELECT min(a.planned_at) FROM warm_pools p JOIN attempts a ON a.id = p.attempt_id
                             WHERE p.state = 'retained'))"#
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Writes new statuses and makes trials due, on behalf of a term; false when the term is over.
    pub async fn notice(
        &self,
        term: &Term,
        changed: &[Change],
        look: &[TrialId],
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        if !leases::fence(&mut tx, term).await? {
            return Ok(false);
        }
        write_notices(&mut tx, changed, look, now).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The same for an event that AWS pushed; with it, when billing began.
    pub async fn notice_event(
        &self,
        change: Option<&Change>,
        started: Option<(AttemptId, DateTime<Utc>)>,
        look: &[TrialId],
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        if let Some((attempt, started_at)) = started {
            sqlx::query!(
                "UPDATE attempts SET started_at = $2 WHERE id = $1 AND state = 'running' AND started_at IS NULL",
                attempt.0,
                started_at,
            )
            .execute(&mut *tx)
            .await?;
        }
        write_notices(&mut tx, change.map(std::slice::from_ref).unwrap_or_default(), look, now).await?;
        tx.commit().await?;
        Ok(())
    }

    /// All running trials become due: a look at each is what is left when AWS will not list.
    pub async fn look_at_all_running(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        let woken = sqlx::query!("UPDATE trials SET due_at = $1 WHERE state = 'running' AND due_at > $1", now);
        Ok(woken.execute(&self.pool).await?.rows_affected())
    }

    /// Of some job names, those that no unsettled attempt has, and that are not known as strays.
    pub async fn without_living_attempt(&self, job_names: &[String]) -> Result<Vec<String>, StoreError> {
        let rows = sqlx::query_scalar!(
            r#"SELECT name AS "name!" FROM UNNEST($1::text[]) AS t(name)
               WHERE NOT EXISTS (SELECT FROM attempts a WHERE a.job_name = t.name AND a.settled_at IS NULL)"#,
            job_names,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows)
    }

    /// Of the names of jobs with idle pools: pools that are ours to look after become due, the others are returned.
    pub async fn notice_idle_pools(&self, job_names: &[String], now: DateTime<Utc>) -> Result<Vec<String>, StoreError> {
        sqlx::query!(
            "UPDATE warm_pools SET due_at = $2 WHERE state = 'retained' AND job_name = ANY($1) AND due_at > $2",
            job_names,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(sqlx::query_scalar!(
            r#"SELECT name AS "name!" FROM UNNEST($1::text[]) AS t(name)
               WHERE NOT EXISTS (SELECT FROM warm_pools p WHERE p.job_name = t.name AND p.state <> 'settled')
                 AND NOT EXISTS (SELECT FROM attempts a WHERE a.job_name = t.name AND a.settled_at IS NULL)"#,
            job_names,
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Remembers a stray job, with an alarm to its experiment if there is one. One that was thought to be over is followed
    /// again; false when it is followed already.
    pub async fn record_stray(&self, job_name: &str, now: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let is_new = sqlx::query!(
            r#"INSERT INTO stray_jobs (job_name, attempt_id, found_at, last_seen_at, due_at, billed_seconds)
               SELECT $1, a.id, $2, $2, $2, coalesce(a.billable_seconds, 0)
               FROM (SELECT) one LEFT JOIN attempts a ON a.job_name = $1
               ON CONFLICT (job_name) DO UPDATE SET settled_at = NULL, last_seen_at = $2, due_at = $2
               WHERE stray_jobs.settled_at IS NOT NULL"#,
            job_name,
            now,
        )
        .execute(&mut *tx)
        .await?
        .rows_affected()
            == 1;
        if is_new {
            sqlx::query!(
                r#"INSERT INTO events (project_id, experiment_id, trial_id, kind, severity, message, recorded_at)
                   SELECT project_id, experiment_id, trial_id, 'trial.stray_job', 'alarm', $2, $3
                   FROM attempts WHERE job_name = $1"#,
                job_name,
                format!("{job_name} ran although its attempt was over; it is stopped, and billed to the experiment"),
                now,
            )
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(is_new)
    }

    /// Stray jobs that are due for a look.
    pub async fn due_strays(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<Stray>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.job_name, s.found_at, s.last_seen_at, s.billed_seconds, a.started_at AS "started_at?", a.id AS "attempt_id?", a.project_id AS "project_id?",
                      a.experiment_id AS "experiment_id?", a.trial_id AS "trial_id?", a.price_id AS "price_id?",
                      a.usd_per_hour AS "usd_per_hour?", t.instance_count AS "instance_count?",
                      t.instance_type AS "instance_type?", t.plan->'price'->>'region' AS region,
                      (t.plan #>> '{request,volume_size_gb}')::bigint AS volume_gb
               FROM stray_jobs s LEFT JOIN attempts a ON a.id = s.attempt_id LEFT JOIN trials t ON t.id = a.trial_id
               WHERE s.settled_at IS NULL AND s.due_at <= $1 ORDER BY s.due_at LIMIT $2"#,
            now,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let account = || {
                    Some(Account {
                        attempt_id: AttemptId(row.attempt_id?),
                        project_id: ProjectId(row.project_id?),
                        experiment_id: ExperimentId(row.experiment_id?),
                        trial_id: TrialId(row.trial_id?),
                        price_id: PriceId(row.price_id?),
                    })
                };
                let owner = account().map(|account| StrayOwner {
                    account,
                    instance_type: row.instance_type.clone().unwrap_or_default(),
                    region: row.region.clone().unwrap_or_default(),
                    volume_gb: row.volume_gb.and_then(|gb| u32::try_from(gb).ok()).unwrap_or(0),
                    instance_count: row.instance_count.and_then(|n| u32::try_from(n).ok()).unwrap_or(1),
                    usd_per_hour: row.usd_per_hour.map_or(Usd::ZERO, Usd),
                });
                let facts =
                    StrayFacts { found_at: row.found_at, started_at: row.started_at, last_seen_at: row.last_seen_at };
                let billed_seconds = u64::try_from(row.billed_seconds).unwrap_or_default();
                Stray { job_name: row.job_name, facts, billed_seconds, owner }
            })
            .collect())
    }

    /// Looks at a stray again later.
    pub async fn postpone_stray(
        &self,
        job_name: &str,
        last_seen_at: DateTime<Utc>,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE stray_jobs SET due_at = $3, last_seen_at = $2 WHERE job_name = $1 AND settled_at IS NULL",
            job_name,
            last_seen_at,
            at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Books what a stray cost beyond what is booked already. It was never reserved: what passes the budget pauses the
    /// experiment.
    pub async fn settle_stray(&self, stray: &Stray, billing: Billing, now: DateTime<Utc>) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let part = sqlx::query_scalar!(
            r#"UPDATE stray_jobs SET settled_at = $2, due_at = NULL, billed_seconds = greatest(billed_seconds, $3),
                      settlements = settlements + 1
               WHERE job_name = $1 AND settled_at IS NULL RETURNING settlements - 1 AS "part!""#,
            stray.job_name,
            now,
            i64::try_from(billing.seconds).unwrap_or(i64::MAX),
        )
        .fetch_optional(&mut *tx)
        .await?;
        if let (Some(owner), Some(part)) = (&stray.owner, part) {
            let seconds = billing.seconds.saturating_sub(stray.billed_seconds);
            let account = &owner.account;
            let usage = Usage {
                instance_type: owner.instance_type.clone(),
                region: owner.region.clone(),
                count: owner.instance_count,
                // When it ran is not known here, but for how long: not long ago.
                from: now - TimeDelta::seconds(i64::try_from(seconds).unwrap_or(0)),
                until: now,
                waits: Vec::new(),
                billed_seconds: seconds,
                run_seconds: seconds,
                volume_gb: owner.volume_gb,
            };
            let agreed = Agreed { price_id: account.price_id, usd_per_hour: owner.usd_per_hour, estimated: false };
            bill::settle(&mut tx, account, (What::Stray(part), &usage, agreed), (None, billing.estimated), now).await?;
            budget::pause_when_overdrawn(&mut tx, account.experiment_id, &stray.job_name).await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

/// Lock order as everywhere: attempts, trials, then the experiments' event locks.
async fn write_notices(
    tx: &mut PgConnection,
    changed: &[Change],
    look: &[TrialId],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    // Only forwards: a page or an event may be older than what a look has told meanwhile.
    let written = sqlx::query!(
        r#"UPDATE attempts a
           SET job_status = n.status, secondary_status = n.secondary, modified_at = coalesce(n.modified_at, a.modified_at)
           FROM UNNEST($1::uuid[], $2::text[], $3::text[], $4::timestamptz[]) AS n(attempt_id, status, secondary, modified_at)
           WHERE a.id = n.attempt_id AND a.state = 'running'
             AND (a.modified_at IS NULL OR n.modified_at IS NULL OR n.modified_at >= a.modified_at)
             AND a.secondary_status IS DISTINCT FROM n.secondary
           RETURNING a.project_id, a.experiment_id, a.trial_id, a.secondary_status AS "secondary_status!""#,
        &changed.iter().map(|change| change.attempt.0).collect::<Vec<_>>(),
        &changed.iter().map(|change| change.status.as_str().to_owned()).collect::<Vec<_>>(),
        &changed.iter().map(|change| change.secondary_status.clone()).collect::<Vec<_>>(),
        &changed.iter().map(|change| change.modified_at).collect::<Vec<_>>() as &[Option<DateTime<Utc>>],
    )
    .fetch_all(&mut *tx)
    .await?;
    if !look.is_empty() {
        sqlx::query!(
            r#"WITH woken AS (
                   SELECT id FROM trials WHERE id = ANY($1) AND state IN ('running', 'stopping') AND due_at > $2
                   ORDER BY id FOR UPDATE)
               UPDATE trials t SET due_at = $2 FROM woken WHERE t.id = woken.id"#,
            &look.iter().map(|trial| trial.0).collect::<Vec<_>>(),
            now,
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("SELECT pg_notify('bakeoff_wake', '')").execute(&mut *tx).await?;
    }
    let events: Vec<NewEvent> = written
        .into_iter()
        .map(|row| NewEvent {
            project_id: ProjectId(row.project_id),
            experiment_id: ExperimentId(row.experiment_id),
            trial_id: Some(TrialId(row.trial_id)),
            kind: "trial.status".to_owned(),
            severity: if row.secondary_status == "Interrupted" { "warning" } else { "info" },
            message: row.secondary_status,
        })
        .collect();
    events::insert_all(tx, &events, now).await
}
