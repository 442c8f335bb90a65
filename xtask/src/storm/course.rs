//! The course of one seed: set the stage, submit, let it storm, calm it, wait for the end, judge.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use rand::Rng;
use serde_json::{Value, json};

use super::plan::{Blow, Plan, STORM_MILLIS};
use super::stage::{FACTOR, KEEP_ALIVE_SECONDS, LEASE_SECONDS, Stage};
use super::verdict::{self, Verdict};

/// After the storm something has to change while this many listings are served. It is the service's own pace: on a machine that
/// is slow, listings are as slow as what follows from them.
const LISTINGS_WITHOUT_CHANGE_MAX: i64 = 60;
/// Nothing at all is asked of the region for so long: nobody is there any more.
const SILENCE_MAX: Duration = Duration::from_mins(2);
/// Whatever goes on: it goes in circles.
const STORY_MAX: Duration = Duration::from_mins(20);
/// Whoever is asked may be stopped, and is to be continued in time: nobody waits for its answer longer.
const ANSWER_MAX: Duration = Duration::from_secs(4);
const TICK: Duration = Duration::from_millis(50);

/// Where the seeds' databases are.
pub(super) struct Ground {
    pub(super) folder: PathBuf,
    pub(super) cluster_url: Box<dyn Fn(&str) -> String + Send + Sync>,
    pub(super) cluster_port: u16,
    /// When Postgres was away.
    pub(super) outages: Mutex<Vec<(SystemTime, SystemTime)>>,
}

/// Experiments that the service has accepted.
pub(super) struct Accepted {
    pub(super) id: String,
    pub(super) budget_usd: f64,
}

/// `played` tells how often this seed has been played before.
pub(super) fn run(ground: &Ground, seed: u64, played: u32) -> Result<Verdict, String> {
    let mut plan = Plan::draw(seed);
    let again = if played == 0 { String::new() } else { format!("_{played}") };
    let folder = ground.folder.join(format!("seed-{seed}{again}"));
    let url = (ground.cluster_url)(&format!("storm_{seed}{again}"));
    let mut stage = Stage::set(folder.clone(), &plan, &url, ground.cluster_port, seed)?;
    let mut client = Client { accepted: Vec::new(), pending: specs(), overdrawn: 0 };
    storm(&mut stage, &mut plan, &mut client)?;
    stage.calm();
    post(&format!("{}/_sim/faults", stage.region_url), "", None, &json!({}))?;
    let is_over = settle(&mut stage, &mut client)?;
    let mut verdict = patiently(|| verdict::judge((&stage, ground), &plan, &client.accepted, is_over))?;
    verdict.over_budget += client.overdrawn;
    verdict.is_late |= !is_over;
    stage.strike();
    if verdict.holds() {
        drop(std::fs::remove_dir_all(folder));
    }
    Ok(verdict)
}

