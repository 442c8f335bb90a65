//! What is said to remain of real runs, with each step reported: how often the interval of the
//! remaining time, as it was said while the run went on, held the truth.

use std::path::Path;

use bakeoff_domain::measure::eta::estimate;
use serde_json::{Value, json};

use crate::steady::{Trace, is_stationary, progress, traces};
use crate::table::{median, share};

/// Steps between two looks, and until when a run is looked at.
const EVERY: usize = 100;
const LAST: usize = 1000;
/// Hours that the steps up to the last look are stretched to, as of a large model: the product says of a
/// pace whether it has changed once it has seen it for an hour and a ninth, which only the last look has.
const HOURS_TO_LAST: f64 = 1.2;

/// What was claimed of one run.
struct Case {
    is_stationary: bool,
    held: Vec<bool>,
    /// Whether the pace was once said not to have changed: what remains could be taken as a date.
    is_absolute: bool,
    /// Half width of the first claim, as a share of it.
    first: Option<f64>,
}

/// `None` if there are no traces.
pub(crate) fn judge(data: &Path) -> Result<Option<Value>, String> {
    let Some(traces) = traces(data)? else {
        return Ok(None);
    };
    let cases: Vec<Case> = traces
        .iter()
        .filter_map(|trace| case(&trace.seconds))
        .collect();
    let stationary: Vec<&Case> = cases.iter().filter(|one| one.is_stationary).collect();
    let all: Vec<&Case> = cases.iter().collect();
    let (claims, claims_held) = held(&stationary);
    let (all_claims, all_claims_held) = held(&all);
    let widths: Vec<f64> = stationary.iter().filter_map(|one| one.first).collect();
    Ok(Some(json!({
        "rows": cases.len(),
        "stationary": stationary.len(),
        "claims": claims,
        "claims_held_pct": claims_held,
        "all_claims": all_claims,
        "all_claims_held_pct": all_claims_held,
        "traces_with_claim_pct": 100.0 * widths.len() as f64 / stationary.len().max(1) as f64,
        "median_half_width_pct": 100.0 * median(&widths),
    })))
}

/// Traces whose pace was never said to have come to rest, up to the last look, percent.
pub(crate) struct Flagged {
    /// Of those whose speed is not the first one's: rightly.
    pub(crate) nonstationary: f64,
    pub(crate) stationary: f64,
}

pub(crate) fn flagged(traces: &[Trace]) -> Flagged {
    let cases: Vec<Case> = traces
        .iter()
        .filter_map(|trace| case(&trace.seconds))
        .collect();
    let of = |is_stationary: bool| {
        let of_kind = cases
            .iter()
            .filter(|one| one.is_stationary == is_stationary);
        let of_kind: Vec<&Case> = of_kind.collect();
        100.0 * share(&of_kind, |one| !one.is_absolute)
    };
    Flagged {
        nonstationary: of(false),
        stationary: of(true),
    }
}

/// How many claims there are, and the share that held, percent.
fn held(cases: &[&Case]) -> (usize, f64) {
    let claims: Vec<bool> = cases.iter().flat_map(|one| one.held.clone()).collect();
    let count = claims.iter().filter(|held| **held).count();
    let share = 100.0 * count as f64 / claims.len().max(1) as f64;
    (claims.len(), share)
}

fn stretched(seconds: &[f64]) -> Vec<f64> {
    let until = LAST.min(seconds.len());
    let factor = 3600.0 * HOURS_TO_LAST / seconds[..until].iter().sum::<f64>();
    seconds.iter().map(|one| one * factor).collect()
}

/// `None` for a trace that is too short to be called stationary or not.
fn case(seconds: &[f64]) -> Option<Case> {
    let is_stationary = is_stationary(seconds)?;
    let reports = progress(&stretched(seconds));
    let end = reports.last()?.at;
    let planned = i64::try_from(seconds.len()).ok()?;
    let mut found = Case {
        is_stationary,
        held: Vec::new(),
        is_absolute: false,
        first: None,
    };
    for steps in (EVERY..=LAST.min(seconds.len() - 1)).step_by(EVERY) {
        let now = reports[steps].at;
        let Ok(eta) = estimate(&reports[..=steps], planned, None, now) else {
            continue;
        };
        let truth = (end - now).as_seconds_f64() / 3600.0;
        found
            .held
            .push((eta.remaining_hours_low..=eta.remaining_hours_high).contains(&truth));
        found.is_absolute |= eta.pace_change.is_some_and(|change| !change.has_changed);
        let half = (eta.remaining_hours_high - eta.remaining_hours_low) / 2.0;
        found.first.get_or_insert(half / eta.remaining_hours);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_run_ends_as_was_said_and_one_that_slows_down_does_not() {
        let regular = case(&vec![1.0; 3000]).unwrap();
        assert_eq!(
            (regular.held.len(), regular.held.iter().all(|held| *held)),
            (10, true)
        );
        assert!((regular.first.unwrap() - 0.02).abs() < 1e-3);
        let slower: Vec<f64> = (0..3000)
            .map(|i| if i < 1500 { 1.0 } else { 1.3 })
            .collect();
        let slower = case(&slower).unwrap();
        assert!(!slower.is_stationary && slower.held.iter().all(|held| !held));
        assert!(slower.is_absolute, "the change comes after the last look");
        let early: Vec<f64> = (0..3000).map(|i| if i < 500 { 1.0 } else { 1.1 }).collect();
        assert!(!case(&early).unwrap().is_absolute);
    }
}
