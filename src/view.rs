//! What the API shows: the read model's types, with units in their names. Shared by handlers, tasks and the command line.

use bakeoff_domain::attempt::{AttemptState, ExperimentState, TrialState};
use bakeoff_domain::finding::Finding;
use bakeoff_domain::ids::{AttemptId, ExperimentId, PriceId, TrialId, WorkloadId};
use bakeoff_domain::job::Transition;
use bakeoff_domain::money::Usd;
use bakeoff_domain::plan::TrialPlan;
use bakeoff_domain::price::PriceStatus;
use bakeoff_domain::recommend::Recommendation;
use bakeoff_domain::spec::{ExperimentSpec, PurchaseOption};
use bakeoff_domain::spot::Interruption;
use bakeoff_domain::steady::Steady;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An experiment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExperimentView {
    pub id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    pub workload_id: WorkloadId,
    pub budget_usd: Usd,
    /// Held for attempts that are not settled yet.
    pub reserved_usd: Usd,
    /// Spent, as settled.
    pub settled_usd: Usd,
    /// Set when nothing new is started: by hand, or since a settlement exceeded its reservation.
    pub paused_reason: Option<String>,
    pub findings: Vec<Finding>,
    pub spec: ExperimentSpec,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// A new experiment with its plan.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedExperiment {
    pub id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    pub findings: Vec<Finding>,
    pub trials: Vec<PlannedTrial>,
    /// The most that all attempts together could reserve, were none to wait for another.
    pub worst_case_usd: Usd,
}

/// A trial as planned.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PlannedTrial {
    pub id: TrialId,
    #[serde(flatten)]
    pub plan: TrialPlan,
}

/// A trial.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TrialView {
    pub id: TrialId,
    pub experiment_id: ExperimentId,
    pub state: TrialState,
    pub reason: Option<String>,
    pub plan: TrialPlan,
    pub attempts: Vec<AttemptView>,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// An attempt: one SageMaker job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    pub id: AttemptId,
    pub number: u32,
    pub job_name: String,
    pub state: AttemptState,
    pub job_status: Option<String>,
    pub secondary_status: Option<String>,
    pub failure_reason: Option<String>,
    pub usd_per_hour: Usd,
    pub price_id: PriceId,
    pub training_seconds: Option<i64>,
    pub billable_seconds: Option<i64>,
    /// True when AWS did not say and the seconds are our own estimate.
    pub billing_estimated: bool,
    pub transitions: Vec<Transition>,
    pub planned_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
    /// Spot capacity that was taken away, from SageMaker's transitions.
    pub interruptions: Vec<Interruption>,
    /// Spot: SageMaker's own figure, 100 × (1 − billable / training time).
    pub savings_percent: Option<f64>,
    /// The newest object below its checkpoint prefix, as last seen.
    pub checkpoint_at: Option<DateTime<Utc>>,
    /// Spot: what an interruption now would make it pay for again, at the full price. Estimated.
    pub at_risk_usd: Option<Usd>,
}

/// One row of the comparison: what a trial did and cost.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ComparisonRow {
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    pub state: TrialState,
    pub reason: Option<String>,
    /// SageMaker's secondary status of the latest attempt.
    pub secondary_status: Option<String>,
    pub attempts: u32,
    pub interruptions: u32,
    /// Sequences per optimiser step.
    pub global_batch: u64,
    /// False when a finding keeps the trial out of the ranking.
    pub comparable: bool,
    /// Optimiser steps done, as the script reported last, over those planned.
    pub progress: Option<f64>,
    /// Measured.
    pub tokens_per_second: Option<Steady>,
    /// Measured: mean over the steady window, 0 to 100 of one GPU.
    pub gpu_utilization_percent: Option<f64>,
    /// Measured: the last value.
    pub train_loss: Option<f64>,
    /// Measured speed × price × billed share.
    pub usd_per_million_tokens: Option<Usd>,
    /// From SageMaker, summed over attempts.
    pub training_seconds: u64,
    /// From SageMaker, summed over attempts.
    pub billable_seconds: u64,
    /// The job's own cost: settled, or so far, at most, while it runs.
    pub cost_usd: Usd,
    /// Reading its metrics.
    pub metrics_cost_usd: Usd,
    /// Keeping its instances warm, and jobs that ran astray. Settled.
    pub other_cost_usd: Usd,
    /// True while a part of the cost is an estimate.
    pub cost_estimated: bool,
    pub usd_per_hour: Option<Usd>,
    pub price_source: Option<String>,
    pub price_status: Option<PriceStatus>,
    pub price_effective_from: Option<DateTime<Utc>>,
    pub price_note: Option<String>,
}

/// The comparison table of an experiment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Comparison {
    pub experiment_id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    pub currency: String,
    pub budget_usd: Usd,
    pub reserved_usd: Usd,
    pub settled_usd: Usd,
    pub rows: Vec<ComparisonRow>,
    /// When the table was read, on the service's clock.
    pub as_of: DateTime<Utc>,
}

/// The recommendation of an experiment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RecommendationView {
    pub experiment_id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    #[serde(flatten)]
    pub recommendation: Recommendation,
}

/// One entry of the ledger.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LedgerEntryView {
    pub id: i64,
    pub trial_id: TrialId,
    pub attempt_id: AttemptId,
    /// `reserved`, `released` or `settled`.
    pub kind: String,
    /// `training`, `cloudwatch`, `warm_pool` or `stray`.
    pub component: String,
    pub usd: Usd,
    pub quantity: i64,
    /// Unit of `quantity`: `instance_seconds`, `metrics_requested`, or `worst_case` for a bound.
    pub unit: String,
    pub price_id: Option<PriceId>,
    pub estimated: bool,
    pub recorded_at: DateTime<Utc>,
}

/// An event.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    pub id: i64,
    pub trial_id: Option<TrialId>,
    /// Dotted name, `trial.completed`.
    pub kind: String,
    /// `info`, `warning` or `alarm`.
    pub severity: String,
    pub message: String,
    pub recorded_at: DateTime<Utc>,
}
