//! What SageMaker refuses of a tuning job.

use bakeoff_domain::catalog;
use serde_json::Value;

use super::{bound, config, definition, grid};
use crate::account::refusal::{Refusal, invalid};

/// Checks the members of a request and how they fit together.
pub(crate) fn check(body: &Value) -> Result<(), Refusal> {
    let name = body["HyperParameterTuningJobName"]
        .as_str()
        .unwrap_or_default();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !(1..=32).contains(&name.len()) || !name.chars().all(is_part) || name.starts_with('-') {
        return Err(invalid(format!(
            "1 validation error detected: Value '{name}' at 'hyperParameterTuningJobName' failed to satisfy constraint: Member must have length less than or equal to 32"
        )));
    }
    let (config, definition) = (config(body), definition(body));
    if definition.is_null() {
        return Err(invalid(
            "This region runs tuning jobs with a single TrainingJobDefinition",
        ));
    }
    let metric = config["HyperParameterTuningJobObjective"]["MetricName"].as_str();
    let metrics = definition["AlgorithmSpecification"]["MetricDefinitions"].as_array();
    let has_metric =
        metrics.is_some_and(|all| all.iter().any(|one| one["Name"].as_str() == metric));
    if !has_metric {
        return Err(invalid(
            "A metric is required for this hyperparameter tuning job objective. Provide a metric in the metric definitions.",
        ));
    }
    let is_hyperband = config["Strategy"] == "Hyperband";
    if is_hyperband && config["TrainingJobEarlyStoppingType"] == "Auto" {
        return Err(invalid(
            "TrainingJobEarlyStoppingType must be Off when Strategy is Hyperband",
        ));
    }
    let stopping = &definition["StoppingCondition"];
    let is_spot = definition["EnableManagedSpotTraining"] == true;
    if is_spot && stopping["MaxWaitTimeInSeconds"].is_null() {
        return Err(invalid(
            "MaxWaitTimeInSeconds above 0 must be specified when EnableManagedSpotTraining is true",
        ));
    }
    if stopping["MaxWaitTimeInSeconds"].as_u64() < stopping["MaxRuntimeInSeconds"].as_u64()
        && is_spot
    {
        return Err(invalid(
            "Invalid MaxWaitTimeInSeconds. It must be above or equal to MaxRuntimeInSeconds",
        ));
    }
    ranges(config)?;
    let kind = &definition["HyperParameterTuningResourceConfig"]["InstanceType"];
    if kind
        .as_str()
        .is_none_or(|kind| catalog::find(kind).is_none())
    {
        return Err(invalid(format!(
            "Value {kind} at 'instanceType' failed to satisfy constraint: Member must satisfy enum value set"
        )));
    }
    Ok(())
}

fn ranges(config: &Value) -> Result<(), Refusal> {
    let ranges = &config["ParameterRanges"];
    let count = |kind: &str| ranges[kind].as_array().map_or(0, Vec::len);
    let numbers = count("ContinuousParameterRanges") + count("IntegerParameterRanges");
    let all = numbers + count("CategoricalParameterRanges");
    if !(1..=30).contains(&all) {
        return Err(invalid("ParameterRanges must have 1 to 30 hyperparameters"));
    }
    let wanted = config["ResourceLimits"]["MaxNumberOfTrainingJobs"].as_u64();
    if config["Strategy"] == "Grid" {
        let combinations = u64::try_from(grid(ranges).len()).unwrap_or(u64::MAX);
        if numbers > 0 || wanted.is_some_and(|wanted| wanted != combinations) {
            return Err(invalid(format!(
                "Grid search takes categorical ranges only, and MaxNumberOfTrainingJobs must be {combinations}"
            )));
        }
    } else if !wanted.is_some_and(|wanted| (1..=10_000).contains(&wanted)) {
        return Err(invalid(
            "MaxNumberOfTrainingJobs must be between 1 and 10000",
        ));
    }
    for kind in ["ContinuousParameterRanges", "IntegerParameterRanges"] {
        for one in ranges[kind].as_array().into_iter().flatten() {
            let (min, max) = (bound(one, "MinValue"), bound(one, "MaxValue"));
            if min >= max || one["ScalingType"] == "Logarithmic" && min <= 0.0 {
                return Err(invalid(format!(
                    "The range of {} is not valid",
                    one["Name"]
                )));
            }
        }
    }
    Ok(())
}
