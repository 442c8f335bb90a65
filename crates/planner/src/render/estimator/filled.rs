//! What the SDK fills in for an estimator, and the arguments that an experiment's request has no place
//! for.

use serde_json::{Map, Value, json};

use super::arguments::{flag, region, text};
use super::image::image;
use crate::render::body::set;

/// The most characters of a job's name.
const NAME_MAX: usize = 63;
/// Stands for the account that the SDK would ask AWS for.
const UNKNOWN_ACCOUNT: &str = "ACCOUNT";

/// Fills in what the SDK fills in (`Session.default_bucket`, `name_from_base`).
pub(super) fn fill_in(arguments: &mut Map<String, Value>, stamp: &str) {
    if !arguments.contains_key("job_name") {
        let uri = image(arguments);
        let repository = uri
            .as_deref()
            .and_then(|uri| uri.rsplit('/').next()?.split(':').next());
        let base = text(arguments, "base_job_name")
            .or(repository)
            .unwrap_or("job");
        let most = NAME_MAX.saturating_sub(stamp.len() + 1);
        let base: String = base.chars().take(most).collect();
        arguments.insert("job_name".to_owned(), format!("{base}-{stamp}").into());
    }
    list_tags(arguments);
    let role = text(arguments, "role").unwrap_or_default().to_owned();
    let account = role.split(':').nth(4).unwrap_or(UNKNOWN_ACCOUNT);
    let bucket = format!("s3://sagemaker-{}-{account}", region(arguments));
    if !role.is_empty() && !role.starts_with("arn:") {
        let arn = format!("arn:aws:iam::{account}:role/{role}");
        arguments.insert("role".to_owned(), arn.into());
    }
    for (key, value) in [
        ("output_path", format!("{bucket}/")),
        ("code_location", bucket),
    ] {
        arguments.entry(key).or_insert_with(|| value.into());
    }
}

/// Tags may be an object (`format_tags`).
fn list_tags(arguments: &mut Map<String, Value>) {
    if let Some(Value::Object(tags)) = arguments.get("tags") {
        let listed = tags
            .iter()
            .map(|(key, value)| json!({"Key": key, "Value": value}));
        let listed: Vec<Value> = listed.collect();
        arguments.insert("tags".to_owned(), listed.into());
    }
}

/// Arguments that are members of the body under another name.
const MEMBERS: [(&str, &str); 10] = [
    ("input_mode", "/AlgorithmSpecification/TrainingInputMode"),
    (
        "container_arguments",
        "/AlgorithmSpecification/ContainerArguments",
    ),
    ("subnets", "/VpcConfig/Subnets"),
    ("security_group_ids", "/VpcConfig/SecurityGroupIds"),
    ("volume_kms_key", "/ResourceConfig/VolumeKmsKeyId"),
    ("training_plan", "/ResourceConfig/TrainingPlanArn"),
    ("output_kms_key", "/OutputDataConfig/KmsKeyId"),
    ("tags", "/Tags"),
    (
        "encrypt_inter_container_traffic",
        "/EnableInterContainerTrafficEncryption",
    ),
    ("enable_network_isolation", "/EnableNetworkIsolation"),
];

/// Adds what the common request has no place for.
pub(super) fn overlay(arguments: &Map<String, Value>, body: &mut Value) {
    for (argument, place) in MEMBERS {
        let value = arguments.get(argument).filter(|value| !value.is_null());
        let Some(value) = value.filter(|value| **value != json!(false)) else {
            continue;
        };
        if place.starts_with("/VpcConfig/") && body.get("VpcConfig").is_none() {
            set(body, "/VpcConfig", json!({}));
        }
        set(body, place, value.clone());
    }
    if flag(arguments, "disable_output_compression") {
        set(body, "/OutputDataConfig/CompressionType", "NONE".into());
    }
    if let Some(level) = arguments.get("container_log_level").and_then(Value::as_u64) {
        let place = "/HyperParameters/sagemaker_container_log_level";
        set(body, place, level.to_string().into());
    }
    if flag(arguments, "enable_network_isolation") {
        sources_as_channel(body);
    }
}

/// Without a network, the script's sources come as a channel.
fn sources_as_channel(body: &mut Value) {
    let place = "/HyperParameters/sagemaker_submit_directory";
    let Some(uri) = body
        .pointer(place)
        .and_then(Value::as_str)
        .map(|uri| uri.trim_matches('"').to_owned())
    else {
        return;
    };
    let source = json!({"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"});
    let channel = json!({"DataSource": {"S3DataSource": source}, "ChannelName": "code"});
    match body
        .get_mut("InputDataConfig")
        .and_then(Value::as_array_mut)
    {
        Some(channels) => channels.push(channel),
        None => set(body, "/InputDataConfig", json!([channel])),
    }
    if let Some(directory) = body.pointer_mut(place) {
        *directory = "\"/opt/ml/input/data/code/sourcedir.tar.gz\"".into();
    }
}
