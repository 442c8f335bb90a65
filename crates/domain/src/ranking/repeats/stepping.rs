//! How much of a full run's time its steps take, from what each trial lost to evaluations, checkpoints
//! and stalls. Types with the same code lose nearly the same share, so that each trial tells of the
//! others; it does not say what the steps' own speed is.

use crate::measure::speed::{self, SteppingShare};
use crate::ranking::outcome::{Outcome, Pauses};
use crate::ranking::posterior::Contender;

/// How much types differ in what they lose, as a share of the loss: assumed, as evaluations and
/// checkpoints take longer where hosts and disks are slower.
const LOSS_DIFFERS: f64 = 0.25;

/// What the trials of an experiment say together.
pub(super) struct Stepping<'a> {
    outcomes: &'a [Outcome],
}

/// The share of one choice, with what is shared by all of the uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::ranking) struct Share {
    pub(in crate::ranking) mean: f64,
    /// Standard deviations of its logarithm: of this choice alone, and of all choices together.
    own_sd: f64,
    shared_sd: f64,
}

impl Share {
    /// Where nothing is known, or the speed is of all the time: there is nothing more to count.
    const WHOLE: Self = Self {
        mean: 1.0,
        own_sd: 0.0,
        shared_sd: 0.0,
    };

    /// Adds its uncertainty to that of a contender.
    pub(super) fn widen(self, contender: &mut Contender) {
        contender.log_sd = contender.log_sd.hypot(self.own_sd);
        contender.shared_log_sd = contender.shared_log_sd.hypot(self.shared_sd);
    }
}

impl<'a> Stepping<'a> {
    pub(super) fn of(outcomes: &'a [Outcome]) -> Self {
        Self { outcomes }
    }

    /// The share of one choice: what its own trials lost, and those of others as far as they are like
    /// it. `None` if no trial's steps are known, or those of one contradict its speed.
    pub(super) fn of_choice(&self, trials: &[&Outcome]) -> Option<Share> {
        let mut all = self.outcomes.iter();
        if all.any(|one| one.pauses == Pauses::Contradictory) {
            return None;
        }
        if let Some(one) = trials.iter().find(|one| one.pauses == Pauses::InSpeed) {
            let speed = one.tokens_per_second.as_ref();
            let seen = speed.map(|speed| (speed.until_at - speed.from_at).as_seconds_f64());
            return Some(Share {
                shared_sd: seen.map_or(0.0, speed::unseen_sd),
                ..Share::WHOLE
            });
        }
        let everything = || self.outcomes.iter().filter_map(Outcome::stepping);
        everything().next()?;
        let assumed = || std::iter::once(SteppingShare::ASSUMED);
        let differs = LOSS_DIFFERS * (1.0 - combined(everything().chain(assumed()))?.mean);
        let apart = |share: SteppingShare| SteppingShare {
            sd: share.sd.hypot(differs),
            ..share
        };
        let code = combined(everything().map(apart).chain(assumed()))?;
        let is_own = |outcome: &&Outcome| trials.iter().any(|trial| std::ptr::eq(*trial, *outcome));
        let others = self.outcomes.iter().filter(|outcome| !is_own(outcome));
        let others = others.filter_map(Outcome::stepping).map(apart);
        let others = combined(others.chain(assumed())).map(apart);
        let own = trials.iter().filter_map(|trial| trial.stepping());
        let own = combined(own.chain(others))?;
        let shared = code.sd.min(own.sd);
        Some(Share {
            mean: own.mean,
            own_sd: (own.sd.powi(2) - shared.powi(2)).max(0.0).sqrt() / own.mean,
            shared_sd: shared / own.mean,
        })
    }
}

impl From<Option<Share>> for Share {
    fn from(share: Option<Share>) -> Self {
        share.unwrap_or(Self::WHOLE)
    }
}

/// The mean of independent observations, weighed by their precision.
fn combined(shares: impl Iterator<Item = SteppingShare>) -> Option<SteppingShare> {
    let (mut weight, mut sum) = (0.0, 0.0);
    for share in shares {
        let own = share.sd.powi(-2);
        weight += own;
        sum += own * share.mean;
    }
    (weight > 0.0).then(|| SteppingShare {
        mean: sum / weight,
        sd: weight.powf(-0.5),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranking::samples::waiting;

    fn trial(candidate: &str, stepping: Option<(f64, f64)>) -> Outcome {
        Outcome {
            pauses: stepping.map_or(Pauses::Unknown, |(mean, sd)| {
                Pauses::Apart(SteppingShare { mean, sd })
            }),
            ..waiting(candidate, 10, 1000.0)
        }
    }

    fn share(outcomes: &[Outcome], place: usize) -> Option<Share> {
        Stepping::of(outcomes).of_choice(&[&outcomes[place]])
    }

    #[test]
    fn one_that_has_not_run_is_expected_to_lose_what_the_others_lost() {
        let outcomes = [
            trial("a", Some((0.92, 0.01))),
            trial("b", None),
            trial("c", Some((0.90, 0.01))),
        ];
        let unseen = share(&outcomes, 1).unwrap();
        // By hand: each tells of the code by 0.01 ⊕ a quarter of what is lost, beside 0.95 ± 0.03; of
        // another type less.
        assert!((0.915..0.925).contains(&unseen.mean), "{unseen:?}");
        assert!((0.014..0.017).contains(&unseen.shared_sd), "{unseen:?}");
        assert!((0.020..0.026).contains(&unseen.own_sd), "{unseen:?}");
    }

    #[test]
    fn a_short_trial_leans_on_a_long_one() {
        let outcomes = [
            trial("a", Some((0.80, 0.10))),
            trial("b", Some((0.94, 0.01))),
        ];
        let short = share(&outcomes, 0).unwrap();
        assert!((0.92..0.94).contains(&short.mean), "{short:?}");
        let long = share(&outcomes, 1).unwrap();
        assert!((0.935..0.94).contains(&long.mean), "{long:?}");
        assert!(long.shared_sd + long.own_sd < 0.02, "{long:?}");
    }

    /// A few minutes at the start of a run hold no pause yet; hours do.
    #[test]
    fn what_was_not_seen_for_long_is_assumed() {
        let mean = |sd: f64| share(&[trial("a", Some((1.0, sd)))], 0).unwrap().mean;
        assert!((0.955..0.97).contains(&mean(0.05)), "{}", mean(0.05));
        assert!(mean(0.01) > 0.985, "{}", mean(0.01));
    }

    #[test]
    fn without_steps_nothing_is_known() {
        assert_eq!(share(&[trial("a", None)], 0), None);
    }

    /// One that was measured by its steps has its pauses in its speed, and one whose steps contradict
    /// its speed makes all shares of its code doubtful.
    #[test]
    fn pauses_are_counted_once() {
        let mut outcomes = [trial("a", Some((0.9, 0.01))), trial("b", None)];
        outcomes[1].pauses = Pauses::InSpeed;
        assert_eq!(share(&outcomes, 1), Some(Share::WHOLE));
        outcomes[1].pauses = Pauses::Contradictory;
        assert_eq!(share(&outcomes, 0), None);
    }
}
