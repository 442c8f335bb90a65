//! From trials to choices: the repeats of a candidate under one purchase option are one choice, and
//! what differs between them teaches how much machines differ. A choice that has not been measured
//! counts by its prediction, corrected by how far the same code was off on the others.

mod stepping;

use std::f64::consts::SQRT_2;

use crate::catalog;
use crate::lifecycle::state::TrialState;
use crate::measure::overhead::{Observed, Overhead};
use crate::measure::steady::Steady;
use crate::money::Usd;
use crate::money::price::Price;
use crate::number::{NORMAL_975, of_items, real};
use crate::ranking::outcome::{FullRun, Outcome, Predicted, Tokens};
use crate::ranking::posterior::{Contender, PaidFactor, Rate};
use crate::ranking::recommendation::Ranked;
use crate::spec::PurchaseOption;

pub(super) use stepping::Share;
use stepping::Stepping;

/// How much one type's machines differ in speed, as a standard deviation, and how many observations
/// that belief is worth. MLPerf's systems with the same accelerator differ by 1.3 to 3.6 %.
const HOST_SD: f64 = 0.015;
const HOST_WORTH: f64 = 5.0;
/// The least standard deviation of a code's own factor against its predictions, however well it is
/// known.
const CODE_SD_LEAST: f64 = 0.15;
/// How much the ratio of two types of different generations differs from the predicted one. For the
/// code that the law was fitted to it is 0.057 (30 pairs of types in cells that the fit had not seen),
/// on published runs of other codes 0.16.
const TYPE_SD: f64 = 0.11;
/// The least that a type may be off by itself as long as the code has not been measured on any.
const UNMEASURED_SD: f64 = 0.16;
/// The same between types with accelerators of one generation: 0.063 in 14 such pairs, and some of
/// those near the limit of their memory differ more.
const GENERATION_SD: f64 = 0.08;
/// What a spot run pays of the on-demand price: unknown before one has run.
const SPOT_SHARE: PaidFactor = PaidFactor {
    least: 0.25,
    most: 1.0,
};
/// How far the next spot run's bill may be from that of the one observed, as factors.
const SPOT_AGAIN: PaidFactor = PaidFactor {
    least: 0.85,
    most: 1.5,
};
const WHOLE: PaidFactor = PaidFactor {
    least: 1.0,
    most: 1.0,
};

/// A ranked row, and what its full run is drawn from.
pub(super) struct Projection {
    pub(super) row: Ranked,
    run: FullRun,
    /// Standard deviation of the logarithm of its mean speed.
    log_sd: f64,
}

/// The trials of one candidate under one purchase option.
pub(super) struct Pool<'a> {
    pub(super) trials: Vec<&'a Outcome>,
}

impl Pool<'_> {
    fn may_run(&self) -> bool {
        self.trials.iter().any(|one| !one.state.is_terminal())
    }

    /// The trial that stands for a choice that has not been measured: one that may still run, or else the first.
    pub(super) fn standing(&self) -> usize {
        let mut states = self.trials.iter().map(|one| one.state);
        states.position(|state| !state.is_terminal()).unwrap_or(0)
    }
}

/// The choices of an experiment, and what all its trials together say.
pub(super) struct Repeats<'a> {
    pub(super) pools: Vec<Pool<'a>>,
    outcomes: &'a [Outcome],
    tokens: Tokens,
    host_sd: f64,
    learnt: Learnt<'a>,
    stepping: Stepping<'a>,
}

