//! The verdict on a run, read from the region's own record: one job for each attempt, none without
//! a row, and the ledger equal to the region's bill (its own arithmetic, in integers) to the cent.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::http::{get, get_large};
use crate::stack::Stack;

pub struct Verdict {
    pub holds: bool,
    pub json: Value,
    pub text: String,
}

struct Ledger {
    /// Micro-dollars settled for each attempt's job, by attempt id.
    settled: BTreeMap<String, i64>,
    attempts: Vec<String>,
    /// Still reserved when everything is over.
    reserved: f64,
}

impl Ledger {
    /// Adds an entry, if it settles an attempt's job.
    fn settle(&mut self, entry: &Value) {
        if entry["kind"] == "settled" && entry["component"] == "training" {
            let attempt = entry["job_id"].as_str().unwrap_or("").to_owned();
            *self.settled.entry(attempt).or_default() +=
                micro(entry["usd"].as_f64().unwrap_or(f64::NAN));
        }
    }
}

pub fn verify(stack: &Stack) -> Result<Verdict, String> {
    let record = get_large(&format!("{}/_sim/record", stack.region_url), "")?;
    let ledger = ledger(stack)?;
    let jobs = record["jobs"].as_array().cloned().unwrap_or_default();
    let mut per_attempt: BTreeMap<String, u32> = BTreeMap::new();
    let mut rows = Vec::new();
    let (mut disagree, mut without_row) = (0, 0);
    for job in &jobs {
        let attempt = job["attempt"].as_str().unwrap_or_default().to_owned();
        *per_attempt.entry(attempt.clone()).or_default() += 1;
        without_row += i32::from(!ledger.attempts.contains(&attempt));
        let billed = job["micro_usd"].as_i64().unwrap_or(-1);
        let settled = ledger.settled.get(&attempt).copied().unwrap_or(-2);
        let agrees = cents(billed) == cents(settled);
        disagree += i32::from(!agrees);
        rows.push(json!({
            "attempt": attempt, "instance_type": job["instance_type"], "spot": job["spot"],
            "billable_seconds": job["billable_seconds"],
            "region_usd": usd(billed), "ledger_usd": usd(settled), "agrees_to_the_cent": agrees,
        }));
    }
    let duplicates = per_attempt.values().filter(|count| **count > 1).count();
    let lost = ledger
        .attempts
        .iter()
        .filter(|attempt| !per_attempt.contains_key(*attempt))
        .count();
    let is_released = ledger.reserved.abs() < 1e-9;
    let holds = disagree == 0
        && without_row == 0
        && duplicates == 0
        && lost == 0
        && is_released
        && !jobs.is_empty();
    let text = format!(
        "Held against the region's own record: {} jobs for {} attempts, {duplicates} duplicates, {without_row} without a row; \
         the ledger {} its bill to the cent; {} is still reserved.",
        jobs.len(),
        ledger.attempts.len(),
        if disagree == 0 {
            "agrees with"
        } else {
            "DISAGREES with"
        },
        ledger.reserved
    );
    let json = json!({
        "jobs": jobs.len(), "attempts": ledger.attempts.len(), "duplicates": duplicates, "jobs_without_row": without_row,
        "attempts_without_job": lost, "ledger_agrees_to_the_cent": disagree == 0, "still_reserved_usd": ledger.reserved,
        "rows": rows, "region_calls": record["calls"],
    });
    Ok(Verdict { holds, json, text })
}

fn ledger(stack: &Stack) -> Result<Ledger, String> {
    let mut ledger = Ledger {
        settled: BTreeMap::new(),
        attempts: Vec::new(),
        reserved: 0.0,
    };
    let experiments = get(&format!("{}/v1/experiments", stack.url), &stack.api_key)?;
    for experiment in experiments["items"].as_array().into_iter().flatten() {
        ledger.reserved += experiment["reserved_usd"].as_f64().unwrap_or(f64::NAN);
        let id = experiment["id"].as_str().unwrap_or_default();
        let base = format!("{}/v1/experiments/{id}", stack.url);
        let trials = get(&format!("{base}/trials"), &stack.api_key)?;
        let attempts = trials["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|trial| trial["attempts"].as_array());
        ledger.attempts.extend(
            attempts
                .flatten()
                .filter_map(|attempt| Some(attempt["id"].as_str()?.to_owned())),
        );
        let entries = get(&format!("{base}/ledger?page_size=500"), &stack.api_key)?;
        for entry in entries["items"].as_array().into_iter().flatten() {
            ledger.settle(entry);
        }
    }
    Ok(ledger)
}

#[expect(clippy::cast_possible_truncation, reason = "dollars of a demo")]
fn micro(usd: f64) -> i64 {
    (usd * 1e6).round() as i64
}

fn cents(micro_usd: i64) -> i64 {
    (micro_usd + 5000).div_euclid(10_000)
}

#[expect(clippy::cast_precision_loss, reason = "dollars of a demo")]
fn usd(micro_usd: i64) -> f64 {
    micro_usd as f64 / 1e6
}
