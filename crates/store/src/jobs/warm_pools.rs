//! Warm pools: reserved with their attempt, retained when the job ends, settled when SageMaker
//! reports how long they were kept. Like a trial, a pool is processed under its own lease;
//! [`bakeoff_domain::lifecycle::pool`] decides.

use bakeoff_domain::event::{Charge, Event, OverReservation, SettledPool};
use bakeoff_domain::ids::{ExperimentId, JobId, PriceId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::failure::FailureClass;
use bakeoff_domain::lifecycle::pool;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::bill::{Agreed, Line, Usage, lines};
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind, EntryResource};
use bakeoff_domain::money::price::Component;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::{Billing, ObservedJob};
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, TimeDelta, Utc};
use rust_decimal::Decimal;
use sqlx::PgConnection;

use crate::account::Account;
use crate::events::{self, EventSubject};
use crate::jobs::attempts::Applied;
use crate::leases::{self, Holder, Term};
use crate::money::bill::{self, Billed};
use crate::money::budget::{self, Booking};
use crate::money::corrections;
use crate::money::ledger::{self, Entry};
use crate::money::prices::{self, PricesOf};
use crate::money::repricing::{self, Correction};
use crate::money::settled::CostPart;
use crate::session::interval;
use crate::{Store, StoreError, error, retried};

const TABLE: &str = "warm_pools";

/// A warm pool claimed by one replica.
#[derive(Debug, Clone)]
pub struct ClaimedPool {
    pub account: Account,
    pub job_name: String,
    pub keep_alive_seconds: u32,
    pub job_ended_at: DateTime<Utc>,
    /// Whether the job itself has been settled.
    pub is_job_settled: bool,
    /// Whether a matching trial waits and a budget covers the pool's cost meanwhile.
    pub is_wanted: bool,
    /// Consecutive observations without a pool.
    pub absent: u32,
    /// Seconds already booked, for a pool that was found again after its settlement.
    booked_seconds: Option<u64>,
    instance_type: String,
    region: String,
    volume_gb: u32,
    instance_count: u32,
    usd_per_hour: Usd,
    reserved_usd: Usd,
    lease_token: i64,
}

impl ClaimedPool {
    /// The billed usage if the pool was kept for `seconds`.
    fn kept(&self, seconds: u64) -> Usage {
        Usage {
            kind: JobKind::Training,
            instance_type: self.instance_type.clone(),
            region: self.region.clone(),
            count: self.instance_count,
            from: self.job_ended_at,
            until: self.job_ended_at
                + TimeDelta::seconds(u32::try_from(seconds).unwrap_or(u32::MAX).into()),
            waits: Vec::new(),
            billed_seconds: seconds,
            run_seconds: seconds,
            volume_gb: self.volume_gb,
        }
    }

    fn agreed(&self) -> Agreed {
        Agreed {
            price_id: self.account.price_id,
            usd_per_hour: self.usd_per_hour,
            estimated: false,
        }
    }
}

/// Writes the pool that an attempt may leave behind, with its reservation (the caller takes it from
/// the budget).
pub(crate) async fn reserve(
    tx: &mut PgConnection,
    account: &Account,
    job_name: &str,
    plan: &TrialPlan,
    reserved: Usd,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    // A reservation for a pool without a row would never be released.
    let Some((request, price)) = plan.training().zip(plan.price.as_ref()) else {
        return Err(StoreError::corrupt("trials", account.trial_id, "plan"));
    };
    sqlx::query!(
        r#"INSERT INTO warm_pools (job_id, project_id, experiment_id, trial_id, job_name, instance_type, instance_count,
                                   pool_key, keep_alive_seconds, price_id, usd_per_hour, reserved_usd, state, region)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'with_job',
                   (SELECT region FROM jobs WHERE id = $1))"#,
        account.job_id.0,
        account.project_id.0,
        account.experiment_id.0,
        account.trial_id.0,
        job_name,
        plan.instance_type,
        i32::try_from(plan.instance_count).unwrap_or(i32::MAX),
        pool::match_key(request).unwrap_or_default(),
        i32::try_from(request.keep_alive_seconds.unwrap_or(0)).unwrap_or(i32::MAX),
        price.id.0,
        price.usd_per_hour.0,
        reserved.0,
    )
    .execute(&mut *tx)
    .await?;
    let (resource, component) = (EntryResource::WarmPool, EntryComponent::WarmPool);
    let entry = Entry::worst_case(EntryKind::Reserved, resource, component, reserved);
    ledger::write(tx, account, &entry, now).await
}

