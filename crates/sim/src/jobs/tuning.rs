//! Hyperparameter tuning jobs and the training jobs that SageMaker starts for them: created, described, listed,
//! stopped and billed. Each trial is a container that runs for some minutes and reports an objective that depends
//! on its hyperparameters. Rules: SageMaker API, CreateHyperParameterTuningJob; developer guide.

mod rules;

pub(crate) use self::rules::check;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use bakeoff_domain::catalog;
use chrono::{DateTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::account::billing::{self, RateCard, Span};
use crate::account::epoch::epoch;
use crate::account::refusal::{Refusal, invalid};
use crate::account::request::{strings, tags};

const STOP_SECONDS: i64 = 60;
/// What spot saves in this region, percent.
const SPOT_SAVES: i64 = 60;

/// What the world draws for a new job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampledDurations {
    pub(crate) seed: u64,
    /// Share of its trials that fail.
    pub(crate) failing: f64,
    pub(crate) launch_seconds: Option<f64>,
    pub(crate) lag: TimeDelta,
}

/// One trial: a training job.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) name: String,
    hyperparameters: BTreeMap<String, String>,
    created_at: DateTime<Utc>,
    pub(crate) started_at: DateTime<Utc>,
    ended_at: DateTime<Utc>,
    status: &'static str,
    objective: Option<f64>,
    has_written: bool,
}

#[derive(Debug)]
pub(crate) struct TuningJob {
    pub(crate) request: Value,
    pub(crate) name: String,
    pub(crate) arn: String,
    pub(crate) account: String,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) instance_type: String,
    pub(crate) count: u32,
    pub(crate) created_at: DateTime<Utc>,
    trials: Vec<Trial>,
    stop_asked_at: Option<DateTime<Utc>>,
    pub(crate) lag: TimeDelta,
}

pub(crate) fn not_found() -> Refusal {
    Refusal {
        code: "ResourceNotFound",
        message: "Amazon SageMaker can't find a tuning job with that name".to_owned(),
    }
}

fn config(request: &Value) -> &Value {
    &request["HyperParameterTuningJobConfig"]
}

fn definition(request: &Value) -> &Value {
    &request["TrainingJobDefinition"]
}

/// All combinations of the choices, as a grid tries them.
fn grid(ranges: &Value) -> Vec<BTreeMap<String, String>> {
    let mut all = vec![BTreeMap::new()];
    for one in ranges["CategoricalParameterRanges"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let name = one["Name"].as_str().unwrap_or_default();
        let values: Vec<&str> = one["Values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        all = all
            .iter()
            .flat_map(|so_far| {
                values.iter().map(move |value| {
                    let mut next: BTreeMap<String, String> = so_far.clone();
                    next.insert(name.to_owned(), (*value).to_owned());
                    next
                })
            })
            .collect();
    }
    all
}

fn bound(range: &Value, field: &str) -> f64 {
    range[field]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0.0)
}

/// Draws one set of hyperparameters.
fn draw(ranges: &Value, dice: &mut StdRng) -> BTreeMap<String, String> {
    let mut drawn = BTreeMap::new();
    for one in ranges["CategoricalParameterRanges"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let values: Vec<&str> = one["Values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        if let Some(value) = values.get(dice.random_range(0..values.len().max(1))) {
            let name = one["Name"].as_str().unwrap_or_default();
            drawn.insert(name.to_owned(), (*value).to_owned());
        }
    }
    for (kind, is_whole) in [
        ("ContinuousParameterRanges", false),
        ("IntegerParameterRanges", true),
    ] {
        for one in ranges[kind].as_array().into_iter().flatten() {
            let (min, max) = (bound(one, "MinValue"), bound(one, "MaxValue"));
            let share: f64 = dice.random();
            let value = if one["ScalingType"] == "Logarithmic" {
                (min.ln() + share * (max.ln() - min.ln())).exp()
            } else {
                min + share * (max - min)
            };
            let name = one["Name"].as_str().unwrap_or_default();
            let text = if is_whole {
                format!("{:.0}", value.floor())
            } else {
                value.to_string()
            };
            drawn.insert(name.to_owned(), text);
        }
    }
    drawn
}

