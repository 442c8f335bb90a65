//! The race on real traces: two runs of one recipe, the second slowed by a known factor, seen by the
//! product's own rule as they go. How often is the faster one stopped, and how soon the slower?

use std::collections::BTreeMap;
use std::path::Path;

use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::eta::Progress;
use bakeoff_domain::measure::speed::of_progress;
use bakeoff_domain::money::Usd;
use bakeoff_domain::ranking::outcome::{Outcome, Tokens};
use bakeoff_domain::ranking::race;
use bakeoff_domain::ranking::recommend::recommend;
use bakeoff_domain::spec::StoppingPolicy;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::eta;
use crate::steady::{COMPILING, Trace, progress, traces};
use crate::table::median;
use crate::trial::{cheapest, waiting};

/// What the second run's steps are multiplied by.
const SLOWER: [f64; 5] = [1.01, 1.02, 1.05, 1.10, 1.20];
/// A gap that should be decided.
const CLEAR: f64 = 1.05;
/// Stopping one that is faster by no more than this is not wrong.
const INDIFFERENT: f64 = 0.02;
/// Between two looks: no batch is shorter.
const LOOK: TimeDelta = TimeDelta::seconds(20);
/// Seconds that a step takes at the median, as of a large model: the traces' own steps of a tenth of a
/// second are stretched, so that a batch is five steps.
const STEP_SECONDS: f64 = 4.0;

/// The end of one replay.
struct Replay {
    is_clear: bool,
    is_wrong: bool,
    /// Steps that the second one had done when one of the two was stopped.
    steps: Option<usize>,
}

/// `None` if there are no traces.
pub(crate) fn judge(data: &Path) -> Result<Option<Value>, String> {
    let Some(traces) = traces(data)? else {
        return Ok(None);
    };
    let mut recipes: BTreeMap<&str, Vec<&Trace>> = BTreeMap::new();
    for trace in &traces {
        recipes.entry(trace.recipe()).or_default().push(trace);
    }
    let (mut pairs, mut wrong_pairs, mut replays) = (0_usize, 0_usize, Vec::new());
    for runs in recipes.values() {
        for (place, first) in runs.iter().enumerate() {
            // Both orders are replayed, but they are one pair: they are not independent.
            for second in runs.iter().skip(place + 1) {
                let (a, b) = (&first.seconds, &second.seconds);
                let own: Vec<Replay> = SLOWER
                    .iter()
                    .flat_map(|factor| [replay(a, b, *factor), replay(b, a, *factor)])
                    .collect();
                pairs += 1;
                wrong_pairs += usize::from(own.iter().any(|one| one.is_wrong));
                replays.extend(own);
            }
        }
    }
    let clear: Vec<&Replay> = replays.iter().filter(|one| one.is_clear).collect();
    let decided = clear.iter().filter(|one| one.steps.is_some()).count();
    // One that is not decided takes longer than all that are.
    let steps: Vec<f64> = clear
        .iter()
        .map(|one| one.steps.map_or(f64::INFINITY, |steps| steps as f64))
        .collect();
    let flagged = eta::flagged(&traces);
    let wrong = replays.iter().filter(|one| one.is_wrong).count();
    let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    Ok(Some(json!({
        "rows": traces.len(),
        "recipes_with_pairs": recipes.values().filter(|runs| runs.len() > 1).count(),
        "pairs": pairs,
        "replays": replays.len(),
        "wrong_elimination_pct": percent(wrong, replays.len()),
        "wrong_pairs": wrong_pairs,
        "wrong_upper95_pct": 100.0 * upper_95(wrong_pairs, pairs),
        "decided_of_clear_pct": percent(decided, clear.len()),
        "median_steps": median(&steps),
        "nonstationary_flagged_pct": flagged.nonstationary,
        "false_flag_pct": flagged.stationary,
    })))
}

