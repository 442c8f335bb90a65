//! The client of a seed: it submits experiments, polls budgets, cancels, and reads every page of
//! the replies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::ci::Ci;
use super::control::Control;
use super::endpoints::Endpoints;
use super::feed::Feed;
use super::hooks::Hooks;
use super::models::Models;
use super::neighbour::Neighbour;
use super::pipelines::Pipelines;
use super::plan::{Kind, Plan};
use super::specs::{Accepted, LONG, LONG_TYPE, LONG_TYPE_MICRO_USD, Pending, pending};
use super::stage::Stage;
use bakeoff_demo::http::{agent, get, pages, post, send};

/// No further request is made in a turn that has taken this long: between turns, frozen replicas are
/// continued, and nothing may keep them waiting.
pub(super) const TURN_MAX: Duration = Duration::from_secs(2);
/// Parts of a turn beside the submissions.
const PARTS: usize = 8;
/// Pause between two requests of the load.
const LOAD_EVERY: Duration = Duration::from_millis(25);
/// The project's budget as a share of the experiments' budgets together, so that it binds as well.
const PROJECT_SHARE: f64 = 0.8;

/// A cancel that the service has accepted.
pub(super) struct Cancel {
    pub(super) experiment: String,
    /// When it was first requested: a user whose cancel fails is waiting as well.
    pub(super) asked_at: SystemTime,
}

/// Of an experiment that CI has started.
const CI: &str = "ci";

/// The state of a price change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Price {
    ToChange,
    /// Changed at AWS, effective then; the service has not read it since.
    Changed(DateTime<Utc>),
    Stays,
}

/// Submits experiments, and polls budgets meanwhile.
pub(super) struct Client {
    pub(super) accepted: Vec<Accepted>,
    pub(super) cancels: Vec<Cancel>,
    /// When each experiment's cancel was first requested.
    asked: BTreeMap<String, SystemTime>,
    pending: Vec<Pending>,
    /// The last answer to a submission that was an error.
    pub(super) error: String,
    has_project_budget: bool,
    /// A price to change, which the service must then read from AWS's list.
    price: Price,
    /// What is done with the models of completed trials. A restored backup does not know all of them.
    pub(super) models: Models,
    pub(super) pipelines: Pipelines,
    pub(super) endpoints: Endpoints,
    pub(super) ci: Ci,
    pub(super) hooks: Hooks,
    pub(super) control: Control,
    pub(super) neighbour: Neighbour,
    pub(super) feed: Feed,
    /// What comes next of what is done in turn.
    part: usize,
    /// Polls that found more reserved and spent than a budget allows.
    pub(super) overdrawn: u32,
}

impl Client {
    pub(super) fn new(plan: &Plan, stage: &Stage) -> Result<Self, String> {
        let has_twin = plan.twin.is_some();
        let is_restored = plan.twin == Some(Kind::Backup);
        Ok(Self {
            accepted: Vec::new(),
            cancels: Vec::new(),
            asked: BTreeMap::new(),
            pending: pending(plan),
            error: String::new(),
            has_project_budget: false,
            price: if plan.is_quiet {
                Price::ToChange
            } else {
                Price::Stays
            },
            models: Models::new(is_restored),
            pipelines: Pipelines::new(plan.twin),
            endpoints: Endpoints::new(has_twin),
            ci: Ci::new(has_twin),
            hooks: Hooks::start(is_restored)?,
            control: Control::new(has_twin),
            neighbour: Neighbour::new(has_twin),
            feed: Feed::start(stage, is_restored),
            part: 0,
            overdrawn: 0,
        })
    }

    /// Makes a pending price change, and has the service read it.
    pub(super) fn follow_prices(&mut self, stage: &mut Stage) {
        if self.price == Price::ToChange
            && let Ok(from) = stage.change_price(LONG_TYPE, LONG_TYPE_MICRO_USD)
        {
            self.price = Price::Changed(from);
        }
        let Price::Changed(from) = self.price else {
            return;
        };
        // AWS's list does not show a price before it is in force.
        let is_in_force = stage.real(from) < DateTime::<Utc>::from(SystemTime::now());
        let Some(url) = stage.urls().into_iter().next().filter(|_| is_in_force) else {
            return;
        };
        if post(
            &format!("{url}/v1/prices/refresh"),
            &stage.api_key,
            &json!({}),
        )
        .is_ok()
        {
            self.price = Price::Stays;
        }
    }

    pub(super) fn has_followed_prices(&self) -> bool {
        self.price == Price::Stays
    }

    pub(super) fn is_done(&self) -> bool {
        self.pending.is_empty()
    }

