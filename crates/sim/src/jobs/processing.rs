//! Processing jobs: created, described, listed, stopped and billed. Each is a container that runs for some
//! minutes; of the scripts it knows it says what they would. Rules: SageMaker API, CreateProcessingJob and its
//! model in botocore; error texts as public reports show them.

use std::collections::BTreeMap;

use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::{catalog::processing, clock};
use chrono::{DateTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::account::billing::{self, RateCard, Span};
use crate::account::refusal::{Refusal, invalid};
use crate::account::request::tags;

/// Longest life of a processing job: five days unless the request says otherwise, nine at most.
const RUNTIME_USUAL: u64 = 86_400;
const RUNTIME_MAX: u64 = 777_600;
/// From SIGTERM to the end; these containers do not use all of their 120 s.
const STOP_SECONDS: i64 = 40;

/// How a job ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Completes,
    /// It is never launched.
    LacksCapacity,
    /// AWS fails in the middle.
    Fails,
    /// Its script raises.
    Raises,
}

impl Fate {
    fn reason(self) -> Option<&'static str> {
        match self {
            Self::Completes => None,
            Self::LacksCapacity => Some(
                "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type.",
            ),
            Self::Fails => {
                Some("InternalServerError: We encountered an internal error. Please try again.")
            }
            Self::Raises => Some("AlgorithmError: See job logs for more information"),
        }
    }
}

impl Fate {
    /// How long a job of some work runs, and how it ends.
    fn end(self, work: TimeDelta, limit: TimeDelta) -> (TimeDelta, &'static str) {
        match self {
            Self::Completes if work > limit => (limit, "Stopped"),
            Self::Completes => (work, "Completed"),
            Self::LacksCapacity => (TimeDelta::zero(), "Failed"),
            Self::Fails | Self::Raises => (work / 2, "Failed"),
        }
    }
}

/// What the world draws for a new job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampledDurations {
    pub(crate) seed: u64,
    pub(crate) fate: Fate,
    /// The same launch time for each; drawn when `None`.
    pub(crate) launch_seconds: Option<f64>,
    pub(crate) describe_lag: TimeDelta,
    pub(crate) list_lag: TimeDelta,
}

/// One processing job.
#[derive(Debug)]
pub(crate) struct ProcessingJob {
    /// The CreateProcessingJob body, as received.
    pub(crate) request: Value,
    pub(crate) name: String,
    pub(crate) arn: String,
    pub(crate) account: String,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) instance: &'static InstanceType,
    pub(crate) count: u32,
    pub(crate) created_at: DateTime<Utc>,
    /// When its instances are up; `None` for one that is never launched.
    started_at: Option<DateTime<Utc>>,
    ended_at: DateTime<Utc>,
    end_status: &'static str,
    failure: Option<&'static str>,
    pub(crate) stop_asked_at: Option<DateTime<Utc>>,
    pub(crate) describe_lag: TimeDelta,
    pub(crate) list_lag: TimeDelta,
    /// Whether Describe has shown it.
    pub(crate) is_shown: bool,
    /// Whether its outputs are in S3.
    pub(crate) has_written: bool,
}

impl ProcessingJob {
    /// A job whose request has passed the rules.
    pub(crate) fn new(
        request: Value,
        arn: String,
        account: String,
        drawn: SampledDurations,
        now: DateTime<Utc>,
    ) -> Option<Self> {
        let cluster = &request["ProcessingResources"]["ClusterConfig"];
        let instance = catalog::find(cluster["InstanceType"].as_str()?)?;
        let count = u32::try_from(cluster["InstanceCount"].as_u64()?).ok()?;
        let mut dice = StdRng::seed_from_u64(drawn.seed);
        let launch: f64 = dice.random_range(90.0..240.0);
        let launch = clock::seconds(drawn.launch_seconds.unwrap_or(launch).round());
        let work = clock::seconds(dice.random_range(120.0_f64..900.0).round());
        let limit = request["StoppingCondition"]["MaxRuntimeInSeconds"].as_u64();
        let limit = i64::try_from(limit.unwrap_or(RUNTIME_USUAL)).unwrap_or(i64::MAX);
        let started_at = now + launch;
        let (ran, end_status) = drawn.fate.end(work, TimeDelta::seconds(limit));
        let is_launched = drawn.fate != Fate::LacksCapacity;
        let name = request["ProcessingJobName"].as_str()?.to_owned();
        Some(Self {
            tags: tags(&request["Tags"]),
            request,
            name,
            arn,
            account,
            instance,
            count,
            created_at: now,
            started_at: is_launched.then_some(started_at),
            ended_at: started_at + if is_launched { ran } else { TimeDelta::zero() },
            end_status,
            failure: drawn.fate.reason(),
            stop_asked_at: None,
            describe_lag: drawn.describe_lag,
            list_lag: drawn.list_lag,
            is_shown: false,
            has_written: false,
        })
    }

