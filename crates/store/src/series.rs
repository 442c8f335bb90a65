//! Series and their points: appended from any source, each point once, with rollups and latest
//! values in the same transaction.
//!
//! Points that arrive in order take one statement. In other cases (a point that already exists, a
//! month without a partition, a compacted series) the database refuses that statement, and the
//! slower merge is used instead.

mod buckets;
mod compaction;
pub mod metrics;
mod points;
pub mod table;
mod write;

pub(super) use self::write::{merge, sorted};

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use bakeoff_domain::ids::{ProjectId, TrialId};
use bakeoff_domain::measure::metric::{Source, Subject, standard};
use bakeoff_domain::measure::pace::Pace;
use bakeoff_domain::measure::rollup::{StoredPoint, roll_up};
use bakeoff_domain::measure::samples::Point;
use bakeoff_domain::measure::steady::{Bucket, Steady};
use chrono::{DateTime, Datelike, Utc};
use uuid::Uuid;

use self::write::{differing, write};
use crate::stored;
use crate::{Store, StoreError, error, retried};

/// Metrics that may be sent of one trial or run: the row of a metric stays for as long as it does, and a script may make a
/// name of each step.
pub const SERIES_MAX: i64 = 10_000;
/// Maximum number of series ids cached by a process; beyond it, the cache is cleared.
const REMEMBERED_MAX: usize = 200_000;
/// If two names mean the same metric, each tries to claim it; by the third round every series has a
/// name of its own.
const NAMING_ROUNDS: usize = 5;

/// A series identified by name, before its id is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesName {
    pub subject: Subject,
    /// The name as reported.
    pub name: String,
    /// Our metric name, where it is known independently of the reported name.
    pub metric: Option<&'static str>,
}

/// Points of named series: `Point::name` is an index into `named`, whose entries are distinct.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    pub named: Vec<SeriesName>,
    pub points: Vec<Point>,
}

impl Samples {
    /// Appends a batch of other series.
    pub fn extend(&mut self, other: Self) {
        let shift = self.named.len();
        self.named.extend(other.named);
        self.points
            .extend(other.points.into_iter().map(|point| Point {
                name: point.name + shift,
                ..point
            }));
    }
}

/// The result of appending a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Appended {
    pub stored: u64,
    /// Points that already existed, or occurred twice in the batch.
    pub duplicates: u64,
    /// Points that existed with another value, which they keep.
    pub conflicts: Vec<Differing>,
    pub conflicts_in_all: u64,
    /// Index in [`Samples::named`] of each metric that was not stored: as many as may be have been sent already.
    pub no_room: Vec<usize>,
}

/// A point that exists with another value than was sent now.
#[derive(Debug, Clone, PartialEq)]
pub struct Differing {
    /// Its index in [`Samples::named`].
    pub name: usize,
    pub at: DateTime<Utc>,
    pub step: Option<i32>,
    pub kept: f64,
    pub ignored: f64,
}

/// Which value wins when a point already exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The first one: sending twice is harmless.
    Keep,
    /// The newest one: CloudWatch completes a minute after first showing it.
    Replace,
}

/// A series without its points.
#[derive(Debug, Clone)]
pub struct Series {
    pub id: i32,
    pub subject_id: Uuid,
    pub source: Source,
    pub name: String,
    pub metric: String,
    pub unit: Option<String>,
    pub points: i64,
    pub non_finite: i64,
    pub first_at: Option<DateTime<Utc>>,
    pub last_at: Option<DateTime<Utc>>,
    pub last_step: Option<i32>,
    pub last_value: Option<f64>,
    /// `None`: not settled, to be computed from the rollups.
    pub steady: Option<Option<Steady>>,
    /// Finished steps per second of wall time, once settled.
    pub pace: Option<Pace>,
    pub is_compacted: bool,
}

