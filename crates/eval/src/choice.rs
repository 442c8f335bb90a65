//! Choices on measured cells: the product's own rules see predictions, ask for figures one after the
//! other, and name an instance to buy. How much dearer is it than the best, and what did the figures
//! of the others cost?

use std::collections::BTreeMap;

use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::steady::Steady;
use bakeoff_domain::money::{Usd, price};
use bakeoff_domain::ranking::outcome::{Outcome, Predicted, Tokens};
use bakeoff_domain::ranking::race::{self, Leader};
use bakeoff_domain::ranking::recommend::recommend;
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_domain::ranking::start::{self, Start};
use bakeoff_planner::plan::predicted;
use bakeoff_planner::predict::forecast::Interval;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::table::{Throughput, leave_out, share};
use crate::throughput::{fit, kind, product};
use crate::trial::{cheapest, waiting};

/// Hours of the full run at the fastest arm's speed: 200 figures, each with the start of its job.
const FULL_HOURS: f64 = 90.0;
/// Hours of a trial, of which a probe is the head.
const TRIAL_HOURS: f64 = 5.0;
/// Half width of a measured speed: its floor.
const MEASURED: f64 = 0.02;
/// Dollars an hour of P4d, P4de and P5 in the documents.
const DOCUMENTS: [f64; 3] = [32.0, 40.0, 98.0];
const KINDS: [&str; 3] = ["ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.p5.48xlarge"];

/// An instance type at its best configuration in one cell.
struct Arm {
    kind: &'static str,
    predicted: Predicted,
    /// Tokens a second of all accelerators.
    measured: f64,
}

/// What came of one cell at one set of prices. Dollars are those of one token, relative to the best.
struct Choice {
    regret: f64,
    /// Regret of the arm that is predicted to be the best.
    unmeasured: f64,
    /// Dollars of probes: of arms that are not bought, of all asked for, and of all there are.
    losers: f64,
    asked: f64,
    all: f64,
    is_best_excluded: bool,
    is_clear: bool,
    /// Regret of each type, where the cell has it.
    always: BTreeMap<&'static str, f64>,
}

/// The keys of `choice`.
pub(crate) fn judge(rows: &[Throughput]) -> Result<Value, String> {
    let bf16: Vec<Throughput> = rows
        .iter()
        .filter(|row| row.precision == "bf16")
        .cloned()
        .collect();
    let cell = |row: &Throughput| format!("{} {} {}", row.model, row.seq_len, row.n_gpus);
    let mut choices = Vec::new();
    let mut cells = 0;
    for (others, own) in leave_out(&bf16, cell) {
        let rows: Vec<&Throughput> = own.iter().map(|index| &bf16[*index]).collect();
        if arms_of(&rows)?.len() < 2 {
            continue;
        }
        let arms = arms(&rows, &others)?;
        cells += 1;
        for prices in all_prices() {
            choices.push(choose(&arms, prices));
        }
    }
    Ok(figures(&choices, cells))
}

/// The best row of each type.
fn arms_of<'a>(rows: &[&'a Throughput]) -> Result<BTreeMap<&'static str, &'a Throughput>, String> {
    let mut best: BTreeMap<&'static str, &Throughput> = BTreeMap::new();
    for row in rows {
        let own = best.entry(kind(row)?).or_insert(row);
        if row.tokens_per_s_gpu > own.tokens_per_s_gpu {
            *own = row;
        }
    }
    Ok(best)
}

/// Arms as the product predicts them, with a law that has not seen the cell.
fn arms(rows: &[&Throughput], others: &[Throughput]) -> Result<Vec<Arm>, String> {
    let calibration = product(&fit(others)?);
    let arms = arms_of(rows)?.into_iter().map(|(kind, row)| {
        let [low, expected, high] = calibration.of(row)?;
        Ok(Arm {
            kind,
            predicted: predicted(
                Interval {
                    low,
                    expected,
                    high,
                },
                calibration.shared_sd(),
            ),
            measured: row.tokens_per_s,
        })
    });
    arms.collect()
}

/// Dollars an hour of each of [`KINDS`]: the catalog's, the documents', and P5 from 1.4 to 4 times
/// P4d.
fn all_prices() -> Vec<[f64; 3]> {
    let (shipped, _) = price::shipped();
    let listed = KINDS.map(|kind| {
        let own = shipped.iter().find(|one| one.instance_type == kind);
        own.map_or(1.0, |one| one.usd_per_hour.as_f64())
    });
    let swept = (14..=40).map(|tenths| [10.0, 12.5, f64::from(tenths)]);
    [listed, DOCUMENTS].into_iter().chain(swept).collect()
}

/// One cell at one set of prices.
struct Market<'a> {
    arms: &'a [Arm],
    prices: [f64; 3],
}

impl Market<'_> {
    fn usd(&self, arm: &Arm) -> f64 {
        let place = KINDS.iter().position(|kind| *kind == arm.kind);
        place.map_or(f64::NAN, |place| self.prices[place])
    }

    fn per_token(&self, arm: &Arm) -> f64 {
        self.usd(arm) / arm.measured
    }

    fn best(&self) -> f64 {
        let per_token = self.arms.iter().map(|arm| self.per_token(arm));
        per_token.fold(f64::INFINITY, f64::min)
    }

    fn tokens(&self) -> Tokens {
        let fastest = self.arms.iter().map(|arm| arm.measured).fold(0.0, f64::max);
        let of_hours = |hours: f64| (hours * 3600.0 * fastest) as u64;
        Tokens {
            trial: of_hours(TRIAL_HOURS),
            total: of_hours(FULL_HOURS),
            target: None,
        }
    }

    fn waiting(&self) -> Vec<Outcome> {
        let waits = |arm: &Arm| Outcome {
            predicted: Some(arm.predicted),
            ..waiting(arm.kind, Usd::from_f64(self.usd(arm)).unwrap_or(Usd::ZERO))
        };
        self.arms.iter().map(waits).collect()
    }
}

