//! Writing points: in order, in one statement; or merged with existing points.

use std::collections::BTreeSet;

use bakeoff_domain::measure::rollup::{Gain, Roll, StoredPoint, bucket_start, roll_up};
use bakeoff_domain::measure::samples::Point;
use bakeoff_domain::measure::steady::BUCKET_SECONDS;
use chrono::{DateTime, Datelike, NaiveDate, Utc};
use sqlx::{PgConnection, PgExecutor};

use crate::StoreError;
use crate::series::compaction;
use crate::series::{Again, Differing};

/// Points of series that have an id, sorted by key without duplicates; the first of equal keys is kept.
pub(crate) fn sorted(points: &[Point], ids: &[Option<i32>]) -> Vec<StoredPoint> {
    let stored = |point: &Point| {
        let series = ids.get(point.name).copied().flatten()?;
        Some(StoredPoint {
            series,
            at: point.at,
            step: point.step.unwrap_or(-1),
            value: point.value,
        })
    };
    let mut points: Vec<StoredPoint> = points.iter().filter_map(stored).collect();
    points.sort_by_key(StoredPoint::key);
    points.dedup_by_key(|point| point.key());
    points
}

/// One field of all rows, as an array for UNNEST.
fn column<T, U>(rows: &[T], of: impl Fn(&T) -> U) -> Vec<U> {
    rows.iter().map(of).collect()
}

/// Writes points, their rollups and the gains of their series in one statement. The points must be
/// new.
pub(super) async fn write(
    executor: impl PgExecutor<'_>,
    points: &[StoredPoint],
    rolls: &[Roll],
    gains: &[Gain],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query!(
        r#"WITH appended AS (
               INSERT INTO samples (series_id, step, sampled_at, value)
               SELECT * FROM UNNEST($1::integer[], $2::integer[], $3::timestamptz[], $4::double precision[])),
           rolled AS (
               INSERT INTO rollups AS r (series_id, start_at, points, sum, min, max, last_at, last_step, last)
               SELECT * FROM UNNEST($5::integer[], $6::timestamptz[], $7::integer[], $8::double precision[],
                                    $9::double precision[], $10::double precision[], $11::timestamptz[],
                                    $12::integer[], $13::double precision[])
               ON CONFLICT (series_id, start_at) DO UPDATE
               SET points = r.points + excluded.points, sum = r.sum + excluded.sum,
                   min = least(r.min, excluded.min), max = greatest(r.max, excluded.max),
                   last_at = greatest(r.last_at, excluded.last_at),
                   last_step = CASE WHEN (excluded.last_at, excluded.last_step) >= (r.last_at, r.last_step)
                                    THEN excluded.last_step ELSE r.last_step END,
                   last = CASE WHEN (excluded.last_at, excluded.last_step) >= (r.last_at, r.last_step)
                               THEN excluded.last ELSE r.last END)
           UPDATE series s
           SET points = s.points + n.points, non_finite = s.non_finite + n.non_finite,
               first_at = least(s.first_at, n.first_at), last_at = greatest(s.last_at, n.last_at),
               last_step = CASE WHEN (s.last_at, s.last_step) > (n.last_at, n.last_step)
                                THEN s.last_step ELSE n.last_step END,
               last_value = CASE WHEN (s.last_at, s.last_step) > (n.last_at, n.last_step)
                                 THEN s.last_value ELSE n.last_value END,
               written_at = $21, is_settled = false
           FROM UNNEST($14::integer[], $15::bigint[], $16::bigint[], $17::timestamptz[], $18::timestamptz[],
                       $19::integer[], $20::double precision[])
                AS n(series_id, points, non_finite, first_at, last_at, last_step, last_value)
           WHERE s.id = n.series_id"#,
        &column(points, |point| point.series),
        &column(points, |point| point.step),
        &column(points, |point| point.at),
        &column(points, |point| point.value),
        &column(rolls, |roll| roll.series),
        &column(rolls, |roll| roll.start_at),
        &column(rolls, |roll| roll.points),
        &column(rolls, |roll| roll.sum),
        &column(rolls, |roll| roll.min),
        &column(rolls, |roll| roll.max),
        &column(rolls, |roll| roll.last_at),
        &column(rolls, |roll| roll.last_step),
        &column(rolls, |roll| roll.last),
        &column(gains, |gain| gain.series),
        &column(gains, |gain| gain.points),
        &column(gains, |gain| gain.non_finite),
        &column(gains, |gain| gain.first_at),
        &column(gains, |gain| gain.last_at),
        &column(gains, |gain| gain.last_step),
        &column(gains, |gain| gain.last_value),
        now,
    )
    .execute(executor)
    .await?;
    Ok(())
}

