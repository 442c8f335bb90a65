//! `cargo xtask decisions`: are the answers right, and what do they cost? Random workloads × six
//! instance types go through the service against a region that lives, which then says what each full
//! run would really have taken. Nothing of the truth reaches the service.

mod report;
mod score;
mod workloads;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{build, scratch_dir};
use bakeoff_demo::demo::negotiated_price;
use bakeoff_demo::http::{get_large, pages, post};
use bakeoff_demo::stack::{Setup, Stack};
use report::Report;
use score::Answer;

/// Virtual seconds per real second.
const FACTOR: u32 = 160;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Experiments that run at once. With more, the service's own seconds on a small machine, which are
/// minutes on the domain clock, would count as time that trials run on.
const OPEN_MAX: usize = 70;
/// Without an experiment that ends for this long, the run has stopped moving.
const STILL_MAX: Duration = Duration::from_mins(5);

struct Flags {
    workloads: u32,
    seed: u64,
    json: bool,
}

impl Flags {
    fn parse(flags: &[&str]) -> Result<Self, String> {
        let mut parsed = Self {
            workloads: 200,
            seed: 1,
            json: false,
        };
        let mut rest = flags.iter();
        while let Some(flag) = rest.next() {
            let mut number = || {
                let next = rest.next().and_then(|text| text.parse::<u32>().ok());
                next.ok_or_else(|| format!("{flag} wants a number"))
            };
            match *flag {
                "--workloads" => parsed.workloads = number()?,
                "--seed" => parsed.seed = u64::from(number()?),
                "--json" => parsed.json = true,
                other => return Err(format!("decisions does not know {other}")),
            }
        }
        Ok(parsed)
    }
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let flags = Flags::parse(flags)?;
    build(&["--bins"])?;
    let started = Instant::now();
    let stack = Stack::start(&Setup {
        folder: scratch_dir()?,
        factor: FACTOR,
        region: vec![
            "--lively".to_owned(),
            format!("--seed={}", flags.seed),
            // The account is not what is judged.
            "--quota=2000".to_owned(),
            "--pool-quota=0".to_owned(),
        ],
    })?;
    let outcome = play(&stack, &flags);
    let stopped = stack.stop();
    let answers = outcome?;
    stopped?;
    let report = Report::of(&answers, started.elapsed());
    if flags.json {
        println!("{}", report.json);
    } else {
        println!("{}", report.text);
    }
    if report.holds {
        Ok(())
    } else {
        Err("the answers do not hold".to_owned())
    }
}

fn play(stack: &Stack, flags: &Flags) -> Result<Vec<Answer>, String> {
    negotiated_price(stack)?;
    let ids = decide(stack, flags)?;
    let record = get_large(&format!("{}/_sim/record", stack.region_url), "")?;
    ids.into_iter()
        .map(|(id, number)| Answer::read(stack, &record, &id, number))
        .collect()
}

/// Starts the experiments, a few at a time, until every one has ended; returns their ids with the
/// numbers of their workloads.
fn decide(stack: &Stack, flags: &Flags) -> Result<BTreeMap<String, u32>, String> {
    let url = format!("{}/v1/experiments", stack.url);
    let count = usize::try_from(flags.workloads).unwrap_or(usize::MAX);
    let shows = !flags.json && std::io::stdout().is_terminal();
    let mut ids = BTreeMap::new();
    for number in 0..flags.workloads {
        let spec = workloads::experiment(flags.seed, number);
        let answer = post(&url, &stack.api_key, &spec)
            .map_err(|error| format!("workload {number}: {error}"))?;
        let id = answer["id"].as_str().unwrap_or_default().to_owned();
        ids.insert(id, number);
        let before_the_next = if ids.len() == count {
            count
        } else {
            (ids.len() + 1).saturating_sub(OPEN_MAX)
        };
        wait(stack, before_the_next, |ended| {
            if shows {
                print!("\r{} {ended} of {count} decided ", bar(ended, count));
                drop(std::io::stdout().flush());
            }
        })?;
    }
    if shows {
        println!();
    }
    Ok(ids)
}

/// Until this many experiments have ended.
fn wait(stack: &Stack, count: usize, show: impl Fn(usize)) -> Result<(), String> {
    let url = format!("{}/v1/experiments?page_size=200", stack.url);
    let (mut ended, mut moved) = (0, Instant::now());
    while ended < count {
        std::thread::sleep(LOOK_EVERY);
        // A busy service may answer late: a failed look counts only when nothing moves any more.
        let looked = pages(&url, &stack.api_key);
        let now = looked.as_ref().map_or(ended, |states| over(states));
        if now > ended {
            (ended, moved) = (now, Instant::now());
        }
        if moved.elapsed() > STILL_MAX {
            return Err(stuck(stack, looked, ended));
        }
        show(ended);
    }
    Ok(())
}

fn over(states: &[Value]) -> usize {
    (states.iter())
        .filter(|one| !one["ended_at"].is_null())
        .count()
}

fn stuck(stack: &Stack, looked: Result<Vec<Value>, String>, ended: usize) -> String {
    let open = looked.map(|states| {
        let open = states.iter().filter(|one| one["ended_at"].is_null());
        let names: Vec<&str> = open.filter_map(|one| one["name"].as_str()).collect();
        names.join(", ")
    });
    format!(
        "{ended} ended, then none for {} s: {}; the log is {}",
        STILL_MAX.as_secs(),
        open.unwrap_or_else(|error| error),
        stack.log().display()
    )
}

fn bar(done: usize, of: usize) -> String {
    let filled = 40 * done / of.max(1);
    format!("{}{}", "█".repeat(filled), "░".repeat(40 - filled))
}
