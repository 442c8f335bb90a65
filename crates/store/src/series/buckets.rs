//! Buckets that figures are computed from: minutes of a young series, read from its points, and the
//! stored rollups of any other. What a figure is, is in [`bakeoff_domain::measure::steady`].

use std::collections::BTreeMap;
use std::time::Duration;

use bakeoff_domain::measure::steady::Bucket;

use crate::session::interval;
use crate::{Store, StoreError};

/// A series is young up to this age, first point to last. A figure of a probe is known by minutes long
/// before it is by rollups of five.
const YOUNG: Duration = Duration::from_mins(40);
/// The most points of a young series that are read: some twenty a second.
const YOUNG_POINTS: i64 = 50_000;

impl Store {
    /// The buckets of each series, oldest first: of one minute if it is young, otherwise its rollups.
    pub async fn buckets(&self, series: &[i32]) -> Result<BTreeMap<i32, Vec<Bucket>>, StoreError> {
        let mut buckets: BTreeMap<i32, Vec<Bucket>> = BTreeMap::new();
        for (id, minute) in self.minutes(series).await? {
            buckets.entry(id).or_default().push(minute);
        }
        let is_older = |id: &&i32| !buckets.contains_key(*id);
        let older: Vec<i32> = series.iter().filter(is_older).copied().collect();
        if !older.is_empty() {
            for (id, bucket) in self.rollups(&older).await? {
                buckets.entry(id).or_default().push(bucket);
            }
        }
        Ok(buckets)
    }

    /// The minutes of those that are young and have all their points, oldest first within each series.
    #[tracing::instrument(level = "debug", skip_all)]
    async fn minutes(&self, series: &[i32]) -> Result<Vec<(i32, Bucket)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT s.id, date_bin('1 minute', p.at, 'epoch') AS "start_at!", count(*) AS "points!",
                      avg(p.value) AS "mean!", min(p.value) AS "min!", max(p.value) AS "max!", max(p.at) AS "last_at!",
                      (array_agg(p.step ORDER BY p.at DESC, p.step DESC))[1] AS "last_step!",
                      (array_agg(p.value ORDER BY p.at DESC, p.step DESC))[1] AS "last!",
                      sum(count(*)) OVER (PARTITION BY s.id) = s.points - s.non_finite AS "is_whole!"
               FROM series s CROSS JOIN LATERAL (
                   SELECT sampled_at AS at, step, value FROM samples
                   WHERE series_id = s.id AND sampled_at BETWEEN s.first_at AND s.last_at
                   UNION ALL
                   SELECT u.at, coalesce(u.step, -1), u.value
                   FROM sample_chunks c, UNNEST(c.sampled_at, c.step, c.value) AS u(at, step, value)
                   WHERE c.series_id = s.id) p
               WHERE s.id = ANY($1) AND s.last_at - s.first_at < $2 AND s.points <= $3
                 AND abs(p.value) < 1e150
               GROUP BY s.id, 2 ORDER BY s.id, 2"#,
            series,
            interval(YOUNG),
            YOUNG_POINTS,
        )
        .fetch_all(&self.pool)
        .await?;
        // Where points are gone, or too large for a sum of squares, the rollups say more.
        let whole = rows.into_iter().filter(|row| row.is_whole);
        let minutes = whole.map(|row| {
            let bucket = Bucket {
                start_at: row.start_at,
                points: u32::try_from(row.points).unwrap_or(u32::MAX),
                mean: row.mean,
                min: row.min,
                max: row.max,
                last_at: row.last_at,
                last_step: (row.last_step >= 0).then_some(row.last_step),
                last: row.last,
            };
            (row.id, bucket)
        });
        Ok(minutes.collect())
    }
}
