//! The events that EventBridge would push: a "SageMaker Training Job State Change" for each new
//! status, sent to an API destination. On demand, events are lost, repeated or delayed.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::jobs::job::Job;
use crate::wire::describe::last_modified;
use crate::wire::sns;
use crate::world::region::Region;

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// EventBridge gives an API destination 5 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where events go.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    pub(crate) url: String,
    pub(crate) transport: Transport,
}

/// How events are delivered.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    /// An API destination, with the value of its `Authorization` header.
    EventBridge { authorization: String },
    /// A topic, and the address this region listens on.
    Sns { topic: String, origin: String },
}

/// Pushes events until the program ends. Runs on its own thread, because a slow receiver must not
/// slow down the region.
pub(crate) fn push(region: &Region, destination: &Destination) {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .build()
        .new_agent();
    let mut last: HashMap<String, &'static str> = HashMap::new();
    let mut late: Vec<(DateTime<Utc>, Value)> = Vec::new();
    loop {
        let (fresh, now) = region.with_time(|world, now| {
            let changed: Vec<Value> = world
                .jobs
                .iter()
                .filter(|job| {
                    last.insert(job.name.clone(), job.secondary_status(now))
                        != Some(job.secondary_status(now))
                })
                .map(|job| event(job, now))
                .collect();
            let mut out = Vec::new();
            for event in changed {
                let faults = world.faults.clone();
                if world.happens(faults.event_loss, "lost_event") {
                    continue;
                }
                if world.happens(faults.event_duplicate, "duplicate_event") {
                    out.push(event.clone());
                }
                match world.delays_event() {
                    Some(delay) => late.push((now + delay, event)),
                    None => out.push(event),
                }
            }
            (out, now)
        });
        let overdue = late.extract_if(.., |(due_at, _)| *due_at <= now);
        let due: Vec<Value> = fresh
            .into_iter()
            .chain(overdue.map(|(_, event)| event))
            .collect();
        for event in &due {
            let request = agent.post(&destination.url);
            let sent = match &destination.transport {
                Transport::EventBridge { authorization } => request
                    .header("authorization", authorization)
                    .send_json(event),
                Transport::Sns { topic, origin } => {
                    let message = sns::envelope(
                        origin,
                        topic,
                        "Notification",
                        &event.to_string(),
                        region.now(),
                    );
                    request
                        .header("x-amz-sns-message-type", "Notification")
                        .send_json(message)
                }
            };
            if let Err(error) = sent {
                tracing::debug!(%error, "an event was not taken");
            }
        }
        if due.is_empty() {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// The envelope and its detail, which resembles Describe's reply, but with times as strings of
/// milliseconds.
fn event(job: &Job, now: DateTime<Utc>) -> Value {
    let millis = |at: DateTime<Utc>| json!(at.timestamp_millis().to_string());
    let mut detail = json!({
        "TrainingJobName": job.name,
        "TrainingJobArn": job.arn,
        "TrainingJobStatus": job.status(now),
        "SecondaryStatus": job.secondary_status(now),
        "CreationTime": millis(job.created_at),
        "LastModifiedTime": millis(last_modified(job, now)),
        "Tags": job.tags,
    });
    for key in [
        "AlgorithmSpecification",
        "ResourceConfig",
        "StoppingCondition",
        "Environment",
        "CheckpointConfig",
    ] {
        if !job.request[key].is_null() {
            detail[key] = job.request[key].clone();
        }
    }
    detail["EnableManagedSpotTraining"] = json!(job.is_spot);
    if let Some(start) = job.timeline.billing_start().filter(|start| *start <= now) {
        detail["TrainingStartTime"] = millis(start);
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "an event id is for telling repeats apart, not part of the world"
    )]
    let id = uuid::Uuid::now_v7();
    json!({
        "version": "0", "id": id, "detail-type": "SageMaker Training Job State Change", "source": "aws.sagemaker",
        "account": job.account, "time": now, "region": job.arn.split(':').nth(3), "resources": [job.arn], "detail": detail,
    })
}
