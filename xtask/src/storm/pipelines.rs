//! Pipelines of processing jobs: started while everything fails, one of them cancelled, and compared with the
//! region's record at the end.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::stage::Stage;
use crate::http::{agent, get, pages, post, send};

/// A diamond of steps, which are tried again; and one that is cancelled as soon as its first job runs.
const GRAPH: &str = "graph";
const CUT: &str = "cut";

/// The pipelines of a seed.
pub(super) struct Pipelines {
    pending: Vec<&'static str>,
    /// By id, with its name.
    pub(super) accepted: BTreeMap<String, &'static str>,
    is_cut: bool,
}

impl Pipelines {
    /// A restored backup would not know all of them, and at its pace they would take minutes.
    pub(super) fn new(is_idle: bool) -> Self {
        Self {
            pending: if is_idle {
                Vec::new()
            } else {
                vec![GRAPH, CUT]
            },
            accepted: BTreeMap::new(),
            is_cut: is_idle,
        }
    }

    /// Tries what is not done yet; an idempotency key makes a repeated submission count once.
    pub(super) fn work(&mut self, stage: &Stage) {
        let Some(url) = stage.urls().into_iter().next() else {
            return;
        };
        let key = &stage.api_key;
        let accepted = &mut self.accepted;
        self.pending.retain(|name| {
            let request = agent().post(format!("{url}/v1/pipelines"));
            let answer = send(request, key, Some(name), &pipeline(name));
            let id = answer
                .ok()
                .and_then(|answer| Some(answer["id"].as_str()?.to_owned()));
            let is_pending = id.is_none();
            accepted.extend(id.map(|id| (id, *name)));
            is_pending
        });
        if !self.is_cut {
            self.cut(&url, key);
        }
    }

    /// Cancels one whose first job runs, or that is over already.
    fn cut(&mut self, url: &str, key: &str) {
        let Some((id, _)) = self.accepted.iter().find(|(_, name)| **name == CUT) else {
            return;
        };
        let Ok(seen) = get(&format!("{url}/v1/pipelines/{id}"), key) else {
            return;
        };
        let has_begun =
            seen["steps"][0]["job"]["state"] == "running" || !seen["ended_at"].is_null();
        if has_begun {
            let path = format!("{url}/v1/pipelines/{id}/cancel");
            self.is_cut = post(&path, key, &json!({})).is_ok();
        }
    }

    pub(super) fn are_over(&mut self, stage: &Stage) -> bool {
        self.work(stage);
        let Some(url) = stage.urls().into_iter().next() else {
            return false;
        };
        let all = pages(&format!("{url}/v1/pipelines"), &stage.api_key);
        let is_over = |one: &Value| !one["ended_at"].is_null();
        self.pending.is_empty()
            && all.is_ok_and(|all| all.len() == self.accepted.len() && all.iter().all(is_over))
    }
}

fn pipeline(name: &str) -> Value {
    let step = |step: &str, input: &str| {
        json!({"name": step, "retries": 2, "processing": {
            "image": "prep:1", "script_s3_uri": "s3://storm/train/part-0", "instance_type": "ml.m5.xlarge",
            "max_runtime_seconds": 1800, "reuse_if_unchanged": false, "environment": {"STEP": step},
            "inputs": [{"name": "raw", "s3_uri": input}], "outputs": [{"name": "out"}]}})
    };
    let raw = "s3://storm/train/";
    let steps = if name == GRAPH {
        vec![
            step("one", raw),
            step("left", "${one.outputs.out}"),
            step("right", "${one.outputs.out}"),
            step("last", "${left.outputs.out}"),
        ]
    } else {
        vec![step("one", raw), step("two", "${one.outputs.out}")]
    };
    json!({"name": name, "region": "us-east-1", "role_arn": "arn:aws:iam::111122223333:role/prep",
        "output_s3_uri": "s3://storm/pipelines", "budget_usd": 50, "steps": steps})
}

/// The region's jobs of each kind.
pub(super) fn by_kind(jobs: &[Value]) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for kind in jobs.iter().filter_map(|job| job["kind"].as_str()) {
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    kinds
}

/// What the service believes of its pipelines.
#[derive(Default)]
pub(super) struct Believed {
    /// The paid entries of each job, by its id.
    pub(super) entries: BTreeMap<String, Vec<Value>>,
    /// Steps that have completed.
    pub(super) steps: u64,
    /// Millionths of a dollar, over all pipelines.
    pub(super) settled: i64,
    /// What cannot be.
    pub(super) wrong: Vec<String>,
}

pub(super) fn believed(
    url: &str,
    key: &str,
    micro: impl Fn(f64) -> i64,
) -> Result<Believed, String> {
    let mut believed = Believed::default();
    for one in pages(&format!("{url}/v1/pipelines"), key)? {
        let (id, state) = (one["id"].as_str().unwrap_or_default(), &one["state"]);
        let steps = one["steps"].as_array().into_iter().flatten();
        let mut states: Vec<&str> = steps.filter_map(|step| step["state"].as_str()).collect();
        believed.steps += states.iter().filter(|state| **state == "completed").count() as u64;
        let usd = |of: &str| micro(one[of].as_f64().unwrap_or(f64::NAN));
        believed.settled += usd("settled_usd");
        let mut paid = 0;
        for entry in pages(&format!("{url}/v1/pipelines/{id}/ledger?page_size=25"), key)? {
            let job = entry["job_id"].as_str().unwrap_or_default().to_owned();
            let of_job = believed.entries.entry(job).or_default();
            if entry["kind"] == "settled" || entry["kind"] == "adjusted" {
                paid += micro(entry["usd"].as_f64().unwrap_or(f64::NAN));
                of_job.push(entry);
            }
        }
        if (usd("settled_usd") - paid).abs() > 100 || usd("reserved_usd") != 0 {
            believed
                .wrong
                .push(format!("{id} has {paid} in its ledger: {one}"));
        }
        states.sort_unstable();
        states.dedup();
        let is_well = match state.as_str() {
            Some("completed") => states == ["completed"],
            Some("failed") => states.contains(&"failed"),
            Some("cancelled") => states.contains(&"cancelled"),
            _ => false,
        };
        if !is_well {
            believed
                .wrong
                .push(format!("{id} is {state}, and its steps {states:?}"));
        }
    }
    Ok(believed)
}
