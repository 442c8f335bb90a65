//! The world: every job ever created, and what else an account has. It keeps the record that the product
//! is judged against.

pub(crate) mod objects;
pub(crate) mod record;
pub(crate) mod region;
pub(crate) mod schedules;
pub(crate) mod truth;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::{clock, embedded};
use chrono::{DateTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use crate::account::billing::RateCard;
use crate::account::faults::{CallFault, Faults};
use crate::account::quotas::{self, Calls, InstanceQuotas};
use crate::account::request::{self, strings, tags};
use crate::account::setup::Setup;
use crate::jobs::endpoints::Endpoints;
use crate::jobs::job::{EarlyBill, Job, Written};
use crate::jobs::model_packages::ModelPackages;
use crate::jobs::pools::PoolEnd;
use crate::jobs::processing::{Fate, ProcessingJob, SampledDurations};
use crate::jobs::transform::TransformJob;
use crate::jobs::tuning::TuningJob;
use crate::machines::failures::{self, ScriptFailure};
use crate::machines::images::Images;
use crate::machines::lively::{Allocation, Lively};
use crate::machines::physics::{self, Script, Training};
use crate::machines::saves::Saves;
use crate::machines::speeds::Speeds;
use crate::machines::timeline::{self, Failure, Life, Spot};
use crate::world::schedules::Schedules;

/// The account that owns the region's jobs.
pub(crate) const ACCOUNT: &str = "111122223333";

/// How long a job sleeps that does not train a language model.
const SLEEP_SECONDS: f64 = 600.0;
/// How long a command takes that a job runs instead of its image's own entry point.
const COMMAND_SECONDS: f64 = 2.0;

/// Seconds at full speed that a job's work takes.
fn work_seconds(request: &Value, script: &Script) -> f64 {
    if request["AlgorithmSpecification"]["ContainerEntrypoint"].is_array() {
        return COMMAND_SECONDS;
    }
    script.work_seconds().unwrap_or(SLEEP_SECONDS)
}

/// The whole state of the region.
#[derive(Debug)]
pub(crate) struct World {
    /// The region's name.
    pub(crate) region: String,
    seed: u64,
    pub(crate) faults: Faults,
    pub(crate) setup: Setup,
    pub(crate) speeds: Speeds,
    pub(crate) images: Images,
    /// Whether scripts go on from the newest checkpoint in their folder, and name theirs by their steps.
    pub(crate) resumes: bool,
    /// The step that the next job goes on from.
    pub(crate) resumed_from: f64,
    pub(crate) quotas: InstanceQuotas,
    /// CreateTrainingJob calls per second; `None` for no limit.
    create_per_second: Option<f64>,
    launch_seconds: Option<f64>,
    /// Types whose scripts fail, and how.
    failing: BTreeMap<String, &'static ScriptFailure>,
    pub(crate) lively: Option<Lively>,
    dice: StdRng,
    /// Faults injected so far, by kind.
    pub(crate) done: BTreeMap<&'static str, u64>,
    /// The account that callers' credentials belong to; the region's jobs are in [`ACCOUNT`].
    pub(crate) account: String,
    /// Confirmed SNS subscriptions.
    pub(crate) subscriptions: u64,
    pub(crate) jobs: Vec<Job>,
    pub(crate) processing: Vec<ProcessingJob>,
    pub(crate) model_packages: ModelPackages,
    pub(crate) endpoints: Endpoints,
    pub(crate) schedules: Schedules,
    pub(crate) transforms: Vec<TransformJob>,
    pub(crate) tunings: Vec<TuningJob>,
    /// By account and name: a job of the same name in another account is a different job.
    by_name: BTreeMap<(String, String), usize>,
    alike: BTreeMap<u64, u64>,
    pub(crate) calls: BTreeMap<String, Calls>,
    pub(crate) metrics_requested: BTreeMap<String, u64>,
    /// Metrics requested for a job but not read, because a fault came first.
    pub(crate) metrics_unserved: BTreeMap<String, u64>,
    pub(crate) rates: RateCard,
}

impl World {
    pub(crate) fn new(
        seed: u64,
        faults: Faults,
        quotas: InstanceQuotas,
        create_per_second: Option<f64>,
    ) -> Self {
        Self {
            region: "us-east-1".to_owned(),
            seed,
            faults,
            setup: Setup::default(),
            speeds: Speeds::default(),
            images: Images::default(),
            resumes: false,
            resumed_from: 0.0,
            quotas,
            create_per_second,
            launch_seconds: None,
            failing: BTreeMap::new(),
            lively: None,
            done: BTreeMap::new(),
            account: ACCOUNT.to_owned(),
            subscriptions: 0,
            dice: StdRng::seed_from_u64(seed),
            jobs: Vec::new(),
            processing: Vec::new(),
            model_packages: ModelPackages::default(),
            endpoints: Endpoints::default(),
            schedules: Schedules::default(),
            transforms: Vec::new(),
            tunings: Vec::new(),
            by_name: BTreeMap::new(),
            alike: BTreeMap::new(),
            calls: BTreeMap::new(),
            metrics_requested: BTreeMap::new(),
            metrics_unserved: BTreeMap::new(),
            rates: RateCard::new(),
        }
    }

    /// Gives the region another name.
    pub(crate) fn named(self, region: &str) -> Self {
        Self {
            region: region.to_owned(),
            ..self
        }
    }

    /// Gives every job the same launch and download time; `None` draws them.
    pub(crate) fn launching_within(self, seconds: Option<f64>) -> Self {
        Self {
            launch_seconds: seconds,
            ..self
        }
    }

    /// Lets every script fail on some types.
    pub(crate) fn failing_on(self, failing: BTreeMap<String, &'static ScriptFailure>) -> Self {
        Self { failing, ..self }
    }

    /// Whether codes, types, machines and moments differ.
    pub(crate) fn living(self, is_lively: bool) -> Self {
        Self {
            lively: is_lively.then_some(Lively { seed: self.seed }),
            ..self
        }
    }

    /// Rolls for a fault of the given probability, and counts it if it happens.
    pub(crate) fn happens(&mut self, share: f64, kind: &'static str) -> bool {
        let happens = share > 0.0 && self.dice.random_bool(share.clamp(0.0, 1.0));
        if happens {
            *self.done.entry(kind).or_default() += 1;
        }
        happens
    }

    /// Counts a call and returns whether it is throttled.
    pub(crate) fn throttles(&mut self, operation: &str, now: DateTime<Utc>) -> bool {
        let quota = quotas::per_second(operation, self.create_per_second);
        if !self
            .calls
            .entry(operation.to_owned())
            .or_default()
            .allow(quota, now)
        {
            return true;
        }
        let throttles = self.happens(self.faults.throttle, "throttle");
        if throttles && let Some(calls) = self.calls.get_mut(operation) {
            calls.throttled += 1;
        }
        throttles
    }

    /// The fault to inject into the next call, if any.
    pub(crate) fn call_fault(&mut self) -> Option<CallFault> {
        let fault = self.faults.on_call(self.dice.random())?;
        *self.done.entry(fault.name()).or_default() += 1;
        Some(fault)
    }

    /// The delay of the next event, if it is delayed.
    pub(crate) fn delays_event(&mut self) -> Option<TimeDelta> {
        self.happens(self.faults.event_late, "late_event")
            .then(|| self.up_to(self.faults.event_late_seconds))
    }

    /// Whether this create is carried out and then answered with a 500.
    pub(crate) fn loses_reply(&mut self) -> bool {
        self.happens(self.faults.lost_reply, "done_then_500")
    }

    /// Whether a create with a name already in use is denied instead.
    pub(crate) fn denies_again(&mut self) -> bool {
        self.happens(self.faults.deny_again, "denied_again")
    }

    pub(crate) fn job(&self, name: &str) -> Option<&Job> {
        self.jobs.get(self.index_of(name)?)
    }

    pub(crate) fn job_mut(&mut self, name: &str) -> Option<&mut Job> {
        let index = self.index_of(name)?;
        self.jobs.get_mut(index)
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name
            .get(&(self.account.clone(), name.to_owned()))
            .copied()
    }

    /// Instances of a type that count against a quota: those of unfinished jobs and, for on-demand,
    /// of idle warm pools.
    pub(crate) fn in_use(&self, instance_type: &str, is_spot: bool, now: DateTime<Utc>) -> u32 {
        let is_there = |job: &&Job| {
            let is_busy = !job.timeline.is_over(now) || job.has_idle_pool(now);
            job.account == self.account && job.is_spot == is_spot && is_busy
        };
        let of_type = |job: &Job| -> u32 {
            let groups = [(job.instance, job.count)]
                .into_iter()
                .chain(job.helpers.iter().copied());
            groups
                .filter(|(kind, _)| kind.instance_type == instance_type)
                .map(|(_, count)| count)
                .sum()
        };
        self.jobs.iter().filter(is_there).map(of_type).sum()
    }

    /// The idle pool that a request would take over.
    pub(crate) fn pool_for(&self, request: &Value, now: DateTime<Utc>) -> Option<usize> {
        let is_own = |job: &Job| job.account == self.account;
        self.jobs
            .iter()
            .position(|job| is_own(job) && job.has_idle_pool(now) && job.matches(request))
    }

    /// Forgets a job, which frees its name.
    pub(crate) fn delete(&mut self, name: &str) {
        self.by_name
            .remove(&(self.account.clone(), name.to_owned()));
    }

    pub(crate) fn processing_job(&self, name: &str) -> Option<&ProcessingJob> {
        let own = |job: &&ProcessingJob| job.account == self.account && job.name == name;
        self.processing.iter().find(own)
    }

    pub(crate) fn processing_job_mut(&mut self, name: &str) -> Option<&mut ProcessingJob> {
        let own = |job: &&mut ProcessingJob| job.account == self.account && job.name == name;
        self.processing.iter_mut().find(own)
    }

    /// Forgets a processing job, which frees its name; what it cost stays in the record.
    pub(crate) fn delete_processing(&mut self, account: &str, name: &str) {
        for job in &mut self.processing {
            if job.account == account && job.name == name {
                job.account = format!("{account} (deleted)");
            }
        }
    }

    /// Creates a processing job whose request has passed the rules, and returns its ARN.
    pub(crate) fn create_processing(
        &mut self,
        request: Value,
        now: DateTime<Utc>,
    ) -> Option<String> {
        let name = request["ProcessingJobName"].as_str()?;
        let kind = request["ProcessingResources"]["ClusterConfig"]["InstanceType"].as_str()?;
        let instance = catalog::find(kind)?;
        let what = strings(&request["AppSpecification"]);
        let seed = self.seed_for(instance, false, &what);
        let fate = match self.failure(instance, false, seed) {
            None => Fate::Completes,
            Some(Failure::Capacity) => Fate::LacksCapacity,
            Some(Failure::Internal) => Fate::Fails,
            Some(Failure::Script(_)) => Fate::Raises,
        };
        let is_lagging = self.happens(self.faults.lag, "lag");
        let drawn = SampledDurations {
            seed,
            fate,
            launch_seconds: self.launch_seconds,
            describe_lag: self.lag(is_lagging),
            list_lag: self.lag(is_lagging),
        };
        let (region, account) = (&self.region, self.account.clone());
        let arn = format!("arn:aws:sagemaker:{region}:{account}:processing-job/{name}");
        let job = ProcessingJob::new(request, arn.clone(), account, drawn, now)?;
        self.processing.push(job);
        Some(arn)
    }

    /// Creates a job whose request has passed the rules, and draws its life.
    pub(crate) fn create(&mut self, request: Value, now: DateTime<Utc>) -> Option<&Job> {
        let name = request["TrainingJobName"].as_str()?.to_owned();
        let groups = request::groups(&request);
        let mut groups = groups
            .iter()
            .filter_map(|(kind, count)| Some((catalog::find(kind)?, u32::try_from(*count).ok()?)));
        let (instance, count) = groups.next()?;
        let helpers: Vec<(&'static InstanceType, u32)> = groups.collect();
        let hyper = strings(&request["HyperParameters"]);
        let is_spot = request["EnableManagedSpotTraining"] == true;
        let seed = self.seed_for(instance, is_spot, &hyper);
        let (saving_percent, mean_hours) = spot_facts(instance.family());
        let is_warm = self.take_over_pool(&request, &name, now);
        let law = physics::training(&hyper, instance, count);
        let script = self.script(&request, &hyper, instance, law, seed);
        let failure = self.failure(instance, is_spot, seed);
        let request = self.dropped_silently(request);
        let syncs_once = self.happens(self.faults.checkpoint_stall, "checkpoint_stall");
        let life = Life {
            created_at: now,
            work_seconds: work_seconds(&request, &script),
            curve: script.curve.clone(),
            max_runtime_seconds: real(request::max_runtime(&request)),
            spot: is_spot.then(|| self.spot(&request, mean_hours, syncs_once)),
            failure,
            is_warm,
            is_queued: !is_warm && self.happens(self.faults.pending, "pending"),
            launch_seconds: self.launch_seconds,
            seed,
        };
        let is_lagging = self.happens(self.faults.lag, "lag");
        let describe_lag = self.lag(is_lagging);
        let list_lag = self.lag(is_lagging);
        let early_bill = self.early_bill();
        let job = Job {
            arn: self.arn(&name),
            account: self.account.clone(),
            name: name.clone(),
            created_at: now,
            instance,
            count,
            helpers,
            is_spot,
            script,
            timeline: timeline::draw(&life),
            saving_percent,
            seed,
            tags: tags(&request["Tags"]),
            keeps_pool: self.quotas.pool > 0,
            pool_end: None,
            pool_listed: 0,
            written: Written::default(),
            syncs_once,
            describe_lag,
            list_lag,
            early_bill,
            stop_asked_at: None,
            failure,
            is_shown: false,
            request,
        };
        self.by_name
            .insert((self.account.clone(), name), self.jobs.len());
        self.jobs.push(job);
        self.jobs.last()
    }

    fn arn(&self, name: &str) -> String {
        let (region, account) = (&self.region, &self.account);
        format!("arn:aws:sagemaker:{region}:{account}:training-job/{name}")
    }

    /// What the law makes of a job, or, in a region that lives, its own code on its own machines.
    fn script(
        &self,
        request: &Value,
        hyper: &BTreeMap<String, String>,
        instance: &InstanceType,
        law: Option<Training>,
        seed: u64,
    ) -> Script {
        let first_step = self.resumed_from;
        let image = request["AlgorithmSpecification"]["TrainingImage"].as_str();
        let image = &self.images.tagged(image.unwrap_or_default());
        let law = law.map(|law| Training {
            first_step,
            ..self.speeds.of(image, law, seed)
        });
        let Some((lively, law)) = self.lively.zip(law) else {
            return Script::plain(law);
        };
        let allocation = Allocation {
            seed,
            horizon: real(request::max_runtime(request)),
        };
        lively.script(image, hyper, instance, law, allocation)
    }

    fn spot(
        &mut self,
        request: &Value,
        mean_hours_between_interruptions: f64,
        syncs_once: bool,
    ) -> Spot {
        let saves = match request["CheckpointConfig"]["S3Uri"].as_str() {
            None => Saves::Nothing,
            Some(_) if syncs_once => Saves::FirstOnly,
            Some(_) => Saves::EachCheckpoint,
        };
        let wait = request["StoppingCondition"]["MaxWaitTimeInSeconds"].as_u64();
        Spot {
            max_wait_seconds: real(wait.unwrap_or(request::max_runtime(request))),
            mean_hours_between_interruptions,
            saves,
            never_launches: self.happens(self.faults.no_spot_capacity, "no_spot_capacity"),
        }
    }

    /// Hands the idle pool that matches a request over to the new job; false when there is none.
    fn take_over_pool(&mut self, request: &Value, name: &str, now: DateTime<Utc>) -> bool {
        let pool = self.pool_for(request, now);
        let Some(left) = pool.and_then(|index| self.jobs.get_mut(index)) else {
            return false;
        };
        left.pool_end = Some(PoolEnd {
            at: now,
            reused_by: Some(name.to_owned()),
        });
        true
    }

    /// Drops members of a request without an error, as SageMaker does with some.
    fn dropped_silently(&mut self, mut request: Value) -> Value {
        if self.happens(self.faults.silent_drop, "silent_drop") {
            request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = Value::Null;
            request["CheckpointConfig"] = Value::Null;
        }
        request
    }

    /// Draws how far a read operation lags behind.
    pub(crate) fn lag(&mut self, is_lagging: bool) -> TimeDelta {
        if is_lagging {
            self.up_to(self.faults.lag_seconds)
        } else {
            TimeDelta::zero()
        }
    }

    fn early_bill(&mut self) -> EarlyBill {
        let mut bill = EarlyBill::default();
        if self.happens(self.faults.billing_late, "billing_late") {
            bill.absent_for = self.up_to(self.faults.billing_seconds);
        }
        if self.happens(self.faults.billing_low, "billing_low") {
            bill.low_for = self.up_to(self.faults.billing_seconds);
        }
        bill
    }

    /// Draws a number below `most`.
    pub(crate) fn fewer_than(&mut self, most: usize) -> usize {
        self.dice.random_range(0..most)
    }

    /// Draws a duration of at most `seconds`.
    fn up_to(&mut self, seconds: f64) -> TimeDelta {
        clock::seconds((self.dice.random_range(0.2..=1.0) * seconds).round())
    }

    fn failure(&mut self, instance: &InstanceType, is_spot: bool, seed: u64) -> Option<Failure> {
        let mut dice = StdRng::seed_from_u64(seed ^ 0x5eed);
        if let Some(script) = self.failing.get(&instance.instance_type) {
            return Some(Failure::Script(script));
        }
        let mut rolls = |share: f64| dice.random_bool(share.clamp(0.0, 1.0));
        let (failure, kind) = if rolls(self.faults.no_capacity) && !is_spot {
            (Failure::Capacity, "no_capacity")
        } else if rolls(self.faults.internal_error) {
            (Failure::Internal, "internal_error")
        } else if rolls(self.faults.algorithm_error) {
            let ways = failures::all();
            let way = ways.get(dice.random_range(0..ways.len()))?;
            (Failure::Script(way), "algorithm_error")
        } else {
            return None;
        };
        *self.done.entry(kind).or_default() += 1;
        Some(failure)
    }

    /// The launch time of every job, if it is the same for each.
    pub(crate) fn launches_within(&self) -> Option<f64> {
        self.launch_seconds
    }

    /// A seed for what is not a training job; the same for the same request, and how many like it came before.
    pub(crate) fn seed_of(&mut self, what: &Value) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, strings(what)).hash(&mut hasher);
        let kind = hasher.finish();
        let nth = self.alike.entry(kind).or_default();
        *nth += 1;
        (kind, *nth).hash(&mut hasher);
        hasher.finish()
    }

    /// Job names are random, but lives must be reproducible: the seed is made of what the job is,
    /// and how many like it came before.
    fn seed_for(
        &mut self,
        instance: &InstanceType,
        is_spot: bool,
        hyper: &BTreeMap<String, String>,
    ) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, &instance.instance_type, is_spot, hyper).hash(&mut hasher);
        let kind = hasher.finish();
        let nth = self.alike.entry(kind).or_default();
        *nth += 1;
        (kind, *nth).hash(&mut hasher);
        hasher.finish()
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds of at most 28 days")]
fn real(seconds: u64) -> f64 {
    seconds as f64
}

static SPOT: LazyLock<BTreeMap<String, (i64, f64)>> = LazyLock::new(|| {
    let rows: Vec<(String, i64, f64)> =
        embedded::csv("spot.csv", include_str!("../../data/spot.csv"));
    rows.into_iter()
        .map(|(family, saving, interruptions)| (family, (saving, interruptions)))
        .collect()
});

fn spot_facts(family: &str) -> (i64, f64) {
    SPOT.get(family).copied().unwrap_or((50, 12.0))
}
