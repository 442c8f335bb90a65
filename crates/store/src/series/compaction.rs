//! Compaction of closed series: points are packed into chunks of a thousand, which take a fifth of
//! the space. A later write expands them again first.

use bakeoff_domain::measure::rollup::Columns;
use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor};

use crate::{Store, StoreError};

const CHUNK_POINTS: i64 = 1000;

impl Store {
    /// Packs the points of series whose trial or run ended before the given time; returns the
    /// number of series.
    pub async fn compact(
        &self,
        ended_before: DateTime<Utc>,
        limit: i64,
        now: DateTime<Utc>,
    ) -> Result<usize, StoreError> {
        let mut tx = self.pool.begin().await?;
        let ids = sqlx::query_scalar!(
            r#"UPDATE series SET compacted_at = $3 WHERE id = ANY (ARRAY(
                   SELECT s.id FROM series s LEFT JOIN trials t ON t.id = s.trial_id LEFT JOIN runs r ON r.id = s.run_id
                   WHERE s.compacted_at IS NULL AND s.is_settled AND coalesce(t.ended_at, r.ended_at) < $1
                     AND coalesce(s.written_at, '-infinity') < $1
                     AND NOT EXISTS (SELECT FROM jobs j WHERE j.trial_id = s.trial_id AND j.metrics_due_at IS NOT NULL)
                   ORDER BY s.id LIMIT $2 FOR NO KEY UPDATE OF s SKIP LOCKED))
               RETURNING id"#,
            ended_before,
            limit,
            now,
        )
        .fetch_all(&mut *tx)
        .await?;
        for id in &ids {
            pack(&mut tx, *id).await?;
        }
        tx.commit().await?;
        Ok(ids.len())
    }

    /// Drops empty partitions of months before the given one; returns how many.
    pub async fn drop_empty_months(&self, before: DateTime<Utc>) -> Result<i32, StoreError> {
        let dropped = sqlx::query_scalar!(
            r#"SELECT drop_empty_samples_partitions($1) AS "dropped!""#,
            before.date_naive(),
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(dropped)
    }

    /// Deletes points (not rollups) of trials and runs that ended before the given time.
    pub async fn forget_points(&self, ended_before: DateTime<Utc>) -> Result<u64, StoreError> {
        let gone = sqlx::query!(
            r#"DELETE FROM sample_chunks c USING series s LEFT JOIN trials t ON t.id = s.trial_id
                                                          LEFT JOIN runs r ON r.id = s.run_id
               WHERE c.series_id = s.id AND c.last_at < $1 AND coalesce(t.ended_at, r.ended_at) < $1"#,
            ended_before,
        )
        .execute(&self.pool)
        .await?;
        Ok(gone.rows_affected())
    }
}

async fn pack(tx: &mut PgConnection, series: i32) -> Result<(), StoreError> {
    sqlx::query!(
        r#"INSERT INTO sample_chunks (series_id, number, first_at, last_at, sampled_at, step, value)
           SELECT $1, chunk, min(sampled_at), max(sampled_at), array_agg(sampled_at ORDER BY place),
                  CASE WHEN bool_or(step >= 0) THEN array_agg(step ORDER BY place) END, array_agg(value ORDER BY place)
           FROM (SELECT sampled_at, step, value, place, ((place - 1) / $2)::integer AS chunk
                 FROM (SELECT sampled_at, step, value, row_number() OVER (ORDER BY sampled_at, step) AS place
                       FROM samples WHERE series_id = $1) numbered) chunked
           GROUP BY chunk"#,
        series,
        CHUNK_POINTS,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!("DELETE FROM samples WHERE series_id = $1", series)
        .execute(tx)
        .await?;
    Ok(())
}

/// Turns a compacted series back into live points.
pub(crate) async fn expand(tx: &mut PgConnection, series: i32) -> Result<(), StoreError> {
    let months = sqlx::query_scalar!(
        r#"SELECT DISTINCT date_trunc('month', at AT TIME ZONE 'UTC')::date AS "month!"
           FROM sample_chunks c, UNNEST(c.sampled_at) AS at WHERE c.series_id = $1"#,
        series
    )
    .fetch_all(&mut *tx)
    .await?;
    for month in months {
        sqlx::query!("SELECT make_samples_partition($1)", month)
            .execute(&mut *tx)
            .await?;
    }
    sqlx::query!(
        r#"INSERT INTO samples (series_id, sampled_at, step, value)
           SELECT c.series_id, p.sampled_at, coalesce(p.step, -1), p.value
           FROM sample_chunks c, UNNEST(c.sampled_at, c.step, c.value) AS p(sampled_at, step, value)
           WHERE c.series_id = $1"#,
        series,
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!("DELETE FROM sample_chunks WHERE series_id = $1", series)
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        "UPDATE series SET compacted_at = NULL WHERE id = $1",
        series
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Up to a thousand points, in order. No steps when the source reports none.
#[derive(Debug)]
pub(crate) struct Chunk {
    sampled_at: Vec<DateTime<Utc>>,
    step: Option<Vec<i32>>,
    value: Vec<f64>,
}

pub(crate) async fn chunks(
    executor: impl PgExecutor<'_>,
    series: i32,
) -> Result<Vec<Chunk>, StoreError> {
    let chunks = sqlx::query_as!(
        Chunk,
        "SELECT sampled_at, step, value FROM sample_chunks WHERE series_id = $1 ORDER BY number",
        series
    )
    .fetch_all(executor)
    .await?;
    Ok(chunks)
}

pub(crate) fn columns(chunks: Vec<Chunk>) -> Columns {
    let mut columns = Columns::default();
    for chunk in chunks {
        columns
            .step
            .extend(chunk.step.unwrap_or_else(|| vec![-1; chunk.value.len()]));
        columns.at.extend(chunk.sampled_at);
        columns.value.extend(chunk.value);
    }
    columns
}