/// The objective of a set of hyperparameters: the same for the same, on whatever instances.
fn objective(hyperparameters: &BTreeMap<String, String>) -> f64 {
    let each = hyperparameters.iter().map(|(name, value)| {
        let number: f64 = value.parse().unwrap_or_else(|_| {
            let mut hasher = DefaultHasher::new();
            (name, value).hash(&mut hasher);
            f64::from(u32::try_from(hasher.finish() % 100).unwrap_or(0)) / 100.0
        });
        // A valley at 3e-4, in decades.
        let decades = (number.abs().max(1e-9) / 3e-4).log10();
        0.05 * decades * decades
    });
    let sum: f64 = each.sum();
    (1.2 + sum).min(50.0)
}

impl TuningJob {
    /// A job whose request has passed the rules, with the lives of all of its trials.
    pub(crate) fn new(
        request: Value,
        arn: String,
        account: String,
        drawn: SampledDurations,
        now: DateTime<Utc>,
    ) -> Option<Self> {
        let name = request["HyperParameterTuningJobName"].as_str()?.to_owned();
        let resources = &definition(&request)["HyperParameterTuningResourceConfig"];
        let trials = lives(&request, &name, drawn, now);
        Some(Self {
            instance_type: resources["InstanceType"].as_str()?.to_owned(),
            count: u32::try_from(resources["InstanceCount"].as_u64()?).ok()?,
            tags: tags(&request["Tags"]),
            request,
            name,
            arn,
            account,
            created_at: now,
            trials,
            stop_asked_at: None,
            lag: drawn.lag,
        })
    }

    fn ended_at(&self) -> DateTime<Utc> {
        let last = self.trials.iter().map(|trial| trial.ended_at).max();
        let last = last.unwrap_or(self.created_at);
        let grace = |at| at + TimeDelta::seconds(STOP_SECONDS);
        last.max(self.stop_asked_at.map_or(self.created_at, grace))
    }

