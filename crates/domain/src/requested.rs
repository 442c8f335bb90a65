//! Requested against actual: what SageMaker says it runs, beside what was asked for. It drops some settings without a word (a
//! keep-alive without a pool quota, for one); a difference is reported, once.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job::TrainingJobRequest;

/// The settings of a job as SageMaker reports them. `None`: it did not say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Actual {
    pub instance_type: Option<String>,
    pub instance_count: Option<u32>,
    pub spot: Option<bool>,
    pub keep_alive_seconds: Option<u32>,
    pub checkpoint_s3_uri: Option<String>,
    pub metric_names: Vec<String>,
}

/// One setting that is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// SageMaker's own name of it.
    pub field: &'static str,
    pub requested: String,
    pub actual: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SageMaker runs it with {} {}, and {} was asked for", self.field, self.actual, self.requested)
    }
}

/// Differences, in the order of the request.
pub fn differences(request: &TrainingJobRequest, actual: &Actual) -> Vec<Difference> {
    let names = |names: Vec<&str>| {
        let mut names = names;
        names.sort_unstable();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    let pairs = [
        ("InstanceType", request.instance_type.clone(), or_none(actual.instance_type.clone())),
        (
            "InstanceCount",
            request.instance_count.to_string(),
            or_none(actual.instance_count.map(|count| count.to_string())),
        ),
        (
            "EnableManagedSpotTraining",
            request.max_wait_seconds.is_some().to_string(),
            actual.spot.unwrap_or(false).to_string(),
        ),
        (
            "KeepAlivePeriodInSeconds",
            request.keep_alive_seconds.unwrap_or(0).to_string(),
            actual.keep_alive_seconds.unwrap_or(0).to_string(),
        ),
        (
            "CheckpointConfig.S3Uri",
            or_none(request.checkpoint.as_ref().map(|checkpoint| checkpoint.s3_uri.clone())),
            or_none(actual.checkpoint_s3_uri.clone()),
        ),
        (
            "MetricDefinitions",
            names(request.metrics.iter().map(|metric| metric.name.as_str()).collect()),
            names(actual.metric_names.iter().map(String::as_str).collect()),
        ),
    ];
    let differ = pairs.into_iter().filter(|(_, requested, actual)| requested != actual);
    differ.map(|(field, requested, actual)| Difference { field, requested, actual }).collect()
}