    /// Requests the cancels that are not accepted yet.
    fn cancel_asked(&mut self, stage: &Stage, begun: Instant) {
        let is_accepted = |id: &String| self.cancels.iter().any(|cancel| cancel.experiment == *id);
        let open: Vec<String> = self
            .asked
            .keys()
            .filter(|id| !is_accepted(id))
            .cloned()
            .collect();
        for id in open {
            if begun.elapsed() < TURN_MAX {
                self.cancel_one(stage, id);
            }
        }
    }

    /// Tries everything that is not done yet; an idempotency key makes a repeated submission count
    /// once.
    pub(super) fn work(&mut self, stage: &Stage) {
        let begun = Instant::now();
        self.cancel_asked(stage, begun);
        let Some(url) = stage.urls().into_iter().next() else {
            return;
        };
        if !self.has_project_budget && self.set_budgets(&url, &stage.api_key).is_err() {
            return;
        }
        let last_error = &mut self.error;
        self.pending.retain(|Pending { name, spec, .. }| {
            if begun.elapsed() > TURN_MAX {
                return true;
            }
            let request = agent().post(format!("{url}/v1/experiments"));
            let answer = match send(request, &stage.api_key, Some(name), spec) {
                Ok(answer) => answer,
                // Submitted so late that what the project has spent leaves too little: that is final. Before anything
                // is spent, every budget covers its experiment.
                Err(why)
                    if why.contains("\"rule\":\"budget\"") && has_spent(&url, &stage.api_key) =>
                {
                    return false;
                }
                Err(why) => {
                    *last_error = why;
                    return true;
                }
            };
            let Some(id) = answer["id"].as_str() else {
                return true;
            };
            let budget_usd = spec["budget_usd"].as_f64().unwrap_or(0.0);
            self.accepted.push(Accepted {
                id: id.to_owned(),
                name,
                budget_usd,
            });
            false
        });
        // On a slow machine a turn ends before all of it is done: the next one begins where this one ended.
        for _ in 0..PARTS {
            if begun.elapsed() > TURN_MAX {
                return;
            }
            self.do_part(stage, &url);
            self.part = (self.part + 1) % PARTS;
        }
    }

    fn do_part(&mut self, stage: &Stage, url: &str) {
        match self.part {
            0 => self.look_at_budgets(url, &stage.api_key),
            1 => {
                let experiments = self.accepted.iter().map(|one| &one.id);
                self.models.ask(stage, experiments);
            }
            2 => self.pipelines.work(stage),
            3 => self.endpoints.work(stage),
            4 => {
                self.ci.work(stage);
                self.accept_those_of_ci(url, &stage.api_key);
            }
            5 => self.hooks.set(stage),
            6 => self.control.work(stage, url, &mut self.accepted),
            _ => self.neighbour.work(stage, url),
        }
    }

    /// Names whatever is still unfinished after the last trial has ended; empty if nothing is.
    pub(super) fn unfinished(&mut self, stage: &Stage) -> String {
        let Some(url) = stage.urls().into_iter().next() else {
            return "no replica answers".to_owned();
        };
        let key = &stage.api_key;
        let experiments = self.accepted.iter().map(|one| &one.id);
        let parts = [
            ("models to register", self.models.ask(stage, experiments)),
            ("endpoints to create", self.endpoints.are_accepted()),
            ("CI", self.ci.are_judged(&url, key)),
            ("pipelines and endpoints", self.pipelines.are_over(stage)),
            ("model packages", self.models.are_registered(&url, key)),
            ("outgoing webhooks", self.hooks.are_delivered(&url, key)),
            ("what people change", self.control.is_over()),
            ("the neighbour", self.neighbour.is_over(stage, &url)),
            ("the feed's reader", self.feed.has_read_all(&url, key)),
        ];
        let open: Vec<&str> = parts
            .into_iter()
            .filter_map(|(what, is_over)| (!is_over).then_some(what))
            .collect();
        open.join(", ")
    }

    /// Experiments that CI has started count as submitted.
    fn accept_those_of_ci(&mut self, url: &str, key: &str) {
        for (id, budget_usd) in Ci::experiments(url, key) {
            if !self.accepted.iter().any(|one| one.id == id) {
                self.accepted.push(Accepted {
                    id,
                    name: CI,
                    budget_usd,
                });
            }
        }
    }

    /// Derives the budgets from the plans, so that they bind whatever an hour costs today.
    fn set_budgets(&mut self, url: &str, key: &str) -> Result<(), String> {
        let mut all = 0.0;
        for Pending {
            name,
            spec,
            budget_share,
        } in &mut self.pending
        {
            let plan = post(&format!("{url}/v1/plans"), key, spec)?;
            let worst = plan["worst_case_usd"]
                .as_f64()
                .ok_or_else(|| format!("{name} cannot be planned: {plan}"))?;
            let budget = (worst * *budget_share).ceil();
            spec["budget_usd"] = json!(budget);
            all += budget;
        }
        let budget = json!({ "budget_usd": (all * PROJECT_SHARE).ceil() });
        send(
            agent().put(format!("{url}/v1/projects/current/budget")),
            key,
            None,
            &budget,
        )?;
        self.has_project_budget = true;
        Ok(())
    }

