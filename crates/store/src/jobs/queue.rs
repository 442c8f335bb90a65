//! The queue: loads waiting trials and free capacity for [`bakeoff_domain::lifecycle::queue`], and
//! claims the trials it admits.

use std::collections::BTreeMap;

use bakeoff_domain::event::{Ended, Event};
use bakeoff_domain::ids::{ExperimentId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::queue::{
    Admission, Capacity, ProjectState, QuotaPool, QuotaPoolState, Waiting,
};
use bakeoff_domain::sagemaker::quota::{Quota, Usage};
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::events::{self, EventSubject, NewEvent};
use crate::experiments::trials::{Claimed, ClaimedRow};
use crate::leases::{self, Holder, Term};
use crate::session::interval;
use crate::{Store, StoreError};
use bakeoff_process::crash;

/// Trials considered per project and quota pool in one admission.
const HEADS: i64 = 64;
/// Only one admission runs at a time, over all replicas.
const ADMISSION_LOCK: i64 = 0x6261_6b65_0001;

/// `usage` as the table `quotas` has it, and as `usage_of` in SQL makes it of a trial.
fn quota_pool(instance_type: String, usage: &str) -> Result<QuotaPool, StoreError> {
    match Usage::parse(usage) {
        Some(usage) => Ok(QuotaPool {
            instance_type,
            usage,
        }),
        None => Err(StoreError::corrupt("quotas", instance_type, "usage")),
    }
}

fn count(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

impl Store {
    /// Loads the queue of the holder's region, lets `think` decide, and claims the admitted trials, all under one
    /// lock: two replicas never admit into the same free capacity. Empty while another replica is
    /// admitting, and while a sweep must come first.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn admit(
        &self,
        holder: Holder<'_>,
        creates: usize,
        now: DateTime<Utc>,
        think: impl FnOnce(&[Waiting], Capacity) -> Admission,
    ) -> Result<Vec<Claimed>, StoreError> {
        let mut tx = self.pool.begin().await?;
        if !may_admit(&mut tx, holder.region).await? {
            return Ok(Vec::new());
        }
        let waiting = waiting(&mut tx, holder.region, now).await?;
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let capacity = capacity(&mut tx, holder.region, creates).await?;
        let admission = think(&waiting, capacity);
        // Locked in the same order as by a cancel.
        let touched = admission
            .admitted
            .iter()
            .chain(admission.parked.iter().map(|(trial, _)| trial));
        let touched: Vec<Uuid> = touched.map(|trial| trial.0).collect();
        sqlx::query!(
            "SELECT id FROM trials WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE",
            &touched
        )
        .fetch_all(&mut *tx)
        .await?;
        let mut events = Vec::new();
        for (trial, reason) in &admission.parked {
            events.extend(park(&mut tx, *trial, reason).await?);
        }
        let ids: Vec<Uuid> = admission.admitted.iter().map(|trial| trial.0).collect();
        let rows = claim(&mut tx, &ids, holder, now).await?;
        crash::point("in_admission");
        events::commit(tx, &events, now).await?;
        self.claimed(rows, now).await
    }

    /// When the next waiting trial of a region may be admitted; for the scheduler's timer.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn next_waiting(&self, region: &str) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT min(due_at) FROM trials WHERE state = 'queued' AND stop_requested_at IS NULL AND region = $1",
            region,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Writes the account's quotas in the term's region as reported by Service Quotas.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn put_quotas(
        &self,
        term: &Term,
        quotas: &[Quota],
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let mut tx = self.pool.begin().await?;
        if !leases::still_holds(&mut tx, term).await? {
            return Ok(false);
        }
        sqlx::query!(
            r#"INSERT INTO quotas (region, instance_type, usage, instances, read_at)
               SELECT $5, kind, usage, instances, $4
               FROM UNNEST($1::text[], $2::text[], $3::integer[]) AS q(kind, usage, instances)
               ON CONFLICT (region, instance_type, usage) DO UPDATE
               SET instances = excluded.instances, read_at = excluded.read_at, is_doubted = false"#,
            &quotas
                .iter()
                .map(|quota| quota.instance_type.clone())
                .collect::<Vec<_>>(),
            &quotas
                .iter()
                .map(|quota| quota.usage.as_str().to_owned())
                .collect::<Vec<_>>(),
            &quotas
                .iter()
                .map(|quota| i32::try_from(quota.instances).unwrap_or(i32::MAX))
                .collect::<Vec<_>>(),
            now,
            term.region,
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// What is known of the account's quotas for some instance types; those in doubt are left out.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn quotas_of(
        &self,
        region: &str,
        instance_types: &[String],
    ) -> Result<Vec<Quota>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT instance_type, usage, instances AS "instances!" FROM quotas
               WHERE region = $1 AND instance_type = ANY($2) AND instances IS NOT NULL AND NOT is_doubted"#,
            region,
            instance_types,
        )
        .fetch_all(&self.pool)
        .await?;
        let quotas = rows.into_iter().filter_map(|row| {
            Some(Quota {
                instance_type: row.instance_type,
                usage: Usage::parse(&row.usage)?,
                instances: count(row.instances.into()),
            })
        });
        Ok(quotas.collect())
    }

    /// Whether a person, by resuming an experiment, has indicated that a quota may have changed.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn quotas_are_doubted(&self, region: &str) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM quotas WHERE is_doubted AND region = $1) AS "doubted!""#,
            region,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Holds a quota pool after AWS refused a create because of its quota.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn hold_quota_pool(
        &self,
        region: &str,
        quota_pool: &QuotaPool,
        until: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"INSERT INTO quotas (region, instance_type, usage, refused_at, held_until) VALUES ($5, $1, $2, $4, $3)
               ON CONFLICT (region, instance_type, usage) DO UPDATE
               SET refused_at = excluded.refused_at, held_until = excluded.held_until"#,
            quota_pool.instance_type,
            quota_pool.usage.as_str(),
            until,
            now,
            region,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

/// Locks out other admissions until the transaction ends. False while another replica is admitting,
/// and while a sweep must come first.
async fn may_admit(tx: &mut PgConnection, region: &str) -> Result<bool, StoreError> {
    if leases::sweep_is_due(&mut *tx, region).await? {
        return Ok(false);
    }
    let is_ours = sqlx::query_scalar!(
        r#"SELECT pg_try_advisory_xact_lock($1) AS "ours!""#,
        ADMISSION_LOCK
    );
    Ok(is_ours.fetch_one(tx).await?)
}

/// The heads of every project's queue in every quota pool of a region, and all trials there that
/// match an idle warm pool.
async fn waiting(
    tx: &mut PgConnection,
    region: &str,
    now: DateTime<Utc>,
) -> Result<Vec<Waiting>, StoreError> {
    let rows = sqlx::query!(
        r#"WITH heads AS (
               SELECT t.id FROM (SELECT DISTINCT project_id, instance_type, purchase_option, job_kind FROM trials
                                 WHERE state = 'queued' AND stop_requested_at IS NULL) quota_pool
               CROSS JOIN LATERAL (
                   SELECT w.id FROM trials w
                   WHERE w.state = 'queued' AND w.stop_requested_at IS NULL AND w.project_id = quota_pool.project_id
                     AND w.instance_type = quota_pool.instance_type AND w.purchase_option = quota_pool.purchase_option
                     AND w.job_kind = quota_pool.job_kind AND w.due_at <= $1 AND w.region = $3
                   ORDER BY w.priority DESC, w.created_at, w.ordinal LIMIT $2) t
               UNION
               SELECT w.id FROM warm_pools p
               JOIN trials w ON w.pool_key = p.pool_key AND w.region = p.region AND w.state = 'queued'
               WHERE p.state = 'retained' AND NOT p.is_defective AND p.region = $3 AND w.stop_requested_at IS NULL
                 AND w.due_at <= $1)
           SELECT t.id, t.project_id, t.instance_type, usage_of(t.job_kind, t.purchase_option) AS "usage!",
                  coalesce(t.quota_instances, t.instance_count) AS "instance_count!", t.priority, t.created_at,
                  t.pool_key
           FROM heads JOIN trials t ON t.id = heads.id JOIN experiments e ON e.id = t.experiment_id
           WHERE e.paused_reason IS NULL AND e.state = 'running'
             -- SageMaker would give it the defective instances.
             AND NOT EXISTS (SELECT FROM warm_pools d WHERE d.pool_key = t.pool_key AND d.region = t.region
                               AND d.state = 'retained' AND d.is_defective)"#,
        now,
        HEADS,
        region,
    )
    .fetch_all(tx)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Waiting {
                trial: TrialId(row.id),
                project: ProjectId(row.project_id),
                quota_pool: quota_pool(row.instance_type, &row.usage)?,
                instances: count(row.instance_count.into()),
                priority: row.priority,
                since: row.created_at,
                pool_key: row.pool_key,
            })
        })
        .collect()
}

