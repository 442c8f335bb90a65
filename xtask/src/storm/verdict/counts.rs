//! What the verdict counts besides jobs and money: cancels, trespasses, points, metrics, pools.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::storm::stage::{COPY, Freeze, KEEP_ALIVE_SECONDS, Stage};
use bakeoff_demo::http::{found, get};

/// Minimum time from when a create was to be sent until its attempt may be given up. A create is
/// sent within half a lease; after the other half another replica may take over, and it waits for a
/// lease and two calls. Reduced by the uncertainty of the recorded times.
const QUARANTINE: Duration = Duration::from_millis(4300);
/// How long a create may take to arrive once a frozen replica continues, since it sends at once.
const ARRIVAL_MAX: Duration = Duration::from_secs(3);
/// A pool is judged if replicas could act in this part of the time that it is kept, one in so many:
/// nine seconds here, of which two listings and two calls are enough to end it.
const ATTENDED_PART: i32 = 2;
/// How long others may need to take over what a frozen or killed replica has.
const TAKEOVER_MAX: Duration = Duration::from_secs(6);

/// Checks that every job that existed when its experiment was cancelled, or was created later,
/// received a stop request, unless it ended first.
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
        // While no replica can reach the database, or none may run, no job can be stopped.
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
            // A stop that never came is wrong, not late.
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
    for job in elsewhere.iter().filter(|job| !is_excusable(stage, job)) {
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

/// Whether the account was confirmed just before a job was created in another one, or by a process
/// that then froze. AWS itself refuses such a create, because a role cannot be passed from one
/// account to another.
fn is_excusable(stage: &Stage, job: &Value) -> bool {
    let created = text(&job["created_at"])
        .parse()
        .ok()
        .map(|at| stage.real(at));
    let within = |from: &SystemTime| {
        let stood_still = stage
            .freezes
            .iter()
            .filter(|freeze| freeze.from < *from + FOREIGN_UNSEEN && *from < freeze.to)
            .map(|freeze| freeze.to);
        let until = stood_still.max().unwrap_or(*from).max(*from) + FOREIGN_UNSEEN;
        created.is_some_and(|at: DateTime<Utc>| {
            let at = SystemTime::from(at);
            *from < at + FOREIGN_UNSEEN && at < until
        })
    };
    stage.foreign_from.iter().any(within)
}

/// Checks that no attempt is declared without a job when the region had one by then: its trial
/// would end, or start again, beside a running job. A job created later is allowed only if the
/// sender of the create froze and the service waited as long as a create may be in flight: that job
/// is orphaned.
pub(super) fn given_up(
    stage: &Stage,
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    verdict: &mut Verdict,
) {
    let is_orphaned = |created: DateTime<Utc>, given_up: DateTime<Utc>| {
        let created = SystemTime::from(stage.real(created));
        let given_up = SystemTime::from(stage.real(given_up));
        stage.freezes.iter().any(|freeze| {
            let was_sent_after = freeze.from < created && created < freeze.to + ARRIVAL_MAX;
            was_sent_after && freeze.from + QUARANTINE <= given_up
        })
    };
    for job in jobs {
        let created: Option<DateTime<Utc>> = text(&job["created_at"]).parse().ok();
        let given_up = booked
            .get(&text(&job["attempt"]))
            .and_then(|own| own.given_up_at);
        if let (Some(created), Some(given_up)) = (created, given_up)
            && (created < given_up || !is_orphaned(created, given_up))
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

/// Counts stops in the original that nobody requested there: a copy has caused them. The one pipeline beside a copy is
/// cancelled while its first job runs.
pub(super) fn unasked_stops(
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    client: &Client,
    verdict: &mut Verdict,
) {
    let is_cancelled = |job: &Value| {
        let own = booked.get(&text(&job["attempt"]));
        if own.is_some_and(Booked::is_of_step) {
            return true;
        }
        let experiment = own.and_then(|own| client.accepted.get(own.experiment));
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

/// Checks that each trial has the points that CloudWatch has for its jobs: the same count and sum.
pub(super) fn points(
    stage: &Stage,
    url: &str,
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    verdict: &mut Verdict,
) -> Result<(), String> {
    for (trial, (count, sum)) in published(stage, jobs, booked)? {
        let path =
            format!("{url}/v1/trials/{trial}/metrics?metric=tokens_per_second&resolution=raw");
        // A trial without any points answers 404.
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

/// The count and the sum of the points that CloudWatch has for each trial.
fn published(
    stage: &Stage,
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
) -> Result<BTreeMap<String, (u64, f64)>, String> {
    let mut published: BTreeMap<String, (u64, f64)> = BTreeMap::new();
    // The metrics of an orphaned job are nobody's: whether it may be one is judged elsewhere. Those of another project
    // cannot be read.
    let is_unread = |job: &&Value| {
        let own = booked.get(&text(&job["attempt"]));
        own.is_some_and(|own| own.given_up_at.is_some() || own.experiment == usize::MAX)
    };
    let trained = jobs.iter().filter(|job| job["kind"] == "training");
    for job in trained.filter(|job| !is_unread(job)) {
        let of = get(
            &format!("{}/_sim/points/{}", stage.region_url, text(&job["name"])),
            "",
        )?;
        let sum = published.entry(text(&job["trial"])).or_default();
        sum.0 += of["tps"]["points"].as_u64().unwrap_or(0);
        sum.1 += of["tps"]["sum"].as_f64().unwrap_or(0.0);
    }
    Ok(published)
}

/// Checks that metrics are booked as CloudWatch bills them: never fewer, and more only where a read
/// may have been carried out. That is what the region did not serve, plus one read for each time
/// that a process died, froze or was cut off between counting and calling.
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
            // Too few is wrong; too many may come from a machine so slow that a read was given up
            // before it arrived.
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

/// Checks that no pool was left to expire while replicas could have ended it.
pub(super) fn pools(stage: &Stage, ground: &Ground, jobs: &[Value], verdict: &mut Verdict) {
    let kept_for = TimeDelta::seconds(KEEP_ALIVE_SECONDS.into()) / stage.pace.factor;
    let spans = unattended(stage, ground);
    // Of a pool that is still idle it does not matter who could have ended it.
    let was_attended = |job: &Value| {
        let ended = text(&job["ended_at"]).parse().ok();
        ended.map(|at| stage.real(at)).is_none_or(|from| {
            let taken = covered(&spans, from, from + kept_for);
            kept_for - taken >= kept_for / ATTENDED_PART
        })
    };
    for job in jobs
        .iter()
        .filter(|job| job["idle_pool"] == true || was_attended(job))
    {
        verdict.pools_reused += u64::from(job["pool_reused_by"].is_string());
        let has_run_out = job["pool_ran_out"] == true;
        if job["idle_pool"] == true || has_run_out {
            verdict.pools_leaked += 1;
            let is_seen = job["pool_listed"]
                .as_u64()
                .is_none_or(|listings| listings >= POOL_LISTINGS_MAX);
            verdict.wrong += u32::from(has_run_out && is_seen);
            // Elapsed seconds do not measure a service that hardly gets a processor: it had too few
            // listings to notice the pool.
            verdict.is_late |= has_run_out && !is_seen;
            verdict
                .notes
                .push(format!("the pool of {} was left: {job}", job["name"]));
        }
    }
}

/// A span of real time.
type Span = (DateTime<Utc>, DateTime<Utc>);

/// The spans in which no replica may have been able to end a pool: Postgres was down, connections
/// were silent, the credentials belonged to another account, no replica could run, or the one that
/// had the pool was killed or stood still. Another, or the one that is started in its place, must
/// take over from that one in time, unless it stands still too.
fn unattended(stage: &Stage, ground: &Ground) -> Vec<Span> {
    let outages = ground
        .outages
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let is_alone = stage.replicas.len() == 1;
    let freezes = stage.freezes.iter().map(|freeze| {
        let taken_over = freeze.from + TAKEOVER_MAX;
        let to = if is_alone {
            freeze.to
        } else {
            freeze.to.min(taken_over)
        };
        (freeze.from, to)
    });
    let deaths = stage
        .deaths
        .iter()
        .map(|death| (death.at, death.at + TAKEOVER_MAX));
    let mut spans: Vec<Span> = stage
        .hindrances()
        .chain(outages)
        .chain(freezes)
        .chain(deaths)
        .chain(all_frozen(&stage.freezes, stage.replicas.len()))
        .map(|(from, to)| (from.into(), to.into()))
        .collect();
    spans.sort_unstable();
    spans
}

/// The spans in which all replicas were frozen at once.
fn all_frozen(freezes: &[Freeze], replicas: usize) -> Vec<(SystemTime, SystemTime)> {
    let ends = freezes.iter().flat_map(|freeze| [freeze.from, freeze.to]);
    let moments: Vec<SystemTime> = ends.collect::<BTreeSet<_>>().into_iter().collect();
    let pairs = moments.windows(2).filter_map(|pair| match pair {
        [from, to] => Some((*from, *to)),
        _ => None,
    });
    let is_everyone = |(from, to): &(SystemTime, SystemTime)| {
        let frozen = freezes
            .iter()
            .filter(|freeze| freeze.from <= *from && *to <= freeze.to);
        frozen
            .map(|freeze| freeze.pid)
            .collect::<BTreeSet<_>>()
            .len()
            >= replicas
    };
    pairs.filter(is_everyone).collect()
}

/// How much of the time from `from` to `until` the spans cover. They are sorted, and may overlap.
fn covered(spans: &[Span], from: DateTime<Utc>, until: DateTime<Utc>) -> TimeDelta {
    let (total, _) = spans
        .iter()
        .fold((TimeDelta::zero(), from), |(total, from), span| {
            let (start, end) = (span.0.max(from), span.1.min(until));
            if start < end {
                (total + (end - start), end)
            } else {
                (total, from)
            }
        });
    total
}

/// Counts the transactions that were left open in the seed's databases.
pub(super) fn left_open(stage: &Stage, ground: &Ground, verdict: &mut Verdict) {
    let own = stage.direct.name();
    let found = ground
        .left_open
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let of_seed = found
        .iter()
        .filter(|one| one.database.strip_suffix(COPY).unwrap_or(&one.database) == own);
    for one in of_seed {
        verdict.left_open += 1;
        verdict.notes.push(one.to_string());
    }
}

/// Counts attempts with more than one job, and trials with two jobs at a time.
pub(super) fn duplicates(jobs: &[Value], verdict: &mut Verdict) {
    let mut of_attempt: BTreeMap<String, u32> = BTreeMap::new();
    let mut of_trial: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for job in jobs {
        *of_attempt.entry(text(&job["attempt"])).or_default() += 1;
        let end = job["ended_at"].as_str().unwrap_or("9999").to_owned();
        of_trial
            .entry(text(&job["trial"]))
            .or_default()
            .push((text(&job["created_at"]), end));
    }
    verdict.duplicates +=
        u32::try_from(of_attempt.values().filter(|count| **count > 1).count()).unwrap_or(u32::MAX);
    for (trial, mut lives) in of_trial {
        lives.sort();
        let overlaps = lives
            .windows(2)
            .filter(|pair| matches!(pair, [first, second] if second.0 < first.1))
            .count();
        if overlaps > 0 {
            verdict
                .notes
                .push(format!("{trial} had two jobs at a time: {lives:?}"));
        }
        verdict.duplicates += u32::try_from(overlaps).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_counts_whole_while_everyone_is_frozen() {
        let at = |second| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let frozen = |pid, from, to| Freeze {
            pid,
            from: at(from),
            to: at(to),
        };
        let freezes = [frozen(1, 0, 40), frozen(2, 1, 30), frozen(2, 35, 50)];
        assert_eq!(all_frozen(&freezes, 2), [(at(1), at(30)), (at(35), at(40))]);
        assert_eq!(all_frozen(&freezes, 3), []);
        assert_eq!(all_frozen(&[], 2), []);
    }

    #[test]
    fn overlapping_spans_count_once() {
        let at = |second| DateTime::from_timestamp(second, 0).unwrap_or_default();
        let spans = [(0, 4), (2, 6), (3, 5), (9, 30)].map(|(from, to)| (at(from), at(to)));
        assert_eq!(covered(&spans, at(1), at(11)), TimeDelta::seconds(5 + 2));
        assert_eq!(covered(&spans, at(6), at(9)), TimeDelta::zero());
        assert_eq!(covered(&[], at(6), at(9)), TimeDelta::zero());
    }
}
