//! Pipelines: started while everything fails, one of them cancelled, one with an endpoint that is updated, and
//! compared with the region's record at the end.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::plan::Kind;
use super::stage::Stage;
use bakeoff_demo::http::{agent, get, pages, post, send};

/// A diamond of steps, which are tried again, and the first of them once more, whose output is there already; one that is
/// cancelled as soon as its first job runs; and one that tunes, transforms and serves.
const GRAPH: &str = "graph";
const CUT: &str = "cut";
const SERVE: &str = "serve";
/// The diamond again, with a budget for its first step alone: ml.m5.xlarge at $0.23 an hour, for half an hour. Its name
/// is its idempotency key, so no experiment may have it.
const BOUND: &str = "bound";
const BOUND_USD: f64 = 0.12;
/// Part of the reason of a step that its pipeline's budget does not cover.
const BUDGET_TOO_SMALL: &str = "of the pipeline's";

/// The pipelines of a seed.
pub(super) struct Pipelines {
    pending: Vec<&'static str>,
    /// By id, with its name.
    pub(super) accepted: BTreeMap<String, &'static str>,
    is_cut: bool,
    /// Whether the endpoint was given another model, or is over.
    is_updated: bool,
    /// The last answer to a submission that was an error.
    pub(super) error: String,
}

impl Pipelines {
    /// A restored backup would not know all of them; beside a copy, at whose pace the others would take minutes, there is
    /// one that is cancelled.
    pub(super) fn new(twin: Option<Kind>) -> Self {
        Self {
            pending: match twin {
                None => vec![GRAPH, CUT, SERVE, BOUND],
                Some(Kind::Copy) => vec![CUT],
                Some(Kind::Backup) => Vec::new(),
            },
            accepted: BTreeMap::new(),
            is_cut: twin == Some(Kind::Backup),
            is_updated: twin.is_some(),
            error: String::new(),
        }
    }

    /// Tries what is not done yet; an idempotency key makes a repeated submission count once.
    pub(super) fn work(&mut self, stage: &Stage) {
        let Some(url) = stage.urls().into_iter().next() else {
            return;
        };
        let key = &stage.api_key;
        let (accepted, last_error) = (&mut self.accepted, &mut self.error);
        self.pending.retain(|name| {
            let request = agent().post(format!("{url}/v1/pipelines"));
            match send(request, key, Some(name), &pipeline(name)) {
                Ok(answer) => {
                    let id = answer["id"].as_str().map(str::to_owned);
                    let is_pending = id.is_none();
                    accepted.extend(id.map(|id| (id, *name)));
                    is_pending
                }
                Err(error) => {
                    *last_error = error;
                    true
                }
            }
        });
        if !self.is_cut {
            self.cut(&url, key);
        }
        if !self.is_updated {
            self.update(&url, key);
        }
    }