    pub(crate) fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.ended_at() <= now
    }

    pub(crate) fn status(&self, now: DateTime<Utc>) -> &'static str {
        let is_over = self.is_over(now);
        let has_any = self.trials.iter().any(|trial| trial.objective.is_some());
        match self.stop_asked_at {
            Some(_) if is_over => "Stopped",
            None if is_over && !has_any => "Failed",
            None if is_over => "Completed",
            Some(at) if at <= now => "Stopping",
            _ => "InProgress",
        }
    }

    pub(crate) fn stop(&mut self, now: DateTime<Utc>) -> Result<Value, Refusal> {
        if self.is_over(now) {
            return Err(invalid(format!(
                "The request was rejected because the hyperparameter tuning job is in status {}.",
                self.status(now)
            )));
        }
        if self.stop_asked_at.is_none() {
            self.stop_asked_at = Some(now);
            self.trials.retain(|trial| trial.created_at <= now);
            for trial in self.trials.iter_mut().filter(|trial| trial.ended_at > now) {
                let grace = if trial.started_at <= now {
                    STOP_SECONDS / 2
                } else {
                    1
                };
                trial.started_at = trial.started_at.min(now + TimeDelta::seconds(grace));
                trial.ended_at = now + TimeDelta::seconds(grace);
                (trial.status, trial.objective) = ("Stopped", None);
            }
        }
        Ok(json!({}))
    }

    pub(crate) fn summary(&self, now: DateTime<Utc>) -> Value {
        let mut told = json!({
            "HyperParameterTuningJobName": self.name, "HyperParameterTuningJobArn": self.arn,
            "HyperParameterTuningJobStatus": self.status(now), "Strategy": config(&self.request)["Strategy"],
            "CreationTime": epoch(self.created_at), "LastModifiedTime": epoch(now.min(self.ended_at())),
            "TrainingJobStatusCounters": self.counters(now),
            "ObjectiveStatusCounters": {"Succeeded": 0, "Pending": 0, "Failed": 0},
        });
        if self.is_over(now) {
            told["HyperParameterTuningEndTime"] = json!(epoch(self.ended_at()));
        }
        told
    }

    fn counters(&self, now: DateTime<Utc>) -> Value {
        let count = |status: &str| {
            self.trials
                .iter()
                .filter(|trial| trial.created_at <= now && trial.shown(now) == status)
                .count()
        };
        json!({
            "Completed": count("Completed"), "InProgress": count("InProgress"), "RetryableError": 0,
            "NonRetryableError": count("Failed"), "Stopped": count("Stopped"),
        })
    }

    pub(crate) fn describe(&self, now: DateTime<Utc>) -> Value {
        let mut told = self.summary(now);
        for key in [
            "HyperParameterTuningJobConfig",
            "TrainingJobDefinition",
            "WarmStartConfig",
        ] {
            if !self.request[key].is_null() {
                told[key] = self.request[key].clone();
            }
        }
        if self.status(now) == "Failed" {
            let tried = self.trials.len();
            told["FailureReason"] = json!(format!(
                "No training job succeeded after {tried} attempts. Please take a look at the training job failures to get more details."
            ));
        }
        told
    }

    /// ListTrainingJobsForHyperParameterTuningJob, all of them.
    pub(crate) fn trials(&self, now: DateTime<Utc>) -> Vec<Value> {
        let metric = &config(&self.request)["HyperParameterTuningJobObjective"]["MetricName"];
        let begun = self.trials.iter().filter(|trial| trial.created_at <= now);
        begun
            .map(|trial| {
                let mut told = json!({
                    "TrainingJobName": trial.name, "TrainingJobArn": format!("{}/{}", self.arn, trial.name),
                    "CreationTime": epoch(trial.created_at), "TrainingJobStatus": trial.shown(now),
                    "TunedHyperParameters": trial.hyperparameters, "ObjectiveStatus": "Pending",
                });
                if trial.started_at <= now {
                    told["TrainingStartTime"] = json!(epoch(trial.started_at));
                }
                if trial.ended_at <= now {
                    told["TrainingEndTime"] = json!(epoch(trial.ended_at));
                    if let Some(value) = trial.objective {
                        told["FinalHyperParameterTuningJobObjectiveMetric"] = json!({"MetricName": metric, "Value": value});
                        told["ObjectiveStatus"] = json!("Succeeded");
                    }
                    if trial.status == "Failed" {
                        told["FailureReason"] = json!("AlgorithmError: ExecuteUserScriptError: ExitCode 1");
                    }
                }
                told
            })
            .collect()
    }

    /// Its trials whose container has started.
    pub(crate) fn begun(&self, now: DateTime<Utc>) -> impl Iterator<Item = &Trial> {
        self.trials
            .iter()
            .filter(move |trial| trial.started_at <= now)
    }

    /// DescribeTrainingJob of one of its trials.
    pub(crate) fn describe_trial(&self, name: &str, now: DateTime<Utc>) -> Option<Value> {
        let begun = |trial: &&Trial| trial.name == name && trial.created_at <= now;
        let trial = self.trials.iter().find(begun)?;
        let ran = trial.ran(now);
        let output = definition(&self.request)["OutputDataConfig"]["S3OutputPath"].as_str();
        let root = output.unwrap_or_default().trim_end_matches('/');
        Some(json!({
            "TrainingJobName": trial.name, "TrainingJobArn": format!("{}/{}", self.arn, trial.name),
            "TuningJobArn": self.arn, "TrainingJobStatus": trial.shown(now), "SecondaryStatus": trial.shown(now),
            "ModelArtifacts": {"S3ModelArtifacts": format!("{root}/{}/output/model.tar.gz", trial.name)},
            "HyperParameters": trial.hyperparameters, "CreationTime": epoch(trial.created_at),
            "TrainingStartTime": epoch(trial.started_at), "TrainingEndTime": epoch(trial.ended_at),
            "TrainingTimeInSeconds": ran, "BillableTimeInSeconds": self.billed(ran),
            "EnableManagedSpotTraining": self.is_spot(),
        }))
    }

    pub(crate) fn is_spot(&self) -> bool {
        definition(&self.request)["EnableManagedSpotTraining"] == true
    }

    fn billed(&self, ran: i64) -> i64 {
        if self.is_spot() {
            ran * (100 - SPOT_SAVES) / 100
        } else {
            ran
        }
    }

    /// Instances that its trials use now.
    pub(crate) fn in_use(&self, now: DateTime<Utc>) -> u32 {
        let running = self
            .trials
            .iter()
            .filter(|trial| trial.created_at <= now && now < trial.ended_at);
        let running = u32::try_from(running.count()).unwrap_or(u32::MAX);
        running.saturating_mul(self.count)
    }

    /// Models of trials that have completed by now, each once.
    pub(crate) fn models(&mut self, now: DateTime<Utc>) -> Vec<String> {
        let output = definition(&self.request)["OutputDataConfig"]["S3OutputPath"].as_str();
        let root = output.unwrap_or_default().trim_end_matches('/').to_owned();
        let is_due = |trial: &&mut Trial| {
            !trial.has_written && trial.ended_at <= now && trial.status == "Completed"
        };
        let mut models = Vec::new();
        for trial in self.trials.iter_mut().filter(is_due) {
            trial.has_written = true;
            models.push(format!("{root}/{}/output/model.tar.gz", trial.name));
        }
        models
    }

    /// With the same members as that of a training job: the sum of its trials.
    pub(crate) fn record(&self, rates: &RateCard, now: DateTime<Utc>) -> Value {
        let count = i64::from(self.count);
        let gb = definition(&self.request)["HyperParameterTuningResourceConfig"]["VolumeSizeInGB"]
            .as_i64();
        let has_disks = catalog::find(&self.instance_type).is_some_and(|found| found.nvme_gb > 0);
        let (mut seconds, mut micro_usd, mut storage) = (0, 0, 0);
        for trial in self.trials.iter().filter(|trial| trial.started_at <= now) {
            let billed = self.billed(trial.ran(now));
            let span = Span {
                from: trial.started_at,
                until: trial.started_at + TimeDelta::seconds(billed),
            };
            seconds += billed;
            micro_usd += rates
                .bill(&self.instance_type, count, &[span], 100)
                .unwrap_or(0);
            if !has_disks {
                storage += billing::volumes(gb.unwrap_or(0), count, &[span]);
            }
        }
        json!({
            "kind": "tuning", "name": self.name, "account": self.account,
            "attempt": definition(&self.request)["Environment"]["BAKEOFF_ATTEMPT_ID"],
            "instance_type": self.instance_type, "instance_count": self.count, "spot": self.is_spot(),
            "status": self.status(now), "secondary_status": self.status(now), "training_seconds": seconds,
            "billable_seconds": seconds, "micro_usd": micro_usd, "storage_micro_usd": storage,
            "trial": self.tags.get("bakeoff:trial"), "created_at": self.created_at,
            "stop_asked_at": self.stop_asked_at, "ended_at": Some(self.ended_at()).filter(|end| *end <= now),
            "idle_pool": false, "pool_reused_by": null, "pool_ran_out": false, "pool_listed": 0,
            "retained_seconds": 0, "pool_micro_usd": 0, "pool_storage_micro_usd": 0, "metrics_requested": 0,
            "metrics_unserved": 0, "trials": self.trials.iter().filter(|trial| trial.created_at <= now).count(),
        })
    }
}

