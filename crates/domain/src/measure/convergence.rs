//! Convergence: a loss against steps, hours and dollars, and when it reached a target. Hours and
//! dollars count only while something ran; points are five-minute buckets.

use chrono::{DateTime, TimeDelta, Utc};
use rust_decimal::Decimal;
use rust_decimal::prelude::FromPrimitive;

use crate::measure::eta::Progress;
use crate::measure::steady::{BUCKET_SECONDS, Bucket};
use crate::money::Usd;

/// A period in which something ran, and its total cost per hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stretch {
    pub from: DateTime<Utc>,
    pub until: DateTime<Utc>,
    /// All instances together; empty when unknown, as for spot before its end.
    pub usd_per_hour: Option<Usd>,
}

/// One point of the curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub at: DateTime<Utc>,
    pub step: Option<i64>,
    pub hours: f64,
    pub usd: Option<Usd>,
    /// The mean of the bucket.
    pub value: f64,
}

/// The curve of a metric, oldest first. Points that carry no step, as those of CloudWatch, have the
/// one that `steps` reports for their time: finished steps, oldest first.
pub fn curve(buckets: &[Bucket], stretches: &[Stretch], steps: &[Progress]) -> Vec<Point> {
    buckets
        .iter()
        .map(|bucket| {
            let (hours, usd) = spent(stretches, bucket.last_at);
            let carried = bucket.last_step.map(i64::from);
            Point {
                at: bucket.last_at,
                step: carried.or_else(|| step_at(steps, bucket.last_at)),
                hours,
                usd,
                value: bucket.mean,
            }
        })
        .collect()
}

/// The newest report at a moment, unless it is older than a bucket.
fn step_at(steps: &[Progress], at: DateTime<Utc>) -> Option<i64> {
    let after = steps.partition_point(|report| report.at <= at);
    let newest = steps.get(after.checked_sub(1)?)?;
    (at - newest.at <= TimeDelta::seconds(BUCKET_SECONDS)).then_some(newest.step)
}

/// Hours and dollars spent until a moment.
fn spent(stretches: &[Stretch], at: DateTime<Utc>) -> (f64, Option<Usd>) {
    let mut hours = 0.0;
    let mut usd = Some(Usd::ZERO);
    for stretch in stretches.iter().filter(|stretch| stretch.from < at) {
        let own = (stretch.until.min(at) - stretch.from)
            .as_seconds_f64()
            .max(0.0)
            / 3600.0;
        hours += own;
        let cost = stretch
            .usd_per_hour
            .zip(Decimal::from_f64(own))
            .map(|(rate, hours)| rate * hours);
        usd = usd.zip(cost).map(|(sum, cost)| sum + cost);
    }
    (hours, usd.map(Usd::rounded))
}

/// The first point from which the metric stays at or below the target until the end of the data: a
/// single lucky bucket does not count.
pub fn reached(curve: &[Point], target: f64) -> Option<&Point> {
    let missed = curve.iter().rposition(|point| point.value > target);
    curve.get(missed.map_or(0, |place| place + 1))
}

/// Points at or below the target that a running trial must have reported: the next may lie above it again.
const LASTING: usize = 2;

/// The same while the data goes on: the last point alone proves nothing yet.
pub fn lasting(curve: &[Point], target: f64) -> Option<&Point> {
    let first = reached(curve, target)?;
    let after = curve.iter().filter(|point| point.at >= first.at);
    (after.count() >= LASTING).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    fn bucket(minutes: i64, step: i32, mean: f64) -> Bucket {
        Bucket {
            start_at: at(minutes),
            points: 1,
            mean,
            min: mean,
            max: mean,
            last_at: at(minutes),
            last_step: Some(step),
            last: mean,
        }
    }

    #[test]
    fn only_time_in_which_something_ran_counts() {
        let rate = Some(Usd(Decimal::from(60)));
        let stretches = [
            Stretch {
                from: at(0),
                until: at(60),
                usd_per_hour: rate,
            },
            Stretch {
                from: at(120),
                until: at(180),
                usd_per_hour: rate,
            },
        ];
        let curve = curve(
            &[bucket(30, 1, 3.0), bucket(90, 2, 2.0), bucket(150, 3, 1.0)],
            &stretches,
            &[],
        );
        let seen: Vec<_> = curve
            .iter()
            .map(|point| (point.step, point.hours, point.usd.unwrap().to_string()))
            .collect();
        assert_eq!(
            seen,
            [
                (Some(1), 0.5, "$30.00".into()),
                (Some(2), 1.0, "$60.00".into()),
                (Some(3), 1.5, "$90.00".into())
            ]
        );
        let unknown = [Stretch {
            usd_per_hour: None,
            ..stretches[0]
        }];
        assert_eq!(
            super::curve(&[bucket(30, 1, 3.0)], &unknown, &[])[0].usd,
            None
        );
    }

    #[test]
    fn points_without_a_step_have_the_newest_one_reported() {
        let bare = |minutes| Bucket {
            last_step: None,
            ..bucket(minutes, 0, 2.0)
        };
        let report = |minutes, step| Progress {
            at: at(minutes),
            step,
        };
        let steps = [report(4, 40), report(9, 90)];
        let buckets = [
            bare(3),
            bare(4),
            bare(8),
            bare(9),
            bucket(9, 91, 2.0),
            bare(15),
        ];
        let seen: Vec<Option<i64>> = curve(&buckets, &[], &steps)
            .iter()
            .map(|point| point.step)
            .collect();
        let expected = [None, Some(40), Some(40), Some(90), Some(91), None];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_target_is_reached_where_it_is_not_left_again() {
        let curve: Vec<Point> = [3.0, 1.9, 2.4, 1.8, 1.7]
            .into_iter()
            .zip(0..)
            .map(|(value, hour)| Point {
                at: at(hour * 60),
                step: Some(hour),
                hours: 0.0,
                usd: None,
                value,
            })
            .collect();
        assert_eq!(reached(&curve, 2.0).and_then(|point| point.step), Some(3));
        assert_eq!(reached(&curve, 1.0), None);
        assert_eq!(lasting(&curve, 2.0).and_then(|point| point.step), Some(3));
        assert_eq!(lasting(&curve, 1.75), None);
        assert_eq!(reached(&[], 1.0), None);
    }
}
