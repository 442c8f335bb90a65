//! The course of one seed: set the stage, submit, let it storm, calm it, wait for the end, judge.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rand::Rng;
use serde_json::{Value, json};

use super::client::{self, Client, TURN_MAX};
use super::database::{Database, LeftOpen};
use super::plan::{Blow, Kind, Plan, STORM_MILLIS};
use super::stage::{LEASE_SECONDS, Place, Stage};
use super::twin::{self, Twin};
use super::verdict::{self, Verdict};
use bakeoff_demo::http::{get, pages, post};

/// After the storm, something must change within this many listings. Listings follow the service's
/// own pace: on a slow machine they are as slow as what results from them.
const LISTINGS_WITHOUT_CHANGE_MAX: i64 = 60;
/// And within this time: longer than a spot job may wait for instances at the quiet pace (20 hours),
/// and than the service needs to give up work that never returns.
const STILL_MAX: Duration = Duration::from_secs(50);
/// The seed is at rest once this many listings have shown nothing new.
const LISTINGS_AT_REST: i64 = 2;
/// When the region receives no calls at all for this long, no replica is alive any more.
const SILENCE_MAX: Duration = Duration::from_mins(2);
/// Limit for everything: beyond it, the seed is going in circles.
const STORY_MAX: Duration = Duration::from_mins(20);
const TICK: Duration = Duration::from_millis(50);
/// After the storm, a replica that freezes at a named point is continued after this time.
const SHORT_FREEZE: Duration = Duration::from_millis(100);

/// Where the seeds' folders and databases are.
pub(super) struct Ground {
    pub(super) folder: PathBuf,
    pub(super) cluster_url: Box<dyn Fn(&str) -> String + Send + Sync>,
    pub(super) cluster_port: u16,
    /// When Postgres was down.
    pub(super) outages: Mutex<Vec<(SystemTime, SystemTime)>>,
    /// Transactions that were left open.
    pub(super) left_open: Mutex<Vec<LeftOpen>>,
    /// Needed to simulate migrations by a newer program and to see what sessions hold; without it
    /// there are none, and nothing is seen.
    pub(super) psql: Option<PathBuf>,
    /// Where our programs are, by name.
    pub(super) program: fn(&str) -> PathBuf,
    /// Whether one of three replicas freezes for good in every seed.
    pub(super) is_one_frozen: bool,
}

impl Ground {
    pub(super) fn database(&self, name: &str) -> Database {
        Database {
            url: (self.cluster_url)(name),
            port: self.cluster_port,
            psql: self.psql.clone(),
        }
    }
}

/// Plays and judges a seed. `played` is how often it has been played before.
pub(super) fn run(ground: &Ground, seed: u64, played: u32) -> Result<Verdict, String> {
    let mut plan = Plan::draw(seed, ground.is_one_frozen);
    let again = if played == 0 {
        String::new()
    } else {
        format!("_{played}")
    };
    let folder = ground.folder.join(format!("seed-{seed}{again}"));
    let database = ground.database(&format!("storm_{seed}{again}"));
    let place = Place {
        folder: folder.clone(),
        program: ground.program,
    };
    let mut stage = Stage::set(place, &plan, database, seed)?;
    let mut client = Client::new(&plan, &stage)?;
    let mut twin = plan.twin.map(Twin::new);
    let load = plan.has_load.then(|| Load::start(&stage));
    storm(&mut stage, &mut plan, &mut client)?;
    if ground.is_one_frozen {
        lose_somebody(&mut stage)?;
    }
    let is_deaf = !plan.is_quiet && !goes_on_after_a_step_back(&mut stage)?;
    stage.calm()?;
    client.hooks.calm();
    post(&format!("{}/_sim/faults", stage.region_url), "", &json!({}))?;
    let answered = load.map_or(0, Load::stop);
    let end = settle(&mut stage, &mut client, twin.as_mut())?;
    let is_over = end == End::Over;
    let mut verdict = patiently(|| verdict::judge(&stage, ground, &plan, &client, is_over))?;
    if is_over && plan.twin == Some(Kind::Copy) && stage.count_in_logs(twin::MET) == 0 {
        return Err("the copy never met its original".to_owned());
    }
    verdict.faults.insert("http_load".to_owned(), answered);
    verdict.faults.insert(
        "cancel".to_owned(),
        client.cancels.len().try_into().unwrap_or_default(),
    );
    verdict.refused_reservations = stage.count_in_logs(REFUSED);
    verdict.is_late |= !is_over;
    verdict.notes.extend(why_not_over(end, &stage, &mut client));
    verdict.wrong += u32::from(end == End::Stuck);
    if is_deaf {
        verdict.unstopped += 1;
        verdict.wrong += 1;
        verdict
            .notes
            .push("after its clock was set back, a replica listed no jobs any more".to_owned());
    }
    verdict
        .faults
        .insert("clock_set_back".to_owned(), stage.count_in_logs(SET_BACK));
    stage.strike();
    if verdict.holds() {
        drop(std::fs::remove_dir_all(folder));
    }
    Ok(verdict)
}

