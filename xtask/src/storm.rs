//! `cargo xtask storm`: fault injection over the real binary, real Postgres and the simulated
//! region, many seeds in parallel. The verdict is based on the region's own record. A seed that
//! fails leaves its logs, and can be replayed with `--seed N`.

mod ci;
mod client;
mod control;
mod course;
mod database;
mod endpoints;
mod feed;
mod hooks;
mod models;
mod neighbour;
mod pipelines;
mod plan;
mod progress;
mod proxy;
mod report;
mod specs;
mod stage;
mod statuses;
mod twin;
mod upgrade;
mod verdict;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bakeoff_postgres::{Cluster, Config};
use course::Ground;
use progress::Bar;
use serde_json::{Value, json};
use verdict::Verdict;

use crate::process::{Scratch, build, program, release, scratch, scratch_dir};

/// About how often Postgres is killed, for all seeds at once.
const DATABASE_DIES_EVERY: Duration = Duration::from_secs(40);

/// One seed in this many may be late because of the machine; it is played again.
const PLAYED_AGAIN_SHARE: usize = 10;

/// Minimum pause between the starts of two seeds.
const BETWEEN_STARTS: Duration = Duration::from_millis(700);
/// Seeds played at a time, unless requested otherwise: each is up to three replicas, a region and their clients, and
/// keeps a processor busy. With more, leases expire before their work is done, and all of it takes longer.
const JOBS_PER_CORE: u64 = 1;
/// No seed is started while more tasks than this are runnable per processor, but that wait is
/// limited by `BUSY_MAX`.
const RUNNABLE_PER_CORE_MAX: usize = 4;
const BUSY_MAX: Duration = Duration::from_mins(2);

/// From this many seeds on, there must be something to judge.
const SEEDS_THAT_MUST_SAY_ALL: usize = 10;
/// From this many seeds on, every fault must happen.
const SEEDS_THAT_SEE_ALL: usize = 200;
/// Lines of each log of a failed seed to print.
const LAST_WORDS: usize = 25;
/// Times are asserted only when at most this many seeds are played at a time.
const JOBS_THAT_ARE_TIMED: u64 = 1;

/// After Postgres is back, every client reconnects within this time.
const RECONNECT: Duration = Duration::from_secs(2);

struct Flags {
    seeds: Vec<u64>,
    json: bool,
    jobs: u64,
    is_one_frozen: bool,
    /// The programs are already built, perhaps from a mutant.
    is_built: bool,
    /// The programs as they are shipped: they take long to build, and a fifth of the processor's time to run.
    is_release: bool,
    /// Starts no more seeds once one has failed.
    until_failure: bool,
}

const USAGE: &str = "--seeds N or --seeds FROM..TO or --seed N, --jobs N, --json, --one-frozen, --release, --built, --until-failure";

