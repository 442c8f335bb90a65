//! The pace of a run: what was done per second of wall time, with a 95 % interval. It neither cuts
//! a warm-up ([`crate::measure::steady`]) nor says what remains ([`crate::measure::eta`]).

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The least half width of an interval, as a share of the pace. The noise of a window says nothing
/// of slow drift over the hours to come: on open training traces, a floor of 2 % holds nearly
/// always, one of 1 % in four of five.
pub const DRIFT: f64 = 0.02;
/// The largest autocorrelation that is corrected for: beyond it, the correction diverges.
const CORRELATION_MAX: f64 = 0.9;

/// What was done (steps or tokens) in a stretch of wall time, stalls included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batch {
    pub done: f64,
    pub seconds: f64,
}

impl Batch {
    /// What was done per second.
    pub fn rate(&self) -> f64 {
        self.done / self.seconds
    }
}

/// A pace with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Σ done / Σ seconds.
    pub per_second: f64,
    /// Half width of the 95 % interval, at least [`DRIFT`] of the pace.
    pub half_width: f64,
    /// Wall time that it was seen for; earlier versions did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// The pace over consecutive batches, oldest first; `None` for fewer than two, or without time.
///
/// A ratio estimator, Σ done / Σ seconds: the mean of the batches' own rates would weigh a fast
/// second as much as a slow minute. Its standard error is by the delta method (Cochran 1977, chapter
/// 6), corrected for the residuals' first autocorrelation, since stalls cluster; the quantile is
/// Student's, since batches are few.
pub fn pace(batches: &[Batch]) -> Option<Pace> {
    let seen = pace_seen(batches)?;
    Some(Pace {
        half_width: seen.half_width.max(DRIFT * seen.per_second.abs()),
        ..seen
    })
}

/// The pace of what was seen; its interval counts the noise only, and says nothing of the hours to come.
pub(crate) fn pace_seen(batches: &[Batch]) -> Option<Pace> {
    let n = f64::from(u32::try_from(batches.len()).ok()?);
    let seconds: f64 = batches.iter().map(|batch| batch.seconds).sum();
    if n < 2.0 || seconds <= 0.0 {
        return None;
    }
    let per_second = batches.iter().map(|batch| batch.done).sum::<f64>() / seconds;
    let residuals: Vec<f64> = batches
        .iter()
        .map(|batch| batch.done - per_second * batch.seconds)
        .collect();
    let squares: f64 = residuals.iter().map(|residual| residual * residual).sum();
    let products: f64 = residuals
        .windows(2)
        .map(|pair| pair.iter().product::<f64>())
        .sum();
    let correlation = if squares > 0.0 {
        (products / squares).clamp(0.0, CORRELATION_MAX)
    } else {
        0.0
    };
    let variance = n / (n - 1.0) * squares / (seconds * seconds);
    let standard_error = (variance * (1.0 + correlation) / (1.0 - correlation)).sqrt();
    let quantile = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf(0.975);
    Some(Pace {
        per_second,
        half_width: quantile * standard_error,
        seconds: Some(seconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(batches: &[(f64, f64)]) -> Pace {
        let batch = |&(done, seconds): &(f64, f64)| Batch { done, seconds };
        pace(&batches.iter().map(batch).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_slow_minute_weighs_more_than_a_fast_second() {
        let pace = of(&[(10.0, 1.0), (10.0, 60.0)]);
        assert!((pace.per_second - 20.0 / 61.0).abs() < 1e-12);
    }

    /// By hand: rate 2, residuals -2, 2, 0; n/(n-1)·8/225 = 0.0533; √ = 0.2309; t = 4.3027.
    #[test]
    fn the_interval_is_students() {
        let pace = of(&[(8.0, 5.0), (12.0, 5.0), (10.0, 5.0)]);
        assert!((pace.per_second - 2.0).abs() < 1e-12);
        assert!((pace.half_width - 0.9937).abs() < 1e-3, "{pace:?}");
    }

    #[test]
    fn stalls_that_cluster_widen_it() {
        let apart = of(&[(1.0, 1.0), (9.0, 1.0), (1.0, 1.0), (9.0, 1.0)]);
        let together = of(&[(1.0, 1.0), (1.0, 1.0), (9.0, 1.0), (9.0, 1.0)]);
        assert!(together.half_width > 1.2 * apart.half_width);
    }

    #[test]
    fn perfect_regularity_is_not_certainty() {
        let pace = of(&[(100.0, 1.0); 50]);
        assert!((pace.half_width - 2.0).abs() < 1e-9);
    }

    #[test]
    fn one_batch_or_no_time_is_no_pace() {
        assert_eq!(
            pace(&[Batch {
                done: 1.0,
                seconds: 1.0
            }]),
            None
        );
        assert_eq!(
            pace(
                &[Batch {
                    done: 1.0,
                    seconds: 0.0
                }; 3]
            ),
            None
        );
    }
}
