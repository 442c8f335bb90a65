//! All answers together: shares, beside the goals that they are held to.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value, json};

use super::score::Answer;
use super::workloads::TYPES;

/// What must hold: shares in percent.
const GOOD_MIN: f64 = 95.0;
const WRONG_BUY_MAX: f64 = 5.0;
const WASTE_MAX: f64 = 10.0;
const HELD: RangeInclusive<f64> = 85.0..=97.0;

/// One figure of the report.
struct Line {
    what: &'static str,
    told: String,
    json: Value,
    /// Whether it meets its goal, if it has one.
    holds: Option<bool>,
}

fn line(what: &'static str, told: String, json: Value) -> Line {
    Line {
        what,
        told,
        json,
        holds: None,
    }
}

impl Line {
    fn must(self, holds: bool) -> Self {
        Self {
            holds: Some(holds),
            ..self
        }
    }
}

pub(super) struct Report {
    pub(super) holds: bool,
    pub(super) json: Value,
    pub(super) text: String,
}

impl Report {
    pub(super) fn of(answers: &[Answer], took: Duration) -> Self {
        let lines = lines(answers, took);
        let mut json = serde_json::Map::new();
        for one in &lines {
            json.extend(one.json.as_object().cloned().unwrap_or_default());
        }
        json.insert(
            "answers".to_owned(),
            answers.iter().map(Answer::details).collect(),
        );
        let rows = lines.iter().map(|one| {
            let mark = one.holds.map_or(" ", |holds| if holds { "✓" } else { "✗" });
            format!("{mark} {:<50}{}", one.what, one.told)
        });
        let wrong = answers.iter().filter(|one| one.is_wrong());
        let wrong = wrong.map(|one| format!("    {}", one.brief()));
        Self {
            holds: lines.iter().all(|one| one.holds.unwrap_or(true)),
            json: Value::Object(json),
            text: rows.chain(wrong).collect::<Vec<_>>().join("\n"),
        }
    }
}

fn lines(answers: &[Answer], took: Duration) -> Vec<Line> {
    let mut lines = vec![
        line(
            "workloads × types",
            format!("{} × {TYPES}", answers.len()),
            json!({ "workloads": answers.len(), "types": TYPES }),
        ),
        started(answers),
        conclusions(answers),
    ];
    lines.extend(regrets(answers));
    lines.push(buys(answers));
    lines.push(waste(answers));
    lines.push(budgets(answers));
    lines.push(intervals(answers));
    lines.push(planned(answers));
    lines.push(receipts(answers));
    lines.push(line(
        "took",
        format!("{} s", took.as_secs()),
        json!({ "took_seconds": took.as_secs() }),
    ));
    lines
}

fn started(answers: &[Answer]) -> Line {
    let could: usize = answers.iter().map(Answer::could_run).sum();
    let refused: usize = answers.iter().map(|one| one.refused).sum();
    let started: usize = answers.iter().map(|one| one.started).sum();
    line(
        "candidates: could run, started, refused",
        format!("{could}, {started}, {refused}"),
        json!({ "candidates": could, "started": started, "refused": refused }),
    )
}

fn conclusions(answers: &[Answer]) -> Line {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for one in answers {
        *counts.entry(&one.conclusion).or_default() += 1;
    }
    let words = counts.iter().map(|(word, count)| format!("{word} {count}"));
    line(
        "answers",
        words.collect::<Vec<_>>().join(", "),
        json!({ "conclusions": counts }),
    )
}

/// What was chosen, and what would have been without measuring anything.
fn regrets(answers: &[Answer]) -> [Line; 2] {
    let judged = |regret: fn(&Answer) -> Option<f64>| -> Vec<f64> {
        answers.iter().filter_map(regret).collect()
    };
    let (chosen, unmeasured) = (judged(Answer::regret), judged(Answer::regret_unmeasured));
    let good = |regrets: &[f64]| {
        percent(
            regrets.iter().filter(|one| **one <= 5.0).count(),
            regrets.len(),
        )
    };
    let mean = |regrets: &[f64]| {
        let finite: Vec<f64> = (regrets.iter().copied())
            .filter(|one| one.is_finite())
            .collect();
        finite.iter().sum::<f64>() / real(finite.len().max(1))
    };
    let told = |regrets: &[f64]| {
        format!(
            "{:.1} % of {}; {:.2} % worse on average",
            good(regrets),
            regrets.len(),
            mean(regrets)
        )
    };
    [
        line(
            "chosen within 5 % of the truly best (≥ 95 %)",
            told(&chosen),
            json!({
                "judged": chosen.len(), "within_5_percent_of_best_pct": good(&chosen), "mean_regret_pct": mean(&chosen),
            }),
        )
        .must(good(&chosen) >= GOOD_MIN),
        line(
            "the same by prediction alone",
            told(&unmeasured),
            json!({
                "unmeasured_within_5_percent_of_best_pct": good(&unmeasured),
                "unmeasured_mean_regret_pct": mean(&unmeasured),
            }),
        ),
    ]
}

