//! How long a health check takes while clients are hostile: half-open connections, bodies of
//! unknown fields, huge regular expressions, and exports of a million points. A service that cannot
//! answer within a tenth of a second is treated as dead.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, Value, json};

use super::rig::{Rig, Setting};
use super::round;

const LIVEZ_MS_MAX: f64 = 100.0;
/// Shorter than the time allowed for a request head, so the connections stay half open.
const WINDOW: Duration = Duration::from_secs(8);
const HALF_OPEN: usize = 2000;
const VIEWERS: usize = 4;
/// About 47 KB.
const UNKNOWN_FIELDS: usize = 2500;
const REGEXES: usize = 40;
const EXPORTS: usize = 6;
pub(super) const POINTS: i64 = 1_000_000;
const POINTS_OF_PUSH: i64 = 100_000;
/// 2026-11-10, which is in the past on the bench's domain clock.
const EPOCH: i64 = 1_794_268_800;

/// One kind of attack: what each of its clients does repeatedly.
struct Attack<'a> {
    name: &'static str,
    clients: usize,
    once: Box<dyn Fn(usize) + Sync + 'a>,
}

/// Latencies of the health check at rest and under each attack; the exported series has this many
/// points.
pub(super) fn measure(points: i64) -> Result<Value, String> {
    let rig = Rig::set(&Setting {
        factor: 1,
        push: false,
        metrics_interval_seconds: 0,
        region: vec![],
    })?;
    let viewer = rig.new_key("viewer")?;
    let run = long_run(&rig, points)?;
    let mut figures = json!({ "at_rest": probed(&rig, &AtomicU64::new(0))? });
    figures["half_open"] = half_open(&rig)?;
    let fields: Map<String, Value> = (0..UNKNOWN_FIELDS)
        .map(|n| (format!("unknown_{n:05}"), json!(0)))
        .collect();
    let fields = Value::Object(fields).to_string();
    let metrics: Vec<Value> = (0..REGEXES)
        .map(|n| json!({"name": format!("m{n}"), "regex": format!(r"((\w{{50}}){{8}})x{n}"), "meaning": "other"}))
        .collect();
    let regexes = json!({"name": "x", "model": {}, "metrics": metrics}).to_string();
    let formats = ["csv", "ndjson", "parquet"];
    let export = |client: usize| {
        let format = formats
            .get(client % formats.len())
            .copied()
            .unwrap_or("csv");
        drop(rig.bytes(&format!(
            "/v1/runs/{run}/metrics?metric=loss&format={format}"
        )));
    };
    let attacks = [
        Attack {
            name: "unknown_fields",
            clients: VIEWERS,
            once: Box::new(|_| rig.post_as(&viewer, "/v1/plans", &fields)),
        },
        Attack {
            name: "regexes",
            clients: VIEWERS,
            once: Box::new(|_| rig.post_as(&viewer, "/v1/lint?kind=workload", &regexes)),
        },
        Attack {
            name: "exports",
            clients: EXPORTS,
            once: Box::new(export),
        },
    ];
    for attack in &attacks {
        figures[attack.name] = under(&rig, attack)?;
    }
    drop(attacks);
    rig.strike()?;
    Ok(figures)
}

/// An external run with one long series.
fn long_run(rig: &Rig, points: i64) -> Result<String, String> {
    let run = rig.new_run()?;
    for first in (0..points).step_by(usize::try_from(POINTS_OF_PUSH).unwrap_or(1)) {
        let lines = (first..points.min(first + POINTS_OF_PUSH)).map(|step| {
            format!(
                "{{\"timestamp\":{},\"step\":{step},\"loss\":{}}}\n",
                EPOCH + step / 10,
                1.0 / (1.0 + to_real(step))
            )
        });
        rig.post(
            &format!("/v1/runs/{run}/metrics"),
            &lines.collect::<String>(),
        )?;
    }
    Ok(run)
}

#[expect(clippy::cast_precision_loss, reason = "a million")]
fn to_real(count: i64) -> f64 {
    count as f64
}

/// Opens connections whose request heads never end.
fn half_open(rig: &Rig) -> Result<Value, String> {
    let mut files = getrlimit(Resource::Nofile);
    files = Rlimit {
        current: files.maximum,
        maximum: files.maximum,
    };
    setrlimit(Resource::Nofile, files).map_err(|error| format!("more files: {error}"))?;
    let open = || -> Result<TcpStream, String> {
        let mut stream = TcpStream::connect(rig.address()).map_err(|error| error.to_string())?;
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: ")
            .map_err(|error| error.to_string())?;
        Ok(stream)
    };
    let streams = (0..HALF_OPEN)
        .map(|_| open())
        .collect::<Result<Vec<_>, _>>()?;
    let count = AtomicU64::new(u64::try_from(streams.len()).unwrap_or(0));
    let figures = probed(rig, &count);
    drop(streams);
    figures
}

fn under(rig: &Rig, attack: &Attack<'_>) -> Result<Value, String> {
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for client in 0..attack.clients {
            let (is_over, count) = (&is_over, &count);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    (attack.once)(client);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let figures = probed(rig, &count);
        is_over.store(true, Ordering::Relaxed);
        figures
    })
}

/// Polls the health check, on a new connection each time.
fn probed(rig: &Rig, attacks: &AtomicU64) -> Result<Value, String> {
    let mut latencies = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < WINDOW {
        let asked = Instant::now();
        rig.livez()?;
        latencies.push(asked.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(Duration::from_millis(10));
    }
    latencies.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        latencies
            .get((latencies.len() * percent / 100).min(latencies.len() - 1))
            .copied()
    };
    let (p50, p99, most) = (
        at(50).unwrap_or(0.0),
        at(99).unwrap_or(0.0),
        at(100).unwrap_or(0.0),
    );
    Ok(json!({
        "livez_p50_ms": round(p50), "livez_p99_ms": round(p99), "livez_max_ms": round(most), "probes": latencies.len(),
        "attacks": attacks.load(Ordering::Relaxed), "passed": most < LIVEZ_MS_MAX,
    }))
}

pub(super) fn show(figures: &Value) {
    println!(
        "\n{:<24} {:>10} {:>10} {:>10} {:>9}",
        "GET /livez, ms", "p50", "p99", "max", "attacks"
    );
    for (name, of) in figures.as_object().into_iter().flatten() {
        let number = |key: &str| of[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{name:<24} {:>10.1} {:>10.1} {:>10.1} {:>9} {}",
            number("livez_p50_ms"),
            number("livez_p99_ms"),
            number("livez_max_ms"),
            of["attacks"],
            if of["passed"] == true { "pass" } else { "FAIL" }
        );
    }
}
