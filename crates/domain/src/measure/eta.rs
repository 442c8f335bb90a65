//! Estimates a run's remaining time and cost from the steps it has reported. It uses a window, not
//! the latest instant; does not count a resumed run twice; and gives no estimate for a stalled run.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::measure::pace::{Batch, Pace, pace, pace_seen};
use crate::money::{Usd, cost};
use crate::number::median;

/// The window behind an estimate: the newest intervals with progress.
const WINDOW: usize = 24;
/// Fewer intervals between reports are not enough evidence.
const INTERVALS_MIN: usize = 3;
/// A run has stalled after this many of its usual intervals without progress, and at least
/// [`STALL_LEAST`].
const STALL_INTERVALS: i32 = 4;
const STALL_LEAST: TimeDelta = TimeDelta::minutes(20);
/// A run must have been seen for so long beside its warm-up before its pace can be said to have changed,
/// or not.
const CHANGE_SEEN_LEAST: TimeDelta = TimeDelta::hours(1);
/// The part of the time seen that is left out of it: a run compiles and fills its caches first.
const WARM_UP: f64 = 0.1;
/// A pace that differs by no more has not changed. On 56 open training traces, this finds 21 of the 37
/// whose whole pace differs from their first by over 1 %, before step 1,000, and one of the 19 others
/// (`bakeoff-eval`, `race`); at least 10 of the rest change only later.
const CHANGE_MAX: f64 = 0.0125;

/// Steps done at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub at: DateTime<Utc>,
    pub step: i64,
}

/// What remains of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Eta {
    pub step: i64,
    pub steps_planned: i64,
    /// Measured over the window: steps divided by time.
    pub steps_per_hour: f64,
    /// Estimated remaining hours: at this pace, and at the ends of its 95 % interval.
    pub remaining_hours: f64,
    pub remaining_hours_low: f64,
    pub remaining_hours_high: f64,
    /// At the run's price; empty when that is unknown.
    pub remaining_usd: Option<Usd>,
    pub remaining_usd_low: Option<Usd>,
    pub remaining_usd_high: Option<Usd>,
    /// `None` in the first hour of a run.
    pub pace_change: Option<PaceChange>,
    /// The window behind the estimate.
    pub from_at: DateTime<Utc>,
    pub until_at: DateTime<Utc>,
}

/// How the pace of the later half of what was seen compares with the earlier half's; the first tenth
/// counts in neither.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PaceChange {
    /// Positive: it became faster.
    pub percent: f64,
    /// Whether it is more than noise and large enough to matter. What remains is then good for
    /// comparing runs of one workload, and less so as a date.
    pub has_changed: bool,
}

/// Why there is no estimate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NoEta {
    /// Too few reports, or the number of planned steps is unknown.
    NotEnoughEvidence,
    Finished,
    /// No step has been reported since.
    Stalled {
        since: DateTime<Utc>,
    },
}