impl<'a> Repeats<'a> {
    pub(super) fn of(outcomes: &'a [Outcome], tokens: Tokens) -> Self {
        let mut pools: Vec<Pool<'a>> = Vec::new();
        for outcome in outcomes {
            let is_same = |pool: &&mut Pool<'_>| {
                pool.trials.first().is_some_and(|first| {
                    first.candidate == outcome.candidate
                        && first.purchase_option == outcome.purchase_option
                })
            };
            match pools.iter_mut().find(is_same) {
                Some(pool) => pool.trials.push(outcome),
                None => pools.push(Pool {
                    trials: vec![outcome],
                }),
            }
        }
        Self {
            outcomes,
            tokens,
            host_sd: host_sd(&pools),
            learnt: Learnt::of(outcomes, &pools),
            stepping: Stepping::of(outcomes),
            pools,
        }
    }

    pub(super) fn outcomes(&self) -> &'a [Outcome] {
        self.outcomes
    }

    pub(super) fn tokens(&self) -> Tokens {
        self.tokens
    }

    /// The share of its time that a choice's full run spends on steps; `None` if no trial tells.
    pub(super) fn stepping(&self, pool: &Pool<'_>) -> Option<Share> {
        self.stepping.of_choice(&pool.trials)
    }

    /// What one more job of a choice is billed beside its steps: as its plan expected, corrected by what trials were
    /// billed since.
    pub(super) fn overhead(&self, pool: &Pool<'_>) -> Overhead {
        let first = pool.trials.first();
        let kind = first.map(|first| first.instance_type.as_str());
        let observed: Vec<Observed> = (self.outcomes.iter())
            .filter_map(|outcome| {
                Some(Observed {
                    seconds: outcome.billed_beside_steps(self.tokens)?,
                    is_same_type: kind == Some(outcome.instance_type.as_str()),
                })
            })
            .collect();
        let planned = first.and_then(|first| first.overhead);
        let planned = planned.unwrap_or_else(|| Overhead::assumed(0.0));
        planned.after(&observed)
    }

    /// The row of a choice whose speed was measured by so many trials: repeats tell how much machines differ.
    pub(super) fn projection(&self, row: Ranked, run: FullRun, trials: usize) -> Projection {
        let noise = row.tokens_per_second_half_width / row.tokens_per_second / NORMAL_975;
        let log_sd = noise.hypot(self.host_sd / of_items(trials).max(1.0).sqrt());
        let half_width = if trials > 1 {
            NORMAL_975 * log_sd * row.tokens_per_second
        } else {
            row.tokens_per_second_half_width
        };
        let row = Ranked {
            tokens_per_second_half_width: half_width,
            ..row
        };
        Projection { row, run, log_sd }
    }

    /// A choice with measured trials.
    pub(super) fn measured(&self, pool: &Pool<'_>, projection: &Projection) -> Contender {
        let Projection { row, run, log_sd } = projection;
        let paid = match row.purchase_option {
            PurchaseOption::OnDemand => WHOLE,
            PurchaseOption::Spot => SPOT_AGAIN,
        };
        // On spot, waiting recurs: what is billed is a share of all hours.
        let hours_unbilled = match row.purchase_option {
            PurchaseOption::OnDemand => run.hours - run.billed_hours,
            PurchaseOption::Spot => 0.0,
        };
        let billed = run.hours - hours_unbilled;
        let mut contender = Contender {
            hours: run.hours - run.hours_once,
            hours_once: run.hours_once,
            hours_unbilled,
            instance_type: row.instance_type.clone(),
            rate: Rate {
                estimate: row.projected_cost_usd.as_f64() / billed,
                bound: row.projected_cost_usd_max.as_f64() / billed,
                paid,
            },
            log_sd: *log_sd,
            shared_log_sd: self.tokens.log_sd(),
            host_sd: self.host_sd,
            usd_per_million: row.usd_per_million_tokens.as_f64() * paid.least,
            is_measured: true,
        };
        // A spot run's hours are those of its trial, pauses and all.
        if row.purchase_option == PurchaseOption::OnDemand {
            Share::from(self.stepping(pool)).widen(&mut contender);
        }
        contender
    }

    /// What a trial that has not been measured is expected to take: seconds of its steps with what it does between them at
    /// its own intervals, and what is believed of its choice.
    pub(super) fn predicted_trial(
        &self,
        pool: &Pool<'_>,
        trial: &Outcome,
    ) -> Option<(f64, Contender)> {
        let contender = self.predicted(pool)?;
        let lost = 1.0 / Share::from(self.stepping(pool)).mean - 1.0;
        let oftener = trial.intervals_divided_by.unwrap_or(1.0);
        let slower = (1.0 + lost * oftener) / (1.0 + lost);
        let of_run = real(self.tokens.trial) / real(self.tokens.total);
        Some((contender.hours * 3600.0 * of_run * slower, contender))
    }

    /// A choice without a measurement; `None` if it cannot be bought, or nothing is known of it.
    pub(super) fn predicted(&self, pool: &Pool<'_>) -> Option<Contender> {
        let first = pool.trials.first()?;
        // One that failed has an automatic retry, or a repeat that may still run.
        let may_run = pool.may_run();
        let is_out = |outcome: &&Outcome| {
            outcome.incomparable.is_some()
                || outcome.state == TrialState::Failed && !may_run
                || outcome.is_impossible()
        };
        if pool.trials.iter().any(is_out) {
            return None;
        }
        let (price, predicted) = (first.price.as_ref()?, first.predicted?);
        let belief = self.learnt.of_type(&first.instance_type, predicted);
        let share = Share::from(self.stepping(pool));
        let speed = predicted.tokens_per_second * belief.log.exp() * share.mean;
        let rate = rate(first, price);
        let training = hours(self.tokens.total, speed);
        let waited = first.expected_wait.map_or(0.0, |wait| wait.hours);
        let mut contender = Contender {
            hours: training,
            hours_once: waited + self.overhead(pool).seconds / 3600.0,
            hours_unbilled: waited,
            instance_type: first.instance_type.clone(),
            rate,
            usd_per_million: rate.likeliest() * hours(1_000_000, speed),
            log_sd: belief.log_sd,
            shared_log_sd: belief.shared_log_sd.hypot(self.tokens.log_sd()),
            host_sd: self.host_sd,
            is_measured: false,
        };
        share.widen(&mut contender);
        Some(contender)
    }
}

