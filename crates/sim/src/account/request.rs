//! The parts of a CreateTrainingJob request that several modules need.

use std::collections::BTreeMap;

use serde_json::Value;

/// Type and count of each kind of instance that a request needs.
pub(crate) fn groups(body: &Value) -> Vec<(String, u64)> {
    let read = |group: &Value| {
        Some((
            group["InstanceType"].as_str()?.to_owned(),
            group["InstanceCount"].as_u64()?,
        ))
    };
    let resources = &body["ResourceConfig"];
    match resources["InstanceGroups"].as_array() {
        Some(groups) => groups.iter().filter_map(read).collect(),
        None => read(resources).into_iter().collect(),
    }
}

/// Maximum runtime in seconds; SageMaker's own limit when it is absent.
pub(crate) fn max_runtime(request: &Value) -> u64 {
    request["StoppingCondition"]["MaxRuntimeInSeconds"]
        .as_u64()
        .unwrap_or(86_400)
}

/// The texts of an object.
pub(crate) fn strings(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Tags as the API lists them.
pub(crate) fn tags(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_array().into_iter().flatten();
    pairs
        .filter_map(|tag| {
            Some((
                tag["Key"].as_str()?.to_owned(),
                tag["Value"].as_str()?.to_owned(),
            ))
        })
        .collect()
}