/// Estimates at `now` what remains of a run of `steps_planned` steps, at `usd_per_hour` (of all its
/// instances together).
///
/// The pace and its interval are those of [`pace`] over the window. A pace that has changed may change
/// as much again: the interval is wider by that.
pub fn estimate(
    reports: &[Progress],
    steps_planned: i64,
    usd_per_hour: Option<Usd>,
    now: DateTime<Utc>,
) -> Result<Eta, NoEta> {
    let last = reports
        .iter()
        .max_by_key(|report| report.at)
        .ok_or(NoEta::NotEnoughEvidence)?;
    if steps_planned <= 0 {
        return Err(NoEta::NotEnoughEvidence);
    }
    if last.step >= steps_planned {
        return Err(NoEta::Finished);
    }
    let seen = intervals(reports);
    let window = seen.get(seen.len().saturating_sub(WINDOW)..);
    let window = window.unwrap_or_default();
    if window.len() < INTERVALS_MIN {
        return Err(NoEta::NotEnoughEvidence);
    }
    let progressed_at = window.last().map_or(last.at, |interval| interval.until);
    let usual = median(window.iter().map(|interval| interval.seconds).collect());
    let patience = TimeDelta::milliseconds(millis(usual)) * STALL_INTERVALS;
    if now - progressed_at > patience.max(STALL_LEAST) {
        return Err(NoEta::Stalled {
            since: progressed_at,
        });
    }
    let Pace {
        per_second,
        half_width,
        ..
    } = pace(&batches(window)).ok_or(NoEta::NotEnoughEvidence)?;
    let pace_change = pace_change(&seen);
    let changed = pace_change.filter(|change| change.has_changed);
    let half_width =
        half_width + per_second * changed.map_or(0.0, |change| change.percent.abs() / 100.0);
    if per_second <= 0.0 {
        return Err(NoEta::Stalled {
            since: progressed_at,
        });
    }
    let left = real(steps_planned - last.step);
    let hours = |pace: f64| left / pace / 3600.0;
    // An interval that reaches zero has no upper bound: ten times the estimate stands for
    // "unknown".
    let slowest = (per_second - half_width).max(per_second / 10.0);
    let [middle, low, high] = [
        hours(per_second),
        hours(per_second + half_width),
        hours(slowest),
    ];
    let usd = |hours: f64| usd_per_hour.map(|rate| cost::training(whole(hours * 3600.0), 1, rate));
    Ok(Eta {
        step: last.step,
        steps_planned,
        steps_per_hour: per_second * 3600.0,
        remaining_hours: middle,
        remaining_hours_low: low,
        remaining_hours_high: high,
        remaining_usd: usd(middle),
        remaining_usd_low: usd(low),
        remaining_usd_high: usd(high),
        pace_change,
        from_at: window.first().map_or(last.at, |interval| interval.from),
        until_at: progressed_at,
    })
}

/// What was estimated at half of a finished run's steps, and what was left then.
#[derive(Debug, Clone, PartialEq)]
pub struct AtHalf {
    pub estimate: Eta,
    pub remaining_hours: f64,
}

/// Looks back on a run of which at least 95 % of the steps were reported, oldest first: what is missing
/// at its end is taken to have gone at the same pace.
pub fn estimate_at_half(reports: &[Progress], steps_planned: i64) -> Option<AtHalf> {
    let last = reports.last()?;
    if last.step.checked_mul(20)? < steps_planned.checked_mul(19)? {
        return None;
    }
    let is_half = |report: &Progress| report.step.saturating_mul(2) >= steps_planned;
    let place = reports.iter().position(is_half)?;
    let half = reports.get(place)?;
    let estimate = estimate(reports.get(..=place)?, steps_planned, None, half.at).ok()?;
    let (seen, left) = (last.step - half.step, steps_planned - half.step);
    let hours = real((last.at - half.at).num_milliseconds()) / 3.6e6;
    (seen > 0).then(|| AtHalf {
        estimate,
        remaining_hours: hours * real(left) / real(seen),
    })
}

/// The interval between two consecutive reports, with the steps done in it.
#[derive(Debug, Clone, Copy)]
struct Interval {
    from: DateTime<Utc>,
    until: DateTime<Utc>,
    steps: f64,
    seconds: f64,
}

/// The intervals with progress, oldest first. Time in which the step does not advance belongs to the next step, unless
/// nothing was reported for long: then there was no machine. A step that goes back is a resume: the time in between was
/// not spent on new steps, and the steps up to the old mark are repeated at the same pace. They count towards the pace;
/// what remains is counted from `last.step`.
fn intervals(reports: &[Progress]) -> Vec<Interval> {
    let mut sorted = reports.to_vec();
    sorted.sort_by_key(|report| report.at);
    let mut intervals = Vec::new();
    let mut mark: Option<Progress> = None;
    let mut heard_at = DateTime::<Utc>::MIN_UTC;
    for report in sorted {
        match mark {
            // Silence for so long is no slow step.
            Some(mark) if report.step == mark.step && report.at - heard_at <= STALL_LEAST => {
                heard_at = report.at;
                continue;
            }
            Some(mark) if report.step > mark.step && report.at > mark.at => {
                intervals.push(Interval {
                    from: mark.at,
                    until: report.at,
                    steps: real(report.step - mark.step),
                    seconds: real((report.at - mark.at).num_milliseconds()) / 1e3,
                });
            }
            _ => {}
        }
        mark = Some(report);
        heard_at = report.at;
    }
    intervals
}