/// Why a seed did not come to its end.
fn why_not_over(end: End, stage: &Stage, client: &mut Client) -> Vec<String> {
    let mut notes = Vec::new();
    if end == End::Stuck {
        notes.push(format!(
            "nothing has changed in {LISTINGS_WITHOUT_CHANGE_MAX} listings, and something is not over"
        ));
    }
    if end != End::Over {
        let open = client.unfinished(stage);
        notes.push(format!(
            "not over: {open}; the last errors were {:?} of CI, {:?} of pipelines and {:?} of changes",
            client.ci.error, client.pipelines.error, client.control.error
        ));
    }
    notes
}

/// What the service logs when its clock is set back at a named point.
const SET_BACK: &str = "the clock is set back, as asked";
/// A service that waits for the old time would wait much longer.
const DEAF_MAX: Duration = Duration::from_secs(90);
/// More listings than a replica may still send at once from what was left before.
const LISTINGS_AFTER_A_STEP_BACK: i64 = 4;

/// False when the only replica, whose clock was set back, no longer lists jobs.
fn goes_on_after_a_step_back(stage: &mut Stage) -> Result<bool, String> {
    let Some(pid) = stage
        .set_back_pid()
        .filter(|_| stage.count_in_logs(SET_BACK) > 0)
    else {
        return Ok(true);
    };
    let listings = |stage: &Stage| -> Result<i64, String> {
        let record = get(&format!("{}/_sim/record", stage.region_url), "")?;
        Ok(record["calls"]["ListTrainingJobs"]
            .as_i64()
            .unwrap_or_default())
    };
    let (begun, before) = (Instant::now(), listings(stage)?);
    while begun.elapsed() < DEAF_MAX {
        stage.tend(SHORT_FREEZE)?;
        // A different process says nothing about that one.
        if stage.set_back_pid() != Some(pid)
            || listings(stage)? >= before + LISTINGS_AFTER_A_STEP_BACK
        {
            return Ok(true);
        }
        std::thread::sleep(TICK);
    }
    Ok(false)
}

/// Freezes a replica for good. Under a newer schema, none may be running for a while.
fn lose_somebody(stage: &mut Stage) -> Result<(), String> {
    let begun = Instant::now();
    while begun.elapsed() < SILENCE_MAX {
        stage.tend(SHORT_FREEZE)?;
        if (0..stage.replicas.len()).any(|index| stage.lose_replica(index)) {
            return Ok(());
        }
        std::thread::sleep(TICK);
    }
    Err("nobody could be frozen for good".to_owned())
}

/// What the service logs when a reservation does not fit its budget.
const REFUSED: &str = "a reservation does not fit its budget";

/// Background requests, on their own thread.
struct Load {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Load {
    fn start(stage: &Stage) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (urls, key, over) = (stage.all_urls(), stage.api_key.clone(), is_over.clone());
        let thread = std::thread::spawn(move || client::load(&urls, &key, &over));
        Self {
            is_over,
            thread: Some(thread),
        }
    }

