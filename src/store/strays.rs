//! Stray jobs: they carry our marker, run, and no living attempt stands for them. Remembered,
//! followed, billed; what to do about one is [`bakeoff_domain::lifecycle::stray`]'s business.

use bakeoff_domain::ids::{AttemptId, ExperimentId, PriceId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::stray::StrayFacts;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::bill::{Agreed, Usage};
use bakeoff_domain::sagemaker::observed::Billing;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use crate::store::events::{self, NewEvent};
use crate::store::leases::{self, Term};
use crate::store::money::bill::{self, Billed, What};
use crate::store::money::budget;
use crate::store::money::ledger::Account;
use crate::store::{Store, StoreError, retried};

/// A stray job whose cost is not known yet.
#[derive(Debug, Clone)]
pub struct Stray {
    pub job_name: String,
    pub facts: StrayFacts,
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
    /// Whether a job of a trial turned up since a moment that no attempt stands for, and is not
    /// settled yet.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn has_unsettled_stray(
        &self,
        trial: TrialId,
        since: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM stray_jobs s JOIN attempts a ON a.id = s.attempt_id
                              WHERE a.trial_id = $1 AND s.settled_at IS NULL AND s.found_at > $2) AS "found!""#,
            trial.0,
            since,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Remembers a stray job, with an alarm to its experiment if there is one. One that was thought
    /// to be over is followed again; false when it is followed already, or a living attempt stands
    /// for it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_stray(
        &self,
        job_name: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        retried(|| self.record_stray_once(job_name, now)).await
    }

    async fn record_stray_once(
        &self,
        job_name: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let is_new = sqlx::query!(
            r#"INSERT INTO stray_jobs (job_name, attempt_id, found_at, last_seen_at, due_at, billed_seconds)
               SELECT $1, a.id, $2, $2, $2, coalesce(a.billable_seconds, 0)
               FROM (SELECT) one LEFT JOIN attempts a ON a.job_name = $1
               WHERE a.id IS NULL OR a.settled_at IS NOT NULL
               ON CONFLICT (job_name) DO UPDATE SET settled_at = NULL, last_seen_at = $2, due_at = $2,
                                                    attempt_id = coalesce(stray_jobs.attempt_id, excluded.attempt_id)
               WHERE stray_jobs.settled_at IS NOT NULL OR (stray_jobs.attempt_id IS NULL AND excluded.attempt_id IS NOT NULL)"#,
            job_name,
            now,
        )
        .execute(&mut *tx)
        .await?
        .rows_affected()
            == 1;
        if is_new {
            let owner = sqlx::query!(
                "SELECT project_id, experiment_id, trial_id FROM attempts WHERE job_name = $1",
                job_name
            )
            .fetch_optional(&mut *tx)
            .await?;
            let told = owner.map(|row| NewEvent {
                project_id: ProjectId(row.project_id),
                experiment_id: ExperimentId(row.experiment_id),
                trial_id: Some(TrialId(row.trial_id)),
                kind: "trial.stray_job".to_owned(),
                severity: "alarm",
                message: format!(
                    "{job_name} ran although its attempt was over; it is stopped, and billed to the experiment"
                ),
            });
            events::insert_all(&mut tx, told.as_slice(), now).await?;
        }
        tx.commit().await?;
        Ok(is_new)
    }

    /// Whether there is a row of an attempt, whatever became of it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn has_attempt(&self, attempt: AttemptId) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM attempts WHERE id = $1) AS "found!""#,
            attempt.0
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Tells the experiment of a trial, once, that a job which names that trial runs and is in no
    /// row.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn tell_unknown_job(
        &self,
        job_name: &str,
        trial: TrialId,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let message = format!(
            "{job_name} runs for this trial and is not in this database. It is left alone: another database of the same \
             installation may have made it. With --fence it would be told apart; --stop-unknown-jobs stops it"
        );
        let owner = sqlx::query!(
            r#"SELECT project_id, experiment_id FROM trials t WHERE id = $1 AND NOT EXISTS (
                   SELECT FROM events e WHERE e.experiment_id = t.experiment_id AND e.kind = 'trial.unknown_job'
                   AND e.message = $2)"#,
            trial.0,
            message,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let told = owner.map(|row| NewEvent {
            project_id: ProjectId(row.project_id),
            experiment_id: ExperimentId(row.experiment_id),
            trial_id: Some(trial),
            kind: "trial.unknown_job".to_owned(),
            severity: "alarm",
            message,
        });
        events::insert_all(&mut tx, told.as_slice(), now).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Makes the row that a job of ours has not, from the trial that its tag names, so that it can
    /// be billed: after a restore from a backup. False when there is no such trial, or the attempt
    /// has a row after all.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn recover_attempt(
        &self,
        attempt: AttemptId,
        job_name: &str,
        trial: TrialId,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let made = sqlx::query!(
            r#"WITH counted AS (
                   UPDATE trials t SET attempts_made = t.attempts_made + 1
                   WHERE t.id = $3 AND t.price_id IS NOT NULL AND t.worst_case_training_usd IS NOT NULL
                     AND NOT EXISTS (SELECT FROM attempts a WHERE a.id = $1 OR a.job_name = $2)
                   RETURNING t.*)
               INSERT INTO attempts (id, project_id, experiment_id, trial_id, number, job_name, state, price_id, usd_per_hour,
                                     reserved_training_usd, reserved_metrics_usd, planned_at, settled_at, is_recovered)
               SELECT $1, c.project_id, c.experiment_id, c.id, c.attempts_made, $2, 'never_created', c.price_id,
                      p.usd, c.worst_case_training_usd, 0, $4, $4, true
               FROM counted c JOIN prices p ON p.id = c.price_id"#,
            attempt.0,
            job_name,
            trial.0,
            now,
        )
        .execute(&mut *tx)
        .await?
        .rows_affected();
        tx.commit().await?;
        Ok(made == 1)
    }

    /// Stray jobs that are due for a look.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn due_strays(
        &self,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Stray>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.job_name, s.found_at, s.last_seen_at, a.started_at AS "started_at?", a.id AS "attempt_id?",
                      a.project_id AS "project_id?", a.experiment_id AS "experiment_id?", a.trial_id AS "trial_id?",
                      a.price_id AS "price_id?", a.usd_per_hour AS "usd_per_hour?", t.instance_count AS "instance_count?",
                      t.instance_type AS "instance_type?", t.region AS "region?", t.volume_gb AS "volume_gb?",
                      t.billed_seconds_max AS "billed_seconds_max?"
               FROM stray_jobs s LEFT JOIN attempts a ON a.id = s.attempt_id LEFT JOIN trials t ON t.id = a.trial_id
               WHERE s.settled_at IS NULL AND s.due_at <= $1 ORDER BY s.due_at LIMIT $2"#,
            now,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let owner = || {
                    Some(StrayOwner {
                        account: Account {
                            attempt_id: AttemptId(row.attempt_id?),
                            project_id: ProjectId(row.project_id?),
                            experiment_id: ExperimentId(row.experiment_id?),
                            trial_id: TrialId(row.trial_id?),
                            price_id: PriceId(row.price_id?),
                        },
                        instance_type: row.instance_type.clone()?,
                        region: row.region.clone()?,
                        volume_gb: u32::try_from(row.volume_gb?).ok()?,
                        instance_count: u32::try_from(row.instance_count?).ok()?,
                        usd_per_hour: Usd(row.usd_per_hour?),
                    })
                };
                // Nobody owns one whose attempt is not known. Of any other all is known, or it
                // would be billed as nothing.
                let owner = match (row.attempt_id, owner()) {
                    (Some(id), None) => {
                        return Err(StoreError::corrupt("attempts", id, "trial_id"));
                    }
                    (_, owner) => owner,
                };
                let longest = row.billed_seconds_max.map(u64::try_from);
                let facts = StrayFacts {
                    found_at: row.found_at,
                    started_at: row.started_at,
                    last_seen_at: row.last_seen_at,
                    longest_billed_seconds: longest.and_then(Result::ok).unwrap_or(u64::MAX),
                };
                Ok(Stray {
                    job_name: row.job_name,
                    facts,
                    owner,
                })
            })
            .collect()
    }

    /// Looks at a stray again later.
    #[tracing::instrument(level = "debug", skip_all)]
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

    /// Books what a stray cost beyond what is booked already, on behalf of a term. It was never
    /// reserved: what passes the budget pauses the experiment.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn settle_stray(
        &self,
        term: &Term,
        stray: &Stray,
        billing: Billing,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        retried(|| self.settle_stray_once(term, stray, billing, now)).await
    }

    async fn settle_stray_once(
        &self,
        term: &Term,
        stray: &Stray,
        billing: Billing,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        if !leases::fence(&mut tx, term).await? {
            return Ok(());
        }
        // What is booked is read under the lock under which it is changed.
        let settled = sqlx::query!(
            r#"WITH held AS (SELECT job_name, billed_seconds FROM stray_jobs WHERE job_name = $1 AND settled_at IS NULL
                             FOR NO KEY UPDATE)
               UPDATE stray_jobs s SET settled_at = $2, due_at = NULL,
                      billed_seconds = CASE WHEN s.attempt_id IS NULL THEN s.billed_seconds ELSE greatest(s.billed_seconds, $3) END,
                      settlements = s.settlements + 1
               FROM held WHERE s.job_name = held.job_name
               RETURNING s.settlements - 1 AS "part!", held.billed_seconds"#,
            stray.job_name,
            now,
            i64::try_from(billing.seconds).unwrap_or(i64::MAX),
        )
        .fetch_optional(&mut *tx)
        .await?;
        if let (Some(owner), Some(settled)) = (&stray.owner, settled) {
            let booked = u64::try_from(settled.billed_seconds).unwrap_or_default();
            let beyond = Billing {
                seconds: billing.seconds.saturating_sub(booked),
                ..billing
            };
            book(&mut tx, owner, settled.part, beyond, now).await?;
            budget::pause_when_overdrawn(&mut tx, owner.account.experiment_id, &stray.job_name)
                .await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

async fn book(
    tx: &mut PgConnection,
    owner: &StrayOwner,
    part: i32,
    billing: Billing,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let Billing { seconds, estimated } = billing;
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
    let agreed = Agreed {
        price_id: account.price_id,
        usd_per_hour: owner.usd_per_hour,
        estimated: false,
    };
    let billed = Billed {
        what: What::Stray(part),
        usage: &usage,
        agreed,
        held: None,
        estimated,
    };
    bill::settle(tx, account, billed, now).await.map(drop)
}
