//! Alarms, judged by the region's own record: each must be true, and none may be missing.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::booked::{Booked, micro, text};
use super::{CENT, Verdict, billed};
use bakeoff_demo::http::pages;

const ORPHANED: &str = "trial.orphaned_job";
const OVER_RESERVATION: &str = "trial.over_reservation";

/// Counts alarms of orphaned jobs and of costs above their reservation that are false, and those that are missing.
///
/// A job is orphaned if its attempt was given up: as one that never had a job, or whose job had vanished. If SageMaker
/// has told its end, it is not. `by_attempt`: all attempts, with what was reserved and paid for them. `is_restored`: the
/// database was restored from a backup. It has lost the alarms of the time before, so that none is missed; and jobs are
/// orphaned too that it knew nothing of, or that ran beyond what it took for their end.
pub(super) fn count(
    url: &str,
    key: &str,
    jobs: &[Value],
    by_attempt: &BTreeMap<String, Booked>,
    is_restored: bool,
    verdict: &mut Verdict,
) -> Result<(), String> {
    let alarms = pages(
        &format!("{url}/v1/events?alarms_only=true&page_size=500"),
        key,
    )?;
    let by_name: BTreeMap<String, &Value> =
        jobs.iter().map(|job| (text(&job["name"]), job)).collect();
    let mut raised: BTreeSet<(&str, String)> = BTreeSet::new();
    for alarm in &alarms {
        let data = &alarm["data"];
        let name = text(&data["job_name"]);
        let job = by_name.get(&name);
        let own = job.and_then(|job| by_attempt.get(&text(&job["attempt"])));
        let is_true = match alarm["kind"].as_str() {
            Some(ORPHANED) => {
                raised.insert((ORPHANED, name));
                own.is_some_and(|own| {
                    own.given_up_at.is_some() || is_restored && runs_beyond(job, own.ended_at)
                })
            }
            Some(OVER_RESERVATION) if data["charge"] == "job" => {
                raised.insert((OVER_RESERVATION, name));
                let reserved = data["reserved_usd"].as_f64().map_or(0, micro);
                job.is_some_and(|job| billed(job) + CENT > reserved)
            }
            _ => continue,
        };
        verdict.alarms_judged += 1;
        if !is_true {
            verdict.false_alarms += 1;
            verdict
                .notes
                .push(format!("false alarm: {}", alarm["message"]));
        }
    }
    if is_restored {
        return Ok(());
    }
    for (name, job) in by_name {
        let Some(own) = by_attempt.get(&text(&job["attempt"])) else {
            continue;
        };
        let is_missing = |kind| !raised.contains(&(kind, name.clone()));
        let is_orphaned = own.given_up_at.is_some() && billed(job) > 0;
        let costs_more = own.reserved > 0 && billed(job) > own.reserved + CENT;
        if is_orphaned && is_missing(ORPHANED) || costs_more && is_missing(OVER_RESERVATION) {
            verdict.missing_alarms += 1;
            verdict.notes.push(format!(
                "{name} was billed {} of {} reserved (millionths of a dollar), given up at {:?}, and there is no alarm",
                billed(job),
                own.reserved,
                own.given_up_at
            ));
        }
    }
    Ok(())
}

/// Whether a job ended after its attempt, or its attempt has no end because it was made for the job.
fn runs_beyond(job: Option<&&Value>, ended_at: Option<DateTime<Utc>>) -> bool {
    let of_job = job.and_then(|job| text(&job["ended_at"]).parse::<DateTime<Utc>>().ok());
    of_job.is_some_and(|of_job| ended_at.is_none_or(|ended_at| of_job >= ended_at))
}
