//! The verdict on a seed, read from the region's own record: what it ran, for whom, and what it bills. The service is asked
//! only what it believes, to be held against that.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::course::{Accepted, Ground, get};
use super::plan::Plan;
use super::stage::Stage;

/// A replica that is started again is there after this long.
const RESTART: TimeDelta = TimeDelta::seconds(2);

/// A pool that runs out after so many listings have shown it waiting is left alone; after fewer, the service was late. Two of
/// them are enough to end it, and nine fit into the time that it is kept.
const POOL_LISTINGS_MAX: u64 = 6;

/// What went wrong, by kind; all zero when nothing did.
#[derive(Debug, Default, Clone)]
pub(super) struct Verdict {
    pub(super) attempts: u64,
    pub(super) jobs: u64,
    /// Attempts with more than one job, and trials with two jobs at a time.
    pub(super) duplicates: u32,
    /// Accepted experiments and trials that did not come to an end.
    pub(super) lost: u32,
    /// Jobs that run on, or that no row stands for, or that are not billed as the region bills them.
    pub(super) orphans: u32,
    pub(super) over_budget: u32,
    /// Of the orphans and pools, those that no patience mends: without a row, or left to run out.
    pub(super) wrong: u32,
    /// Pools that wait on, or ran out by themselves.
    pub(super) pools_leaked: u32,
    pub(super) pools_reused: u64,
    pub(super) strays: u64,
    pub(super) faults: BTreeMap<String, u64>,
    /// Real seconds from a `kill -9` to the takeover of what the dead held, while Postgres was there.
    pub(super) recoveries: Vec<f64>,
    pub(super) notes: Vec<String>,
    /// Not everything ended before patience did, or a pool before it was noticed.
    pub(super) is_late: bool,
    /// It was late the first time, and is the second verdict on its seed.
    pub(super) is_played_again: bool,
}

impl Verdict {
    pub(super) fn holds(&self) -> bool {
        self.duplicates + self.lost + self.orphans + self.over_budget + self.pools_leaked == 0
    }

    /// Nothing is wrong but that it is not over: what still runs, waits or is owed is not lost yet.
    pub(super) fn is_only_late(&self) -> bool {
        self.is_late && self.duplicates + self.over_budget + self.wrong == 0
    }
}

/// What the service believes of one experiment.
#[derive(Default)]
struct Believed {
    /// Attempt id to (trial id, what was booked for its job and pool, millionths of a dollar).
    attempts: BTreeMap<String, (String, i64)>,
    open_trials: u32,
    /// When (virtual time), and whose process id.
    takeovers: Vec<(DateTime<Utc>, u32)>,
    strays: u64,
}

pub(super) fn judge(
    (stage, ground): (&Stage, &Ground),
    plan: &Plan,
    accepted: &[Accepted],
    is_over: bool,
) -> Result<Verdict, String> {
    let record = get(&format!("{}/_sim/record", stage.region_url), "")?;
    let jobs = record["jobs"].as_array().cloned().unwrap_or_default();
    let mut verdict = Verdict { jobs: jobs.len().try_into().unwrap_or(0), ..Verdict::default() };
    let url = stage.urls().into_iter().next().ok_or("no replica is up")?;
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    let mut booked: BTreeMap<String, i64> = BTreeMap::new();
    for (index, experiment) in accepted.iter().enumerate() {
        let believed = believed(&url, &stage.api_key, &experiment.id)?;
        verdict.lost += believed.open_trials;
        verdict.strays += believed.strays;
        if !plan.has_clock_jump() {
            let recoveries = believed.takeovers.iter().filter_map(|takeover| recovery(stage, ground, takeover));
            verdict.recoveries.extend(recoveries);
        }
        for (attempt, (_, usd)) in believed.attempts {
            verdict.attempts += 1;
            owners.insert(attempt.clone(), index);
            booked.insert(attempt, usd);
        }
    }
    if !is_over {
        verdict.lost += 1;
        verdict.notes.push("not everything ended in time".to_owned());
    }
    count_duplicates(&jobs, &mut verdict);
    count_orphans(&jobs, &owners, &booked, &mut verdict);
    count_money(&jobs, &owners, accepted, &mut verdict);
    count_pools(&jobs, &mut verdict);
    for (kind, count) in record["faults"].as_object().into_iter().flatten() {
        *verdict.faults.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
    }
    for (kind, count) in &stage.blows {
        *verdict.faults.entry((*kind).to_owned()).or_default() += count;
    }
    Ok(verdict)
}

