//! CI in a seed: commits that a signed webhook, its repetitions, a forgery and the API tell of. At the end each commit
//! has one run, with a verdict, and each run has as many experiments as it says.

use std::collections::{BTreeMap, BTreeSet};

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use super::stage::Stage;
use bakeoff_demo::http::{agent, get, pages, post, send};

const COMMITS: [&str; 2] = [
    "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60",
    "9b7d5c3a1f8e604f2a9c1d7e55d3b0a8c6f4e201",
];

/// How a commit is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Door {
    Webhook,
    /// The same delivery once more.
    Redelivery,
    /// Another delivery of the same commit, as a rerun of a CI job sends it.
    Rerun,
    /// With a key, as `bakeoff gate` asks.
    Gate,
}

const DOORS: [Door; 4] = [Door::Webhook, Door::Redelivery, Door::Rerun, Door::Gate];

/// A template that was created, and the secret that its triggers are signed with.
struct Template {
    id: String,
    secret: String,
}

/// The CI of a seed.
pub(super) struct Ci {
    template: Option<Template>,
    /// Creates that were tried: an answer that is lost has taken the secret with it.
    tries: u32,
    /// The last answer that was an error.
    pub(super) error: String,
    told: BTreeSet<(&'static str, Door)>,
    is_forged: bool,
    is_idle: bool,
    /// Deliveries that were taken.
    pub(super) deliveries: u64,
    /// Forgeries that were refused, and that were taken.
    pub(super) refused: u64,
    pub(super) taken: u32,
}

/// What became of the commits.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) runs: u64,
    pub(super) wrong: Vec<String>,
}

impl Ci {
    pub(super) fn new(is_idle: bool) -> Self {
        Self {
            template: None,
            tries: 0,
            error: String::new(),
            told: BTreeSet::new(),
            is_forged: false,
            is_idle,
            deliveries: 0,
            refused: 0,
            taken: 0,
        }
    }

    /// Tells of one commit through one door that has not been taken yet. A request without an answer is repeated.
    pub(super) fn work(&mut self, stage: &Stage) {
        let Some(url) = stage.urls().into_iter().next().filter(|_| !self.is_idle) else {
            return;
        };
        let key = &stage.api_key;
        let Some(template) = &self.template else {
            self.tries += 1;
            let made = post(
                &format!("{url}/v1/ci-templates"),
                key,
                &template(self.tries),
            );
            match made {
                Ok(made) => {
                    let text = |field: &str| made[field].as_str().map(str::to_owned);
                    self.template = text("id")
                        .zip(text("secret"))
                        .map(|(id, secret)| Template { id, secret });
                }
                Err(error) => self.error = error,
            }
            return;
        };
        if !self.is_forged {
            let forged = Template {
                id: template.id.clone(),
                secret: "a guess".to_owned(),
            };
            match deliver(&url, &forged, &trigger(COMMITS[0], "forged")) {
                Ok(_) => self.taken += 1,
                Err(error) if error.contains("401") => self.refused += 1,
                Err(_) => return,
            }
            self.is_forged = true;
        }
        let all = COMMITS
            .iter()
            .flat_map(|commit| DOORS.map(|door| (*commit, door)));
        let Some((commit, door)) = all.into_iter().find(|one| !self.told.contains(one)) else {
            return;
        };
        let answer = match door {
            Door::Webhook | Door::Redelivery => deliver(&url, template, &trigger(commit, commit)),
            Door::Rerun => deliver(&url, template, &trigger(commit, &format!("again-{commit}"))),
            Door::Gate => {
                let path = format!("{url}/v1/ci-templates/{}/runs", template.id);
                post(&path, key, &trigger(commit, &format!("gate-{commit}")))
            }
        };
        match answer {
            Ok(_) => {
                self.deliveries += 1;
                self.told.insert((commit, door));
            }
            Err(error) => self.error = error,
        }
    }

