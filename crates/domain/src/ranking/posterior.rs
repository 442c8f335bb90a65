//! What is believed of the full runs that could be bought: seeded draws of their hours and dollars,
//! and the odds read off them. The same evidence gives the same draws, byte for byte. Which words
//! the odds deserve is decided in [`crate::ranking::recommend`].

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use statrs::distribution::{ContinuousCDF, Normal};

use crate::money::Usd;
use crate::number::of_items;
use crate::spec::{Minimize, ObjectiveSpec};

/// Draws per contender with which P(best) is exact to about one point.
pub const DRAWS: usize = 4096;
const SEED: u64 = 0x0062_616b_656f_6666;
const SHARED_SEED: u64 = SEED + 1;
const PRICE_SEED: u64 = SEED + 2;
/// The furthest that a drawn speed lies from the expected one, as a logarithm: a heavy tail's
/// farthest draws would make means infinite.
const LOG_MAX: f64 = 5.0;
/// A regret beyond this share of the cost is a wrong buy.
pub const WRONG_BUY: f64 = 0.05;
/// P(wrong by more than that) that a purchase may have.
pub(super) const WRONG_MAX: f64 = 0.05;
/// Hours that a figure is billed for, beside the start of its job: a quarter of an hour of points that come
/// once a minute, the delay until they are read and judged, and the stop.
pub const FIGURE_HOURS: f64 = 0.37;

/// One full run that could be bought, measured or only predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct Contender {
    /// Hours that scale with the run, at the expected speed.
    pub hours: f64,
    /// Hours that are spent once, however long the run is.
    pub hours_once: f64,
    /// Of these, what is not billed: the wait for instances.
    pub hours_unbilled: f64,
    /// Contenders of one type pay one price, known or not.
    pub instance_type: String,
    pub rate: Rate,
    /// Likeliest dollars of a million tokens, without what is paid once.
    pub usd_per_million: f64,
    /// Standard deviation of the logarithm of the speed, as far as it is shared by no other run of
    /// this candidate.
    pub log_sd: f64,
    /// The part that contenders share: how far the code is from what predictions assume, and what it
    /// does between its steps. They are off by it together, so that it decides about limits, and not
    /// between them.
    pub shared_log_sd: f64,
    /// The same for one more run, on other machines.
    pub host_sd: f64,
    pub is_measured: bool,
}

/// Dollars per billed hour of all instances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// The likeliest, before what spot saves.
    pub estimate: f64,
    /// The far end of what it may be; equal to the estimate where the price is known.
    pub bound: f64,
    pub paid: PaidFactor,
}

impl Rate {
    /// After what spot saves.
    pub fn likeliest(self) -> f64 {
        self.estimate * self.paid.least
    }
}

/// Factor of the rate that is paid; `least` is the likeliest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaidFactor {
    pub least: f64,
    pub most: f64,
}

/// A 90 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    pub low: f64,
    pub high: f64,
}

/// The odds of one contender.
#[derive(Debug, Clone, PartialEq)]
pub struct Odds {
    pub hours: Range,
    pub usd: Range,
    /// P(it is the best of those within the limits).
    pub best: f64,
    /// P(no other is both cheaper and faster).
    pub pareto: f64,
    /// P(cost ≤ budget), if there is a budget.
    pub within_budget: Option<f64>,
    /// P(time ≤ deadline), if there is a deadline.
    pub within_deadline: Option<f64>,
    /// P(both).
    pub within_limits: f64,
    /// What choosing it is expected to lose against the best, as a share of its objective.
    pub regret: f64,
    /// P(it is worse than the best by more than [`WRONG_BUY`]).
    pub wrong: f64,
}

/// One full run in one draw.
#[derive(Clone, Copy)]
struct Draw {
    /// Of the run that is paid for, with the luck of its machines.
    hours: f64,
    usd: f64,
    /// The expectations over machines.
    expected_hours: f64,
    expected_usd: f64,
    /// Whether that run keeps to the limits.
    is_within: bool,
    /// What choices are compared by: the expectation over machines.
    objective: f64,
}

