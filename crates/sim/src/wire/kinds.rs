//! SageMaker's operations on tuning jobs, batch transform jobs, models and endpoints, and requests to endpoints.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bakeoff_domain::catalog;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::listing::{created_between, lost, offset_of, page_size};
use super::{after, before};
use crate::account::refusal::{Refusal, invalid};
use crate::account::setup::denied;
use crate::jobs::endpoints;
use crate::jobs::model_packages::Call;
use crate::jobs::transform::{self, TransformJob};
use crate::jobs::tuning::{self, TuningJob};
use crate::wire::rules;
use crate::world::World;
use crate::world::region::Region;

/// Operations of these kinds, other than on models and endpoints.
pub(super) const TUNING: [&str; 5] = [
    "CreateHyperParameterTuningJob",
    "DescribeHyperParameterTuningJob",
    "StopHyperParameterTuningJob",
    "ListHyperParameterTuningJobs",
    "ListTrainingJobsForHyperParameterTuningJob",
];
pub(super) const TRANSFORM: [&str; 4] = [
    "CreateTransformJob",
    "DescribeTransformJob",
    "StopTransformJob",
    "ListTransformJobs",
];
pub(super) const HOSTING: [&str; 11] = [
    "CreateModel",
    "DescribeModel",
    "DeleteModel",
    "CreateEndpointConfig",
    "DescribeEndpointConfig",
    "DeleteEndpointConfig",
    "CreateEndpoint",
    "UpdateEndpoint",
    "DescribeEndpoint",
    "DeleteEndpoint",
    "ListEndpoints",
];

/// Calls that change something, whose reply may be lost.
fn changes(operation: &str) -> bool {
    ["Create", "Update", "Delete", "Stop"]
        .iter()
        .any(|verb| operation.starts_with(verb))
}

pub(super) fn endpoints(
    world: &mut World,
    operation: &str,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    if operation == "CreateModel" {
        rules::role(world, &body["ExecutionRoleArn"])?;
    }
    let variant = &body["ProductionVariants"][0]["InstanceType"];
    let kind = world
        .endpoint_type(body)
        .or(variant.as_str().map(str::to_owned));
    let drawn = endpoints::SampledDurations {
        lacks_capacity: operation == "CreateEndpoint" && world.is_short(kind.as_deref()),
        quota: kind
            .as_deref()
            .map_or(u32::MAX, |kind| world.quotas.of(kind)),
        seed: world.seed_of(body),
        launch_seconds: world.launches_within(),
        lag: world.lags(),
    };
    let (account, region) = (world.account.clone(), world.region.clone());
    let call = Call {
        account: &account,
        region: &region,
        body,
        now,
    };
    let answer = world.endpoints.call(operation, call, drawn);
    told(world, operation, answer)
}

/// The answer, unless its reply is lost, or what Describe shows is forgotten once.
fn told(
    world: &mut World,
    operation: &str,
    answer: Result<Value, Refusal>,
) -> Result<Value, Refusal> {
    if answer.is_ok() && changes(operation) && world.loses_reply() {
        return Err(lost());
    }
    if answer.is_ok()
        && operation == "DescribeEndpoint"
        && world.happens(world.faults.forgotten, "forgotten_job")
    {
        return Err(invalid("Could not find endpoint"));
    }
    answer
}

fn in_use(code: &'static str, arn: &str) -> Refusal {
    Refusal {
        code,
        message: format!(
            "Job name must be unique within an AWS account and region, and a job with this name already exists ({arn})"
        ),
    }
}

fn over_quota(what: &str, most: u32, used: u32, wanted: u32) -> Refusal {
    Refusal {
        code: "ResourceLimitExceeded",
        message: format!(
            "The account-level service limit '{what}' is {most} Instances, with current utilization of {used} Instances and a request delta of {wanted} Instances. Please use AWS Service Quotas to request an increase for this quota."
        ),
    }
}

