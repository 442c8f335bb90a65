//! The verdict on a seed, based on the region's own record: what it ran, for whom, and what it
//! bills. The service is asked only for its own view, which is compared with that record.

mod alarms;
mod at_rest;
pub(super) mod booked;
mod counts;
mod recoveries;

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use self::booked::{Booked, micro, text};
use super::client::Client;
use super::course::Ground;
use super::hooks::Hooks;
use super::pipelines;
use super::plan::{Kind, Plan};
use super::specs::Accepted;
use super::stage::{ACCOUNT, STRANGERS, Stage};
use super::statuses::ReportedStatuses;
use bakeoff_demo::http::{get, pages};

/// Small enough to need several pages.
const PAGE: u32 = 25;

/// How close to a change of credentials a create may land in the wrong account. A create may be in
/// flight at that moment: the region checks the account when it answers, AWS when a call is signed.
/// Covers half a lease since the account was confirmed, a call, and the delays of a busy machine.
const FOREIGN_UNSEEN: Duration = Duration::from_secs(3);

/// A pool that expires after this many listings have shown it idle was neglected; after fewer, the
/// service was late. Two listings are enough to end it, and nine fit into the time it is kept.
const POOL_LISTINGS_MAX: u64 = 6;

/// A cancel must reach the jobs within this real time, whatever fails meanwhile.
const CANCEL_MAX: TimeDelta = TimeDelta::seconds(30);

/// What the service logs for a panicked tick, and Rust for a panicked thread.
const PANICKED: &str = "panicked";

/// Prefixes of the reasons of trials that a race stopped, or did not start.
const OUT_OF_THE_RACE: [&str; 3] = [
    "its full run is the best with P <",
    "measured: ",
    "not started: ",
];
/// Prefix of an attempt's failure reason when SageMaker no longer knows its job.
const VANISHED: &str = "the job vanished";

/// Maximum difference between a bill and its ledger, millionths of a dollar: each line is rounded.
const ROUNDING: i64 = 100;
/// The same where a price changes, because that second may be billed at either price.
const CENT: i64 = 10_000;

/// CloudWatch's price for one metric read, millionths of a dollar.
const METRIC_MICRO_USD: i64 = 10;
/// What one read of a job requests: the job's own metric, and those of each of its hosts.
const METRICS_OF_A_JOB: u64 = 1;
const METRICS_OF_A_HOST: u64 = 5;
/// An hour of the endpoints here, millionths of a dollar.
const ESTIMATE: i64 = 1_500_000;

