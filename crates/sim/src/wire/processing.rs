//! SageMaker's operations on processing jobs.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::listing::{created_between, lost, offset_of, page_size};
use crate::account::refusal::{Refusal, invalid};
use crate::account::setup::denied;
use crate::jobs::processing::{self, ProcessingJob};
use crate::wire::rules;
use crate::world::World;
use crate::world::region::Region;

pub(super) fn call(
    region: &Region,
    world: &mut World,
    operation: &str,
    body: Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    match operation {
        "CreateProcessingJob" => create(region, world, body, now),
        "DescribeProcessingJob" => describe(world, &body, now),
        "StopProcessingJob" => stop(world, &body, now),
        "DeleteProcessingJob" => delete(world, &body, now),
        _ => list(world, &body, now),
    }
}

fn create(
    region: &Region,
    world: &mut World,
    body: Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    let name = body["ProcessingJobName"].as_str().unwrap_or_default();
    let existing = world.processing_job(name).map(|job| job.arn.clone());
    if existing.is_some() && world.denies_again() {
        return Err(denied("sagemaker:CreateProcessingJob", name));
    }
    processing::check(&body)?;
    rules::role(world, &body["RoleArn"])?;
    if let Some(arn) = existing {
        return Err(Refusal {
            code: "ResourceInUse",
            message: format!(
                "Job name must be unique within an AWS account and region, and a job with this name already exists ({arn})"
            ),
        });
    }
    let image = body["AppSpecification"]["ImageUri"].as_str();
    world
        .setup
        .check_job(&body, image.unwrap_or_default(), &world.region)?;
    quota(world, &body, now)?;
    for uri in processing::inputs(&body) {
        rules::has_input(region, &world.region, &body, uri)?;
    }
    let arn = world.create_processing(body, now);
    if world.loses_reply() {
        return Err(lost());
    }
    let arn =
        arn.ok_or_else(|| invalid("the request is not one that this region can carry out"))?;
    Ok(json!({ "ProcessingJobArn": arn }))
}

fn quota(world: &World, body: &Value, now: DateTime<Utc>) -> Result<(), Refusal> {
    let cluster = &body["ProcessingResources"]["ClusterConfig"];
    let kind = cluster["InstanceType"].as_str().unwrap_or_default();
    let wanted = cluster["InstanceCount"].as_u64().unwrap_or(0);
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
    let busy = world.processing.iter().filter(|job| {
        job.account == world.account && job.instance.instance_type == kind && !job.is_over(now)
    });
    let used: u32 = busy.map(|job| job.count).sum();
    let most = world.quotas.of(kind);
    if used.saturating_add(wanted) <= most {
        return Ok(());
    }
    Err(Refusal {
        code: "ResourceLimitExceeded",
        message: format!(
            "The account-level service limit '{kind} for processing job usage' is {most} Instances, with current utilization of {used} Instances and a request delta of {wanted} Instances. Please contact AWS support to request an increase for this limit."
        ),
    })
}

/// Finds a job for Describe and Stop; one whose creation has not propagated is not visible yet.
fn find<'a>(
    world: &'a mut World,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<&'a mut ProcessingJob, Refusal> {
    let name = body["ProcessingJobName"].as_str().unwrap_or_default();
    let known = world
        .processing_job_mut(name)
        .filter(|job| job.created_at + job.describe_lag <= now);
    known.ok_or_else(processing::not_found)
}

fn describe(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let job = find(world, body, now)?;
    let told = job.describe(now - job.describe_lag);
    let was_shown = std::mem::replace(&mut job.is_shown, true);
    if was_shown && world.happens(world.faults.forgotten, "forgotten_job") {
        return Err(processing::not_found());
    }
    Ok(odd(world, told))
}

/// Sometimes replaces the status with one that no SDK knows.
fn odd(world: &mut World, mut entry: Value) -> Value {
    if world.happens(world.faults.odd_status, "odd_status") {
        entry["ProcessingJobStatus"] = json!("Hibernating");
    }
    entry
}

fn stop(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let job = find(world, body, now)?;
    if job.is_over(now) {
        return Err(invalid(format!(
            "The request was rejected because the processing job is in status {}.",
            job.status(now)
        )));
    }
    job.stop(now);
    Ok(json!({}))
}

/// Forgets a job that is over, which frees its name.
fn delete(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let job = find(world, body, now)?;
    if !job.is_over(now) {
        return Err(invalid(
            "The processing job must be in a terminal status to be deleted.",
        ));
    }
    let (account, name) = (job.account.clone(), job.name.clone());
    world.delete_processing(&account, &name);
    Ok(json!({}))
}

/// Takes the page first and filters by name and status afterwards, as for training jobs. Oldest first
/// unless it is asked for otherwise.
fn list(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let size = page_size(body)?;
    let offset = offset_of(world, body)?;
    let within = |job: &&ProcessingJob| {
        job.account == world.account
            && job.created_at + job.list_lag <= now
            && created_between(body, job.created_at)
    };
    let mut all: Vec<&ProcessingJob> = world.processing.iter().filter(within).collect();
    if body["SortBy"] == "Name" {
        all.sort_by(|a, b| a.name.cmp(&b.name));
    }
    if body["SortOrder"] == "Descending" {
        all.reverse();
    }
    let fragment = body["NameContains"].as_str().unwrap_or("");
    let status = body["StatusEquals"].as_str();
    let count = all.len();
    let page = all.into_iter().skip(offset).take(size);
    let page: Vec<Value> = page
        .filter(|job| job.name.contains(fragment))
        .filter(|job| status.is_none_or(|wanted| wanted == job.status(now - job.list_lag)))
        .map(|job| job.summary(now - job.list_lag))
        .collect();
    let page: Vec<Value> = page.into_iter().map(|entry| odd(world, entry)).collect();
    let mut answer = json!({ "ProcessingJobSummaries": page });
    if offset + size < count {
        answer["NextToken"] = json!(format!("page-{}", offset + size));
    }
    Ok(answer)
}
