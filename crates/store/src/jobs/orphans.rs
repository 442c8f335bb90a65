//! Orphaned jobs: running jobs with our marker that no living attempt stands for. They are
//! recorded, tracked and billed here; [`bakeoff_domain::lifecycle::orphan`] decides what to do
//! about them.

use bakeoff_domain::event::Event;
use bakeoff_domain::ids::{ExperimentId, JobId, PriceId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::orphan::{OrphanFacts, SettledAttempt, Sighting};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::bill::{Agreed, Usage};
use bakeoff_domain::money::ledger::EntryResource;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::Billing;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{PgConnection, Postgres, Transaction};

use crate::account::Account;
use crate::events::{self, EventSubject, NewEvent};
use crate::jobs::attempts::StopRefusal;
use crate::leases::{self, Term};
use crate::money::bill::{self, Billed};
use crate::money::budget;
use crate::money::corrections::{CorrectedBill, bill_anew};
use crate::stored;
use crate::{Store, StoreError, retried};

/// An orphaned job that is not settled yet.
#[derive(Debug, Clone)]
pub struct Orphan {
    pub kind: JobKind,
    pub job_name: String,
    pub facts: OrphanFacts,
    /// The attempt it belongs to; empty when none of our rows has that job name.
    pub owner: Option<OrphanOwner>,
}

/// What an orphaned job was billed in all.
#[derive(Debug, Clone, Copy)]
pub struct OrphanBill {
    pub billing: Billing,
    /// TrainingTimeInSeconds, where SageMaker has told it.
    pub training_seconds: Option<u64>,
}

/// The attempt that an orphaned job belongs to.
#[derive(Debug, Clone)]
pub struct OrphanOwner {
    pub account: Account,
    pub kind: JobKind,
    pub instance_type: String,
    pub region: String,
    pub volume_gb: u32,
    pub instance_count: u32,
    pub usd_per_hour: Usd,
}

/// How far an attempt has come, as recorded.
#[derive(Debug, Clone, Copy)]
pub struct AttemptRecord {
    /// None while it is not settled.
    pub settled: Option<SettledAttempt>,
}

impl Store {
    /// Whether an orphaned job of the trial was found since the given time and is not settled yet.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn has_unsettled_orphan(
        &self,
        trial: TrialId,
        since: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM orphaned_jobs s JOIN jobs j ON j.id = s.job_id
                              WHERE j.trial_id = $1 AND s.settled_at IS NULL AND s.found_at > $2
                                -- Of one that SageMaker has called over, only the bill is late.
                                AND (j.state = 'never_created' OR j.kind = 'endpoint' OR j.job_status IS NULL
                                     OR j.job_status NOT IN ('Completed', 'Failed', 'Stopped', 'Deleting'))) AS "found!""#,
            trial.0,
            since,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Records an orphaned job in a region, with an alarm to its experiment if there is one; one whose bill was
    /// only late raises none. A job that was thought to be over is tracked again. False when it is already
    /// tracked, or a living attempt stands for it.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_orphan(
        &self,
        region: &str,
        kind: JobKind,
        job_name: &str,
        sighting: Sighting,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            let is_new = sqlx::query!(
                r#"INSERT INTO orphaned_jobs (job_name, region, kind, job_id, found_at, last_seen_at, due_at, billed_seconds)
                   SELECT $1, $3, $4, j.id, $2, $2, $2, coalesce(j.billable_seconds, 0)
                   FROM (SELECT) one LEFT JOIN jobs j ON j.job_name = $1
                   WHERE j.id IS NULL OR j.settled_at IS NOT NULL
                   ON CONFLICT (job_name) DO UPDATE SET settled_at = NULL, last_seen_at = $2, due_at = $2, region = $3,
                                                        job_id = coalesce(orphaned_jobs.job_id, excluded.job_id)
                   WHERE orphaned_jobs.settled_at IS NOT NULL OR (orphaned_jobs.job_id IS NULL AND excluded.job_id IS NOT NULL)"#,
                job_name,
                now,
                region,
                kind.as_str(),
            )
            .execute(&mut *tx)
            .await?
            .rows_affected()
                == 1;
            let mut told = None;
            if is_new && sighting == Sighting::Orphan {
                let owner = sqlx::query!(
                    "SELECT project_id, experiment_id, trial_id FROM jobs WHERE job_name = $1",
                    job_name
                )
                .fetch_optional(&mut *tx)
                .await?;
                let subject = owner.and_then(|row| {
                    Some(EventSubject {
                        project: ProjectId(row.project_id),
                        experiment: ExperimentId(row.experiment_id?),
                        trial: row.trial_id.map(TrialId),
                    })
                });
                let job_name = job_name.to_owned();
                told = subject.map(|subject| subject.told(Event::TrialOrphanedJob { job_name }));
            }
            events::commit(tx, told.as_slice(), now).await?;
            Ok(is_new)
        };
        retried(transaction).await
    }

    /// The record of an attempt, if it has one; one that is not settled has not ended yet.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn attempt_record(
        &self,
        attempt: JobId,
    ) -> Result<Option<AttemptRecord>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT settled_at, state = 'never_created' AS "never_created!" FROM jobs WHERE id = $1"#,
            attempt.0
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(|row| AttemptRecord {
            settled: row.settled_at.map(|settled_at| SettledAttempt {
                settled_at,
                never_created: row.never_created,
            }),
        }))
    }

    /// Reports, once, that a job of ours is in no row: to the experiment of the trial that it names, or, when that is not
    /// known either, to every project.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn tell_unknown_job(
        &self,
        job_name: &str,
        trial: Option<TrialId>,
        is_stopped: bool,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let unknown = Event::TrialUnknownJob {
            job_name: job_name.to_owned(),
            is_stopped,
        };
        let owner = sqlx::query!(
            r#"SELECT project_id, experiment_id, EXISTS (
                   SELECT FROM events e WHERE e.experiment_id = t.experiment_id AND e.kind = 'trial.unknown_job'
                   AND e.data = $2) AS "is_told!"
               FROM trials t WHERE id = $1"#,
            trial.map(|trial| trial.0),
            stored::write(&unknown)?,
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(owner) = owner else {
            return events::commit_to_all_projects(tx, &unknown, now).await;
        };
        let subject = EventSubject {
            project: ProjectId(owner.project_id),
            experiment: ExperimentId(owner.experiment_id),
            trial,
        };
        let told = (!owner.is_told).then(|| subject.told(unknown));
        events::commit(tx, told.as_slice(), now).await
    }

    /// Creates the missing row for a job of ours, from the trial named in its tag, so that the job
    /// can be billed. Needed after a restore from a backup. False when the trial does not exist, or
    /// the attempt has a row after all.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn recover_attempt(
        &self,
        attempt: JobId,
        job_name: &str,
        trial: TrialId,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        let made = sqlx::query!(
            r#"WITH counted AS (
                   UPDATE trials t SET attempts_made = t.attempts_made + 1
                   WHERE t.id = $3 AND t.price_id IS NOT NULL AND t.worst_case_training_usd IS NOT NULL
                     AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = $1 OR j.job_name = $2)
                   RETURNING t.*)
               INSERT INTO jobs (id, kind, region, account, project_id, experiment_id, trial_id, number, job_name, state,
                                 price_id, usd_per_hour, reserved_training_usd, reserved_metrics_usd, planned_at, settled_at,
                                 is_recovered)
               SELECT $1, c.job_kind, c.region, (SELECT account FROM installation), c.project_id, c.experiment_id, c.id,
                      c.attempts_made, $2, 'never_created', c.price_id,
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

    /// Orphaned jobs of a region that are due to be polled.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn due_orphans(
        &self,
        region: &str,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Orphan>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.kind, s.job_name, s.found_at, s.last_seen_at, j.started_at AS "started_at?", j.id AS "job_id?",
                      j.project_id AS "project_id?", j.experiment_id AS "experiment_id?", j.trial_id AS "trial_id?",
                      j.price_id AS "price_id?", j.usd_per_hour AS "usd_per_hour?", t.instance_count AS "instance_count?",
                      t.instance_type AS "instance_type?", t.region AS "region?", t.volume_gb AS "volume_gb?",
                      t.billed_seconds_max AS "billed_seconds_max?",
                      CASE WHEN j.billing_estimated AND j.state <> 'never_created' THEN s.billed_seconds END AS estimated_seconds
               FROM orphaned_jobs s LEFT JOIN jobs j ON j.id = s.job_id LEFT JOIN trials t ON t.id = j.trial_id
               WHERE s.settled_at IS NULL AND s.due_at <= $1 AND s.region = $3 ORDER BY s.due_at LIMIT $2"#,
            now,
            limit,
            region,
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let kind = JobKind::parse(&row.kind)
                    .ok_or_else(|| StoreError::corrupt("orphaned_jobs", &row.job_name, "kind"))?;
                let owner = || {
                    Some(OrphanOwner {
                        account: Account {
                            job_id: JobId(row.job_id?),
                            project_id: ProjectId(row.project_id?),
                            experiment_id: ExperimentId(row.experiment_id?),
                            trial_id: TrialId(row.trial_id?),
                            price_id: PriceId(row.price_id?),
                        },
                        kind,
                        instance_type: row.instance_type.clone()?,
                        region: row.region.clone()?,
                        volume_gb: u32::try_from(row.volume_gb?).ok()?,
                        instance_count: u32::try_from(row.instance_count?).ok()?,
                        usd_per_hour: Usd(row.usd_per_hour?),
                    })
                };
                // An orphan of an unknown attempt has no owner. For any other, all columns must be
                // known, or the job would be billed as zero.
                let owner = match (row.job_id, owner()) {
                    (Some(id), None) => {
                        return Err(StoreError::corrupt("jobs", id, "trial_id"));
                    }
                    (_, owner) => owner,
                };
                let longest = row.billed_seconds_max.filter(|_| kind.is_limited());
                let longest = longest.map(u64::try_from);
                let facts = OrphanFacts {
                    found_at: row.found_at,
                    started_at: row.started_at,
                    last_seen_at: row.last_seen_at,
                    longest_billed_seconds: longest.and_then(Result::ok).unwrap_or(u64::MAX),
                    estimated_seconds: row
                        .estimated_seconds
                        .map(|seconds| seconds.max(0).unsigned_abs()),
                };
                Ok(Orphan {
                    kind,
                    job_name: row.job_name,
                    facts,
                    owner,
                })
            })
            .collect()
    }

    /// Records that AWS has not accepted the stop of an orphaned job: an alarm to its experiment if that is definite,
    /// or has gone on for an hour, once.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_orphan_refusal(
        &self,
        orphan: &Orphan,
        refusal: StopRefusal<'_>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        let is_news = sqlx::query_scalar!(
            r#"UPDATE orphaned_jobs s
               SET stop_refused_at = coalesce(s.stop_refused_at, $2),
                   stop_refusal_told_at = CASE WHEN was.is_to_be_told THEN $2 ELSE s.stop_refusal_told_at END
               FROM (SELECT stop_refusal_told_at IS NULL AND ($3 OR stop_refused_at <= $2::timestamptz - interval '1 hour') AS is_to_be_told
                     FROM orphaned_jobs WHERE job_name = $1 FOR NO KEY UPDATE) was
               WHERE s.job_name = $1 AND s.settled_at IS NULL RETURNING coalesce(was.is_to_be_told, false) AS "is_news!""#,
            orphan.job_name,
            now,
            refusal.is_definite,
        )
        .fetch_optional(&mut *tx)
        .await?;
        // Nobody is charged for one without an owner: its alarm was raised when it was found.
        let owner = orphan.owner.as_ref().filter(|_| is_news == Some(true));
        let told = owner.map(|owner| {
            EventSubject::from(&owner.account).told(Event::TrialStopRefused {
                job_name: orphan.job_name.clone(),
                reason: refusal.why.to_owned(),
            })
        });
        events::commit(tx, told.as_slice(), now).await
    }

    /// Schedules the next poll of an orphaned job.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn postpone_orphan(
        &self,
        job_name: &str,
        last_seen_at: DateTime<Utc>,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE orphaned_jobs SET due_at = $3, last_seen_at = $2 WHERE job_name = $1 AND settled_at IS NULL",
            job_name,
            last_seen_at,
            at,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Books the cost of an orphaned job beyond what is already booked, on behalf of a term. It was
    /// never reserved, so exceeding the budget pauses the experiment.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn settle_orphan(
        &self,
        term: &Term,
        orphan: &Orphan,
        bill: OrphanBill,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let billing = bill.billing;
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            if !leases::still_holds(&mut tx, term).await? {
                return Ok(());
            }
            // Read the booked seconds under the lock that guards their change.
            let settled = sqlx::query!(
                r#"WITH held AS (SELECT job_name, billed_seconds FROM orphaned_jobs WHERE job_name = $1 AND settled_at IS NULL
                                 FOR NO KEY UPDATE)
                   UPDATE orphaned_jobs s SET settled_at = $2, due_at = NULL,
                          billed_seconds = CASE WHEN s.job_id IS NULL THEN s.billed_seconds ELSE greatest(s.billed_seconds, $3) END,
                          settlements = s.settlements + 1
                   FROM held WHERE s.job_name = held.job_name
                   RETURNING s.settlements - 1 AS "before!", held.billed_seconds,
                             coalesce((SELECT billing_estimated FROM jobs j WHERE j.id = s.job_id), false) AS "is_estimated!""#,
                orphan.job_name,
                now,
                i64::try_from(billing.seconds).unwrap_or(i64::MAX),
            )
            .fetch_optional(&mut *tx)
            .await?;
            if let (Some(owner), Some(settled)) = (&orphan.owner, settled) {
                let booked = settled.billed_seconds.max(0).unsigned_abs();
                if settled.is_estimated && !billing.estimated {
                    if billing.seconds < booked {
                        return give_back(tx, owner, bill, now).await;
                    }
                    clear_estimate(&mut tx, owner.account.job_id).await?;
                }
                let beyond = Billing {
                    seconds: billing.seconds.saturating_sub(booked),
                    ..billing
                };
                book(&mut tx, owner, settled.before, beyond, now).await?;
                budget::pause_when_overdrawn(
                    &mut tx,
                    owner.account.experiment_id,
                    &orphan.job_name,
                )
                .await?;
            }
            tx.commit().await?;
            Ok(())
        };
        retried(transaction).await
    }
}

