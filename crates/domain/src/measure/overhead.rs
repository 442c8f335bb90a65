//! Time that a job is billed for apart from its training steps: downloading the image and data, bringing the script
//! up to full speed, and uploading. It is paid once for each job, however long it trains; what recurs
//! between the steps is [`crate::measure::speed::SteppingShare`].

use serde::{Deserialize, Serialize};

use crate::number::{NORMAL_95, of_items, real};

/// Seconds of a job whose data is small, as long as none was measured: assumed. In published logs of jobs the
/// download of image and data takes 20 seconds to 5 minutes; the script's own start and the upload come on top.
const ASSUMED_SECONDS: f64 = 300.0;
/// Standard deviations of its logarithm, assumed: from one code and its data to another,
const CODE_SD: f64 = 0.5;
/// between instance types with the same code,
const TYPE_SD: f64 = 0.15;
/// and from one job to the next on one type.
const JOB_SD: f64 = 0.25;
/// Shorter ones count as this long: their logarithm would be all that counts.
const LEAST_SECONDS: f64 = 10.0;
/// The least variance that is left of a belief.
const VARIANCE_LEAST: f64 = 1e-6;

/// Billed seconds of the next job beside its steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// The median.
    pub seconds: f64,
    /// Standard deviation of the logarithm.
    pub log_sd: f64,
    /// Jobs of the same code that it was measured on; without any it is assumed.
    pub jobs: u32,
}

/// What an earlier job of the same code was billed beside its steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observed {
    pub seconds: f64,
    /// Whether it ran on the type that is asked about.
    pub is_same_type: bool,
}

/// A job on demand that has ended, completed or stopped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndedJob {
    pub billable_seconds: u64,
    pub is_completed: bool,
    /// Tokens of the whole trial.
    pub trial_tokens: f64,
    /// Tokens trained according to its last report.
    pub tokens_done: Option<f64>,
    /// Whether those were done in one attempt: of several, the steps of one say nothing.
    pub is_of_one_attempt: bool,
    /// Tokens per second of all its time after the start.
    pub goodput: f64,
}

impl EndedJob {
    /// What it was billed beside its steps, seconds; `None` if that cannot be told, as where it was stopped and its steps
    /// are not known.
    pub fn billed_beside_steps(self) -> Option<f64> {
        let done = if self.is_completed {
            self.trial_tokens
        } else {
            self.tokens_done.filter(|_| self.is_of_one_attempt)?
        };
        let billed = Some(self.billable_seconds).filter(|seconds| *seconds > 0)?;
        Some((real(billed) - done / self.goodput).max(0.0))
    }
}

impl Overhead {
    /// Before any job of this code was measured. `download_seconds`: to download data of known size.
    pub fn assumed(download_seconds: f64) -> Self {
        Self {
            seconds: ASSUMED_SECONDS + download_seconds.max(0.0),
            log_sd: CODE_SD.hypot(TYPE_SD).hypot(JOB_SD),
            jobs: 0,
        }
    }

    /// Once these jobs of the same code were observed. Jointly Gaussian in logarithms: a level of the code, one of each
    /// type about it, and each job about that.
    #[must_use]
    pub fn after(self, observed: &[Observed]) -> Self {
        let logs = |is_same_type: bool| -> Vec<f64> {
            let own = observed.iter();
            let own = own.filter(|one| one.is_same_type == is_same_type && one.seconds.is_finite());
            own.map(|one| one.seconds.max(LEAST_SECONDS).ln()).collect()
        };
        let (same, other) = (logs(true), logs(false));
        let job = JOB_SD.powi(2);
        let of_type = Belief {
            log: self.seconds.ln(),
            variance: (self.log_sd.powi(2) - job).max(VARIANCE_LEAST),
        };
        let code = Belief {
            variance: (of_type.variance - TYPE_SD.powi(2)).max(VARIANCE_LEAST),
            ..of_type
        };
        let learnt = code.after(&other, TYPE_SD.powi(2) + job);
        let of_type = Belief {
            log: learnt.log,
            variance: of_type.variance - code.variance + learnt.variance,
        };
        let of_type = of_type.after(&same, job);
        let jobs = u32::try_from(same.len() + other.len()).unwrap_or(u32::MAX);
        Self {
            seconds: of_type.log.exp(),
            log_sd: (of_type.variance + job).sqrt(),
            jobs: self.jobs.saturating_add(jobs),
        }
    }