    pub(crate) fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.ended_at <= now
    }

    pub(crate) fn status(&self, now: DateTime<Utc>) -> &'static str {
        match self.stop_asked_at {
            _ if self.is_over(now) => self.end_status,
            Some(at) if at <= now => "Stopping",
            _ => "InProgress",
        }
    }

    /// The start that Describe tells; an instance that never was up has none.
    fn shown_start(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.started_at.filter(|at| *at <= now)
    }

    fn modified_at(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        let moments = [self.started_at, self.stop_asked_at, Some(self.ended_at)];
        let past = moments.into_iter().flatten().filter(|at| *at <= now);
        past.max().unwrap_or(self.created_at)
    }

    /// Stops it; false if it is over, or is being stopped.
    pub(crate) fn stop(&mut self, now: DateTime<Utc>) -> bool {
        if self.is_over(now) || self.stop_asked_at.is_some() {
            return false;
        }
        let is_up = self.shown_start(now).is_some();
        let grace = if is_up { STOP_SECONDS } else { 5 };
        if !is_up {
            self.started_at = None;
        }
        self.stop_asked_at = Some(now);
        self.ended_at = now + TimeDelta::seconds(grace);
        (self.end_status, self.failure) = ("Stopped", None);
        true
    }

    /// An entry of ListProcessingJobs.
    pub(crate) fn summary(&self, now: DateTime<Utc>) -> Value {
        let mut entry = json!({
            "ProcessingJobName": self.name,
            "ProcessingJobArn": self.arn,
            "CreationTime": crate::account::epoch::epoch(self.created_at),
            "LastModifiedTime": crate::account::epoch::epoch(self.modified_at(now)),
            "ProcessingJobStatus": self.status(now),
        });
        if self.is_over(now) {
            entry["ProcessingEndTime"] = json!(crate::account::epoch::epoch(self.ended_at));
            self.tell_end(&mut entry);
        }
        entry
    }

    fn tell_end(&self, entry: &mut Value) {
        if let Some(reason) = self.failure {
            entry["FailureReason"] = json!(reason);
        }
        if let Some(message) = self.exit_message() {
            entry["ExitMessage"] = json!(message);
        }
    }

    /// What DescribeProcessingJob tells.
    pub(crate) fn describe(&self, now: DateTime<Utc>) -> Value {
        let mut told = self.summary(now);
        for key in [
            "ProcessingInputs",
            "ProcessingOutputConfig",
            "ProcessingResources",
            "StoppingCondition",
            "AppSpecification",
            "Environment",
            "NetworkConfig",
            "RoleArn",
        ] {
            if !self.request[key].is_null() {
                told[key] = self.request[key].clone();
            }
        }
        if let Some(start) = self.shown_start(now) {
            told["ProcessingStartTime"] = json!(crate::account::epoch::epoch(start));
        }
        told
    }

    /// What the container left in /opt/ml/output/message: that of the two scripts among the product's
    /// examples, as if they had run.
    fn exit_message(&self) -> Option<String> {
        let entrypoint = &self.request["AppSpecification"]["ContainerEntrypoint"];
        let script = entrypoint.as_array()?.last()?.as_str()?;
        let has_run = self.end_status == "Completed";
        let said = match script.rsplit('/').next()? {
            "prepare.py" if has_run => json!({
                "data_sha256": format!("{:064x}", seed_of(&self.request["ProcessingInputs"])),
                "train": {"records": 9000, "bytes": 18_000_000},
                "validation": {"records": 1000, "bytes": 2_000_000},
                "dropped": {"empty": 0, "malformed": 0, "repeated": 12, "other_language": 0},
            }),
            "evaluate.py" if has_run => json!({
                "metrics": {"exact_match": {"value": 0.71, "low": 0.68, "high": 0.74, "unit": "share", "records": 1000}},
                "interval_percent": 95,
            }),
            _ if self
                .failure
                .is_some_and(|reason| reason.starts_with("AlgorithmError")) =>
            {
                return Some("KeyError: 'text'".to_owned());
            }
            _ => return None,
        };
        Some(said.to_string())
    }

    /// The lines of its log by now; `None` before its instances are up.
    pub(crate) fn lines(&self, now: DateTime<Utc>) -> Option<Vec<(DateTime<Utc>, String)>> {
        let begun = self.shown_start(now)?;
        let mut lines = vec![(begun, "starting the container".to_owned())];
        if self.is_over(now) {
            let end = self.ended_at;
            let said = match (self.failure, self.exit_message()) {
                (Some(reason), Some(message)) if reason.starts_with("AlgorithmError") => vec![
                    "Traceback (most recent call last):".to_owned(),
                    "  File \"/opt/ml/processing/input/code/prepare.py\", line 71, in records"
                        .to_owned(),
                    message,
                ],
                (None, Some(message)) => vec![message],
                (_, _) => Vec::new(),
            };
            lines.extend(said.into_iter().map(|line| (end, line)));
        }
        Some(lines)
    }

    /// Where its outputs go when it has completed; empty before.
    pub(crate) fn outputs(&self, now: DateTime<Utc>) -> Vec<String> {
        if !self.is_over(now) || self.end_status != "Completed" {
            return Vec::new();
        }
        let outputs = &self.request["ProcessingOutputConfig"]["Outputs"];
        let outputs = outputs.as_array().into_iter().flatten();
        let uris = outputs.filter_map(|output| output["S3Output"]["S3Uri"].as_str());
        uris.map(|uri| format!("{}/data.jsonl", uri.trim_end_matches('/')))
            .collect()
    }

    pub(crate) fn ended_at(&self) -> DateTime<Utc> {
        self.ended_at
    }

    fn billed(&self, now: DateTime<Utc>) -> Option<Span> {
        let from = self.shown_start(now)?;
        Some(Span {
            from,
            until: self.ended_at.min(now),
        })
    }

    /// The region's record of it, with the same members as that of a training job.
    pub(crate) fn record(&self, rates: &RateCard, now: DateTime<Utc>) -> Value {
        let spans: Vec<Span> = self.billed(now).into_iter().collect();
        let seconds: i64 = spans.iter().map(|span| span.seconds()).sum();
        let count = i64::from(self.count);
        let gb = self.request["ProcessingResources"]["ClusterConfig"]["VolumeSizeInGB"].as_i64();
        let storage = match self.instance.nvme_gb {
            0 => billing::volumes(gb.unwrap_or(0), count, &spans),
            _ => 0,
        };
        json!({
            "kind": "processing",
            "name": self.name,
            "account": self.account,
            "attempt": self.request["Environment"]["BAKEOFF_ATTEMPT_ID"],
            "instance_type": self.instance.instance_type,
            "instance_count": self.count,
            "spot": false,
            "status": self.status(now),
            "secondary_status": self.status(now),
            "training_seconds": seconds,
            "billable_seconds": seconds,
            "micro_usd": rates.bill(&self.instance.instance_type, count, &spans, 100),
            "storage_micro_usd": storage,
            "trial": self.tags.get("bakeoff:trial"),
            "created_at": self.created_at,
            "stop_asked_at": self.stop_asked_at,
            "ended_at": Some(self.ended_at).filter(|end| *end <= now),
            "idle_pool": false,
            "pool_reused_by": null,
            "pool_ran_out": false,
            "pool_listed": 0,
            "retained_seconds": 0,
            "pool_micro_usd": 0,
            "pool_storage_micro_usd": 0,
            "metrics_requested": 0,
            "metrics_unserved": 0,
        })
    }
}

