//! The exact CreateTrainingJob body as JSON with SageMaker's member names: what a plan shows, what
//! tests compare with the SDK's own, and what goes over the wire (a test holds the AWS crate to
//! it).

use std::collections::BTreeMap;

use bakeoff_domain::sagemaker::request::{
    Debugger, Profiler, RuleConfiguration, TrainingJobRequest,
};
use serde_json::{Map, Value, json};

/// Renders the body. Members that are not requested are absent.
pub fn body(request: &TrainingJobRequest) -> Value {
    let mut all = json!({
        "TrainingJobName": request.job_name,
        "RoleArn": request.role_arn,
        "AlgorithmSpecification": algorithm(request),
        "OutputDataConfig": {"S3OutputPath": request.output_s3_uri},
        "ResourceConfig": resources(request),
        "StoppingCondition": stopping(request),
    });
    let Value::Object(members) = &mut all else {
        return all;
    };
    let mut put = |name: &str, value: Value| {
        let is_empty = match &value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(entries) => entries.is_empty(),
            _ => false,
        };
        if !is_empty {
            members.insert(name.to_owned(), value);
        }
    };
    put("InputDataConfig", channels(request));
    put("HyperParameters", json!(request.hyperparameters));
    put("Environment", json!(request.environment));
    put(
        "Tags",
        request
            .tags
            .iter()
            .map(|(key, value)| json!({"Key": key, "Value": value}))
            .collect(),
    );
    if request.max_wait_seconds.is_some() {
        put("EnableManagedSpotTraining", json!(true));
    }
    if let Some(checkpoint) = &request.checkpoint {
        put(
            "CheckpointConfig",
            json!({"S3Uri": checkpoint.s3_uri, "LocalPath": checkpoint.local_path}),
        );
    }
    if let Some(attempts) = request.retry_attempts {
        put("RetryStrategy", json!({"MaximumRetryAttempts": attempts}));
    }
    if request.infra_check {
        put("InfraCheckConfig", json!({"EnableInfraCheck": true}));
    }
    if let Some(wanted) = &request.profiler {
        put("ProfilerConfig", profiler(wanted, &request.output_s3_uri));
        put("ProfilerRuleConfigurations", rules(&wanted.rules));
    }
    if let Some(debugger) = &request.debugger {
        if !debugger.is_hook_off {
            put("DebugHookConfig", hook(debugger, &request.output_s3_uri));
        }
        put("DebugRuleConfigurations", rules(&debugger.rules));
    }
    all
}

/// Sets a member, by its pointer, of an object that is there; nothing happens if it is not.
pub(crate) fn set(body: &mut Value, place: &str, value: Value) {
    let (above, member) = place.rsplit_once('/').unwrap_or_default();
    if let Some(Value::Object(holder)) = body.pointer_mut(above) {
        holder.insert(member.to_owned(), value);
    }
}

/// An object without its empty members.
fn object(members: &[(&str, Option<Value>)]) -> Value {
    let given = members
        .iter()
        .filter_map(|(name, value)| Some(((*name).to_owned(), value.clone()?)));
    Value::Object(given.collect::<Map<String, Value>>())
}

fn algorithm(request: &TrainingJobRequest) -> Value {
    let metrics: Vec<Value> = request
        .metrics
        .iter()
        .map(|metric| json!({"Name": metric.name, "Regex": metric.regex}))
        .collect();
    object(&[
        ("TrainingImage", Some(json!(request.image))),
        (
            "ContainerEntrypoint",
            (!request.container_entrypoint.is_empty()).then(|| json!(request.container_entrypoint)),
        ),
        ("TrainingInputMode", Some(json!("File"))),
        (
            "MetricDefinitions",
            (!metrics.is_empty()).then_some(Value::Array(metrics)),
        ),
        (
            "EnableSageMakerMetricsTimeSeries",
            request.metrics_time_series.then_some(json!(true)),
        ),
    ])
}

fn resources(request: &TrainingJobRequest) -> Value {
    let is_mixed = !request.instance_groups.is_empty();
    let groups = request.instance_groups.iter().map(|group| {
        json!({
            "InstanceGroupName": group.name,
            "InstanceType": group.instance_type,
            "InstanceCount": group.instance_count,
        })
    });
    object(&[
        (
            "InstanceType",
            (!is_mixed).then(|| json!(request.instance_type)),
        ),
        (
            "InstanceCount",
            (!is_mixed).then(|| json!(request.instance_count)),
        ),
        ("InstanceGroups", is_mixed.then(|| groups.collect())),
        ("VolumeSizeInGB", Some(json!(request.volume_size_gb))),
        (
            "KeepAlivePeriodInSeconds",
            request.keep_alive_seconds.map(Value::from),
        ),
    ])
}

fn stopping(request: &TrainingJobRequest) -> Value {
    object(&[
        (
            "MaxRuntimeInSeconds",
            Some(json!(request.max_runtime_seconds)),
        ),
        (
            "MaxWaitTimeInSeconds",
            request.max_wait_seconds.map(Value::from),
        ),
    ])
}

fn channels(request: &TrainingJobRequest) -> Value {
    let channel = |name: &str, uri: &str| {
        json!({
            "ChannelName": name,
            "DataSource": {"S3DataSource": {
                "S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated",
            }},
        })
    };
    request
        .channels
        .iter()
        .map(|found| channel(&found.name, &found.s3_uri))
        .collect()
}

fn profiler(wanted: &Profiler, output: &str) -> Value {
    object(&[
        ("S3OutputPath", Some(json!(output))),
        ("DisableProfiler", Some(json!(false))),
        (
            "ProfilingIntervalInMilliseconds",
            wanted.interval_milliseconds.map(Value::from),
        ),
    ])
}

fn hook(debugger: &Debugger, output: &str) -> Value {
    let collection = |(name, parameters): (&String, &BTreeMap<String, String>)| {
        object(&[
            ("CollectionName", Some(json!(name))),
            (
                "CollectionParameters",
                (!parameters.is_empty()).then(|| json!(parameters)),
            ),
        ])
    };
    json!({
        "S3OutputPath": output,
        "CollectionConfigurations": debugger.collections.iter().map(collection).collect::<Vec<Value>>(),
    })
}

fn rules(rules: &[RuleConfiguration]) -> Value {
    let one = |rule: &RuleConfiguration| {
        json!({
            "RuleConfigurationName": rule.name,
            "RuleEvaluatorImage": rule.image,
            "RuleParameters": rule.parameters,
        })
    };
    rules.iter().map(one).collect()
}
