//! Member-level validation of CreateTrainingJob: lengths, patterns, ranges and enumerations from
//! the API model (botocore 1.44.5), with the service's error wording. SageMaker checks these before
//! it checks how members fit together.

use std::sync::LazyLock;

use bakeoff_domain::embedded;
use regex::Regex;
use serde_json::Value;

use crate::account::refusal::{Refusal, invalid};

/// Members with their maximum length (texts, lists and maps); `*` in a path stands for every item.
const LENGTHS: [(&str, usize); 24] = [
    ("TrainingJobName", 63),
    ("RoleArn", 2048),
    ("HyperParameters", 100),
    ("Environment", 100),
    ("AlgorithmSpecification.TrainingImage", 255),
    ("AlgorithmSpecification.AlgorithmName", 170),
    ("AlgorithmSpecification.MetricDefinitions", 40),
    ("AlgorithmSpecification.MetricDefinitions.*.Name", 255),
    ("AlgorithmSpecification.MetricDefinitions.*.Regex", 500),
    ("InputDataConfig", 20),
    ("InputDataConfig.*.ChannelName", 64),
    ("InputDataConfig.*.DataSource.S3DataSource.S3Uri", 1024),
    (
        "InputDataConfig.*.DataSource.S3DataSource.AttributeNames",
        16,
    ),
    ("OutputDataConfig.S3OutputPath", 1024),
    ("ResourceConfig.InstanceGroups", 5),
    ("ResourceConfig.InstancePreferences", 5),
    ("VpcConfig.SecurityGroupIds", 5),
    ("VpcConfig.Subnets", 16),
    ("Tags", 50),
    ("Tags.*.Key", 128),
    ("Tags.*.Value", 256),
    ("CheckpointConfig.S3Uri", 1024),
    ("DebugRuleConfigurations", 20),
    ("ProfilerRuleConfigurations", 20),
];
/// Integer members with their bounds.
const RANGES: [(&str, u64, u64); 7] = [
    ("ResourceConfig.InstanceCount", 0, u64::MAX),
    ("ResourceConfig.VolumeSizeInGB", 0, 16_384),
    ("ResourceConfig.KeepAlivePeriodInSeconds", 0, 21_600),
    ("StoppingCondition.MaxRuntimeInSeconds", 1, u64::MAX),
    ("StoppingCondition.MaxWaitTimeInSeconds", 1, u64::MAX),
    ("StoppingCondition.MaxPendingTimeInSeconds", 1800, 2_419_200),
    ("RetryStrategy.MaximumRetryAttempts", 1, 30),
];
const PATTERNS: [(&str, &str); 6] = [
    ("TrainingJobName", "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"),
    (
        "RoleArn",
        r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+",
    ),
    ("InputDataConfig.*.ChannelName", r"[A-Za-z0-9\.\-_]+"),
    (
        "InputDataConfig.*.DataSource.S3DataSource.S3Uri",
        "(https|s3)://([^/]+)/?(.*)",
    ),
    (
        "OutputDataConfig.S3OutputPath",
        "(https|s3)://([^/]+)/?(.*)",
    ),
    ("CheckpointConfig.S3Uri", "(https|s3)://([^/]+)/?(.*)"),
];
const ENUMERATIONS: [(&str, &[&str]); 4] = [
    (
        "AlgorithmSpecification.TrainingInputMode",
        &["Pipe", "File", "FastFile"],
    ),
    (
        "InputDataConfig.*.DataSource.S3DataSource.S3DataType",
        &[
            "ManifestFile",
            "S3Prefix",
            "AugmentedManifestFile",
            "Converse",
        ],
    ),
    (
        "InputDataConfig.*.DataSource.S3DataSource.S3DataDistributionType",
        &["FullyReplicated", "ShardedByS3Key"],
    ),
    ("InputDataConfig.*.CompressionType", &["None", "Gzip"]),
];
const REQUIRED: [&str; 3] = [
    "TrainingJobName",
    "RoleArn",
    "OutputDataConfig.S3OutputPath",
];

static COMPILED: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    PATTERNS
        .iter()
        .map(|(_, pattern)| embedded::pattern(pattern))
        .collect()
});

