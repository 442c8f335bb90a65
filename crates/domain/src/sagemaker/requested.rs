//! Compares the settings that SageMaker reports for a job with the requested ones. SageMaker
//! silently drops some settings (for example, a keep-alive without a pool quota); each difference
//! is reported once.

use super::observed::Actual;
use crate::ids::JobId;
use crate::sagemaker::request::TrainingJobRequest;
use std::collections::BTreeMap;

/// A setting that differs from the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// SageMaker's name for the setting.
    pub field: &'static str,
    pub requested: String,
    pub actual: String,
}

/// Lists the differences, in the order of the request.
pub fn differences(request: &TrainingJobRequest, actual: &Actual) -> Vec<Difference> {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    let pairs = [
        (
            "InstanceType",
            request.instance_type.clone(),
            or_none(actual.instance_type.clone()),
        ),
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
            or_none(
                request
                    .checkpoint
                    .as_ref()
                    .map(|checkpoint| checkpoint.s3_uri.clone()),
            ),
            or_none(actual.checkpoint_s3_uri.clone()),
        ),
        (
            "MetricDefinitions",
            sorted_names(request.metrics.iter().map(|metric| metric.name.as_str())),
            sorted_names(actual.metric_names.iter().map(String::as_str)),
        ),
    ];
    let differ = pairs
        .into_iter()
        .filter(|(_, requested, actual)| requested != actual);
    differ
        .map(|(field, requested, actual)| Difference {
            field,
            requested,
            actual,
        })
        .collect()
}

/// One text for the same names in any order.
fn sorted_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// Whether an attempt's tags are checked: one job in two hundred. Reading tags costs a call, and
/// only people and cost reports use them.
pub fn is_sampled(attempt: JobId) -> bool {
    attempt.0.as_u128().is_multiple_of(200)
}

/// Requested tags that are missing or have another value.
pub fn missing_tags(
    request: &TrainingJobRequest,
    tags: &BTreeMap<String, String>,
) -> Option<Difference> {
    let missing: Vec<&str> = request
        .tags
        .iter()
        .filter(|(key, value)| tags.get(*key) != Some(*value))
        .map(|(key, _)| key.as_str())
        .collect();
    (!missing.is_empty()).then(|| Difference {
        field: "Tags",
        requested: missing.join(", "),
        actual: format!("{} others", tags.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> TrainingJobRequest {
        serde_json::from_value(serde_json::json!({
            "job_name": "j", "image": "i", "role_arn": "r", "instance_type": "ml.p5.48xlarge", "instance_count": 1,
            "volume_size_gb": 1, "channels": [], "output_s3_uri": "s3://o", "hyperparameters": {}, "environment": {},
            "metrics": [], "max_runtime_seconds": 1, "max_wait_seconds": null, "checkpoint": null,
            "keep_alive_seconds": 600, "tags": {"bakeoff:trial": "t"},
        }))
        .unwrap()
    }

    #[test]
    fn what_was_granted_is_no_difference_and_what_was_dropped_is_one() {
        let mut actual = Actual {
            instance_type: Some("ml.p5.48xlarge".into()),
            instance_count: Some(1),
            spot: Some(false),
            keep_alive_seconds: Some(600),
            ..Actual::default()
        };
        assert_eq!(differences(&request(), &actual), vec![]);
        (actual.keep_alive_seconds, actual.spot) = (None, Some(true));
        let fields: Vec<&str> = differences(&request(), &actual)
            .iter()
            .map(|found| found.field)
            .collect();
        assert_eq!(
            fields,
            ["EnableManagedSpotTraining", "KeepAlivePeriodInSeconds"]
        );
    }

    #[test]
    fn a_missing_tag_is_named() {
        let tags = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        assert_eq!(
            missing_tags(&request(), &tags(&[("bakeoff:trial", "t"), ("team", "x")])),
            None
        );
        assert_eq!(
            missing_tags(&request(), &tags(&[("bakeoff:trial", "other")]))
                .unwrap()
                .requested,
            "bakeoff:trial"
        );
    }

    #[test]
    fn about_one_in_two_hundred_is_sampled() {
        let sampled = (0..10_000u128)
            .filter(|n| is_sampled(JobId(uuid::Uuid::from_u128(n * 7919))))
            .count();
        assert_eq!(sampled, 50);
    }
}
