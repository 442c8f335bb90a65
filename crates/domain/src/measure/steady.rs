//! Computes one steady figure from a series of bucket means: drop the warm-up (MSER), then take the
//! mean with the interval of [`crate::measure::pace`]. It neither ranks nor decides when to stop a trial.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::measure::pace::{Batch, Pace, pace};

/// One bucket of a metric: what the store keeps instead of every point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    pub start_at: DateTime<Utc>,
    pub points: u32,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    pub last_at: DateTime<Utc>,
    pub last_step: Option<i32>,
    pub last: f64,
}

impl Bucket {
    /// Merges the next bucket into this one, weighted by points.
    pub fn absorb(&mut self, next: &Self) {
        let (a, b) = (f64::from(self.points), f64::from(next.points));
        self.mean = (self.mean * a + next.mean * b) / (a + b).max(1.0);
        self.points = self.points.saturating_add(next.points);
        self.min = self.min.min(next.min);
        self.max = self.max.max(next.max);
        if next.last_at >= self.last_at {
            (self.last_at, self.last_step, self.last) = (next.last_at, next.last_step, next.last);
        }
    }
}

/// A measured figure with its window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    pub mean: f64,
    /// Half width of the 95 % interval of the mean of a long run: Student's, corrected for
    /// autocorrelation, and at least 2 % (see [`crate::measure::pace`]).
    pub half_width: f64,
    pub points: u32,
    pub buckets: u32,
    /// Buckets dropped at the start as warm-up.
    pub buckets_dropped: u32,
    pub from_at: DateTime<Utc>,
    pub until_at: DateTime<Utc>,
}

/// Minimum number of buckets for a figure.
pub const BUCKETS_MIN: usize = 4;
/// Width of a stored bucket, seconds on the domain clock. Young series are read by the minute.
pub const BUCKET_SECONDS: i64 = 300;
/// The least time that a figure's buckets span, warm-up included. Half of it may be cut as warm-up,
/// and a slow start of up to ten minutes is then seen to end before it passes for the speed.
pub(crate) const SPAN_MIN: TimeDelta = TimeDelta::minutes(12);
/// The shortest training that yields a figure, seconds: the minutes that are needed, the first and the
/// last, which are not whole, and one to spare.
pub const SECONDS_MIN: u32 = 900;

/// The steady mean of a series, oldest bucket first; `None` means "not enough evidence".
///
/// Warm-up is cut where `Var(z_d..z_m)/(m-d)` is lowest, with d at most half of the series (MSER,
/// White 1997). The last bucket is dropped: it may hold the tail of the run.
pub fn steady(buckets: &[Bucket]) -> Option<Steady> {
    let (tail, body) = buckets.split_last()?;
    if body.len() < BUCKETS_MIN || tail.start_at - body.first()?.start_at < SPAN_MIN {
        return None;
    }
    let batch = |bucket: &Bucket| Batch {
        done: bucket.mean,
        seconds: 1.0,
    };
    let (dropped, pace) = steady_batches(&body.iter().map(batch).collect::<Vec<_>>())?;
    let kept = body.get(dropped..)?;
    let first = kept.first()?;
    let last = kept.last()?;
    Some(Steady {
        mean: pace.per_second,
        half_width: pace.half_width,
        points: kept.iter().map(|bucket| bucket.points).sum(),
        buckets: u32::try_from(kept.len()).ok()?,
        buckets_dropped: u32::try_from(dropped).ok()?,
        from_at: first.start_at,
        until_at: last.last_at,
    })
}

/// The pace after the warm-up, and how many batches that was; `None` for fewer than
/// [`BUCKETS_MIN`].
pub(crate) fn steady_batches(batches: &[Batch]) -> Option<(usize, Pace)> {
    if batches.len() < BUCKETS_MIN {
        return None;
    }
    let rates: Vec<f64> = batches.iter().map(Batch::rate).collect();
    let dropped = warm_up(&rates);
    Some((dropped, pace(batches.get(dropped..)?)?))
}

/// The cut with the lowest MSER, in one pass from the end: the sums over the kept buckets grow as
/// the cut moves back.
fn warm_up(rates: &[f64]) -> usize {
    // Centre on the overall mean: sums of squares of large numbers would lose precision.
    let centre = mean(rates);
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    let mut best = (f64::INFINITY, 0);
    for (cut, rate) in rates.iter().enumerate().rev() {
        let value = rate - centre;
        (n, sum, squares) = (n + 1.0, sum + value, squares + value * value);
        let is_candidate = cut <= rates.len() / 2 && rates.len() - cut >= BUCKETS_MIN;
        let mser = (squares - sum * sum / n).max(0.0) / (n - 1.0_f64).max(1.0) / n;
        // On ties, take the earliest cut: nothing is dropped without a reason.
        if is_candidate && mser <= best.0 {
            best = (mser, cut);
        }
    }
    best.1
}

fn mean(rates: &[f64]) -> f64 {
    let count = f64::from(u32::try_from(rates.len()).unwrap_or(u32::MAX));
    rates.iter().sum::<f64>() / count.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(means: &[f64]) -> Vec<Bucket> {
        (0i64..)
            .zip(means)
            .map(|(i, mean)| Bucket {
                start_at: DateTime::from_timestamp(i * BUCKET_SECONDS, 0).unwrap(),
                points: 5,
                mean: *mean,
                min: *mean,
                max: *mean,
                last_at: DateTime::from_timestamp(i * BUCKET_SECONDS + 240, 0).unwrap(),
                last_step: None,
                last: *mean,
            })
            .collect()
    }

    #[test]
    fn warm_up_is_cut_and_the_tail_is_not_counted() {
        let figure = steady(&series(&[
            10.0, 60.0, 100.0, 101.0, 99.0, 100.0, 100.0, 3.0,
        ]))
        .unwrap();
        assert_eq!(figure.buckets_dropped, 2);
        assert!((figure.mean - 100.0).abs() < 0.01, "{}", figure.mean);
        // The floor: 2 % of the mean.
        assert!((figure.half_width - 2.0).abs() < 0.01);
    }

    #[test]
    fn four_buckets_and_a_tail_are_the_least() {
        assert!(steady(&series(&[1.0, 1.0, 1.0, 1.0])).is_none());
        assert!(steady(&series(&[1.0, 1.0, 1.0, 1.0, 1.0])).is_some());
    }

    /// By minutes: a slow start of ten minutes is never taken for the speed.
    #[test]
    fn minutes_span_twelve_before_they_make_a_figure() {
        let of = |count: usize| {
            let means: Vec<f64> = (0..count)
                .map(|i| if i < 10 { 60.0 } else { 100.0 })
                .collect();
            let mut minutes = series(&means);
            for (i, minute) in (0i64..).zip(&mut minutes) {
                minute.start_at = DateTime::from_timestamp(i * 60, 0).unwrap();
                minute.last_at = minute.start_at;
            }
            steady(&minutes)
        };
        assert_eq!(of(12), None);
        let early = of(13).unwrap();
        assert!(early.half_width > 0.1 * early.mean, "{early:?}");
        let late = of(21).unwrap();
        assert!((late.mean - 100.0).abs() < 1e-9, "{late:?}");
    }
}