/// A number that stands for what is in a value.
fn seed_of(value: &Value) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Checks the members of a request and how they fit together.
pub(crate) fn check(body: &Value) -> Result<(), Refusal> {
    let broken = |path: &str, constraint: &str| {
        invalid(format!(
            "1 validation error detected: Value at '{path}' failed to satisfy constraint: Member must {constraint}"
        ))
    };
    let name = body["ProcessingJobName"].as_str().unwrap_or_default();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_name = (1..=63).contains(&name.len())
        && name.chars().all(is_part)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if !is_name {
        return Err(broken(
            "processingJobName",
            "satisfy regular expression pattern: [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
        ));
    }
    for (member, path) in [
        (&body["RoleArn"], "roleArn"),
        (
            &body["AppSpecification"]["ImageUri"],
            "appSpecification.imageUri",
        ),
    ] {
        if !member.is_string() {
            return Err(broken(path, "not be null"));
        }
    }
    resources(body, &broken)?;
    words(body, &broken)
}

/// The cluster and how long it may run.
fn resources(body: &Value, broken: &dyn Fn(&str, &str) -> Refusal) -> Result<(), Refusal> {
    let cluster = &body["ProcessingResources"]["ClusterConfig"];
    let at = |member: &str| format!("processingResources.clusterConfig.{member}");
    let kind = cluster["InstanceType"].as_str().unwrap_or_default();
    if !processing::types().contains(kind) {
        let all: Vec<&str> = processing::types().iter().map(String::as_str).collect();
        return Err(broken(
            &at("instanceType"),
            &format!("satisfy enum value set: [{}]", all.join(", ")),
        ));
    }
    let runtime = &body["StoppingCondition"]["MaxRuntimeInSeconds"];
    let runtime = if runtime.is_null() {
        &json!(1)
    } else {
        runtime
    };
    for (value, most, path) in [
        (&cluster["InstanceCount"], 100, at("instanceCount")),
        (&cluster["VolumeSizeInGB"], 16_384, at("volumeSizeInGB")),
        (
            runtime,
            RUNTIME_MAX,
            "stoppingCondition.maxRuntimeInSeconds".to_owned(),
        ),
    ] {
        if !value
            .as_u64()
            .is_some_and(|number| (1..=most).contains(&number))
        {
            return Err(broken(&path, &format!("have value between 1 and {most}")));
        }
    }
    Ok(())
}

