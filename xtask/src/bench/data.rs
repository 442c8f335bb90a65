//! What metrics cost: writing, reading and storing them, compared with a bare server on the same
//! tables and the same Postgres, in alternating rounds. Reports ratios of medians; the absolute
//! figures hold only for this machine at that moment.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::rig::{Rig, Setting};
use super::{HOUR_OF_TOKENS, round};

const ROUNDS: usize = 7;
const CONNECTIONS: usize = 4;
/// Lines per batch, with ten metrics each: a thousand points.
const LINES_OF_BATCH: i64 = 100;
/// Batches that each connection sends per round.
const BATCHES: i64 = 60;
const TRIALS: u32 = 10_000;
const READ_FOR: Duration = Duration::from_secs(4);
const HISTORY_POINTS: i64 = 100_000;
/// 2026-11-10, which is in the past on the bench's domain clock.
const EPOCH: i64 = 1_794_268_800;

/// In the order of measurement: storage first, on empty tables that hold only what the service has
/// written.
pub(super) const PARTS: [&str; 5] = [
    "storage",
    "ingest",
    "history_100k",
    "get_trial",
    "comparison_100_of_10k",
];

pub(super) fn measure(parts: &[&str]) -> Result<Value, String> {
    let setting = Setting {
        factor: 600,
        push: false,
        metrics_interval_seconds: 0,
        region: vec![],
    };
    let mut rig = Rig::set(&setting)?;
    rig.start_bare()?;
    let mut figures = json!({});
    let mut has_trials = false;
    for part in parts {
        if !has_trials && ["get_trial", "comparison_100_of_10k"].contains(part) {
            make_trials(&rig)?;
            has_trials = true;
        }
        figures[part] = match *part {
            "storage" => storage(&rig),
            "ingest" => ingest(&rig),
            "history_100k" => history(&rig),
            "get_trial" => get_trial(&rig),
            _ => comparison(&rig),
        }?;
    }
    rig.strike()?;
    Ok(figures)
}

/// Creates ten thousand trials that have ended, with their metrics read and settled, so that only
/// reading is measured.
fn make_trials(rig: &Rig) -> Result<(), String> {
    rig.submit(TRIALS, HOUR_OF_TOKENS / 10, 7200)?;
    rig.wait(
        Duration::from_mins(20),
        "the experiments have not ended",
        |rig| {
            let list = rig.get("/v1/experiments?state=running&page_size=1")?;
            Ok(list["items"].as_array().is_some_and(Vec::is_empty))
        },
    )?;
    std::thread::sleep(Duration::from_secs(10));
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(super) fn quantile(values: &[f64], share: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
        .get((sorted.len() * share / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

#[expect(clippy::cast_precision_loss, reason = "counts of a bench")]
fn real(count: usize) -> f64 {
    count as f64
}

/// One batch of a script that reports ten metrics per step, one step per second.
fn batch(number: i64) -> String {
    use std::fmt::Write;
    let mut body = String::new();
    for line in 0..LINES_OF_BATCH {
        let step = number * LINES_OF_BATCH + line;
        let _ = write!(body, "{{\"timestamp\":{}.25,\"step\":{step}", EPOCH + step);
        for metric in 0..10 {
            let _ = write!(
                body,
                ",\"m{metric}\":{}.{:03}",
                metric + 1,
                (step * 7919 + metric) % 1000
            );
        }
        body.push_str("}\n");
    }
    body
}

/// A way of writing points.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WritePath {
    Ours,
    Bare,
    Copy,
}

#[derive(Default)]
struct Written {
    points_per_second: Vec<f64>,
    cpu_seconds_per_million: Vec<f64>,
}

/// Sends the same bodies on all connections at once; each connection has its own run or series.
fn send(rig: &Rig, way: WritePath, runs: &[String], bodies: &[String]) -> Result<(), String> {
    let one = |connection: usize, body: &str| match way {
        WritePath::Ours => {
            let run = runs.get(connection).map_or("", String::as_str);
            rig.post(&format!("/v1/runs/{run}/metrics"), body).map(drop)
        }
        // Series that belong to no run: the same table, other keys.
        WritePath::Bare => rig.post_bare(&format!("/points/{}", 1_000_000 + connection * 10), body),
        WritePath::Copy => rig.post_bare(&format!("/copy/{}", 2_000_000 + connection * 10), body),
    };
    let one = &one;
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..CONNECTIONS)
            .map(|connection| {
                scope.spawn(move || bodies.iter().try_for_each(|body| one(connection, body)))
            })
            .collect();
        senders
            .into_iter()
            .try_for_each(|sender| sender.join().map_err(|_| "a sender died".to_owned())?)
    })
}