/// Both runs side by side, until one is stopped or the shorter one ends.
fn replay(first: &[f64], second: &[f64], factor: f64) -> Replay {
    let slowed: Vec<f64> = second.iter().map(|seconds| seconds * factor).collect();
    let steps = first.len().min(slowed.len());
    let mean = |run: &[f64]| run[COMPILING.min(steps)..steps].iter().sum::<f64>();
    let (own, other) = (mean(first), mean(&slowed));
    let stretched = STEP_SECONDS / median(&first[..steps]);
    let stretch = |run: &[f64]| -> Vec<f64> { run.iter().map(|one| one * stretched).collect() };
    let runs = [&first[..steps], &slowed[..steps]].map(|run| progress(&stretch(run)));
    let is_clear = (other / own).max(own / other) >= CLEAR;
    let end = runs.iter().filter_map(|run| run.last()).map(|last| last.at);
    let end = end.min().unwrap_or(DateTime::UNIX_EPOCH);
    let mut now = DateTime::<Utc>::UNIX_EPOCH + LOOK;
    while now <= end {
        if let Some(stopped) = stopped(&runs, now) {
            let (dropped, kept) = if stopped == 0 {
                (own, other)
            } else {
                (other, own)
            };
            return Replay {
                is_clear,
                is_wrong: kept / dropped - 1.0 > INDIFFERENT,
                steps: Some(seen(&runs[1], now).len().saturating_sub(1)),
            };
        }
        now += LOOK;
    }
    Replay {
        is_clear,
        is_wrong: false,
        steps: None,
    }
}

pub(crate) fn seen(run: &[Progress], now: DateTime<Utc>) -> &[Progress] {
    &run[..run.partition_point(|report| report.at <= now)]
}

/// Which of two runs the product gives up at this time. The first may be stopped, too, once it is
/// measured and while the other is not: it is then still the one to buy.
pub(crate) fn stopped(runs: &[Vec<Progress>; 2], now: DateTime<Utc>) -> Option<usize> {
    let outcomes: Vec<Outcome> = runs
        .iter()
        .zip(["first", "second"])
        .map(|(run, name)| running(name, seen(run, now)))
        .collect();
    let tokens = Tokens {
        trial: 1_000_000,
        total: 1_000_000_000,
        target: None,
    };
    let stops = race::stops(&outcomes, StoppingPolicy::Race, &cheapest(), tokens, false);
    let answer = recommend(&outcomes, &cheapest(), tokens);
    let first = answer.ranked.first().map(|row| row.candidate.clone());
    let lost = |index: &usize| outcomes.get(*index).map(|one| &one.candidate) != first.as_ref();
    stops.iter().map(|stop| stop.index).find(lost)
}

/// A trial that has reported so much; a step is a token.
fn running(name: &str, reports: &[Progress]) -> Outcome {
    Outcome {
        state: TrialState::Running,
        released_at: Some(DateTime::UNIX_EPOCH),
        tokens_per_second: of_progress(reports),
        wall_seconds: 1,
        ..waiting(name, Usd(60.into()))
    }
}

/// The upper end of the exact 95 % interval of a share (Clopper and Pearson, 1934), by bisection.
fn upper_95(hits: usize, of: usize) -> f64 {
    if hits >= of {
        return 1.0;
    }
    // P(at most so many hits) at a share.
    let below = |share: f64| {
        let n = of as f64;
        let mut term = (n * (1.0 - share).ln()).exp();
        let mut sum = term;
        for k in 1..=hits {
            term *= (n - k as f64 + 1.0) / k as f64 * share / (1.0 - share);
            sum += term;
        }
        sum
    };
    let (mut low, mut high) = (hits as f64 / of as f64, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if below(middle) > 0.025 {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_run_is_stopped_and_a_twin_is_no_loss() {
        let regular = vec![1.0; 2000];
        let slower = replay(&regular, &regular, 1.2);
        assert!(!slower.is_wrong && slower.is_clear);
        assert!(slower.steps.unwrap() < 200, "{:?}", slower.steps);
        // Once both are measured, one of the two goes on: whichever it is, nothing is lost.
        let twin = replay(&regular, &regular, 1.01);
        assert!(!twin.is_wrong && !twin.is_clear);
        // The second is the faster one in the end, after a slow beginning.
        let late: Vec<f64> = (0..2000).map(|i| if i < 300 { 1.3 } else { 0.8 }).collect();
        assert!(replay(&regular, &late, 1.0).is_wrong);
    }

    /// Rule of three: 0 of 100 is at most 3.6 %; 1 of 20 at most 24.9 %.
    #[test]
    fn the_upper_end_is_the_exact_one() {
        assert!((upper_95(0, 100) - 0.0362).abs() < 1e-3);
        assert!((upper_95(1, 20) - 0.2487).abs() < 1e-3);
    }
}
