//! What the API shows: the read model's types, with units in their names. Shared by handlers, tasks
//! and the command line.

use bakeoff_domain::finding::Finding;
use bakeoff_domain::ids::{AttemptId, ExperimentId, PriceId, RunId, TrialId, WorkloadId};
use bakeoff_domain::lifecycle::spot::Interruption;
use bakeoff_domain::lifecycle::state::{AttemptState, ExperimentState, TrialState};
use bakeoff_domain::measure::metric::Source;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{Component, PriceStatus};
use bakeoff_domain::ranking::recommend::Recommendation;
use bakeoff_domain::sagemaker::observed::Transition;
use bakeoff_domain::spec::expectation::Verdict;
use bakeoff_domain::spec::{ExperimentSpec, PurchaseOption};
use bakeoff_planner::plan::TrialPlan;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
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
    /// As it was stored.
    #[schema(value_type = TrialPlan)]
    pub plan: Box<RawValue>,
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

/// What a row of the comparison is of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    #[default]
    Trial,
    /// A run that SageMaker never saw.
    Run,
}

/// One row of the comparison: what a trial or an external run did and cost. Flat: the same columns
/// as JSON, CSV, NDJSON, Parquet.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ComparisonRow {
    pub candidate: String,
    /// Of a run: its hardware, as the user calls it.
    pub instance_type: String,
    pub instance_count: u32,
    pub accelerator_count: u32,
    pub purchase_option: Option<PurchaseOption>,
    pub state: TrialState,
    /// Measured: mean over the steady window, of the whole job.
    pub tokens_per_second: Option<f64>,
    /// Half width of its 95 % interval.
    pub tokens_per_second_half_width: Option<f64>,
    pub tokens_per_second_from_at: Option<DateTime<Utc>>,
    pub tokens_per_second_until_at: Option<DateTime<Utc>>,
    pub tokens_per_second_source: Option<Source>,
    /// Measured; else tokens per second over the sequence length.
    pub samples_per_second: Option<f64>,
    /// Optimiser steps. Measured; else tokens per second over the tokens of a step.
    pub steps_per_second: Option<f64>,
    /// Measured: mean over the steady window, 0 to 100 of one GPU.
    pub gpu_utilization_percent: Option<f64>,
    /// Measured: mean over the steady window, 0 to 100 of one GPU's memory.
    pub gpu_memory_utilization_percent: Option<f64>,
    /// Model FLOP utilisation: measured speed × FLOP per token over the catalog's peak.
    pub mfu_percent: Option<f64>,
    /// Measured: the last value.
    pub train_loss: Option<f64>,
    /// Measured: the last value.
    pub validation_loss: Option<f64>,
    /// Optimiser steps done, as last reported.
    pub step: Option<i64>,
    pub planned_steps: Option<i64>,
    /// Steps done over those planned, 0 to 1.
    pub progress: Option<f64>,
    /// Estimated hours that are left, from the pace of the last reports; none without evidence, at
    /// a stall, and at the end.
    pub remaining_hours: Option<f64>,
    /// 95 % interval.
    pub remaining_hours_low: Option<f64>,
    pub remaining_hours_high: Option<f64>,
    /// Estimated: remaining hours × price.
    pub remaining_usd: Option<Usd>,
    pub remaining_usd_low: Option<Usd>,
    pub remaining_usd_high: Option<Usd>,
    /// Since when no step has been reported, when it should have been.
    pub stalled_since: Option<DateTime<Utc>>,
    /// Measured speed × price × billed share.
    pub usd_per_million_tokens: Option<Usd>,
    pub usd_per_step: Option<Usd>,
    /// Of one pass over the data, when its tokens are known.
    pub usd_per_epoch: Option<Usd>,
    /// From SageMaker, summed over attempts.
    pub training_seconds: u64,
    /// From SageMaker, summed over attempts.
    pub billable_seconds: u64,
    /// Of SageMaker's phases, summed over attempts: waiting for instances (not billed),
    /// downloading, uploading.
    pub starting_seconds: u64,
    pub downloading_seconds: u64,
    pub uploading_seconds: u64,
    /// Of the billed seconds of ended attempts, 0 to 1; with the next four together 1. Pulling the
    /// image, and what has no name.
    pub setup_share: Option<f64>,
    pub downloading_share: Option<f64>,
    pub training_share: Option<f64>,
    pub uploading_share: Option<f64>,
    /// Attempts that did not complete.
    pub wasted_share: Option<f64>,
    /// The job's own cost: settled; while it runs, what it has certainly cost so far, which never
    /// falls (of spot, a tenth of the full price: SageMaker saves 90 % at most). Of a run: its rate
    /// × its time. Empty when nobody has said at which rate.
    pub cost_usd: Option<Usd>,
    /// The part of it that went to attempts that did not complete.
    pub wasted_usd: Usd,
    /// Its volumes, where the type has no local NVMe.
    pub storage_cost_usd: Usd,
    /// Reading its metrics.
    pub metrics_cost_usd: Usd,
    /// Keeping its instances warm, and jobs that ran astray. Settled.
    pub other_cost_usd: Usd,
    /// All of it.
    pub total_usd: Option<Usd>,
    /// Managed spot: what its ended attempts would have cost more on demand.
    pub spot_saved_usd: Option<Usd>,
    /// True while a part of the cost is an estimate.
    pub cost_estimated: bool,
    /// Of one instance; of a run, of all its machines.
    pub usd_per_hour: Option<Usd>,
    pub price_source: Option<String>,
    pub price_status: Option<PriceStatus>,
    pub price_effective_from: Option<DateTime<Utc>>,
    pub price_note: Option<String>,
    /// Sequences per optimiser step.
    pub global_batch: Option<u64>,
    /// False when a finding keeps the trial out of the ranking; runs are shown and not ranked.
    pub comparable: bool,
    pub attempts: u32,
    pub interruptions: u32,
    /// SageMaker's secondary status of the latest attempt.
    pub secondary_status: Option<String>,
    pub reason: Option<String>,
    pub kind: RowKind,
    pub experiment_id: Option<ExperimentId>,
    pub trial_id: Option<TrialId>,
    pub run_id: Option<RunId>,
}