impl Trial {
    fn shown(&self, now: DateTime<Utc>) -> &'static str {
        if self.ended_at <= now {
            self.status
        } else {
            "InProgress"
        }
    }

    /// What its script has printed.
    pub(crate) fn lines(&self, now: DateTime<Utc>) -> Vec<(DateTime<Utc>, String)> {
        let given = self.hyperparameters.iter();
        let given: Vec<String> = given
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mut lines = vec![(
            self.started_at,
            format!("training with {}", given.join(" ")),
        )];
        if let Some(value) = self.objective {
            lines.push((self.ended_at, format!("objective={value}")));
        }
        lines.retain(|(at, _)| *at <= now);
        lines
    }

    fn ran(&self, now: DateTime<Utc>) -> i64 {
        let span = Span {
            from: self.started_at,
            until: self.ended_at.min(now),
        };
        span.seconds()
    }
}

fn best_of(trials: &[Trial]) -> f64 {
    let objectives = trials.iter().filter_map(|trial| trial.objective);
    objectives.fold(f64::INFINITY, f64::min)
}

fn stops_early(config: &Value) -> bool {
    config["TrainingJobEarlyStoppingType"] == "Auto" || config["Strategy"] == "Hyperband"
}

fn trial_name(job: &str, nth: usize, seed: u64) -> String {
    let mut hasher = DefaultHasher::new();
    (seed, nth).hash(&mut hasher);
    let random = hasher.finish() & 0xffff_ffff;
    format!("{job}-{:03}-{random:08x}", nth + 1)
}

