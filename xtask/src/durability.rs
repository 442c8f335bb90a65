//! `cargo xtask durability`: several senders write points, some twice and some late, while the
//! service and Postgres are killed. In the end every acknowledged point must be stored exactly
//! once, with its value.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::process::{build, scratch_dir};
use bakeoff_demo::stack::{Setup, Stack};

const SENDERS: u64 = 4;
const METRICS: u64 = 10;
const LINES: u64 = 100;
/// 2026-11-10, which is in the past on the domain clock.
const EPOCH: u64 = 1_794_268_800;
/// Shares of batches that are sent twice, and that are sent late.
const TWICE: f64 = 0.2;
const LATE: f64 = 0.2;
/// A service that does not come back within this time has not survived.
const PATIENCE: Duration = Duration::from_mins(10);

struct Flags {
    points: u64,
    kills: u64,
    json: bool,
}

impl Flags {
    fn parse(flags: &[&str]) -> Result<Self, String> {
        let mut parsed = Self {
            points: 1_000_000,
            kills: 100,
            json: false,
        };
        let mut rest = flags.iter();
        while let Some(flag) = rest.next() {
            let mut number = || {
                rest.next()
                    .and_then(|count| count.parse().ok())
                    .ok_or(format!("{flag} wants a number"))
            };
            match *flag {
                "--points" => parsed.points = number()?,
                "--kills" => parsed.kills = number()?,
                "--json" => parsed.json = true,
                other => return Err(format!("durability does not know {other}")),
            }
        }
        Ok(parsed)
    }

    fn batches_of_sender(&self) -> u64 {
        self.points.div_ceil(SENDERS * METRICS * LINES).max(1)
    }
}

/// What the senders observed.
#[derive(Default)]
struct SenderCounts {
    acknowledged: AtomicU64,
    /// Sent again after no answer, or a 503: they may have been stored before.
    unanswered: AtomicU64,
    twice: AtomicU64,
    late: AtomicU64,
    gives_up: AtomicBool,
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let flags = Flags::parse(flags)?;
    build(&["--bins"])?;
    let mut stack = Stack::start(&Setup::below(scratch_dir()?))?;
    let outcome = play(&mut stack, &flags);
    let stopped = stack.stop();
    let result = outcome?;
    stopped?;
    if flags.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&result).unwrap_or_default()
        );
    } else {
        show(&result);
    }
    let wrong: u64 = ["lost", "twice_stored", "wrong"]
        .iter()
        .filter_map(|key| result[key].as_u64())
        .sum();
    if wrong == 0 {
        Ok(())
    } else {
        Err(format!("{wrong} points are not as they were acknowledged"))
    }
}

fn play(stack: &mut Stack, flags: &Flags) -> Result<Value, String> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_mins(1)))
        .build()
        .new_agent();
    let client = Client {
        agent,
        url: stack.url.clone(),
        key: stack.api_key.clone(),
    };
    let runs: Vec<String> = (0..SENDERS)
        .map(|_| client.new_run())
        .collect::<Result<_, _>>()?;
    let (seen, begun) = (SenderCounts::default(), Instant::now());
    let batches = flags.batches_of_sender();
    let (services, databases) = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .zip(&runs)
            .map(|(number, run)| {
                let (client, seen) = (&client, &seen);
                scope.spawn(move || send_all(client, number, run, batches, seen))
            })
            .collect();
        let kills = kill(stack, flags, batches * SENDERS, &seen);
        seen.gives_up.store(kills.is_err(), Ordering::SeqCst);
        for sender in senders {
            sender.join().map_err(|_| "a sender died".to_owned())??;
        }
        kills
    })?;
    let sent = begun.elapsed();
    let mut found = StoredCounts::default();
    for (number, run) in (0..SENDERS).zip(&runs) {
        found.look(&client, number, run, batches * LINES)?;
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    Ok(json!({
        "points": batches * LINES * METRICS * SENDERS,
        "kills": { "service": services, "postgres": databases },
        "batches_acknowledged": count(&seen.acknowledged), "batches_unanswered": count(&seen.unanswered),
        "batches_twice": count(&seen.twice), "batches_late": count(&seen.late),
        "stored": found.stored, "lost": found.lost, "twice_stored": found.twice, "wrong": found.wrong,
        "sent_in_seconds": sent.as_secs(),
    }))
}

