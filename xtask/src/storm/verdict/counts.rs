//! What the verdict counts beside jobs and money: cancels, trespasses, points, metrics, pools.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::{
    Booked, CANCEL_MAX, FOREIGN_UNSEEN, METRIC_MICRO_USD, METRICS_OF_A_HOST, METRICS_OF_A_JOB,
    POOL_LISTINGS_MAX, Verdict, text,
};
use crate::storm::client::Client;
use crate::storm::course::Ground;
use crate::storm::http::{found, get};
use crate::storm::stage::{KEEP_ALIVE_SECONDS, SILENT_MAX, Stage};

/// An attempt is held at least so long after the create that may be under way: a lease and two
/// calls, less what the two clocks may be apart.
const QUARANTINE: Duration = Duration::from_millis(3700);
/// Whoever stood still sends at once.
const ARRIVAL_MAX: Duration = Duration::from_secs(3);

/// Every job that was there when its experiment was cancelled, or came later, was asked to stop,
/// unless it was over first.
pub(super) fn cancels(
    stage: &Stage,
    ground: &Ground,
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    client: &Client,
    verdict: &mut Verdict,
) {
    let moment = |value: &Value| text(value).parse().ok().map(|at| stage.real(at));
    let outages = ground
        .outages
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let spans = stage
        .hindrances()
        .chain(outages)
        .map(|(from, to)| (DateTime::<Utc>::from(from), DateTime::<Utc>::from(to)));
    let hindrances: Vec<(DateTime<Utc>, DateTime<Utc>)> = spans.collect();
    for cancel in &client.cancels {
        let asked_for = DateTime::<Utc>::from(cancel.asked_at);
        // While nobody can reach the database, or none may run, nobody can be asked to stop
        // anything.
        let hindered = hindrances
            .iter()
            .filter(|(from, to)| *from < asked_for + CANCEL_MAX && *to > asked_for);
        let free_from = hindered.map(|(_, to)| *to).max().unwrap_or(asked_for);
        let Some(index) = client
            .accepted
            .iter()
            .position(|one| one.id == cancel.experiment)
        else {
            continue;
        };
        for job in jobs.iter().filter(|job| {
            booked
                .get(&text(&job["attempt"]))
                .is_some_and(|own| own.experiment == index)
        }) {
            let Some(since) = moment(&job["created_at"]).map(|at: DateTime<Utc>| at.max(asked_for))
            else {
                continue;
            };
            let is_over = |limit: DateTime<Utc>| {
                moment(&job["ended_at"]).is_some_and(|end: DateTime<Utc>| end <= limit)
            };
            if let Some(asked) = moment(&job["stop_asked_at"]) {
                let seconds = (asked - since).as_seconds_f64().max(0.0);
                verdict.cancels.push(seconds);
                if asked - since.max(free_from) <= CANCEL_MAX {
                    continue;
                }
            } else if is_over(since.max(free_from) + CANCEL_MAX) {
                continue;
            }
            verdict.unstopped += 1;
            verdict.is_late = true;
            // A stop that never came is not late.
            verdict.wrong += u32::from(job["stop_asked_at"].is_null());
            verdict.notes.push(format!(
                "{} was cancelled at {asked_for} and not stopped in time: {job}",
                job["name"]
            ));
        }
    }
}

pub(super) fn trespasses(
    stage: &Stage,
    strangers: &[Value],
    elsewhere: &[Value],
    verdict: &mut Verdict,
) {
    let is_stopped = |job: &&Value| !job["stop_asked_at"].is_null();
    for job in strangers.iter().filter(is_stopped) {
        verdict.trespasses += 1;
        verdict.notes.push(format!(
            "{} is somebody else's, and was stopped",
            job["name"]
        ));
    }
    let is_just_then = |job: &Value| {
        let created = text(&job["created_at"])
            .parse()
            .ok()
            .map(|at| stage.real(at));
        let within = |from: &SystemTime| {
            let from = DateTime::<Utc>::from(*from);
            created.is_some_and(|at: DateTime<Utc>| {
                at - from < FOREIGN_UNSEEN && from - at < FOREIGN_UNSEEN
            })
        };
        stage.foreign_from.iter().any(within)
    };
    for job in elsewhere.iter().filter(|job| !is_just_then(job)) {
        verdict.trespasses += 1;
        let from: Vec<_> = stage
            .foreign_from
            .iter()
            .map(|from| DateTime::<Utc>::from(*from))
            .collect();
        verdict.notes.push(format!(
            "{} was made in another account, which there was from {from:?}: {job}",
            job["name"]
        ));
    }
}

/// No attempt is said to be without a job that the region had by then: its trial would be over, or
/// begin anew, beside a job that runs. Nor is one created later, unless whoever sent the create
/// stood still for longer than anybody waits for it: that one is a stray.
pub(super) fn given_up(
    stage: &Stage,
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    verdict: &mut Verdict,
) {
    let stood_still = |at: DateTime<Utc>| {
        let at = SystemTime::from(stage.real(at));
        stage.freezes.iter().any(|freeze| {
            let lasted = freeze.to.duration_since(freeze.from).unwrap_or_default();
            lasted >= QUARANTINE && freeze.from < at && at < freeze.to + ARRIVAL_MAX
        })
    };
    for job in jobs {
        let created: Option<DateTime<Utc>> = text(&job["created_at"]).parse().ok();
        let given_up = booked
            .get(&text(&job["attempt"]))
            .and_then(|own| own.given_up_at);
        if let (Some(created), Some(given_up)) = (created, given_up)
            && (created < given_up || !stood_still(created))
        {
            verdict.lost += 1;
            verdict.wrong += 1;
            verdict.notes.push(format!(
                "{} was given up at {given_up}, although it was there or still to come: {job}",
                job["name"]
            ));
        }
    }
}