/// What went wrong, by kind; all zero when nothing did.
#[derive(Debug, Default, Clone)]
pub(super) struct Verdict {
    pub(super) attempts: u64,
    pub(super) jobs: u64,
    /// Attempts with more than one job, and trials with two jobs at a time.
    pub(super) duplicates: u32,
    /// Accepted experiments and trials that did not end.
    pub(super) lost: u32,
    /// Jobs still running, jobs without a row, and jobs booked differently from the region's bill.
    pub(super) orphans: u32,
    pub(super) over_budget: u32,
    /// Orphans and pools that waiting cannot fix: without a row, or left to expire.
    pub(super) wrong: u32,
    /// Pools that are still idle, or expired by themselves.
    pub(super) pools_leaked: u32,
    /// Jobs that a cancel did not reach in time.
    pub(super) unstopped: u32,
    /// Trials whose points differ from CloudWatch's, and jobs whose metrics are booked differently
    /// from what was read.
    pub(super) metrics_wrong: u32,
    /// Other people's jobs that were stopped, our jobs in another account, and replicas that came up
    /// under a schema newer than theirs.
    pub(super) trespasses: u32,
    /// Replicas that had not noticed a newer schema in time.
    pub(super) unnoticed: u32,
    /// Transactions that were left open, and their rows locked.
    pub(super) left_open: u32,
    /// Panics of the service.
    pub(super) panics: u32,
    /// Trials whose statuses went backwards.
    pub(super) backwards: u32,
    /// Models that are not in the registry as the service believes, or are there twice, or without a row.
    pub(super) packages_wrong: u32,
    /// Endpoints that serve what they should not.
    pub(super) endpoints_wrong: u32,
    /// Events that a reader of the feed has missed, or read twice.
    pub(super) feed_wrong: u32,
    /// Endpoints that are still there, and models and configurations of endpoints that are not.
    pub(super) endpoints_leaked: u32,
    /// Events that have not arrived at the webhook endpoint, or under several ids.
    pub(super) webhooks_wrong: u32,
    /// Alarms of which the region knows nothing.
    pub(super) false_alarms: u32,
    /// Commits with another number of runs than one, and runs without a verdict.
    pub(super) ci_wrong: u32,
    /// Jobs that should have raised an alarm.
    pub(super) missing_alarms: u32,
    /// Pipelines that are over and whose steps or money do not fit.
    pub(super) pipelines_wrong: u32,
    /// Seconds from a cancel, or from the job's creation if that came later, to its stop request.
    pub(super) cancels: Vec<f64>,
    /// Reservations refused because they did not fit a budget.
    pub(super) refused_reservations: u64,
    /// Trials that were stopped because they could not win any more.
    pub(super) raced: u64,
    /// Points compared with CloudWatch's.
    pub(super) points: u64,
    /// Models in the region's registry.
    pub(super) packages: u64,
    /// Steps of pipelines that have completed.
    pub(super) steps: u64,
    /// Events that have arrived at the webhook endpoint.
    pub(super) webhooks: u64,
    pub(super) jobs_by_kind: BTreeMap<String, u64>,
    pub(super) pools_reused: u64,
    pub(super) reclaimed: u64,
    /// Runs of CI, deliveries that told of them, and forgeries that were refused.
    pub(super) ci_runs: u64,
    pub(super) ci_deliveries: u64,
    pub(super) forgeries_refused: u64,
    /// Endpoints whose life was extended, that were deleted by hand, and whose extension a pipeline's budget refused.
    pub(super) extensions: u64,
    pub(super) deletions: u64,
    pub(super) refused_extensions: u64,
    /// Pipelines whose budget did not hold all of their steps.
    pub(super) pipelines_bound: u64,
    /// Alarms of jobs compared with what the region says of them.
    pub(super) alarms_judged: u64,
    pub(super) faults: BTreeMap<String, u64>,
    /// Real seconds from a `kill -9` to the takeover of what the process held, while Postgres was
    /// up.
    pub(super) recoveries: Vec<f64>,
    /// The same for replicas that froze within a transaction, or for good.
    pub(super) thaws: Vec<f64>,
    pub(super) notes: Vec<String>,
    /// Something had not ended when the wait was over, or a pool expired before it was noticed.
    pub(super) is_late: bool,
    /// The seed was late the first time, and this is its second verdict.
    pub(super) is_played_again: bool,
}

impl Verdict {
    pub(super) fn holds(&self) -> bool {
        self.duplicates + self.over_budget + self.trespasses + self.panics + self.backwards == 0
            && self.lost + self.orphans + self.pools_leaked + self.unstopped == 0
            && self.metrics_wrong + self.unnoticed + self.left_open == 0
            && self.packages_wrong + self.pipelines_wrong + self.endpoints_leaked == 0
            && self.endpoints_wrong + self.feed_wrong == 0
            && self.ci_wrong + self.webhooks_wrong + self.false_alarms + self.missing_alarms == 0
    }

    /// Nothing is wrong except that it is not over: what still runs, waits or is owed is not lost
    /// yet.
    pub(super) fn is_only_late(&self) -> bool {
        let is_harmed = self.duplicates + self.over_budget + self.wrong + self.trespasses > 0
            || self.left_open + self.metrics_wrong + self.panics + self.backwards > 0
            || self.packages_wrong + self.pipelines_wrong + self.endpoints_leaked > 0
            || self.endpoints_wrong + self.feed_wrong > 0
            || self.ci_wrong + self.webhooks_wrong + self.false_alarms + self.missing_alarms > 0;
        self.is_late && !is_harmed
    }
}

/// The service's view of one experiment.
#[derive(Default)]
struct ServiceExperiment {
    attempts: BTreeMap<String, Booked>,
    open_trials: u32,
    raced: u64,
    takeovers: Vec<recoveries::Takeover>,
    /// Trials whose statuses went backwards.
    backwards: Vec<String>,
    reclaimed: u64,
}

/// The region's own record of a seed.
struct Record {
    /// Our jobs, in our account.
    jobs: Vec<Value>,
    /// Our jobs that were created in another account, because the credentials changed between the
    /// confirmation of the account and the create. They cannot be found again.
    elsewhere: Vec<Value>,
    /// Other people's jobs.
    strangers: Vec<Value>,
    faults: BTreeMap<String, u64>,
    /// Models and endpoint configurations that are there.
    parts: u64,
}