/// Merges points that may already exist, be late, or belong to a compacted series; returns how many
/// were new.
pub(crate) async fn merge(
    tx: &mut PgConnection,
    points: &[StoredPoint],
    again: Again,
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    let months: BTreeSet<NaiveDate> = points
        .iter()
        .filter_map(|point| point.at.date_naive().with_day(1))
        .collect();
    for month in months {
        sqlx::query!("SELECT make_samples_partition($1)", month)
            .execute(&mut *tx)
            .await?;
    }
    let mut ids: Vec<i32> = points.iter().map(|point| point.series).collect();
    ids.dedup();
    let compacted = sqlx::query!(
        r#"SELECT id, compacted_at IS NOT NULL AS "is_compacted!" FROM series WHERE id = ANY($1) ORDER BY id
           FOR NO KEY UPDATE"#,
        &ids,
    )
    .fetch_all(&mut *tx)
    .await?;
    for series in compacted.into_iter().filter(|row| row.is_compacted) {
        compaction::expand(tx, series.id).await?;
    }
    let changed = if again == Again::Replace {
        replace(tx, points).await?
    } else {
        Vec::new()
    };
    let fresh = insert_new(tx, points).await?;
    let (rolls, gains) = roll_up(&fresh);
    write(&mut *tx, &[], &rolls, &gains, now).await?;
    if !changed.is_empty() {
        roll_again(tx, &changed, now).await?;
    }
    Ok(u64::try_from(fresh.len()).unwrap_or(u64::MAX))
}

pub(super) async fn insert_new(
    tx: &mut PgConnection,
    points: &[StoredPoint],
) -> Result<Vec<StoredPoint>, StoreError> {
    let rows = sqlx::query!(
        r#"INSERT INTO samples (series_id, step, sampled_at, value)
           SELECT * FROM UNNEST($1::integer[], $2::integer[], $3::timestamptz[], $4::double precision[])
           ON CONFLICT DO NOTHING RETURNING series_id, step, sampled_at, value"#,
        &column(points, |point| point.series),
        &column(points, |point| point.step),
        &column(points, |point| point.at),
        &column(points, |point| point.value),
    )
    .fetch_all(tx)
    .await?;
    let mut fresh: Vec<StoredPoint> = rows
        .into_iter()
        .map(|row| StoredPoint {
            series: row.series_id,
            at: row.sampled_at,
            step: row.step,
            value: row.value,
        })
        .collect();
    fresh.sort_by_key(StoredPoint::key);
    Ok(fresh)
}

