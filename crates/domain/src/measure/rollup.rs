//! Rollups: summaries of many points, built in one pass and merged in the store.
//! [`crate::measure::steady`] turns them into one figure; [`thin`] reduces a series for plotting.

use chrono::{DateTime, Utc};

use crate::measure::steady::BUCKET_SECONDS;

/// A point as it is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredPoint {
    pub series: i32,
    pub at: DateTime<Utc>,
    /// -1 when the source reports no steps.
    pub step: i32,
    pub value: f64,
}

impl StoredPoint {
    /// The point's natural key: the same point sent again has the same key.
    pub fn key(&self) -> (i32, DateTime<Utc>, i32) {
        (self.series, self.at, self.step)
    }
}

/// Summary of the finite points of one bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Roll {
    pub series: i32,
    pub start_at: DateTime<Utc>,
    pub points: i32,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    pub last_at: DateTime<Utc>,
    pub last_step: i32,
    pub last: f64,
}

/// What new points add to a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gain {
    pub series: i32,
    pub points: i64,
    pub non_finite: i64,
    pub first_at: DateTime<Utc>,
    pub last_at: DateTime<Utc>,
    pub last_step: i32,
    pub last_value: f64,
}

/// Start of the bucket that contains a moment.
pub fn bucket_start(at: DateTime<Utc>) -> DateTime<Utc> {
    let start = at.timestamp().div_euclid(BUCKET_SECONDS) * BUCKET_SECONDS;
    DateTime::from_timestamp(start, 0).unwrap_or(at)
}

/// Computes buckets and gains from points that are sorted by key, without duplicate keys. NaN and
/// infinities are in no bucket.
pub fn roll_up(points: &[StoredPoint]) -> (Vec<Roll>, Vec<Gain>) {
    let (mut rolls, mut gains): (Vec<Roll>, Vec<Gain>) = (Vec::new(), Vec::new());
    for point in points {
        let is_finite = point.value.is_finite();
        match gains.last_mut().filter(|gain| gain.series == point.series) {
            Some(gain) => {
                gain.points += 1;
                gain.non_finite += i64::from(!is_finite);
                (gain.last_at, gain.last_step, gain.last_value) =
                    (point.at, point.step, point.value);
            }
            None => gains.push(Gain {
                series: point.series,
                points: 1,
                non_finite: i64::from(!is_finite),
                first_at: point.at,
                last_at: point.at,
                last_step: point.step,
                last_value: point.value,
            }),
        }
        if !is_finite {
            continue;
        }
        let start_at = bucket_start(point.at);
        match rolls
            .last_mut()
            .filter(|roll| (roll.series, roll.start_at) == (point.series, start_at))
        {
            Some(roll) => {
                roll.points += 1;
                roll.sum += point.value;
                roll.min = roll.min.min(point.value);
                roll.max = roll.max.max(point.value);
                (roll.last_at, roll.last_step, roll.last) = (point.at, point.step, point.value);
            }
            None => rolls.push(Roll {
                series: point.series,
                start_at,
                points: 1,
                sum: point.value,
                min: point.value,
                max: point.value,
                last_at: point.at,
                last_step: point.step,
                last: point.value,
            }),
        }
    }
    (rolls, gains)
}

/// One series as columns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Columns {
    pub at: Vec<DateTime<Utc>>,
    /// -1 when the source reports no steps.
    pub step: Vec<i32>,
    pub value: Vec<f64>,
}

impl Columns {
    fn at_indices(&self, indices: &[usize]) -> Self {
        Self {
            at: picked(&self.at, indices),
            step: picked(&self.step, indices),
            value: picked(&self.value, indices),
        }
    }
}

fn picked<T: Copy>(column: &[T], indices: &[usize]) -> Vec<T> {
    indices
        .iter()
        .filter_map(|index| column.get(*index).copied())
        .collect()
}

/// Thins a series to at most `most` points (at least 4) while keeping its shape: each of about
/// `most / 2` equal parts keeps its minimum and maximum at their own times, and the first and last
/// points of the series stay. Apart from those two, NaN and infinities are dropped.
pub fn thin(columns: &Columns, most: usize) -> Columns {
    if columns.value.len() <= most.max(4) {
        return columns.clone();
    }
    let count = columns.value.len();
    let parts = (most.max(4) - 2) / 2;
    let mut kept = Vec::with_capacity(most);
    kept.push(0);
    for part in 0..parts {
        let (from, until) = (part * count / parts, (part + 1) * count / parts);
        let values = columns.value.get(from..until).unwrap_or_default();
        let finite = || {
            values
                .iter()
                .enumerate()
                .filter(|(_, value)| value.is_finite())
        };
        let least = finite()
            .min_by(|a, b| a.1.total_cmp(b.1))
            .map(|(at, _)| from + at);
        let greatest = finite()
            .max_by(|a, b| a.1.total_cmp(b.1))
            .map(|(at, _)| from + at);
        kept.extend(least.into_iter().chain(greatest));
    }
    kept.push(count - 1);
    kept.sort_unstable();
    kept.dedup();
    columns.at_indices(&kept)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn point(series: i32, seconds: i64, value: f64) -> StoredPoint {
        StoredPoint {
            series,
            at: DateTime::from_timestamp(seconds, 0).unwrap(),
            step: -1,
            value,
        }
    }

    #[test]
    fn what_is_not_finite_is_counted_and_in_no_bucket() {
        let points = [
            point(1, 0, 1.0),
            point(1, 10, f64::NAN),
            point(1, 299, 3.0),
            point(1, 300, f64::INFINITY),
            point(2, 0, 5.0),
        ];
        let (rolls, gains) = roll_up(&points);
        assert_eq!(
            rolls
                .iter()
                .map(|roll| (roll.series, roll.points, roll.sum, roll.last))
                .collect::<Vec<_>>(),
            [(1, 2, 4.0, 3.0), (2, 1, 5.0, 5.0)]
        );
        assert_eq!(
            gains
                .iter()
                .map(|gain| (gain.points, gain.non_finite))
                .collect::<Vec<_>>(),
            [(4, 2), (1, 0)]
        );
    }

    proptest! {
        #[test]
        fn thinning_keeps_the_extremes_and_the_ends(values in prop::collection::vec(-1e6f64..1e6, 5..3000), most in 4usize..300) {
            let columns = Columns {
                at: (0..values.len()).map(|i| DateTime::from_timestamp(i64::try_from(i).unwrap(), 0).unwrap()).collect(),
                step: vec![-1; values.len()],
                value: values.clone(),
            };
            let thinned = thin(&columns, most);
            prop_assert!(thinned.value.len() <= most);
            let extremes = |values: &[f64]| (
                values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            prop_assert_eq!(extremes(&thinned.value), extremes(&values));
            prop_assert_eq!((thinned.at.first(), thinned.at.last()), (columns.at.first(), columns.at.last()));
            prop_assert!(thinned.at.is_sorted());
        }
    }
}
