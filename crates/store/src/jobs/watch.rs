//! Applies what AWS listings and events report: statuses for display, and trials that become due.
//! Orphaned jobs are in [`crate::jobs::orphans`].

use bakeoff_domain::event::{Event, StatusNews};
use bakeoff_domain::ids::{ExperimentId, JobId, ProjectId, TrialId};
use bakeoff_domain::lifecycle::watch::{Change, PoolNotice, StoredAttempt, Unaccounted};
use bakeoff_domain::sagemaker::kind::JobKind;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use crate::events::{self, EventSubject, NewEvent};
use crate::leases::{self, Term};
use crate::{Store, StoreError, retried};
use bakeoff_process::crash;

/// When an attempt's billing began.
#[derive(Debug, Clone, Copy)]
pub struct BillingStart {
    pub attempt: JobId,
    pub at: DateTime<Utc>,
}

impl Store {
    /// Stored state of a region's running attempts (only of the given job names, if any).
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn running_attempts(
        &self,
        region: &str,
        job_names: Option<&[String]>,
    ) -> Result<Vec<StoredAttempt>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT j.id, j.trial_id AS "trial_id!", j.job_name, j.secondary_status, j.modified_at,
                      j.started_at IS NOT NULL AS "has_started!", t.purchase_option = 'spot' AS "is_spot!",
                      j.running_at AS "running_at!", j.is_compared
               FROM jobs j JOIN trials t ON t.id = j.trial_id
               WHERE j.state = 'running' AND j.running_at IS NOT NULL AND j.region = $2
                 AND ($1::text[] IS NULL OR j.job_name = ANY($1))"#,
            job_names,
            region,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| StoredAttempt {
                attempt: JobId(row.id),
                trial: TrialId(row.trial_id),
                job_name: row.job_name,
                secondary_status: row.secondary_status,
                modified_at: row.modified_at,
                has_started: row.has_started,
                is_spot: row.is_spot,
                running_at: row.running_at,
                is_compared: row.is_compared,
            })
            .collect())
    }

    /// When the oldest job still of interest in a region was planned: jobs that run or keep a pool, and, each
    /// since the given time, jobs whose end was never reported or whose pool was settled at zero.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn oldest_watched(
        &self,
        region: &str,
        in_doubt_since: DateTime<Utc>,
        pools_in_doubt_since: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT least((SELECT min(planned_at) FROM jobs WHERE state = 'running' AND region = $3),
                            (SELECT min(j.planned_at) FROM warm_pools p JOIN jobs j ON j.id = p.job_id
                             WHERE p.due_at IS NOT NULL AND p.region = $3),
                            (SELECT min(j.planned_at) FROM warm_pools p JOIN jobs j ON j.id = p.job_id
                             WHERE p.state = 'settled' AND p.retained_seconds = 0 AND p.job_ended_at >= $2 AND p.region = $3),
                            (SELECT min(planned_at) FROM jobs
                             WHERE (state = 'never_created' OR billing_estimated) AND settled_at >= $1 AND region = $3))"#,
            in_doubt_since,
            pools_in_doubt_since,
            region,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Kinds of job beside training that are of interest to a listing of a region: those that run, and those whose
    /// end was not reported since the given time.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn watched_kinds(
        &self,
        region: &str,
        in_doubt_since: DateTime<Utc>,
    ) -> Result<Vec<JobKind>, StoreError> {
        let kinds: Vec<String> = sqlx::query_scalar!(
            r#"SELECT kind AS "kind!" FROM jobs WHERE state = 'running' AND region = $1 AND kind <> 'training'
               UNION
               SELECT kind FROM jobs WHERE (state = 'never_created' OR billing_estimated) AND settled_at >= $2 AND region = $1
                                       AND kind <> 'training'"#,
            region,
            in_doubt_since,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(kinds
            .iter()
            .filter_map(|kind| JobKind::parse(kind))
            .collect())
    }

    /// Writes new statuses and makes trials due, on behalf of a term; false when the term is over.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn notice(
        &self,
        term: &Term,
        changed: &[Change],
        look: &[TrialId],
        now: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            if !leases::still_holds(&mut tx, term).await? {
                return Ok(false);
            }
            let events = write_notices(&mut tx, changed, look, now).await?;
            crash::point("in_listing");
            events::commit(tx, &events, now).await?;
            Ok(true)
        };
        retried(transaction).await
    }

    /// Like `notice`, for an event pushed by AWS, which may also report when billing began.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn notice_event(
        &self,
        change: Option<&Change>,
        started: Option<BillingStart>,
        look: &[TrialId],
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let transaction = || async move {
            let mut tx = self.pool.begin().await?;
            if let Some(BillingStart { attempt, at }) = started {
                sqlx::query!(
                    "UPDATE jobs SET started_at = $2 WHERE id = $1 AND state = 'running' AND started_at IS NULL",
                    attempt.0,
                    at,
                )
                .execute(&mut *tx)
                .await?;
            }
            let changed = change.map(std::slice::from_ref).unwrap_or_default();
            let events = write_notices(&mut tx, changed, look, now).await?;
            events::commit(tx, &events, now).await
        };
        retried(transaction).await
    }

    /// Makes all running trials of a region due: the fallback when AWS does not list jobs is to poll each one.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn look_at_all_running(
        &self,
        region: &str,
        now: DateTime<Utc>,
    ) -> Result<u64, StoreError> {
        let woken = sqlx::query!(
            r#"WITH woken AS (SELECT id FROM trials WHERE state = 'running' AND due_at > $1 AND region = $2
                              ORDER BY id FOR NO KEY UPDATE)
               UPDATE trials t SET due_at = $1 FROM woken WHERE t.id = woken.id"#,
            now,
            region,
        );
        Ok(woken.execute(&self.pool).await?.rows_affected())
    }

    /// Handles a clock that was stepped back: work that was due soon would now wait longer by the
    /// whole step, including stops requested by people. Everything becomes due now; being early
    /// only costs a poll. Quarantines alone keep their full duration, from now.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn clock_stepped_back(
        &self,
        now: DateTime<Utc>,
        quarantine: TimeDelta,
    ) -> Result<u64, StoreError> {
        let woken = sqlx::query!(
            r#"WITH woken AS (SELECT id FROM trials WHERE due_at > $1
                                AND state IN ('queued', 'submitting', 'parked', 'running', 'stopping')
                                AND (released_at IS NOT NULL OR stop_requested_at IS NOT NULL)
                              ORDER BY id FOR NO KEY UPDATE)
               UPDATE trials t SET due_at = $1 FROM woken WHERE t.id = woken.id"#,
            now,
        );
        let woken = woken.execute(&self.pool).await?.rows_affected();
        sqlx::query!("UPDATE warm_pools SET due_at = $1 WHERE due_at > $1", now)
            .execute(&self.pool)
            .await?;
        sqlx::query!(
            "UPDATE experiments SET race_due_at = $1 WHERE state = 'running' AND race_due_at > $1",
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            r#"WITH waiting AS (SELECT id FROM webhook_deliveries WHERE due_at > $1 ORDER BY id FOR NO KEY UPDATE)
               UPDATE webhook_deliveries d SET due_at = $1 FROM waiting WHERE d.id = waiting.id"#,
            now
        )
        .execute(&self.pool)
        .await?;
        self.wake_others(now).await?;
        sqlx::query!(
            "UPDATE orphaned_jobs SET due_at = $1 WHERE settled_at IS NULL AND due_at > $1",
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            "UPDATE quotas SET held_until = $1 WHERE held_until > $1",
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            "UPDATE repricing_failures SET retry_at = $1 WHERE retry_at > $1",
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            r#"WITH waiting AS (SELECT id FROM jobs WHERE metrics_due_at > $1 OR checkpoint_due_at > $1 OR quarantine_until > $2
                                ORDER BY id FOR NO KEY UPDATE)
               UPDATE jobs j
               SET metrics_due_at = CASE WHEN metrics_due_at > $1 THEN $1 ELSE metrics_due_at END,
                   checkpoint_due_at = CASE WHEN checkpoint_due_at > $1 THEN $1 ELSE checkpoint_due_at END,
                   quarantine_until = CASE WHEN quarantine_until > $2 THEN $2 ELSE quarantine_until END
               FROM waiting WHERE j.id = waiting.id"#,
            now,
            now + quarantine,
        )
        .execute(&self.pool)
        .await?;
        Ok(woken)
    }

    /// Makes everything else that waits due now. Rows count their claims, so an older claim writes nothing. A post-mortem
    /// is written only once, and keeps its number of tries.
    async fn wake_others(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        sqlx::query!(
            r#"WITH waiting AS (SELECT id FROM pipelines WHERE due_at > $1 ORDER BY id FOR NO KEY UPDATE)
               UPDATE pipelines p SET due_at = $1 FROM waiting WHERE p.id = waiting.id"#,
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            r#"WITH waiting AS (SELECT id FROM endpoints WHERE due_at > $1 ORDER BY id FOR NO KEY UPDATE)
               UPDATE endpoints e SET due_at = $1 FROM waiting WHERE e.id = waiting.id"#,
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            r#"WITH waiting AS (SELECT id FROM model_packages WHERE due_at > $1 ORDER BY id FOR NO KEY UPDATE)
               UPDATE model_packages p SET due_at = $1 FROM waiting WHERE p.id = waiting.id"#,
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            r#"WITH waiting AS (SELECT job_id FROM post_mortems WHERE due_at > $1 ORDER BY job_id FOR NO KEY UPDATE)
               UPDATE post_mortems p SET due_at = $1, tries = greatest(tries - 1, 0) FROM waiting WHERE p.job_id = waiting.job_id"#,
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            r#"WITH waiting AS (SELECT run_id FROM ci_statuses WHERE due_at IS NOT NULL AND (due_at > $1 OR held_until > $1)
                                ORDER BY run_id FOR NO KEY UPDATE)
               UPDATE ci_statuses s
               SET due_at = least(due_at, $1), held_until = CASE WHEN held_until > $1 THEN $1 ELSE held_until END
               FROM waiting WHERE s.run_id = waiting.run_id"#,
            now
        )
        .execute(&self.pool)
        .await?;
        sqlx::query!(
            r#"WITH waiting AS (SELECT id FROM ci_unmeasured WHERE due_at IS NOT NULL AND (due_at > $1 OR held_until > $1)
                                ORDER BY id FOR NO KEY UPDATE)
               UPDATE ci_unmeasured u
               SET due_at = least(due_at, $1), held_until = CASE WHEN held_until > $1 THEN $1 ELSE held_until END
               FROM waiting WHERE u.id = waiting.id"#,
            now
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Of the given jobs, those that no living attempt stands for and that are not tracked yet. Of
    /// the jobs that are over, only those without a known bill: they have no row, or a row that
    /// says there was no job, or only an estimate.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn without_living_attempt(
        &self,
        mut jobs: Vec<Unaccounted>,
    ) -> Result<Vec<Unaccounted>, StoreError> {
        let names: Vec<String> = jobs.iter().map(|job| job.job_name.clone()).collect();
        let over: Vec<bool> = jobs.iter().map(|job| job.is_over).collect();
        let rows = sqlx::query_scalar!(
            r#"SELECT t.name AS "name!" FROM UNNEST($1::text[], $2::boolean[]) AS t(name, is_over)
               LEFT JOIN jobs j ON j.job_name = t.name
               WHERE (j.id IS NULL OR j.settled_at IS NOT NULL)
                 AND (j.id IS NULL OR j.state = 'never_created' OR j.billing_estimated
                      -- What SageMaker has called over never runs again, whatever a page shows of it.
                      OR (NOT t.is_over AND (j.kind = 'endpoint' OR j.job_status IS NULL
                                             OR j.job_status NOT IN ('Completed', 'Failed', 'Stopped', 'Deleting'))))
                 AND NOT EXISTS (SELECT FROM orphaned_jobs s WHERE s.job_name = t.name
                                 AND (s.job_id IS NOT NULL OR s.settlements > 3)
                                 AND (s.settled_at IS NULL OR t.is_over))"#,
            &names,
            &over,
        )
        .fetch_all(&self.pool)
        .await?;
        jobs.retain(|job| rows.contains(&job.job_name));
        Ok(jobs)
    }

    /// Applies what a listing reports about warm pools: pools that we track become due. Returns the
    /// other pools left by jobs without a living attempt, which are idle or cost more than is
    /// booked.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn notice_pools(
        &self,
        told: &[PoolNotice],
        now: DateTime<Utc>,
    ) -> Result<Vec<String>, StoreError> {
        let names: Vec<String> = told.iter().map(|pool| pool.job_name.clone()).collect();
        let idle: Vec<bool> = told.iter().map(|pool| pool.is_idle).collect();
        let retained: Vec<i64> = told
            .iter()
            .map(|pool| i64::try_from(pool.retained_seconds).unwrap_or(i64::MAX))
            .collect();
        sqlx::query!(
            "UPDATE warm_pools SET due_at = $2 WHERE job_name = ANY($1) AND due_at > $2",
            &names,
            now,
        )
        .execute(&self.pool)
        .await?;
        Ok(sqlx::query_scalar!(
            r#"SELECT t.name AS "name!" FROM UNNEST($1::text[], $2::boolean[], $3::bigint[]) AS t(name, is_idle, retained)
               LEFT JOIN jobs j ON j.job_name = t.name LEFT JOIN warm_pools p ON p.job_id = j.id
               WHERE (j.id IS NULL OR j.settled_at IS NOT NULL) AND (p.state IS NULL OR p.state = 'settled')
                 AND (t.is_idle OR (j.id IS NOT NULL AND t.retained > coalesce(p.retained_seconds, 0)))"#,
            &names,
            &idle,
            &retained,
        )
        .fetch_all(&self.pool)
        .await?)
    }
}

