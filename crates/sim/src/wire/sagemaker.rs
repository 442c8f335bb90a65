//! SageMaker's operations on training jobs and tags, and the way to those on other kinds of job, endpoints and the Model Registry. All others answer with an error.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::describe::{describe, summary};
use super::listing::{created_between, lost, offset_of, page_size};
use super::{kinds, processing};
use crate::account::refusal::{Refusal, invalid};
use crate::account::request::tags;
use crate::jobs::job::Job;
use crate::jobs::model_packages::Call;
use crate::jobs::pools::PoolEnd;
use crate::output::checkpoints;
use crate::wire::rules;
use crate::world::World;
use crate::world::region::Region;

pub(super) fn call(region: &Region, operation: &str, body: Value) -> Result<Value, Refusal> {
    region.with_time(|world, now| {
        if world.throttles(operation, now) {
            return Err(Refusal {
                code: "ThrottlingException",
                message: "Rate exceeded".to_owned(),
            });
        }
        match operation {
            "CreateTrainingJob" => create(region, world, body, now),
            operation if kinds::HOSTING.contains(&operation) => {
                kinds::endpoints(world, operation, &body, now)
            }
            operation if kinds::TRANSFORM.contains(&operation) => {
                kinds::transform(region, world, operation, body, now)
            }
            operation if kinds::TUNING.contains(&operation) => {
                kinds::tuning(region, world, operation, body, now)
            }
            "DescribeTrainingJob" => {
                let name = body["TrainingJobName"].as_str().unwrap_or("");
                if let Some(trial) = kinds::describe_trial(world, name, now) {
                    return Ok(trial);
                }
                let job = find(world, &body, now)?;
                let answer = describe(job, now - job.describe_lag);
                let was_shown = std::mem::replace(&mut job.is_shown, true);
                if was_shown && world.happens(world.faults.forgotten, "forgotten_job") {
                    return Err(not_found());
                }
                Ok(odd(world, answer))
            }
            "StopTrainingJob" => stop(world, &body, now),
            "ListTrainingJobs" => list(world, &body, now),
            "UpdateTrainingJob" => update(world, &body, now),
            "DeleteTrainingJob" => delete(world, &body, now),
            "CreateProcessingJob"
            | "DescribeProcessingJob"
            | "StopProcessingJob"
            | "DeleteProcessingJob"
            | "ListProcessingJobs" => processing::call(region, world, operation, body, now),
            "AddTags" => add_tags(world, &body, now),
            "CreateModelPackageGroup"
            | "CreateModelPackage"
            | "DescribeModelPackage"
            | "ListModelPackages"
            | "UpdateModelPackage" => registry(world, operation, &body, now),
            "ListTags" => list_tags(world, &body, now),
            other => Err(Refusal {
                code: "UnknownOperationException",
                message: format!("the simulated region does not know {other}"),
            }),
        }
    })
}

/// Operations of the Model Registry.
fn registry(
    world: &mut World,
    operation: &str,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    let (account, region) = (world.account.clone(), world.region.clone());
    let call = Call {
        account: &account,
        region: &region,
        body,
        now,
    };
    let forgets = operation == "CreateModelPackage"
        && world.happens(world.faults.forgotten_token, "forgotten_token");
    let is_late = operation == "CreateModelPackageGroup"
        && world.happens(world.faults.late_group, "late_group");
    let registry = &mut world.model_packages;
    if forgets {
        registry.forget_tokens();
    }
    if is_late {
        registry.delay_group(call);
    }
    let answer = match operation {
        "CreateModelPackageGroup" => registry.create_group(call),
        "CreateModelPackage" => registry.create(call),
        "DescribeModelPackage" => registry.describe(call),
        "ListModelPackages" => registry.list(call),
        _ => registry.update(call),
    }?;
    if operation == "CreateModelPackage" && world.loses_reply() {
        return Err(lost());
    }
    Ok(answer)
}

fn create(
    region: &Region,
    world: &mut World,
    body: Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    let is_taken = body["TrainingJobName"]
        .as_str()
        .is_some_and(|name| world.job(name).is_some());
    if is_taken && world.denies_again() {
        let message = "User is not authorized to perform: sagemaker:CreateTrainingJob".to_owned();
        return Err(Refusal {
            code: "AccessDeniedException",
            message,
        });
    }
    rules::check_create(region, world, &body, now)?;
    let saved = body["CheckpointConfig"]["S3Uri"].as_str();
    world.resumed_from = saved
        .filter(|_| world.resumes)
        .map_or(0.0, |uri| checkpoints::newest_step(region, uri));
    let created = world
        .create(body, now)
        .map(|job| json!({ "TrainingJobArn": job.arn }));
    if world.loses_reply() {
        return Err(lost());
    }
    created.ok_or_else(|| invalid("the request is not one that this region can carry out"))
}

/// Finds a job for Describe and Stop; one whose creation has not propagated is not visible yet.
fn find<'a>(
    world: &'a mut World,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<&'a mut Job, Refusal> {
    let name = body["TrainingJobName"].as_str().unwrap_or("");
    let known = world
        .job_mut(name)
        .filter(|job| job.created_at + job.describe_lag <= now);
    known.ok_or_else(not_found)
}

fn not_found() -> Refusal {
    invalid("Requested resource not found.")
}

fn stop(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let job = find(world, body, now)?;
    if job.timeline.is_over(now) {
        return Err(invalid(format!(
            "The request was rejected because the training job is in status {}.",
            job.timeline.end_status
        )));
    }
    job.stop_asked_at.get_or_insert(now);
    if job.status(now) != "Stopping" {
        job.timeline.stop(now);
    }
    Ok(json!({}))
}

