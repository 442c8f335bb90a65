//! This installation's calls to AWS, summed per hour of the domain clock, and the job-hours they
//! served.

use chrono::{DateTime, Utc};

use crate::{Store, StoreError};

/// Calls to one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    pub operation: String,
    pub calls: i64,
    /// Calls that AWS throttled.
    pub throttled: i64,
    /// Calls that ended without a definite answer.
    pub failed: i64,
    /// Metrics requested from CloudWatch, the unit that it bills.
    pub metrics: i64,
}

/// Calls to one operation in one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionTally {
    pub region: String,
    pub tally: Tally,
}

impl Store {
    /// Adds tallies of a region to an hour.
    pub async fn add_aws_calls(
        &self,
        region: &str,
        hour_at: DateTime<Utc>,
        tallies: &[Tally],
    ) -> Result<(), StoreError> {
        sqlx::query!(
            r#"INSERT INTO aws_calls AS known (hour_at, region, operation, calls, throttled, failed, metrics)
               SELECT $1, $7, operation, calls, throttled, failed, metrics
               FROM UNNEST($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
                   AS t(operation, calls, throttled, failed, metrics)
               ON CONFLICT (hour_at, region, operation) DO UPDATE
               SET calls = known.calls + excluded.calls, throttled = known.throttled + excluded.throttled,
                   failed = known.failed + excluded.failed, metrics = known.metrics + excluded.metrics"#,
            hour_at,
            &tallies.iter().map(|tally| tally.operation.clone()).collect::<Vec<_>>(),
            &tallies.iter().map(|tally| tally.calls).collect::<Vec<_>>(),
            &tallies.iter().map(|tally| tally.throttled).collect::<Vec<_>>(),
            &tallies.iter().map(|tally| tally.failed).collect::<Vec<_>>(),
            &tallies.iter().map(|tally| tally.metrics).collect::<Vec<_>>(),
            region,
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Calls since a given time (a full hour), by operation and region.
    pub async fn aws_calls_since(
        &self,
        since: DateTime<Utc>,
    ) -> Result<Vec<RegionTally>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT region, operation, sum(calls)::bigint AS "calls!", sum(throttled)::bigint AS "throttled!",
                      sum(failed)::bigint AS "failed!", sum(metrics)::bigint AS "metrics!"
               FROM aws_calls WHERE hour_at >= $1 GROUP BY region, operation ORDER BY operation, region"#,
            since,
        )
        .fetch_all(&self.pool)
        .await?;
        let counted = rows.into_iter().map(|row| RegionTally {
            region: row.region,
            tally: Tally {
                operation: row.operation,
                calls: row.calls,
                throttled: row.throttled,
                failed: row.failed,
                metrics: row.metrics,
            },
        });
        Ok(counted.collect())
    }

    /// Hours of job watching since a given time: from when a job was recorded to its end, or to
    /// now.
    pub async fn job_hours_since(
        &self,
        since: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<f64, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT coalesce(sum(extract(epoch FROM coalesce(ended_at, $2) - greatest(running_at, $1))) / 3600, 0)
                   ::double precision AS "hours!"
               FROM jobs
               WHERE running_at IS NOT NULL AND (settled_at IS NULL OR settled_at >= $1)
                 AND coalesce(ended_at, $2) > greatest(running_at, $1)"#,
            since,
            now,
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Living trials by state.
    pub async fn living_trials_by_state(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT state, count(*) AS "count!" FROM trials
               WHERE state IN ('queued', 'submitting', 'parked', 'running', 'stopping') GROUP BY state"#
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|row| (row.state, row.count)).collect())
    }
}