    /// The experiments of all runs, with their budgets.
    pub(super) fn experiments(url: &str, key: &str) -> BTreeMap<String, f64> {
        let runs = pages(&format!("{url}/v1/ci-runs"), key).unwrap_or_default();
        let ids = runs.iter().flat_map(experiments_of);
        ids.map(|id| (id, BUDGET_USD)).collect()
    }

    /// Whether everything was told, and each run has its verdict.
    pub(super) fn are_judged(&self, url: &str, key: &str) -> bool {
        self.is_idle
            || self.told.len() == COMMITS.len() * DOORS.len()
                && pages(&format!("{url}/v1/ci-runs"), key)
                    .is_ok_and(|runs| runs.iter().all(|run| !run["verdict"].is_null()))
    }

    /// One run for each commit, however many told of it, and each with a verdict. One that failed and has cost nothing
    /// gives way to another: what counts is one bill a commit.
    pub(super) fn compare(&self, url: &str, key: &str) -> Result<Outcome, String> {
        let mut outcome = Outcome::default();
        if self.is_idle {
            return Ok(outcome);
        }
        let runs = pages(&format!("{url}/v1/ci-runs"), key)?;
        outcome.runs = runs.len().try_into().unwrap_or(u64::MAX);
        let mut of_commit: BTreeMap<&str, u32> = BTreeMap::new();
        for run in &runs {
            let count = of_commit
                .entry(run["commit"].as_str().unwrap_or_default())
                .or_default();
            *count += u32::from(!cost_nothing(run, url, key)?);
            if run["verdict"].is_null() {
                outcome
                    .wrong
                    .push(format!("a CI run has no verdict: {run}"));
            }
        }
        if of_commit.len() != COMMITS.len() || of_commit.values().any(|count| *count > 1) {
            outcome
                .wrong
                .push(format!("bills by commit: {of_commit:?}"));
        }
        Ok(outcome)
    }
}

/// Whether a run has failed before any of its jobs was billed.
fn cost_nothing(run: &Value, url: &str, key: &str) -> Result<bool, String> {
    if run["verdict"] != "error" {
        return Ok(false);
    }
    for id in experiments_of(run) {
        let experiment = get(&format!("{url}/v1/experiments/{id}"), key)?;
        if experiment["settled_usd"] != 0.0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn experiments_of(run: &Value) -> Vec<String> {
    let ids = run["experiment_ids"].as_array().into_iter().flatten();
    ids.filter_map(|id| id.as_str().map(str::to_owned))
        .collect()
}

fn trigger(commit: &str, delivery: &str) -> Value {
    json!({"delivery_id": delivery, "commit": commit, "branch": "main"})
}

/// Sends a trigger, signed.
fn deliver(url: &str, template: &Template, trigger: &Value) -> Result<Value, String> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(template.secret.as_bytes())
        .map_err(|error| error.to_string())?;
    mac.update(trigger.to_string().as_bytes());
    let signature = hex::encode(mac.finalize().into_bytes());
    let request = agent()
        .post(format!("{url}/v1/webhooks/ci"))
        .header("x-bakeoff-template", &template.id)
        .header("x-bakeoff-signature-256", format!("sha256={signature}"));
    send(request, "", None, trigger)
}

/// More than two trials of one candidate can cost.
const BUDGET_USD: f64 = 400.0;

fn template(number: u32) -> Value {
    let mut workload = super::specs::workload();
    workload["image"] = json!("1.dkr.ecr.us-east-1.amazonaws.com/t:${ci.commit}");
    json!({"name": format!("storm-{number}"), "settings": {"branches": ["main"], "supersede": false,
        "gate": {"rounds": 1, "limits": [{"measure": "tokens_per_second", "worse_by_percent": 5}]}},
        "spec": {"name": "ci", "region": "us-east-1", "budget_usd": BUDGET_USD, "max_runtime_seconds": 5400,
            "objective": {"minimize": "cost"}, "workload": workload, "stopping_policy": "full",
            "candidates": [{"name": "p4de", "instance_type": "ml.p4de.24xlarge", "repeats": 2, "profile": super::specs::profile()}]}})
}