/// Sometimes replaces the status with one that no SDK knows, or shows a job that is over as being deleted.
fn odd(world: &mut World, mut entry: Value) -> Value {
    if world.happens(world.faults.odd_status, "odd_status") {
        entry["TrainingJobStatus"] = json!("Hibernating");
        entry["SecondaryStatus"] = json!("Dreaming");
    }
    let is_over = matches!(
        entry["TrainingJobStatus"].as_str(),
        Some("Completed" | "Failed" | "Stopped")
    );
    if is_over && world.happens(world.faults.deleting, "deleting") {
        entry["TrainingJobStatus"] = json!("Deleting");
    }
    entry
}

/// Only an idle pool can be changed; setting its keep-alive to zero ends it.
fn update(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let job = find(world, body, now)?;
    if !job.has_idle_pool(now) {
        return Err(invalid(
            "Warm pool can only be updated when it is in Available status.",
        ));
    }
    match body["ResourceConfig"]["KeepAlivePeriodInSeconds"].as_u64() {
        Some(0) => {
            job.pool_end = Some(PoolEnd {
                at: now,
                reused_by: None,
            });
        }
        Some(seconds) => job.request["ResourceConfig"]["KeepAlivePeriodInSeconds"] = json!(seconds),
        None => return Err(invalid("KeepAlivePeriodInSeconds is missing")),
    }
    Ok(json!({ "TrainingJobArn": job.arn }))
}

fn delete(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let job = find(world, body, now)?;
    if !job.timeline.is_over(now) {
        return Err(invalid(
            "The training job must be in a terminal status to be deleted.",
        ));
    }
    let name = job.name.clone();
    world.delete(&name);
    Ok(json!({}))
}

/// Takes the page first and filters by name and status afterwards, so a page can be short or empty
/// and still be followed by another.
fn list(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let mut size = page_size(body)?;
    let offset = offset_of(world, body)?;
    let count = created_within(world, body, now).len();
    let rest = count.saturating_sub(offset).min(size);
    if rest > 1 && world.happens(world.faults.short_pages, "short_page") {
        // What is left out comes with the next page. A page of size zero would return its own token
        // again.
        size = world.fewer_than(rest).max(1);
    }
    let fragment = body["NameContains"].as_str().unwrap_or("");
    let status = body["StatusEquals"].as_str();
    let asked: Vec<&Job> = created_within(world, body, now)
        .into_iter()
        .skip(offset)
        .take(size)
        .filter(|job| job.name.contains(fragment))
        .filter(|job| status.is_none_or(|wanted| wanted == job.status(now - job.list_lag)))
        .collect();
    let page: Vec<Value> = asked
        .iter()
        .map(|job| summary(job, now - job.list_lag))
        .collect();
    let idle: BTreeSet<String> = asked
        .iter()
        .filter(|job| job.has_idle_pool(now - job.list_lag))
        .map(|job| job.name.clone())
        .collect();
    for job in world.jobs.iter_mut().filter(|job| idle.contains(&job.name)) {
        job.pool_listed += 1;
    }
    let page: Vec<Value> = page.into_iter().map(|entry| odd(world, entry)).collect();
    let mut answer = json!({ "TrainingJobSummaries": page });
    if offset + size < count {
        answer["NextToken"] = json!(format!("page-{}", offset + size));
    }
    Ok(answer)
}

/// The account's jobs that List shows by now and that were created in the requested range, in the
/// requested order.
fn created_within<'a>(world: &'a World, body: &Value, now: DateTime<Utc>) -> Vec<&'a Job> {
    let is_asked_for = |job: &&Job| {
        job.account == world.account
            && job.created_at + job.list_lag <= now
            && created_between(body, job.created_at)
    };
    let mut matching: Vec<&Job> = world.jobs.iter().filter(is_asked_for).collect();
    if body["SortBy"] == "Name" {
        matching.sort_by(|a, b| a.name.cmp(&b.name));
    }
    if body["SortOrder"] == "Descending" {
        matching.reverse();
    }
    matching
}

/// The tags of a job of any kind, by its ARN.
fn tags_of<'a>(
    world: &'a mut World,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<&'a mut BTreeMap<String, String>, Refusal> {
    let arn = body["ResourceArn"].as_str().unwrap_or("").to_owned();
    let name = arn.rsplit_once('/').map_or("", |(_, name)| name).to_owned();
    let tags = if arn.contains(":endpoint/") {
        world.endpoints.tags(&arn, now)
    } else if arn.contains(":transform-job/") {
        let job = world.transforms.iter_mut().find(|job| job.arn == arn);
        job.map(|job| &mut job.tags)
    } else if arn.contains(":hyper-parameter-tuning-job/") {
        let job = world.tunings.iter_mut().find(|job| job.arn == arn);
        job.map(|job| &mut job.tags)
    } else if arn.contains(":processing-job/") {
        let job = world.processing_job_mut(&name);
        job.filter(|job| job.arn == arn).map(|job| &mut job.tags)
    } else {
        let job = world.job_mut(&name);
        job.filter(|job| job.arn == arn).map(|job| &mut job.tags)
    };
    tags.ok_or_else(not_found)
}

fn add_tags(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let known = tags_of(world, body, now)?;
    known.extend(tags(&body["Tags"]));
    Ok(json!({ "Tags": tag_list(known) }))
}

fn list_tags(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    Ok(json!({ "Tags": tag_list(tags_of(world, body, now)?) }))
}

fn tag_list(tags: &BTreeMap<String, String>) -> Vec<Value> {
    tags.iter()
        .map(|(key, value)| json!({ "Key": key, "Value": value }))
        .collect()
}
