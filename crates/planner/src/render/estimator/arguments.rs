//! What an estimator's arguments say: instances, region, and the libraries that are asked for.

use bakeoff_domain::spec::ParallelLibrary;
use serde_json::{Map, Value};

/// Arguments by their names in the SDK's first version, which the second still takes, with a warning
/// (sagemaker 2.257.7, `renamed_kwargs` in `estimator.py`).
pub(crate) const RENAMED: [(&str, &str); 7] = [
    ("train_instance_count", "instance_count"),
    ("train_instance_type", "instance_type"),
    ("train_max_run", "max_run"),
    ("train_use_spot_instances", "use_spot_instances"),
    ("train_max_wait", "max_wait"),
    ("train_volume_size", "volume_size"),
    ("train_volume_kms_key", "volume_kms_key"),
];

/// Whether the value contains `"enabled": true`.
pub(crate) fn is_enabled(value: Option<&Value>) -> bool {
    value.is_some_and(|value| {
        value
            .get("enabled")
            .and_then(Value::as_bool)
            .unwrap_or(false)
    })
}

/// Every library that `distribution` requests, with its pointer. Common alternative keys are
/// understood.
pub(crate) fn libraries(arguments: &Map<String, Value>) -> Vec<(ParallelLibrary, String)> {
    let Some(distribution) = arguments.get("distribution").and_then(Value::as_object) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let inner = distribution.get("smdistributed");
    let is_on = |key: &str| is_enabled(distribution.get(key));
    let data = [
        inner.and_then(|inner| inner.get("dataparallel")),
        distribution.get("smdistributed_dataparallel"),
    ];
    let model = [
        inner.and_then(|inner| inner.get("modelparallel")),
        distribution.get("smdistributed_modelparallel"),
    ];
    for (value, pointer) in data
        .into_iter()
        .zip(["smdistributed/dataparallel", "smdistributed_dataparallel"])
    {
        if is_enabled(value) {
            found.push((ParallelLibrary::Smddp, format!("/distribution/{pointer}")));
        }
    }
    let has_model = model.iter().any(|value| is_enabled(*value));
    for (value, pointer) in model
        .into_iter()
        .zip(["smdistributed/modelparallel", "smdistributed_modelparallel"])
    {
        if is_enabled(value) {
            let version = if is_on("torch_distributed") {
                ParallelLibrary::SmpV2
            } else {
                ParallelLibrary::SmpV1
            };
            found.push((version, format!("/distribution/{pointer}")));
        }
    }
    if is_on("pytorchddp") {
        found.push((
            ParallelLibrary::Smddp,
            "/distribution/pytorchddp".to_owned(),
        ));
    }
    for (key, library) in [
        ("torch_distributed", ParallelLibrary::Torchrun),
        ("mpi", ParallelLibrary::Horovod),
        ("parameter_server", ParallelLibrary::ParameterServer),
        (
            "multi_worker_mirrored_strategy",
            ParallelLibrary::MultiWorkerMirrored,
        ),
    ] {
        let belongs_to_model = has_model
            && matches!(
                library,
                ParallelLibrary::Torchrun | ParallelLibrary::Horovod
            );
        if is_on(key) && !belongs_to_model {
            found.push((library, format!("/distribution/{key}")));
        }
    }
    found
}

pub(super) fn region(arguments: &Map<String, Value>) -> &str {
    arguments
        .get("region")
        .and_then(Value::as_str)
        .unwrap_or("us-east-1")
}

/// Type, count and name of each group of instances.
pub(super) fn instances(arguments: &Map<String, Value>) -> Vec<(&str, u32, &str)> {
    let one = |group: &'_ Value| -> Option<u32> {
        u32::try_from(group.get("instance_count")?.as_u64()?).ok()
    };
    if let Some(groups) = arguments.get("instance_groups").and_then(Value::as_array) {
        let read = groups.iter().filter_map(|group| {
            let name = group.get("instance_group_name")?.as_str()?;
            Some((group.get("instance_type")?.as_str()?, one(group)?, name))
        });
        return read.collect();
    }
    let kind = arguments.get("instance_type").and_then(Value::as_str);
    let count = arguments
        .get("instance_count")
        .and_then(Value::as_u64)
        .unwrap_or(1);
    kind.map(|kind| (kind, u32::try_from(count).unwrap_or(u32::MAX), ""))
        .into_iter()
        .collect()
}

pub(super) fn text<'a>(arguments: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    arguments.get(key).and_then(Value::as_str)
}

pub(super) fn flag(arguments: &Map<String, Value>, key: &str) -> bool {
    arguments.get(key).and_then(Value::as_bool).unwrap_or(false)
}