pub(super) fn transform(
    region: &Region,
    world: &mut World,
    operation: &str,
    body: Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    let answer = match operation {
        "CreateTransformJob" => create_transform(region, world, body, now),
        "ListTransformJobs" => list_transforms(world, &body, now),
        _ => {
            let name = body["TransformJobName"].as_str().unwrap_or_default();
            let account = world.account.clone();
            let known = world.transforms.iter_mut().find(|job| {
                job.account == account && job.name == name && job.created_at + job.lag <= now
            });
            match known {
                None => Err(transform::not_found()),
                Some(job) if operation == "StopTransformJob" => job.stop(now),
                Some(job) => Ok(job.describe(now)),
            }
        }
    };
    if operation == "DescribeTransformJob"
        && answer.is_ok()
        && world.happens(world.faults.forgotten, "forgotten_job")
    {
        return Err(transform::not_found());
    }
    told(world, operation, answer)
}

fn has_transform_instances(world: &World, body: &Value, now: DateTime<Utc>) -> Result<(), Refusal> {
    let resources = &body["TransformResources"];
    let kind = resources["InstanceType"].as_str().unwrap_or_default();
    let wanted =
        u32::try_from(resources["InstanceCount"].as_u64().unwrap_or(0)).unwrap_or(u32::MAX);
    let busy = world.transforms.iter().filter(|job| {
        job.account == world.account && job.instance_type == kind && !job.is_over(now)
    });
    let used: u32 = busy.map(|job| job.count).sum();
    let most = world.quotas.of(kind);
    if used.saturating_add(wanted) > most {
        return Err(over_quota(
            &format!("{kind} for transform job usage"),
            most,
            used,
            wanted,
        ));
    }
    Ok(())
}