/// Capacity in use, by quota pool of a region and by project, and idle warm pools. What a project
/// runs counts in whatever region it runs.
async fn capacity(
    tx: &mut PgConnection,
    region: &str,
    creates: usize,
) -> Result<Capacity, StoreError> {
    let mut capacity = Capacity {
        creates,
        quota_pools: unused_quotas(tx, region).await?,
        ..Capacity::default()
    };
    let alive = sqlx::query!(
        r#"SELECT region = $1 AS "is_here!", instance_type, usage_of(job_kind, purchase_option) AS "usage!", project_id,
                  sum(coalesce(quota_instances, instance_count)) AS "instances!", count(*) AS "trials!"
           FROM trials WHERE state IN ('submitting', 'running', 'stopping')
           GROUP BY 1, instance_type, 3, project_id"#,
        region,
    );
    for row in alive.fetch_all(&mut *tx).await? {
        if row.is_here {
            let state = capacity
                .quota_pools
                .entry(quota_pool(row.instance_type, &row.usage)?)
                .or_default();
            state.in_use = state.in_use.saturating_add(count(row.instances));
        }
        capacity
            .projects
            .entry(ProjectId(row.project_id))
            .or_default()
            .running += count(row.trials);
    }
    let pools = sqlx::query!(
        "SELECT pool_key, instance_type, instance_count, is_defective FROM warm_pools WHERE state = 'retained' AND region = $1",
        region,
    );
    for row in pools.fetch_all(&mut *tx).await? {
        let instances = count(row.instance_count.into());
        let on_demand = QuotaPool {
            instance_type: row.instance_type,
            usage: Usage::OnDemand,
        };
        let state = capacity.quota_pools.entry(on_demand).or_default();
        state.in_use = state.in_use.saturating_add(instances);
        if !row.is_defective {
            capacity
                .pools
                .entry(row.pool_key)
                .or_default()
                .push(instances);
        }
    }
    limits(tx, &mut capacity.projects).await?;
    Ok(capacity)
}

