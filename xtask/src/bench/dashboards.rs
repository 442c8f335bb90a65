//! What open dashboards cost: how long others wait for a trial while 200 dashboards follow ten events a second, and what one
//! dashboard costs the service while nothing happens. Each follows the stream of events, and reads its overview again at
//! most every two seconds, as the real one does.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::data::quantile;
use super::rig::{Rig, Setting};
use super::{HOUR_OF_TOKENS, at_once, round};

const DASHBOARDS: usize = 200;
const TRIALS: u32 = 200;
const WINDOW: Duration = Duration::from_secs(20);
/// Ten a second: an experiment is paused and resumed in turn.
const BETWEEN_EVENTS: Duration = Duration::from_millis(100);
const BETWEEN_GETS: Duration = Duration::from_millis(10);
/// As often as a page reads again what it was told has changed (`dashboard/src/api/query.ts`).
const READ_AGAIN_EVERY: Duration = Duration::from_secs(2);
/// As often as it does where nothing happens.
const POLL_EVERY: Duration = Duration::from_secs(15);
const AT_REST: usize = 20;
const REST: Duration = Duration::from_mins(1);
/// Fewer than a key may have open at once.
const STREAMS_OF_KEY: usize = 40;
/// Before the idle cost is measured: connecting is none of it.
const SETTLING: Duration = Duration::from_secs(5);
/// What the overview reads.
const OVERVIEW: [&str; 4] = [
    "/v1/projects/current",
    "/v1/experiments?page_size=50",
    "/v1/events?alarms_only=true&newest=true&page_size=20",
    "/v1/events?newest=true&page_size=20",
];

#[derive(Default)]
struct Counts {
    events: AtomicU64,
    requests: AtomicU64,
}

pub(super) fn measure() -> Result<Value, String> {
    let rig = Rig::set(&Setting {
        factor: 1,
        push: false,
        metrics_interval_seconds: 300,
        region: at_once(),
    })?;
    let trials = rig.submit(TRIALS, HOUR_OF_TOKENS * 10, 60 * 3600)?;
    rig.wait(Duration::from_mins(5), "not every trial runs", |rig| {
        Ok(rig.trials_in("running")? >= u64::from(TRIALS))
    })?;
    let experiment = rig.get("/v1/experiments?page_size=1")?;
    let experiment = experiment["items"][0]["id"].as_str().unwrap_or_default();
    let keys = (0..DASHBOARDS.div_ceil(STREAMS_OF_KEY)).map(|_| rig.new_key("viewer"));
    let keys = keys.collect::<Result<Vec<String>, String>>()?;

    let at_rest = resting(&rig, &keys)?;
    let alone = beside(&rig, &keys, &trials, experiment, 0)?;
    let followed = beside(&rig, &keys, &trials, experiment, DASHBOARDS)?;
    rig.strike()?;
    let p99 = |figures: &Value| figures["get_trial_p99_ms"].as_f64().unwrap_or(f64::NAN);
    Ok(json!({
        "get_trial_p99_ratio": round(p99(&followed) / p99(&alone)),
        "alone": alone, "beside_dashboards": followed, "dashboards": DASHBOARDS,
        "core_percent_of_one_at_rest": at_rest,
    }))
}

/// CPU of the service and its Postgres for one open dashboard, in percent of a core, beyond what they use without.
fn resting(rig: &Rig, keys: &[String]) -> Result<f64, String> {
    let used = |dashboards: usize| {
        open(rig, keys, dashboards, POLL_EVERY, || {
            std::thread::sleep(SETTLING);
            let before = rig.cpu_of(true);
            std::thread::sleep(REST);
            Ok((rig.cpu_of(true) - before) / REST.as_secs_f64())
        })
        .map(|(share, _)| share)
    };
    let (without, with) = (used(0)?, used(AT_REST)?);
    #[expect(clippy::cast_precision_loss, reason = "twenty")]
    let each = (with - without) / AT_REST as f64;
    Ok(round(each * 100.0))
}

/// Latencies of a trial while events happen and so many dashboards follow them.
fn beside(
    rig: &Rig,
    keys: &[String],
    trials: &[String],
    experiment: &str,
    dashboards: usize,
) -> Result<Value, String> {
    let (latencies, counts) = open(rig, keys, dashboards, READ_AGAIN_EVERY, || {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let events = scope.spawn(|| make_events(rig, experiment, &is_over));
            let latencies = latencies(rig, trials);
            is_over.store(true, Ordering::Relaxed);
            events.join().map_err(|_| "no events".to_owned())??;
            latencies
        })
    })?;
    let requests = counts.requests.load(Ordering::Relaxed);
    Ok(json!({
        "get_trial_p50_ms": round(quantile(&latencies, 50)), "get_trial_p99_ms": round(quantile(&latencies, 99)),
        "gets": latencies.len(), "events_heard": counts.events.load(Ordering::Relaxed),
        "dashboard_requests_per_second": requests / WINDOW.as_secs(),
    }))
}