    /// Stops the load; returns how many requests were answered.
    fn stop(mut self) -> u64 {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

impl Drop for Load {
    /// A seed that ends early sends no more requests.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Retries, because Postgres may be down at any moment, even during the verdict.
fn patiently<T>(ask: impl Fn() -> Result<T, String>) -> Result<T, String> {
    for _ in 0..240 {
        if let Ok(answer) = ask() {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    ask()
}

fn storm(stage: &mut Stage, plan: &mut Plan, client: &mut Client) -> Result<(), String> {
    let begun = Instant::now();
    let mut injected = plan.injected.clone().into_iter().peekable();
    // A little longer than the lease, or longer than a quarantine.
    let freeze = Duration::from_millis(plan.dice.random_range(1200..6000)) * LEASE_SECONDS;
    let (mut looked, mut moved) = (Instant::now(), (0, Instant::now()));
    while begun.elapsed() < Duration::from_millis(STORM_MILLIS) || !client.is_done() {
        if client.accepted.len() > moved.0 {
            moved = (client.accepted.len(), Instant::now());
        }
        if moved.1.elapsed() > SILENCE_MAX {
            return Err(format!(
                "the service did not take the submissions: {}",
                client.error
            ));
        }
        if stage.tend(freeze)? && plan.cancels_what_freezes {
            client.cancel_all(stage);
        }
        while let Some((_, blow)) =
            injected.next_if(|(at, _)| Duration::from_millis(*at) <= begun.elapsed())
        {
            let victim = plan.dice.random_range(0..plan.replicas);
            match blow {
                Blow::Kill => stage.kill_replica(victim, 0),
                Blow::Away => stage.go_away(),
                Blow::Freeze => stage.freeze_replica(victim, freeze),
                Blow::FreezeForGood => drop(stage.lose_replica(victim)),
                Blow::CutConnections => stage.cut_connections(),
                Blow::SilenceConnections => stage.silence_connections(),
                // The first account it sees becomes the installation's.
                Blow::ForeignCredentials if client.accepted.is_empty() => {}
                Blow::ForeignCredentials => stage.use_foreign_credentials(),
                Blow::Upgrade => stage.upgrade(),
                Blow::StrangersJob => stage.start_strangers_job(),
                Blow::ClockJump(seconds) => stage.kill_replica(victim, seconds),
                Blow::Cancel => client.cancel(stage, plan.dice.random_range(0..4)),
            }
        }
        if looked.elapsed() > Duration::from_millis(400) {
            client.work(stage);
            if begun.elapsed() > Duration::from_millis(STORM_MILLIS) / 2 {
                client.follow_prices(stage);
                if plan.twin.is_none() && client.has_followed_prices() {
                    client.cancel_long_one(stage);
                }
            }
            looked = Instant::now();
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// How waiting for the end turned out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Over,
    /// The service keeps listing without any effect, which is not the machine's fault.
    Stuck,
    /// It did not end, in listings or in time.
    Late,
}

/// Waits until every experiment has ended and the region is quiet, or waiting is useless.
fn settle(
    stage: &mut Stage,
    client: &mut Client,
    mut twin: Option<&mut Twin>,
) -> Result<End, String> {
    let mut progress = Progress::new();
    while progress.goes_on() {
        stage.tend(SHORT_FREEZE)?;
        std::thread::sleep(Duration::from_millis(500));
        do_what_is_left(stage, client, twin.as_deref_mut())?;
        stage.tend(SHORT_FREEZE)?;
        let record = get(&format!("{}/_sim/record", stage.region_url), "")?;
        let Some(url) = stage.urls().into_iter().next() else {
            continue;
        };
        let Ok(items) = pages(&format!("{url}/v1/experiments"), &stage.api_key) else {
            continue;
        };
        let is_over = items.len() == client.accepted.len()
            && items.iter().all(|one| !one["ended_at"].is_null());
        let is_told =
            twin.as_ref().is_none_or(|twin| twin.is_played) && client.has_followed_prices();
        progress.look(&items, &record);
        // What was found last is settled a little later.
        if is_over && is_told && is_quiet(&record) && progress.has_come_to_rest() {
            stage.tend(SHORT_FREEZE)?;
            if client.unfinished(stage).is_empty() {
                return Ok(End::Over);
            }
        }
        stage.tend(SHORT_FREEZE)?;
        resume_parked(stage, &url, &items);
    }
    Ok(if progress.is_stuck() {
        End::Stuck
    } else {
        End::Late
    })
}

/// Goes on with what the storm left over. The long experiment is cancelled only once the twin has
/// played.
fn do_what_is_left(
    stage: &mut Stage,
    client: &mut Client,
    twin: Option<&mut Twin>,
) -> Result<(), String> {
    client.work(stage);
    stage.tend(SHORT_FREEZE)?;
    client.follow_prices(stage);
    stage.tend(SHORT_FREEZE)?;
    if let Some(twin) = twin.filter(|twin| !twin.is_played) {
        if client.is_done() {
            twin.follow(stage)?;
        }
    } else if client.has_followed_prices() {
        client.cancel_long_one(stage);
    }
    Ok(())
}

/// What has changed in a seed since the last poll. Seconds alone say nothing, because machines are
/// slow and shared.
struct Progress {
    begun: Instant,
    /// Statuses and sums, of the service and of the region.
    state: Value,
    listings_at_change: i64,
    changed_at: Instant,
    /// Calls that the region has served.
    calls: Value,
    called_at: Instant,
    listings: i64,
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            state: Value::Null,
            listings_at_change: 0,
            changed_at: now,
            calls: Value::Null,
            called_at: now,
            listings: 0,
        }
    }

    fn look(&mut self, experiments: &[Value], record: &Value) {
        let of = |all: &[Value], keys: &[&str]| -> Vec<Value> {
            all.iter()
                .map(|one| keys.iter().map(|key| one[*key].clone()).collect())
                .collect()
        };
        let jobs = record["jobs"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let state = json!([
            of(
                experiments,
                &[
                    "state",
                    "ended_at",
                    "paused_reason",
                    "reserved_usd",
                    "settled_usd"
                ]
            ),
            of(jobs, &["status", "ended_at", "idle_pool"]),
        ]);
        self.listings = record["calls"]["ListTrainingJobs"].as_i64().unwrap_or(0);
        if state != self.state {
            (self.state, self.listings_at_change) = (state, self.listings);
            self.changed_at = Instant::now();
        }
        if record["calls"] != self.calls {
            (self.calls, self.called_at) = (record["calls"].clone(), Instant::now());
        }
    }

    fn has_come_to_rest(&self) -> bool {
        self.listings - self.listings_at_change >= LISTINGS_AT_REST
    }

    fn is_stuck(&self) -> bool {
        self.listings - self.listings_at_change > LISTINGS_WITHOUT_CHANGE_MAX
            && self.changed_at.elapsed() > STILL_MAX
    }

    fn goes_on(&self) -> bool {
        !self.is_stuck()
            && self.called_at.elapsed() <= SILENCE_MAX
            && self.begun.elapsed() <= STORY_MAX
    }
}

/// A person would read the reason and act; here the trials are only resumed.
fn resume_parked(stage: &Stage, url: &str, experiments: &[Value]) {
    let begun = Instant::now();
    // An experiment ends without its parked trials, and goes on with them.
    for experiment in experiments {
        if begun.elapsed() > TURN_MAX {
            return;
        }
        let base = format!(
            "{url}/v1/experiments/{}",
            experiment["id"].as_str().unwrap_or_default()
        );
        let trials = pages(&format!("{base}/trials"), &stage.api_key).unwrap_or_default();
        let is_parked = trials.iter().any(|trial| trial["state"] == "parked");
        if is_parked || !experiment["paused_reason"].is_null() {
            drop(post(&format!("{base}/resume"), &stage.api_key, &json!({})));
        }
    }
}

/// Whether no job runs and no pool is idle.
fn is_quiet(record: &Value) -> bool {
    let jobs = record["jobs"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    jobs.iter()
        .all(|job| !job["ended_at"].is_null() && job["idle_pool"] == false)
}