/// The words of the command and the variables have their limits.
fn words(body: &Value, broken: &dyn Fn(&str, &str) -> Refusal) -> Result<(), Refusal> {
    for member in ["ContainerEntrypoint", "ContainerArguments"] {
        let Some(words) = body["AppSpecification"][member].as_array() else {
            continue;
        };
        let is_short = |word: &Value| {
            word.as_str()
                .is_some_and(|word| word.chars().count() <= 256)
        };
        if !(1..=100).contains(&words.len()) || !words.iter().all(is_short) {
            return Err(broken(
                member,
                "have 1 to 100 words of at most 256 characters",
            ));
        }
    }
    let variables = body["Environment"].as_object();
    let is_long = |value: &Value| value.as_str().is_none_or(|text| text.chars().count() > 256);
    if variables.is_some_and(|all| all.len() > 100 || all.values().any(is_long)) {
        return Err(broken(
            "environment",
            "have at most 100 values of 256 characters",
        ));
    }
    Ok(())
}

/// Addresses of a request's inputs.
pub(crate) fn inputs(body: &Value) -> Vec<&str> {
    let inputs = body["ProcessingInputs"].as_array().into_iter().flatten();
    inputs
        .filter_map(|input| input["S3Input"]["S3Uri"].as_str())
        .collect()
}

pub(crate) fn not_found() -> Refusal {
    invalid("Could not find requested job with name")
}
