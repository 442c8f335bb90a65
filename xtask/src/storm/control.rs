//! What people change while everything fails: an experiment is paused and resumed, gets another budget and another
//! candidate, a trial is done once more, a bill is corrected, an experiment goes into the archive and comes back, and
//! one is trained to its end. Each succeeds once at most; what comes of it is judged like everything else, by the
//! region's own record.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::specs::{Accepted, POOLED, RACE, TIGHT, profile};
use super::stage::Stage;
use bakeoff_demo::http::{agent, get, pages, post, send};

pub(super) const PAUSE: &str = "pause";
pub(super) const BUDGET: &str = "budget_change";
pub(super) const ADD: &str = "candidate_added";
pub(super) const RETRY: &str = "retry";
pub(super) const CORRECT: &str = "correction";
pub(super) const ARCHIVE: &str = "archive";
pub(super) const FULL_RUN: &str = "full_run";
const ALL: [&str; 7] = [PAUSE, BUDGET, ADD, RETRY, CORRECT, ARCHIVE, FULL_RUN];
/// Of its budget, what an experiment keeps.
const KEPT: f64 = 0.97;

/// The changes of a seed.
pub(super) struct Control {
    pub(super) done: BTreeSet<&'static str>,
    /// What comes next.
    next: usize,
    /// Paused, and to be resumed.
    paused: Option<String>,
    /// In the archive, and to come back.
    archived: Option<String>,
    /// The budget of the full run that is to be started.
    full_run_usd: Option<f64>,
    /// Trials that may not be retried.
    refused: BTreeSet<String>,
    pub(super) correction: Option<Correction>,
    /// The last answer that was an error.
    pub(super) error: String,
}

/// What a bill said that was higher than the estimate: what is known so late may be over a budget.
pub(super) struct Correction {
    pub(super) experiment: String,
    /// By how much.
    pub(super) usd: f64,
}

/// A service that is asked.
struct Service<'a> {
    url: &'a str,
    key: &'a str,
    region_url: &'a str,
}

impl Service<'_> {
    fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        post(&format!("{}/v1/{path}", self.url), self.key, body)
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        get(&format!("{}/v1/{path}", self.url), self.key)
    }

    fn trials(&self, experiment: &str) -> Result<Vec<Value>, String> {
        let path = format!("{}/v1/experiments/{experiment}/trials", self.url);
        pages(&path, self.key)
    }
}

impl Control {
    pub(super) fn new(is_idle: bool) -> Self {
        Self {
            done: if is_idle { ALL.into() } else { BTreeSet::new() },
            next: 0,
            paused: None,
            archived: None,
            full_run_usd: None,
            refused: BTreeSet::new(),
            correction: None,
            error: String::new(),
        }
    }

    /// Tries one change that is not made yet, and takes back what is to be taken back. Whatever fails is tried again.
    pub(super) fn work(&mut self, stage: &Stage, url: &str, accepted: &mut Vec<Accepted>) {
        let service = Service {
            url,
            key: &stage.api_key,
            region_url: &stage.region_url,
        };
        self.take_back(&service);
        let mut all = ALL.into_iter().cycle().skip(self.next).take(ALL.len());
        let Some(change) = all.find(|change| !self.done.contains(change)) else {
            return;
        };
        self.next = ALL.iter().position(|one| *one == change).unwrap_or(0) + 1;
        match self.make(change, &service, accepted) {
            Ok(()) => drop(self.done.insert(change)),
            Err(error) => self.error = error,
        }
    }

    /// Whether nothing is left in the archive.
    pub(super) fn is_over(&self) -> bool {
        self.archived.is_none() && self.paused.is_none()
    }

    fn take_back(&mut self, service: &Service<'_>) {
        let is_back = |id: &String, how: &str| {
            let path = format!("experiments/{id}/{how}");
            service.post(&path, &json!({})).is_ok()
        };
        self.paused = self.paused.take().filter(|id| !is_back(id, "resume"));
        self.archived = self.archived.take().filter(|id| !is_back(id, "unarchive"));
    }

