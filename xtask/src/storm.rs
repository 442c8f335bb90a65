//! `cargo xtask storm`: fault injection over the real binary, real Postgres and the simulated region, many seeds side by
//! side. The verdict is read from the region's own record. A seed that fails leaves its logs, and is played again with
//! `--seed N`.

mod course;
mod plan;
mod proxy;
mod stage;
mod verdict;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bakeoff_postgres::{Cluster, Config};
use serde_json::{Value, json};

use crate::process::{Scratch, build, scratch_dir};
use course::Ground;
use verdict::Verdict;

/// Postgres is killed about this often, under everybody.
const DATABASE_DIES_EVERY: Duration = Duration::from_secs(40);

/// One seed in so many may be late because the machine is, and is played again.
const PLAYED_AGAIN_SHARE: usize = 10;

/// After Postgres is back, everybody connects anew.
const RECONNECT: Duration = Duration::from_secs(2);

struct Flags {
    seeds: Vec<u64>,
    json: bool,
    jobs: u64,
}

impl Flags {
    fn parse(flags: &[&str]) -> Result<Self, String> {
        let mut parsed = Self { seeds: (0..20).collect(), json: false, jobs: 8 };
        let mut rest = flags.iter();
        let number = |text: Option<&&str>| text.and_then(|text| text.parse().ok()).ok_or("a number is missing");
        while let Some(flag) = rest.next() {
            match *flag {
                "--seeds" => parsed.seeds = (0..number(rest.next())?).collect(),
                "--seed" => parsed.seeds = vec![number(rest.next())?],
                "--jobs" => parsed.jobs = number(rest.next())?,
                "--json" => parsed.json = true,
                other => return Err(format!("storm does not know {other}")),
            }
        }
        Ok(parsed)
    }
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let flags = Flags::parse(flags)?;
    build(&["--bins"])?;
    let scratch = Scratch::new("storm")?;
    let cluster = Cluster::start(&Config { data_dir: scratch.0.join("data"), durable: false });
    let mut cluster = cluster.map_err(|error| error.to_string())?;
    let stormed = over(&flags, &scratch, &mut cluster);
    cluster.stop().map_err(|error| error.to_string())?;
    let (verdicts, restarts, took) = stormed?;
    let result = total(&verdicts, restarts, took);
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&result).unwrap_or_default());
    } else {
        show(&result);
    }
    let failed: Vec<u64> = verdicts.iter().filter(|(_, one)| !one.holds()).map(|(seed, _)| *seed).collect();
    if failed.is_empty() {
        return is_due_to_the_machine(&verdicts);
    }
    for (seed, verdict) in verdicts.iter().filter(|(_, one)| !one.holds()) {
        eprintln!("seed {seed}: {}", verdict.notes.join("\n  "));
    }
    let kept = scratch_dir()?.join("storm-failed");
    drop(std::fs::remove_dir_all(&kept));
    drop(std::fs::rename(scratch.0.join("seeds"), &kept));
    Err(format!(
        "seeds {failed:?} failed; their logs are in {}; again: cargo xtask storm --seed {}",
        kept.display(),
        failed[0]
    ))
}

/// A few late seeds are; many are the service's own.
fn is_due_to_the_machine(verdicts: &Verdicts) -> Result<(), String> {
    let again = verdicts.iter().filter(|(_, one)| one.is_played_again).count();
    if again * PLAYED_AGAIN_SHARE <= verdicts.len().max(PLAYED_AGAIN_SHARE) {
        return Ok(());
    }
    Err(format!("{again} of {} seeds were late: that is not the machine alone", verdicts.len()))
}

type Verdicts = Vec<(u64, Verdict)>;

