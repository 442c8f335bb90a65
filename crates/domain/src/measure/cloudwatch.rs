//! Reading a job's metrics from CloudWatch: which series, over which window and period, in which
//! batches, and how the answers become series of the trial. The calls are in
//! [`crate::ports`]; when a read is due is the store's matter.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use crate::catalog;
use crate::measure::metric::normalised;
use crate::sagemaker::metrics::{HOST_METRICS, MetricDefinition, MetricQuery, QUERIES_MAX, Series};

/// How long after a job's end everything is read once more: CloudWatch may show points late.
pub const FINAL_AFTER: TimeDelta = TimeDelta::minutes(15);
/// A final read that still fails this long after the job's end is given up: the figures stay as
/// they are.
const GIVE_UP_AFTER: TimeDelta = TimeDelta::hours(6);
/// How far before the cursor to read again: points may arrive late.
const OVERLAP: TimeDelta = TimeDelta::minutes(3);
/// How long CloudWatch keeps one-minute data, less a day to spare.
const MINUTES_KEPT: TimeDelta = TimeDelta::days(14);

/// A job whose metrics are read.
#[derive(Debug, Clone, PartialEq)]
pub struct MeteredJob {
    pub name: String,
    pub instance_type: String,
    pub instance_count: u32,
    /// The script's own metrics.
    pub metrics: Vec<MetricDefinition>,
    pub started_at: Option<DateTime<Utc>>,
    /// The end of what has been read.
    pub cursor: Option<DateTime<Utc>>,
    /// When the job ended; none until it is settled.
    pub ended_at: Option<DateTime<Utc>>,
}

/// A span of whole minutes, from `start` (inclusive) to `end` (exclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: DateTime<Utc>,
    pub end: DateTime<Utc>,
}

/// A series of the job as a whole, under the name that was reported.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSeries {
    pub name: String,
    /// (minute, value), oldest first.
    pub points: Vec<(DateTime<Utc>, f64)>,
}

impl MeteredJob {
    /// Whether this is the read after which nothing more is expected.
    pub fn is_last_read(&self, now: DateTime<Utc>) -> bool {
        self.ended_at.is_some_and(|end| end + FINAL_AFTER <= now)
    }

    /// Whether a read that fails now is not repeated.
    pub fn is_given_up(&self, now: DateTime<Utc>) -> bool {
        self.ended_at.is_some_and(|end| end + GIVE_UP_AFTER <= now)
    }

    /// What to read; `None` while the job has not started, or when no whole minute has passed.
    pub fn window(&self, now: DateTime<Utc>) -> Option<Span> {
        let started = self.started_at?;
        if let Some(end) = self.ended_at.filter(|_| self.is_last_read(now)) {
            // Read everything once more, as far as CloudWatch still has minutes: coarser means must
            // not replace what has been read.
            let read = self
                .cursor
                .filter(|_| now - started > MINUTES_KEPT)
                .map(|cursor| cursor - OVERLAP);
            return Some(Span {
                start: minute(read.unwrap_or(started)),
                end: minute(end) + TimeDelta::minutes(2),
            });
        }
        let start = self.cursor.map_or(started, |cursor| cursor - OVERLAP);
        let span = Span {
            start: minute(start),
            end: minute(now),
        };
        (span.start < span.end).then_some(span)
    }

    /// The hosts' series first, then the script's.
    pub fn queries(&self) -> Vec<MetricQuery> {
        let mut queries = Vec::new();
        for host in 1..=self.instance_count {
            queries.extend(HOST_METRICS.iter().map(|metric| MetricQuery {
                metric: (*metric).to_owned(),
                dimension: "Host",
                value: format!("{}/algo-{host}", self.name),
            }));
        }
        queries.extend(self.metrics.iter().map(|metric| MetricQuery {
            metric: metric.name.clone(),
            dimension: "TrainingJobName",
            value: self.name.clone(),
        }));
        queries.truncate(QUERIES_MAX);
        queries
    }

