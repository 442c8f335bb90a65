//! What the verdict counts once everything is over: reservations, webhooks, runs of CI, models, pipelines, endpoints.

use std::collections::BTreeMap;

use serde_json::Value;

use super::booked::{Booked, micro, text};
use super::{CENT, Client, Hooks, PAGE, Plan, ROUNDING, Record, Stage, Verdict, billed, is_paid};
use crate::storm::plan::Kind;
use crate::storm::{models, pipelines};
use bakeoff_demo::http::{get, pages};

/// Counts what can only be judged once everything is over.
pub(super) fn count(
    stage: &Stage,
    url: &str,
    plan: &Plan,
    client: &Client,
    endpoints_usd: i64,
    verdict: &mut Verdict,
) -> Result<(), String> {
    count_webhooks(&client.hooks, url, &stage.api_key, verdict)?;
    count_ci(client, url, &stage.api_key, verdict)?;
    let of_feed = client.feed.compare(url, &stage.api_key)?;
    verdict.feed_wrong = of_feed.len().try_into().unwrap_or(u32::MAX);
    verdict.notes.extend(of_feed);
    let pipelines = pipelines::believed(url, &stage.api_key, micro)?;
    let others = pipelines.settled + endpoints_usd;
    count_held(url, &stage.api_key, others, verdict)?;
    verdict.steps = pipelines.steps;
    let reused = verdict.faults.entry("step_reused".to_owned()).or_default();
    *reused += pipelines.reused;
    verdict.pipelines_bound = pipelines.bound;
    verdict.pipelines_wrong = pipelines.wrong.len().try_into().unwrap_or(u32::MAX);
    verdict.notes.extend(pipelines.wrong);
    if plan.twin == Some(Kind::Backup) {
        // A restored backup does not know what was asked for after it.
        return Ok(());
    }
    let found = models::compare(stage, url)?;
    verdict.packages = found.packages.try_into().unwrap_or(u64::MAX);
    verdict.packages_wrong = found.wrong.len().try_into().unwrap_or(u32::MAX);
    verdict.notes.extend(found.wrong);
    Ok(())
}

fn count_ci(client: &Client, url: &str, key: &str, verdict: &mut Verdict) -> Result<(), String> {
    let outcome = client.ci.compare(url, key)?;
    verdict.ci_runs = outcome.runs;
    verdict.ci_wrong = outcome.wrong.len().try_into().unwrap_or(u32::MAX);
    verdict.notes.extend(outcome.wrong);
    Ok(())
}

fn count_webhooks(
    hooks: &Hooks,
    url: &str,
    key: &str,
    verdict: &mut Verdict,
) -> Result<(), String> {
    let (arrived, mut wrong) = hooks.compare(url, key)?;
    let (gone, of_gone) = hooks.judge_gone(url, key)?;
    wrong.extend(of_gone);
    verdict.faults.insert("webhook_gone".to_owned(), gone);
    verdict.webhooks = arrived;
    verdict.webhooks_wrong = wrong.len().try_into().unwrap_or(u32::MAX);
    verdict.notes.extend(wrong);
    Ok(())
}

/// Counts endpoints and their parts that are left, and endpoints that the region bills above what was reserved: nothing
/// but their end at AWS keeps them within it while the service is away.
pub(super) fn endpoints(record: &Record, booked: &BTreeMap<String, Booked>, verdict: &mut Verdict) {
    for job in record.jobs.iter().filter(|job| job["kind"] == "endpoint") {
        let own = booked.get(&text(&job["attempt"]));
        let reserved = own.map(|own| own.reserved);
        if let Some(reserved) = reserved.filter(|reserved| billed(job) > *reserved + CENT) {
            verdict.over_budget += 1;
            verdict.notes.push(format!(
                "{} is billed {}, and {reserved} was reserved (millionths of a dollar): {job}",
                job["name"],
                billed(job)
            ));
        }
    }
    let is_there = |job: &&Value| job["kind"] == "endpoint" && job["status"] != "Deleted";
    // One that was asked to be deleted goes by itself.
    let is_left = |job: &&Value| is_there(job) && job["stop_asked_at"].is_null();
    let left = record.jobs.iter().filter(is_left).count();
    let left = left.saturating_add(usize::try_from(record.parts).unwrap_or(usize::MAX));
    verdict.endpoints_leaked = left.try_into().unwrap_or(u32::MAX);
    if left > 0 {
        let note = format!("{left} endpoints, configurations or models are left");
        verdict.notes.push(note);
    }
}

/// Checks that nothing is reserved once everything is over, neither for an experiment nor for the
/// project, and that the spending equals the ledger's total.
fn count_held(url: &str, key: &str, of_others: i64, verdict: &mut Verdict) -> Result<(), String> {
    let experiments = pages(&format!("{url}/v1/experiments"), key)?;
    let project = get(&format!("{url}/v1/projects/current"), key)?;
    let usd = |one: &Value, of: &str| micro(one[of].as_f64().unwrap_or(f64::NAN));
    let mut all = of_others;
    for experiment in &experiments {
        let id = text(&experiment["id"]);
        let ledger = pages(
            &format!("{url}/v1/experiments/{id}/ledger?page_size={PAGE}"),
            key,
        )?;
        let paid: i64 = ledger
            .iter()
            .filter(|entry| is_paid(entry))
            .map(|entry| usd(entry, "usd"))
            .sum();
        let (held, spent) = (
            usd(experiment, "reserved_usd"),
            usd(experiment, "settled_usd"),
        );
        all += spent;
        if held != 0 || (spent - paid).abs() > ROUNDING {
            verdict.lost += 1;
            verdict.wrong += 1;
            verdict.notes.push(format!(
                "{id} is over: {held} are reserved, {spent} spent, {paid} in its ledger"
            ));
        }
    }
    let (held, spent) = (usd(&project, "reserved_usd"), usd(&project, "settled_usd"));
    if held != 0 || (spent - all).abs() > ROUNDING {
        verdict.lost += 1;
        verdict.wrong += 1;
        verdict.notes.push(format!(
            "the project has {held} reserved and {spent} spent, its experiments {all}"
        ));
    }
    Ok(())
}
