//! Batch transform jobs: created, described, listed, stopped and billed. Rules: SageMaker API,
//! CreateTransformJob and its model in botocore; error texts as public reports show them.

use std::collections::BTreeMap;

use bakeoff_domain::catalog::serving::Serving;
use chrono::{DateTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::account::billing::{RateCard, Span};
use crate::account::epoch::epoch;
use crate::account::refusal::{Refusal, invalid};
use crate::account::request::tags;

const STOP_SECONDS: i64 = 30;

/// What the world draws for a new job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampledDurations {
    pub(crate) seed: u64,
    /// Why it fails in the middle.
    pub(crate) failure: Option<&'static str>,
    pub(crate) launch_seconds: Option<f64>,
    pub(crate) lag: TimeDelta,
}

#[derive(Debug)]
pub(crate) struct TransformJob {
    pub(crate) request: Value,
    pub(crate) name: String,
    pub(crate) arn: String,
    pub(crate) account: String,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) instance_type: String,
    pub(crate) count: u32,
    pub(crate) created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    ended_at: DateTime<Utc>,
    end_status: &'static str,
    failure: Option<&'static str>,
    stop_asked_at: Option<DateTime<Utc>>,
    pub(crate) lag: TimeDelta,
    has_written: bool,
}

pub(crate) fn not_found() -> Refusal {
    invalid("Could not find requested transform job with name")
}

impl TransformJob {
    /// A job whose request has passed the rules.
    pub(crate) fn new(
        request: Value,
        arn: String,
        account: String,
        drawn: SampledDurations,
        now: DateTime<Utc>,
    ) -> Option<Self> {
        let resources = &request["TransformResources"];
        let mut dice = StdRng::seed_from_u64(drawn.seed);
        let launch: f64 = dice.random_range(120.0..300.0);
        let launch = bakeoff_domain::clock::seconds(drawn.launch_seconds.unwrap_or(launch).round());
        let work: f64 = dice.random_range(120.0..900.0);
        // A model that never answers runs until somebody stops it.
        let is_endless = request.to_string().contains("endless");
        let work = if is_endless {
            TimeDelta::days(30)
        } else {
            bakeoff_domain::clock::seconds(work.round())
        };
        let started_at = now + launch;
        let ran = if drawn.failure.is_some() {
            work / 2
        } else {
            work
        };
        Some(Self {
            name: request["TransformJobName"].as_str()?.to_owned(),
            instance_type: resources["InstanceType"].as_str()?.to_owned(),
            count: u32::try_from(resources["InstanceCount"].as_u64()?).ok()?,
            tags: tags(&request["Tags"]),
            request,
            arn,
            account,
            created_at: now,
            started_at: Some(started_at),
            ended_at: started_at + ran,
            end_status: if drawn.failure.is_some() {
                "Failed"
            } else {
                "Completed"
            },
            failure: drawn.failure,
            stop_asked_at: None,
            lag: drawn.lag,
            has_written: false,
        })
    }

    pub(crate) fn is_over(&self, now: DateTime<Utc>) -> bool {
        self.ended_at <= now
    }

