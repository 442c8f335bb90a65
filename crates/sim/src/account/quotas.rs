//! The account's quotas: instances by type and use, as Service Quotas lists them, and calls per
//! second.

use std::collections::{BTreeMap, VecDeque};

use bakeoff_domain::catalog;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

/// SageMaker's quota on ListTrainingJobs, calls per second.
const LIST_PER_SECOND: f64 = 2.0;
/// The quota on CreateProcessingJob, which is not adjustable.
const CREATE_PROCESSING_PER_SECOND: f64 = 1.0;
/// How many calls a token bucket holds.
const BURST: f64 = 5.0;

/// Instances that may be used at once.
#[derive(Debug, Clone)]
pub(crate) struct InstanceQuotas {
    /// For types without a quota of their own.
    pub(crate) usual: u32,
    /// For warm pools.
    pub(crate) pool: u32,
    pub(crate) by_type: BTreeMap<String, u32>,
}

impl InstanceQuotas {
    pub(crate) fn of(&self, instance_type: &str) -> u32 {
        self.by_type
            .get(instance_type)
            .copied()
            .unwrap_or(self.usual)
    }

    /// ListServiceQuotas: six quotas per type, and one that is about something else.
    pub(crate) fn list(&self, body: &Value) -> Value {
        let mut all = Vec::new();
        for instance in catalog::all() {
            let kind = &instance.instance_type;
            let of = self.of(kind);
            all.push((format!("{kind} for training job usage"), of));
            all.push((format!("{kind} for spot training job usage"), of));
            all.push((
                format!("{kind} for training warm pool usage"),
                self.pool.min(of),
            ));
            all.push((format!("{kind} for processing job usage"), of));
            all.push((format!("{kind} for transform job usage"), of));
            all.push((format!("{kind} for endpoint usage"), of));
            all.push((format!("{kind} for notebook instance usage"), 2));
        }
        let size = body["MaxResults"]
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(100)
            .clamp(1, 100);
        let offset: usize = body["NextToken"]
            .as_str()
            .and_then(|token| token.parse().ok())
            .unwrap_or(0);
        let page: Vec<Value> = all
            .iter()
            .skip(offset)
            .take(size)
            .map(|(name, value)| json!({ "ServiceCode": "sagemaker", "QuotaName": name, "Value": value, "Adjustable": true }))
            .collect();
        let mut answer = json!({ "Quotas": page });
        if offset + size < all.len() {
            answer["NextToken"] = json!((offset + size).to_string());
        }
        answer
    }
}

/// Calls of one operation: total, throttled, the most within a second, and the token bucket, if the
/// operation has one.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) count: u64,
    pub(crate) throttled: u64,
    pub(crate) most_in_a_second: usize,
    recent: VecDeque<DateTime<Utc>>,
    bucket: Option<(f64, DateTime<Utc>)>,
}

impl Calls {
    /// Counts a call; returns false when the quota does not allow it.
    pub(crate) fn allow(&mut self, per_second: Option<f64>, now: DateTime<Utc>) -> bool {
        self.count += 1;
        let second = now - TimeDelta::seconds(1);
        while self.recent.front().is_some_and(|at| *at <= second) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        self.most_in_a_second = self.most_in_a_second.max(self.recent.len());
        let Some(per_second) = per_second else {
            return true;
        };
        let burst = BURST.min(per_second.max(1.0) * 2.0);
        let (tokens, last) = self.bucket.unwrap_or((burst, now));
        let tokens = (tokens + (now - last).as_seconds_f64().max(0.0) * per_second).min(burst);
        let is_allowed = tokens >= 1.0;
        self.bucket = Some((if is_allowed { tokens - 1.0 } else { tokens }, now));
        self.throttled += u64::from(!is_allowed);
        is_allowed
    }
}

/// The quota of an operation, calls per second; `None` where none is known.
pub(crate) fn per_second(operation: &str, create: Option<f64>) -> Option<f64> {
    match operation {
        "ListTrainingJobs"
        | "ListProcessingJobs"
        | "ListHyperParameterTuningJobs"
        | "ListTransformJobs"
        | "ListEndpoints" => Some(LIST_PER_SECOND),
        "CreateProcessingJob" => create.map(|rate| rate.min(CREATE_PROCESSING_PER_SECOND)),
        "CreateTrainingJob"
        | "CreateHyperParameterTuningJob"
        | "CreateTransformJob"
        | "CreateEndpoint" => create,
        _ => None,
    }
}