/// The known quota pools of a region, with none of their instances counted as in use yet.
async fn unused_quotas(
    tx: &mut PgConnection,
    region: &str,
) -> Result<BTreeMap<QuotaPool, QuotaPoolState>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT instance_type, usage, CASE WHEN NOT is_doubted THEN instances END AS instances, held_until,
                  refused_at IS NOT NULL AS "is_doubtful!"
           FROM quotas WHERE usage <> 'warm_pool' AND region = $1"#,
        region,
    )
    .fetch_all(tx)
    .await?;
    rows.into_iter()
        .map(|row| {
            let state = QuotaPoolState {
                quota: row.instances.map(|most| count(most.into())),
                in_use: 0,
                held_until: row.held_until,
                is_doubtful: row.is_doubtful,
            };
            Ok((quota_pool(row.instance_type, &row.usage)?, state))
        })
        .collect()
}

async fn limits(
    tx: &mut PgConnection,
    projects: &mut BTreeMap<ProjectId, ProjectState>,
) -> Result<(), StoreError> {
    let rows = sqlx::query!(
        r#"SELECT id, concurrent_trials_max AS "most!" FROM projects WHERE concurrent_trials_max IS NOT NULL"#
    );
    for row in rows.fetch_all(tx).await? {
        projects
            .entry(ProjectId(row.id))
            .or_default()
            .concurrent_max = Some(count(row.most.into()));
    }
    Ok(())
}

async fn park(
    tx: &mut PgConnection,
    trial: TrialId,
    reason: &str,
) -> Result<Option<NewEvent>, StoreError> {
    let parked = sqlx::query!(
        r#"UPDATE trials SET state = 'parked', reason = $2 WHERE id = $1 AND state = 'queued'
           RETURNING project_id, experiment_id"#,
        trial.0,
        reason,
    )
    .fetch_optional(&mut *tx)
    .await?;
    let subject = parked.map(|row| EventSubject {
        project: ProjectId(row.project_id),
        experiment: ExperimentId(row.experiment_id),
        trial: Some(trial),
    });
    let ended = Ended {
        reason: reason.to_owned(),
        attempt: None,
    };
    Ok(subject.map(|subject| subject.told(Event::TrialParked(ended))))
}

async fn claim(
    tx: &mut PgConnection,
    ids: &[Uuid],
    holder: Holder<'_>,
    now: DateTime<Utc>,
) -> Result<Vec<ClaimedRow>, StoreError> {
    let rows = sqlx::query_as!(
        ClaimedRow,
        r#"UPDATE trials t SET state = 'submitting', due_at = $4, lease_owner = $2,
                  lease_expires_at = clock_timestamp() + $3::interval, lease_token = lease_token + 1
           FROM experiments e
           WHERE t.id = ANY($1) AND e.id = t.experiment_id AND t.state = 'queued'
             AND (t.lease_expires_at IS NULL OR t.lease_expires_at < clock_timestamp())
           RETURNING t.id, t.project_id, t.experiment_id, t.lease_token, t.state, t.job_kind, t.stop_requested_at, t.stop_reason,
                     t.candidate, t.instance_type, t.instance_count, t.purchase_option, t.region, t.volume_gb, t.is_price_estimated,
                     t.checkpoint_interval_seconds, t.billed_seconds_max, t.plan, e.labels AS "labels!", e.pins_image AS "pins_image!",
                     e.image_digest, t.attempts_made, t.failures, t.over_quota, t.no_capacity, t.give_up_at, t.created_at,
                     NULL::double precision AS abandoned_seconds, NULL::text AS abandoned_by"#,
        ids,
        holder.owner,
        interval(holder.lease),
        now,
    )
    .fetch_all(tx)
    .await?;
    Ok(rows)
}
