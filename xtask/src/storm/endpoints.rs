//! Endpoints that people ask for: one whose life is extended, one that is deleted by hand, and one of a pipeline whose
//! budget an extension would break.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::stage::Stage;
use super::verdict::booked::Booked;
use crate::http::{agent, delete, get, pages, send};

const EXTENDED: &str = "extended";
const DELETED: &str = "deleted";
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
    pub(super) extensions: u64,
    pub(super) deletions: u64,
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
                vec![EXTENDED, DELETED]
            },
            is_idle,
            accepted: BTreeMap::new(),
            changed: BTreeSet::new(),
            extensions: 0,
            deletions: 0,
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
        }
    }

    fn change(&mut self, url: &str, key: &str, one: &Value) {
        let id = one["id"].as_str().unwrap_or_default().to_owned();
        if self.changed.contains(&id) {
            return;
        }
        let path = format!("{url}/v1/endpoints/{id}");
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

    /// What is booked for each of its own, by job, and what all of them have cost, millionths of a dollar.
    pub(super) fn booked(
        &self,
        url: &str,
        key: &str,
        micro: impl Fn(f64) -> i64,
    ) -> Result<(BTreeMap<String, Booked>, i64), String> {
        let (mut booked, mut settled) = (BTreeMap::<String, Booked>::new(), 0);
        for id in self.accepted.keys() {
            let view = get(&format!("{url}/v1/endpoints/{id}"), key)?;
            settled += micro(view["settled_usd"].as_f64().unwrap_or(f64::NAN));
            let experiment = view["experiment_id"].as_str().unwrap_or_default();
            let ledger = format!("{url}/v1/experiments/{experiment}/ledger?page_size=25");
            for entry in pages(&ledger, key)? {
                let job = entry["job_id"].as_str().unwrap_or_default().to_owned();
                let own = booked.entry(job).or_insert_with(Booked::of_step);
                own.add(&entry);
            }
        }
        Ok((booked, settled))
    }
}

fn endpoint(name: &str) -> Value {
    json!({"name": name, "region": "us-east-1", "owner": "storm", "endpoint": {
        "model": {"image": "serve:1", "model_s3_uri": "s3://storm/models/one/model.tar.gz"},
        "instance_type": "ml.g5.xlarge", "time_to_live_hours": 1, "role_arn": "arn:aws:iam::111122223333:role/serve",
        "smoke_test": {"body": "{}", "expect": "generated_text"}}})
}
