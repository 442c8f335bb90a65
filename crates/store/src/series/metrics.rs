//! Metric reads from CloudWatch: which attempts are due, and writing the results together with the
//! cursor in one transaction.

use bakeoff_domain::event::{Charge, OverReservation};
use bakeoff_domain::ids::{ExperimentId, JobId, PriceId, ProjectId, TrialId};
use bakeoff_domain::measure::cloudwatch::MeteredJob;
use bakeoff_domain::measure::metric::Source;
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind, EntryResource, EntryUnit};
use bakeoff_domain::money::{Usd, cost};
use bakeoff_domain::sagemaker::observed::FinalMetric;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use crate::account::Account;
use crate::events::{self, NewEvent};
use crate::money::budget::{self, Booking};
use crate::money::ledger::{self, Entry};
use crate::series::{self, Again, Samples};
use crate::stored;
use crate::{Store, StoreError, retried};
use bakeoff_process::crash;

/// An attempt whose metrics are due.
#[derive(Debug, Clone)]
pub struct MetricsDue {
    pub account: Account,
    pub job: MeteredJob,
    pub reserved_metrics_usd: Usd,
    /// Identifies SageMaker's own series of the job.
    pub job_arn: Option<String>,
    /// Final metrics reported by SageMaker, written as points with the last read.
    pub final_metrics: Vec<FinalMetric>,
}

/// State of an attempt's reads after one read.
#[derive(Debug, Clone)]
pub struct Progress {
    pub due: MetricsDue,
    pub cursor: DateTime<Utc>,
    /// `None` after the last read.
    pub next_at: Option<DateTime<Utc>>,
}

/// Metrics requested for an attempt; a negative count takes some back.
#[derive(Debug, Clone, Copy)]
pub struct Requested {
    pub attempt: JobId,
    pub metrics: i64,
}

impl Store {
    /// Claims attempts whose metrics are due. If we crash, other readers find them again after
    /// `hold`.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn claim_due_metrics(
        &self,
        region: &str,
        now: DateTime<Utc>,
        hold: TimeDelta,
        limit: i64,
    ) -> Result<Vec<MetricsDue>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT id FROM jobs WHERE metrics_due_at <= $1 AND region = $4 ORDER BY metrics_due_at LIMIT $3
                   FOR NO KEY UPDATE SKIP LOCKED)
               UPDATE jobs j SET metrics_due_at = $2
               FROM trials t
               WHERE j.id = ANY (ARRAY(SELECT id FROM due)) AND t.id = j.trial_id
               RETURNING j.id, j.project_id, j.experiment_id AS "experiment_id!", j.trial_id AS "trial_id!",
                         j.price_id, j.job_name, t.instance_type,
                         t.instance_count, t.metrics,
                         j.reserved_metrics_usd, j.metrics_cursor, j.started_at, j.job_arn, j.final_metrics,
                         CASE WHEN j.settled_at IS NOT NULL THEN j.ended_at END AS settled_end_at"#,
            now,
            now + hold,
            limit,
            region,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                MetricsDue {
                    account: Account {
                        project_id: ProjectId(row.project_id),
                        experiment_id: ExperimentId(row.experiment_id),
                        trial_id: TrialId(row.trial_id),
                        job_id: JobId(row.id),
                        price_id: PriceId(row.price_id),
                    },
                    job: MeteredJob {
                        name: row.job_name,
                        instance_type: row.instance_type,
                        instance_count: u32::try_from(row.instance_count).unwrap_or(1),
                        // A row that cannot be read does not delay the others. Only its host
                        // metrics are read, so that its reservation is released.
                        metrics: readable(Some(row.metrics), "trials", row.trial_id, "metrics"),
                        started_at: row.started_at,
                        cursor: row.metrics_cursor,
                        ended_at: row.settled_end_at,
                    },
                    final_metrics: readable(row.final_metrics, "jobs", row.id, "final_metrics"),
                    reserved_metrics_usd: Usd(row.reserved_metrics_usd),
                    job_arn: row.job_arn,
                }
            })
            .collect())
    }

    /// Counts metrics before they are requested, because AWS bills them even if the reply is lost
    /// or we crash. Metrics that were not requested after all are taken back. False when another
    /// reader has settled some of the attempts meanwhile; those are not counted.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn count_requested(&self, requested: &[Requested]) -> Result<bool, StoreError> {
        let transaction = || async move {
            let counted = sqlx::query!(
                r#"WITH held AS (SELECT id FROM jobs WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE)
                   UPDATE jobs j SET metrics_requested = greatest(j.metrics_requested + n.requested, 0)
                   FROM UNNEST($1::uuid[], $2::bigint[]) AS n(id, requested)
                   WHERE j.id = n.id AND j.id IN (SELECT id FROM held) AND j.metrics_due_at IS NOT NULL"#,
                &requested.iter().map(|one| one.attempt.0).collect::<Vec<_>>(),
                &requested.iter().map(|one| one.metrics).collect::<Vec<_>>(),
            )
            .execute(&self.pool)
            .await?;
            Ok(usize::try_from(counted.rows_affected()) == Ok(requested.len()))
        };
        retried(transaction).await
    }

    /// Writes samples, the rollups they touch, cursors and costs: all or nothing.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn record_metrics(
        &self,
        samples: &Samples,
        progress: &[Progress],
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        // In the same lock order as a listing.
        let mut ordered: Vec<&Progress> = progress.iter().collect();
        ordered.sort_by_key(|step| step.due.account.job_id);
        let progress = &ordered;
        let transaction = || async move {
            let ids = self.series_ids(Source::Cloudwatch, &samples.named).await?;
            let mut tx = self.pool.begin().await?;
            series::merge(
                &mut tx,
                &series::sorted(&samples.points, &ids),
                Again::Replace,
                now,
            )
            .await?;
            let mut alarms = Vec::new();
            for step in progress {
                let written = sqlx::query_scalar!(
                    r#"UPDATE jobs
                       SET metrics_cursor = greatest(metrics_cursor, $2), metrics_due_at = $3,
                           final_metrics = CASE WHEN $3::timestamptz IS NOT NULL THEN final_metrics END
                       WHERE id = $1 AND metrics_due_at IS NOT NULL
                       RETURNING metrics_requested"#,
                    step.due.account.job_id.0,
                    step.cursor,
                    step.next_at,
                )
                .fetch_optional(&mut *tx)
                .await?;
                // No row: another reader was faster and has settled it.
                if let (Some(requested), None) = (written, step.next_at) {
                    let since = step.due.job.started_at;
                    let alarm = settle(
                        &mut tx,
                        &step.due.account,
                        step.due.reserved_metrics_usd,
                        requested,
                        since,
                        now,
                    )
                    .await?;
                    alarms.extend(alarm);
                }
            }
            crash::point("in_metrics");
            events::commit(tx, &alarms, now).await
        };
        retried(transaction).await
    }
}