/// From a death to the takeover; `None` when nobody was killed, or when there was no chance: Postgres was away, or another
/// replica was killed or stopped meanwhile.
fn recovery(stage: &Stage, ground: &Ground, (at, pid): &(DateTime<Utc>, u32)) -> Option<f64> {
    let taken = stage.real(*at);
    let died = stage.deaths.iter().find(|(dead, _)| dead == pid).map(|(_, died)| DateTime::<Utc>::from(*died))?;
    let outages = ground.outages.lock().unwrap_or_else(PoisonError::into_inner);
    let was_disturbed = outages
        .iter()
        .chain(&stage.freezes)
        .any(|(from, to)| DateTime::<Utc>::from(*from) < taken && died < DateTime::<Utc>::from(*to));
    let others = stage.deaths.iter().any(|(dead, when)| {
        let when = DateTime::<Utc>::from(*when);
        dead != pid && died - RESTART < when && when < taken
    });
    // Before its death it can have lost a lease by a call that took too long: that is no recovery.
    (!was_disturbed && !others && taken >= died).then(|| (taken - died).as_seconds_f64())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn believed(url: &str, key: &str, id: &str) -> Result<Believed, String> {
    let base = format!("{url}/v1/experiments/{id}");
    let mut believed = Believed::default();
    for trial in get(&format!("{base}/trials"), key)?["items"].as_array().into_iter().flatten() {
        let is_open =
            ["queued", "submitting", "parked", "running", "stopping"].iter().any(|state| trial["state"] == *state);
        believed.open_trials += u32::from(is_open);
        for attempt in trial["attempts"].as_array().into_iter().flatten() {
            believed.attempts.insert(text(&attempt["id"]), (text(&trial["id"]), 0));
        }
    }
    for entry in get(&format!("{base}/ledger?page_size=500"), key)?["items"].as_array().into_iter().flatten() {
        let is_job =
            ["training", "warm_pool", "stray", "storage"].iter().any(|component| entry["component"] == *component);
        if let Some((_, usd)) = believed.attempts.get_mut(&text(&entry["attempt_id"]))
            && is_job
            && entry["kind"] == "settled"
        {
            *usd += micro(entry["usd"].as_f64().unwrap_or(f64::NAN));
        }
    }
    for event in get(&format!("{base}/events?page_size=500"), key)?["items"].as_array().into_iter().flatten() {
        believed.strays += u64::from(event["kind"] == "trial.stray_job");
        if event["kind"] == "trial.taken_over" {
            // host/pid/unique
            let pid = text(&event["message"])
                .rsplit_once(" did not")
                .and_then(|(head, _)| head.rsplit('/').nth(1)?.parse().ok());
            let at = text(&event["recorded_at"]).parse().ok();
            believed.takeovers.extend(at.zip(pid));
        }
    }
    Ok(believed)
}

#[expect(clippy::cast_possible_truncation, reason = "dollars of a storm")]
fn micro(usd: f64) -> i64 {
    (usd * 1e6).round() as i64
}

fn count_duplicates(jobs: &[Value], verdict: &mut Verdict) {
    let mut of_attempt: BTreeMap<String, u32> = BTreeMap::new();
    let mut of_trial: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for job in jobs {
        *of_attempt.entry(text(&job["attempt"])).or_default() += 1;
        let end = job["ended_at"].as_str().unwrap_or("9999").to_owned();
        of_trial.entry(text(&job["trial"])).or_default().push((text(&job["created_at"]), end));
    }
    verdict.duplicates += u32::try_from(of_attempt.values().filter(|count| **count > 1).count()).unwrap_or(u32::MAX);
    for (trial, mut lives) in of_trial {
        lives.sort();
        let overlaps = lives.windows(2).filter(|pair| matches!(pair, [first, second] if second.0 < first.1)).count();
        if overlaps > 0 {
            verdict.notes.push(format!("{trial} had two jobs at a time: {lives:?}"));
        }
        verdict.duplicates += u32::try_from(overlaps).unwrap_or(u32::MAX);
    }
}

fn count_orphans(
    jobs: &[Value],
    owners: &BTreeMap<String, usize>,
    booked: &BTreeMap<String, i64>,
    verdict: &mut Verdict,
) {
    for job in jobs {
        let attempt = text(&job["attempt"]);
        if job["ended_at"].is_null() {
            verdict.orphans += 1;
            verdict.notes.push(format!("{} runs on", job["name"]));
        } else if !owners.contains_key(&attempt) {
            verdict.orphans += 1;
            verdict.wrong += 1;
            verdict.notes.push(format!("{} has no row", job["name"]));
        } else {
            let bill = billed(job);
            let ours = booked.get(&attempt).copied().unwrap_or(0);
            if (bill - ours).abs() >= 10_000 {
                verdict.orphans += 1;
                verdict.notes.push(format!(
                    "{} is billed {bill} and booked {ours} (millionths of a dollar): {job}",
                    job["name"]
                ));
            }
        }
    }
}

/// All that a job costs, millionths of a dollar: itself, its pool, the volumes of both.
fn billed(job: &Value) -> i64 {
    let parts = ["micro_usd", "pool_micro_usd", "storage_micro_usd", "pool_storage_micro_usd"];
    parts.iter().filter_map(|part| job[*part].as_i64()).sum()
}

fn count_money(jobs: &[Value], owners: &BTreeMap<String, usize>, accepted: &[Accepted], verdict: &mut Verdict) {
    for (index, experiment) in accepted.iter().enumerate() {
        let own = jobs.iter().filter(|job| owners.get(&text(&job["attempt"])) == Some(&index));
        let spent: i64 = own.map(billed).sum();
        if spent > micro(experiment.budget_usd) {
            verdict.over_budget += 1;
            verdict.notes.push(format!("{} spent {spent} of {}", experiment.id, experiment.budget_usd));
        }
    }
}

fn count_pools(jobs: &[Value], verdict: &mut Verdict) {
    for job in jobs {
        verdict.pools_reused += u64::from(job["pool_reused_by"].is_string());
        let has_run_out = job["pool_ran_out"] == true;
        if job["idle_pool"] == true || has_run_out {
            verdict.pools_leaked += 1;
            let is_seen = job["pool_listed"].as_u64().is_none_or(|listings| listings >= POOL_LISTINGS_MAX);
            verdict.wrong += u32::from(has_run_out && is_seen);
            // Seconds are no measure of a service that hardly gets a processor: it was not asked often enough.
            verdict.is_late |= has_run_out && !is_seen;
            verdict.notes.push(format!("the pool of {} was left: {job}", job["name"]));
        }
    }
}