/// What a choice that has not run costs per hour.
fn rate(outcome: &Outcome, price: &Price) -> Rate {
    let hourly = |usd: Usd| usd.as_f64() * f64::from(outcome.instance_count);
    Rate {
        estimate: hourly(price.usd_per_hour),
        bound: hourly(price.ceiling()),
        paid: match outcome.purchase_option {
            PurchaseOption::OnDemand => WHOLE,
            PurchaseOption::Spot => SPOT_SHARE,
        },
    }
}

/// What measured trials say of the predictions of others: each is off by the code's factor, by one of
/// its generation of accelerators, and by one of its own. Jointly Gaussian in logarithms.
struct Learnt<'a> {
    /// Generations of accelerators among the trials.
    generations: Vec<&'a str>,
    /// Of the code, and then of each generation.
    mean: Vec<f64>,
    covariance: Vec<Vec<f64>>,
    is_measured: bool,
}

/// How far a prediction is off, as logarithms.
struct Belief {
    log: f64,
    /// The scale of a heavy-tailed draw.
    log_sd: f64,
    /// Standard deviation of what is shared by all predictions.
    shared_log_sd: f64,
}

/// How much wider than assumed the code and the generations differ, as factors of standard deviations.
#[derive(Clone, Copy)]
struct Widths {
    code: f64,
    generations: f64,
}