fn batches(intervals: &[Interval]) -> Vec<Batch> {
    let batch = |one: &Interval| Batch {
        done: one.steps,
        seconds: one.seconds,
    };
    intervals.iter().map(batch).collect()
}

fn pace_change(seen: &[Interval]) -> Option<PaceChange> {
    let begin = seen.first()?.from;
    let elapsed = seen.last()?.until - begin;
    let share_of = |share: f64| TimeDelta::milliseconds(millis(share * elapsed.as_seconds_f64()));
    if share_of(1.0 - WARM_UP) < CHANGE_SEEN_LEAST {
        return None;
    }
    let after = |share: f64| {
        let at = begin + share_of(share);
        seen.partition_point(|interval| interval.from < at)
    };
    let (first, middle) = (after(WARM_UP), after(f64::midpoint(WARM_UP, 1.0)));
    let earlier = pace_seen(&batches(seen.get(first..middle)?))?;
    let later = pace_seen(&batches(seen.get(middle..)?))?;
    let ratio = later.per_second / earlier.per_second - 1.0;
    let noise = earlier.half_width.hypot(later.half_width) / earlier.per_second;
    ratio.is_finite().then_some(PaceChange {
        percent: 100.0 * ratio,
        has_changed: ratio.abs() > CHANGE_MAX.max(noise),
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "steps and milliseconds lie far below 2^53"
)]
fn real(value: i64) -> f64 {
    value as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float saturates, and is not negative"
)]
fn whole(seconds: f64) -> u64 {
    seconds.round() as u64
}