/// Points that exist with another value, at most 50 of them, and how many there are.
pub(super) async fn differing(
    tx: &mut PgConnection,
    points: &[StoredPoint],
    ids: &[Option<i32>],
) -> Result<(Vec<Differing>, u64), StoreError> {
    let rows = sqlx::query!(
        r#"SELECT s.series_id, s.step, s.sampled_at, s.value AS "kept!", n.value AS "ignored!", count(*) OVER () AS "in_all!"
           FROM UNNEST($1::integer[], $2::integer[], $3::timestamptz[], $4::double precision[])
                AS n(series_id, step, sampled_at, value)
           JOIN samples s ON s.series_id = n.series_id AND s.sampled_at = n.sampled_at AND s.step = n.step
           WHERE s.value IS DISTINCT FROM n.value
           ORDER BY s.series_id, s.sampled_at, s.step LIMIT 50"#,
        &column(points, |point| point.series),
        &column(points, |point| point.step),
        &column(points, |point| point.at),
        &column(points, |point| point.value),
    )
    .fetch_all(tx)
    .await?;
    let in_all = rows.first().map_or(0, |row| row.in_all.unsigned_abs());
    let found = rows.into_iter().filter_map(|row| {
        Some(Differing {
            name: ids.iter().position(|id| *id == Some(row.series_id))?,
            at: row.sampled_at,
            step: (row.step >= 0).then_some(row.step),
            kept: row.kept,
            ignored: row.ignored,
        })
    });
    Ok((found.collect(), in_all))
}

/// Replaces the values of existing points; returns the affected buckets.
pub(super) async fn replace(
    tx: &mut PgConnection,
    points: &[StoredPoint],
) -> Result<Vec<(i32, DateTime<Utc>)>, StoreError> {
    let rows = sqlx::query!(
        r#"UPDATE samples s SET value = n.value
           FROM UNNEST($1::integer[], $2::integer[], $3::timestamptz[], $4::double precision[])
                AS n(series_id, step, sampled_at, value)
           WHERE s.series_id = n.series_id AND s.sampled_at = n.sampled_at AND s.step = n.step
             AND s.value IS DISTINCT FROM n.value
           RETURNING s.series_id, s.sampled_at"#,
        &column(points, |point| point.series),
        &column(points, |point| point.step),
        &column(points, |point| point.at),
        &column(points, |point| point.value),
    )
    .fetch_all(tx)
    .await?;
    let mut buckets: Vec<(i32, DateTime<Utc>)> = rows
        .into_iter()
        .map(|row| (row.series_id, bucket_start(row.sampled_at)))
        .collect();
    buckets.sort_unstable();
    buckets.dedup();
    Ok(buckets)
}

/// Recomputes the given buckets from their points.
pub(super) async fn roll_again(
    tx: &mut PgConnection,
    buckets: &[(i32, DateTime<Utc>)],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let ids: Vec<i32> = buckets.iter().map(|(series, _)| *series).collect();
    let starts: Vec<DateTime<Utc>> = buckets.iter().map(|(_, start)| *start).collect();
    sqlx::query!(
        r#"DELETE FROM rollups r USING UNNEST($1::integer[], $2::timestamptz[]) AS b(series_id, start_at)
           WHERE r.series_id = b.series_id AND r.start_at = b.start_at"#,
        &ids,
        &starts,
    )
    .execute(&mut *tx)
    .await?;
    let rows = sqlx::query!(
        r#"SELECT s.series_id, s.step, s.sampled_at, s.value
           FROM UNNEST($1::integer[], $2::timestamptz[]) AS b(series_id, start_at)
           JOIN samples s ON s.series_id = b.series_id
                AND s.sampled_at >= b.start_at AND s.sampled_at < b.start_at + $3::interval
           ORDER BY s.series_id, s.sampled_at, s.step"#,
        &ids,
        &starts,
        crate::session::interval(std::time::Duration::from_secs(
            BUCKET_SECONDS.unsigned_abs()
        )),
    )
    .fetch_all(&mut *tx)
    .await?;
    let points: Vec<StoredPoint> = rows
        .into_iter()
        .map(|row| StoredPoint {
            series: row.series_id,
            at: row.sampled_at,
            step: row.step,
            value: row.value,
        })
        .collect();
    let (rolls, gains) = roll_up(&points);
    // The points are already counted; only the latest value may change.
    let gains: Vec<Gain> = gains
        .into_iter()
        .map(|gain| Gain {
            points: 0,
            non_finite: 0,
            ..gain
        })
        .collect();
    write(tx, &[], &rolls, &gains, now).await
}
