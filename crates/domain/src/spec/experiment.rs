//! An experiment: what is compared, on which types, and within which limits. Plain data that
//! mirrors the JSON; the planner decides whether it makes sense and what it would cost.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::claim::Claims;
use super::expectation::Expectation;
use super::measurement::Measurement;
use super::profile::ProfileSpec;
use super::workload::WorkloadSpec;
use crate::catalog;
use crate::ids::{ProfileId, WorkloadId};
use crate::money::Usd;
use crate::sagemaker::locations::CheckpointSpec;
use crate::sagemaker::purchase_option::PurchaseOption;

/// One instance type with a profile, to be tried under each of its purchase options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CandidateSpec {
    pub name: String,
    pub instance_type: String,
    #[serde(default = "super::default::one")]
    pub instance_count: u32,
    #[serde(default = "on_demand")]
    pub purchase_options: Vec<PurchaseOption>,
    #[serde(default = "super::default::one")]
    pub repeats: u32,
    /// An inline profile; exactly one of `profile` and `profile_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_id: Option<ProfileId>,
}

fn on_demand() -> Vec<PurchaseOption> {
    vec![PurchaseOption::OnDemand]
}

/// What to minimise for the full training run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Minimize {
    /// Cost of the full run, USD.
    Cost,
    /// Duration of the full run, hours.
    Time,
    /// Cost of a million tokens, USD, once the run is under way: what is spent once, such as the
    /// start, does not count.
    UsdPerMillionTokens,
}

/// Which trials run, and for how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppingPolicy {
    /// What could not change the answer does not start, and a trial that can no longer win is
    /// stopped. What is left runs to its end.
    #[default]
    Race,
    /// The same, and each trial is stopped once its speed is known, after a checkpoint if the
    /// experiment names a place for them.
    Probe,
    /// Every trial runs to its end.
    Full,
}

/// What becomes of a trial that teaches nothing: none of its patterns meets a line of its log, or its loss is no number
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoReadings {
    /// An alarm is raised and it is stopped; where its patterns met no line, those that wait do not start.
    #[default]
    Stop,
    /// An alarm is raised, and it goes on.
    Alarm,
}

/// How the recommendation ranks candidates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ObjectiveSpec {
    pub minimize: Minimize,
    /// Candidates whose projected full run costs more are not recommended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_run_budget_usd: Option<Usd>,
    /// Candidates whose projected full run takes longer are not recommended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_run_deadline_hours: Option<f64>,
    /// A loss to project to (of validation if the workload reports it, or else of training): hours and
    /// dollars of the full run are those until its trials reached it, or of all `total_tokens` while
    /// none has. A trial or full run that has reached it and saved a checkpoint since is stopped (unless every
    /// trial runs to its end), and its model is the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_loss: Option<f64>,
}

/// An experiment: a workload, candidates, an objective and a budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExperimentSpec {
    pub name: String,
    pub region: String,
    /// An inline workload; exactly one of `workload` and `workload_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<WorkloadSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_id: Option<WorkloadId>,
    pub candidates: Vec<CandidateSpec>,
    pub objective: ObjectiveSpec,
    /// Which trials run, and for how long: `race` when absent. Experiments from before there was a
    /// choice have none, and ran in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping_policy: Option<StoppingPolicy>,
    /// What becomes of a trial that teaches nothing after ten minutes of training; `stop` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_readings: Option<NoReadings>,
    /// Hard cap on what this experiment may spend.
    pub budget_usd: Usd,
    /// The longest a trial may train, SageMaker's MaxRuntimeInSeconds.
    pub max_runtime_seconds: u32,
    /// The longest a spot trial may wait and train together, SageMaker's MaxWaitTimeInSeconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_seconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
    /// How long the instances of an on-demand trial are kept warm for the next trial on the same
    /// type, SageMaker's KeepAlivePeriodInSeconds. They are billed meanwhile, and released as soon
    /// as no trial waits for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive_seconds: Option<u32>,
    /// Higher goes first among the project's waiting trials, -100 to 100.
    #[serde(default)]
    pub priority: i32,
    /// How many hours after the experiment's start its trials may wait for AWS capacity; 72 when
    /// absent, 0 for no waiting. Waiting is not billed and holds no budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_hours: Option<u32>,
    /// Expectations, shown beside the measured values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Expectation>,
    /// Speeds of this workload measured earlier; they adjust the predictions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurement>,
    /// Assumptions about hardware, prices, sizes and speeds, checked by the linter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
    /// Labels to find it by, at most 20; its jobs carry them as tags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Free-form notes kept with the experiment: its purpose, what was corrected.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The highest priority, and below 0 the lowest.
pub const PRIORITY_MAX: i32 = 100;
/// Default wait for capacity, in hours: shortages of p5 last hours, rarely days.
pub(crate) const DEADLINE_HOURS_DEFAULT: u32 = 72;

impl ExperimentSpec {
    /// The moment until which trials of an experiment that starts now wait for capacity.
    pub fn deadline(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        deadline_after(self.deadline_hours, now)
    }
}

/// The moment some hours from now, or the usual number of them.
pub fn deadline_after(hours: Option<u32>, now: DateTime<Utc>) -> DateTime<Utc> {
    let hours = hours.unwrap_or(DEADLINE_HOURS_DEFAULT);
    now.checked_add_signed(TimeDelta::hours(hours.into()))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

impl CandidateSpec {
    /// Accelerators of all its instances together; one per instance if the type has none or is
    /// unknown.
    pub fn accelerators(&self) -> u32 {
        let each =
            catalog::find(&self.instance_type).map_or(1, |found| found.accelerator_count.max(1));
        each.saturating_mul(self.instance_count.max(1))
    }
}