/// Postgres may be dead at any moment, also when it is asked for the verdict.
fn patiently<T>(ask: impl Fn() -> Result<T, String>) -> Result<T, String> {
    for _ in 0..240 {
        if let Ok(answer) = ask() {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    ask()
}

/// Submits, and looks at budgets on the way.
struct Client {
    accepted: Vec<Accepted>,
    pending: Vec<(String, Value)>,
    /// Looks that found more reserved and spent than the budget.
    overdrawn: u32,
}

impl Client {
    /// One try at everything that is not done yet; a key makes a repeated submission count once.
    fn work(&mut self, stage: &Stage) {
        let Some(url) = stage.urls().into_iter().next() else { return };
        self.pending.retain(|(key, spec)| {
            let Ok(answer) = post(&format!("{url}/v1/experiments"), &stage.api_key, Some(key), spec) else {
                return true;
            };
            let Some(id) = answer["id"].as_str() else { return true };
            let budget_usd = spec["budget_usd"].as_f64().unwrap_or(0.0);
            self.accepted.push(Accepted { id: id.to_owned(), budget_usd });
            false
        });
        let Ok(list) = get(&format!("{url}/v1/experiments"), &stage.api_key) else { return };
        for experiment in list["items"].as_array().into_iter().flatten() {
            let sum = |key: &str| experiment[key].as_f64().unwrap_or(0.0);
            self.overdrawn += u32::from(sum("reserved_usd") + sum("settled_usd") > sum("budget_usd") + 1e-6);
        }
    }

    fn cancel(&self, stage: &Stage, nth: usize) {
        let Some(url) = stage.urls().into_iter().next() else { return };
        if let Some(one) = self.accepted.get(nth % self.accepted.len().max(1)) {
            let path = format!("{url}/v1/experiments/{}/cancel", one.id);
            drop(post(&path, &stage.api_key, None, &json!({})));
        }
    }
}

fn storm(stage: &mut Stage, plan: &mut Plan, client: &mut Client) -> Result<(), String> {
    let begun = Instant::now();
    let mut blows = plan.blows.clone().into_iter().peekable();
    // Past the lease, by a little or by much.
    let freeze = Duration::from_millis(plan.dice.random_range(1200..2600)) * LEASE_SECONDS;
    let (mut looked, mut moved) = (Instant::now(), (0, Instant::now()));
    while begun.elapsed() < Duration::from_millis(STORM_MILLIS) || !client.pending.is_empty() {
        if client.accepted.len() > moved.0 {
            moved = (client.accepted.len(), Instant::now());
        }
        if moved.1.elapsed() > SILENCE_MAX {
            return Err("the service did not take the submissions".to_owned());
        }
        if stage.tend(freeze)? && plan.cancels_what_freezes {
            client.cancel(stage, plan.dice.random_range(0..3));
        }
        while let Some((_, blow)) = blows.next_if(|(at, _)| Duration::from_millis(*at) <= begun.elapsed()) {
            let victim = plan.dice.random_range(0..plan.replicas);
            match blow {
                Blow::Kill => stage.kill_replica(victim, 0),
                Blow::Freeze => stage.freeze_replica(victim, freeze),
                Blow::CutConnections => stage.cut_connections(),
                Blow::ClockJump(seconds) => stage.kill_replica(victim, seconds),
                Blow::Cancel => client.cancel(stage, plan.dice.random_range(0..3)),
            }
        }
        if looked.elapsed() > Duration::from_millis(400) {
            client.work(stage);
            looked = Instant::now();
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Waits until every experiment has ended and the region is quiet; false when nothing comes of waiting.
fn settle(stage: &mut Stage, client: &mut Client) -> Result<bool, String> {
    let mut progress = Progress::new();
    while progress.goes_on() {
        stage.tend(Duration::from_millis(100))?;
        std::thread::sleep(Duration::from_millis(500));
        client.work(stage);
        let record = get(&format!("{}/_sim/record", stage.region_url), "")?;
        let Some(url) = stage.urls().into_iter().next() else { continue };
        let Ok(list) = get(&format!("{url}/v1/experiments"), &stage.api_key) else { continue };
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let is_over = items.len() == client.accepted.len() && items.iter().all(|one| !one["ended_at"].is_null());
        if is_over && is_quiet(&record) {
            return Ok(true);
        }
        progress.look(&items, &record);
        resume_parked(stage, &url, &items);
    }
    Ok(false)
}

/// What has become of a seed since the last look. Seconds alone say nothing: machines are slow and shared.
struct Progress {
    begun: Instant,
    /// Statuses and sums, on both sides.
    state: Value,
    listings_at_change: i64,
    /// Calls that the region has served.
    calls: Value,
    called_at: Instant,
    listings: i64,
}

impl Progress {
    fn new() -> Self {
        let now = Instant::now();
        Self { begun: now, state: Value::Null, listings_at_change: 0, calls: Value::Null, called_at: now, listings: 0 }
    }

    fn look(&mut self, experiments: &[Value], record: &Value) {
        let of = |all: &[Value], keys: &[&str]| -> Vec<Value> {
            all.iter().map(|one| keys.iter().map(|key| one[*key].clone()).collect()).collect()
        };
        let jobs = record["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let state = json!([
            of(experiments, &["state", "ended_at", "paused_reason", "reserved_usd", "settled_usd"]),
            of(jobs, &["status", "ended_at", "idle_pool"]),
        ]);
        self.listings = record["calls"]["ListTrainingJobs"].as_i64().unwrap_or(0);
        if state != self.state {
            (self.state, self.listings_at_change) = (state, self.listings);
        }
        if record["calls"] != self.calls {
            (self.calls, self.called_at) = (record["calls"].clone(), Instant::now());
        }
    }

    fn goes_on(&self) -> bool {
        self.listings - self.listings_at_change <= LISTINGS_WITHOUT_CHANGE_MAX
            && self.called_at.elapsed() <= SILENCE_MAX
            && self.begun.elapsed() <= STORY_MAX
    }
}

/// A person reads the reason and acts; here they only resume.
fn resume_parked(stage: &Stage, url: &str, experiments: &[Value]) {
    for experiment in experiments.iter().filter(|one| one["ended_at"].is_null() && !one["paused_reason"].is_null()) {
        let path = format!("{url}/v1/experiments/{}/resume", experiment["id"].as_str().unwrap_or_default());
        drop(post(&path, &stage.api_key, None, &json!({})));
    }
}

/// No job runs and no pool waits.
fn is_quiet(record: &Value) -> bool {
    let jobs = record["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    jobs.iter().all(|job| !job["ended_at"].is_null() && job["idle_pool"] == false)
}

pub(super) fn get(url: &str, key: &str) -> Result<Value, String> {
    let mut request = agent().get(url);
    if !key.is_empty() {
        request = request.header("authorization", &format!("Bearer {key}"));
    }
    let mut answer = request.call().map_err(|error| format!("GET {url}: {error}"))?;
    answer.body_mut().with_config().limit(64 << 20).read_json().map_err(|error| format!("GET {url}: {error}"))
}

fn post(url: &str, key: &str, once: Option<&str>, body: &Value) -> Result<Value, String> {
    let mut request = agent().post(url);
    if !key.is_empty() {
        request = request.header("authorization", &format!("Bearer {key}"));
    }
    if let Some(once) = once {
        request = request.header("idempotency-key", once);
    }
    let mut answer = request.send_json(body).map_err(|error| format!("POST {url}: {error}"))?;
    let text = answer.body_mut().read_to_string().map_err(|error| format!("POST {url}: {error}"))?;
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().timeout_global(Some(ANSWER_MAX)).build().new_agent()
}

/// Repeats that can share a warm pool, spot with checkpoints, and more eager trials than a small budget can hold at once.
fn specs() -> Vec<(String, Value)> {
    let workload = json!({
        "name": "storm", "image": "1.dkr.ecr.us-east-1.amazonaws.com/t:1",
        "role_arn": "arn:aws:iam::111122223333:role/train",
        "channels": [{"name": "train", "s3_uri": "s3://storm/train/"}], "output_s3_uri": "s3://storm/out",
        "model": {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "intermediate": 18944,
                  "vocabulary": 152_064, "sequence_length": 2048},
        "precision": "bf16", "data_version": "1", "code_version": "1",
        "total_tokens": 3_000_000_000_u64, "trial_tokens": 24_000_000,
        "metrics": [{"name": "tps", "regex": "tokens_per_second=([0-9.]+)", "meaning": "tokens_per_second"}],
    });
    let profile = json!({"micro_batch_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_stage": 2, "activation_checkpointing": true});
    let spec = |name: &str, budget: u32, candidates: Value| {
        let spec = json!({
            "name": name, "region": "us-east-1", "budget_usd": budget, "max_runtime_seconds": 5400,
            "objective": {"minimize": "cost"}, "workload": workload, "candidates": candidates,
        });
        (name.to_owned(), spec)
    };
    let candidate = |name: &str, kind: &str, repeats: u32| json!({"name": name, "instance_type": kind, "profile": profile, "repeats": repeats});
    let mut pooled = spec("pooled", 2000, json!([candidate("p4de", "ml.p4de.24xlarge", 3)]));
    pooled.1["keep_alive_seconds"] = json!(KEEP_ALIVE_SECONDS);
    let mut spot = spec("spot", 2000, json!([candidate("p5", "ml.p5.48xlarge", 2)]));
    spot.1["candidates"][0]["purchase_options"] = json!(["on_demand", "spot"]);
    spot.1["max_wait_seconds"] = json!(10_800);
    spot.1["checkpoint"] = json!({"s3_uri": "s3://storm/checkpoints"});
    // One at a time fits, whoever is first.
    let tight = spec("tight", 200, json!([candidate("p4de", "ml.p4de.24xlarge", 3)]));
    vec![pooled, spot, tight]
}

/// Virtual seconds as real ones.
pub(super) fn real_seconds(virtual_seconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a small factor")]
    let factor = FACTOR as f64;
    virtual_seconds / factor
}