impl Record {
    fn read(stage: &Stage) -> Result<Self, String> {
        let record = get(&format!("{}/_sim/record", stage.region_url), "")?;
        let all = record["jobs"].as_array().cloned().unwrap_or_default();
        let is_strangers = |job: &Value| {
            job["name"]
                .as_str()
                .is_some_and(|name| name.starts_with(STRANGERS))
        };
        let (strangers, jobs): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_strangers);
        let (jobs, elsewhere) = jobs.into_iter().partition(|job| job["account"] == ACCOUNT);
        let faults = record["faults"].as_object().into_iter().flatten();
        Ok(Self {
            jobs,
            elsewhere,
            strangers,
            parts: record["models_and_configs"].as_u64().unwrap_or(0),
            faults: faults
                .map(|(kind, count)| (kind.clone(), count.as_u64().unwrap_or(0)))
                .collect(),
        })
    }
}

pub(super) fn judge(
    stage: &Stage,
    ground: &Ground,
    plan: &Plan,
    client: &Client,
    is_over: bool,
) -> Result<Verdict, String> {
    let record = Record::read(stage)?;
    let jobs = &record.jobs;
    let mut verdict = Verdict {
        jobs: jobs.len().try_into().unwrap_or(0),
        ..Verdict::default()
    };
    count_seen(stage, client, &mut verdict);
    let url = stage.urls().into_iter().next().ok_or("no replica is up")?;
    let mut booked = count_steps(&url, &stage.api_key)?;
    let (of_others, endpoints_usd) = count_others(stage, &url, client, &mut verdict)?;
    booked.extend(of_others);
    for (index, experiment) in client.accepted.iter().enumerate() {
        let believed = believed(&url, &stage.api_key, index, &experiment.id)?;
        if !plan.is_clock_off {
            recoveries::count(stage, ground, &believed.takeovers, &mut verdict);
        }
        booked.extend(count_believed(believed, &mut verdict));
    }
    verdict.jobs_by_kind = pipelines::by_kind(jobs);
    verdict.attempts = booked.len().try_into().unwrap_or(0);
    if !is_over {
        verdict.lost += 1;
        verdict
            .notes
            .push("not everything ended in time".to_owned());
    }
    counts::duplicates(jobs, &mut verdict);
    count_orphans(jobs, &booked, plan, &mut verdict);
    if is_over {
        at_rest::count(stage, &url, plan, client, endpoints_usd, &mut verdict)?;
        at_rest::endpoints(&record, &booked, &mut verdict);
        // A clock that is off makes estimates of its own.
        if !plan.is_clock_off {
            let is_restored = plan.twin == Some(Kind::Backup);
            alarms::count(
                &url,
                &stage.api_key,
                jobs,
                &booked,
                is_restored,
                &mut verdict,
            )?;
        }
    }
    count_money(jobs, &booked, &client.accepted, &mut verdict);
    count_conduct(stage, ground, plan, client, &record, &booked, &mut verdict);
    counts::left_open(stage, ground, &mut verdict);
    count_panics(stage, &mut verdict);
    // At a pace where hours pass in seconds, a read that fails for seconds is given up. Credentials
    // may change back between a read and the check of the account. What was read before a backup
    // was restored is booked nowhere.
    let is_told_all = stage.foreign_from.is_empty() && plan.twin != Some(Kind::Backup);
    if is_over && !plan.is_quiet && is_told_all {
        counts::points(stage, &url, jobs, &booked, &mut verdict)?;
        counts::metrics(stage, ground, jobs, &booked, &mut verdict);
    }
    count_faults(stage, record.faults, &mut verdict);
    Ok(verdict)
}

/// Counts what the service did to jobs and pools, its own and others'.
fn count_conduct(
    stage: &Stage,
    ground: &Ground,
    plan: &Plan,
    client: &Client,
    record: &Record,
    booked: &BTreeMap<String, Booked>,
    verdict: &mut Verdict,
) {
    let jobs = &record.jobs;
    counts::pools(stage, ground, jobs, verdict);
    counts::cancels(stage, ground, jobs, booked, client, verdict);
    counts::trespasses(stage, &record.strangers, &record.elsewhere, verdict);
    // To a restored backup, a job it does not know was never created; and times mean nothing when a
    // clock is off.
    if plan.twin != Some(Kind::Backup) && !plan.is_clock_off {
        counts::given_up(stage, jobs, booked, verdict);
    }
    if plan.twin == Some(Kind::Copy) {
        counts::unasked_stops(jobs, booked, client, verdict);
    }
}