/// An attempt that was estimated too high.
async fn give_back(
    mut tx: Transaction<'_, Postgres>,
    owner: &OrphanOwner,
    bill: OrphanBill,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let told = CorrectedBill {
        project: owner.account.project_id,
        attempt: owner.account.job_id,
        billable_seconds: bill.billing.seconds,
        training_seconds: bill.training_seconds,
        reason: "SageMaker told what it bills only later; until then it was estimated",
    };
    let corrected = bill_anew(&mut tx, told, now).await?;
    let events: Vec<NewEvent> = corrected.into_iter().map(|(_, event)| event).collect();
    events::commit(tx, &events, now).await
}

/// Marks what is booked for an attempt as reported by SageMaker.
async fn clear_estimate(tx: &mut PgConnection, job: JobId) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE jobs SET billing_estimated = false WHERE id = $1",
        job.0
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn book(
    tx: &mut PgConnection,
    owner: &OrphanOwner,
    settlement: i32,
    billing: Billing,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let Billing { seconds, estimated } = billing;
    let account = &owner.account;
    let usage = Usage {
        kind: owner.kind,
        instance_type: owner.instance_type.clone(),
        region: owner.region.clone(),
        count: owner.instance_count,
        // Only the duration is known here, not when the job ran; it ended recently.
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
        resource: EntryResource::OrphanedJob,
        settlement,
        usage: &usage,
        agreed,
        held: None,
        estimated,
    };
    bill::settle(tx, account, billed, now).await.map(drop)
}