fn buys(answers: &[Answer]) -> Line {
    let all = answers.iter().filter(|one| one.is_buy()).count();
    let wrong = answers
        .iter()
        .filter(|one| one.is_buy() && one.is_wrong())
        .count();
    let share = percent(wrong, all);
    line(
        "\"Buy\" wrong by more than 5 % (≤ 5 %)",
        format!("{wrong} of {all}, {share:.1} %"),
        json!({ "buys": all, "wrong_buys": wrong, "wrong_buys_pct": share }),
    )
    .must(share <= WRONG_BUY_MAX)
}

fn waste(answers: &[Answer]) -> Line {
    let sum = |dollars: fn(&Answer) -> f64| answers.iter().map(dollars).sum::<f64>();
    let spent = sum(|one| one.spent_usd);
    let losers = sum(|one| one.losers_usd);
    let everything = sum(Answer::everything_usd);
    let share = 100.0 * losers / everything.max(f64::EPSILON);
    line(
        "spent on losers, of running everything (≤ 10 %)",
        format!("{share:.1} %: ${losers:.0} of ${everything:.0}; ${spent:.0} spent on all trials"),
        json!({
            "spent_on_losers_pct": share, "losers_usd": losers, "everything_usd": everything, "spent_usd": spent,
        }),
    )
    .must(share <= WASTE_MAX)
}

fn budgets(answers: &[Answer]) -> Line {
    let over = answers.iter().filter(|one| one.is_over_budget()).count();
    line(
        "experiments beyond their budget (0)",
        over.to_string(),
        json!({ "over_budget": over }),
    )
    .must(over == 0)
}

fn intervals(answers: &[Answer]) -> Line {
    let judged: Vec<&Answer> = answers
        .iter()
        .filter(|one| one.regret().is_some())
        .collect();
    let held = judged.iter().filter(|one| one.holds_truth()).count();
    let share = percent(held, judged.len());
    line(
        "stated 90 % intervals of the chosen run's dollars",
        format!("held the truth in {share:.1} %"),
        json!({ "interval90_coverage_pct": share }),
    )
}

/// What plans said of their trials' dollars.
fn planned(answers: &[Answer]) -> Line {
    let all: Vec<(bool, f64)> = answers.iter().flat_map(Answer::planned_errors).collect();
    let held = percent(all.iter().filter(|(holds, _)| *holds).count(), all.len());
    let errors = || all.iter().map(|(_, error)| 100.0 * error);
    let off = median(errors().map(f64::abs).collect());
    let bias = median(errors().collect());
    line(
        "stated 90 % intervals of trials' dollars (85 to 97 %)",
        format!(
            "held the truth in {held:.1} % of {}; {off:.1} % off, {bias:+.1} % by the median",
            all.len()
        ),
        json!({
            "trial_usd_coverage_pct": held, "trial_usd_error_pct": off, "trial_usd_bias_pct": bias,
        }),
    )
    .must(HELD.contains(&held))
}

/// What answers say that every trial to its end would have cost, most of which never ran.
fn receipts(answers: &[Answer]) -> Line {
    let all: Vec<(bool, f64)> = answers.iter().filter_map(Answer::receipt).collect();
    let held = percent(all.iter().filter(|(holds, _)| *holds).count(), all.len());
    let off = median(all.iter().map(|(_, error)| 100.0 * error.abs()).collect());
    let both = answers.iter().map(Answer::receipt_beside_truth);
    let (said, truth) = both.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let bias = 100.0 * (said / truth - 1.0);
    line(
        "stated 90 % intervals of what everything costs (≥ 85 %)",
        format!(
            "held the truth in {held:.1} % of {}; {off:.1} % off by the median, {bias:+.1} % all together",
            all.len()
        ),
        json!({ "receipt_error_pct": off, "receipt_bias_pct": bias, "receipt_coverage_pct": held }),
    )
    .must(held >= *HELD.start())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn percent(count: usize, of: usize) -> f64 {
    100.0 * real(count) / real(of.max(1))
}

#[expect(clippy::cast_precision_loss, reason = "a count of workloads")]
fn real(count: usize) -> f64 {
    count as f64
}