/// What is known when the product has no question left.
struct Asked {
    outcomes: Vec<Outcome>,
    is_best_excluded: bool,
}

/// Lets the product ask, figure by figure.
fn ask(market: &Market<'_>) -> Asked {
    let (objective, tokens, now) = (cheapest(), market.tokens(), DateTime::UNIX_EPOCH);
    let mut outcomes = market.waiting();
    let mut is_best_excluded = false;
    loop {
        let leader = if outcomes.iter().any(|one| one.tokens_per_second.is_some()) {
            Leader::Measured
        } else {
            Leader::Predicted
        };
        let losers = race::losers(&outcomes, &objective, tokens, leader);
        let is_best = |index: usize| market.per_token(&market.arms[index]) <= market.best();
        is_best_excluded |= losers.iter().any(|loser| is_best(loser.index));
        let steps = start::starts(&outcomes, &objective, tokens, now);
        let asked: Vec<usize> = steps
            .iter()
            .filter(|step| step.start == Start::Now)
            .filter(|step| losers.iter().all(|loser| loser.index != step.index))
            .map(|step| step.index)
            .collect();
        if asked.is_empty() {
            return Asked {
                outcomes,
                is_best_excluded,
            };
        }
        for index in asked {
            measure(&mut outcomes[index], market.arms[index].measured, now);
        }
    }
}

fn choose(arms: &[Arm], prices: [f64; 3]) -> Choice {
    let market = Market { arms, prices };
    let Asked {
        outcomes,
        is_best_excluded,
    } = ask(&market);
    let answer = recommend(&outcomes, &cheapest(), market.tokens());
    let bought = answer.ranked.first().map(|row| row.candidate.as_str());
    let regret = |arm: &Arm| market.per_token(arm) / market.best() - 1.0;
    let guessed = |arm: &Arm| market.usd(arm) / arm.predicted.tokens_per_second;
    let guess = arms.iter().min_by(|a, b| guessed(a).total_cmp(&guessed(b)));
    let asked: Vec<&Arm> = arms
        .iter()
        .zip(&outcomes)
        .filter(|(_, outcome)| outcome.tokens_per_second.is_some())
        .map(|(arm, _)| arm)
        .collect();
    let usd = |arms: &[&Arm]| arms.iter().map(|arm| market.usd(arm)).sum::<f64>();
    let is_bought = |arm: &&Arm| Some(arm.kind) == bought;
    let losers: Vec<&Arm> = asked
        .iter()
        .copied()
        .filter(|arm| !is_bought(arm))
        .collect();
    Choice {
        regret: arms.iter().find(is_bought).map_or(f64::NAN, regret),
        unmeasured: guess.map_or(f64::NAN, regret),
        losers: usd(&losers),
        asked: usd(&asked),
        all: arms.iter().map(|arm| market.usd(arm)).sum(),
        is_best_excluded,
        is_clear: answer.conclusion == Conclusion::Clear,
        always: arms.iter().map(|arm| (arm.kind, regret(arm))).collect(),
    }
}

fn measure(outcome: &mut Outcome, tokens_per_second: f64, now: DateTime<Utc>) {
    outcome.state = TrialState::Running;
    outcome.released_at = Some(now);
    outcome.wall_seconds = 900;
    outcome.tokens_per_second = Some(Steady {
        mean: tokens_per_second,
        half_width: MEASURED * tokens_per_second,
        points: 100,
        buckets: 5,
        buckets_dropped: 0,
        from_at: now,
        until_at: now + TimeDelta::minutes(15),
    });
}

fn figures(choices: &[Choice], cells: usize) -> Value {
    let of = |value: &dyn Fn(&Choice) -> f64| -> Vec<f64> { choices.iter().map(value).collect() };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let regrets = of(&|one| 100.0 * one.regret);
    let guesses = of(&|one| 100.0 * one.unmeasured);
    let mut always = serde_json::Map::new();
    for kind in KINDS {
        let own: Vec<f64> = choices
            .iter()
            .filter_map(|one| one.always.get(kind))
            .map(|regret| 100.0 * regret)
            .collect();
        let figures = json!({"choices": own.len(), "mean_regret_pct": mean(&own), "max_regret_pct": most(&own)});
        always.insert(kind.to_owned(), figures);
    }
    let clear: Vec<&Choice> = choices.iter().filter(|one| one.is_clear).collect();
    json!({
        "rows": choices.len(),
        "cells": cells,
        "mean_regret_pct": mean(&regrets),
        "max_regret_pct": most(&regrets),
        "within_2pct_of_best_pct": 100.0 * share(&regrets, |regret| *regret <= 2.0),
        "spend_on_losers_pct": 100.0 * of(&|one| one.losers).iter().sum::<f64>() / of(&|one| one.all).iter().sum::<f64>(),
        "spend_pct_of_full_probe": 100.0 * of(&|one| one.asked).iter().sum::<f64>() / of(&|one| one.all).iter().sum::<f64>(),
        "cheapest_excluded_pct": 100.0 * share(choices, |one| one.is_best_excluded),
        "said_buy_pct": 100.0 * share(choices, |one| one.is_clear),
        "wrong_buys_pct": 100.0 * share(&clear, |one| one.regret > 0.05),
        "no_probe": {"mean_regret_pct": mean(&guesses), "max_regret_pct": most(&guesses)},
        "always": always,
    })
}