    fn look_at_budgets(&mut self, url: &str, key: &str) {
        let correction = self.control.correction.as_ref();
        let is_over = |one: &Value, corrected_usd: f64| {
            let sum = |key: &str| one[key].as_f64().unwrap_or(0.0);
            let most = sum("budget_usd") + corrected_usd + 1e-6;
            sum("reserved_usd") + sum("settled_usd") > most
        };
        let Ok(experiments) = pages(&format!("{url}/v1/experiments"), key) else {
            return;
        };
        let Ok(project) = get(&format!("{url}/v1/projects/current"), key) else {
            return;
        };
        let mut others = Vec::new();
        for kind in ["pipelines", "endpoints"] {
            others.extend(pages(&format!("{url}/v1/{kind}"), key).unwrap_or_default());
        }
        for one in experiments.iter().chain(&others) {
            let own = correction.filter(|own| one["id"] == own.experiment);
            self.overdrawn += u32::from(is_over(one, own.map_or(0.0, |own| own.usd)));
        }
        let of_all = correction.map_or(0.0, |one| one.usd);
        self.overdrawn += u32::from(is_over(&project, of_all));
    }

    pub(super) fn cancel(&mut self, stage: &Stage, nth: usize) {
        let id = self
            .accepted
            .get(nth % self.accepted.len().max(1))
            .map(|one| one.id.clone());
        if let Some(id) = id {
            self.cancel_one(stage, id);
        }
    }

    /// Cancels every accepted experiment, whichever of them a replica is working on.
    pub(super) fn cancel_all(&mut self, stage: &Stage) {
        for one in &self.accepted {
            self.asked
                .entry(one.id.clone())
                .or_insert_with(SystemTime::now);
        }
        self.cancel_asked(stage, Instant::now());
    }

    /// Cancels the experiment that would run for hours, once its job runs: it shows whether a stop
    /// arrives.
    pub(super) fn cancel_long_one(&mut self, stage: &Stage) {
        let Some(long) = self
            .accepted
            .iter()
            .find(|one| one.name == LONG)
            .map(|one| one.id.clone())
        else {
            return;
        };
        if self.cancels.iter().any(|cancel| cancel.experiment == long) {
            return;
        }
        let Some(url) = stage.urls().into_iter().next() else {
            return;
        };
        let Ok(trials) = pages(
            &format!("{url}/v1/experiments/{long}/trials"),
            &stage.api_key,
        ) else {
            return;
        };
        if trials.iter().any(|trial| trial["state"] == "running") {
            self.cancel_one(stage, long);
        }
    }

    fn cancel_one(&mut self, stage: &Stage, id: String) {
        let asked_at = *self.asked.entry(id.clone()).or_insert_with(SystemTime::now);
        let Some(url) = stage.urls().into_iter().next() else {
            return;
        };
        let path = format!("{url}/v1/experiments/{id}/cancel");
        if post(&path, &stage.api_key, &json!({})).is_ok() {
            self.cancels.push(Cancel {
                experiment: id,
                asked_at,
            });
        }
    }
}

/// Whether the project has spent anything, as far as it can be read.
fn has_spent(url: &str, key: &str) -> bool {
    let project = get(&format!("{url}/v1/projects/current"), key);
    project.is_ok_and(|project| project["settled_usd"].as_f64() > Some(0.0))
}

/// Sends other users' requests, as fast as a few dashboards would. Returns how many were answered.
pub(super) fn load(urls: &[String], key: &str, is_over: &AtomicBool) -> u64 {
    let answered = AtomicU64::new(0);
    let paths = [
        "experiments",
        "experiments?page_size=1",
        "spending",
        "prices",
        "aws-usage",
        "instance-types",
    ];
    let all: Vec<String> = urls
        .iter()
        .flat_map(|url| paths.iter().map(move |path| format!("{url}/v1/{path}")))
        .collect();
    for url in all.iter().cycle() {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        answered.fetch_add(u64::from(get(url, key).is_ok()), Ordering::SeqCst);
        std::thread::sleep(LOAD_EVERY);
    }
    answered.into_inner()
}

/// Starts someone else's job in the same account: it uses up quota, and we must leave it alone.
pub(super) fn strangers_job(region_url: &str, name: &str) -> Result<Value, String> {
    let body = json!({
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::111122223333:role/train",
        "AlgorithmSpecification": {"TrainingImage": "1.dkr.ecr.us-east-1.amazonaws.com/t:1", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://storm/out"},
        "ResourceConfig": {"InstanceType": "ml.p4de.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    });
    let request = agent()
        .post(region_url)
        .header("x-amz-target", "SageMaker.CreateTrainingJob");
    send(request, "", None, &body)
}
