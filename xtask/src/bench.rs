//! `cargo xtask bench`: the cost of watching. Measures the scheduler with 1,000 and 10,000 running
//! jobs at clock factor 1, its AWS calls per job-hour as the region counts them, and how well it
//! uses a request quota that it does not know. `--only hostile`: how fast the health check answers
//! while clients are hostile. `--only dashboards`: what open dashboards cost.

mod dashboards;
mod data;
mod hostile;
mod rig;
mod spec;

use std::time::{Duration, Instant};

use rig::{Rig, Setting};
use serde_json::{Value, json};

use crate::eval;
use crate::process::{cargo, run as run_program};

/// Longer than the interval in which everything is read once.
const WINDOW: Duration = Duration::from_secs(330);
/// About an hour of a job on one p4de, launch and upload included.
const HOUR_OF_TOKENS: u64 = 62_000_000;
/// CreateTrainingJob calls per second that the region allows; the service does not know the limit.
const CREATES_PER_SECOND: u32 = 5;

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let is_json = flags.contains(&"--json");
    let only = flags
        .iter()
        .position(|flag| *flag == "--only")
        .and_then(|at| flags.get(at + 1))
        .copied();
    let say = |text: &str| {
        if !is_json {
            println!("{text}");
        }
    };
    let mut result = json!({});
    let wants = |name: &str| only.is_none_or(|only| only == name);
    say("Building for release; the first time takes several minutes …");
    if wants("plans") {
        result["plans"] = eval::plans()?;
    }
    if only != Some("plans") {
        run_program(cargo().args(["build", "--quiet", "--release", "--workspace", "--bins"]))?;
    }
    if wants("scheduler_1k") {
        say("1,000 running jobs, about 20 minutes …");
        result["scheduler_1k"] = scheduler(1000)?;
    }
    if wants("scheduler_10k") {
        say("10,000 running jobs, about 25 minutes …");
        result["scheduler_10k"] = scheduler(10_000)?;
    }
    if wants("aws") {
        say(
            "1,000 jobs of one hour, by polling and with push, and a queue of 10,000, about 8 minutes …",
        );
        result["aws"] = aws()?;
    }
    // Measures attacks, not work, so it runs only when requested.
    if only == Some("hostile") {
        say("Hostile clients, two minutes …");
        result["hostile"] = hostile::measure(hostile::POINTS)?;
    }
    if wants("dashboards") {
        say("200 open dashboards, about 5 minutes …");
        result["dashboards"] = dashboards::measure()?;
    }
    let parts: Vec<&str> = data::PARTS
        .into_iter()
        .filter(|part| wants("data") || wants(part))
        .collect();
    if !parts.is_empty() {
        say("Writing, reading and keeping metrics beside a bare server, about 10 minutes …");
        for (name, figures) in data::measure(&parts)?.as_object().into_iter().flatten() {
            result[name] = figures.clone();
        }
    }
    if is_json {
        println!(
            "{}",
            serde_json::to_string_pretty(&result).unwrap_or_default()
        );
    } else if only == Some("hostile") {
        hostile::show(&result["hostile"]);
    } else {
        show(&result);
    }
    Ok(())
}

/// Makes jobs train as soon as they are created.
fn at_once() -> Vec<String> {
    vec!["--launch-seconds".to_owned(), "5".to_owned()]
}

/// CPU, memory and latency while `count` jobs run, over a window in which each job is listed and
/// its metrics are read.
fn scheduler(count: u32) -> Result<Value, String> {
    let rig = Rig::set(&Setting {
        factor: 1,
        push: false,
        metrics_interval_seconds: 300,
        region: at_once(),
    })?;
    // The jobs run for ten hours.
    let trials = rig.submit(count, HOUR_OF_TOKENS * 10, 60 * 3600)?;
    let submitted = Instant::now();
    rig.wait(Duration::from_mins(15), "not every job runs", |rig| {
        Ok(rig.trials_in("running")? >= u64::from(count))
    })?;
    let created_seconds = submitted.elapsed().as_secs();
    // Wait until every job was seen to start, and the metrics of half of them were read once.
    let described = |record: &Value| record["calls"]["DescribeTrainingJob"].as_u64().unwrap_or(0);
    rig.wait(
        Duration::from_mins(12),
        "not every job was seen to start",
        |rig| {
            std::thread::sleep(Duration::from_secs(5));
            Ok(described(&rig.record()?) >= u64::from(count))
        },
    )?;
    let reads = |record: &Value| record["calls"]["GetMetricData"].as_u64().unwrap_or(0);
    rig.wait(
        Duration::from_mins(16),
        "their metrics are not read",
        |rig| {
            std::thread::sleep(Duration::from_secs(5));
            Ok(reads(&rig.record()?) >= u64::from(count) / 100)
        },
    )?;
    let before = rig.record()?["calls"].clone();
    let observed = observe(&rig, &trials)?;
    let after = rig.record()?["calls"].clone();
    let called = |operation: &str| {
        after[operation].as_u64().unwrap_or(0) - before[operation].as_u64().unwrap_or(0)
    };
    let latencies = &observed.latencies_ms;
    let quantile = |share: usize| {
        latencies.get((latencies.len() * share / 100).min(latencies.len().saturating_sub(1)))
    };
    let result = json!({
        "cpu_core_fraction": round(observed.cpu_fraction), "rss_mb": round(observed.rss_mb),
        "get_trial_p99_ms": quantile(99).copied().map(round),
        "get_trial_p50_ms": quantile(50).copied().map(round), "gets": latencies.len(),
        "listed_pages": called("ListTrainingJobs"), "metric_reads": called("GetMetricData"),
        "window_seconds": WINDOW.as_secs(), "created_in_seconds": created_seconds,
    });
    rig.strike()?;
    Ok(result)
}

