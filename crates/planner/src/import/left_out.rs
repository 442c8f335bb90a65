//! Members of a job's body that an experiment cannot express, and what that means for its jobs.

use serde_json::{Map, Value, json};

use super::draft::Draft;
use super::job::dotted;
use super::material::COMPILER;

/// Members of a body that need no word: they are taken, or stand in a description only.
const SILENT: [&str; 34] = [
    "TrainingJobName",
    "HyperParameters",
    "AlgorithmSpecification",
    "RoleArn",
    "InputDataConfig",
    "OutputDataConfig",
    "ResourceConfig",
    "StoppingCondition",
    "EnableManagedSpotTraining",
    "CheckpointConfig",
    "Environment",
    "TrainingJobArn",
    "TrainingJobStatus",
    "SecondaryStatus",
    "SecondaryStatusTransitions",
    "FailureReason",
    "ModelArtifacts",
    "CreationTime",
    "TrainingStartTime",
    "TrainingEndTime",
    "LastModifiedTime",
    "FinalMetricDataList",
    "TrainingTimeInSeconds",
    "BillableTimeInSeconds",
    "BillableTokenCount",
    "ProfilingStatus",
    "ProfilerRuleEvaluationStatuses",
    "DebugRuleEvaluationStatuses",
    "WarmPoolStatus",
    "ResponseMetadata",
    "RetryStrategy",
    "InfraCheckConfig",
    "SourceAlgorithm",
    "TuningJobArn",
];

/// Members that matter, and that an experiment has no place for yet.
const LEFT_OUT: [(&str, &str); 14] = [
    (
        "HyperParameterTuningJobConfig",
        "each trial has the hyperparameters that all of its jobs share: a tuning step of a pipeline searches",
    ),
    (
        "ProfilerConfig",
        "its jobs are not profiled: set workload.techniques.profiler",
    ),
    (
        "ProfilerRuleConfigurations",
        "no profiler rules run: set workload.techniques.profiler",
    ),
    (
        "DebugHookConfig",
        "no tensors are saved: set workload.techniques.debugger",
    ),
    (
        "DebugRuleConfigurations",
        "no debugger rules run: set workload.techniques.debugger",
    ),
    (
        COMPILER,
        "SageMaker Training Compiler is discontinued: its jobs are not compiled",
    ),
    (
        "VpcConfig",
        "its jobs run outside the VPC: do not start it where they must run inside",
    ),
    ("EnableNetworkIsolation", "its jobs can reach the network"),
    (
        "EnableInterContainerTrafficEncryption",
        "traffic between its instances is not encrypted by SageMaker",
    ),
    (
        "Tags",
        "its jobs carry the experiment's own tags: give `labels`",
    ),
    (
        "TensorBoardOutputConfig",
        "its jobs write no TensorBoard files to S3 by themselves",
    ),
    (
        "ExperimentConfig",
        "its jobs belong to no SageMaker experiment",
    ),
    ("RemoteDebugConfig", "remote debugging of its jobs is off"),
    ("SessionChainingConfig", "its jobs have no chained session"),
];

/// Names what the body says and no experiment has a place for.
pub(super) fn name(body: &Value, draft: &mut Draft<'_>) {
    let empty = Map::new();
    let entries = body.as_object().unwrap_or(&empty);
    let is_set = |value: &Value| {
        !matches!(value, Value::Null | Value::Bool(false))
            && value.as_str() != Some("")
            && value != &json!([])
            && value != &json!({})
    };
    for (member, value) in entries.iter().filter(|(_, value)| is_set(value)) {
        if let Some((_, why)) = LEFT_OUT.iter().find(|(name, _)| name == member) {
            draft.leave_out(member, why);
        } else if !SILENT.contains(&member.trim_end_matches(".$")) {
            draft.leave_out(
                member,
                &format!("an experiment has no place for {value}")
                    .chars()
                    .take(160)
                    .collect::<String>(),
            );
        }
    }
    for (pointer, why) in [
        (
            "/ResourceConfig/VolumeKmsKeyId",
            "volumes of its jobs are encrypted with AWS's key",
        ),
        (
            "/OutputDataConfig/KmsKeyId",
            "its models are encrypted with AWS's key",
        ),
        (
            "/AlgorithmSpecification/AlgorithmName",
            "its image is named by an algorithm of AWS's: set workload.image",
        ),
        (
            "/AlgorithmSpecification/TrainingImageConfig",
            "its image is pulled from ECR by SageMaker's own role",
        ),
        (
            "/ResourceConfig/TrainingPlanArn",
            "its jobs are bought on demand or spot, not from the training plan",
        ),
        (
            "/ResourceConfig/InstanceGroups",
            "heterogeneous clusters cannot be compared: the first group's type is taken",
        ),
        (
            "/ResourceConfig/InstancePreferences",
            "a candidate has one type: the first preference is taken",
        ),
    ] {
        if body.pointer(pointer).is_some_and(is_set) {
            draft.leave_out(&dotted(pointer), why);
        }
    }
    if body.pointer("/OutputDataConfig/CompressionType") == Some(&json!("NONE")) {
        draft.leave_out(
            "OutputDataConfig.CompressionType",
            "models of its jobs are compressed, on billed time",
        );
    }
}
