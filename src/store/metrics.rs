//! Samples and rollups: which attempts are due for a read, and writing what was read with the cursor in one transaction.

use bakeoff_domain::cost;
use bakeoff_domain::ids::{AttemptId, ExperimentId, PriceId, ProjectId, TrialId};
use bakeoff_domain::metric::MetricDefinition;
use bakeoff_domain::money::Usd;
use bakeoff_domain::steady::{BUCKET_SECONDS, Bucket};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::error::from_json;
use super::ledger::{self, Account, Entry};
use super::{Store, StoreError, budget};

/// An attempt whose metrics are to be read.
#[derive(Debug, Clone)]
pub struct MetricsDue {
    pub account: Account,
    pub job_name: String,
    pub instance_type: String,
    pub instance_count: u32,
    /// The script's own metrics.
    pub metrics: Vec<MetricDefinition>,
    pub reserved_metrics_usd: Usd,
    pub cursor: Option<DateTime<Utc>>,
    pub started_at: Option<DateTime<Utc>>,
    /// Set when the attempt is over: this is its last read.
    pub settled_end_at: Option<DateTime<Utc>>,
}

/// A point that was read, already normalised.
#[derive(Debug, Clone)]
pub struct Point {
    pub trial_id: TrialId,
    pub metric: String,
    pub at: DateTime<Utc>,
    pub value: f64,
}

/// What becomes of an attempt after a read.
#[derive(Debug, Clone)]
pub struct Progress {
    pub due: MetricsDue,
    pub cursor: DateTime<Utc>,
    /// `None` after the last read.
    pub next_at: Option<DateTime<Utc>>,
    pub requested: i64,
}

impl Store {
    /// Takes attempts whose metrics are due; another reader finds them again only after `hold`, should we die.
    pub async fn claim_due_metrics(
        &self,
        now: DateTime<Utc>,
        hold: TimeDelta,
        limit: i64,
    ) -> Result<Vec<MetricsDue>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                   SELECT id FROM attempts WHERE metrics_due_at <= $1 ORDER BY metrics_due_at LIMIT $3
                   FOR UPDATE SKIP LOCKED)
               UPDATE attempts a SET metrics_due_at = $2
               FROM trials t
               WHERE a.id = ANY (ARRAY(SELECT id FROM due)) AND t.id = a.trial_id
               RETURNING a.id, a.project_id, a.experiment_id, a.trial_id, a.price_id, a.job_name, t.instance_type,
                         t.instance_count, t.plan->'request'->'metrics' AS "metrics!",
                         a.reserved_metrics_usd, a.metrics_cursor, a.started_at,
                         CASE WHEN a.settled_at IS NOT NULL THEN a.ended_at END AS settled_end_at"#,
            now,
            now + hold,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                Ok(MetricsDue {
                    account: Account {
                        project_id: ProjectId(row.project_id),
                        experiment_id: ExperimentId(row.experiment_id),
                        trial_id: TrialId(row.trial_id),
                        attempt_id: AttemptId(row.id),
                        price_id: PriceId(row.price_id),
                    },
                    job_name: row.job_name,
                    instance_type: row.instance_type,
                    instance_count: u32::try_from(row.instance_count).unwrap_or(1),
                    metrics: from_json(row.metrics, "trials", row.trial_id, "plan")?,
                    reserved_metrics_usd: Usd(row.reserved_metrics_usd),
                    cursor: row.metrics_cursor,
                    started_at: row.started_at,
                    settled_end_at: row.settled_end_at,
                })
            })
            .collect()
    }

    /// Samples by their natural key, the rollups they touch, cursors and costs: all or nothing.
    pub async fn record_metrics(
        &self,
        points: &[Point],
        progress: &[Progress],
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        upsert_samples(&mut tx, points).await?;
        roll_up(&mut tx, points).await?;
        for step in progress {
            let written = sqlx::query_scalar!(
                r#"UPDATE attempts
                   SET metrics_cursor = greatest(metrics_cursor, $2), metrics_due_at = $3,
                       metrics_requested = metrics_requested + $4
                   WHERE id = $1 AND metrics_due_at IS NOT NULL
                   RETURNING metrics_requested"#,
                step.due.account.attempt_id.0,
                step.cursor,
                step.next_at,
                step.requested,
            )
            .fetch_optional(&mut *tx)
            .await?;
            // No row: another reader was faster and has settled it.
            if let (Some(requested), None) = (written, step.next_at) {
                settle(&mut tx, &step.due.account, step.due.reserved_metrics_usd, requested, now).await?;
            }
        }
        tx.commit().await?;
        Ok(())
    }

    /// Rollups of some metrics for all trials of an experiment, oldest first.
    pub async fn rollups_of(
        &self,
        experiment: ExperimentId,
        metrics: &[String],
    ) -> Result<Vec<(TrialId, String, Bucket)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT r.trial_id, r.metric, r.start_at, r.points, r.mean, r.min, r.max, r.last
               FROM rollups r JOIN trials t ON t.id = r.trial_id
               WHERE t.experiment_id = $1 AND r.metric = ANY($2)
               ORDER BY r.trial_id, r.metric, r.start_at"#,
            experiment.0,
            metrics,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let bucket = bucket((row.start_at, row.points), row.mean, (row.min, row.max), row.last);
                (TrialId(row.trial_id), row.metric, bucket)
            })
            .collect())
    }

    /// One metric of one trial: its rollups.
    pub async fn trial_rollups(&self, trial: TrialId, metric: &str) -> Result<Vec<Bucket>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT start_at, points, mean, min, max, last FROM rollups
               WHERE trial_id = $1 AND metric = $2 ORDER BY start_at"#,
            trial.0,
            metric,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| bucket((row.start_at, row.points), row.mean, (row.min, row.max), row.last))
            .collect())
    }
}