/// Books the cost of reading an attempt's metrics since the given time, and releases the
/// reservation. Returns an alarm if it cost more.
pub(crate) async fn settle(
    tx: &mut PgConnection,
    account: &Account,
    reserved: Usd,
    requested: i64,
    since: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Result<Option<NewEvent>, StoreError> {
    let rate = sqlx::query!(
        r#"SELECT id, usd FROM prices
           WHERE component = 'cloudwatch' AND instance_type IS NULL AND effective_from <= $1
             AND region IN ((SELECT region FROM trials WHERE id = $2), '*') AND (project_id IS NULL OR project_id = $3)
           ORDER BY confirmed_at DESC, effective_from DESC LIMIT 1"#,
        now,
        account.trial_id.0,
        account.project_id.0,
    )
    .fetch_optional(&mut *tx)
    .await?;
    let requested = requested.max(0);
    let cost = cost::metrics(
        requested.unsigned_abs(),
        rate.as_ref().map(|rate| Usd(rate.usd)),
    );
    let settled = Entry {
        kind: EntryKind::Settled,
        resource: EntryResource::Job,
        component: EntryComponent::Cloudwatch,
        settlement: 0,
        line: 0,
        usd: cost,
        quantity: requested,
        unit: EntryUnit::MetricsRequested,
        estimated: false,
        used: Some((since.unwrap_or(now).min(now), now)),
    };
    budget::settle(
        tx,
        Booking {
            experiment: account.experiment_id,
            project: account.project_id,
            released: reserved,
            settled: cost,
        },
        now,
    )
    .await?;
    let (resource, component) = (settled.resource, settled.component);
    let released = Entry::worst_case(EntryKind::Released, resource, component, reserved);
    ledger::write(tx, account, &released, now).await?;
    let account = Account {
        price_id: rate.map_or(account.price_id, |rate| PriceId(rate.id)),
        ..*account
    };
    ledger::write(tx, &account, &settled, now).await?;
    if cost > reserved {
        let over = OverReservation {
            charge: Charge::Metrics,
            job_name: account.job_id.to_string(),
            usd: cost,
            reserved_usd: reserved,
        };
        return Ok(Some(budget::over_reservation(tx, &account, over).await?));
    }
    Ok(None)
}

/// Reads a list from a JSON column; an unreadable one is logged and treated as empty.
fn readable<T>(
    value: Option<serde_json::Value>,
    table: &'static str,
    id: uuid::Uuid,
    column: &'static str,
) -> Vec<T>
where
    Vec<T>: stored::Document,
{
    let Some(value) = value else {
        return Vec::new();
    };
    stored::read(value, table, id, column).unwrap_or_else(|error| {
        tracing::error!(%error, "unreadable metric settings; reading metrics without them");
        Vec::new()
    })
}