/// Records that an attempt's job is over, and from when a pool may exist; `None` if the job never
/// had instances.
pub(crate) async fn job_ended(
    tx: &mut PgConnection,
    account: &Account,
    ended_at: Option<DateTime<Utc>>,
    seen: Option<&ObservedJob>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if let Some(ended_at) = ended_at {
        let reason = seen.and_then(|job| job.failure_reason.as_deref());
        let class = reason.map(FailureClass::of);
        sqlx::query!(
            r#"UPDATE warm_pools SET state = 'retained', job_ended_at = $2, due_at = $3, is_defective = $4
               WHERE job_id = $1 AND state = 'with_job'"#,
            account.job_id.0,
            ended_at,
            now,
            class == Some(FailureClass::Hardware),
        )
        .execute(tx)
        .await?;
        return Ok(());
    }
    let reserved: Option<Decimal> = sqlx::query_scalar!(
        r#"UPDATE warm_pools SET state = 'settled', retained_seconds = 0 WHERE job_id = $1 AND state = 'with_job'
           RETURNING reserved_usd"#,
        account.job_id.0,
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(reserved) = reserved.map(Usd) else {
        return Ok(());
    };
    budget::settle(
        tx,
        Booking {
            experiment: account.experiment_id,
            project: account.project_id,
            released: reserved,
            settled: Usd::ZERO,
        },
        now,
    )
    .await?;
    let (resource, component) = (EntryResource::WarmPool, EntryComponent::WarmPool);
    let entry = Entry::worst_case(EntryKind::Released, resource, component, reserved);
    ledger::write(tx, account, &entry, now).await
}

impl Store {
    /// Takes over the pool of a job without a living attempt, if the pool is not tracked although
    /// it may cost more than is booked: from now on it is tracked, to be ended and billed. No trial
    /// may use it, because no budget covers it. False when the pool is already tracked, everything
    /// is booked, or the term is over.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn take_over_pool(
        &self,
        term: &Term,
        attempt: JobId,
        job: &ObservedJob,
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let transaction = || async move {
            let told = job.warm_pool.as_ref();
            let mut tx = self.pool.begin().await?;
            if !leases::still_holds(&mut tx, term).await? {
                return Ok(false);
            }
            let taken = sqlx::query!(
                r#"INSERT INTO warm_pools (job_id, project_id, experiment_id, trial_id, job_name, instance_type, instance_count,
                                           pool_key, keep_alive_seconds, price_id, usd_per_hour, reserved_usd, state, job_ended_at,
                                           due_at, region)
                   SELECT j.id, j.project_id, j.experiment_id, j.trial_id, j.job_name, t.instance_type, t.instance_count,
                          coalesce(t.pool_key, ''), coalesce(t.keep_alive_seconds, $4), j.price_id, j.usd_per_hour, 0, 'found',
                          coalesce($2::timestamptz, $3), $3, j.region
                   FROM jobs j JOIN trials t ON t.id = j.trial_id
                   WHERE j.id = $1 AND j.settled_at IS NOT NULL AND $5 > 0 AND ($6 OR t.keep_alive_seconds IS NOT NULL)
                   ON CONFLICT (job_id) DO UPDATE
                   SET state = 'found', reserved_usd = 0, job_ended_at = coalesce($2, warm_pools.job_ended_at, $3), due_at = $3,
                       absent = 0
                   WHERE warm_pools.state = 'settled' AND $5 > coalesce(warm_pools.retained_seconds, 0)
                   RETURNING project_id, experiment_id, trial_id, job_name"#,
                attempt.0,
                job.ended_at,
                now,
                i32::try_from(pool::KEEP_ALIVE_SECONDS_MAX).unwrap_or(i32::MAX),
                i32::try_from(pool::may_cost_seconds(told)).unwrap_or(i32::MAX),
                told.is_some(),
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(taken) = taken else { return Ok(false) };
            let subject = EventSubject {
                project: ProjectId(taken.project_id),
                experiment: ExperimentId(taken.experiment_id),
                trial: Some(TrialId(taken.trial_id)),
            };
            let orphaned = told.filter(|pool| pool.is_idle()).map(|_| {
                let job_name = taken.job_name;
                subject.told(Event::TrialOrphanedPool { job_name })
            });
            events::commit(tx, orphaned.as_slice(), now).await?;
            Ok(true)
        };
        retried(transaction).await
    }

    /// Keeps trials from the instances that a job left behind: its log says that they are defective.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn distrust_pool(&self, job: JobId, now: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE warm_pools SET is_defective = true, due_at = $2 WHERE job_id = $1 AND state = 'retained'",
            job.0,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Claims pools of the holder's region that are due to be polled.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_pools(
        &self,
        holder: Holder<'_>,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<ClaimedPool>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT job_id FROM warm_pools
                   WHERE due_at <= $1 AND region = $5
                     AND (lease_expires_at IS NULL OR lease_expires_at < clock_timestamp())
                   ORDER BY due_at LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE warm_pools p
               SET lease_owner = $2, lease_expires_at = clock_timestamp() + $3::interval, lease_token = lease_token + 1
               WHERE p.job_id = ANY (ARRAY(SELECT job_id FROM due))
               RETURNING p.job_id, p.project_id, p.experiment_id, p.trial_id, p.price_id, p.job_name, p.instance_type,
                         p.instance_count, p.keep_alive_seconds, p.usd_per_hour, p.reserved_usd,
                         p.region,
                         (SELECT volume_gb FROM trials t WHERE t.id = p.trial_id) AS "volume_gb!",
                         p.job_ended_at AS "job_ended_at!", p.lease_token, p.absent, p.retained_seconds,
                         EXISTS (SELECT FROM jobs j WHERE j.id = p.job_id AND j.settled_at IS NOT NULL)
                             AS "is_job_settled!",
                         EXISTS (SELECT FROM trials t JOIN experiments e ON e.id = t.experiment_id
                                 WHERE t.pool_key = p.pool_key AND t.region = p.region AND t.state IN ('queued', 'submitting')
                                   AND t.stop_requested_at IS NULL AND e.state = 'running' AND e.paused_reason IS NULL
                                   AND t.released_at IS NOT NULL
                                   AND NOT EXISTS (SELECT FROM jobs q WHERE q.trial_id = t.id AND q.state = 'quarantined')
                                   AND p.state = 'retained' AND NOT p.is_defective)
                             AS "is_wanted!""#,
            now,
            holder.owner,
            interval(holder.lease),
            limit,
            holder.region,
        )
        .fetch_all(&self.pool)
        .await?;
        let pools = rows.into_iter().map(|row| {
            let id = row.job_id;
            let count = |value: i32, column| error::count(value, TABLE, id, column);
            let booked = row
                .retained_seconds
                .map(|seconds| error::count(seconds, TABLE, id, "retained_seconds"));
            Ok(ClaimedPool {
                account: Account {
                    project_id: ProjectId(row.project_id),
                    experiment_id: ExperimentId(row.experiment_id),
                    trial_id: TrialId(row.trial_id),
                    job_id: JobId(id),
                    price_id: PriceId(row.price_id),
                },
                job_name: row.job_name,
                keep_alive_seconds: count(row.keep_alive_seconds, "keep_alive_seconds")?,
                job_ended_at: row.job_ended_at,
                is_job_settled: row.is_job_settled,
                is_wanted: row.is_wanted,
                absent: count(row.absent, "absent")?,
                booked_seconds: booked.transpose()?,
                region: row.region,
                volume_gb: error::count(row.volume_gb, "trials", row.trial_id, "volume_gb")?,
                instance_type: row.instance_type,
                instance_count: count(row.instance_count, "instance_count")?,
                usd_per_hour: Usd(row.usd_per_hour),
                reserved_usd: Usd(row.reserved_usd),
                lease_token: row.lease_token,
            })
        });
        pools.collect()
    }

    /// Schedules the next poll; `is_absent`: this one found no pool.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn postpone_pool(
        &self,
        pool: &ClaimedPool,
        at: DateTime<Utc>,
        is_absent: bool,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"UPDATE warm_pools SET due_at = $3, absent = CASE WHEN $4 THEN absent + 1 ELSE 0 END, lease_owner = NULL, lease_expires_at = NULL
               WHERE job_id = $1 AND lease_token = $2 AND due_at IS NOT NULL"#,
            pool.account.job_id.0,
            pool.lease_token,
            at,
            is_absent,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Books the pool's cost and releases its reservation.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn settle_pool(
        &self,
        pool: &ClaimedPool,
        kept: Billing,
        now: DateTime<Utc>,
    ) -> Result<Applied, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            // Billed seconds stay billed: an observation without a pool takes none of them back.
            let kept = Billing {
                seconds: kept.seconds.max(pool.booked_seconds.unwrap_or(0)),
                ..kept
            };
            let seconds = i64::try_from(kept.seconds).unwrap_or(i64::MAX);
            let changed = sqlx::query!(
                r#"UPDATE warm_pools SET state = 'settled', due_at = NULL, retained_seconds = $3, lease_owner = NULL,
                          lease_expires_at = NULL
                   WHERE job_id = $1 AND lease_token = $2 AND due_at IS NOT NULL"#,
                pool.account.job_id.0,
                pool.lease_token,
                seconds,
            )
            .execute(&mut *tx)
            .await?;
            if changed.rows_affected() == 0 {
                return Ok(Applied::Stale);
            }
            let account = &pool.account;
            let usd = match pool.booked_seconds {
                None => {
                    let billed = Billed {
                        resource: EntryResource::WarmPool,
                        settlement: 0,
                        usage: &pool.kept(kept.seconds),
                        agreed: pool.agreed(),
                        held: Some(pool.reserved_usd).filter(|held| *held > Usd::ZERO),
                        estimated: kept.estimated,
                    };
                    bill::settle(&mut tx, account, billed, now).await?
                }
                Some(booked) => book_more(&mut tx, pool, booked, kept, now).await?,
            };
            let settled = Event::TrialPoolSettled(SettledPool {
                job_name: pool.job_name.clone(),
                instance_type: pool.instance_type.clone(),
                retained_seconds: kept.seconds,
                usd,
            });
            let mut events = vec![EventSubject::from(account).told(settled)];
            if pool.reserved_usd == Usd::ZERO {
                budget::pause_when_overdrawn(&mut tx, account.experiment_id, &pool.job_name)
                    .await?;
            } else if usd > pool.reserved_usd {
                let over = OverReservation {
                    charge: Charge::WarmPool,
                    job_name: pool.job_name.clone(),
                    usd,
                    reserved_usd: pool.reserved_usd,
                };
                events.push(budget::over_reservation(&mut tx, account, over).await?);
            }
            events::commit(tx, &events, now).await?;
            Ok(Applied::Done)
        };
        retried(transaction).await
    }
}