#[expect(clippy::cast_possible_truncation, reason = "a float saturates")]
fn millis(seconds: f64) -> i64 {
    (seconds * 1e3).min(1e15) as i64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rust_decimal::Decimal;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    /// One report every `every` seconds, at `per_hour` steps per hour.
    fn steady(per_hour: i64, every: i64, count: i64) -> Vec<Progress> {
        (0..count)
            .map(|i| Progress {
                at: at(i * every),
                step: i * every * per_hour / 3600,
            })
            .collect()
    }

    /// Hourly rate of the documents' eight H100.
    const RATE: Option<Usd> = Some(Usd(Decimal::from_parts(792, 0, 0, false, 2)));

    /// At an even pace it was right; one that slowed down to a half afterwards had twice as much left.
    #[test]
    fn an_estimate_is_held_against_what_was_left() {
        let even = steady(600, 300, 101);
        let looked = estimate_at_half(&even, 5_000).unwrap();
        assert!((looked.estimate.remaining_hours / looked.remaining_hours - 1.0).abs() < 1e-6);
        assert!(
            (looked.remaining_hours - 2500.0 / 600.0).abs() < 1e-6,
            "{looked:?}"
        );
        let slowed: Vec<Progress> = even
            .iter()
            .map(|report| {
                let late = (report.at - even[50].at).max(TimeDelta::zero());
                Progress {
                    at: report.at + late,
                    step: report.step,
                }
            })
            .collect();
        let looked = estimate_at_half(&slowed, 5_000).unwrap();
        let ratio = looked.remaining_hours / looked.estimate.remaining_hours;
        assert!((ratio - 2.0).abs() < 1e-6, "{ratio}");
        assert_eq!(
            estimate_at_half(&even[..90], 5_000),
            None,
            "it did not finish"
        );
    }

    /// Document 003: 51.6 B tokens at 512 × 2048 per step are 49,209 steps; 350 per hour, $7.92 per
    /// hour.
    #[test]
    fn the_documents_estimate_is_reproduced() {
        let planned = 51_600_000_000 / (512 * 2048);
        assert_eq!(planned, 49_209);
        let reports = steady(350, 3600, 5);
        let eta = estimate(&reports, planned + reports[4].step, RATE, reports[4].at).unwrap();
        assert!((eta.remaining_hours - 140.6).abs() < 0.05, "{eta:?}");
        assert!(
            (eta.remaining_usd.unwrap().as_f64() - 1113.5).abs() < 0.1,
            "{eta:?}"
        );
        let fast = steady(2500, 3600, 5);
        let eta = estimate(&fast, 100_000 + fast[4].step, RATE, fast[4].at).unwrap();
        assert!(
            (eta.remaining_hours - 40.0).abs() < 1e-9
                && eta.remaining_hours_low <= eta.remaining_hours
        );
        assert_eq!(eta.remaining_usd.unwrap().to_string(), "$316.80");
    }

    #[test]
    fn a_resume_is_not_counted_twice_and_leaves_the_pace_alone() {
        let mut reports = steady(3600, 60, 20);
        let back = Progress {
            at: at(20 * 60 + 600),
            step: 600,
        };
        let resumed = (1..=10).map(|i| Progress {
            at: back.at + TimeDelta::seconds(i * 60),
            step: 600 + i * 60,
        });
        reports.push(back);
        reports.extend(resumed);
        let eta = estimate(&reports, 4800, None, reports[30].at).unwrap();
        assert!((eta.steps_per_hour - 3600.0).abs() < 1e-6, "{eta:?}");
        assert_eq!(
            (eta.step, (eta.remaining_hours * 3600.0).round()),
            (1200, 3600.0)
        );
        assert_eq!(eta.remaining_usd, None);
    }

    /// Three hours at a report a minute; from the second half of what counts on at another pace.
    fn of_two_halves(later: i64) -> Result<Eta, NoEta> {
        let mut step = 0;
        let reports: Vec<Progress> = (0..=180)
            .map(|minute| {
                step += if minute > 99 { later } else { 1000 };
                Progress {
                    at: at(minute * 60),
                    step,
                }
            })
            .collect();
        estimate(&reports, 2 * step, None, reports[180].at)
    }

    #[test]
    fn a_pace_that_changed_is_said_and_may_change_again() {
        let [slower, even] = [960, 990].map(|later| of_two_halves(later).unwrap());
        let change = slower.pace_change.unwrap();
        assert!(change.has_changed && (change.percent + 4.0).abs() < 0.1);
        let small = even.pace_change.unwrap();
        assert!(!small.has_changed && (small.percent + 1.0).abs() < 0.1);
        let half = |eta: &Eta| 1.0 - eta.remaining_hours / eta.remaining_hours_high;
        assert!((half(&even) - 0.02).abs() < 1e-3, "{even:?}");
        assert!((half(&slower) - 0.06).abs() < 1e-3, "{slower:?}");
        let first_hour = steady(3600, 60, 60);
        let young = estimate(&first_hour, 10_000, None, first_hour[59].at).unwrap();
        assert_eq!(young.pace_change, None);
    }

    /// Minutes with ten steps and with a thousand: 5 % between the halves are no more than chance.
    #[test]
    fn noise_is_no_change() {
        let mut step = 0;
        let uneven = [10, 400, 60, 900, 300, 20, 800, 0, 1000, 40];
        let reports: Vec<Progress> = (0..=180)
            .zip(uneven.iter().cycle())
            .map(|(minute, done)| {
                step += done * if minute > 99 { 21 } else { 20 };
                Progress {
                    at: at(minute * 60),
                    step,
                }
            })
            .collect();
        let eta = estimate(&reports, 2 * step, None, reports[180].at).unwrap();
        let change = eta.pace_change.unwrap();
        assert!(!change.has_changed && change.percent > 2.0, "{change:?}");
    }

    #[test]
    fn who_stands_still_has_no_estimate() {
        let reports = steady(3600, 60, 20);
        let late = |minutes| {
            estimate(
                &reports,
                10_000,
                None,
                reports[19].at + TimeDelta::minutes(minutes),
            )
        };
        assert!(late(19).is_ok());
        assert_eq!(
            late(21),
            Err(NoEta::Stalled {
                since: reports[19].at
            })
        );
        // It still reports, but makes no progress.
        let mut stuck = reports.clone();
        stuck.extend((1..30).map(|i| Progress {
            at: reports[19].at + TimeDelta::minutes(i),
            step: reports[19].step,
        }));
        let now = stuck.last().unwrap().at;
        assert_eq!(
            estimate(&stuck, 10_000, None, now),
            Err(NoEta::Stalled {
                since: reports[19].at
            })
        );
    }

    /// Resumed at the step at which it was interrupted: the hours in between trained nothing.
    #[test]
    fn hours_without_instances_are_no_slow_step() {
        let hour = |place: i64, from: i64, step: i64| Progress {
            at: at(from + place * 60),
            step: step + place * 10,
        };
        let before = (0..=10).map(|place| hour(place, 0, 0));
        let after = (0..=10).map(|place| hour(place, 600 + 5 * 3600, 100));
        let reports: Vec<Progress> = before.chain(after).collect();
        let now = reports.last().unwrap().at;
        let eta = estimate(&reports, 800, None, now).unwrap();
        assert!((eta.steps_per_hour - 600.0).abs() < 1.0, "{eta:?}");
    }

    /// A step takes 90 s, and is reported every 30: 40 an hour, however often it is said again.
    #[test]
    fn time_without_a_new_step_counts() {
        let reports: Vec<Progress> = (0..=120)
            .map(|place| Progress {
                at: at(place * 30),
                step: place / 3,
            })
            .collect();
        let eta = estimate(&reports, 80, None, at(3600)).unwrap();
        assert!((eta.steps_per_hour - 40.0).abs() < 0.01, "{eta:?}");
        assert!((eta.remaining_hours - 1.0).abs() < 0.001, "{eta:?}");
    }

    #[test]
    fn little_evidence_is_not_enough_and_the_end_is_the_end() {
        assert_eq!(
            estimate(&[], 10, None, at(0)),
            Err(NoEta::NotEnoughEvidence)
        );
        assert_eq!(
            estimate(&steady(60, 60, 3), 1000, None, at(120)),
            Err(NoEta::NotEnoughEvidence)
        );
        assert_eq!(
            estimate(&steady(60, 60, 9), 0, None, at(480)),
            Err(NoEta::NotEnoughEvidence)
        );
        assert_eq!(
            estimate(&steady(60, 60, 9), 8, None, at(480)),
            Err(NoEta::Finished)
        );
    }

    #[test]
    fn an_uneven_pace_has_a_wide_interval_that_holds_the_truth() {
        let steps = [0, 50, 200, 230, 400, 420, 600, 610, 800];
        let reports: Vec<Progress> = steps
            .iter()
            .zip(0..)
            .map(|(step, i)| Progress {
                at: at(i * 60),
                step: *step,
            })
            .collect();
        let eta = estimate(&reports, 8800, None, at(480)).unwrap();
        assert!(
            eta.remaining_hours_low < 1.2 && eta.remaining_hours_high > 1.5,
            "{eta:?}"
        );
    }

    proptest! {
        #[test]
        fn an_estimate_is_finite_and_in_order(
            gaps in prop::collection::vec((0i64..5000, -50i64..500), 0..60), planned in -10i64..100_000,
        ) {
            let (mut seconds, mut step) = (0, 0);
            let reports: Vec<Progress> = gaps.iter().map(|(gap, steps)| {
                seconds += gap;
                step = (step + steps).max(0);
                Progress { at: at(seconds), step }
            }).collect();
            if let Ok(eta) = estimate(&reports, planned, RATE, at(seconds)) {
                prop_assert!(eta.remaining_hours_low <= eta.remaining_hours);
                prop_assert!(eta.remaining_hours <= eta.remaining_hours_high && eta.remaining_hours_high.is_finite());
                prop_assert!(eta.steps_per_hour > 0.0);
            }
        }
    }
}