fn bucket((start_at, points): (DateTime<Utc>, i32), mean: f64, (min, max): (f64, f64), last: f64) -> Bucket {
    Bucket { start_at, points: u32::try_from(points).unwrap_or_default(), mean, min, max, last }
}

async fn upsert_samples(tx: &mut PgConnection, points: &[Point]) -> Result<(), StoreError> {
    sqlx::query!(
        r#"INSERT INTO samples (trial_id, metric, sampled_at, value)
           SELECT DISTINCT ON (trial_id, metric, sampled_at) trial_id, metric, sampled_at, value
           FROM UNNEST($1::uuid[], $2::text[], $3::timestamptz[], $4::double precision[])
                AS t(trial_id, metric, sampled_at, value)
           ON CONFLICT (trial_id, metric, sampled_at) DO UPDATE SET value = excluded.value
           WHERE samples.value IS DISTINCT FROM excluded.value"#,
        &points.iter().map(|point| point.trial_id.0).collect::<Vec<_>>(),
        &points.iter().map(|point| point.metric.clone()).collect::<Vec<_>>(),
        &points.iter().map(|point| point.at).collect::<Vec<_>>(),
        &points.iter().map(|point| point.value).collect::<Vec<_>>(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

fn bucket_start(at: DateTime<Utc>) -> DateTime<Utc> {
    let start = at.timestamp().div_euclid(BUCKET_SECONDS) * BUCKET_SECONDS;
    DateTime::from_timestamp(start, 0).unwrap_or(at)
}

/// Computes the touched buckets anew from their samples: late and repeated points come out right.
async fn roll_up(tx: &mut PgConnection, points: &[Point]) -> Result<(), StoreError> {
    let mut touched: Vec<(Uuid, &str, DateTime<Utc>)> =
        points.iter().map(|point| (point.trial_id.0, point.metric.as_str(), bucket_start(point.at))).collect();
    touched.sort_unstable();
    touched.dedup();
    sqlx::query!(
        r#"INSERT INTO rollups (trial_id, metric, start_at, points, mean, min, max, last)
           SELECT b.trial_id, b.metric, b.start_at, count(*)::integer, avg(s.value), min(s.value), max(s.value),
                  (array_agg(s.value ORDER BY s.sampled_at DESC))[1]
           FROM UNNEST($1::uuid[], $2::text[], $3::timestamptz[]) AS b(trial_id, metric, start_at)
           JOIN samples s ON s.trial_id = b.trial_id AND s.metric = b.metric
                AND s.sampled_at >= b.start_at AND s.sampled_at < b.start_at + $4::interval
           GROUP BY b.trial_id, b.metric, b.start_at
           ON CONFLICT (trial_id, metric, start_at) DO UPDATE
           SET points = excluded.points, mean = excluded.mean, min = excluded.min, max = excluded.max,
               last = excluded.last"#,
        &touched.iter().map(|(trial, ..)| *trial).collect::<Vec<_>>(),
        &touched.iter().map(|(_, metric, _)| (*metric).to_owned()).collect::<Vec<_>>(),
        &touched.iter().map(|(.., start)| *start).collect::<Vec<_>>(),
        super::trials::interval(std::time::Duration::from_secs(BUCKET_SECONDS.unsigned_abs())),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Books what reading an attempt's metrics cost, and gives the reservation back.
pub(super) async fn settle(
    tx: &mut PgConnection,
    account: &Account,
    reserved: Usd,
    requested: i64,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let usd = cost::metrics(u64::try_from(requested).unwrap_or_default());
    let settled = Entry {
        kind: "settled",
        component: "cloudwatch",
        usd,
        quantity: requested,
        unit: "metrics_requested",
        estimated: false,
    };
    budget::settle(tx, account.experiment_id, account.project_id, reserved, usd).await?;
    ledger::write(tx, account, &Entry::worst_case("released", "cloudwatch", reserved), now).await?;
    ledger::write(tx, account, &settled, now).await
}