/// An expectation beside what was measured.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExpectationView {
    /// Of the row that it is about.
    pub candidate: String,
    pub column: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    pub note: String,
    pub measured: Option<f64>,
    pub verdict: Verdict,
}

/// Rows of any trials and runs of a project, side by side.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ComparisonTable {
    pub currency: String,
    pub rows: Vec<ComparisonRow>,
    pub expectations: Vec<ExpectationView>,
    /// When the table was read, on the service's clock.
    pub as_of: DateTime<Utc>,
}

/// One point of a curve: a metric against steps, tokens, hours and dollars. Flat: the same columns
/// in every format.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    pub candidate: String,
    pub at: DateTime<Utc>,
    pub step: Option<i64>,
    /// Steps × tokens of a step.
    pub tokens: Option<f64>,
    /// With instances, from the beginning of billing; of a run, since its start.
    pub hours: f64,
    /// What that cost: hours × the price agreed. Of spot by what was billed, once that is known.
    pub usd: Option<Usd>,
    /// Measured: the mean of five minutes.
    pub value: f64,
    pub trial_id: Option<TrialId>,
    pub run_id: Option<RunId>,
}

/// Where a curve reached the target, and did not leave it again.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TargetView {
    pub candidate: String,
    pub is_reached: bool,
    pub step: Option<i64>,
    pub hours: Option<f64>,
    pub usd: Option<Usd>,
    /// As last measured.
    pub last_value: Option<f64>,
    pub trial_id: Option<TrialId>,
    pub run_id: Option<RunId>,
}

/// Curves of one metric of trials and runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Convergence {
    pub metric: String,
    pub target: Option<f64>,
    /// With a target: one entry for each trial and run.
    pub reached: Vec<TargetView>,
    pub rows: Vec<CurvePoint>,
    pub as_of: DateTime<Utc>,
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
    /// What was expected, beside what was measured.
    pub expectations: Vec<ExpectationView>,
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
    /// Changes of price since, newest first.
    #[serde(default)]
    pub repricings: Vec<RepricingView>,
}

/// What a refresh of prices brought.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Refreshed {
    pub region: String,
    /// Products that AWS's list has for the region.
    pub read: usize,
    /// Of them rates of training.
    pub listed: usize,
    /// Of those the ones that were not known; experiments that depend on them are worked out anew
    /// within a minute.
    pub new: Vec<PriceChange>,
    /// Products that could not be read as what they seem to be; at most 100.
    pub skipped: Vec<SkippedProduct>,
    pub as_of: DateTime<Utc>,
}

/// A price that was not known.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PriceChange {
    pub component: Component,
    /// Of training.
    pub instance_type: Option<String>,
    /// Per instance-hour, or per GB-month of storage.
    pub usd: Usd,
    /// What was in force when it was refreshed.
    pub usd_before: Option<Usd>,
    pub effective_from: DateTime<Utc>,
}

/// A product of AWS's list that says nothing that can be billed by.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SkippedProduct {
    pub sku: String,
    pub reason: String,
}

/// What a change of price did to an experiment.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RepricingView {
    /// The prices that it is due to.
    pub price_ids: Vec<PriceId>,
    pub reason: String,
    /// By how much what was settled changed.
    pub usd: Usd,
    /// The ranking was worked out anew.
    pub is_decided_anew: bool,
    pub recorded_at: DateTime<Utc>,
}

/// One entry of the ledger.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LedgerEntryView {
    pub id: i64,
    pub trial_id: TrialId,
    pub attempt_id: AttemptId,
    /// `reserved`, `released`, `settled` or `adjusted` (a price became known later; it may be less
    /// than nothing).
    pub kind: String,
    /// `training`, `cloudwatch`, `warm_pool`, `storage` or `stray`.
    pub component: String,
    pub usd: Usd,
    pub quantity: i64,
    /// Unit of `quantity`: `instance_seconds`, `gb_seconds`, `metrics_requested`, or `worst_case`
    /// for a bound.
    pub unit: String,
    pub price_id: Option<PriceId>,
    pub estimated: bool,
    /// When it was used, of what is settled or adjusted.
    pub used_from: Option<DateTime<Utc>>,
    pub used_until: Option<DateTime<Utc>>,
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