    /// The ends of the 90 % interval, seconds.
    pub fn interval(self) -> [f64; 2] {
        let factor = (NORMAL_95 * self.log_sd).exp();
        [self.seconds / factor, self.seconds * factor]
    }
}

/// A normal belief about a logarithm.
#[derive(Clone, Copy)]
struct Belief {
    log: f64,
    variance: f64,
}

impl Belief {
    /// Once these were observed, each with this variance about it.
    fn after(self, observed: &[f64], each: f64) -> Self {
        let weight = self.variance.recip() + of_items(observed.len()) / each;
        let sum = self.log / self.variance + observed.iter().sum::<f64>() / each;
        Self {
            log: sum / weight,
            variance: weight.recip(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(seconds: &[f64], is_same_type: bool) -> Vec<Observed> {
        let one = |seconds: &f64| Observed {
            seconds: *seconds,
            is_same_type,
        };
        seconds.iter().map(one).collect()
    }

    #[test]
    fn only_steps_that_are_known_are_taken_off() {
        let job = EndedJob {
            billable_seconds: 1_000,
            is_completed: true,
            trial_tokens: 6_000.0,
            tokens_done: Some(3_000.0),
            is_of_one_attempt: true,
            goodput: 10.0,
        };
        let stopped = EndedJob {
            is_completed: false,
            ..job
        };
        let again = EndedJob {
            is_of_one_attempt: false,
            ..stopped
        };
        let beside = EndedJob::billed_beside_steps;
        assert_eq!(
            (beside(job), beside(stopped), beside(again)),
            (Some(400.0), Some(700.0), None)
        );
        let faster = EndedJob {
            goodput: 1.0,
            ..job
        };
        assert_eq!(beside(faster), Some(0.0), "never less than nothing");
        let unbilled = EndedJob {
            billable_seconds: 0,
            ..job
        };
        assert_eq!(beside(unbilled), None);
    }

    /// √(0.5² + 0.15² + 0.25²) = 0.579: from 116 to 777 seconds.
    #[test]
    fn before_any_job_it_is_wide() {
        let before = Overhead::assumed(0.0);
        assert!((before.seconds - 300.0).abs() < 1e-6 && before.jobs == 0);
        let [low, high] = before.interval();
        assert!((115.0..117.0).contains(&low) && (775.0..780.0).contains(&high));
        assert!((Overhead::assumed(500.0).seconds - 800.0).abs() < 1e-6);
    }

    #[test]
    fn jobs_of_the_type_say_more_than_those_of_others() {
        let same = Overhead::assumed(0.0).after(&jobs(&[600.0; 4], true));
        let other = Overhead::assumed(0.0).after(&jobs(&[600.0; 4], false));
        assert!(same.seconds > other.seconds && other.seconds > 500.0);
        assert!(same.log_sd < other.log_sd && other.log_sd < 0.35);
        assert!(same.log_sd > JOB_SD && same.jobs == 4);
    }

    /// Learning all at once or step by step gives the same result.
    #[test]
    fn learning_goes_on_where_it_stopped() {
        let (first, then) = (jobs(&[500.0, 700.0], true), jobs(&[400.0], true));
        let once = Overhead::assumed(0.0).after(&[&first[..], &then].concat());
        let twice = Overhead::assumed(0.0).after(&first).after(&then);
        assert!((once.seconds - twice.seconds).abs() < 1e-6 && once.jobs == twice.jobs);
        assert!((once.log_sd - twice.log_sd).abs() < 1e-9);
    }

    /// NaN, infinite, zero and negative observations leave the estimate sound.
    #[test]
    fn odd_observations_leave_it_sound() {
        let odd = jobs(&[f64::NAN, f64::INFINITY, 0.0, -5.0], true);
        let after = Overhead::assumed(f64::NAN).after(&odd);
        assert!(after.seconds > 5.0 && after.seconds < 300.0 && after.jobs == 2);
    }
}