/// What is believed of some contenders: as many draws of each.
pub struct Beliefs<'a> {
    objective: &'a ObjectiveSpec,
    count: usize,
    rows: Vec<Vec<Draw>>,
}

impl<'a> Beliefs<'a> {
    /// `count`: draws per contender.
    pub fn of(contenders: &[Contender], objective: &'a ObjectiveSpec, count: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let shared = shared(contenders, count);
        let prices = prices(contenders, count);
        let rows = contenders.iter().map(|contender| {
            let own = prices.get(contender.instance_type.as_str());
            let draws = shared.iter().enumerate().map(|(place, shared)| {
                let price = own.and_then(|own| own.get(place)).copied().unwrap_or(0.0);
                let common = Common {
                    shared: *shared,
                    price,
                };
                draw(contender, common, objective, &mut rng)
            });
            draws.collect()
        });
        Self {
            objective,
            count,
            rows: rows.collect(),
        }
    }

    fn row(&self, place: usize) -> &[Draw] {
        self.rows.get(place).map(Vec::as_slice).unwrap_or_default()
    }

    /// The odds of each contender, in order.
    pub fn odds(&self) -> Vec<Odds> {
        let best: Vec<Option<(usize, f64)>> = (0..self.count)
            .map(|draw| best_of(&self.rows, draw))
            .collect();
        let fronts = self.fronts();
        let rows = self.rows.iter().zip(fronts).enumerate();
        rows.map(|(place, (draws, pareto))| Odds {
            pareto,
            ..odds_of(place, draws, &best, self.objective)
        })
        .collect()
    }

    /// For each contender, P(no other is both cheaper and faster). In one draw, going from the cheapest
    /// to the dearest, whoever is faster than all before it is on the front.
    fn fronts(&self) -> Vec<f64> {
        let mut counts = vec![0.0; self.rows.len()];
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        for draw in 0..self.count {
            let of = |place: &usize| self.row(*place).get(draw).copied();
            let usd = |place: &usize| of(place).map_or(f64::INFINITY, |one| one.expected_usd);
            let hours = |place: &usize| of(place).map_or(f64::INFINITY, |one| one.expected_hours);
            order.sort_by(|a, b| {
                usd(a)
                    .total_cmp(&usd(b))
                    .then(hours(a).total_cmp(&hours(b)))
            });
            let mut fastest = f64::INFINITY;
            for place in &order {
                let hours = hours(place);
                if hours < fastest {
                    fastest = hours;
                    counts
                        .get_mut(*place)
                        .into_iter()
                        .for_each(|count| *count += 1.0);
                }
            }
        }
        let all = of_items(self.count).max(1.0);
        counts.into_iter().map(|count: f64| count / all).collect()
    }

    /// The expected objective of one contender's full run: dollars, hours, or dollars a million tokens.
    pub fn expected(&self, place: usize) -> f64 {
        mean(self.row(place).iter().map(|draw| draw.objective))
    }

    /// The expected dollars of one contender's full run.
    pub fn expected_usd(&self, place: usize) -> f64 {
        mean(self.row(place).iter().map(|draw| draw.usd))
    }

    /// P(one contender's full run keeps to the limits).
    pub fn within_limits(&self, place: usize) -> f64 {
        mean(self.row(place).iter().map(|draw| indicator(draw.is_within)))
    }

    /// What measuring `asked` is expected to save of the full run of `leader`, which would be bought
    /// without looking: a share of its objective. It is the value of information (Howard, 1966) of a
    /// measurement that leaves nothing open; where one breaks off at a few percent, it is a little
    /// less.
    pub fn saved_by_measuring(&self, asked: usize, leader: usize) -> f64 {
        let (expected, holds) = (self.expected(leader), self.within_limits(leader));
        mean(self.row(asked).iter().map(|draw| {
            let cheaper = (1.0 - draw.objective / expected).max(0.0);
            // Where the leader breaks the limits, nothing could be bought without another.
            indicator(draw.is_within) * (holds * cheaper + (1.0 - holds))
        }))
    }
}

