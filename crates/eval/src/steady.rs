//! Measured speeds on real traces: how often the interval of a speed, measured on the first quarter
//! of a run, holds the speed of the whole run.

use std::path::Path;

use bakeoff_domain::measure::eta::Progress;
use bakeoff_domain::measure::speed::of_progress;
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::table::{self, median, share};

/// The folder of the traces.
const TRACES: &str = "modded_nanogpt";
/// The share of a run from which its speed is measured.
const SEEN: f64 = 0.25;
/// Steps at the start that are no part of a run's speed: they compile.
pub(crate) const COMPILING: usize = 10;
/// Steps whose mean must agree with the whole run's, for the run to be stationary, and by how much.
const EARLY: usize = 200;
const DRIFT_MAX: f64 = 0.01;

#[derive(Debug, Deserialize)]
struct Listed {
    csv: String,
    source_path: String,
}

/// One training run, step by step.
#[derive(Debug)]
pub(crate) struct Trace {
    source_path: String,
    pub(crate) seconds: Vec<f64>,
}

impl Trace {
    /// The folder of the record: what was trained, and how.
    pub(crate) fn recipe(&self) -> &str {
        let path = self.source_path.rsplit_once('/');
        path.map_or("", |(folder, _)| folder)
    }
}

/// Every trace; `None` if there are none.
pub(crate) fn traces(data: &Path) -> Result<Option<Vec<Trace>>, String> {
    let Some(listed) = table::read::<Listed>(data, &format!("{TRACES}/manifest.csv"))? else {
        return Ok(None);
    };
    let mut traces = Vec::new();
    for one in listed {
        let name = format!("{TRACES}/steps/{}", one.csv);
        if let Some(steps) = table::read::<Step>(data, &name)? {
            traces.push(Trace {
                source_path: one.source_path,
                seconds: seconds(&steps),
            });
        }
    }
    Ok(Some(traces))
}

#[derive(Debug, Deserialize)]
struct Step {
    /// Restarts from zero in some runs.
    cum_train_time_ms: Option<f64>,
}

/// What one trace says of one measurement.
struct Case {
    is_stationary: bool,
    claim: Option<Claim>,
}

struct Claim {
    half_width: f64,
    has_held: bool,
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
    let claims = |cases: &[&Case]| {
        let claimed: Vec<f64> = cases
            .iter()
            .filter_map(|one| one.claim.as_ref())
            .map(|claim| claim.half_width)
            .collect();
        let held = cases
            .iter()
            .filter(|one| one.claim.as_ref().is_some_and(|claim| claim.has_held))
            .count();
        (claimed, held)
    };
    let all: Vec<&Case> = cases.iter().collect();
    let (widths, held) = claims(&stationary);
    let (all_widths, all_held) = claims(&all);
    let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
    Ok(Some(json!({
        "rows": cases.len(),
        "stationary": stationary.len(),
        "claims": widths.len(),
        "claims_held_pct": percent(held, widths.len()),
        "median_half_width_pct": 100.0 * median(&widths),
        "all_claims": all_widths.len(),
        "all_claims_held_pct": percent(all_held, all_widths.len()),
        "without_a_figure_pct": 100.0 * share(&all, |one| one.claim.is_none()),
    })))
}

/// Seconds of each step; a timer that restarts leaves out one step.
fn seconds(steps: &[Step]) -> Vec<f64> {
    let times: Vec<f64> = steps
        .iter()
        .filter_map(|step| step.cum_train_time_ms)
        .collect();
    times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) / 1e3)
        .filter(|seconds| *seconds > 0.0)
        .collect()
}

/// Whether the first steps are as fast as the whole run; `None` for a trace that is too short.
pub(crate) fn is_stationary(seconds: &[f64]) -> Option<bool> {
    let run = seconds.get(COMPILING..).filter(|run| run.len() > EARLY)?;
    let mean = |some: &[f64]| some.iter().sum::<f64>() / some.len() as f64;
    let early = mean(&run[..EARLY - COMPILING]);
    Some((mean(run) / early - 1.0).abs() <= DRIFT_MAX)
}

/// `None` for a trace that is too short to be called stationary or not.
fn case(seconds: &[f64]) -> Option<Case> {
    let is_stationary = is_stationary(seconds)?;
    let run = &seconds[COMPILING..];
    let whole = run.iter().sum::<f64>() / run.len() as f64;
    let seen = (seconds.len() as f64 * SEEN) as usize;
    let truth = 1.0 / whole;
    let claim = of_progress(&progress(&seconds[..seen])).map(|steady| Claim {
        half_width: steady.half_width / steady.mean,
        has_held: (steady.mean - truth).abs() <= steady.half_width,
    });
    Some(Case {
        is_stationary,
        claim,
    })
}

/// The reports that a script would push: one for each step, at the time of its end.
pub(crate) fn progress(seconds: &[f64]) -> Vec<Progress> {
    let mut at = DateTime::<Utc>::UNIX_EPOCH;
    let mut reports = vec![Progress { at, step: 0 }];
    for (done, seconds) in (1..).zip(seconds) {
        at += TimeDelta::microseconds((seconds * 1e6).round() as i64);
        reports.push(Progress { at, step: done });
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_run_is_claimed_and_held_and_a_drift_is_missed() {
        let regular = case(&vec![1.0; 2000]).unwrap();
        assert!(regular.is_stationary && regular.claim.unwrap().has_held);
        let drifting: Vec<f64> = (0..2000).map(|i| if i < 600 { 1.0 } else { 1.2 }).collect();
        let drifting = case(&drifting).unwrap();
        assert!(!drifting.is_stationary && !drifting.claim.unwrap().has_held);
        assert!(case(&[1.0; 100]).is_none());
    }
}