impl<'a> Learnt<'a> {
    fn of(outcomes: &'a [Outcome], pools: &[Pool<'_>]) -> Self {
        let misses: Vec<Miss<'_>> = pools.iter().filter_map(Miss::of).collect();
        let assumed = Widths {
            code: 1.0,
            generations: 1.0,
        };
        let widths = Self::before(outcomes, assumed).widths(&misses);
        let mut learnt = Self::before(outcomes, widths);
        for miss in &misses {
            learnt.see(miss);
        }
        learnt
    }

    /// As wide as the measurements say, and at least as assumed: generations whose means lie further
    /// apart differ by more, and a code whose mean lies further off is less like those of the
    /// predictions (the method of moments, whichever order they came in).
    fn widths(&self, misses: &[Miss<'_>]) -> Widths {
        let mean = |generation: &&str| {
            let is_of = |one: &&Miss<'_>| catalog::generation(one.instance_type) == *generation;
            Mean::of(misses.iter().filter(is_of).map(|one| one.off))
        };
        let means: Vec<Mean> = self.generations.iter().filter_map(mean).collect();
        let Some(all) = Mean::of(means.iter().copied()) else {
            return Widths {
                code: 1.0,
                generations: 1.0,
            };
        };
        let place = |place: usize| -> f64 {
            let row = self.covariance.get(place);
            row.and_then(|row| row.get(place)).copied().unwrap_or(0.0)
        };
        let (of_code, of_generation) = (place(0), place(1));
        let widened = |observed: f64, noise: f64, assumed: f64| {
            ((observed - noise) / assumed).max(1.0).sqrt()
        };
        let count = of_items(means.len());
        let apart: f64 = means.iter().map(|one| (one.log - all.log).powi(2)).sum();
        let noise = means.iter().map(|one| one.variance).sum::<f64>() / count;
        let generations = if means.len() > 1 {
            widened(apart / (count - 1.0), noise, of_generation)
        } else {
            1.0
        };
        let of_generations = of_generation * generations.powi(2) / count;
        Widths {
            code: widened(all.log.powi(2), all.variance + of_generations, of_code),
            generations,
        }
    }

    /// What is believed before anything is measured.
    fn before(outcomes: &'a [Outcome], widths: Widths) -> Self {
        let mut generations: Vec<&str> = outcomes
            .iter()
            .map(|outcome| catalog::generation(&outcome.instance_type))
            .collect();
        generations.sort_unstable();
        generations.dedup();
        // Before anything is measured, every prediction says how far the code may be off.
        let shared = outcomes.iter().filter_map(|outcome| outcome.predicted);
        let shared = shared.map(shared_sd).fold(CODE_SD_LEAST, f64::max);
        // Two types differ by the parts of both.
        let of_generation = (TYPE_SD.powi(2) - GENERATION_SD.powi(2)) / 2.0;
        let size = generations.len() + 1;
        let variance = |place: usize| {
            if place == 0 {
                (shared * widths.code).powi(2)
            } else {
                of_generation * widths.generations.powi(2)
            }
        };
        let row = |place: usize| {
            let mut row = vec![0.0; size];
            row.get_mut(place)
                .into_iter()
                .for_each(|value| *value = variance(place));
            row
        };
        Self {
            mean: vec![0.0; size],
            covariance: (0..size).map(row).collect(),
            generations,
            is_measured: false,
        }
    }

    /// Which of the code and the generations a type's prediction is off by: 1 or 0.
    fn parts(&self, instance_type: &str) -> Vec<f64> {
        let own = catalog::generation(instance_type);
        let of_generations = self
            .generations
            .iter()
            .map(|one| f64::from(u8::from(*one == own)));
        std::iter::once(1.0).chain(of_generations).collect()
    }

    fn variance(&self, parts: &[f64]) -> f64 {
        let rows = self.covariance.iter().zip(parts);
        rows.map(|(row, part)| part * dot(row, parts)).sum()
    }

    /// Learns from one measured choice: a step of a Kalman filter.
    fn see(&mut self, miss: &Miss<'_>) {
        let own = miss.off;
        self.is_measured = true;
        let parts = self.parts(miss.instance_type);
        let off = own.log - dot(&self.mean, &parts);
        let spread: Vec<f64> = self.covariance.iter().map(|row| dot(row, &parts)).collect();
        let total = dot(&spread, &parts) + own.variance;
        for (mean, spread) in self.mean.iter_mut().zip(&spread) {
            *mean += spread / total * off;
        }
        for (row, left) in self.covariance.iter_mut().zip(&spread) {
            for (value, right) in row.iter_mut().zip(&spread) {
                *value -= left * right / total;
            }
        }
    }

    /// What is believed of a type that was not measured.
    fn of_type(&self, instance_type: &str, predicted: Predicted) -> Belief {
        if !self.is_measured {
            let own = predicted.own_log_sd.max(UNMEASURED_SD);
            let shared = predicted.log_sd.powi(2) - own.powi(2);
            return Belief {
                log: 0.0,
                log_sd: own,
                shared_log_sd: shared.max(0.0).sqrt(),
            };
        }
        let parts = self.parts(instance_type);
        let variance = self.variance(&parts).max(0.0) + own_variance(predicted);
        Belief {
            log: dot(&self.mean, &parts),
            // Its variance is twice the square of its scale.
            log_sd: variance.sqrt() / SQRT_2,
            shared_log_sd: 0.0,
        }
    }
}

/// How far predictions are off, as logarithms.
#[derive(Clone, Copy)]
struct Mean {
    log: f64,
    variance: f64,
}

impl Mean {
    /// Weighed by precision; `None` of nothing.
    fn of(observed: impl Iterator<Item = Self>) -> Option<Self> {
        let (mut weight, mut sum) = (0.0, 0.0);
        for one in observed {
            weight += one.variance.recip();
            sum += one.log / one.variance;
        }
        (weight > 0.0).then(|| Self {
            log: sum / weight,
            variance: weight.recip(),
        })
    }
}

/// How far the prediction of a choice was off, with the variance of its own part, which its repeats share.
struct Miss<'a> {
    instance_type: &'a str,
    off: Mean,
}