/// Nobody cancelled them in the original: a copy has stopped them.
pub(super) fn unasked_stops(
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    client: &Client,
    verdict: &mut Verdict,
) {
    let is_cancelled = |job: &Value| {
        let experiment = booked
            .get(&text(&job["attempt"]))
            .and_then(|own| client.accepted.get(own.experiment));
        experiment.is_some_and(|one| {
            client
                .cancels
                .iter()
                .any(|cancel| cancel.experiment == one.id)
        })
    };
    for job in jobs
        .iter()
        .filter(|job| !job["stop_asked_at"].is_null() && !is_cancelled(job))
    {
        verdict.trespasses += 1;
        verdict.notes.push(format!(
            "{} was stopped, and nobody asked for it: {job}",
            job["name"]
        ));
    }
}

/// The points of each trial are those that CloudWatch has of its jobs: as many, with the same sum.
pub(super) fn points(
    stage: &Stage,
    url: &str,
    jobs: &[Value],
    verdict: &mut Verdict,
) -> Result<(), String> {
    let mut published: BTreeMap<String, (u64, f64)> = BTreeMap::new();
    for job in jobs {
        let of = get(
            &format!("{}/_sim/points/{}", stage.region_url, text(&job["name"])),
            "",
        )?;
        let sum = published.entry(text(&job["trial"])).or_default();
        sum.0 += of["tps"]["points"].as_u64().unwrap_or_default();
        sum.1 += of["tps"]["sum"].as_f64().unwrap_or_default();
    }
    for (trial, (count, sum)) in published {
        let path =
            format!("{url}/v1/trials/{trial}/metrics?metric=tokens_per_second&resolution=raw");
        // None at all is a 404.
        let series = found(&path, &stage.api_key)?.unwrap_or_default();
        let points = series["points"]["value"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let ours: f64 = points.iter().filter_map(Value::as_f64).sum();
        verdict.points += count;
        if points.len() as u64 != count || (ours - sum).abs() > 1e-6 * sum.abs() {
            verdict.metrics_wrong += 1;
            verdict.notes.push(format!(
                "{trial} has {} points, and CloudWatch {count} ({ours} and {sum})",
                points.len()
            ));
        }
    }
    Ok(())
}

/// Metrics are booked as CloudWatch bills them: never fewer, and more only where a read may have
/// been carried out. That is what the region did not serve, and one read for each time that
/// somebody died, stood still or was cut off between counting and asking.
pub(super) fn metrics(
    stage: &Stage,
    ground: &Ground,
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    verdict: &mut Verdict,
) {
    let outages = ground
        .outages
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let begun = stage.real(stage.pace.origin.parse().unwrap_or_default());
    let own_outages = outages
        .iter()
        .filter(|(_, back)| DateTime::<Utc>::from(*back) > begun)
        .count();
    let disturbances = stage.disturbances(u64::try_from(own_outages).unwrap_or_default());
    for job in jobs {
        let Some(ours) = booked.get(&text(&job["attempt"])) else {
            continue;
        };
        let count = |key: &str| job[key].as_u64().unwrap_or_default();
        let (read, unserved) = (count("metrics_requested"), count("metrics_unserved"));
        let one_read = METRICS_OF_A_JOB + METRICS_OF_A_HOST * count("instance_count");
        let ours = u64::try_from(ours.metrics_usd / METRIC_MICRO_USD).unwrap_or_default();
        let most = read + unserved + one_read * disturbances;
        if ours < read || ours > most {
            // Too few is wrong; too many may be a machine so slow that a read was given up before
            // it arrived.
            verdict.metrics_wrong += u32::from(ours < read);
            verdict.lost += u32::from(ours > most);
            verdict.is_late |= ours > most;
            verdict.notes.push(format!(
                "{} had {read} metrics read and {unserved} refused, and {ours} are booked (at most {most}, \
                 {disturbances} disturbances)",
                job["name"]
            ));
        }
    }
}

pub(super) fn pools(stage: &Stage, jobs: &[Value], verdict: &mut Verdict) {
    let kept_for = TimeDelta::seconds(KEEP_ALIVE_SECONDS.into()) / stage.pace.factor;
    // Until a silent connection is given up, a pool runs out here: its hour is eighteen seconds.
    let was_silent = |job: &Value| {
        let ended: Option<DateTime<Utc>> =
            text(&job["ended_at"]).parse().ok().map(|at| stage.real(at));
        let within = |from: &SystemTime| {
            let (from, to) = (
                DateTime::<Utc>::from(*from),
                DateTime::<Utc>::from(*from + SILENT_MAX),
            );
            ended.is_some_and(|end| end < to && from < end + kept_for)
        };
        stage.silences.iter().any(within)
    };
    for job in jobs
        .iter()
        .filter(|job| job["idle_pool"] == true || !was_silent(job))
    {
        verdict.pools_reused += u64::from(job["pool_reused_by"].is_string());
        let has_run_out = job["pool_ran_out"] == true;
        if job["idle_pool"] == true || has_run_out {
            verdict.pools_leaked += 1;
            let is_seen = job["pool_listed"]
                .as_u64()
                .is_none_or(|listings| listings >= POOL_LISTINGS_MAX);
            verdict.wrong += u32::from(has_run_out && is_seen);
            // Seconds are no measure of a service that hardly gets a processor: it was not asked
            // often enough.
            verdict.is_late |= has_run_out && !is_seen;
            verdict
                .notes
                .push(format!("the pool of {} was left: {job}", job["name"]));
        }
    }
}
