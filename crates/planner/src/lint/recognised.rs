//! What a document is, told by the members that only its kind has.

use bakeoff_domain::catalog::hugging_face;
use serde_json::{Map, Value};

use super::api::Call;
use super::{configurations, documents, trainer};
use crate::rules::document_kind::Kind;

/// Detects the kind of a document by the members that only that kind has.
pub fn kind_of(document: &Value) -> Option<Kind> {
    let entries = document.as_object()?;
    of_ours(document, entries)
        .or_else(|| of_container(entries))
        .or_else(|| {
            Some(match call_of(entries)? {
                Call::TrainingJob => Kind::TrainingJob,
                Call::TuningJob => Kind::TuningJob,
                Call::ProcessingJob => Kind::ProcessingJob,
                Call::TransformJob => Kind::TransformJob,
                Call::EndpointConfig => Kind::EndpointConfig,
                Call::Model => Kind::SagemakerModel,
            })
        })
        .or_else(|| of_job(entries))
        .or_else(|| {
            let has = |name: &str| entries.contains_key(name);
            match () {
                () if configurations::is_deepspeed(entries) => Some(Kind::DeepspeedConfig),
                () if hugging_face::is_config(document) => Some(Kind::ModelConfig),
                () if has("hardware") || has("accelerator_count") => Some(Kind::Run),
                () if has("model") || has("image") || has("trial_tokens") => Some(Kind::Workload),
                () => None,
            }
        })
}

/// Our own kinds that have members of no other's.
fn of_ours(document: &Value, entries: &Map<String, Value>) -> Option<Kind> {
    if ["candidates", "objective"]
        .iter()
        .any(|name| entries.contains_key(*name))
    {
        Some(Kind::Experiment)
    } else if ["micro_batch_per_gpu", "batch_size_per_gpu"]
        .iter()
        .any(|name| entries.contains_key(*name))
        || document.pointer("/spec/micro_batch_per_gpu").is_some()
    {
        Some(Kind::InstanceProfile)
    } else {
        None
    }
}

/// Documents that hold bodies.
fn of_container(entries: &Map<String, Value>) -> Option<Kind> {
    match () {
        () if documents::is_state_machine(entries) => Some(Kind::StateMachine),
        () if documents::is_template(entries) => Some(Kind::CloudformationTemplate),
        () if documents::is_pipeline(entries) => Some(Kind::PipelineDefinition),
        () => None,
    }
}

/// A training job as a body or as arguments of either version of the SDK.
fn of_job(entries: &Map<String, Value>) -> Option<Kind> {
    let has = |names: &[&str]| {
        names
            .iter()
            .any(|name| entries.contains_key(*name) || entries.contains_key(&format!("{name}.$")))
    };
    let body = [
        "TrainingJobName",
        "AlgorithmSpecification",
        "ResourceConfig",
        "StoppingCondition",
    ];
    let like_body = ["algorithm_specification", "resource_config"];
    let arguments = [
        "sdk_class",
        "distribution",
        "max_run",
        "use_spot_instances",
        "compiler_config",
        "framework_version",
        "entry_point",
        "instance_count",
        // As the SDK's first version has it.
        "train_instance_count",
    ];
    match () {
        () if has(&body) || has(&like_body) => Some(Kind::TrainingJob),
        () if trainer::is_trainer(entries) => Some(Kind::ModelTrainer),
        () if has(&["stopping_condition", "input_data_config"]) => Some(Kind::TrainingJob),
        () if has(&arguments) => Some(Kind::Estimator),
        () => None,
    }
}

/// Whether a document is the body of some call.
fn call_of(entries: &Map<String, Value>) -> Option<Call> {
    // The members that only that request has.
    const OWN: [(Call, &[&str]); 5] = [
        (
            Call::TuningJob,
            &[
                "HyperParameterTuningJobConfig",
                "HyperParameterTuningJobName",
            ],
        ),
        (
            Call::ProcessingJob,
            &[
                "ProcessingJobName",
                "ProcessingResources",
                "AppSpecification",
            ],
        ),
        (
            Call::TransformJob,
            &["TransformJobName", "TransformInput", "TransformResources"],
        ),
        (
            Call::EndpointConfig,
            &["EndpointConfigName", "ProductionVariants"],
        ),
        (Call::Model, &["PrimaryContainer", "ExecutionRoleArn"]),
    ];
    let has = |member: &&&str| {
        let path = format!("{member}.$");
        entries.contains_key(**member) || entries.contains_key(&path)
    };
    let own = OWN
        .iter()
        .find(|(_, members)| members.iter().any(|member| has(&member)));
    own.map(|(call, _)| *call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::api;

    #[test]
    fn a_body_is_told_by_members_that_only_it_has() {
        for call in [
            Call::TuningJob,
            Call::ProcessingJob,
            Call::TransformJob,
            Call::EndpointConfig,
        ] {
            let mut body = serde_json::Map::new();
            body.insert(call.name_member().to_owned(), "a".into());
            assert_eq!(call_of(&body), Some(call));
            assert!(api::members(call, "").contains(&call.name_member()));
        }
    }
}