fn ingest(rig: &Rig) -> Result<Value, String> {
    let mut written =
        [WritePath::Ours, WritePath::Bare, WritePath::Copy].map(|way| (way, Written::default()));
    let runs: Vec<String> = (0..CONNECTIONS)
        .map(|_| rig.new_run())
        .collect::<Result<_, _>>()?;
    for round in 0..=ROUNDS {
        for (way, figures) in &mut written {
            let way = *way;
            let number = i64::try_from(round).unwrap_or(0) * BATCHES;
            let bodies: Vec<String> = (number..number + BATCHES).map(batch).collect();
            let (cpu, begun) = (rig.cpu_of(way == WritePath::Ours), Instant::now());
            send(rig, way, &runs, &bodies)?;
            let points = real(CONNECTIONS) * real(bodies.len()) * 1000.0;
            // The first round creates connections and series, and is not counted.
            if round > 0 {
                figures
                    .points_per_second
                    .push(points / begun.elapsed().as_secs_f64());
                figures
                    .cpu_seconds_per_million
                    .push((rig.cpu_of(way == WritePath::Ours) - cpu) / points * 1e6);
            }
        }
    }
    let [ours, bare, copy] = written.map(|(_, figures)| figures);
    let rate = |figures: &Written| median(&figures.points_per_second);
    let cpu = |figures: &Written| median(&figures.cpu_seconds_per_million);
    Ok(json!({
        "points_per_second": rate(&ours).round(), "bare_points_per_second": rate(&bare).round(),
        "copy_points_per_second": rate(&copy).round(),
        "ratio_to_bare_unnest": round(rate(&ours) / rate(&bare)), "ratio_to_copy": round(rate(&ours) / rate(&copy)),
        "cpu_seconds_per_million": round(cpu(&ours)), "bare_cpu_seconds_per_million": round(cpu(&bare)),
        "cpu_ratio_to_bare": round(cpu(&ours) / cpu(&bare)), "rounds": ROUNDS,
    }))
}

fn history(rig: &Rig) -> Result<Value, String> {
    let run = rig.new_run()?;
    for chunk in 0..10 {
        use std::fmt::Write;
        let mut body = String::new();
        for step in chunk * HISTORY_POINTS / 10..(chunk + 1) * HISTORY_POINTS / 10 {
            let _ = writeln!(
                body,
                "{{\"timestamp\":{},\"step\":{step},\"loss\":{}.{:03}}}",
                EPOCH + step,
                step % 7,
                step % 1000
            );
        }
        rig.post(&format!("/v1/runs/{run}/metrics"), &body)?;
    }
    let series = rig.get_bare(&format!("/series/{}/loss", bare_id(&run)))?;
    let path = format!("/v1/runs/{run}/metrics?metric=loss");
    let mut times = [(); 3].map(|()| Vec::new());
    for round in 0..=ROUNDS * 3 {
        let asked = [
            timed(|| rig.bytes(&format!("{path}&format=parquet")))?,
            timed(|| rig.bytes(&path))?,
            timed(|| rig.bytes_bare(&format!("/history/{series}")))?,
        ];
        if round > 0 {
            times
                .iter_mut()
                .zip(asked)
                .for_each(|(times, asked)| times.push(asked));
        }
    }
    let [parquet, json, bare] = times.map(|times| median(&times));
    Ok(json!({
        "parquet_p50_ms": round(parquet), "json_2000_p50_ms": round(json), "bare_json_p50_ms": round(bare),
        "parquet_ratio_to_bare_json": round(parquet / bare), "json_2000_ratio_to_bare_json": round(json / bare),
    }))
}

fn timed<T>(act: impl FnOnce() -> Result<T, String>) -> Result<f64, String> {
    let begun = Instant::now();
    act()?;
    Ok(begun.elapsed().as_secs_f64() * 1000.0)
}