impl Flags {
    fn parse(flags: &[&str]) -> Result<Self, String> {
        let mut parsed = Self {
            seeds: (0..20).collect(),
            json: false,
            jobs: std::thread::available_parallelism()
                .map_or(1, |cores| cores.get().try_into().unwrap_or(1))
                * JOBS_PER_CORE,
            is_one_frozen: false,
            is_built: false,
            is_release: false,
            until_failure: false,
        };
        let mut rest = flags.iter();
        let number = |text: Option<&&str>| {
            text.and_then(|text| text.parse().ok())
                .ok_or("a number is missing")
        };
        while let Some(flag) = rest.next() {
            match *flag {
                "--seeds" => parsed.seeds = plan::seeds(rest.next().unwrap_or(&""))?,
                "--seed" => parsed.seeds = vec![number(rest.next())?],
                "--jobs" => parsed.jobs = number(rest.next())?,
                "--json" => parsed.json = true,
                "--one-frozen" => parsed.is_one_frozen = true,
                "--release" => parsed.is_release = true,
                "--built" => parsed.is_built = true,
                "--until-failure" => parsed.until_failure = true,
                other => return Err(format!("storm does not know {other}; it takes {USAGE}")),
            }
        }
        // The longest seeds come first, so that nothing waits for them at the end.
        parsed.seeds.sort_by_key(|seed| !plan::is_fenced(*seed));
        Ok(parsed)
    }
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let flags = Flags::parse(flags)?;
    if !flags.is_built {
        build(if flags.is_release {
            &["--bins", "--release"]
        } else {
            &["--bins"]
        })?;
    }
    let scratch = scratch("storm")?;
    let cluster = Cluster::start(&Config {
        data_dir: scratch.0.join("data"),
        durable: false,
    });
    let mut cluster = cluster.map_err(|error| error.to_string())?;
    let stormed = over(&flags, &scratch, &mut cluster);
    cluster.stop().map_err(|error| error.to_string())?;
    let stormed = stormed?;
    let result = total(&stormed);
    let verdicts = stormed.verdicts;
    if flags.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&result).unwrap_or_default()
        );
    } else {
        report::show(&result);
    }
    let failed: Vec<u64> = verdicts
        .iter()
        .filter(|(_, one)| !one.holds())
        .map(|(seed, _)| *seed)
        .collect();
    if failed.is_empty() {
        says_something(&result, &flags)?;
        return is_due_to_the_machine(&verdicts);
    }
    let kept = scratch_dir()?.join("storm-failed");
    drop(std::fs::remove_dir_all(&kept));
    drop(std::fs::rename(scratch.0.join("seeds"), &kept));
    show_last_words(&kept);
    // Last, where it is looked for: of a long output often only the end is kept.
    for (seed, verdict) in verdicts.iter().filter(|(_, one)| !one.holds()) {
        let how = if verdict.is_only_late() { ", late" } else { "" };
        eprintln!("\nseed {seed}{how}: {}", verdict.notes.join("\n  "));
    }
    Err(format!(
        "seeds {failed:?} failed; their logs are in {}; again: cargo xtask storm --seed {}",
        kept.display(),
        failed[0]
    ))
}

