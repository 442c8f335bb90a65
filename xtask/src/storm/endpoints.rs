//! Endpoints that people ask for: one whose life is extended and that is given a broken model, which is taken back; one
//! that is deleted by hand, and one while it is being created, when SageMaker refuses; one whose model answers nothing
//! useful, and one whose model never comes up; and one of a pipeline whose budget an extension would break.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::stage::Stage;
use super::verdict::booked::Booked;
use bakeoff_demo::http::{agent, delete, get, pages, send};

const EXTENDED: &str = "extended";
const DELETED: &str = "deleted";
const HASTY: &str = "hasty";
/// Their models are named after what becomes of them in the region.
const BROKEN: &str = "broken";
const CRASHES: &str = "crashes";
/// Hours that an endpoint is extended to, and dollars that bound them.
const HOURS: u32 = 2;
const BUDGET_USD: f64 = 20.0;
/// As long as SageMaker would let one of a pipeline live, and far beyond the pipeline's budget.
const FAR_TOO_LONG: u32 = 720;

/// The endpoints of a seed.
pub(super) struct Endpoints {
    pending: Vec<&'static str>,
    is_idle: bool,
    /// By id, with its name.
    accepted: BTreeMap<String, &'static str>,
    /// Those that were changed as they were to be.
    changed: BTreeSet<String>,
    is_given_a_broken_model: bool,
    pub(super) extensions: u64,
    pub(super) deletions: u64,
    /// Those that were asked for while the endpoint was being created.
    pub(super) early_deletions: u64,
    /// Extensions that a pipeline's budget refused.
    pub(super) refused: u64,
    /// Extensions that were granted beyond a pipeline's budget.
    pub(super) overdrawn: u32,
}

impl Endpoints {
    pub(super) fn new(is_idle: bool) -> Self {
        Self {
            pending: if is_idle {
                Vec::new()
            } else {
                vec![EXTENDED, DELETED, HASTY, BROKEN, CRASHES]
            },
            is_idle,
            accepted: BTreeMap::new(),
            changed: BTreeSet::new(),
            is_given_a_broken_model: false,
            extensions: 0,
            deletions: 0,
            early_deletions: 0,
            refused: 0,
            overdrawn: 0,
        }
    }

    pub(super) fn are_accepted(&self) -> bool {
        self.pending.is_empty()
    }

    /// Tries what is not done yet; an idempotency key makes a repeated create count once.
    pub(super) fn work(&mut self, stage: &Stage) {
        let Some(url) = stage.urls().into_iter().next().filter(|_| !self.is_idle) else {
            return;
        };
        let key = &stage.api_key;
        let accepted = &mut self.accepted;
        self.pending.retain(|name| {
            let request = agent().post(format!("{url}/v1/endpoints"));
            let answer = send(request, key, Some(name), &endpoint(name));
            let id = answer
                .ok()
                .and_then(|answer| answer["id"].as_str().map(str::to_owned));
            let is_pending = id.is_none();
            accepted.extend(id.map(|id| (id, *name)));
            is_pending
        });
        for one in pages(&format!("{url}/v1/endpoints"), key).unwrap_or_default() {
            if one["state"] == "in_service" {
                self.change(&url, key, &one);
            }
            if one["status"] == "Creating" {
                self.delete_early(&url, key, &one);
            }
        }
    }

    fn delete_early(&mut self, url: &str, key: &str, one: &Value) {
        let id = one["id"].as_str().unwrap_or_default();
        let is_hasty = self.accepted.get(id) == Some(&HASTY);
        if is_hasty
            && !self.changed.contains(id)
            && delete(&format!("{url}/v1/endpoints/{id}"), key).is_ok()
        {
            self.early_deletions += 1;
            self.changed.insert(id.to_owned());
        }
    }

