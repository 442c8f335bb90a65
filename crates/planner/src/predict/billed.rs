//! What a run is expected to be billed, from its predicted speed: the time of its steps, of what recurs between
//! them, and of what every job pays once beside them.

use bakeoff_domain::measure::overhead::{Observed, Overhead};
use bakeoff_domain::measure::speed::SteppingShare;
use bakeoff_domain::money::cost;
use bakeoff_domain::number::real;
use bakeoff_domain::spec::{Candidate, ExperimentSpec};

use crate::predict::forecast::Interval;

/// What is billed beside the steps of a candidate's jobs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BesideSteps {
    pub(crate) overhead: Overhead,
    stepping: SteppingShare,
}

impl BesideSteps {
    /// By the jobs of this code that were measured before, and by what is assumed.
    pub(crate) fn of(spec: &ExperimentSpec, candidate: Candidate<'_>) -> Self {
        let measured = spec.measurements.iter();
        let observed: Vec<Observed> = measured
            .filter_map(|one| {
                Some(Observed {
                    seconds: one.overhead_seconds?,
                    is_same_type: one.instance_type == candidate.spec.instance_type,
                })
            })
            .collect();
        let channels = candidate.workload.channels.iter();
        let gigabytes: u32 = channels.filter_map(|channel| channel.size_gb).sum();
        let download = cost::transfer_seconds(0.0, f64::from(gigabytes) * 1e9);
        Self {
            overhead: Overhead::assumed(real(download)).after(&observed),
            stepping: SteppingShare::ASSUMED,
        }
    }

    /// The same of a trial that does what recurs at intervals so many times shorter.
    pub(crate) fn oftener(self, factor: Option<f64>) -> Self {
        Self {
            stepping: self
                .stepping
                .at_longer_intervals(factor.unwrap_or(1.0).recip()),
            ..self
        }
    }

    /// Billed hours to train on so many tokens.
    pub(crate) fn hours(self, tokens: u64, tokens_per_second: Interval) -> Interval {
        let Self { overhead, stepping } = self;
        let steps = real(tokens) / (tokens_per_second.expected * stepping.mean);
        let all = steps + overhead.seconds;
        let of_steps = tokens_per_second
            .log_sd()
            .hypot(stepping.sd / stepping.mean);
        let of_overhead = overhead.log_sd;
        let log_sd = (of_steps * steps / all).hypot(of_overhead * overhead.seconds / all);
        Interval::about(all / 3600.0, log_sd)
    }

    /// In words.
    pub(crate) fn basis(self) -> String {
        let [low, high] = self.overhead.interval();
        let source = match self.overhead.jobs {
            0 => "assumed, as no job of this code has been measured".to_owned(),
            1 => "measured on one job of this code".to_owned(),
            jobs => format!("measured on {jobs} jobs of this code"),
        };
        format!(
            "hours are billed ones: beside its steps a job pays {:.0} minutes ({:.0} to {:.0}) for downloads, start and upload ({source}), and evaluations and checkpoints take {:.0} ± {:.0} % of the time (assumed)",
            self.overhead.seconds / 60.0,
            low / 60.0,
            high / 60.0,
            100.0 * (1.0 - self.stepping.mean),
            100.0 * self.stepping.sd
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside() -> BesideSteps {
        BesideSteps {
            overhead: Overhead::assumed(0.0),
            stepping: SteppingShare::ASSUMED,
        }
    }

    /// By hand: an hour of steps at 95 %, and five minutes. What is short is mostly its start, and as unsure as that.
    #[test]
    fn a_short_trial_is_as_unsure_as_its_start() {
        let speed = Interval::about(1000.0, 0.05);
        let hour = beside().hours(3_600_000, speed);
        assert!((hour.expected - (1.0 / 0.95 + 300.0 / 3600.0)).abs() < 1e-9);
        assert!((0.06..0.08).contains(&hour.log_sd()), "{}", hour.log_sd());
        let minute = beside().hours(60_000, speed);
        assert!(minute.log_sd() > 0.4, "{}", minute.log_sd());
        let long = beside().hours(3_600_000_000, speed);
        assert!((long.log_sd() - 0.0590).abs() < 1e-3, "{}", long.log_sd());
    }

    /// 5.3 % of the stepping time, ten times as often, is 52.6 %.
    #[test]
    fn what_recurs_oftener_takes_longer() {
        let speed = Interval::about(1000.0, 0.05);
        let trial = beside().oftener(Some(10.0)).hours(3_600_000, speed);
        let expected = 1.0 + 10.0 * (1.0 / 0.95 - 1.0) + 300.0 / 3600.0;
        assert!((trial.expected - expected).abs() < 1e-9);
    }
}