/// Returns every value at a path, with the path as the service spells it.
fn at<'a>(body: &'a Value, path: &str) -> Vec<(String, &'a Value)> {
    let mut found = vec![(String::new(), body)];
    for segment in path.split('.') {
        found = found
            .into_iter()
            .flat_map(|(written, value)| -> Vec<(String, &Value)> {
                if segment == "*" {
                    let items = value.as_array().into_iter().flatten().enumerate();
                    return items
                        .map(|(i, item)| (format!("{written}.{}.member", i + 1), item))
                        .collect();
                }
                let mut letters = segment.chars();
                let first = letters.next().map(|c| c.to_ascii_lowercase());
                let camel: String = first.into_iter().chain(letters).collect();
                let name = if written.is_empty() {
                    camel
                } else {
                    format!("{written}.{camel}")
                };
                value
                    .get(segment)
                    .filter(|inner| !inner.is_null())
                    .map(|inner| (name, inner))
                    .into_iter()
                    .collect()
            })
            .collect();
    }
    found
}

fn broken(path: &str, value: &str, constraint: &str) -> Refusal {
    invalid(format!(
        "1 validation error detected: Value {value} at '{path}' failed to satisfy constraint: Member must {constraint}"
    ))
}

/// Refuses the first member that breaks its constraint.
pub(crate) fn check(body: &Value) -> Result<(), Refusal> {
    for path in REQUIRED {
        if at(body, path).is_empty() {
            let mut written = path.to_owned();
            written.get_mut(..1).map(str::make_ascii_lowercase);
            return Err(broken(&written, "null", "not be null"));
        }
    }
    for (written, source) in at(body, "InputDataConfig.*.DataSource.S3DataSource") {
        for (member, camel) in [("S3DataType", "s3DataType"), ("S3Uri", "s3Uri")] {
            if !source[member].is_string() {
                return Err(broken(&format!("{written}.{camel}"), "null", "not be null"));
            }
        }
    }
    for (path, most) in LENGTHS {
        for (written, value) in at(body, path) {
            let length = match value {
                Value::String(text) => text.chars().count(),
                Value::Array(items) => items.len(),
                Value::Object(entries) => entries.len(),
                _ => return Err(unreadable(&written)),
            };
            if length > most {
                return Err(broken(
                    &written,
                    "",
                    &format!("have length less than or equal to {most}"),
                ));
            }
        }
    }
    for (path, least, most) in RANGES {
        for (written, value) in at(body, path) {
            let number = value.as_u64().ok_or_else(|| unreadable(&written))?;
            if number < least {
                return Err(broken(
                    &written,
                    &number.to_string(),
                    &format!("have value greater than or equal to {least}"),
                ));
            }
            if number > most {
                return Err(broken(
                    &written,
                    &number.to_string(),
                    &format!("have value less than or equal to {most}"),
                ));
            }
        }
    }
    for ((path, pattern), compiled) in PATTERNS.iter().zip(COMPILED.iter()) {
        for (written, value) in at(body, path) {
            let text = value.as_str().ok_or_else(|| unreadable(&written))?;
            if text.len() > 2048 || !compiled.is_match(text) {
                let constraint = format!("satisfy regular expression pattern: {pattern}");
                return Err(broken(&written, &format!("'{text}'"), &constraint));
            }
        }
    }
    for (path, allowed) in ENUMERATIONS {
        for (written, value) in at(body, path) {
            let text = value.as_str().ok_or_else(|| unreadable(&written))?;
            if !allowed.contains(&text) {
                return Err(broken(
                    &written,
                    &format!("'{text}'"),
                    &format!("satisfy enum value set: [{}]", allowed.join(", ")),
                ));
            }
        }
    }
    maps(body)
}

fn unreadable(path: &str) -> Refusal {
    Refusal {
        code: "SerializationException",
        message: format!("{path} is of another type"),
    }
}

/// Checks the keys and values of hyperparameters and of the environment.
fn maps(body: &Value) -> Result<(), Refusal> {
    for (member, written, key_max, value_max) in [
        ("HyperParameters", "hyperParameters", 256, 2500),
        ("Environment", "environment", 512, 512),
    ] {
        for (key, value) in body[member].as_object().into_iter().flatten() {
            let text = value.as_str().ok_or_else(|| unreadable(written))?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let is_variable =
                key.chars().all(is_name) && !key.starts_with(|c: char| c.is_ascii_digit());
            if key.is_empty()
                || key.chars().count() > key_max
                || member == "Environment" && !is_variable
            {
                return Err(broken(
                    written,
                    "",
                    "have keys that satisfy their constraints",
                ));
            }
            if text.chars().count() > value_max {
                return Err(broken(
                    written,
                    "",
                    &format!("have length less than or equal to {value_max}"),
                ));
            }
            if text.contains('\n') {
                return Err(broken(
                    written,
                    "",
                    "satisfy regular expression pattern: .*",
                ));
            }
        }
    }
    Ok(())
}