    fn change(&mut self, url: &str, key: &str, one: &Value) {
        let id = one["id"].as_str().unwrap_or_default().to_owned();
        let path = format!("{url}/v1/endpoints/{id}");
        if self.changed.contains(&id) {
            let is_extended = self.accepted.get(&id) == Some(&EXTENDED);
            if is_extended && !self.is_given_a_broken_model {
                let body = json!({"model": model(BROKEN)});
                self.is_given_a_broken_model = send(agent().patch(&path), key, None, &body).is_ok();
            }
            return;
        }
        let extend = |hours: u32, budget_usd: Option<f64>| {
            let body = json!({"time_to_live_hours": hours, "budget_usd": budget_usd});
            send(agent().patch(&path), key, None, &body)
        };
        let is_done = match self.accepted.get(&id).copied() {
            Some(EXTENDED) => {
                let is_done = extend(HOURS, Some(BUDGET_USD)).is_ok();
                self.extensions += u64::from(is_done);
                is_done
            }
            Some(_) => {
                let is_done = delete(&path, key).is_ok();
                self.deletions += u64::from(is_done);
                is_done
            }
            None => match extend(FAR_TOO_LONG, None) {
                Ok(_) => {
                    self.overdrawn += 1;
                    true
                }
                // A refusal names the budget; anything else is tried again.
                Err(error) => {
                    let is_refused = error.contains("budget");
                    self.refused += u64::from(is_refused);
                    is_refused
                }
            },
        };
        if is_done {
            self.changed.insert(id);
        }
    }

    /// What the service believes of each of them.
    pub(super) fn believed(
        &self,
        url: &str,
        key: &str,
        micro: impl Fn(f64) -> i64,
    ) -> Result<ServiceEndpoints, String> {
        let mut believed = ServiceEndpoints::default();
        for (id, name) in &self.accepted {
            let view = get(&format!("{url}/v1/endpoints/{id}"), key)?;
            let has_served = !view["in_service_at"].is_null();
            let is_bad = [BROKEN, CRASHES].contains(name);
            if is_bad && has_served {
                believed
                    .wrong
                    .push(format!("{name} was put into service: {view}"));
            }
            believed.failed += u64::from(is_bad && view["state"] == "failed");
            let revisions = view["revisions"].as_array().into_iter().flatten();
            let outcomes = revisions.filter_map(|one| one["outcome"].as_str());
            let rolled_back = outcomes.filter(|outcome| outcome.contains("rolled back"));
            believed.rolled_back += rolled_back.count() as u64;
            believed.settled += micro(view["settled_usd"].as_f64().unwrap_or(f64::NAN));
            let experiment = view["experiment_id"].as_str().unwrap_or_default();
            let ledger = format!("{url}/v1/experiments/{experiment}/ledger?page_size=25");
            for entry in pages(&ledger, key)? {
                let job = entry["job_id"].as_str().unwrap_or_default().to_owned();
                let own = believed.booked.entry(job).or_insert_with(Booked::of_step);
                own.add(&entry);
            }
        }
        Ok(believed)
    }
}

/// What the service believes of the endpoints.
#[derive(Default)]
pub(super) struct ServiceEndpoints {
    /// What is booked for each of its own, by job.
    pub(super) booked: BTreeMap<String, Booked>,
    /// What all of them have cost, millionths of a dollar.
    pub(super) settled: i64,
    /// Those that failed, as they should, and updates that were rolled back.
    pub(super) failed: u64,
    pub(super) rolled_back: u64,
    pub(super) wrong: Vec<String>,
}

fn model(name: &str) -> Value {
    json!({"image": "serve:1", "model_s3_uri": format!("s3://storm/models/{name}/model.tar.gz")})
}

fn endpoint(name: &str) -> Value {
    let model = model(if [BROKEN, CRASHES].contains(&name) {
        name
    } else {
        "one"
    });
    json!({"name": name, "region": "us-east-1", "owner": "storm", "endpoint": {
        "model": model,
        "instance_type": "ml.g5.xlarge", "time_to_live_hours": 1, "role_arn": "arn:aws:iam::111122223333:role/serve",
        "smoke_test": {"body": "{}", "expect": "generated_text"}}})
}
