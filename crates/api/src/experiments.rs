//! API views of experiments.

use std::collections::BTreeMap;

use bakeoff_domain::event::Change;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::ids::{ExperimentId, TrialId, WorkloadId};
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::findings::FindingView;
use crate::full_runs::FullRunOfView;
use crate::looks::BriefView;
use crate::plans::PlanView;

/// An experiment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExperimentView {
    pub id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    pub workload_id: WorkloadId,
    pub budget_usd: Usd,
    /// Reserved for attempts that are not settled yet.
    pub reserved_usd: Usd,
    /// Spent and settled.
    pub settled_usd: Usd,
    /// Why nothing new is started: paused manually, or because a settlement exceeded its
    /// reservation. Empty when not paused.
    pub paused_reason: Option<String>,
    pub findings: Vec<FindingView>,
    pub spec: ExperimentSpec,
    /// Of which experiment this is the full run, and what was projected of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_run_of: Option<FullRunOfView>,
    /// Labels to find it by; its jobs carry them as tags.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The API key, the CI template or the pipeline that began it; null of one from before this was noted.
    #[serde(default)]
    pub created_by: Option<String>,
    /// Set while lists leave it out.
    #[serde(default)]
    pub archived_at: Option<DateTime<Utc>>,
    /// Set in the list of deleted ones, which can be restored for 30 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<DateTime<Utc>>,
    /// Counts from 1, and grows with each change: what a change names in `If-Match`.
    pub revision: u32,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// What is to be changed of an experiment; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExperimentChange {
    /// At least what is spent and reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_usd: Option<Usd>,
    /// Of its waiting trials, -100 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// How many hours after the experiment's start its trials may wait for AWS capacity, 0 to 8760.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_hours: Option<u32>,
    /// In place of those that it has, at most 20; jobs that begin from now on carry them as tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// What has been changed of an experiment, by a person or after a failure
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExperimentChanged {
    #[serde(flatten)]
    pub change: ExperimentChange,
    /// Left out of lists, or in them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// Deleted, or restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<bool>,
    /// A candidate that was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
    /// A trial that is done once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<TrialId>,
    /// Why Bakeoff has changed it by itself; empty if a person did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl From<Change> for ExperimentChanged {
    fn from(change: Change) -> Self {
        Self {
            change: ExperimentChange {
                budget_usd: change.budget_usd,
                priority: change.priority,
                deadline_hours: change.deadline_hours,
                labels: change.labels,
            },
            archived: change.archived,
            deleted: change.deleted,
            candidate: change.candidate,
            retry_of: change.retry_of,
            cause: change.cause,
        }
    }
}

/// Trials that were added to an experiment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AddedTrials {
    pub experiment_id: ExperimentId,
    /// Of the experiment, from now on.
    pub revision: u32,
    /// Of their candidate.
    pub findings: Vec<FindingView>,
    pub trials: Vec<PlannedTrial>,
    /// The total that would be reserved if none of them had to wait for another.
    pub worst_case_usd: Usd,
}

impl AddedTrials {
    pub fn of(
        experiment_id: ExperimentId,
        revision: u32,
        findings: Vec<Finding>,
        trials: Vec<(TrialId, TrialPlan)>,
    ) -> Self {
        let starting = trials.iter().filter(|(_, plan)| plan.starts());
        let worst = starting.filter_map(|(_, plan)| plan.worst_case);
        Self {
            experiment_id,
            revision,
            worst_case_usd: worst.map(|worst| worst.total_usd).sum(),
            findings: findings.into_iter().map(Into::into).collect(),
            trials: trials
                .into_iter()
                .map(|(id, plan)| PlannedTrial {
                    id,
                    plan: plan.into(),
                })
                .collect(),
        }
    }
}

/// Why a trial is stopped.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct StopTrial {
    /// Shown as the trial's reason; at most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A new experiment and its plan.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedExperiment {
    pub id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    pub findings: Vec<FindingView>,
    pub trials: Vec<PlannedTrial>,
    /// The total that would be reserved if no attempt had to wait for another.
    pub worst_case_usd: Usd,
}

/// A trial as planned.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PlannedTrial {
    pub id: TrialId,
    #[serde(flatten)]
    pub plan: PlanView,
}

/// An experiment in a list: what it is about, how far it is, what it has cost and what it says. The whole of it,
/// with its specification and findings, is at `/v1/experiments/{experiment_id}`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExperimentSummary {
    pub id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    /// The workload's name and version.
    pub workload: String,
    pub budget_usd: Usd,
    /// Reserved for attempts that are not settled yet.
    pub reserved_usd: Usd,
    /// Spent and settled.
    pub settled_usd: Usd,
    pub paused_reason: Option<String>,
    pub trials: TrialCounts,
    /// The newest answer; null until there is one.
    pub answer: Option<BriefView>,
    /// Of which experiment this is the full run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_run_of: Option<ExperimentId>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The API key, the CI template or the pipeline that began it; null of one from before this was noted.
    #[serde(default)]
    pub created_by: Option<String>,
    /// The name of the key or the template, where it still exists.
    #[serde(default)]
    pub creator: Option<String>,
    #[serde(default)]
    pub archived_at: Option<DateTime<Utc>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<DateTime<Utc>>,
    pub revision: u32,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// Trials by what they do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrialCounts {
    /// Queued, or being submitted.
    pub waiting: u32,
    /// Running, or stopping.
    pub running: u32,
    /// Waiting for a person.
    pub parked: u32,
    pub completed: u32,
    /// Stopped early: out of the race, or by hand.
    pub stopped: u32,
    pub failed: u32,
    pub refused: u32,
}

/// How many experiments there are of each kind, those in the archive and deleted ones left out.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExperimentFacets {
    pub states: Vec<StateCount>,
    /// The most frequent 50.
    pub creators: Vec<Facet>,
    /// By the workload's name; the most frequent 50.
    pub workloads: Vec<Facet>,
}

/// How many experiments are in a state.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StateCount {
    pub state: ExperimentState,
    pub count: i64,
}

/// How many experiments have a value.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Facet {
    /// What the list's filter of that name takes.
    pub value: String,
    /// What people call it.
    pub name: String,
    pub count: i64,
}
