//! From what a person writes of a tuning to the requests that are sent, one for each candidate.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::sagemaker::request::TrainingJobRequest;
use crate::sagemaker::tuning::{
    Choice, Completion, NumberRange, Parents, Ranges, Resources, Scaling, TuningJobRequest,
};
use crate::spec::CheckpointSpec;
use crate::spec::pipeline::tuning::{RangeSpec, TuningCandidate, TuningSpec};

/// Nothing watches how often a trial saves.
const CHECKPOINT_SECONDS: u32 = 3600;

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

pub(super) fn searched(all: &BTreeMap<String, RangeSpec>) -> Ranges {
    let mut ranges = Ranges::default();
    for (name, range) in all {
        if !range.values.is_empty() {
            ranges.categorical.push(Choice {
                name: name.clone(),
                values: range.values.clone(),
            });
            continue;
        }
        let numbers = NumberRange {
            name: name.clone(),
            min: text(range.min.as_ref()),
            max: text(range.max.as_ref()),
            scaling: range.scaling.unwrap_or(Scaling::Auto),
        };
        if range.integer {
            ranges.integer.push(numbers);
        } else {
            ranges.continuous.push(numbers);
        }
    }
    ranges
}

/// The request for one candidate, without name and marker. `role` and `output`: what it has from its pipeline.
pub fn request(
    spec: &TuningSpec,
    candidate: &TuningCandidate,
    role: &str,
    output: &str,
) -> TuningJobRequest {
    let own = if candidate.ranges.is_empty() {
        &spec.ranges
    } else {
        &candidate.ranges
    };
    let max = spec.max_resource;
    TuningJobRequest {
        job_name: String::new(),
        strategy: spec.strategy,
        goal: spec.objective.goal,
        objective: spec.objective.metric.clone(),
        trials_max: spec.trials,
        parallel_max: spec.parallel.min(spec.trials),
        runtime_max_seconds: spec.max_tuning_seconds,
        stops_early: spec.early_stopping,
        random_seed: spec.random_seed,
        resources: max.map(|max| Resources {
            min: spec.min_resource.unwrap_or(1),
            max,
        }),
        completion: Completion {
            target: spec.target,
            not_improving: spec.stop_after_not_improving,
            on_convergence: spec.stop_on_convergence,
        },
        warm_start: spec.warm_start.as_ref().map(|warm| Parents {
            kind: warm.kind,
            names: warm.tuning_jobs.clone(),
        }),
        ranges: searched(own),
        training: training(spec, candidate, role, output),
    }
}

fn training(
    spec: &TuningSpec,
    candidate: &TuningCandidate,
    role: &str,
    output: &str,
) -> TrainingJobRequest {
    let checkpoint = spec.checkpoint_s3_uri.clone().map(|s3_uri| CheckpointSpec {
        s3_uri,
        local_path: "/opt/ml/checkpoints".to_owned(),
        interval_seconds: CHECKPOINT_SECONDS,
    });
    TrainingJobRequest {
        job_name: String::new(),
        image: spec.image.clone(),
        container_entrypoint: Vec::new(),
        role_arn: spec.role_arn.clone().unwrap_or(role.to_owned()),
        instance_type: candidate.instance_type.clone(),
        instance_count: candidate.instance_count,
        volume_size_gb: spec.volume_size_gb,
        channels: spec.channels.clone(),
        output_s3_uri: spec.output_s3_uri.clone().unwrap_or(output.to_owned()),
        hyperparameters: spec.hyperparameters.clone(),
        environment: spec.environment.clone(),
        metrics: spec.metrics.clone(),
        max_runtime_seconds: spec.max_runtime_seconds,
        max_wait_seconds: spec.max_wait_seconds.filter(|_| spec.spot),
        checkpoint,
        checkpoint_trial: None,
        keep_alive_seconds: None,
        metrics_time_series: false,
        instance_groups: Vec::new(),
        retry_attempts: spec.retry_attempts,
        infra_check: false,
        profiler: None,
        debugger: None,
        tags: BTreeMap::from([(
            "bakeoff:managed-by".to_owned(),
            "bakeoff-control-plane".to_owned(),
        )]),
    }
}
