//! From trials to choices: the repeats of a candidate under one purchase option are one choice, and
//! what differs between them teaches how much machines differ. A choice that has not been measured
//! counts by its prediction, corrected by how far the same code was off on the others.

use std::f64::consts::SQRT_2;

use crate::catalog;
use crate::lifecycle::state::TrialState;
use crate::measure::steady::Steady;
use crate::number::of_items;
use crate::ranking::outcome::{FullRun, Outcome, Predicted, Tokens};
use crate::ranking::posterior::{Contender, Rate};
use crate::ranking::recommendation::Ranked;
use crate::spec::PurchaseOption;

/// How much one type's machines differ in speed, as a standard deviation, and how many observations
/// that belief is worth. MLPerf's systems with the same accelerator differ by 1.3 to 3.6 %.
const HOST_SD: f64 = 0.015;
const HOST_WORTH: f64 = 5.0;
/// Standard deviation of a code's own factor against the speed law: that of a prediction before a
/// run of the code is known.
const CODE_SD: f64 = 0.35;
/// How much that factor varies between types. For the code that the law was fitted to it is 0.057
/// (30 pairs of types in cells that the fit had not seen), on published runs of other codes 0.16.
const TYPE_SD: f64 = 0.10;
/// The least that it may vary as long as the code has not been measured on any type.
const UNMEASURED_SD: f64 = 0.16;
/// The same between types with accelerators of one generation: 0.063 in 14 such pairs.
const GENERATION_SD: f64 = 0.06;
/// What a spot run pays of the on-demand price: unknown before one has run.
const SPOT_SHARE: (f64, f64) = (0.25, 1.0);
/// How far the next spot run's bill may be from that of the one observed, as factors.
const SPOT_AGAIN: (f64, f64) = (0.85, 1.5);

/// The trials of one candidate under one purchase option.
pub(super) struct Pool<'a> {
    pub(super) trials: Vec<&'a Outcome>,
}

/// The choices of an experiment, and what all its trials together say.
pub(super) struct Repeats<'a> {
    pub(super) pools: Vec<Pool<'a>>,
    host_sd: f64,
    /// Logarithm of the code's factor against its predictions, as far as it is believed.
    code: f64,
    /// Generations of accelerators that the code was measured on.
    measured_on: Vec<&'a str>,
}

impl<'a> Repeats<'a> {
    pub(super) fn of(outcomes: &'a [Outcome]) -> Self {
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
            host_sd: host_sd(&pools),
            code: code(outcomes),
            measured_on: outcomes
                .iter()
                .filter(|outcome| {
                    outcome.tokens_per_second.is_some() && outcome.predicted.is_some()
                })
                .map(|outcome| catalog::generation(&outcome.instance_type))
                .collect(),
            pools,
        }
    }

    /// A choice with measured trials.
    pub(super) fn measured(&self, pool: &Pool<'_>, row: &Ranked, run: FullRun) -> Contender {
        let repeats = of_items(logs(pool).count()).max(1.0);
        let noise = row.tokens_per_second_half_width / row.tokens_per_second / 1.96;
        let (least, most) = match row.purchase_option {
            PurchaseOption::OnDemand => (1.0, 1.0),
            PurchaseOption::Spot => SPOT_AGAIN,
        };
        Contender {
            hours: run.hours - run.hours_once,
            hours_once: run.hours_once,
            rate: Rate {
                estimate: row.projected_cost_usd.as_f64() / run.hours * least,
                bound: row.projected_cost_usd_max.as_f64() / run.hours * most,
            },
            log_sd: noise.hypot(self.host_sd / repeats.sqrt()),
            shared_log_sd: 0.0,
            host_sd: self.host_sd,
            is_measured: true,
        }
    }

    /// A choice without a measurement; `None` if it cannot be bought, or nothing is known of it.
    pub(super) fn predicted(&self, pool: &Pool<'_>, tokens: Tokens) -> Option<Contender> {
        let first = pool.trials.first()?;
        let is_out = |outcome: &&Outcome| {
            outcome.incomparable.is_some()
                || matches!(outcome.state, TrialState::Refused | TrialState::Failed)
        };
        if pool.trials.iter().any(is_out) {
            return None;
        }
        let (price, predicted) = (first.price.as_ref()?, first.predicted?);
        let speed = predicted.tokens_per_second * self.code.exp();
        let count = f64::from(first.instance_count);
        let (least, most) = match first.purchase_option {
            PurchaseOption::OnDemand => (1.0, 1.0),
            PurchaseOption::Spot => SPOT_SHARE,
        };
        Some(Contender {
            hours: hours(tokens.total, speed),
            hours_once: 0.0,
            rate: Rate {
                estimate: price.usd_per_hour.as_f64() * count * least,
                bound: price.ceiling().as_f64() * count * most,
            },
            log_sd: self.log_sd(&first.instance_type, predicted),
            shared_log_sd: self.shared_log_sd(predicted),
            host_sd: self.host_sd,
            is_measured: false,
        })
    }
}

impl Repeats<'_> {
    /// How far a predicted speed may be off from those of other types: the scale of a heavy-tailed
    /// draw.
    fn log_sd(&self, instance_type: &str, predicted: Predicted) -> f64 {
        if self.measured_on.is_empty() {
            return predicted.own_log_sd.max(UNMEASURED_SD);
        }
        let is_related = self
            .measured_on
            .contains(&catalog::generation(instance_type));
        let least = if is_related { GENERATION_SD } else { TYPE_SD };
        // Its variance is twice the square of its scale.
        predicted.own_log_sd.max(least) / SQRT_2
    }

    /// How far all predicted speeds may be off together: nothing is left once one was measured.
    fn shared_log_sd(&self, predicted: Predicted) -> f64 {
        if !self.measured_on.is_empty() {
            return 0.0;
        }
        let own = predicted.own_log_sd.max(UNMEASURED_SD);
        (predicted.log_sd.powi(2) - own.powi(2)).max(0.0).sqrt()
    }
}

/// One outcome for all repeats: the finished ones, or else those that run. Speeds are averaged by
/// their logarithms, seconds as they are.
pub(super) fn pooled(measured: &[&Outcome]) -> Option<Outcome> {
    let is_finished = |outcome: &&&Outcome| outcome.state == TrialState::Completed;
    let finished: Vec<&Outcome> = measured.iter().filter(is_finished).copied().collect();
    let pool = if finished.is_empty() {
        measured
    } else {
        &finished
    };
    let first = *pool.first()?;
    let speeds: Vec<&Steady> = pool
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
    Some(Outcome {
        tokens_per_second: speed,
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

/// The mean logarithm of measured over predicted, shrunk by how far one type can speak for another.
fn code(outcomes: &[Outcome]) -> f64 {
    let ratios: Vec<f64> = outcomes
        .iter()
        .filter_map(|outcome| {
            let measured = outcome.tokens_per_second.as_ref()?.mean;
            Some((measured / outcome.predicted?.tokens_per_second).ln())
        })
        .collect();
    if ratios.is_empty() {
        return 0.0;
    }
    let n = of_items(ratios.len());
    let belief = CODE_SD.powi(2) / (CODE_SD.powi(2) + TYPE_SD.powi(2) / n);
    belief * ratios.iter().sum::<f64>() / n
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "token counts lie far below 2^53"
)]
fn hours(tokens: u64, tokens_per_second: f64) -> f64 {
    tokens as f64 / tokens_per_second / 3600.0
}
