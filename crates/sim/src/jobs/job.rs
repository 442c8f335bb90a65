//! One training job: what was asked for, its timeline, and what Describe tells of it.

use std::collections::BTreeMap;

use bakeoff_domain::catalog::InstanceType;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::account::billing::{self, Span};
use crate::jobs::pools::PoolEnd;
use crate::machines::physics::Script;
use crate::machines::timeline::{Failure, Timeline};

/// One training job.
#[derive(Debug)]
pub(crate) struct Job {
    /// The CreateTrainingJob body, as received.
    pub(crate) request: Value,
    pub(crate) name: String,
    pub(crate) arn: String,
    pub(crate) account: String,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) instance: &'static InstanceType,
    pub(crate) count: u32,
    /// The other instance groups of a heterogeneous cluster.
    pub(crate) helpers: Vec<(&'static InstanceType, u32)>,
    pub(crate) is_spot: bool,
    pub(crate) script: Script,
    pub(crate) timeline: Timeline,
    pub(crate) saving_percent: i64,
    pub(crate) seed: u64,
    pub(crate) tags: BTreeMap<String, String>,
    /// False when its keep-alive setting was dropped.
    pub(crate) keeps_pool: bool,
    pub(crate) pool_end: Option<PoolEnd>,
    /// Listings that have shown its warm pool as idle.
    pub(crate) pool_listed: u32,
    pub(crate) written: Written,
    /// Whether its sync to S3 stops after the first checkpoint.
    pub(crate) syncs_once: bool,
    /// How far Describe lags behind; `list_lag` is the same for List.
    pub(crate) describe_lag: TimeDelta,
    pub(crate) list_lag: TimeDelta,
    /// How its billing figures look just after its end.
    pub(crate) early_bill: EarlyBill,
    /// When the first StopTrainingJob reached it.
    pub(crate) stop_asked_at: Option<DateTime<Utc>>,
    /// How it fails, if it does.
    pub(crate) failure: Option<Failure>,
    /// Whether Describe has shown it.
    pub(crate) is_shown: bool,
}

/// What its script has written to S3.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) checkpoints: usize,
    pub(crate) has_model: bool,
    pub(crate) has_reports: bool,
}

/// How Describe misreports the billed time for a while after the end.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EarlyBill {
    /// How long the figures are missing.
    pub(crate) absent_for: TimeDelta,
    /// How long the figures are too low.
    pub(crate) low_for: TimeDelta,
}

impl Job {
    pub(crate) fn status(&self, now: DateTime<Utc>) -> &'static str {
        match self.timeline.phase_at(now) {
            None => self.timeline.end_status,
            Some(phase) if phase.status == "Stopping" => "Stopping",
            Some(_)
                if self
                    .timeline
                    .phases
                    .iter()
                    .any(|phase| phase.status == "Stopping" && phase.start <= now) =>
            {
                "Stopping"
            }
            Some(_) => "InProgress",
        }
    }

    /// Where its model is, once it has completed.
    pub(crate) fn model_uri(&self, now: DateTime<Utc>) -> Option<String> {
        let output = self.request["OutputDataConfig"]["S3OutputPath"].as_str()?;
        let is_there = self.timeline.is_over(now) && self.timeline.end_status == "Completed";
        let (output, name) = (output.trim_end_matches('/'), &self.name);
        is_there.then(|| format!("{output}/{name}/output/model.tar.gz"))
    }

    pub(crate) fn secondary_status(&self, now: DateTime<Utc>) -> &'static str {
        self.timeline
            .phase_at(now)
            .map_or(self.timeline.end_secondary, |phase| phase.status)
    }

    /// BillableTimeInSeconds: for spot, the training time less the saving.
    pub(crate) fn billable_seconds(&self, now: DateTime<Utc>) -> i64 {
        self.billed_of(self.timeline.training_seconds(now))
    }

    fn billed_of(&self, trained: i64) -> i64 {
        if self.is_spot {
            trained * (100 - self.saving_percent) / 100
        } else {
            trained
        }
    }

    /// TrainingTimeInSeconds and BillableTimeInSeconds as Describe reports them now, for a job that
    /// was launched and has ended.
    pub(crate) fn told_seconds(&self, now: DateTime<Utc>) -> Option<(i64, i64)> {
        let since = now - self.timeline.end().filter(|end| *end <= now)?;
        if since < self.early_bill.absent_for {
            return None;
        }
        let trained = self.timeline.training_seconds(now);
        let told = if since < self.early_bill.low_for {
            trained * 9 / 10
        } else {
            trained
        };
        Some((told, self.billed_of(told)))
    }

    /// Micro-dollars for its volumes over some spans; none where local NVMe replaces the volumes.
    pub(crate) fn volumes(&self, spans: &[Span]) -> i64 {
        let gb = self.request["ResourceConfig"]["VolumeSizeInGB"]
            .as_i64()
            .unwrap_or(0);
        if self.instance.nvme_gb > 0 {
            0
        } else {
            billing::volumes(gb, i64::from(self.count), spans)
        }
    }
}