/// The usual lock order: attempts, then trials. Returns the events to commit them with.
async fn write_notices(
    tx: &mut PgConnection,
    changed: &[Change],
    look: &[TrialId],
    now: DateTime<Utc>,
) -> Result<Vec<NewEvent>, StoreError> {
    // Only forwards: a page or an event may be older than a status observed meanwhile. Locked in
    // the same order as by the metrics reader.
    let written = sqlx::query!(
        r#"WITH held AS (SELECT id FROM jobs WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE)
           UPDATE jobs j
           SET job_status = n.status, secondary_status = n.secondary, modified_at = coalesce(n.modified_at, j.modified_at)
           FROM UNNEST($1::uuid[], $2::text[], $3::text[], $4::timestamptz[]) AS n(job_id, status, secondary, modified_at),
                trials t
           WHERE j.id = n.job_id AND t.id = j.trial_id AND j.id IN (SELECT id FROM held) AND j.state = 'running'
             AND (j.modified_at IS NULL OR n.modified_at IS NULL OR n.modified_at >= j.modified_at)
             AND j.secondary_status IS DISTINCT FROM n.secondary
           RETURNING j.project_id, j.experiment_id AS "experiment_id!", j.trial_id AS "trial_id!", j.number AS "number!",
                     j.job_status AS "job_status!", j.secondary_status AS "secondary_status!""#,
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
                   ORDER BY id FOR NO KEY UPDATE)
               UPDATE trials t SET due_at = $2 FROM woken WHERE t.id = woken.id"#,
            &look.iter().map(|trial| trial.0).collect::<Vec<_>>(),
            now,
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("SELECT pg_notify('bakeoff_wake', '')")
            .execute(&mut *tx)
            .await?;
    }
    let events = written.into_iter().map(|row| {
        let subject = EventSubject {
            project: ProjectId(row.project_id),
            experiment: ExperimentId(row.experiment_id),
            trial: Some(TrialId(row.trial_id)),
        };
        subject.told(Event::TrialStatus(StatusNews {
            attempt: u32::try_from(row.number).unwrap_or(u32::MAX),
            status: row.job_status,
            secondary_status: row.secondary_status,
        }))
    });
    Ok(events.collect())
}