/// What the service uses while trials are requested from it.
struct Observed {
    /// Ascending.
    latencies_ms: Vec<f64>,
    /// As a fraction of one core.
    cpu_fraction: f64,
    rss_mb: f64,
}

fn observe(rig: &Rig, trials: &[String]) -> Result<Observed, String> {
    let (cpu, begun) = (rig.cpu_seconds(), Instant::now());
    let mut latencies_ms = Vec::new();
    let mut rss_mb = 0.0_f64;
    let mut index = 0usize;
    while begun.elapsed() < WINDOW {
        let Some(trial) = trials.get(index * 7919 % trials.len()) else {
            break;
        };
        let asked = Instant::now();
        rig.get(&format!("/v1/trials/{trial}"))?;
        latencies_ms.push(asked.elapsed().as_secs_f64() * 1000.0);
        rss_mb = rss_mb.max(rig.rss_mb());
        index += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    latencies_ms.sort_by(f64::total_cmp);
    Ok(Observed {
        latencies_ms,
        cpu_fraction: (rig.cpu_seconds() - cpu) / begun.elapsed().as_secs_f64(),
        rss_mb,
    })
}

fn round(figure: f64) -> f64 {
    (figure * 10_000.0).round() / 10_000.0
}

/// Calls and metric dollars per job-hour, as the region counts them.
fn aws() -> Result<Value, String> {
    let polling = job_hours(false)?;
    let push = job_hours(true)?;
    let queue = create_quota()?;
    let most = [&polling, &push]
        .iter()
        .filter_map(|one| one["list_per_second_max"].as_u64())
        .max();
    Ok(json!({
        "calls_per_job_hour_polling": polling["calls_per_job_hour"],
        "calls_per_job_hour_push": push["calls_per_job_hour"],
        "metric_usd_per_job_hour_polling": polling["metric_usd_per_job_hour"],
        "metric_usd_per_job_hour_push": push["metric_usd_per_job_hour"],
        "list_per_second_max": most,
        // Computed, not measured: Describe every 30 s, ten metrics every minute, one call each.
        "calls_per_job_hour_naive": 721, "metric_usd_per_job_hour_naive": 0.006,
        "create_quota_used": queue["used"], "create_throttled_share": queue["throttled_share"],
        "polling": polling, "push": push, "create_quota": queue,
    }))
}

fn job_hours(push: bool) -> Result<Value, String> {
    // An event takes real time to arrive: at a high factor it would be virtual minutes late.
    let (interval, factor) = if push { (0, 20) } else { (300, 60) };
    let rig = Rig::set(&Setting {
        factor,
        push,
        metrics_interval_seconds: interval,
        region: Vec::new(),
    })?;
    rig.submit(1000, HOUR_OF_TOKENS, 7200)?;
    let is_over = |rig: &Rig| {
        let list = rig.get("/v1/experiments?state=running&page_size=1")?;
        Ok(list["items"].as_array().is_some_and(Vec::is_empty))
    };
    rig.wait(
        Duration::from_mins(12),
        "the experiments have not ended",
        is_over,
    )?;
    let record = rig.record()?;
    rig.strike()?;
    Ok(per_job_hour(&record))
}

fn per_job_hour(record: &Value) -> Value {
    let jobs = record["jobs"].as_array().cloned().unwrap_or_default();
    let hours: f64 = jobs
        .iter()
        .map(|job| (seconds(&job["ended_at"]) - seconds(&job["created_at"])) / 3600.0)
        .sum();
    let calls = record["calls"].as_object().cloned().unwrap_or_default();
    let total: f64 = calls.values().filter_map(Value::as_f64).sum();
    let metrics: f64 = jobs
        .iter()
        .filter_map(|job| job["metrics_requested"].as_f64())
        .sum();
    json!({
        "jobs": jobs.len(), "job_hours": round(hours), "calls": calls, "list_per_second_max": record["list_per_second_max"],
        "calls_per_job_hour": round(total / hours), "metric_usd_per_job_hour": (metrics * 1e-5 / hours * 1e6).round() / 1e6,
    })
}

fn seconds(at: &Value) -> f64 {
    let at: Option<chrono::DateTime<chrono::Utc>> = at.as_str().and_then(|text| text.parse().ok());
    at.map_or(0.0, |at| {
        (at - chrono::DateTime::UNIX_EPOCH).as_seconds_f64()
    })
}

/// 10,000 trials wait; the region limits creates per second without announcing the limit.
fn create_quota() -> Result<Value, String> {
    let mut region = at_once();
    region.extend([
        "--create-per-second".to_owned(),
        CREATES_PER_SECOND.to_string(),
    ]);
    let rig = Rig::set(&Setting {
        factor: 4,
        push: false,
        metrics_interval_seconds: 300,
        region,
    })?;
    rig.submit(10_000, HOUR_OF_TOKENS * 10, 60 * 3600)?;
    let figures = |record: &Value| {
        let of = |what: &str| record[what]["CreateTrainingJob"].as_f64().unwrap_or(0.0);
        (of("calls"), of("throttled"), seconds(&record["now"]))
    };
    let first = figures(&rig.record()?);
    std::thread::sleep(Duration::from_secs(150));
    let last = figures(&rig.record()?);
    rig.strike()?;
    let (calls, throttled, virtual_seconds) =
        (last.0 - first.0, last.1 - first.1, last.2 - first.2);
    let used = (calls - throttled) / (virtual_seconds * f64::from(CREATES_PER_SECOND));
    Ok(
        json!({ "used": round(used), "throttled_share": round(throttled / calls), "calls": calls, "throttled": throttled,
               "virtual_seconds": round(virtual_seconds), "allowed_per_second": CREATES_PER_SECOND }),
    )
}

/// Prints the parts that ran.
fn show(result: &Value) {
    let has = |part: &str| !result[part].is_null();
    if has("scheduler_1k") || has("scheduler_10k") {
        show_scheduler(result);
    }
    if has("aws") {
        show_aws(result);
    }
    if has("dashboards") {
        dashboards::show(&result["dashboards"]);
    }
    if data::PARTS.into_iter().any(has) {
        show_data(result);
    }
}

fn show_scheduler(result: &Value) {
    println!(
        "\n{:<24} {:>10} {:>10} {:>16}",
        "scheduler", "CPU", "RSS", "GET trial p99"
    );
    for (name, label) in [
        ("scheduler_1k", "1,000 jobs"),
        ("scheduler_10k", "10,000 jobs"),
    ] {
        let of = |key: &str| result[name][key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{label:<24} {:>8.1} % {:>7.0} MB {:>13.1} ms",
            of("cpu_core_fraction") * 100.0,
            of("rss_mb"),
            of("get_trial_p99_ms")
        );
    }
}

fn show_aws(result: &Value) {
    println!(
        "\n{:<24} {:>16} {:>18}",
        "AWS, per job-hour", "calls", "metric dollars"
    );
    for mode in ["naive", "polling", "push"] {
        let of = |key: &str| {
            result["aws"][format!("{key}_{mode}")]
                .as_f64()
                .unwrap_or(f64::NAN)
        };
        println!(
            "{mode:<24} {:>16.2} {:>18.6}",
            of("calls_per_job_hour"),
            of("metric_usd_per_job_hour")
        );
    }
    println!(
        "\nListTrainingJobs, most in a second: {}",
        result["aws"]["list_per_second_max"]
    );
    println!(
        "CreateTrainingJob with 10,000 waiting: {} of the quota used, {} of the calls throttled",
        result["aws"]["create_quota_used"], result["aws"]["create_throttled_share"]
    );
}

fn show_data(result: &Value) {
    let of = |part: &str, key: &str| result[part][key].as_f64().unwrap_or(f64::NAN);
    println!(
        "\n{:<24} {:>16} {:>16}",
        "metrics", "Bakeoff", "beside bare"
    );
    let rate = of("ingest", "points_per_second");
    println!(
        "{:<24} {rate:>14.0}/s {:>15.2}×",
        "points written",
        of("ingest", "ratio_to_bare_unnest")
    );
    let cpu = of("ingest", "cpu_seconds_per_million");
    println!(
        "{:<24} {cpu:>14.2} s {:>15.2}×",
        "CPU for a million",
        of("ingest", "cpu_ratio_to_bare")
    );
    let rate = of("get_trial", "requests_per_second");
    println!(
        "{:<24} {rate:>14.0}/s {:>15.2}×",
        "GET trial",
        of("get_trial", "ratio_to_bare_axum_sqlx")
    );
    for (name, key) in [
        ("100,000 points, Parquet", "parquet"),
        ("… as 2,000, JSON", "json_2000"),
    ] {
        let time = of("history_100k", &format!("{key}_p50_ms"));
        println!(
            "{name:<24} {time:>13.1} ms {:>15.2}×",
            of("history_100k", &format!("{key}_ratio_to_bare_json"))
        );
    }
    let time = of("comparison_100_of_10k", "p50_ms");
    println!(
        "{:<24} {time:>13.1} ms {:>15.2}×",
        "comparison of 100",
        of("comparison_100_of_10k", "ratio_to_bare")
    );
    let room = (
        of("storage", "mb_per_million_live"),
        of("storage", "mb_per_million_compacted"),
    );
    println!(
        "{:<24} {:>13.1} MB, compacted {:.1} MB",
        "a million points take", room.0, room.1
    );
}