/// Counts endpoints and the other project; returns what is booked for their jobs, and what the endpoints have cost.
fn count_others(
    stage: &Stage,
    url: &str,
    client: &Client,
    verdict: &mut Verdict,
) -> Result<(BTreeMap<String, Booked>, i64), String> {
    let endpoints = client.endpoints.believed(url, &stage.api_key, micro)?;
    let (mut booked, wrong) = client.neighbour.believed(stage, url)?;
    booked.extend(endpoints.booked);
    verdict.trespasses += u32::try_from(wrong.len()).unwrap_or(u32::MAX);
    verdict.endpoints_wrong = endpoints.wrong.len().try_into().unwrap_or(u32::MAX);
    verdict
        .notes
        .extend(wrong.into_iter().chain(endpoints.wrong));
    for (what, count) in [
        ("endpoint_failed", endpoints.failed),
        ("endpoint_rolled_back", endpoints.rolled_back),
    ] {
        verdict.faults.insert(what.to_owned(), count);
    }
    Ok((booked, endpoints.settled))
}

/// What is booked for the jobs of pipelines' steps.
fn count_steps(url: &str, key: &str) -> Result<BTreeMap<String, Booked>, String> {
    let mut booked = BTreeMap::new();
    for (id, entries) in pipelines::believed(url, key, micro)?.entries {
        let mut own = Booked::of_step();
        for entry in &entries {
            own.add(entry);
        }
        booked.insert(id, own);
    }
    Ok(booked)
}

/// Adds the faults of the region and those injected into the processes.
fn count_faults(stage: &Stage, faults: BTreeMap<String, u64>, verdict: &mut Verdict) {
    let injected = stage
        .injected
        .iter()
        .map(|(kind, count)| ((*kind).to_owned(), *count));
    for (kind, count) in faults.into_iter().chain(injected) {
        *verdict.faults.entry(kind).or_default() += count;
    }
}

/// Counts an experiment; returns its attempts, to be compared with the region's record.
fn count_believed(believed: ServiceExperiment, verdict: &mut Verdict) -> BTreeMap<String, Booked> {
    verdict.lost += believed.open_trials;
    verdict.raced += believed.raced;
    verdict.reclaimed += believed.reclaimed;
    verdict.backwards += u32::try_from(believed.backwards.len()).unwrap_or(u32::MAX);
    verdict.notes.extend(believed.backwards);
    believed.attempts
}

/// Counts what was observed during the storm.
fn count_seen(stage: &Stage, client: &Client, verdict: &mut Verdict) {
    verdict.over_budget = client.overdrawn + client.endpoints.overdrawn;
    verdict.ci_deliveries = client.ci.deliveries;
    verdict.forgeries_refused = client.ci.refused;
    verdict.extensions = client.endpoints.extensions;
    verdict.deletions = client.endpoints.deletions;
    verdict.refused_extensions = client.endpoints.refused;
    let changes = client.control.done.iter().map(|change| (*change, 1));
    let others = [
        ("endpoint_deleted_early", client.endpoints.early_deletions),
        ("webhook_later", client.hooks.put_off()),
        ("feed_resumed", client.feed.resumed()),
    ];
    for (what, count) in changes.chain(others) {
        verdict.faults.insert(what.to_owned(), count);
    }
    (verdict.trespasses, verdict.unnoticed) = (stage.came_up + client.ci.taken, stage.unnoticed);
    if stage.came_up > 0 {
        verdict
            .notes
            .push("a replica came up under a newer schema".to_owned());
    }
    if stage.unnoticed > 0 {
        verdict.is_late = true;
        verdict.notes.push(format!(
            "{} replicas did not notice a newer schema in time",
            stage.unnoticed
        ));
    }
    if client.overdrawn > 0 {
        verdict.notes.push(format!(
            "more was reserved and spent than a budget holds, in {} looks at it",
            client.overdrawn
        ));
    }
}

/// Runs after the judge's own requests, because they may cause a panic too.
fn count_panics(stage: &Stage, verdict: &mut Verdict) {
    let panics = stage.count_in_logs(PANICKED);
    if panics > 0 {
        verdict.panics = panics.try_into().unwrap_or(u32::MAX);
        verdict.notes.push(format!("{panics} panics in the logs"));
    }
}