    pub(crate) fn status(&self, now: DateTime<Utc>) -> &'static str {
        match self.stop_asked_at {
            _ if self.is_over(now) => self.end_status,
            Some(at) if at <= now => "Stopping",
            _ => "InProgress",
        }
    }

    pub(crate) fn stop(&mut self, now: DateTime<Utc>) -> Result<Value, Refusal> {
        if self.is_over(now) {
            return Err(invalid(format!(
                "The request was rejected because the transform job is in status {}.",
                self.status(now)
            )));
        }
        if self.stop_asked_at.is_none() {
            self.stop_asked_at = Some(now);
            self.started_at = self.started_at.filter(|at| *at <= now);
            self.ended_at = now + TimeDelta::seconds(STOP_SECONDS);
            (self.end_status, self.failure) = ("Stopped", None);
        }
        Ok(json!({}))
    }

    pub(crate) fn summary(&self, now: DateTime<Utc>) -> Value {
        let mut told = json!({
            "TransformJobName": self.name, "TransformJobArn": self.arn,
            "CreationTime": epoch(self.created_at), "TransformJobStatus": self.status(now),
        });
        if self.is_over(now) {
            told["TransformEndTime"] = json!(epoch(self.ended_at));
            if let Some(reason) = self.failure {
                told["FailureReason"] = json!(reason);
            }
        }
        told
    }

    pub(crate) fn describe(&self, now: DateTime<Utc>) -> Value {
        let mut told = self.summary(now);
        for key in [
            "ModelName",
            "TransformInput",
            "TransformOutput",
            "TransformResources",
            "Environment",
            "DataProcessing",
            "BatchStrategy",
            "MaxConcurrentTransforms",
            "MaxPayloadInMB",
        ] {
            if !self.request[key].is_null() {
                told[key] = self.request[key].clone();
            }
        }
        if let Some(start) = self.started_at.filter(|at| *at <= now) {
            told["TransformStartTime"] = json!(epoch(start));
        }
        told
    }

    /// Where its output goes when it has completed, once.
    pub(crate) fn output(&mut self, now: DateTime<Utc>) -> Option<(Vec<String>, DateTime<Utc>)> {
        let to = self.request["TransformOutput"]["S3OutputPath"].as_str()?;
        let has_run = self.is_over(now) && self.end_status == "Completed";
        if !has_run || self.has_written {
            return None;
        }
        self.has_written = true;
        let uri = format!("{}/data.jsonl.out", to.trim_end_matches('/'));
        Some((vec![uri], self.ended_at))
    }

    /// With the same members as that of a training job.
    pub(crate) fn record(&self, rates: &RateCard, now: DateTime<Utc>) -> Value {
        let span = self.started_at.filter(|at| *at <= now).map(|from| Span {
            from,
            until: self.ended_at.min(now),
        });
        let spans: Vec<Span> = span.into_iter().collect();
        let seconds: i64 = spans.iter().map(|span| span.seconds()).sum();
        json!({
            "kind": "transform", "name": self.name, "account": self.account,
            "attempt": self.request["Environment"]["BAKEOFF_ATTEMPT_ID"], "instance_type": self.instance_type,
            "instance_count": self.count, "spot": false, "status": self.status(now),
            "secondary_status": self.status(now), "training_seconds": seconds, "billable_seconds": seconds,
            "micro_usd": rates.bill(&self.instance_type, i64::from(self.count), &spans, 100),
            "storage_micro_usd": 0, "trial": self.tags.get("bakeoff:trial"), "created_at": self.created_at,
            "stop_asked_at": self.stop_asked_at, "ended_at": Some(self.ended_at).filter(|end| *end <= now),
            "idle_pool": false, "pool_reused_by": null, "pool_ran_out": false, "pool_listed": 0,
            "retained_seconds": 0, "pool_micro_usd": 0, "pool_storage_micro_usd": 0, "metrics_requested": 0,
            "metrics_unserved": 0,
        })
    }
}

/// Checks the members of a request and how they fit together.
pub(crate) fn check(body: &Value) -> Result<(), Refusal> {
    let name = body["TransformJobName"].as_str().unwrap_or_default();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !(1..=63).contains(&name.len()) || !name.chars().all(is_part) {
        return Err(invalid(format!(
            "Value '{name}' at 'transformJobName' failed to satisfy constraint"
        )));
    }
    let resources = &body["TransformResources"];
    let kind = resources["InstanceType"].as_str().unwrap_or_default();
    if !Serving::Transform.offers(kind) {
        return Err(invalid(format!(
            "1 validation error detected: Value '{kind}' at 'transformResources.instanceType' failed to satisfy constraint: Member must satisfy enum value set"
        )));
    }
    let input = &body["TransformInput"]["DataSource"]["S3DataSource"]["S3Uri"];
    let has_ends = input.is_string() && body["TransformOutput"]["S3OutputPath"].is_string();
    if !has_ends || resources["InstanceCount"].as_u64().unwrap_or(0) == 0 {
        return Err(invalid(
            "TransformInput, TransformOutput and TransformResources must not be null",
        ));
    }
    let at_once = body["MaxConcurrentTransforms"].as_u64().unwrap_or(1).max(1);
    if at_once * body["MaxPayloadInMB"].as_u64().unwrap_or(6) > 100 {
        return Err(invalid(
            "MaxConcurrentTransforms * MaxPayloadInMB must not exceed 100 MB",
        ));
    }
    Ok(())
}