fn create_transform(
    region: &Region,
    world: &mut World,
    body: Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    let name = body["TransformJobName"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let own = |job: &&TransformJob| job.account == world.account && job.name == name;
    let existing = world.transforms.iter().find(own).map(|job| job.arn.clone());
    if existing.is_some() && world.denies_again() {
        return Err(denied("sagemaker:CreateTransformJob", &name));
    }
    transform::check(&body)?;
    has_model(world, &body, now)?;
    if let Some(arn) = existing {
        return Err(in_use("ResourceInUse", &arn));
    }
    has_transform_instances(world, &body, now)?;
    let uri = &body["TransformInput"]["DataSource"]["S3DataSource"]["S3Uri"];
    let uri = uri.as_str().unwrap_or_default();
    rules::has_input(region, &world.region, &body, uri)?;
    let kind = body["TransformResources"]["InstanceType"].as_str();
    let kind = kind.unwrap_or_default().to_owned();
    let drawn = transform::SampledDurations {
        failure: world.breaks(&kind),
        seed: world.seed_of(&body),
        launch_seconds: world.launches_within(),
        lag: world.lags(),
    };
    let (account, place) = (world.account.clone(), &world.region);
    let arn = format!("arn:aws:sagemaker:{place}:{account}:transform-job/{name}");
    let job = TransformJob::new(body, arn.clone(), account, drawn, now);
    world.transforms.extend(job);
    Ok(json!({ "TransformJobArn": arn }))
}

/// Refuses a batch transform whose model there is not.
fn has_model(world: &World, body: &Value, now: DateTime<Utc>) -> Result<(), Refusal> {
    let model = json!({"ModelName": body["ModelName"]});
    world.endpoints.has_model(Call {
        account: &world.account,
        region: &world.region,
        body: &model,
        now,
    })
}

fn list_transforms(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let (size, offset) = (page_size(body)?, offset_of(world, body)?);
    let fragment = body["NameContains"].as_str().unwrap_or_default();
    let within = |job: &&TransformJob| {
        job.account == world.account
            && job.created_at + job.lag <= now
            && created_between(body, job.created_at)
    };
    let mut all: Vec<&TransformJob> = world.transforms.iter().filter(within).collect();
    if body["SortOrder"] == "Descending" {
        all.reverse();
    }
    let page = all.iter().skip(offset).take(size);
    let page = page.filter(|job| job.name.contains(fragment));
    let page: Vec<Value> = page.map(|job| job.summary(now)).collect();
    Ok(paged(
        "TransformJobSummaries",
        &page,
        offset + size,
        all.len(),
    ))
}

fn paged(member: &str, page: &[Value], next: usize, count: usize) -> Value {
    let mut answer = json!({ member: page });
    if next < count {
        answer["NextToken"] = json!(format!("page-{next}"));
    }
    answer
}

pub(super) fn tuning(
    region: &Region,
    world: &mut World,
    operation: &str,
    body: Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    let answer = match operation {
        "CreateHyperParameterTuningJob" => create_tuning(region, world, body, now),
        "ListHyperParameterTuningJobs" => list_tunings(world, &body, now),
        "ListTrainingJobsForHyperParameterTuningJob" => {
            let (size, offset) = (page_size(&body)?, offset_of(world, &body)?);
            let trials = find_tuning(world, &body, now)?.trials(now);
            let page: Vec<Value> = trials.iter().skip(offset).take(size).cloned().collect();
            Ok(paged(
                "TrainingJobSummaries",
                &page,
                offset + size,
                trials.len(),
            ))
        }
        "StopHyperParameterTuningJob" => find_tuning(world, &body, now)?.stop(now),
        _ => Ok(find_tuning(world, &body, now)?.describe(now)),
    };
    if operation == "DescribeHyperParameterTuningJob"
        && answer.is_ok()
        && world.happens(world.faults.forgotten, "forgotten_job")
    {
        return Err(tuning::not_found());
    }
    told(world, operation, answer)
}

fn find_tuning<'a>(
    world: &'a mut World,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<&'a mut TuningJob, Refusal> {
    let name = body["HyperParameterTuningJobName"]
        .as_str()
        .unwrap_or_default();
    let account = world.account.clone();
    let mut all = world.tunings.iter_mut();
    let found = all.find(|job| {
        job.account == account
            && job.name.eq_ignore_ascii_case(name)
            && job.created_at + job.lag <= now
    });
    found.ok_or_else(tuning::not_found)
}

fn has_instances(world: &World, definition: &Value, now: DateTime<Utc>) -> Result<(), Refusal> {
    let resources = &definition["HyperParameterTuningResourceConfig"];
    let kind = resources["InstanceType"].as_str().unwrap_or_default();
    let count = u32::try_from(resources["InstanceCount"].as_u64().unwrap_or(1)).unwrap_or(u32::MAX);
    let busy = world.tunings.iter().filter(|job| {
        job.account == world.account && job.instance_type == kind && !job.is_over(now)
    });
    let used = busy.map(|job| job.in_use(now)).sum::<u32>();
    let used = used.saturating_add(world.in_use(kind, false, now));
    let most = world.quotas.of(kind);
    if used.saturating_add(count) > most {
        return Err(over_quota(
            &format!("{kind} for training job usage"),
            most,
            used,
            count,
        ));
    }
    Ok(())
}

/// Parents that are over, instances within the quota, and inputs.
fn has_place(
    region: &Region,
    world: &mut World,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<(), Refusal> {
    let definition = &body["TrainingJobDefinition"];
    for parent in body["WarmStartConfig"]["ParentHyperParameterTuningJobs"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let is_over = find_tuning(world, parent, now)?.is_over(now);
        if !is_over {
            return Err(invalid(
                "Parent hyperparameter tuning jobs must be in a terminal state",
            ));
        }
    }
    has_instances(world, definition, now)?;
    for channel in definition["InputDataConfig"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let uri = channel["DataSource"]["S3DataSource"]["S3Uri"].as_str();
        rules::has_input(region, &world.region, definition, uri.unwrap_or_default())?;
    }
    Ok(())
}

fn create_tuning(
    region: &Region,
    world: &mut World,
    body: Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    let name = body["HyperParameterTuningJobName"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let own =
        |job: &&TuningJob| job.account == world.account && job.name.eq_ignore_ascii_case(&name);
    let existing = world.tunings.iter().find(own).map(|job| job.arn.clone());
    if existing.is_some() && world.denies_again() {
        return Err(denied("sagemaker:CreateHyperParameterTuningJob", &name));
    }
    tuning::check(&body)?;
    let definition = &body["TrainingJobDefinition"];
    rules::role(world, &definition["RoleArn"])?;
    if let Some(arn) = existing {
        return Err(in_use("ResourceInUse", &arn));
    }
    has_place(region, world, &body, now)?;
    let drawn = tuning::SampledDurations {
        failing: world.faults.algorithm_error + world.faults.internal_error,
        seed: world.seed_of(&json!(tuning::seed_text(&body))),
        launch_seconds: world.launches_within(),
        lag: world.lags(),
    };
    let (account, place) = (world.account.clone(), world.region.clone());
    let arn = format!("arn:aws:sagemaker:{place}:{account}:hyper-parameter-tuning-job/{name}");
    let job = TuningJob::new(body, arn.clone(), account, drawn, now);
    world.tunings.extend(job);
    Ok(json!({ "HyperParameterTuningJobArn": arn }))
}

fn list_tunings(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let (size, offset) = (page_size(body)?, offset_of(world, body)?);
    let fragment = body["NameContains"].as_str().unwrap_or_default();
    let within = |job: &&TuningJob| {
        job.account == world.account
            && job.created_at + job.lag <= now
            && created_between(body, job.created_at)
    };
    let mut all: Vec<&TuningJob> = world.tunings.iter().filter(within).collect();
    if body["SortOrder"] == "Descending" {
        all.reverse();
    }
    let page = all.iter().skip(offset).take(size);
    let page = page.filter(|job| job.name.contains(fragment));
    let page: Vec<Value> = page.map(|job| job.summary(now)).collect();
    Ok(paged(
        "HyperParameterTuningJobSummaries",
        &page,
        offset + size,
        all.len(),
    ))
}

/// DescribeTrainingJob of a trial of a tuning job.
pub(super) fn describe_trial(world: &World, name: &str, now: DateTime<Utc>) -> Option<Value> {
    let own = world
        .tunings
        .iter()
        .filter(|job| job.account == world.account);
    own.filter(|job| name.starts_with(&job.name))
        .find_map(|job| job.describe_trial(name, now))
}

/// InvokeEndpoint, restJson1.
pub(super) async fn invoke(State(region): State<Region>, Path(name): Path<String>) -> Response {
    let fault = region.with(World::call_fault);
    if let Some(answer) = before(fault).await {
        return answer;
    }
    let now = region.now();
    let answer = region.with(|world| {
        if world.throttles("InvokeEndpoint", now) {
            return Err(Refusal {
                code: "ThrottlingException",
                message: "Rate exceeded".to_owned(),
            });
        }
        let account = world.account.clone();
        world.endpoints.invoke(&account, &name, now)
    });
    let answer = match answer {
        Ok(body) => axum::Json(body).into_response(),
        Err(refusal) => {
            let status = match refusal.code {
                "ModelError" => StatusCode::FAILED_DEPENDENCY,
                "ThrottlingException" => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::BAD_REQUEST,
            };
            let body = json!({ "Message": refusal.message, "message": refusal.message });
            (
                status,
                [("x-amzn-errortype", refusal.code)],
                axum::Json(body),
            )
                .into_response()
        }
    };
    after(fault, answer).await
}

impl World {
    /// The type of the configuration that a request names.
    fn endpoint_type(&self, body: &Value) -> Option<String> {
        let config = body["EndpointConfigName"].as_str()?;
        self.endpoints.type_of(&self.account, config)
    }

    /// Whether nothing of a type can be launched now.
    fn is_short(&mut self, kind: Option<&str>) -> bool {
        let is_known = kind.is_some_and(|kind| catalog::find(kind).is_some());
        is_known && self.happens(self.faults.no_capacity, "no_capacity")
    }

    /// Why a job on a type fails in the middle, if it does.
    fn breaks(&mut self, _kind: &str) -> Option<&'static str> {
        if self.happens(self.faults.internal_error, "internal_error") {
            return Some(
                "InternalServerError: We encountered an internal error. Please try again.",
            );
        }
        self.happens(self.faults.algorithm_error, "algorithm_error")
            .then_some("AlgorithmError: See job logs for more information")
    }

    fn lags(&mut self) -> TimeDelta {
        let is_lagging = self.happens(self.faults.lag, "lag");
        self.lag(is_lagging)
    }
}
