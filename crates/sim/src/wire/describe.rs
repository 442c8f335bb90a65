//! What DescribeTrainingJob and ListTrainingJobs report about a job at a moment.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use crate::account::epoch::epoch;
use crate::jobs::job::Job;
use crate::output::evaluations;

pub(super) fn summary(job: &Job, now: DateTime<Utc>) -> Value {
    let mut value = json!({
        "TrainingJobName": job.name,
        "TrainingJobArn": job.arn,
        "CreationTime": epoch(job.created_at),
        "LastModifiedTime": epoch(last_modified(job, now)),
        "TrainingJobStatus": job.status(now),
        "SecondaryStatus": job.secondary_status(now),
    });
    if let Some(end) = job.timeline.end().filter(|end| *end <= now) {
        value["TrainingEndTime"] = json!(epoch(end));
    }
    if let Some(pool) = job.pool_status(now) {
        value["WarmPoolStatus"] = pool;
    }
    value
}

pub(crate) fn last_modified(job: &Job, now: DateTime<Utc>) -> DateTime<Utc> {
    let begun = job
        .timeline
        .phases
        .iter()
        .map(|phase| phase.start)
        .filter(|start| *start <= now);
    let pool = job
        .pool_end
        .as_ref()
        .map(|end| end.at)
        .filter(|at| *at <= now)
        .unwrap_or(job.created_at);
    let ended = job
        .timeline
        .end()
        .filter(|end| *end <= now)
        .unwrap_or(job.created_at);
    begun.max().unwrap_or(job.created_at).max(ended).max(pool)
}

/// Fields of the request that Describe returns unchanged.
const ECHOED: [&str; 14] = [
    "HyperParameters",
    "AlgorithmSpecification",
    "RoleArn",
    "InputDataConfig",
    "OutputDataConfig",
    "ResourceConfig",
    "VpcConfig",
    "StoppingCondition",
    "EnableManagedSpotTraining",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
    "CheckpointConfig",
    "Environment",
    "RetryStrategy",
];

pub(super) fn describe(job: &Job, now: DateTime<Utc>) -> Value {
    let mut value = summary(job, now);
    let Some(fields) = value.as_object_mut() else {
        return value;
    };
    for key in ECHOED {
        if !job.request[key].is_null() {
            fields.insert(key.to_owned(), job.request[key].clone());
        }
    }
    fields.insert(
        "SecondaryStatusTransitions".to_owned(),
        transitions(job, now),
    );
    timing(job, now, fields);
    for (field, statuses) in evaluations::statuses(job, now) {
        fields.insert(field.to_owned(), statuses);
    }
    if let Some(uri) = job.model_uri(now) {
        fields.insert(
            "ModelArtifacts".to_owned(),
            json!({ "S3ModelArtifacts": uri }),
        );
    }
    if let Some(reason) = job
        .timeline
        .failure_reason
        .filter(|_| job.timeline.is_over(now))
    {
        fields.insert("FailureReason".to_owned(), json!(reason));
    }
    value
}

fn timing(job: &Job, now: DateTime<Utc>, fields: &mut Map<String, Value>) {
    let Some(start) = job.timeline.billing_start().filter(|start| *start <= now) else {
        return;
    };
    fields.insert("TrainingStartTime".to_owned(), json!(epoch(start)));
    if job.timeline.is_over(now) {
        if let Some((trained, billed)) = job.told_seconds(now) {
            fields.insert("TrainingTimeInSeconds".to_owned(), json!(trained));
            fields.insert("BillableTimeInSeconds".to_owned(), json!(billed));
        }
        let last = crate::output::metrics::last_values(job, now)
            .into_iter()
            .map(|(name, at, value)| json!({ "MetricName": name, "Value": value, "Timestamp": epoch(at) }));
        fields.insert("FinalMetricDataList".to_owned(), last.collect());
    } else {
        fields.remove("TrainingEndTime");
    }
}

fn transitions(job: &Job, now: DateTime<Utc>) -> Value {
    let mut entries: Vec<Value> = Vec::new();
    for phase in job
        .timeline
        .phases
        .iter()
        .filter(|phase| phase.start <= now)
    {
        let mut entry = json!({ "Status": phase.status, "StartTime": epoch(phase.start), "StatusMessage": phase.message });
        if phase.end <= now {
            entry["EndTime"] = json!(epoch(phase.end));
        }
        entries.push(entry);
    }
    if let Some(end) = job.timeline.end().filter(|end| *end <= now) {
        entries.push(json!({
            "Status": job.timeline.end_secondary, "StartTime": epoch(end), "EndTime": epoch(end),
            "StatusMessage": format!("Training job {}", job.timeline.end_secondary.to_lowercase()),
        }));
    }
    Value::Array(entries)
}
