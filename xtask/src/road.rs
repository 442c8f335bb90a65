//! `cargo xtask road`: the pipelines among the examples, from raw data to a registered model and to an endpoint that
//! serves and is deleted in time, on a whole [`Stack`]; with `--kills N`, the service and Postgres are killed on the
//! way. Then the ledger is compared with the region's own bill, job by job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{build, scratch_dir};
use bakeoff_demo::demo::negotiated_price;
use bakeoff_demo::http::{agent, get_large, pages, send};
use bakeoff_demo::stack::{Setup, Stack};

const EXAMPLES: [&str; 2] = [
    "examples/pipelines/legal-g5.json",
    "examples/pipelines/hebrew-p5.json",
];
/// The kills are spread over this much of the run, which takes about two minutes.
const SPREAD: Duration = Duration::from_secs(75);
/// A run that makes no progress for this long is stuck.
const PATIENCE: Duration = Duration::from_mins(20);

struct Flags {
    kills: u32,
    is_json: bool,
}

impl Flags {
    fn parse(flags: &[&str]) -> Result<Self, String> {
        let mut parsed = Self {
            kills: 0,
            is_json: false,
        };
        let mut rest = flags.iter();
        while let Some(flag) = rest.next() {
            match *flag {
                "--json" => parsed.is_json = true,
                "--kills" => {
                    let count = rest.next().and_then(|count| count.parse().ok());
                    parsed.kills = count.ok_or("--kills wants a number")?;
                }
                other => return Err(format!("road does not know {other}")),
            }
        }
        Ok(parsed)
    }
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let flags = Flags::parse(flags)?;
    build(&["--bins"])?;
    if !flags.is_json {
        println!("Two pipelines run side by side, some minutes for days of the region's time …\n");
    }
    let started = Instant::now();
    let mut stack = Stack::start(&Setup::below(scratch_dir()?))?;
    let outcome = travel(&mut stack, &flags).and_then(|killed| judge(&stack, &killed));
    let stopped = stack.stop();
    let mut found = outcome?;
    stopped?;
    found["took_seconds"] = json!(started.elapsed().as_secs());
    if flags.is_json {
        println!(
            "{}",
            serde_json::to_string_pretty(&found).unwrap_or_default()
        );
    } else {
        show(&found);
    }
    let wrong = found["wrong"].as_array().map_or(0, Vec::len);
    if wrong == 0 {
        Ok(())
    } else {
        Err(format!("{wrong} things are wrong: {}", found["wrong"]))
    }
}

/// Starts the examples and waits until they are over and nothing serves any more, killing on the way.
fn travel(stack: &mut Stack, flags: &Flags) -> Result<Value, String> {
    negotiated_price(stack)?;
    let (mut pending, mut is_over) = (EXAMPLES.to_vec(), false);
    let begun = Instant::now();
    let mut kills = Kills::default();
    let (mut last, mut moved, mut seen) = (Instant::now(), Instant::now(), BTreeSet::new());
    while !is_over || kills.count() < flags.kills {
        pending.retain(|example| start(stack, example).is_err());
        let looked = look(stack);
        if let Ok((states, is_done)) = looked {
            for news in states.difference(&seen).filter(|_| !flags.is_json) {
                println!("{:>4} s  {news}", begun.elapsed().as_secs());
            }
            if states != seen {
                (seen, moved) = (states, Instant::now());
            }
            is_over = is_done && pending.is_empty();
        }
        if moved.elapsed() > PATIENCE {
            return Err(format!("nothing happens any more: {seen:?}"));
        }
        if kills.count() < flags.kills && last.elapsed() > SPREAD / flags.kills {
            kills.kill(stack)?;
            last = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Ok(json!({"service": kills.service, "postgres": kills.postgres}))
}

/// How often each was killed.
#[derive(Default)]
struct Kills {
    service: u32,
    postgres: u32,
}

impl Kills {
    fn count(&self) -> u32 {
        self.service + self.postgres
    }

    fn kill(&mut self, stack: &mut Stack) -> Result<(), String> {
        if self.service <= self.postgres {
            self.service += 1;
            stack.kill_service()
        } else {
            self.postgres += 1;
            stack.kill_postgres()
        }
    }
}

fn start(stack: &Stack, example: &str) -> Result<(), String> {
    let path = crate::process::root().join(example);
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let body: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let request = agent().post(format!("{}/v1/pipelines", stack.url));
    send(request, &stack.api_key, Some(example), &body).map(drop)
}

/// How far each step and endpoint is, and whether all is over.
fn look(stack: &Stack) -> Result<(BTreeSet<String>, bool), String> {
    let pipelines = pages(&format!("{}/v1/pipelines", stack.url), &stack.api_key)?;
    let endpoints = pages(&format!("{}/v1/endpoints", stack.url), &stack.api_key)?;
    let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    let mut states = BTreeSet::new();
    for one in &pipelines {
        for step in one["steps"].as_array().into_iter().flatten() {
            let (name, state) = (text(step, "name"), text(step, "state"));
            if state != "waiting" {
                states.insert(format!("{:<10} {name:<10} {state}", text(one, "name")));
            }
        }
    }
    for one in &endpoints {
        states.insert(format!(
            "endpoint   {:<10} {}",
            text(one, "name"),
            text(one, "state")
        ));
    }
    let is_over = |one: &Value| !one["ended_at"].is_null();
    let all = pipelines.iter().chain(&endpoints).all(is_over);
    Ok((states, all && pipelines.len() == EXAMPLES.len()))
}

/// Millionths of a dollar.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "dollars of two examples"
)]
fn micro(usd: f64) -> i64 {
    (usd * 1e6).round() as i64
}