    fn make(
        &mut self,
        change: &str,
        service: &Service<'_>,
        accepted: &mut Vec<Accepted>,
    ) -> Result<(), String> {
        match change {
            PAUSE => {
                let id = named(accepted, TIGHT)?.id.clone();
                service.post(&format!("experiments/{id}/pause"), &json!({}))?;
                self.paused = Some(id);
            }
            BUDGET => {
                let one = accepted.iter_mut().find(|one| one.name == RACE);
                let one = one.ok_or("it is not submitted yet")?;
                let budget_usd = (one.budget_usd * KEPT).floor();
                let path = format!("{}/v1/experiments/{}", service.url, one.id);
                let body = json!({ "budget_usd": budget_usd });
                send(agent().patch(path), service.key, None, &body)?;
                one.budget_usd = budget_usd;
            }
            ADD => {
                let id = &named(accepted, POOLED)?.id;
                let body = json!({"name": "added", "instance_type": "ml.p4de.24xlarge", "profile": profile()});
                service.post(&format!("experiments/{id}/candidates"), &body)?;
            }
            RETRY => self.retry(service, accepted)?,
            CORRECT => {
                let experiment = named(accepted, POOLED)?.id.clone();
                self.correct(service, experiment)?;
            }
            ARCHIVE => {
                let id = &named(accepted, TIGHT)?.id;
                service.post(&format!("experiments/{id}/archive"), &json!({}))?;
                self.archived = Some(id.clone());
            }
            _ => {
                let id = named(accepted, POOLED)?.id.clone();
                let full_run = self.start_full_run(service, &id)?;
                accepted.push(full_run);
            }
        }
        Ok(())
    }

    fn correct(&mut self, service: &Service<'_>, experiment: String) -> Result<(), String> {
        let billed = billed(service, &experiment)?;
        // Of a try without an answer it is not known what was booked.
        let is_first = self.correction.is_none();
        self.correction = Some(Correction {
            experiment: experiment.clone(),
            usd: f64::INFINITY,
        });
        let usd = correct(service, &billed)?;
        if is_first {
            self.correction = Some(Correction { experiment, usd });
        }
        Ok(())
    }

    fn retry(&mut self, service: &Service<'_>, accepted: &[Accepted]) -> Result<(), String> {
        for experiment in accepted {
            for trial in service.trials(&experiment.id)? {
                let id = trial["id"].as_str().unwrap_or_default();
                let is_over = ["failed", "stopped", "refused"]
                    .iter()
                    .any(|state| trial["state"] == *state);
                if !is_over || self.refused.contains(id) {
                    continue;
                }
                let reply = service.post(&format!("trials/{id}/retry"), &json!({}));
                // A cancelled experiment stays so.
                if reply.as_ref().is_err_and(|why| why.contains("409")) {
                    self.refused.insert(id.to_owned());
                }
                return reply.map(drop);
            }
        }
        Err("no trial can be retried".to_owned())
    }

    /// Asks for the budget first, and then for as long as it takes for the run itself, which has one key.
    fn start_full_run(&mut self, service: &Service<'_>, id: &str) -> Result<Accepted, String> {
        let path = format!("experiments/{id}/full-run");
        let budget_usd = if let Some(usd) = self.full_run_usd {
            usd
        } else {
            let plan = service.get(&format!("{path}?candidate=p4de"))?;
            plan["budget_usd"].as_f64().ok_or("it has no budget")?
        };
        self.full_run_usd = Some(budget_usd);
        let body = json!({"budget_usd": budget_usd, "candidate": "p4de"});
        let request = agent().post(format!("{}/v1/{path}", service.url));
        let made = send(request, service.key, Some(FULL_RUN), &body)?;
        Ok(Accepted {
            id: made["id"].as_str().ok_or("it has no id")?.to_owned(),
            name: FULL_RUN,
            budget_usd,
        })
    }
}

fn named<'a>(accepted: &'a [Accepted], name: &str) -> Result<&'a Accepted, String> {
    let found = accepted.iter().find(|one| one.name == name);
    found.ok_or_else(|| format!("{name} is not submitted yet"))
}

/// What AWS's bill says of a job.
struct Billed {
    job: String,
    seconds: u64,
}

/// Of the first settled job of an experiment.
fn billed(service: &Service<'_>, experiment: &str) -> Result<Billed, String> {
    let record = get(&format!("{}/_sim/record", service.region_url), "")?;
    let jobs = record["jobs"].as_array().cloned().unwrap_or_default();
    let trials = service.trials(experiment)?;
    let attempts = trials
        .iter()
        .flat_map(|trial| trial["attempts"].as_array().into_iter().flatten());
    let settled = attempts.filter(|attempt| attempt["billable_seconds"].is_u64());
    let mut billed = settled.filter_map(|attempt| {
        let job = jobs.iter().find(|job| job["attempt"] == attempt["id"])?;
        Some(Billed {
            job: attempt["id"].as_str()?.to_owned(),
            seconds: job["billable_seconds"].as_u64()?,
        })
    });
    billed
        .next()
        .ok_or_else(|| "nothing is settled yet".to_owned())
}

/// Books it: of an estimate the truth, of anything else the same again. By how many dollars it is more.
fn correct(service: &Service<'_>, billed: &Billed) -> Result<f64, String> {
    let body = json!({"billable_seconds": billed.seconds, "reason": "the bill of the month"});
    let booked = service.post(&format!("jobs/{}/corrections", billed.job), &body)?;
    let usd = booked["adjusted_usd"].as_f64();
    Ok(usd.ok_or("it does not say by how much")?.max(0.0))
}