/// A standard normal draw of what all contenders share, for each draw of theirs.
fn shared(contenders: &[Contender], count: usize) -> Vec<f64> {
    if contenders.iter().all(|one| one.shared_log_sd <= 0.0) {
        return vec![0.0; count];
    }
    let mut rng = ChaCha8Rng::seed_from_u64(SHARED_SEED);
    let normal = Normal::standard();
    (0..count)
        .map(|_| normal.inverse_cdf(uniform(&mut rng)))
        .collect()
}

/// For each type whose price is not known, where between the estimate and its bound it lies, from 0 to 1, for each draw.
fn prices(contenders: &[Contender], count: usize) -> BTreeMap<&str, Vec<f64>> {
    let unknown = contenders
        .iter()
        .filter(|one| one.rate.bound > one.rate.estimate);
    let types: BTreeSet<&str> = unknown.map(|one| one.instance_type.as_str()).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(PRICE_SEED);
    let of = |name| {
        let all = (0..count).map(|_| uniform(&mut rng).powi(2)).collect();
        (name, all)
    };
    types.into_iter().map(of).collect()
}

/// Parts of a draw that contenders share.
#[derive(Clone, Copy)]
struct Common {
    /// Of all: a standard normal draw.
    shared: f64,
    /// Of all of one type: where between its ends the price lies.
    price: f64,
}

fn draw(
    contender: &Contender,
    common: Common,
    objective: &ObjectiveSpec,
    rng: &mut ChaCha8Rng,
) -> Draw {
    let normal = Normal::standard();
    let Rate {
        estimate,
        bound,
        paid,
    } = contender.rate;
    let speed = contender.log_sd
        * if contender.is_measured {
            normal.inverse_cdf(uniform(rng))
        } else {
            heavy_quantile(uniform(rng))
        }
        + contender.shared_log_sd * common.shared;
    let host = normal.inverse_cdf(uniform(rng)) * contender.host_sd;
    let price = estimate + (bound - estimate) * common.price;
    let factor = paid.least + (paid.most - paid.least) * uniform(rng).powi(2);
    let rate = price * factor;
    let hours = |slower: f64| {
        contender.hours * slower.clamp(-LOG_MAX, LOG_MAX).exp() + contender.hours_once
    };
    let (expected, run) = (hours(speed), hours(speed + host));
    let usd = |hours: f64| (hours - contender.hours_unbilled) * rate;
    let is_within = keeps_to_limits(objective, run, usd(run));
    Draw {
        hours: run,
        usd: usd(run),
        expected_hours: expected,
        expected_usd: usd(expected),
        is_within,
        objective: match objective.minimize {
            Minimize::Cost => usd(expected),
            Minimize::Time => expected,
            Minimize::UsdPerMillionTokens => {
                let slower = speed.clamp(-LOG_MAX, LOG_MAX).exp();
                contender.usd_per_million * slower * rate / contender.rate.likeliest()
            }
        },
    }
}

fn keeps_to_limits(objective: &ObjectiveSpec, hours: f64, usd: f64) -> bool {
    let budget = objective.full_run_budget_usd.map(Usd::as_f64);
    let deadline = objective.full_run_deadline_hours;
    budget.is_none_or(|budget| usd <= budget) && deadline.is_none_or(|deadline| hours <= deadline)
}