impl<'a> Miss<'a> {
    /// `None` if nothing is measured of it, or was predicted.
    fn of(pool: &Pool<'a>) -> Option<Self> {
        let (mut log, mut noise, mut own, mut count) = (0.0, 0.0, 0.0_f64, 0.0);
        for outcome in &pool.trials {
            let (Some(measured), Some(predicted)) = (&outcome.tokens_per_second, outcome.predicted)
            else {
                continue;
            };
            log += (measured.mean / predicted.tokens_per_second).ln();
            noise += (measured.half_width / measured.mean / NORMAL_975).powi(2);
            own = own.max(own_variance(predicted));
            count += 1.0;
        }
        let instance_type = &pool.trials.first()?.instance_type;
        (count > 0.0).then(|| Self {
            instance_type,
            off: Mean {
                log: log / count,
                variance: own + noise / (count * count),
            },
        })
    }
}

/// Variance of how far one type's prediction is off by itself: at least as much as types of one
/// generation differ, and more where the law knows less of its setting than of others.
fn own_variance(predicted: Predicted) -> f64 {
    let unusual = predicted.own_log_sd.powi(2) - TYPE_SD.powi(2);
    GENERATION_SD.powi(2) / 2.0 + unusual.max(0.0)
}

/// Standard deviation of what a prediction shares with all others.
fn shared_sd(predicted: Predicted) -> f64 {
    (predicted.log_sd.powi(2) - predicted.own_log_sd.powi(2))
        .max(0.0)
        .sqrt()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

/// One outcome for all repeats. Speeds are averaged by their logarithms, over all that are measured; seconds as they are,
/// over the finished ones, or else those that run.
pub(super) fn pooled(measured: &[&Outcome]) -> Option<Outcome> {
    let is_finished = |outcome: &&&Outcome| outcome.state == TrialState::Completed;
    let finished: Vec<&Outcome> = measured.iter().filter(is_finished).copied().collect();
    let pool = if finished.is_empty() {
        measured
    } else {
        &finished
    };
    let first = *pool.first()?;
    let speeds: Vec<&Steady> = measured
        .iter()
        .filter_map(|outcome| outcome.tokens_per_second.as_ref())
        .collect();
    let count = u64::try_from(pool.len()).ok()?;
    let mean = |seconds: fn(&Outcome) -> u64| {
        pool.iter().map(|outcome| seconds(outcome)).sum::<u64>() / count
    };
    let speed = speeds.first().map(|newest| {
        let n = of_items(speeds.len());
        let log: f64 = speeds.iter().map(|speed| speed.mean.ln()).sum::<f64>() / n;
        let squares: f64 = speeds.iter().map(|speed| speed.half_width.powi(2)).sum();
        Steady {
            mean: log.exp(),
            half_width: squares.sqrt() / n,
            points: speeds.iter().map(|speed| speed.points).sum(),
            buckets: speeds.iter().map(|speed| speed.buckets).sum(),
            ..(*newest).clone()
        }
    });
    let done: Vec<f64> = pool
        .iter()
        .filter_map(|outcome| outcome.tokens_done)
        .collect();
    Some(Outcome {
        tokens_per_second: speed,
        tokens_done: (done.len() == pool.len())
            .then(|| done.iter().sum::<f64>() / of_items(done.len())),
        training_seconds: mean(|outcome| outcome.training_seconds),
        billable_seconds: mean(|outcome| outcome.billable_seconds),
        wall_seconds: mean(|outcome| outcome.wall_seconds),
        ..first.clone()
    })
}

/// Logarithms of a pool's measured speeds.
fn logs(pool: &Pool<'_>) -> impl Iterator<Item = f64> {
    pool.trials
        .iter()
        .filter_map(|outcome| outcome.tokens_per_second.as_ref())
        .map(|speed| speed.mean.ln())
}

/// The prior's spread of machines, updated by the repeats.
fn host_sd(pools: &[Pool<'_>]) -> f64 {
    let (mut squares, mut worth) = (HOST_WORTH * HOST_SD * HOST_SD, HOST_WORTH);
    for pool in pools {
        let logs: Vec<f64> = logs(pool).collect();
        let mean = logs.iter().sum::<f64>() / of_items(logs.len()).max(1.0);
        squares += logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
        worth += (of_items(logs.len()) - 1.0).max(0.0);
    }
    (squares / worth).sqrt()
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "token counts lie far below 2^53"
)]
fn hours(tokens: u64, tokens_per_second: f64) -> f64 {
    tokens as f64 / tokens_per_second / 3600.0
}