    /// Gives the endpoint another model once it serves; if it is over before that, nothing is lost.
    fn update(&mut self, url: &str, key: &str) {
        for one in pages(&format!("{url}/v1/endpoints"), key).unwrap_or_default() {
            let path = format!(
                "{url}/v1/endpoints/{}",
                one["id"].as_str().unwrap_or_default()
            );
            if one["state"] == "in_service" {
                let body = json!({"model": model("two")});
                let request = agent().patch(path);
                self.is_updated |= send(request, key, None, &body).is_ok();
            }
            self.is_updated |= !one["ended_at"].is_null();
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
            seen["steps"][0]["jobs"][0]["state"] == "running" || !seen["ended_at"].is_null();
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
        let endpoints = pages(&format!("{url}/v1/endpoints"), &stage.api_key);
        self.pending.is_empty()
            && endpoints.is_ok_and(|all| all.iter().all(is_over))
            && all.is_ok_and(|all| all.len() == self.accepted.len() && all.iter().all(is_over))
    }
}

fn model(name: &str) -> Value {
    json!({"image": "serve:1", "model_s3_uri": format!("s3://storm/models/{name}/model.tar.gz")})
}

/// A tuning on two types, and, beside it, a batch transform and an endpoint.
fn serve() -> Vec<Value> {
    let tuning = json!({
        "strategy": "random", "trials": 4, "parallel": 2, "image": "train:1", "objective": {"metric": "loss"},
        "metrics": [{"name": "loss", "regex": "loss=([0-9.]+)", "meaning": "validation_loss"}],
        "channels": [{"name": "train", "s3_uri": "s3://storm/train/"}], "max_runtime_seconds": 1800,
        "ranges": {"lr": {"min": "1e-5", "max": "1e-3", "scaling": "logarithmic"}},
        "candidates": [{"instance_type": "ml.g5.xlarge"}, {"instance_type": "ml.g5.2xlarge"}]});
    let transform = json!({"model": model("one"), "instance_type": "ml.g5.xlarge", "input_s3_uri": "s3://storm/train/",
        "max_runtime_seconds": 3600});
    let endpoint = json!({"model": model("one"), "instance_type": "ml.g5.xlarge", "time_to_live_hours": 1,
        "smoke_test": {"body": "{}", "expect": "generated_text"}});
    vec![
        json!({"name": "tune", "retries": 2, "tuning": tuning}),
        json!({"name": "predict", "retries": 2, "transform": transform}),
        json!({"name": "serve", "retries": 2, "endpoint": endpoint}),
    ]
}

fn pipeline(name: &str) -> Value {
    let step = |step: &str, input: &str| {
        json!({"name": step, "retries": 2, "processing": {
            "image": "prep:1", "script_s3_uri": "s3://storm/train/part-0", "instance_type": "ml.m5.xlarge",
            "max_runtime_seconds": 1800, "reuse_if_unchanged": name == GRAPH, "environment": {"STEP": step},
            "inputs": [{"name": "raw", "s3_uri": input}], "outputs": [{"name": "out"}]}})
    };
    let raw = "s3://storm/train/";
    let steps = if name == GRAPH || name == BOUND {
        let mut again = step("one", raw);
        (again["name"], again["after"]) = (json!("again"), json!(["last"]));
        let first = [
            step("one", raw),
            step("left", "${one.outputs.out}"),
            step("right", "${one.outputs.out}"),
            step("last", "${left.outputs.out}"),
        ];
        first.into_iter().chain([again]).collect()
    } else if name == SERVE {
        serve()
    } else {
        vec![step("one", raw), step("two", "${one.outputs.out}")]
    };
    json!({"name": name, "region": "us-east-1", "role_arn": "arn:aws:iam::111122223333:role/prep",
        "output_s3_uri": "s3://storm/pipelines", "budget_usd": if name == BOUND { BOUND_USD } else { 120.0 }, "steps": steps})
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
pub(super) struct ServicePipelines {
    /// The entries of each job in the ledger, by its id.
    pub(super) entries: BTreeMap<String, Vec<Value>>,
    /// Steps that have completed.
    pub(super) steps: u64,
    /// Steps that took over what an equal one had made.
    pub(super) reused: u64,
    /// Pipelines that failed because their budget did not hold the next step.
    pub(super) bound: u64,
    /// Millionths of a dollar, over all pipelines.
    pub(super) settled: i64,
    /// What cannot be.
    pub(super) wrong: Vec<String>,
}

pub(super) fn believed(
    url: &str,
    key: &str,
    micro: impl Fn(f64) -> i64,
) -> Result<ServicePipelines, String> {
    let mut believed = ServicePipelines::default();
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
            }
            of_job.push(entry);
        }
        if (usd("settled_usd") - paid).abs() > 100 || usd("reserved_usd") != 0 {
            believed
                .wrong
                .push(format!("{id} has {paid} in its ledger: {one}"));
        }
        let mut steps = one["steps"].as_array().into_iter().flatten();
        let reused = steps.clone().filter(|step| !step["reused_from"].is_null());
        believed.reused += reused.count() as u64;
        let is_bound = |step: &Value| {
            let why = step["reason"].as_str().unwrap_or_default();
            step["state"] == "failed" && why.contains(BUDGET_TOO_SMALL)
        };
        believed.bound += u64::from(steps.any(is_bound));
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