/// Per-process cache of series: ids, the newest point written to each, and months that have a
/// partition.
#[derive(Debug, Default)]
pub(super) struct Memory {
    ids: HashMap<(Subject, Source, String), i32>,
    newest: HashMap<i32, DateTime<Utc>>,
    months: BTreeSet<(i32, u32)>,
}

pub(super) type Remembered = Arc<Mutex<Memory>>;

/// The steady figure of a series that has had no recent writes.
#[derive(Debug, Clone)]
pub struct SettledSeries {
    pub id: i32,
    /// Number of points that the figure was computed from.
    pub points: i64,
    pub steady: Option<Steady>,
    /// Finished steps per second of wall time, where it says anything of steps.
    pub pace: Option<Pace>,
}

/// A series whose figures are to be settled.
#[derive(Debug, Clone)]
pub struct QuietSeries {
    pub id: i32,
    pub metric: String,
    pub points: i64,
}

impl Store {
    /// Appends points of one source. Each point counts once, however often it is sent.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn append(
        &self,
        source: Source,
        samples: &Samples,
        now: DateTime<Utc>,
    ) -> Result<Appended, StoreError> {
        let ids = self.series_ids(source, &samples.named).await?;
        let has_room = |name: usize| ids.get(name).is_some_and(Option::is_some);
        let no_room = (0..ids.len()).filter(|name| !has_room(*name)).collect();
        let points = sorted(&samples.points, &ids);
        let sent = samples.points.iter().filter(|point| has_room(point.name));
        let sent = u64::try_from(sent.count()).unwrap_or(u64::MAX);
        let is_in_order = self.is_in_order(&points);
        if is_in_order && let Some(stored) = self.append_in_order(&points, now).await? {
            return Ok(Appended {
                stored,
                duplicates: sent.saturating_sub(stored),
                no_room,
                ..Appended::default()
            });
        }
        let (pool, merged, ids) = (&self.pool, points.as_slice(), ids.as_slice());
        let transaction = || async move {
            let mut tx = pool.begin().await?;
            let stored = merge(&mut tx, merged, Again::Keep, now).await?;
            let is_all_new = usize::try_from(stored).is_ok_and(|stored| stored == merged.len());
            let (conflicts, in_all) = if is_all_new {
                (Vec::new(), 0)
            } else {
                differing(&mut tx, merged, ids).await?
            };
            tx.commit().await?;
            Ok((stored, conflicts, in_all))
        };
        let (stored, conflicts, conflicts_in_all) = retried(transaction).await?;
        self.remember(&points);
        Ok(Appended {
            stored,
            duplicates: sent.saturating_sub(stored + conflicts_in_all),
            conflicts,
            conflicts_in_all,
            no_room,
        })
    }

    /// Appends in one statement; `None` when the database refuses because the case is not that
    /// simple.
    async fn append_in_order(
        &self,
        points: &[StoredPoint],
        now: DateTime<Utc>,
    ) -> Result<Option<u64>, StoreError> {
        let (rolls, gains) = roll_up(points);
        match write(&self.pool, points, &rolls, &gains, now).await {
            Ok(()) => {
                self.remember(points);
                Ok(u64::try_from(points.len()).ok())
            }
            Err(StoreError::Conflict { .. } | StoreError::Refused { .. }) => Ok(None),
            // Deadlock with a merge, which locks the series first and then its rollups, while this
            // statement does the reverse: fall back to a merge.
            Err(error) if error.is_undone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// When a trial ended: the outer option is empty when the trial does not exist, the inner one
    /// while it has not ended.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn end_of_trial(
        &self,
        trial: TrialId,
    ) -> Result<Option<Option<DateTime<Utc>>>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT t.ended_at FROM trials t JOIN experiments e ON e.id = t.experiment_id
                   WHERE t.id = $1 AND e.deleted_at IS NULL"#,
            trial.0
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// Whether the trial or run belongs to the project, and is shown to anybody.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn owns(&self, project: ProjectId, subject: Subject) -> Result<bool, StoreError> {
        let found = match subject {
            Subject::Trial(id) => {
                sqlx::query_scalar!(
                    r#"SELECT EXISTS (SELECT FROM trials t JOIN experiments e ON e.id = t.experiment_id
                                      WHERE t.id = $1 AND t.project_id = $2 AND e.deleted_at IS NULL) AS "found!""#,
                    id.0,
                    project.0
                )
                .fetch_one(&self.pool)
                .await?
            }
            Subject::Run(id) => {
                sqlx::query_scalar!(
                    r#"SELECT EXISTS (SELECT FROM runs WHERE id = $1 AND project_id = $2) AS "found!""#,
                    id.0,
                    project.0
                )
                .fetch_one(&self.pool)
                .await?
            }
        };
        Ok(found)
    }

    /// Series of the given trials and runs, by subject, metric and source; limited to `metrics`,
    /// when given.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn series_of(
        &self,
        subjects: &[Uuid],
        metrics: Option<&[String]>,
    ) -> Result<Vec<Series>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id, subject_id, source, name, metric, unit, points, non_finite, first_at, last_at, last_step,
                      last_value, is_settled, steady, pace, compacted_at IS NOT NULL AS "is_compacted!"
               FROM series WHERE subject_id = ANY($1) AND ($2::text[] IS NULL OR metric = ANY($2) OR name = ANY($2))
               ORDER BY subject_id, metric, source"#,
            subjects,
            metrics,
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let steady = row
                    .steady
                    .map(|value| stored::read(value, "series", row.id, "steady"))
                    .transpose()?;
                let pace = row
                    .pace
                    .map(|value| stored::read(value, "series", row.id, "pace"))
                    .transpose()?;
                Ok(Series {
                    id: row.id,
                    subject_id: row.subject_id,
                    source: Source::parse(&row.source)
                        .ok_or_else(|| StoreError::corrupt("series", row.id, "source"))?,
                    name: row.name,
                    metric: row.metric,
                    unit: row.unit,
                    points: row.points,
                    non_finite: row.non_finite,
                    first_at: row.first_at,
                    last_at: row.last_at,
                    last_step: row.last_step.filter(|step| *step >= 0),
                    last_value: row.last_value,
                    steady: row.is_settled.then_some(steady),
                    pace: pace.filter(|_| row.is_settled),
                    is_compacted: row.is_compacted,
                })
            })
            .collect()
    }

    /// Rollups of the given series, oldest first within each series.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn rollups(&self, series: &[i32]) -> Result<Vec<(i32, Bucket)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT series_id, start_at, points, sum, min, max, last_at, last_step, last
               FROM rollups WHERE series_id = ANY($1) ORDER BY series_id, start_at"#,
            series,
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter()
            .map(|row| {
                let bucket = Bucket {
                    start_at: row.start_at,
                    points: error::count(row.points, "rollups", row.series_id, "points")?,
                    mean: row.sum / f64::from(row.points.max(1)),
                    min: row.min,
                    max: row.max,
                    last_at: row.last_at,
                    last_step: (row.last_step >= 0).then_some(row.last_step),
                    last: row.last,
                };
                Ok((row.series_id, bucket))
            })
            .collect()
    }

    /// Series without recent writes whose steady figures are still to be computed and stored for
    /// tables.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn unsettled_series(
        &self,
        quiet_since: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<QuietSeries>, StoreError> {
        let rows = sqlx::query_as!(
            QuietSeries,
            r#"SELECT id, metric, points FROM series WHERE NOT is_settled AND coalesce(written_at, '-infinity') < $1
               ORDER BY id LIMIT $2"#,
            quiet_since,
            limit,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows)
    }

    /// Writes steady figures, each only if no points have arrived since.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn settle_series(&self, settled: &[SettledSeries]) -> Result<(), StoreError> {
        let steady = settled
            .iter()
            .map(|one| one.steady.as_ref().map(stored::write).transpose());
        let steady = steady.collect::<Result<Vec<_>, StoreError>>()?;
        let pace = settled
            .iter()
            .map(|one| one.pace.as_ref().map(stored::write).transpose());
        let pace = pace.collect::<Result<Vec<_>, StoreError>>()?;
        sqlx::query!(
            r#"UPDATE series s SET is_settled = true, steady = n.steady, pace = n.pace
               FROM UNNEST($1::integer[], $2::bigint[], $3::jsonb[], $4::jsonb[]) AS n(id, points, steady, pace)
               WHERE s.id = n.id AND s.points = n.points AND NOT s.is_settled"#,
            &settled.iter().map(|one| one.id).collect::<Vec<_>>(),
            &settled.iter().map(|one| one.points).collect::<Vec<_>>(),
            &steady as &[Option<serde_json::Value>],
            &pace as &[Option<serde_json::Value>],
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Ids of named series, in the same order; new series are created. `None`: as many as may be have been sent already.
    pub(super) async fn series_ids(
        &self,
        source: Source,
        named: &[SeriesName],
    ) -> Result<Vec<Option<i32>>, StoreError> {
        let mut no_room = BTreeSet::new();
        let known = |memory: &Memory, one: &SeriesName| {
            memory
                .ids
                .get(&(one.subject, source, one.name.clone()))
                .copied()
        };
        for _ in 0..NAMING_ROUNDS {
            let mut unknown: Vec<&SeriesName> = {
                let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
                let ids: Vec<Option<i32>> = named.iter().map(|one| known(&memory, one)).collect();
                let unknown: Vec<&SeriesName> = named
                    .iter()
                    .zip(&ids)
                    .filter(|(one, id)| id.is_none() && !no_room.contains(one.name.as_str()))
                    .map(|(one, _)| one)
                    .collect();
                if unknown.is_empty() {
                    return Ok(ids);
                }
                unknown
            };
            self.look_up(source, &mut unknown).await?;
            if matches!(source, Source::Pushed | Source::Imported)
                && let Some(first) = unknown.first()
            {
                let room = self.room(source, first.subject).await?.min(unknown.len());
                no_room.extend(
                    unknown
                        .split_off(room)
                        .into_iter()
                        .map(|one| one.name.as_str()),
                );
            }
            if !unknown.is_empty() {
                self.make(source, &unknown).await?;
            }
        }
        Err(StoreError::corrupt("series", named.len(), "metric"))
    }

    /// Caches the ids of the series that exist, and leaves the others in `named`.
    async fn look_up(
        &self,
        source: Source,
        named: &mut Vec<&SeriesName>,
    ) -> Result<(), StoreError> {
        let rows = sqlx::query!(
            r#"SELECT n.ordinal AS "ordinal!", s.id
               FROM UNNEST($1::uuid[], $3::text[]) WITH ORDINALITY AS n(subject_id, name, ordinal)
               JOIN series s ON s.subject_id = n.subject_id AND s.source = $2 AND s.name = n.name"#,
            &named
                .iter()
                .map(|one| one.subject.uuid())
                .collect::<Vec<_>>(),
            source.as_str(),
            &named.iter().map(|one| one.name.clone()).collect::<Vec<_>>(),
        )
        .fetch_all(&self.pool)
        .await?;
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.ids.len() > REMEMBERED_MAX {
            *memory = Memory::default();
        }
        let mut found = BTreeSet::new();
        for row in rows {
            let place = usize::try_from(row.ordinal - 1).ok();
            if let Some((place, one)) = place.and_then(|place| Some((place, named.get(place)?))) {
                memory
                    .ids
                    .insert((one.subject, source, one.name.clone()), row.id);
                found.insert(place);
            }
        }
        let mut place = 0;
        named.retain(|_| {
            place += 1;
            !found.contains(&(place - 1))
        });
        Ok(())
    }

    /// How many more metrics may be sent of a trial or run.
    async fn room(&self, source: Source, subject: Subject) -> Result<usize, StoreError> {
        let count = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM series WHERE subject_id = $1 AND source = $2"#,
            subject.uuid(),
            source.as_str(),
        );
        let left = SERIES_MAX - count.fetch_one(&self.pool).await?;
        Ok(usize::try_from(left).unwrap_or(0))
    }

    async fn make(&self, source: Source, wanted: &[&SeriesName]) -> Result<(), StoreError> {
        let standards: Vec<_> = wanted
            .iter()
            .map(|sample| standard(sample.metric.unwrap_or(&sample.name)))
            .collect();
        let trial = |one: &&SeriesName| {
            matches!(one.subject, Subject::Trial(_)).then(|| one.subject.uuid())
        };
        let run =
            |one: &&SeriesName| matches!(one.subject, Subject::Run(_)).then(|| one.subject.uuid());
        let metrics = wanted.iter().zip(&standards).map(|(sample, standard)| {
            standard.map_or_else(
                || sample.metric.unwrap_or(&sample.name).to_owned(),
                |found| found.name.to_owned(),
            )
        });
        // If another series of this source already has the standard name, the second series keeps
        // its own name.
        sqlx::query!(
            r#"INSERT INTO series (trial_id, run_id, source, name, metric, unit)
               SELECT n.trial_id, n.run_id, $3, n.name, free.metric, n.unit
               FROM UNNEST($1::uuid[], $2::uuid[], $4::text[], $5::text[], $6::text[])
                    AS n(trial_id, run_id, name, metric, unit)
               CROSS JOIN LATERAL (
                   SELECT c.metric FROM UNNEST(ARRAY[n.metric, n.name, left(n.name, 240) || ' (as reported)'])
                        WITH ORDINALITY AS c(metric, ordinal)
                   WHERE NOT EXISTS (SELECT FROM series s WHERE s.subject_id = coalesce(n.trial_id, n.run_id)
                                     AND s.source = $3 AND s.metric = c.metric)
                   ORDER BY c.ordinal LIMIT 1) free
               ORDER BY n.trial_id, n.run_id, n.name
               ON CONFLICT DO NOTHING"#,
            &wanted.iter().map(trial).collect::<Vec<_>>() as &[Option<Uuid>],
            &wanted.iter().map(run).collect::<Vec<_>>() as &[Option<Uuid>],
            source.as_str(),
            &wanted.iter().map(|sample| sample.name.clone()).collect::<Vec<_>>(),
            &metrics.collect::<Vec<_>>(),
            &standards.iter().map(|found| found.map(|one| one.unit.to_owned())).collect::<Vec<_>>()
                as &[Option<String>],
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Whether all points come after those that this process has written to their series, in months
    /// that it has written to.
    fn is_in_order(&self, points: &[StoredPoint]) -> bool {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut series = (0, DateTime::<Utc>::MAX_UTC);
        points.iter().all(|point| {
            if point.series != series.0 {
                let newest = memory
                    .newest
                    .get(&point.series)
                    .copied()
                    .unwrap_or(DateTime::<Utc>::MAX_UTC);
                series = (point.series, newest);
            }
            point.at > series.1 && memory.months.contains(&month(point.at))
        })
    }

    /// After a write: remembers how far each series was written, to recognise points in order
    /// later. Conflicts with other writers are refused by the database.
    fn remember(&self, points: &[StoredPoint]) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = None;
        for point in points {
            if before != Some(month(point.at)) {
                before = Some(month(point.at));
                memory.months.insert(month(point.at));
            }
        }
        for (index, point) in points.iter().enumerate() {
            // The points are sorted, so this is the last one of its series.
            if points
                .get(index + 1)
                .is_none_or(|next| next.series != point.series)
            {
                let newest = memory.newest.entry(point.series).or_insert(point.at);
                *newest = point.at.max(*newest);
            }
        }
    }
}

fn month(at: DateTime<Utc>) -> (i32, u32) {
    (at.year(), at.month())
}