/// A number in (0, 1), never at its ends, where quantiles are infinite.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "52 bits fit a float"
)]
fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    ((rng.next_u64() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

/// Quantile of Student's t with four degrees of freedom: what a predicted speed is drawn from, since
/// laws err with heavy tails outside their tables. Closed form: Shaw, "Sampling Student's T
/// distribution" (2006), equation 36.
fn heavy_quantile(p: f64) -> f64 {
    let alpha = 4.0 * p * (1.0 - p);
    let root = alpha.sqrt();
    let q = (root.min(1.0).acos() / 3.0).cos() / root;
    (2.0 * (q - 1.0).max(0.0).sqrt()).copysign(p - 0.5)
}

/// The contender with the least objective among those within the limits in this draw.
fn best_of(rows: &[Vec<Draw>], draw: usize) -> Option<(usize, f64)> {
    rows.iter()
        .enumerate()
        .filter_map(|(place, draws)| Some((place, draws.get(draw)?)))
        .filter(|(_, draw)| draw.is_within)
        .map(|(place, draw)| (place, draw.objective))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

fn odds_of(
    place: usize,
    draws: &[Draw],
    best: &[Option<(usize, f64)>],
    objective: &ObjectiveSpec,
) -> Odds {
    let share =
        |holds: &dyn Fn(&Draw) -> bool| mean(draws.iter().map(|draw| indicator(holds(draw))));
    let budget = objective.full_run_budget_usd.map(Usd::as_f64);
    let deadline = objective.full_run_deadline_hours;
    let regrets = regrets(draws, best);
    Odds {
        hours: range(draws.iter().map(|draw| draw.hours)),
        usd: range(draws.iter().map(|draw| draw.usd)),
        best: mean(
            best.iter()
                .map(|best| indicator(best.is_some_and(|(winner, _)| winner == place))),
        ),
        pareto: 0.0,
        within_budget: budget.map(|budget| share(&|draw| draw.usd <= budget)),
        within_deadline: deadline.map(|deadline| share(&|draw| draw.hours <= deadline)),
        within_limits: share(&|draw| draw.is_within),
        regret: mean(regrets.iter().copied()),
        wrong: mean(regrets.iter().map(|regret| indicator(*regret > WRONG_BUY))),
    }
}

/// What each draw loses against the best of it, as a share of its objective.
fn regrets(draws: &[Draw], best: &[Option<(usize, f64)>]) -> Vec<f64> {
    let lost = |(draw, best): (&Draw, &Option<(usize, f64)>)| match best {
        Some((_, least)) => (1.0 - least / draw.objective).max(0.0),
        None => 0.0,
    };
    draws.iter().zip(best).map(lost).collect()
}

fn indicator(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = f64::from(u32::try_from(values.len()).unwrap_or(u32::MAX));
    values.sum::<f64>() / count.max(1.0)
}

fn range(values: impl Iterator<Item = f64>) -> Range {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let count = values.len();
    let at = |place: usize| values.get(place).copied().unwrap_or_default();
    Range {
        low: at(count / 20),
        high: at(count.saturating_sub(1 + count / 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(hours: f64, usd_per_hour: f64) -> Contender {
        Contender {
            hours,
            hours_once: 0.0,
            hours_unbilled: 0.0,
            instance_type: format!("{usd_per_hour}"),
            rate: Rate {
                estimate: usd_per_hour,
                bound: usd_per_hour,
                paid: PaidFactor {
                    least: 1.0,
                    most: 1.0,
                },
            },
            usd_per_million: usd_per_hour * hours,
            log_sd: 0.02,
            shared_log_sd: 0.0,
            host_sd: 0.015,
            is_measured: true,
        }
    }

    fn cheapest(budget: Option<i64>) -> ObjectiveSpec {
        ObjectiveSpec {
            minimize: Minimize::Cost,
            full_run_budget_usd: budget.map(|usd| Usd(usd.into())),
            full_run_deadline_hours: None,
            target_loss: None,
        }
    }

    fn odds(contenders: &[Contender], objective: &ObjectiveSpec) -> Vec<Odds> {
        Beliefs::of(contenders, objective, DRAWS).odds()
    }

    /// Standard deviation s at equal expectation: the saving is s/√(2π), Gaussian. Surely dearer: none.
    #[test]
    fn a_measurement_saves_what_may_turn_out_cheaper() {
        let unsure = Contender {
            log_sd: 0.1,
            ..measured(10.0, 5.0)
        };
        let dearer = measured(13.0, 5.0);
        let objective = cheapest(None);
        let beliefs = Beliefs::of(&[measured(10.0, 5.0), unsure, dearer], &objective, DRAWS);
        let saved = beliefs.saved_by_measuring(1, 0);
        assert!(
            (saved - 0.1 / (2.0 * std::f64::consts::PI).sqrt()).abs() < 0.004,
            "{saved}"
        );
        assert!(beliefs.saved_by_measuring(2, 0) < 1e-6);
    }

    /// A leader that surely breaks the budget cannot be bought: another that keeps it is worth all.
    #[test]
    fn a_measurement_saves_everything_where_nothing_else_keeps_to_the_limits() {
        let objective = cheapest(Some(60));
        let beliefs = Beliefs::of(
            &[measured(10.0, 10.0), measured(10.0, 5.0)],
            &objective,
            DRAWS,
        );
        assert!((beliefs.saved_by_measuring(1, 0) - 1.0).abs() < 0.01);
    }

    #[test]
    fn equal_contenders_share_the_odds() {
        let odds = odds(&[measured(10.0, 5.0), measured(5.0, 10.0)], &cheapest(None));
        assert!((odds[0].best - 0.5).abs() < 0.03, "{odds:?}");
        assert!((odds[0].best + odds[1].best - 1.0).abs() < 1e-9);
    }

    /// The dear and fast one is as good in its way as the cheap and slow one; a third is in the way of
    /// both, and one that is as likely as not both cheaper and faster than the second counts by half.
    #[test]
    fn what_is_neither_cheaper_nor_faster_is_not_on_the_front() {
        let all = [
            measured(10.0, 5.0),
            measured(5.0, 15.0),
            measured(12.0, 7.0),
            measured(5.0, 14.99),
        ];
        let pareto: Vec<f64> = (odds(&all, &cheapest(None)).iter())
            .map(|one| one.pareto)
            .collect();
        assert!(pareto[0] > 0.99 && pareto[2] < 0.01, "{pareto:?}");
        assert!(
            (pareto[1] - 0.5).abs() < 0.05 && (pareto[3] - 0.5).abs() < 0.05,
            "{pareto:?}"
        );
    }

    /// A budget at the expected cost is met by every second run.
    #[test]
    fn a_limit_at_the_middle_is_met_half_of_the_time() {
        let odds = odds(&[measured(100.0, 25.0)], &cheapest(Some(2500)));
        let within = odds[0].within_budget.unwrap();
        assert!((within - 0.5).abs() < 0.03, "{within}");
    }

    /// √(0.02² + 0.015²) · 1.645 = 4.1 %.
    #[test]
    fn the_interval_counts_the_machines_of_the_run() {
        let odds = odds(&[measured(100.0, 1.0)], &cheapest(None));
        assert!((odds[0].hours.high - 104.2).abs() < 0.4, "{odds:?}");
        assert!((odds[0].hours.low - 96.0).abs() < 0.4, "{odds:?}");
    }

    /// The quantiles of tables: 2.132 at 95 %, 4.604 at 99.5 %.
    #[test]
    fn heavy_tails_are_students_with_four_degrees_of_freedom() {
        for (p, t) in [(0.5, 0.0), (0.9, 1.5332), (0.95, 2.1318), (0.995, 4.6041)] {
            assert!((heavy_quantile(p) - t).abs() < 1e-4, "{p}");
            assert!((heavy_quantile(1.0 - p) + t).abs() < 1e-4, "{p}");
        }
    }

    /// Two profiles on one type pay one price: what is not known of it does not decide between them.
    #[test]
    fn a_price_that_is_not_known_is_the_same_for_all_of_its_type() {
        let open = |hours: f64, name: &str| {
            let mut one = measured(hours, 10.0);
            one.rate.bound = 14.0;
            one.instance_type = name.to_owned();
            one
        };
        let of = |other: &str| odds(&[open(9.5, "a"), open(10.0, other)], &cheapest(None))[0].best;
        let (same, different) = (of("a"), of("b"));
        assert!(same > 0.94 && different < 0.85, "{same} {different}");
    }

    #[test]
    fn the_same_evidence_gives_the_same_odds() {
        let all = [measured(10.0, 5.0), measured(9.0, 5.2)];
        assert_eq!(odds(&all, &cheapest(None)), odds(&all, &cheapest(None)));
    }
}