/// Reads the service's view; `experiment` is its index among the accepted ones.
fn believed(
    url: &str,
    key: &str,
    experiment: usize,
    id: &str,
) -> Result<ServiceExperiment, String> {
    let base = format!("{url}/v1/experiments/{id}");
    let mut believed = ServiceExperiment::default();
    let mut made = BTreeMap::new();
    for trial in pages(&format!("{base}/trials"), key)? {
        let is_open = ["queued", "submitting", "parked", "running", "stopping"]
            .iter()
            .any(|state| trial["state"] == *state);
        believed.open_trials += u32::from(is_open);
        let reason = text(&trial["reason"]);
        let is_out = OUT_OF_THE_RACE.iter().any(|why| reason.starts_with(why));
        believed.raced += u64::from(is_out);
        let attempts = trial["attempts"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        made.insert(text(&trial["id"]), attempts.len());
        for attempt in attempts {
            let booked = Booked {
                experiment,
                ended_at: text(&attempt["ended_at"]).parse().ok(),
                given_up_at: given_up_at(attempt),
                ..Booked::default()
            };
            believed.attempts.insert(text(&attempt["id"]), booked);
        }
    }
    for entry in pages(&format!("{base}/ledger?page_size={PAGE}"), key)? {
        if let Some(booked) = believed.attempts.get_mut(&text(&entry["job_id"])) {
            booked.add(&entry);
        }
    }
    let mut told = ReportedStatuses::default();
    for event in pages(&format!("{base}/events?page_size={PAGE}"), key)? {
        told.hear(&event);
        believed.reclaimed += u64::from(event["kind"] == "trial.orphaned_job");
        if event["kind"] == "trial.taken_over" {
            believed.takeovers.extend(recoveries::takeover(&event));
        }
    }
    believed.backwards = told.backwards(&made);
    Ok(believed)
}

/// Whether a ledger entry is spending: a reservation is not, nor its release.
fn is_paid(entry: &Value) -> bool {
    entry["kind"] == "settled" || entry["kind"] == "adjusted"
}

/// When the service gave up on an attempt's job: none was created, or it no longer exists.
fn given_up_at(attempt: &Value) -> Option<DateTime<Utc>> {
    let has_vanished = attempt["failure_reason"]
        .as_str()
        .is_some_and(|why| why.starts_with(VANISHED));
    (has_vanished || attempt["state"] == "never_created")
        .then(|| text(&attempt["ended_at"]).parse().ok())
        .flatten()
}

fn count_orphans(
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    plan: &Plan,
    verdict: &mut Verdict,
) {
    let tolerance = if plan.is_quiet { CENT } else { ROUNDING };
    for job in jobs {
        let known = booked.get(&text(&job["attempt"]));
        if job["ended_at"].is_null() {
            verdict.orphans += 1;
            verdict.notes.push(format!("{} runs on", job["name"]));
        } else if let Some(ours) = known {
            let bill = billed(job);
            // Nobody tells when an endpoint was deleted: if it was gone before anybody looked, it is booked until
            // its deletion was asked for, and says that it is an estimate: by the service's own clock, which says
            // nothing if it is hours off.
            let is_bounded = job["kind"] == "endpoint"
                && ours.is_estimated
                && (plan.is_clock_off || (ours.usd - bill).abs() <= ESTIMATE);
            if (bill - ours.usd).abs() > tolerance && !is_bounded {
                verdict.orphans += 1;
                verdict.notes.push(format!(
                    "{} is billed {bill} and booked {} (millionths of a dollar): {job}; {}",
                    job["name"],
                    ours.usd,
                    ours.entries.join("; ")
                ));
            }
        } else {
            verdict.orphans += 1;
            verdict.wrong += 1;
            verdict.notes.push(format!("{} has no row", job["name"]));
        }
    }
}

/// Everything a job costs, millionths of a dollar: itself, its pool, and the volumes of both.
fn billed(job: &Value) -> i64 {
    let parts = [
        "micro_usd",
        "pool_micro_usd",
        "storage_micro_usd",
        "pool_storage_micro_usd",
    ];
    parts.iter().filter_map(|part| job[*part].as_i64()).sum()
}

fn count_money(
    jobs: &[Value],
    booked: &BTreeMap<String, Booked>,
    accepted: &[Accepted],
    verdict: &mut Verdict,
) {
    for (index, experiment) in accepted.iter().enumerate() {
        let is_own = |job: &&Value| {
            booked
                .get(&text(&job["attempt"]))
                .is_some_and(|own| own.experiment == index)
        };
        let spent: i64 = jobs.iter().filter(is_own).map(billed).sum();
        if spent > micro(experiment.budget_usd) {
            verdict.over_budget += 1;
            verdict.notes.push(format!(
                "{} spent {spent} of {}",
                experiment.id, experiment.budget_usd
            ));
        }
    }
}
