//! Equal commits in a region that lives, judged by the gate that the product judges them by: machines differ, stall and
//! drift, scripts warm up, and figures are read by the minute, as the service reads those of young trials. Of two thousand commits whose code is the same, at most
//! one in twenty may be called worse.

use std::collections::BTreeMap;

use bakeoff_domain::catalog;
use bakeoff_domain::ci::gate::{Baseline, Reading, Verdict, judge};
use bakeoff_domain::measure::steady::{Bucket, steady};
use bakeoff_domain::spec::ci::{GateLimit, GateSettings, Inconclusive, Measure};
use chrono::{DateTime, TimeDelta};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::machines::lively::{Allocation, Lively};
use crate::machines::physics::Training;

const REGIONS: u64 = 20;
const COMMITS: u64 = 100;
/// Of a trial.
const SECONDS: f64 = 2100.0;
/// Of a minute's figure, up or down, as the region's scripts report it.
const NOISE: f64 = 0.008;
const BASELINE: usize = 10;

fn settings(rounds: u32) -> GateSettings {
    GateSettings {
        limits: vec![GateLimit {
            measure: Measure::TokensPerSecond,
            worse_by_percent: 3.0,
            baseline: None,
        }],
        baseline_branch: "main".to_owned(),
        baseline_trials: 10,
        rounds,
        inconclusive: Inconclusive::Success,
    }
}

/// What a trial of the code has shown on the machines of a seed, as the service reads it.
fn trial(region: Lively, slower: f64, seed: u64) -> Reading {
    let kind = catalog::find("ml.p5.48xlarge").unwrap();
    let law = Training {
        tokens_per_second: 50_000.0,
        tokens_per_step: 131_072.0,
        first_step: 0.0,
        steps: 20_000.0,
        parameters: 7e9,
        trained: 7e9,
        loss_offset: 0.0,
    };
    let allocation = Allocation {
        seed,
        horizon: 2.0 * SECONDS,
    };
    let script = region.script("code", &BTreeMap::new(), kind, law, allocation);
    let full = script.training.unwrap().tokens_per_second / (1.0 + slower);
    let start = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    let minutes = (0..35_u32).filter_map(|minute| {
        let from = f64::from(minute) * 60.0;
        let share = script.curve.share_between(from, from + 60.0)?;
        let mut noise = StdRng::seed_from_u64(seed ^ (u64::from(minute) << 32));
        let mean = full * share * (1.0 + NOISE * noise.random_range(-1.0..1.0));
        let start_at = start + TimeDelta::minutes(minute.into());
        Some(Bucket {
            start_at,
            points: 6,
            mean,
            min: mean,
            max: mean,
            last_at: start_at + TimeDelta::seconds(59),
            last_step: None,
            last: mean,
        })
    });
    let minutes: Vec<Bucket> = minutes.collect();
    Reading {
        candidate: "p5".to_owned(),
        comparable: "same".to_owned(),
        hours_per_million_tokens: None,
        tokens_per_second: Some(steady(&minutes).unwrap().mean),
        peak_gpu_memory_percent: None,
        train_loss: None,
        validation_loss: None,
        billed_hours: None,
        is_spot: false,
        usd_per_hour: None,
    }
}

/// A gate in a region: how often it measures, and how many trials at a time.
#[derive(Clone, Copy)]
struct Effort {
    region: Lively,
    rounds: u32,
    repeats: usize,
}

/// What comes of two thousand equal commits, and of as many that are 5 % slower: shares.
struct Shares {
    alarms: f64,
    open: f64,
    caught: f64,
}

/// The verdict on a commit, after its rounds, and its trials.
fn commit(effort: Effort, slower: f64, level: &[Reading], seed: u64) -> (Verdict, Vec<Reading>) {
    let baseline = Baseline {
        level: level.to_vec(),
        ..Baseline::default()
    };
    let settings = settings(effort.rounds);
    let (mut trials, mut seeds) = (Vec::new(), seed * 16..);
    for round in 1.. {
        let more = seeds.by_ref().take(effort.repeats);
        trials.extend(more.map(|seed| trial(effort.region, slower, seed)));
        let said = judge(Some(&settings), &trials, Vec::new(), &baseline);
        if !said.is_worth_another || round == effort.rounds {
            return (said.verdict, trials);
        }
    }
    unreachable!("rounds are counted")
}

fn shares(rounds: u32, repeats: usize) -> Shares {
    let (mut alarms, mut open, mut caught) = (0_u32, 0_u32, 0_u32);
    for region in 0..REGIONS {
        let effort = Effort {
            region: Lively { seed: region },
            rounds,
            repeats,
        };
        let mut level: Vec<Reading> = Vec::new();
        for number in 0..COMMITS {
            let seed = (region << 20) + number;
            let (verdict, trials) = commit(effort, 0.0, &level, seed);
            alarms += u32::from(verdict == Verdict::Regressed);
            open += u32::from(verdict == Verdict::Inconclusive);
            let worse = commit(effort, 0.05, &level, seed + (1 << 19)).0;
            caught += u32::from(worse == Verdict::Regressed);
            if verdict != Verdict::Regressed {
                level.splice(0..0, trials);
                level.truncate(BASELINE);
            }
        }
    }
    let all = f64::from(u32::try_from(REGIONS * COMMITS).unwrap());
    let [alarms, open, caught] = [alarms, open, caught].map(|count| f64::from(count) / all);
    Shares {
        alarms,
        open,
        caught,
    }
}

/// A machine that stalls looks like a commit that is slower, and is rarely met twice: whatever a gate may be set to, it
/// keeps to its rate.
#[test]
fn equal_commits_are_called_worse_in_less_than_one_of_twenty() {
    for (rounds, repeats, least) in [
        (3, 1, 0.6),
        (3, 3, 0.85),
        (1, 3, 0.7),
        (1, 2, 0.4),
        (2, 1, 0.35),
    ] {
        let found = shares(rounds, repeats);
        println!(
            "{rounds} rounds of {repeats} trials, {} commits in {REGIONS} regions that live: equal called regressed {:.1} %, inconclusive {:.0} %; 5 % slower: regressed {:.0} %",
            REGIONS * COMMITS,
            found.alarms * 100.0,
            found.open * 100.0,
            found.caught * 100.0
        );
        assert!(found.alarms <= 0.05, "{}", found.alarms);
        assert!(found.caught >= least, "{}", found.caught);
    }
}