/// Books what a rediscovered pool cost beyond the seconds already booked.
async fn book_more(
    tx: &mut PgConnection,
    pool: &ClaimedPool,
    booked_seconds: u64,
    kept: Billing,
    now: DateTime<Utc>,
) -> Result<Usd, StoreError> {
    let account = &pool.account;
    bill::lock(tx, account.experiment_id).await?;
    let of = PricesOf::training(&pool.region, std::slice::from_ref(&pool.instance_type));
    let tariffs = prices::tariffs(&mut *tx, account.project_id, of).await?;
    let lines = |seconds| {
        lines(
            &pool.kept(seconds),
            &tariffs.prices,
            &tariffs.rates,
            pool.agreed(),
        )
    };
    let (booked, owed) = (lines(booked_seconds), lines(kept.seconds));
    let mut corrections = Vec::new();
    for (component, name) in [
        (Component::Training, EntryComponent::WarmPool),
        (Component::Storage, EntryComponent::Storage),
    ] {
        let of = |lines: &[Line]| -> Vec<Line> {
            let own = lines.iter().filter(|line| line.component == component);
            own.cloned().collect()
        };
        let part = CostPart {
            resource: EntryResource::WarmPool,
            component: name,
            lines: of(&owed),
            booked: of(&booked).iter().map(|line| line.usd).sum(),
        };
        corrections.extend(corrections::correction(*account, &part, now));
    }
    let total: Usd = corrections.iter().map(|correction| correction.usd).sum();
    let (experiment, project) = (account.experiment_id, account.project_id);
    budget::settle(
        tx,
        Booking {
            experiment,
            project,
            released: Usd::ZERO,
            settled: total,
        },
        now,
    )
    .await?;
    for correction in corrections {
        let correction = Correction {
            estimated: kept.estimated,
            ..correction
        };
        repricing::adjust(tx, &correction, now).await?;
    }
    Ok(total)
}
