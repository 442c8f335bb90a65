//! Another project in the same service: it has an experiment of its own, of which nobody else can read anything, and
//! which is billed to it alone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::specs::{profile, workload};
use super::stage::Stage;
use super::verdict::booked::{Booked, micro};
use bakeoff_demo::http::{agent, found, get, pages, send};

const NAME: &str = "neighbour";
const BUDGET_USD: f64 = 2000.0;

pub(super) struct Neighbour {
    id: Option<String>,
    is_idle: bool,
}

impl Neighbour {
    pub(super) fn new(is_idle: bool) -> Self {
        Self { id: None, is_idle }
    }

    pub(super) fn work(&mut self, stage: &Stage, url: &str) {
        if self.is_idle || self.id.is_some() {
            return;
        }
        let spec = json!({"name": NAME, "region": "us-east-1", "budget_usd": BUDGET_USD, "max_runtime_seconds": 5400,
            "objective": {"minimize": "cost"}, "workload": workload(), "candidates": [
                {"name": "p4de", "instance_type": "ml.p4de.24xlarge", "profile": profile(), "repeats": 1}]});
        let request = agent().post(format!("{url}/v1/experiments"));
        let made = send(request, &stage.neighbour_key, Some(NAME), &spec).unwrap_or_default();
        self.id = made["id"].as_str().map(str::to_owned);
    }

    pub(super) fn is_over(&self, stage: &Stage, url: &str) -> bool {
        let Some(id) = &self.id else {
            return self.is_idle;
        };
        let seen = get(&format!("{url}/v1/experiments/{id}"), &stage.neighbour_key);
        seen.is_ok_and(|seen| !seen["ended_at"].is_null())
    }

    /// What is booked for its jobs, and what cannot be.
    pub(super) fn believed(
        &self,
        stage: &Stage,
        url: &str,
    ) -> Result<(BTreeMap<String, Booked>, Vec<String>), String> {
        let (mut booked, mut wrong) = (BTreeMap::<String, Booked>::new(), Vec::new());
        let Some(id) = &self.id else {
            return Ok((booked, wrong));
        };
        let own = format!("{url}/v1/experiments/{id}");
        if found(&own, &stage.api_key)?.is_some() {
            wrong.push("one project reads another's experiment".to_owned());
        }
        let key = &stage.neighbour_key;
        let mut paid = 0;
        for entry in pages(&format!("{own}/ledger?page_size=25"), key)? {
            let job = entry["job_id"].as_str().unwrap_or_default().to_owned();
            booked
                .entry(job)
                .or_insert_with(Booked::of_step)
                .add(&entry);
            if entry["kind"] == "settled" || entry["kind"] == "adjusted" {
                paid += micro(entry["usd"].as_f64().unwrap_or(f64::NAN));
            }
        }
        let project = get(&format!("{url}/v1/projects/current"), key)?;
        let usd = |of: &Value| micro(of.as_f64().unwrap_or(f64::NAN));
        if (usd(&project["settled_usd"]) - paid).abs() > 100 || usd(&project["reserved_usd"]) != 0 {
            wrong.push(format!(
                "the neighbour's ledger has {paid}, and its project {project}"
            ));
        }
        Ok((booked, wrong))
    }
}