fn over(flags: &Flags, scratch: &Scratch, cluster: &mut Cluster) -> Result<(Verdicts, u32, Duration), String> {
    crate::test::migrate(cluster)?;
    let port = cluster.url("x").rsplit_once('/').and_then(|(head, _)| head.rsplit_once(':')?.1.parse().ok());
    let pattern = cluster.url("DATABASE");
    let ground = Ground {
        folder: scratch.0.join("seeds"),
        cluster_url: Box::new(move |name| pattern.replace("DATABASE", name)),
        cluster_port: port.ok_or("the cluster has no port")?,
        outages: Mutex::default(),
    };
    let begun = Instant::now();
    let (next, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let verdicts = Mutex::new(Verdicts::new());
    let bar = Bar::new(flags);
    let mut restarts = 0;
    std::thread::scope(|scope| {
        let players = scope.spawn(|| {
            let workers: Vec<_> = (0..flags.jobs.min(u64::try_from(flags.seeds.len()).unwrap_or(1)))
                .map(|_| scope.spawn(|| work(flags, &ground, &next, &verdicts, &bar)))
                .collect();
            for worker in workers {
                if let Err(panic) = worker.join() {
                    std::panic::resume_unwind(panic);
                }
            }
            play_late_ones_again(&ground, &verdicts);
        });
        let mut last = Instant::now();
        while !players.is_finished() {
            std::thread::sleep(Duration::from_millis(50));
            if last.elapsed() > DATABASE_DIES_EVERY {
                let died = SystemTime::now();
                crate::process::signal(cluster.pid(), crate::process::Signal::KILL);
                std::thread::sleep(Duration::from_millis(200));
                if let Err(error) = cluster.restart() {
                    eprintln!("Postgres did not come back: {error}");
                }
                let back = SystemTime::now() + RECONNECT;
                ground.outages.lock().unwrap_or_else(PoisonError::into_inner).push((died, back));
                restarts += 1;
                last = Instant::now();
            }
        }
        is_done.store(true, Ordering::SeqCst);
    });
    let mut verdicts = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
    verdicts.sort_by_key(|(seed, _)| *seed);
    Ok((verdicts, restarts, begun.elapsed()))
}

fn work(flags: &Flags, ground: &Ground, next: &AtomicU64, verdicts: &Mutex<Verdicts>, bar: &Bar) {
    while let Some(seed) = usize::try_from(next.fetch_add(1, Ordering::SeqCst)).ok().and_then(|n| flags.seeds.get(n)) {
        let verdict = play(ground, *seed, 0);
        let mut all = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((*seed, verdict));
        bar.show(&all);
    }
}

/// A stage that could not be set is late too: nothing was seen to go wrong on it.
fn play(ground: &Ground, seed: u64, played: u32) -> Verdict {
    let outcome = course::run(ground, seed, played);
    outcome.unwrap_or_else(|error| Verdict { lost: 1, is_late: true, notes: vec![error], ..Verdict::default() })
}

/// Seeds that were only late are played once more, alone: what is lost then is lost.
fn play_late_ones_again(ground: &Ground, verdicts: &Mutex<Verdicts>) {
    let late = |(_, one): &&mut (u64, Verdict)| !one.holds() && one.is_only_late();
    let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
    for (seed, verdict) in verdicts.iter_mut().filter(late) {
        eprintln!("\nseed {seed} was late ({}); playing it again, alone …", verdict.notes.join("; "));
        *verdict = Verdict { is_played_again: true, ..play(ground, *seed, 1) };
    }
}

/// One line that grows; nothing when nobody watches.
struct Bar {
    seeds: usize,
    is_shown: bool,
}

impl Bar {
    fn new(flags: &Flags) -> Self {
        Self { seeds: flags.seeds.len(), is_shown: std::io::stderr().is_terminal() }
    }

    fn show(&self, verdicts: &Verdicts) {
        if !self.is_shown {
            return;
        }
        let failed = verdicts.iter().filter(|(_, one)| !one.holds()).count();
        let width = 40;
        let filled = verdicts.len() * width / self.seeds.max(1);
        eprint!("\r[{:<width$}] {}/{} seeds, {failed} failed", "#".repeat(filled), verdicts.len(), self.seeds);
        if verdicts.len() == self.seeds {
            eprintln!();
        }
    }
}

fn total(verdicts: &Verdicts, restarts: u32, took: Duration) -> Value {
    let sum = |figure: fn(&Verdict) -> u32| verdicts.iter().map(|(_, one)| u64::from(figure(one))).sum::<u64>();
    let mut faults: BTreeMap<String, u64> = BTreeMap::new();
    let mut recoveries: Vec<f64> = Vec::new();
    for (_, one) in verdicts {
        for (kind, count) in &one.faults {
            *faults.entry(kind.clone()).or_default() += count;
        }
        recoveries.extend(&one.recoveries);
    }
    faults.insert("database_kill".to_owned(), u64::from(restarts));
    recoveries.sort_by(f64::total_cmp);
    let quantile = |share: usize| recoveries.get((recoveries.len() * share).div_ceil(100).saturating_sub(1)).copied();
    json!({
        "seeds": verdicts.len(),
        "failed_seeds": verdicts.iter().filter(|(_, one)| !one.holds()).map(|(seed, _)| *seed).collect::<Vec<_>>(),
        "played_again": verdicts.iter().filter(|(_, one)| one.is_played_again).count(),
        "attempts": verdicts.iter().map(|(_, one)| one.attempts).sum::<u64>(),
        "jobs": verdicts.iter().map(|(_, one)| one.jobs).sum::<u64>(),
        "faults": faults,
        "duplicates": sum(|one| one.duplicates),
        "lost": sum(|one| one.lost),
        "orphans": sum(|one| one.orphans),
        "over_budget": sum(|one| one.over_budget),
        "pools_leaked": sum(|one| one.pools_leaked),
        "pools_reused": verdicts.iter().map(|(_, one)| one.pools_reused).sum::<u64>(),
        "strays_stopped_and_billed": verdicts.iter().map(|(_, one)| one.strays).sum::<u64>(),
        "recoveries": recoveries.len(),
        "recovery_p50_seconds": quantile(50),
        "recovery_p99_seconds": quantile(99),
        "recovery_limit_seconds": f64::from(stage::LEASE_SECONDS) + course::real_seconds(f64::from(stage::POLL_SECONDS)),
        "took_seconds": took.as_secs(),
    })
}

fn show(result: &Value) {
    println!("\n{:<28} {}", "seeds", result["seeds"]);
    for (kind, count) in result["faults"].as_object().into_iter().flatten() {
        println!("  {kind:<26} {count}");
    }
    for key in [
        "played_again",
        "attempts",
        "jobs",
        "duplicates",
        "lost",
        "orphans",
        "over_budget",
        "pools_leaked",
        "pools_reused",
        "strays_stopped_and_billed",
        "recoveries",
        "recovery_p50_seconds",
        "recovery_p99_seconds",
        "recovery_limit_seconds",
        "took_seconds",
    ] {
        println!("{key:<28} {}", result[key]);
    }
}
