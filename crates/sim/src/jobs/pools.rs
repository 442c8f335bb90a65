//! Warm pools: the instances a job leaves behind, how long they are kept, and which job takes them
//! over. Source: SageMaker developer guide, managed warm pools.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::account::billing::Span;
use crate::jobs::job::Job;

/// How a pool ended early.
#[derive(Debug, Clone)]
pub(crate) struct PoolEnd {
    pub(crate) at: DateTime<Utc>,
    pub(crate) reused_by: Option<String>,
}

impl Job {
    /// When its pool begins and would expire by itself; `None` when it keeps none.
    pub(crate) fn pool_span(&self) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
        let seconds = self.request["ResourceConfig"]["KeepAlivePeriodInSeconds"]
            .as_i64()
            .filter(|s| *s > 0)?;
        let was_launched = self.timeline.billing_start().is_some();
        let is_kept = match self.timeline.end_status {
            "Completed" | "Stopped" => true,
            _ => self
                .timeline
                .failure_reason
                .is_some_and(|reason| reason.starts_with("AlgorithmError")),
        };
        if !was_launched || !is_kept || self.is_spot || !self.keeps_pool {
            return None;
        }
        let begin = self.timeline.end()?;
        Some((begin, begin + TimeDelta::seconds(seconds)))
    }

    pub(crate) fn has_idle_pool(&self, now: DateTime<Utc>) -> bool {
        self.pool_end.as_ref().is_none_or(|end| now < end.at)
            && self
                .pool_span()
                .is_some_and(|(begin, end)| begin <= now && now < end)
    }

    /// The span in which the pool was kept, until `now`.
    pub(crate) fn retained(&self, now: DateTime<Utc>) -> Option<Span> {
        let (begin, end) = self.pool_span()?;
        let ended = self
            .pool_end
            .as_ref()
            .map_or(end, |early| early.at.min(end));
        Some(Span {
            from: begin,
            until: ended.min(now).max(begin),
        })
    }

    /// The retained span in seconds.
    pub(crate) fn retained_seconds(&self, now: DateTime<Utc>) -> i64 {
        self.retained(now).map_or(0, Span::seconds)
    }

    /// WarmPoolStatus, as Describe and List report it.
    pub(crate) fn pool_status(&self, now: DateTime<Utc>) -> Option<Value> {
        self.request["ResourceConfig"]["KeepAlivePeriodInSeconds"]
            .as_i64()
            .filter(|seconds| *seconds > 0)?;
        if !self.timeline.is_over(now) {
            return Some(json!({ "Status": "InUse" }));
        }
        if self.has_idle_pool(now) {
            return Some(json!({ "Status": "Available" }));
        }
        let reused_by = self
            .pool_end
            .as_ref()
            .and_then(|end| end.reused_by.as_ref());
        let mut status = json!({
            "Status": if reused_by.is_some() { "Reused" } else { "Terminated" },
            "ResourceRetainedBillableTimeInSeconds": self.retained_seconds(now),
        });
        if let Some(job) = reused_by {
            status["ReusedByJob"] = json!(job);
        }
        Some(status)
    }

    /// Compares what SageMaker compares before a job may use this job's pool.
    pub(crate) fn matches(&self, request: &Value) -> bool {
        let same = |path: &str| self.request.pointer(path) == request.pointer(path);
        request["ResourceConfig"]["KeepAlivePeriodInSeconds"]
            .as_i64()
            .is_some_and(|seconds| seconds > 0)
            && same("/RoleArn")
            && same("/ResourceConfig/InstanceType")
            && same("/ResourceConfig/InstanceCount")
            && same("/ResourceConfig/VolumeSizeInGB")
            && same("/ResourceConfig/VolumeKmsKeyId")
            && same("/VpcConfig")
            && same("/EnableNetworkIsolation")
            && same("/EnableInterContainerTrafficEncryption")
    }
}