/// Space that a million points take: as written, and compacted.
fn storage(rig: &Rig) -> Result<Value, String> {
    write_a_million(rig)?;
    let live = rig.get_bare("/size")?;
    let of = |sizes: &Value, key: &str| sizes[key].as_f64().unwrap_or(f64::NAN);
    let live_mb = (of(&live, "samples") + of(&live, "rollups")) / of(&live, "live");
    rig.end_runs()?;
    rig.wait(
        Duration::from_mins(3),
        "the runs are not compacted",
        |rig| Ok(rig.get_bare("/size")?["live"].as_f64() == Some(0.0)),
    )?;
    let packed = rig.get_bare("/size")?;
    let packed_mb = (of(&packed, "chunks") + of(&packed, "rollups")) / of(&packed, "packed");
    Ok(json!({
        "mb_per_million_live": round(live_mb), "mb_per_million_compacted": round(packed_mb), "points": live["live"],
    }))
}

/// Writes a million points over all connections at once, each to a run of its own.
fn write_a_million(rig: &Rig) -> Result<(), String> {
    let bodies: Vec<String> = (0..1000 / i64::try_from(CONNECTIONS).unwrap_or(1))
        .map(batch)
        .collect();
    std::thread::scope(|scope| {
        let send = || {
            let run = rig.new_run()?;
            bodies
                .iter()
                .try_for_each(|body| rig.post(&format!("/v1/runs/{run}/metrics"), body).map(drop))
        };
        let senders: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(send)).collect();
        senders
            .into_iter()
            .try_for_each(|sender| sender.join().map_err(|_| "a sender died".to_owned())?)
    })
}

/// The digits of a typed id, which the bare server takes as a UUID.
fn bare_id(id: &str) -> String {
    id.rsplit_once('_')
        .map_or(id, |(_, digits)| digits)
        .to_owned()
}

fn get_trial(rig: &Rig) -> Result<Value, String> {
    let ids = rig.trial_ids(1000)?;
    let (mut ours, mut bare, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (rate, own) = load(&ids, |id| rig.bytes(&format!("/v1/trials/{id}")).map(drop))?;
        ours.push(rate);
        latencies.extend(own);
        bare.push(
            load(&ids, |id| {
                rig.bytes_bare(&format!("/trials/{}", bare_id(id)))
                    .map(drop)
            })?
            .0,
        );
    }
    Ok(json!({
        "requests_per_second": median(&ours).round(), "bare_requests_per_second": median(&bare).round(),
        "ratio_to_bare_axum_sqlx": round(median(&ours) / median(&bare)), "p99_ms": round(quantile(&latencies, 99)),
        "p50_ms": round(quantile(&latencies, 50)),
    }))
}

/// Requests per second over all connections, and the milliseconds of each.
fn load(
    ids: &[String],
    ask: impl Fn(&str) -> Result<(), String> + Sync,
) -> Result<(f64, Vec<f64>), String> {
    let begun = Instant::now();
    let ask = &ask;
    let latencies = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|connection| {
                scope.spawn(move || {
                    let mut own = Vec::new();
                    let mut index = connection;
                    while begun.elapsed() < READ_FOR {
                        let Some(id) = ids.get(index * 7919 % ids.len()) else {
                            break;
                        };
                        own.push(timed(|| ask(id))?);
                        index += CONNECTIONS;
                    }
                    Ok::<_, String>(own)
                })
            })
            .collect();
        let mut all = Vec::new();
        for client in clients {
            all.extend(client.join().map_err(|_| "a client died".to_owned())??);
        }
        Ok::<_, String>(all)
    })?;
    Ok((
        real(latencies.len()) / begun.elapsed().as_secs_f64(),
        latencies,
    ))
}

/// The comparison of a hundred trials among ten thousand.
fn comparison(rig: &Rig) -> Result<Value, String> {
    let experiment = rig.new_experiment(100, HOUR_OF_TOKENS / 10)?;
    rig.wait(
        Duration::from_mins(5),
        "the hundred trials have not ended",
        |rig| Ok(!rig.get(&format!("/v1/experiments/{experiment}"))?["ended_at"].is_null()),
    )?;
    std::thread::sleep(Duration::from_secs(10));
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..60 {
        let asked = timed(|| rig.bytes(&format!("/v1/experiments/{experiment}/comparison")))?;
        let limit = timed(|| rig.bytes_bare(&format!("/comparison/{}", bare_id(&experiment))))?;
        if round > 5 {
            ours.push(asked);
            bare.push(limit);
        }
    }
    Ok(json!({
        "p50_ms": round(median(&ours)), "p99_ms": round(quantile(&ours, 99)), "bare_p50_ms": round(median(&bare)),
        "ratio_to_bare": round(median(&ours) / median(&bare)),
    }))
}