/// What is booked for each job, by its id; reading metrics is booked apart.
fn booked(stack: &Stack, pipelines: &[Value]) -> Result<BTreeMap<String, i64>, String> {
    let mut all = BTreeMap::new();
    for one in pipelines {
        let id = one["id"].as_str().unwrap_or_default();
        let url = format!("{}/v1/pipelines/{id}/ledger?page_size=500", stack.url);
        for entry in pages(&url, &stack.api_key)? {
            let is_paid = entry["kind"] == "settled" || entry["kind"] == "adjusted";
            if is_paid && entry["component"] != "cloudwatch" {
                let job = entry["job_id"].as_str().unwrap_or_default().to_owned();
                *all.entry(job).or_default() += micro(entry["usd"].as_f64().unwrap_or(f64::NAN));
            }
        }
    }
    Ok(all)
}

/// Compares with the region's record: one job for each attempt, each booked to the cent, nothing left.
fn judge(stack: &Stack, killed: &Value) -> Result<Value, String> {
    let record = get_large(&format!("{}/_sim/record", stack.region_url), "")?;
    let pipelines = pages(&format!("{}/v1/pipelines", stack.url), &stack.api_key)?;
    let booked = booked(stack, &pipelines)?;
    let (mut wrong, mut kinds, mut seen) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for job in record["jobs"].as_array().into_iter().flatten() {
        let kind = job["kind"].as_str().unwrap_or_default().to_owned();
        let attempt = job["attempt"].as_str().unwrap_or_default().to_owned();
        let of_kind: &mut (u64, i64) = kinds.entry(kind).or_default();
        let bill = bill(job);
        (of_kind.0, of_kind.1) = (of_kind.0 + 1, of_kind.1 + bill);
        *seen.entry(attempt.clone()).or_insert(0_u32) += 1;
        let ours = booked.get(&attempt).copied().unwrap_or_default();
        if (bill - ours).abs() > 5_000 {
            wrong.push(format!(
                "{} is billed {bill} and booked {ours} (millionths)",
                job["name"]
            ));
        }
        if job["ended_at"].is_null() {
            wrong.push(format!("{} runs on", job["name"]));
        }
    }
    wrong.extend(
        seen.iter()
            .filter(|(_, count)| **count > 1)
            .map(|(attempt, _)| format!("{attempt} has two jobs")),
    );
    let packages = record["model_packages"].as_array().map_or(0, Vec::len);
    wrong.extend(left_over(&record, packages, &pipelines));
    let by_kind: BTreeMap<String, Value> = kinds
        .into_iter()
        .map(|(kind, (count, micro))| (kind, json!({"jobs": count, "usd": dollars(micro)})))
        .collect();
    Ok(
        json!({"pipelines": pipelines.len(), "by_kind": by_kind, "model_packages": packages, "kills": killed, "wrong": wrong}),
    )
}

/// What the region bills for a job, in millionths of a dollar.
fn bill(job: &Value) -> i64 {
    let parts = [
        "micro_usd",
        "storage_micro_usd",
        "pool_micro_usd",
        "pool_storage_micro_usd",
    ];
    parts.iter().filter_map(|part| job[*part].as_i64()).sum()
}

#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    reason = "dollars of two examples"
)]
fn dollars(micro: i64) -> f64 {
    micro as f64 / 1e6
}

/// What ought not to be there once both pipelines are over.
fn left_over(record: &Value, packages: usize, pipelines: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    if packages != EXAMPLES.len() {
        wrong.push(format!(
            "{packages} versions are registered, not one for each"
        ));
    }
    if record["models_and_configs"] != 0 {
        wrong.push(format!(
            "{} models and configurations are left",
            record["models_and_configs"]
        ));
    }
    for one in pipelines {
        if one["state"] != "completed" || one["reserved_usd"].as_f64() != Some(0.0) {
            wrong.push(format!(
                "{} is {}, with {} held",
                one["name"], one["state"], one["reserved_usd"]
            ));
        }
    }
    wrong
}

fn show(found: &Value) {
    println!("\n{:<12} {:>5} {:>12}", "kind", "jobs", "region's bill");
    for (kind, of) in found["by_kind"].as_object().into_iter().flatten() {
        println!(
            "{kind:<12} {:>5} {:>12.2}",
            of["jobs"],
            of["usd"].as_f64().unwrap_or(0.0)
        );
    }
    println!(
        "model versions registered: {}; kills: {}",
        found["model_packages"], found["kills"]
    );
    let wrong = found["wrong"].as_array().map_or(0, Vec::len);
    if wrong == 0 {
        println!(
            "the ledger equals the region's bill to the cent for each job; nothing is left running"
        );
    }
    println!("took {} s", found["took_seconds"]);
}