/// How a trial ends.
#[derive(Debug, Clone, Copy)]
struct Fate {
    fails: bool,
    /// It falls behind, and is stopped early.
    is_late: bool,
}

impl Fate {
    /// How long a trial runs that has so much to do, and how it ends.
    fn end(self, work: i64, limit: i64) -> (i64, &'static str) {
        match self {
            Self { fails: true, .. } => (work / 3, "Failed"),
            Self { is_late: true, .. } => (work / 3, "Stopped"),
            Self { .. } if work > limit => (limit, "Stopped"),
            Self { .. } => (work, "Completed"),
        }
    }
}

/// The lives of all trials: as many at a time as the request allows, one after another in each place.
fn lives(request: &Value, name: &str, drawn: SampledDurations, now: DateTime<Utc>) -> Vec<Trial> {
    let (config, definition) = (config(request), definition(request));
    let ranges = &config["ParameterRanges"];
    let combinations = match config["Strategy"].as_str() {
        Some("Grid") => grid(ranges),
        _ => Vec::new(),
    };
    let most = |field: &str| config["ResourceLimits"][field].as_u64();
    let wanted = most("MaxNumberOfTrainingJobs").and_then(|count| usize::try_from(count).ok());
    let wanted = wanted.unwrap_or(combinations.len());
    let places = most("MaxParallelTrainingJobs").map(usize::try_from);
    let places = places.and_then(Result::ok).unwrap_or(1).max(1);
    // With a seed of the request, the same is tried again, whatever else differs.
    let seed = config["RandomSeed"].as_u64().unwrap_or(drawn.seed);
    let mut dice = StdRng::seed_from_u64(seed);
    let mut luck = StdRng::seed_from_u64(drawn.seed ^ 0x7e57);
    let limit = definition["StoppingCondition"]["MaxRuntimeInSeconds"].as_u64();
    let limit = i64::try_from(limit.unwrap_or(86_400)).unwrap_or(i64::MAX);
    let stops_early = stops_early(config);
    let mut free = vec![now + TimeDelta::seconds(15); places];
    let mut trials: Vec<Trial> = Vec::with_capacity(wanted);
    for nth in 0..wanted {
        let Some(place) = free.iter_mut().min() else {
            break;
        };
        let given = combinations.get(nth).cloned();
        let hyperparameters = given.unwrap_or_else(|| draw(ranges, &mut dice));
        let best = best_of(&trials);
        let value = objective(&hyperparameters);
        let fate = Fate {
            fails: luck.random_bool(drawn.failing.clamp(0.0, 1.0)),
            is_late: stops_early && nth > 2 && value > best * 1.5,
        };
        let launch: f64 = luck.random_range(60.0..150.0);
        let launch = drawn.launch_seconds.unwrap_or(launch).round();
        let (work, status) = fate.end(luck.random_range(240..900), limit);
        let started_at = *place + bakeoff_domain::clock::seconds(launch);
        let ended_at = started_at + TimeDelta::seconds(work);
        trials.push(Trial {
            name: trial_name(name, nth, drawn.seed),
            hyperparameters,
            created_at: *place,
            started_at,
            ended_at,
            status,
            objective: (!fate.fails).then_some(value),
            has_written: false,
        });
        *place = ended_at;
    }
    trials
}

/// Static and searched hyperparameters of a request, for drawing.
pub(crate) fn seed_text(request: &Value) -> BTreeMap<String, String> {
    strings(&definition(request)["StaticHyperParameters"])
}
