//! The race on MLPerf Training's fine-tuning runs: systems that differ by a tenth or more in their
//! time to the target, seen by the product's own rule through their throughput readings. How often is
//! the faster one stopped, and how often is neither?

use std::collections::BTreeMap;
use std::path::Path;

use bakeoff_domain::measure::eta::Progress;
use bakeoff_domain::measure::speed::of_progress;
use chrono::{DateTime, TimeDelta};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::race::{self, seen};
use crate::table;

const BENCHMARK: &str = "llama2_70b_lora";
const READING: &str = "tracked_stats";
/// Runs that a system must have, since its mean time is the truth.
const RUNS_MIN: usize = 8;
/// A gap that should be decided.
const CLEAR: f64 = 1.1;

/// A row of `mlperf/runs.csv`.
#[derive(Debug, Clone, Deserialize)]
struct Run {
    round: String,
    org: String,
    system: String,
    bench: String,
    result: String,
    nodes: u32,
    /// Empty where a run did not end.
    t_run_s: Option<f64>,
    status: String,
}

/// A row of `mlperf/events.csv`.
#[derive(Debug, Clone, Deserialize)]
struct Event {
    round: String,
    org: String,
    system: String,
    bench: String,
    result: String,
    key: String,
    /// Samples until then; some events have other things here.
    samples: String,
    /// Of a reading: samples per second.
    value: String,
}

/// A system's runs: their finished samples over time.
struct System {
    round: String,
    mean_seconds: f64,
    runs: Vec<Vec<Progress>>,
}

/// `None` if there is no table.
pub(crate) fn judge(data: &Path) -> Result<Option<Value>, String> {
    let runs = table::read::<Run>(data, "mlperf/runs.csv")?;
    let events = table::read::<Event>(data, "mlperf/events.csv")?;
    let Some((runs, events)) = runs.zip(events) else {
        return Ok(None);
    };
    let systems = systems(&runs, &events);
    let (mut pairs, mut all) = (0_usize, Tally::default());
    for (place, one) in systems.iter().enumerate() {
        for other in systems.iter().skip(place + 1) {
            let gap = one.mean_seconds / other.mean_seconds;
            if one.round == other.round && gap.max(1.0 / gap) >= CLEAR {
                let (faster, slower) = if gap < 1.0 {
                    (one, other)
                } else {
                    (other, one)
                };
                pairs += 1;
                all.replay(faster, slower);
            }
        }
    }
    let percent = |part: usize| 100.0 * part as f64 / all.replays.max(1) as f64;
    Ok(Some(json!({
        "rows": systems.iter().map(|system| system.runs.len()).sum::<usize>(),
        "systems": systems.len(),
        "pairs_of_systems": pairs,
        "replays": all.replays,
        "wrong_elimination_pct": percent(all.wrong),
        "undecided_pct": percent(all.undecided),
    })))
}

#[derive(Default)]
struct Tally {
    replays: usize,
    wrong: usize,
    undecided: usize,
}

impl Tally {
    /// Every run of the one system against every run of the other.
    fn replay(&mut self, faster: &System, slower: &System) {
        for first in &faster.runs {
            for second in &slower.runs {
                let lost = stopped(&[first.clone(), second.clone()]);
                self.replays += 1;
                self.wrong += usize::from(lost == Some(0));
                self.undecided += usize::from(lost.is_none());
            }
        }
    }
}

/// Systems of one node with enough runs that reached the target.
fn systems(runs: &[Run], events: &[Event]) -> Vec<System> {
    let mut readings: BTreeMap<[&str; 4], Vec<&Event>> = BTreeMap::new();
    for event in events {
        if event.bench == BENCHMARK && event.key == READING {
            let of = [&event.round, &event.org, &event.system, &event.result];
            readings
                .entry(of.map(String::as_str))
                .or_default()
                .push(event);
        }
    }
    let mut by_system: BTreeMap<[&str; 3], Vec<&Run>> = BTreeMap::new();
    for run in runs {
        if run.bench == BENCHMARK
            && run.nodes == 1
            && run.t_run_s.is_some()
            && run.status == "success"
        {
            let of = [&run.round, &run.org, &run.system];
            by_system
                .entry(of.map(String::as_str))
                .or_default()
                .push(run);
        }
    }
    by_system.retain(|_, runs| runs.len() >= RUNS_MIN);
    let system = |(of, runs): ([&str; 3], Vec<&Run>)| {
        let [round, org, system] = of;
        let seconds: f64 = runs.iter().filter_map(|run| run.t_run_s).sum();
        let own = runs.iter().filter_map(|run| {
            let readings = readings.get(&[round, org, system, run.result.as_str()])?;
            progress(readings)
        });
        System {
            round: round.to_owned(),
            mean_seconds: seconds / runs.len() as f64,
            runs: own.collect(),
        }
    };
    by_system.into_iter().map(system).collect()
}

/// Samples over the time that training took by the readings, which leave evaluations out.
fn progress(readings: &[&Event]) -> Option<Vec<Progress>> {
    let (mut samples, mut seconds) = (0.0, 0.0);
    let mut reports = vec![Progress {
        at: DateTime::UNIX_EPOCH,
        step: 0,
    }];
    for reading in readings {
        let until: f64 = reading.samples.parse().ok()?;
        let per_second: f64 = reading.value.parse().ok()?;
        seconds += (until - samples) / per_second;
        samples = until;
        reports.push(Progress {
            at: DateTime::UNIX_EPOCH + TimeDelta::microseconds((seconds * 1e6).round() as i64),
            step: until as i64,
        });
    }
    Some(reports)
}

/// Which of the two is stopped first, looking at each reading from when both have a figure; one that
/// has reached its target waits for the other's.
fn stopped(runs: &[Vec<Progress>; 2]) -> Option<usize> {
    let mut looks: Vec<_> = runs.iter().flatten().map(|report| report.at).collect();
    looks.sort();
    let has_figures = |now: &DateTime<_>| {
        runs.iter()
            .all(|run| of_progress(seen(run, *now)).is_some())
    };
    looks
        .into_iter()
        .filter(has_figures)
        .find_map(|now| race::stopped(runs, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(speeds: &[f64]) -> Vec<Event> {
        let reading = |(place, speed): (usize, &f64)| Event {
            round: "v1".to_owned(),
            org: "org".to_owned(),
            system: "system".to_owned(),
            bench: BENCHMARK.to_owned(),
            result: "0".to_owned(),
            key: READING.to_owned(),
            samples: format!("{}", 384 * (place + 1)),
            value: speed.to_string(),
        };
        speeds.iter().enumerate().map(reading).collect()
    }

    fn run(speeds: &[f64]) -> Vec<Progress> {
        progress(&readings(speeds).iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_slower_one_is_stopped_and_few_readings_decide_nothing() {
        let fast = run(&[2.0, 2.01, 2.0, 1.99]);
        assert_eq!((fast[1].at - fast[0].at).num_seconds(), 192);
        let slow = run(&[1.7, 1.71, 1.7, 1.7]);
        assert_eq!(stopped(&[fast.clone(), slow.clone()]), Some(1));
        assert_eq!(stopped(&[slow, fast.clone()]), Some(0));
        assert_eq!(stopped(&[fast, run(&[1.7, 1.7, 1.7])]), None);
    }
}
