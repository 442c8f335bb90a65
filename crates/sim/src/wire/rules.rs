//! The real service's rules for CreateTrainingJob, with its error texts where public reports show
//! them.

use bakeoff_domain::catalog;
use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::account::constraints;
use crate::account::refusal::{Refusal, invalid};
use crate::account::request::groups;
use crate::world::region::Region;
use crate::world::{ACCOUNT, World};

/// Checks everything that CreateTrainingJob refuses, in the service's order: shape, cross-field
/// rules, role, name, quota, inputs.
pub(crate) fn check_create(
    region: &Region,
    world: &World,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<(), Refusal> {
    shape(body)?;
    spot_and_pools(body)?;
    role(world, &body["RoleArn"])?;
    let name = body["TrainingJobName"].as_str().unwrap_or("");
    if let Some(existing) = world.job(name) {
        return Err(Refusal {
            code: "ResourceInUse",
            message: format!(
                "Training job names must be unique within an AWS account and region, and a training job with this name already exists ({})",
                existing.arn
            ),
        });
    }
    world.setup.check_create(body, &world.region)?;
    quota(world, body, now)?;
    inputs(region, &world.region, body)
}

/// A role can only be passed by credentials of its own account. The text is that of other services;
/// SageMaker's code for it is assumed. Whoever uses the region as it starts brings roles of any
/// account.
pub(crate) fn role(world: &World, role: &Value) -> Result<(), Refusal> {
    let role = role.as_str().unwrap_or_default();
    let is_own = role.split(':').nth(4) == Some(world.account.as_str());
    if world.account == ACCOUNT || is_own {
        return Ok(());
    }
    Err(invalid("RoleArn: Cross-account pass role is not allowed."))
}

fn shape(body: &Value) -> Result<(), Refusal> {
    constraints::check(body)?;
    let resources = &body["ResourceConfig"];
    let groups = groups(body);
    if let Some(all) = resources["InstanceGroups"].as_array() {
        if resources["InstanceType"].is_string() || resources["InstanceCount"].is_u64() {
            return Err(invalid(
                "InstanceGroups cannot be combined with InstanceType and InstanceCount",
            ));
        }
        if all.len() != groups.len()
            || all
                .iter()
                .any(|group| !group["InstanceGroupName"].is_string())
        {
            return Err(invalid(
                "Each instance group needs InstanceGroupName, InstanceType and InstanceCount",
            ));
        }
    }
    if resources["InstancePreferences"].is_array() {
        return Err(invalid("This region knows no InstancePreferences"));
    }
    if groups.is_empty() {
        return Err(missing("resourceConfig.instanceType"));
    }
    for (kind, count) in &groups {
        let Some(instance) = catalog::find(kind) else {
            return Err(invalid(format!(
                "1 validation error detected: Value '{kind}' at 'resourceConfig.instanceType' failed to satisfy constraint: Member must satisfy enum value set: [{}]",
                catalog::all()
                    .iter()
                    .map(|known| known.instance_type.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            )));
        };
        if *count == 0 || *count > 1000 {
            return Err(invalid("InstanceCount must be at least 1"));
        }
        if instance.nvme_gb == 0
            && resources["VolumeSizeInGB"]
                .as_u64()
                .is_none_or(|gb| gb == 0)
        {
            return Err(invalid(format!("VolumeSizeInGB is required for {kind}")));
        }
        if instance.nvme_gb > 0 && resources["VolumeKmsKeyId"].is_string() {
            return Err(invalid(format!(
                "VolumeKmsKeyId is not supported for {kind}, which has local storage"
            )));
        }
    }
    let algorithm = &body["AlgorithmSpecification"];
    if algorithm["TrainingImage"].is_string() == algorithm["AlgorithmName"].is_string() {
        return Err(invalid(
            "Exactly one of TrainingImage and AlgorithmName must be given",
        ));
    }
    Ok(())
}

fn missing(path: &str) -> Refusal {
    invalid(format!(
        "1 validation error detected: Value null at '{path}' failed to satisfy constraint: Member must not be null"
    ))
}

fn spot_and_pools(body: &Value) -> Result<(), Refusal> {
    let is_spot = body["EnableManagedSpotTraining"].as_bool().unwrap_or(false);
    let runtime = body["StoppingCondition"]["MaxRuntimeInSeconds"].as_u64();
    let wait = body["StoppingCondition"]["MaxWaitTimeInSeconds"].as_u64();
    if runtime.is_some_and(|seconds| seconds == 0 || seconds > 28 * 86_400) {
        return Err(invalid(
            "MaxRuntimeInSeconds must be between 1 second and 28 days",
        ));
    }
    let keep_alive = body["ResourceConfig"]["KeepAlivePeriodInSeconds"]
        .as_u64()
        .unwrap_or(0);
    if keep_alive > 0 && body["ResourceConfig"]["InstanceGroups"].is_array() {
        return Err(invalid(
            "KeepAlivePeriodInSeconds cannot be combined with heterogeneous clusters",
        ));
    }
    match (is_spot, wait) {
        (false, Some(_)) => Err(invalid(
            "Invalid MaxWaitTimeInSeconds. It is only supported when EnableManagedSpotTraining is set to true",
        )),
        (true, None) => Err(invalid(
            "MaxWaitTimeInSeconds is required when EnableManagedSpotTraining is set to true",
        )),
        (true, Some(wait)) if wait < runtime.unwrap_or(86_400) => Err(invalid(
            "Invalid MaxWaitTimeInSeconds. It must be equal to or greater than MaxRuntimeInSeconds",
        )),
        (true, Some(_)) if keep_alive > 0 => Err(invalid(
            "KeepAlivePeriodInSeconds cannot be combined with managed spot training",
        )),
        _ => Ok(()),
    }
}

fn quota(world: &World, body: &Value, now: DateTime<Utc>) -> Result<(), Refusal> {
    let is_spot = body["EnableManagedSpotTraining"].as_bool().unwrap_or(false);
    for (kind, count) in groups(body) {
        let wanted = u32::try_from(count).unwrap_or(u32::MAX);
        let used = world.in_use(&kind, is_spot, now);
        let most = world.quotas.of(&kind);
        // The instances of a pool that the job would take over are already counted.
        if used.saturating_add(wanted) > most && world.pool_for(body, now).is_none() {
            let usage = if is_spot {
                "spot training job"
            } else {
                "training job"
            };
            return Err(Refusal {
                code: "ResourceLimitExceeded",
                message: format!(
                    "The account-level service limit '{kind} for {usage} usage' is {most} Instances, with current utilization of {used} Instances and a request delta of {wanted} Instances. Please contact AWS support to request an increase for this limit."
                ),
            });
        }
    }
    Ok(())
}

fn inputs(region: &Region, name: &str, body: &Value) -> Result<(), Refusal> {
    let channels = body["InputDataConfig"].as_array().into_iter().flatten();
    for uri in
        channels.filter_map(|channel| channel["DataSource"]["S3DataSource"]["S3Uri"].as_str())
    {
        has_input(region, name, body, uri)?;
    }
    Ok(())
}

/// Refuses an input of which there is nothing in S3.
pub(crate) fn has_input(
    region: &Region,
    name: &str,
    body: &Value,
    uri: &str,
) -> Result<(), Refusal> {
    if region.has_object(uri) {
        return Ok(());
    }
    let bucket = uri
        .trim_start_matches("s3://")
        .split('/')
        .next()
        .unwrap_or_default();
    let role = body["RoleArn"].as_str().unwrap_or("");
    Err(invalid(format!(
        "No S3 objects found under S3 URL \"{uri}\" given in input data source. Please ensure that the bucket exists in the selected region ({name}), that objects exist under that S3 prefix, and that the role \"{role}\" has \"s3:ListBucket\" permissions on bucket \"{bucket}\"."
    )))
}