fn latencies(rig: &Rig, trials: &[String]) -> Result<Vec<f64>, String> {
    let mut latencies = Vec::new();
    let begun = Instant::now();
    for trial in trials.iter().cycle() {
        if begun.elapsed() >= WINDOW {
            break;
        }
        let asked = Instant::now();
        rig.get(&format!("/v1/trials/{trial}"))?;
        latencies.push(asked.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(BETWEEN_GETS);
    }
    Ok(latencies)
}

fn make_events(rig: &Rig, experiment: &str, is_over: &AtomicBool) -> Result<(), String> {
    for action in ["pause", "resume"].iter().cycle() {
        let begun = Instant::now();
        rig.post(&format!("/v1/experiments/{experiment}/{action}"), "{}")?;
        if is_over.load(Ordering::Relaxed) && *action == "resume" {
            return Ok(());
        }
        std::thread::sleep(BETWEEN_EVENTS.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

/// Does something while so many dashboards are open.
fn open<T>(
    rig: &Rig,
    keys: &[String],
    dashboards: usize,
    read_again_every: Duration,
    meanwhile: impl FnOnce() -> Result<T, String>,
) -> Result<(T, Counts), String> {
    let (counts, is_over) = (Counts::default(), AtomicBool::new(false));
    let done = std::thread::scope(|scope| {
        let (counts, is_over) = (&counts, &is_over);
        let open = keys.iter().cycle().take(dashboards);
        let all: Vec<_> = open
            .map(|key| scope.spawn(move || follow(rig, key, read_again_every, is_over, counts)))
            .collect();
        let done = meanwhile();
        is_over.store(true, Ordering::Relaxed);
        for one in all {
            one.join().map_err(|_| "a dashboard".to_owned())??;
        }
        done
    })?;
    Ok((done, counts))
}

/// The stream of events from now on, read up to its first line.
fn stream(rig: &Rig, key: &str) -> Result<BufReader<TcpStream>, String> {
    let failed = |error: std::io::Error| format!("the stream of events: {error}");
    let newest = rig.get("/v1/events?newest=true&page_size=1")?;
    let after = newest["items"][0]["id"].as_i64().unwrap_or(0);
    let mut stream = TcpStream::connect(rig.address()).map_err(failed)?;
    let head = format!(
        "GET /v1/events?page_token={after} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nAuthorization: Bearer {key}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).map_err(failed)?;
    let (mut lines, mut status) = (BufReader::new(stream), String::new());
    lines.read_line(&mut status).map_err(failed)?;
    if !status.starts_with("HTTP/1.1 200") {
        return Err(format!("the stream of events: {status}"));
    }
    // A dashboard looks at its clock, also while nothing comes.
    let patience = Some(Duration::from_millis(300));
    lines.get_ref().set_read_timeout(patience).map_err(failed)?;
    Ok(lines)
}

/// One dashboard on its overview.
fn follow(
    rig: &Rig,
    key: &str,
    read_again_every: Duration,
    is_over: &AtomicBool,
    counts: &Counts,
) -> Result<(), String> {
    let mut lines = stream(rig, key)?;
    let (mut line, mut read_at, mut is_stale) = (String::new(), Instant::now(), false);
    let polls = read_again_every == POLL_EVERY;
    while !is_over.load(Ordering::Relaxed) {
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) => return Err("the stream of events ended".to_owned()),
            Ok(_) if line.starts_with("data:") => {
                counts.events.fetch_add(1, Ordering::Relaxed);
                is_stale = true;
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(format!("the stream of events: {error}")),
        }
        if (is_stale || polls) && read_at.elapsed() >= read_again_every {
            for path in OVERVIEW {
                rig.get(path)?;
                counts.requests.fetch_add(1, Ordering::Relaxed);
            }
            (read_at, is_stale) = (Instant::now(), false);
        }
    }
    Ok(())
}

pub(super) fn show(figures: &Value) {
    let of = |part: &str, key: &str| figures[part][key].as_f64().unwrap_or(f64::NAN);
    println!(
        "\n{:<32} {:>10} {:>10}",
        "GET trial, ms, ten events a second", "p50", "p99"
    );
    for (name, part) in [
        ("nobody looks", "alone"),
        ("200 dashboards", "beside_dashboards"),
    ] {
        println!(
            "{name:<34} {:>10.1} {:>10.1}",
            of(part, "get_trial_p50_ms"),
            of(part, "get_trial_p99_ms")
        );
    }
    println!(
        "ratio of p99: {:.1}; they asked {} times a second and heard {} events",
        figures["get_trial_p99_ratio"].as_f64().unwrap_or(f64::NAN),
        figures["beside_dashboards"]["dashboard_requests_per_second"],
        figures["beside_dashboards"]["events_heard"]
    );
    println!(
        "one dashboard at rest: {:.2} % of a core",
        figures["core_percent_of_one_at_rest"]
            .as_f64()
            .unwrap_or(f64::NAN)
    );
}