/// Kills the service and Postgres in turn, spread evenly over the batches.
fn kill(
    stack: &mut Stack,
    flags: &Flags,
    batches: u64,
    seen: &SenderCounts,
) -> Result<(u64, u64), String> {
    let (mut services, mut databases) = (0, 0);
    let mut moved = (0, Instant::now());
    loop {
        let done = seen.acknowledged.load(Ordering::SeqCst);
        if done > moved.0 {
            moved = (done, Instant::now());
        } else if moved.1.elapsed() > PATIENCE {
            return Err(format!(
                "nothing has been acknowledged for {} s",
                PATIENCE.as_secs()
            ));
        }
        if done >= batches {
            return Ok((services, databases));
        }
        let kills = services + databases;
        if kills < flags.kills && done * (flags.kills + 1) >= (kills + 1) * batches {
            if services <= databases {
                stack.kill_service()?;
                services += 1;
            } else {
                stack.kill_postgres()?;
                databases += 1;
            }
            if !flags.json {
                println!(
                    "{:>3} kills, {:>3} % acknowledged",
                    kills + 1,
                    done * 100 / batches
                );
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends every batch until it is acknowledged; some are held back for a while, some are repeated.
fn send_all(
    client: &Client,
    sender: u64,
    run: &str,
    batches: u64,
    seen: &SenderCounts,
) -> Result<(), String> {
    let mut dice = StdRng::seed_from_u64(sender);
    let mut kept: Vec<u64> = Vec::new();
    let mut order = 0..batches;
    loop {
        let next = match order.next() {
            Some(batch) if dice.random_bool(LATE) => {
                kept.push(batch);
                seen.late.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            other => other,
        };
        // Late batches follow once enough are held back, or when there are no others.
        let is_due = kept.len() > 8 || next.is_none();
        let due = kept.first().copied().filter(|_| is_due);
        if due.is_some() {
            kept.remove(0);
        }
        if next.is_none() && due.is_none() {
            return Ok(());
        }
        for batch in next.into_iter().chain(due) {
            client.send(run, sender, batch, seen)?;
            seen.acknowledged.fetch_add(1, Ordering::SeqCst);
            if dice.random_bool(TWICE) {
                client.send(run, sender, batch, seen)?;
                seen.twice.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

struct Client {
    agent: ureq::Agent,
    url: String,
    key: String,
}

/// A value that identifies its sender, step and metric.
fn value(sender: u64, step: u64, metric: u64) -> f64 {
    f64::from(u32::try_from((sender * 7 + metric * 3 + step * 7919) % 100_003).unwrap_or(0)) / 8.0
}

impl Client {
    fn new_run(&self) -> Result<String, String> {
        let url = format!("{}/v1/runs", self.url);
        let body = json!({ "name": "durability", "hardware": "none", "accelerator_count": 1 });
        let sent = self
            .agent
            .post(&url)
            .header("authorization", &format!("Bearer {}", self.key))
            .send_json(&body);
        let run: Value = sent
            .and_then(|mut answer| answer.body_mut().read_json())
            .map_err(|error| format!("POST {url}: {error}"))?;
        Ok(run["id"].as_str().unwrap_or_default().to_owned())
    }

    /// Sends a batch until it is acknowledged.
    fn send(&self, run: &str, sender: u64, batch: u64, seen: &SenderCounts) -> Result<(), String> {
        use std::fmt::Write;
        let mut body = String::new();
        for step in batch * LINES..(batch + 1) * LINES {
            let _ = write!(body, "{{\"timestamp\":{},\"step\":{step}", EPOCH + step);
            for metric in 0..METRICS {
                let _ = write!(body, ",\"m{metric}\":{}", value(sender, step, metric));
            }
            body.push_str("}\n");
        }
        let url = format!("{}/v1/runs/{run}/metrics", self.url);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && !seen.gives_up.load(Ordering::SeqCst) {
            let sent = self
                .agent
                .post(&url)
                .header("authorization", &format!("Bearer {}", self.key))
                .send(&body);
            match sent.and_then(|mut answer| answer.body_mut().read_to_vec()) {
                Ok(_) => return Ok(()),
                Err(ureq::Error::StatusCode(status)) if status < 500 => {
                    return Err(format!("POST {url} was answered with {status}"));
                }
                Err(_) => {
                    seen.unanswered.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
        Err(format!("POST {url} was never acknowledged"))
    }

    fn get(&self, path: &str) -> Result<String, String> {
        let url = format!("{}{path}", self.url);
        let begun = Instant::now();
        loop {
            let got = self
                .agent
                .get(&url)
                .header("authorization", &format!("Bearer {}", self.key))
                .call();
            match got.and_then(|mut answer| {
                answer
                    .body_mut()
                    .with_config()
                    .limit(1 << 30)
                    .read_to_string()
            }) {
                Ok(text) => return Ok(text),
                // The last kill may have been a moment ago.
                Err(_) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                Err(error) => return Err(format!("GET {url}: {error}")),
            }
        }
    }
}

/// What is stored, compared with what was acknowledged.
#[derive(Default)]
struct StoredCounts {
    stored: u64,
    lost: u64,
    twice: u64,
    wrong: u64,
}

impl StoredCounts {
    /// Compares the points, the reported count and the totals of the buckets: all must agree.
    fn look(&mut self, client: &Client, sender: u64, run: &str, steps: u64) -> Result<(), String> {
        for metric in 0..METRICS {
            let path = format!("/v1/runs/{run}/metrics?metric=m{metric}");
            let mut times: BTreeMap<u64, u64> = BTreeMap::new();
            for line in client.get(&format!("{path}&format=ndjson"))?.lines() {
                let point: Value =
                    serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
                let step = point["step"].as_u64().unwrap_or(u64::MAX);
                *times.entry(step).or_default() += 1;
                let is_right =
                    point["value"].as_f64() == Some(value(sender, step, metric)) && step < steps;
                self.wrong += u64::from(!is_right);
                self.stored += 1;
            }
            self.lost += (0..steps).filter(|step| !times.contains_key(step)).count() as u64;
            self.twice += times.values().map(|count| count - 1).sum::<u64>();
            self.look_at_buckets(client, &path, steps)?;
        }
        Ok(())
    }

    fn look_at_buckets(&mut self, client: &Client, path: &str, steps: u64) -> Result<(), String> {
        let text = client.get(&format!("{path}&resolution=buckets&points=10000"))?;
        let read: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let buckets = read["buckets"].as_array().into_iter().flatten();
        let counted: u64 = buckets.filter_map(|bucket| bucket["points"].as_u64()).sum();
        let stored = read["stored_points"].as_u64().unwrap_or(0);
        self.wrong += counted.abs_diff(steps) + stored.abs_diff(steps);
        Ok(())
    }
}

fn show(result: &Value) {
    let of = |key: &str| result[key].as_u64().unwrap_or_default();
    println!(
        "\n{} points in {} batches; {} were sent again for want of an answer, {} came twice, {} late.",
        of("points"),
        of("batches_acknowledged"),
        of("batches_unanswered"),
        of("batches_twice"),
        of("batches_late")
    );
    println!(
        "Service and Postgres were killed {} and {} times, within {} s.",
        result["kills"]["service"],
        result["kills"]["postgres"],
        of("sent_in_seconds")
    );
    println!(
        "Stored: {}. Lost: {}. Stored twice: {}. Wrong in value, count or bucket: {}.",
        of("stored"),
        of("lost"),
        of("twice_stored"),
        of("wrong")
    );
}
