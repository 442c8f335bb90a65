//! The real service's rules on CreateTrainingJob, with its error texts where they are known from public reports.

use bakeoff_domain::catalog;
use chrono::{DateTime, Utc};
use regex::Regex;
use serde_json::Value;

use crate::Region;
use crate::world::World;

/// An error on the wire: SageMaker's code and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal { code: "ValidationException", message: message.into() }
}

const NAME_PATTERN: &str = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}";
const ROLE_PATTERN: &str = r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+";

/// Everything CreateTrainingJob refuses, in the service's order: shape, cross-field rules, name, quota, inputs.
pub(crate) fn check_create(region: &Region, world: &World, body: &Value, now: DateTime<Utc>) -> Result<(), Refusal> {
    shape(body)?;
    spot_and_pools(body)?;
    let name = body["TrainingJobName"].as_str().unwrap_or_default();
    if let Some(existing) = world.job(name) {
        return Err(Refusal {
            code: "ResourceInUse",
            message: format!(
                "Training job names must be unique within an AWS account and region, and a training job with this name already exists ({})",
                existing.arn
            ),
        });
    }
    quota(world, body, now)?;
    inputs(region, body)
}

fn shape(body: &Value) -> Result<(), Refusal> {
    pattern(body, "TrainingJobName", "trainingJobName", NAME_PATTERN)?;
    pattern(body, "RoleArn", "roleArn", ROLE_PATTERN)?;
    if !body["OutputDataConfig"]["S3OutputPath"].is_string() {
        return Err(missing("outputDataConfig.s3OutputPath"));
    }
    let kind = body["ResourceConfig"]["InstanceType"].as_str().unwrap_or_default();
    if catalog::find(kind).is_none() {
        return Err(invalid(format!(
            "1 validation error detected: Value '{kind}' at 'resourceConfig.instanceType' failed to satisfy constraint: Member must satisfy enum value set: [{}]",
            catalog::all().iter().map(|known| known.instance_type.as_str()).collect::<Vec<_>>().join(", ")
        )));
    }
    let count = body["ResourceConfig"]["InstanceCount"].as_u64().unwrap_or(0);
    if count == 0 || count > 1000 {
        return Err(invalid("InstanceCount must be at least 1"));
    }
    let hyper = body["HyperParameters"].as_object();
    if hyper.is_some_and(|entries| entries.len() > 100) {
        return Err(too_long("hyperParameters", 100));
    }
    let is_long = |value: &Value| value.as_str().is_some_and(|text| text.len() > 2500);
    if hyper.is_some_and(|entries| entries.values().any(is_long)) {
        return Err(too_long("hyperParameters", 2500));
    }
    let environment = body["Environment"].as_object();
    if environment.is_some_and(|entries| entries.len() > 100) {
        return Err(too_long("environment", 100));
    }
    Ok(())
}

fn missing(path: &str) -> Refusal {
    invalid(format!(
        "1 validation error detected: Value null at '{path}' failed to satisfy constraint: Member must not be null"
    ))
}

fn too_long(path: &str, most: usize) -> Refusal {
    invalid(format!(
        "1 validation error detected: Value at '{path}' failed to satisfy constraint: Member must have length less than or equal to {most}"
    ))
}

fn pattern(body: &Value, field: &str, path: &str, pattern: &str) -> Result<(), Refusal> {
    let Some(value) = body[field].as_str() else { return Err(missing(path)) };
    let matches = Regex::new(&format!("^(?:{pattern})$")).is_ok_and(|regex| regex.is_match(value));
    if matches && value.len() <= 2048 {
        return Ok(());
    }
    Err(invalid(format!(
        "1 validation error detected: Value '{value}' at '{path}' failed to satisfy constraint: Member must satisfy regular expression pattern: {pattern}"
    )))
}

fn spot_and_pools(body: &Value) -> Result<(), Refusal> {
    let is_spot = body["EnableManagedSpotTraining"].as_bool().unwrap_or(false);
    let runtime = body["StoppingCondition"]["MaxRuntimeInSeconds"].as_u64();
    let wait = body["StoppingCondition"]["MaxWaitTimeInSeconds"].as_u64();
    if runtime.is_some_and(|seconds| seconds == 0 || seconds > 28 * 86_400) {
        return Err(invalid("MaxRuntimeInSeconds must be between 1 second and 28 days"));
    }
    let keep_alive = body["ResourceConfig"]["KeepAlivePeriodInSeconds"].as_i64();
    if keep_alive.is_some_and(|seconds| !(0..=21_600).contains(&seconds)) {
        return Err(invalid(
            "1 validation error detected: Value at 'resourceConfig.keepAlivePeriodInSeconds' failed to satisfy constraint: Member must have value less than or equal to 21600",
        ));
    }
    match (is_spot, wait) {
        (false, Some(_)) => Err(invalid(
            "Invalid MaxWaitTimeInSeconds. It is only supported when EnableManagedSpotTraining is set to true",
        )),
        (true, None) => Err(invalid("MaxWaitTimeInSeconds is required when EnableManagedSpotTraining is set to true")),
        (true, Some(wait)) if wait < runtime.unwrap_or(86_400) => {
            Err(invalid("Invalid MaxWaitTimeInSeconds. It must be equal to or greater than MaxRuntimeInSeconds"))
        }
        (true, Some(_)) if body["ResourceConfig"]["KeepAlivePeriodInSeconds"].as_u64().unwrap_or(0) > 0 => {
            Err(invalid("KeepAlivePeriodInSeconds cannot be combined with managed spot training"))
        }
        _ => Ok(()),
    }
}

fn quota(world: &World, body: &Value, now: DateTime<Utc>) -> Result<(), Refusal> {
    let kind = body["ResourceConfig"]["InstanceType"].as_str().unwrap_or_default();
    let is_spot = body["EnableManagedSpotTraining"].as_bool().unwrap_or(false);
    let wanted = u32::try_from(body["ResourceConfig"]["InstanceCount"].as_u64().unwrap_or(0)).unwrap_or(u32::MAX);
    let used = world.in_use(kind, is_spot, now);
    let most = world.quotas.of(kind);
    // The instances of a pool that it takes over are counted already.
    if used.saturating_add(wanted) <= most || world.pool_for(body, now).is_some() {
        return Ok(());
    }
    let usage = if is_spot { "spot training job" } else { "training job" };
    Err(Refusal {
        code: "ResourceLimitExceeded",
        message: format!(
            "The account-level service limit '{kind} for {usage} usage' is {most} Instances, with current utilization of {used} Instances and a request delta of {wanted} Instances. Please contact AWS support to request an increase for this limit."
        ),
    })
}

fn inputs(region: &Region, body: &Value) -> Result<(), Refusal> {
    let channels = body["InputDataConfig"].as_array().into_iter().flatten();
    for uri in channels.filter_map(|channel| channel["DataSource"]["S3DataSource"]["S3Uri"].as_str()) {
        if !region.has_object(uri) {
            let bucket = uri.trim_start_matches("s3://").split('/').next().unwrap_or_default();
            let role = body["RoleArn"].as_str().unwrap_or_default();
            return Err(invalid(format!(
                "No S3 objects found under S3 URL \"{uri}\" given in input data source. Please ensure that the bucket exists in the selected region (us-east-1), that objects exist under that S3 prefix, and that the role \"{role}\" has \"s3:ListBucket\" permissions on bucket \"{bucket}\"."
            )));
        }
    }
    Ok(())
}