/// A run that could not fail proves nothing. Reports what never happened, and fails a run of some
/// length in which something required did not happen.
fn says_something(result: &Value, flags: &Flags) -> Result<(), String> {
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let missing: Vec<&str> = result["did_not_happen"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !missing.is_empty() {
        eprintln!("did not happen: {}", missing.join(", "));
    }
    if flags.seeds.len() < SEEDS_THAT_MUST_SAY_ALL {
        return Ok(());
    }
    if !missing.is_empty() && flags.seeds.len() >= SEEDS_THAT_SEE_ALL && !flags.is_one_frozen {
        return Err(format!(
            "{} did not happen: the run does not count",
            missing.join(", ")
        ));
    }
    if flags.is_one_frozen && count(&result["faults"]["freeze_for_good"]) < count(&result["seeds"])
    {
        return Err("in some seeds nobody was frozen for good: the run does not count".to_owned());
    }
    let mut figures = vec![
        "refused_reservations",
        "losers_stopped",
        "cancels_judged",
        "points_compared",
        "model_packages",
        "steps_completed",
        "webhooks_delivered",
    ];
    // An alarm that can be judged is rare: a job that outlives its attempt, or costs more than was reserved.
    let counts = report::COUNTS.map(|(name, _)| name).into_iter();
    let is_long = flags.seeds.len() >= SEEDS_THAT_SEE_ALL;
    figures.extend(counts.filter(|name| is_long || *name != "alarms_judged"));
    // Looked at with `psql`, which npm's Postgres lacks; so many seeds need it for upgrades anyway.
    if flags.seeds.len() >= SEEDS_THAT_SEE_ALL {
        figures.push("session_looks");
    }
    // A recovery counts only when nothing else was in its way: on a slow machine, a short run can
    // have none.
    if flags.seeds.len() >= SEEDS_THAT_SEE_ALL {
        figures.extend(["recoveries", "recoveries_from_freezes"]);
    }
    for figure in figures {
        if count(&result[figure]) == 0 {
            return Err(format!("{figure} is 0: the run does not count"));
        }
    }
    recovers_in_time(result, flags)
}

/// Checks how long recoveries took. With more seeds at a time than processors, times show how busy
/// the machine is.
fn recovers_in_time(result: &Value, flags: &Flags) -> Result<(), String> {
    for figure in ["recovery_p99_seconds", "recovery_from_freezes_p99_seconds"] {
        match result[figure]
            .as_f64()
            .zip(result["recovery_limit_seconds"].as_f64())
        {
            Some((p99, limit)) if flags.jobs <= JOBS_THAT_ARE_TIMED && p99 > limit => {
                return Err(format!(
                    "{figure} is {p99:.2} s, and {limit:.2} s is the limit"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// A few late seeds are the machine's fault; many are the service's.
fn is_due_to_the_machine(verdicts: &Verdicts) -> Result<(), String> {
    let again = verdicts
        .iter()
        .filter(|(_, one)| one.is_played_again)
        .count();
    if again * PLAYED_AGAIN_SHARE <= verdicts.len().max(PLAYED_AGAIN_SHARE) {
        return Ok(());
    }
    Err(format!(
        "{again} of {} seeds were late: that is not the machine alone",
        verdicts.len()
    ))
}

type Verdicts = Vec<(u64, Verdict)>;

/// All seeds that were played.
struct Stormed {
    verdicts: Verdicts,
    /// Restarts of Postgres, one after each kill.
    restarts: u32,
    /// Looks at the sessions of all seeds that succeeded.
    session_looks: u64,
    took: Duration,
}

fn over(flags: &Flags, scratch: &Scratch, cluster: &mut Cluster) -> Result<Stormed, String> {
    let program = if flags.is_release { release } else { program };
    crate::database::migrate(cluster, &program("bakeoff"))?;
    let port = cluster
        .url("x")
        .rsplit_once('/')
        .and_then(|(head, _)| head.rsplit_once(':')?.1.parse().ok());
    let pattern = cluster.url("DATABASE");
    let ground = Ground {
        folder: scratch.0.join("seeds"),
        cluster_url: Box::new(move |name| pattern.replace("DATABASE", name)),
        cluster_port: port.ok_or("the cluster has no port")?,
        outages: Mutex::default(),
        left_open: Mutex::default(),
        psql: cluster.psql(),
        is_one_frozen: flags.is_one_frozen,
        program,
    };
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let verdicts = Mutex::new(Verdicts::new());
    let bar = Bar::new(flags.seeds.len());
    let door = Mutex::new(());
    let is_over = AtomicBool::new(false);
    let (restarts, session_looks) = std::thread::scope(|scope| {
        let players = scope.spawn(|| {
            let workers: Vec<_> = (0..flags
                .jobs
                .min(u64::try_from(flags.seeds.len()).unwrap_or(1)))
                .map(|_| scope.spawn(|| work(flags, &ground, &next, &door, &verdicts, &bar)))
                .collect();
            for worker in workers {
                if let Err(panic) = worker.join() {
                    std::panic::resume_unwind(panic);
                }
            }
            play_late_ones_again(&ground, &verdicts);
        });
        let watching = scope.spawn(|| {
            let admin = ground.database("postgres");
            database::watch(&admin, &is_over, &ground.left_open)
        });
        let restarts = kill_postgres_until(|| players.is_finished(), cluster, &ground);
        is_over.store(true, Ordering::SeqCst);
        (restarts, watching.join().unwrap_or_default())
    });
    let mut verdicts = verdicts
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    verdicts.sort_by_key(|(seed, _)| *seed);
    Ok(Stormed {
        verdicts,
        restarts,
        session_looks,
        took: begun.elapsed(),
    })
}

/// Kills Postgres every now and then, and restarts it; returns how often.
fn kill_postgres_until(is_done: impl Fn() -> bool, cluster: &mut Cluster, ground: &Ground) -> u32 {
    let mut restarts = 0;
    let mut last = Instant::now();
    while !is_done() {
        std::thread::sleep(Duration::from_millis(50));
        if last.elapsed() <= DATABASE_DIES_EVERY {
            continue;
        }
        let died = SystemTime::now();
        crate::process::signal(cluster.pid(), crate::process::Signal::KILL);
        std::thread::sleep(Duration::from_millis(200));
        if let Err(error) = cluster.restart() {
            eprintln!("Postgres did not come back: {error}");
        }
        let back = SystemTime::now() + RECONNECT;
        ground
            .outages
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((died, back));
        restarts += 1;
        last = Instant::now();
    }
    restarts
}

fn work(
    flags: &Flags,
    ground: &Ground,
    next: &AtomicU64,
    door: &Mutex<()>,
    verdicts: &Mutex<Verdicts>,
    bar: &Bar,
) {
    let one_by_one = || {
        let _held = door.lock().unwrap_or_else(PoisonError::into_inner);
        wait_for_processors();
    };
    while let Some(seed) = usize::try_from(next.fetch_add(1, Ordering::SeqCst))
        .ok()
        .and_then(|n| flags.seeds.get(n))
    {
        one_by_one();
        let verdict = play(ground, *seed, 0);
        let has_failed = !verdict.holds() && !verdict.is_only_late();
        if !verdict.holds() {
            let how = if has_failed { "failed" } else { "is late" };
            eprintln!("\nseed {seed} {how}: {}", verdict.notes.join("; "));
        }
        let mut all = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((*seed, verdict));
        let failed = all.iter().filter(|(_, one)| !one.holds()).count();
        bar.show(all.len(), failed);
        if has_failed && flags.until_failure {
            next.store(u64::MAX / 2, Ordering::SeqCst);
        }
    }
}

/// Waits while many more tasks are runnable than there are processors: on a slow or shared machine,
/// fewer seeds are played at a time than requested. The behaviour of a service that gets no
/// processor proves nothing.
fn wait_for_processors() {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let begun = Instant::now();
    loop {
        // A seed's start takes the most.
        std::thread::sleep(BETWEEN_STARTS);
        let busy = runnable();
        if busy.is_none_or(|busy| busy <= cores * RUNNABLE_PER_CORE_MAX)
            || begun.elapsed() > BUSY_MAX
        {
            return;
        }
    }
}

/// Tasks that run or are runnable, averaged over some samples; `None` without Linux's /proc.
fn runnable() -> Option<usize> {
    const LOOKS: usize = 10;
    let mut sum = 0;
    for _ in 0..LOOKS {
        let text = std::fs::read_to_string("/proc/loadavg").ok()?;
        sum += text
            .split_whitespace()
            .nth(3)?
            .split('/')
            .next()?
            .parse::<usize>()
            .ok()?;
        std::thread::sleep(Duration::from_millis(40));
    }
    Some(sum / LOOKS)
}

/// Prints the ends of the failed seeds' logs: where the run was played, their folder may be gone.
fn show_last_words(kept: &Path) {
    let folders = std::fs::read_dir(kept).into_iter().flatten().flatten();
    let logs = folders.flat_map(|seed| std::fs::read_dir(seed.path()).into_iter().flatten());
    for log in logs.flatten() {
        let is_service = log.file_name().to_string_lossy().starts_with("service-");
        if let Some(text) = std::fs::read_to_string(log.path())
            .ok()
            .filter(|_| is_service)
        {
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.get(lines.len().saturating_sub(LAST_WORDS)..);
            eprintln!(
                "\n{}:\n{}",
                log.path().display(),
                last.unwrap_or_default().join("\n")
            );
        }
    }
}

/// Plays a seed. A stage that could not be set up counts as late: nothing was seen to go wrong on
/// it.
fn play(ground: &Ground, seed: u64, played: u32) -> Verdict {
    let outcome = course::run(ground, seed, played);
    outcome.unwrap_or_else(|error| Verdict {
        lost: 1,
        is_late: true,
        notes: vec![error],
        ..Verdict::default()
    })
}

/// Replays seeds that were only late once more, alone: what is lost then is lost.
fn play_late_ones_again(ground: &Ground, verdicts: &Mutex<Verdicts>) {
    let late = |(_, one): &&mut (u64, Verdict)| !one.holds() && one.is_only_late();
    let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
    for (seed, verdict) in verdicts.iter_mut().filter(late) {
        eprintln!(
            "\nseed {seed} was late ({}); playing it again, alone …",
            verdict.notes.join("; ")
        );
        *verdict = Verdict {
            is_played_again: true,
            ..play(ground, *seed, 1)
        };
    }
}

fn total(stormed: &Stormed) -> Value {
    let verdicts = &stormed.verdicts;
    let all =
        |figure: fn(&Verdict) -> u64| verdicts.iter().map(|(_, one)| figure(one)).sum::<u64>();
    let faults = faults(stormed);
    let missing = missing(&faults);
    let recoveries = sorted(verdicts, |one| &one.recoveries);
    let thaws = sorted(verdicts, |one| &one.thaws);
    let cancels = sorted(verdicts, |one| &one.cancels);
    let listing = f64::from(plan::USUAL.poll_seconds) / f64::from(plan::USUAL.factor);
    let mut result = json!({
        "seeds": verdicts.len(),
        "failed_seeds": verdicts.iter().filter(|(_, one)| !one.holds()).map(|(seed, _)| *seed).collect::<Vec<_>>(),
        "played_again": verdicts.iter().filter(|(_, one)| one.is_played_again).count(),
        "attempts": all(|one| one.attempts),
        "jobs": all(|one| one.jobs),
        "did_not_happen": missing,
        "faults": faults,
        "refused_reservations": all(|one| one.refused_reservations),
        "losers_stopped": all(|one| one.raced),
        "points_compared": all(|one| one.points),
        "model_packages": all(|one| one.packages),
        "steps_completed": all(|one| one.steps),
        "webhooks_delivered": all(|one| one.webhooks),
        "jobs_by_kind": jobs_by_kind(&stormed.verdicts),
        "cancels_judged": cancels.len(),
        "cancel_p99_seconds": quantile(&cancels, 99),
        "pools_reused": all(|one| one.pools_reused),
        "orphans_stopped_and_billed": all(|one| one.reclaimed),
        "recoveries": recoveries.len(),
        "recovery_p50_seconds": quantile(&recoveries, 50),
        "recovery_p99_seconds": quantile(&recoveries, 99),
        "recoveries_from_freezes": thaws.len(),
        "recovery_from_freezes_p99_seconds": quantile(&thaws, 99),
        "recovery_limit_seconds": 2.0 * (f64::from(stage::LEASE_SECONDS) + listing),
        "session_looks": stormed.session_looks,
        "took_seconds": stormed.took.as_secs(),
    });
    for (name, figure) in report::COUNTS {
        result[name] = all(figure).into();
    }
    for (name, figure) in report::WRONGS {
        let sum: u64 = verdicts.iter().map(|(_, one)| u64::from(figure(one))).sum();
        result[name] = sum.into();
    }
    result
}

/// Faults that never happened.
fn missing(faults: &BTreeMap<String, u64>) -> Vec<&'static str> {
    let has_happened = |kind: &&str| faults.get(*kind).is_some_and(|count| *count > 0);
    let all = plan::FAULTS.into_iter();
    all.filter(|kind| !has_happened(kind)).collect()
}

/// The region's jobs of each kind.
fn jobs_by_kind(verdicts: &Verdicts) -> BTreeMap<&str, u64> {
    let mut kinds = BTreeMap::new();
    for (_, one) in verdicts {
        for (kind, count) in &one.jobs_by_kind {
            *kinds.entry(kind.as_str()).or_default() += count;
        }
    }
    kinds
}

/// How often each fault happened.
fn faults(stormed: &Stormed) -> BTreeMap<String, u64> {
    let mut faults: BTreeMap<String, u64> = plan::FAULTS.map(|kind| (kind.to_owned(), 0)).into();
    for (_, one) in &stormed.verdicts {
        for (kind, count) in &one.faults {
            *faults.entry(kind.clone()).or_default() += count;
        }
    }
    faults.insert("database_kill".to_owned(), u64::from(stormed.restarts));
    faults
}

/// The seconds of all seeds, ascending.
fn sorted(verdicts: &Verdicts, of: fn(&Verdict) -> &Vec<f64>) -> Vec<f64> {
    let mut all: Vec<f64> = verdicts
        .iter()
        .flat_map(|(_, one)| of(one).iter().copied())
        .collect();
    all.sort_by(f64::total_cmp);
    all
}

fn quantile(of: &[f64], share: usize) -> Option<f64> {
    of.get((of.len() * share).div_ceil(100).saturating_sub(1))
        .copied()
}