    /// Averages the hosts, as shares of one device; the script's own metrics stay as they are.
    /// `answers` are in the order of [`Self::queries`].
    pub fn normalise(&self, answers: &[Series]) -> Vec<JobSeries> {
        let instance = catalog::find(&self.instance_type);
        let (vcpus, gpus) = instance.map_or((1, 1), |found| {
            (found.vcpus.unwrap_or(1), found.accelerator_count)
        });
        let queries = self.queries();
        let mut sums: BTreeMap<&str, BTreeMap<DateTime<Utc>, Mean>> = BTreeMap::new();
        for (query, answer) in queries.iter().zip(answers) {
            let series = sums.entry(&query.metric).or_default();
            for (at, value) in &answer.points {
                let share = if query.dimension == "Host" {
                    normalised(&query.metric, *value, vcpus, gpus)
                } else {
                    *value
                };
                series.entry(*at).or_default().add(share);
            }
        }
        sums.into_iter()
            .filter(|(_, values)| !values.is_empty())
            .map(|(name, values)| JobSeries {
                name: name.to_owned(),
                points: values
                    .into_iter()
                    .map(|(at, mean)| (at, mean.value()))
                    .collect(),
            })
            .collect()
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn value(self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

/// The finest period that CloudWatch still has for a time: one minute for 15 days, five minutes for
/// 63, one hour for 455 (CloudWatch user guide).
pub fn period(start: DateTime<Utc>, now: DateTime<Utc>) -> TimeDelta {
    match (now - start).num_days() {
        ..=14 => TimeDelta::minutes(1),
        15..=62 => TimeDelta::minutes(5),
        _ => TimeDelta::hours(1),
    }
}

/// Divides jobs into requests: each has at most [`QUERIES_MAX`] queries, and a job is never split.
pub fn batches<T>(jobs: Vec<T>, job: impl Fn(&T) -> &MeteredJob) -> Vec<Vec<T>> {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for one in jobs {
        let wanted = job(&one).queries().len();
        if wanted > room || batches.is_empty() {
            batches.push(Vec::new());
            room = QUERIES_MAX;
        }
        room = room.saturating_sub(wanted);
        if let Some(batch) = batches.last_mut() {
            batch.push(one);
        }
    }
    batches
}

fn minute(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp(at.timestamp().div_euclid(60) * 60, 0).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn job(instance_count: u32) -> MeteredJob {
        MeteredJob {
            name: "job".into(),
            instance_type: "ml.p4d.24xlarge".into(),
            instance_count,
            metrics: Vec::new(),
            started_at: Some(at(0)),
            cursor: None,
            ended_at: None,
        }
    }

    #[test]
    fn a_read_overlaps_the_one_before_and_the_last_begins_at_the_start() {
        let mut one = job(1);
        assert_eq!(
            one.window(at(59)),
            None,
            "no whole minute has passed since the start"
        );
        one.cursor = Some(at(600));
        let span = one.window(at(905)).unwrap();
        assert_eq!((span.start, span.end), (at(420), at(900)));
        one.ended_at = Some(at(1000));
        assert!(!one.is_last_read(at(1000 + 899)) && one.is_last_read(at(1000 + 900)));
        let last = one.window(at(1900)).unwrap();
        assert_eq!((last.start, last.end), (at(0), at(960 + 120)));
    }

    #[test]
    fn the_last_read_of_an_old_job_leaves_what_has_been_read_by_the_minute() {
        let mut one = job(1);
        let day = 24 * 3600;
        one.cursor = Some(at(20 * day));
        one.ended_at = Some(at(20 * day));
        let now = at(20 * day + 3600);
        assert_eq!(one.window(now).unwrap().start, at(20 * day - 180));
        assert_eq!(
            period(one.window(now).unwrap().start, now),
            TimeDelta::minutes(1)
        );
        assert_eq!(period(at(0), now), TimeDelta::minutes(5));
    }

    #[test]
    fn a_batch_never_splits_a_job() {
        let queries = job(1).queries().len();
        let jobs: Vec<MeteredJob> = (0..300).map(|_| job(1)).collect();
        let batches = batches(jobs, |job| job);
        assert!(
            batches
                .iter()
                .all(|batch| batch.len() * queries <= QUERIES_MAX)
        );
        assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), 300);
        assert_eq!(batches.len(), 300_usize.div_ceil(QUERIES_MAX / queries));
    }

    /// A P4d has eight GPUs, and CloudWatch reports up to 800 % of them.
    #[test]
    fn hosts_are_averaged_as_shares_of_one_device() {
        let one = job(2);
        let answers: Vec<Series> = one
            .queries()
            .iter()
            .map(|query| {
                let value = if query.value.ends_with("algo-1") {
                    400.0
                } else {
                    720.0
                };
                let points = if query.metric == "GPUUtilization" {
                    vec![(at(0), value)]
                } else {
                    Vec::new()
                };
                Series {
                    points,
                    is_complete: true,
                    is_failed: false,
                }
            })
            .collect();
        let series = one.normalise(&answers);
        assert_eq!(series.len(), 1, "a series without points is none");
        assert_eq!(series[0].points, [(at(0), 70.0)]);
    }
}
