//! API views of comparisons: table rows, expectations, convergence curves.

use bakeoff_domain::ids::{ExperimentId, RunId, TrialId};
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::measure::metric::Source;
use bakeoff_domain::measure::speed::SpeedBasis;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::PriceStatus;
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_domain::spec::expectation::Verdict;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a comparison row describes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    #[default]
    Trial,
    /// An external run, trained outside SageMaker.
    Run,
}

/// One row of the comparison: what a trial or an external run did and cost. The row is flat, with
/// the same columns in JSON, CSV, NDJSON and Parquet.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct ComparisonRow {
    pub candidate: String,
    /// SageMaker instance type; for an external run, the hardware as its owner named it.
    pub instance_type: String,
    pub instance_count: u32,
    pub accelerator_count: u32,
    pub purchase_option: Option<PurchaseOption>,
    pub state: TrialState,
    /// Measured throughput of the whole job: the mean over the steady window.
    pub tokens_per_second: Option<f64>,
    /// Half width of the 95 % interval of `tokens_per_second`.
    pub tokens_per_second_half_width: Option<f64>,
    pub tokens_per_second_from_at: Option<DateTime<Utc>>,
    pub tokens_per_second_until_at: Option<DateTime<Utc>>,
    pub tokens_per_second_source: Option<Source>,
    /// What it rests on: reported as such, or derived from samples, steps per second or finished
    /// steps.
    pub tokens_per_second_basis: Option<SpeedBasis>,
    /// Measured; otherwise tokens per second divided by the sequence length.
    pub samples_per_second: Option<f64>,
    /// Optimiser steps per second. Measured; otherwise tokens per second divided by tokens per
    /// step.
    pub steps_per_second: Option<f64>,
    /// The same in an hour.
    pub steps_per_hour: Option<f64>,
    /// Measured utilisation of one GPU, 0 to 100: the mean over the steady window.
    pub gpu_utilization_percent: Option<f64>,
    /// Measured memory utilisation of one GPU, 0 to 100: the mean over the steady window. Where only the memory in use is
    /// reported, it is that of the reported total, or else of the catalog's.
    pub gpu_memory_utilization_percent: Option<f64>,
    /// Model FLOP utilisation: measured speed × FLOP per token, divided by the catalog's peak.
    pub mfu_percent: Option<f64>,
    /// Measured: the latest value.
    pub train_loss: Option<f64>,
    /// Measured: the latest value.
    pub validation_loss: Option<f64>,
    /// Optimiser steps completed, as last reported.
    pub step: Option<i64>,
    pub planned_steps: Option<i64>,
    /// Steps completed divided by steps planned, 0 to 1.
    pub progress: Option<f64>,
    /// Estimated hours left, from the pace of recent reports. Empty without enough evidence, while
    /// stalled, and at the end.
    pub remaining_hours: Option<f64>,
    /// Lower end of the 95 % interval.
    pub remaining_hours_low: Option<f64>,
    pub remaining_hours_high: Option<f64>,
    /// Estimated: remaining hours × price; empty for spot, whose saving is known only at its end.
    pub remaining_usd: Option<Usd>,
    pub remaining_usd_low: Option<Usd>,
    pub remaining_usd_high: Option<Usd>,
    /// Measured: pace of the later half of what was seen against the earlier half, percent, without
    /// the first tenth; negative when slower. Empty in the first hour: `remaining_*` rests on the
    /// newest reports alone until then.
    pub pace_change_percent: Option<f64>,
    /// Whether that change is more than noise and over 1.25 %. If so, the interval of `remaining_*`
    /// is wider by it; rely on it to compare rows rather than as a date.
    pub pace_has_changed: Option<bool>,
    /// Start of the current stall: since then, no step has been reported although one was due.
    pub stalled_since: Option<DateTime<Utc>>,
    /// Cost per million tokens, from the measured speed, the price and the billed share.
    pub usd_per_million_tokens: Option<Usd>,
    pub usd_per_step: Option<Usd>,
    /// Cost of one pass over the data, when its token count is known.
    pub usd_per_epoch: Option<Usd>,
    /// SageMaker's training seconds, summed over attempts.
    pub training_seconds: u64,
    /// SageMaker's billable seconds, summed over attempts.
    pub billable_seconds: u64,
    /// Duration of a SageMaker phase, summed over attempts: waiting for instances (not billed),
    /// downloading (image and data), uploading.
    pub starting_seconds: u64,
    pub downloading_seconds: u64,
    pub uploading_seconds: u64,
    /// Share of the billed seconds of ended attempts, 0 to 1, spent pulling the image and on
    /// anything not named below. The five shares add up to 1.
    pub setup_share: Option<f64>,
    pub downloading_share: Option<f64>,
    pub training_share: Option<f64>,
    pub uploading_share: Option<f64>,
    /// Share of the billed seconds spent on attempts that failed, and on training that interruptions lost.
    pub wasted_share: Option<f64>,
    /// Cost of the training job alone. Settled; while the job runs, a lower bound on the cost so
    /// far, which never falls (for spot, a tenth of the full price, because SageMaker saves at most
    /// 90 %). For an external run: its rate × its time, or empty when no rate was given.
    pub cost_usd: Option<Usd>,
    /// The part of `cost_usd` spent on attempts that failed, and on training that interruptions lost: since the newest
    /// checkpoint in S3 before each. What was stopped, at a limit or by a cancel, is not counted.
    pub wasted_usd: Usd,
    /// Cost of storage volumes, on types without local NVMe.
    pub storage_cost_usd: Usd,
    /// Cost of reading metrics from CloudWatch.
    pub metrics_cost_usd: Usd,
    /// Settled cost of warm pools and orphaned jobs.
    pub other_cost_usd: Usd,
    /// Total of all costs.
    pub total_usd: Option<Usd>,
    /// Managed spot: how much more the ended attempts would have cost on demand.
    pub spot_saved_usd: Option<Usd>,
    /// True while part of the cost is an estimate.
    pub cost_estimated: bool,
    /// Price per instance-hour; for an external run, of all its machines together.
    pub usd_per_hour: Option<Usd>,
    pub price_source: Option<String>,
    pub price_status: Option<PriceStatus>,
    pub price_effective_from: Option<DateTime<Utc>>,
    pub price_note: Option<String>,
    /// Sequences per optimiser step.
    pub global_batch: Option<u64>,
    /// False when a finding keeps the trial out of the ranking. External runs are shown but never
    /// ranked.
    pub comparable: bool,
    pub attempts: u32,
    pub interruptions: u32,
    /// SageMaker's secondary status for the latest attempt.
    pub secondary_status: Option<String>,
    pub reason: Option<String>,
    /// Why its last failed job failed, and what to do; `GET /v1/trials/{id}/diagnosis` has the evidence.
    pub diagnosis: Option<String>,
    pub kind: RowKind,
    pub experiment_id: Option<ExperimentId>,
    pub trial_id: Option<TrialId>,
    pub run_id: Option<RunId>,
}

/// An expectation compared with the measured value.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ExpectationView {
    /// Name of the candidate that the expectation refers to.
    pub candidate: String,
    pub column: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    pub note: String,
    pub measured: Option<f64>,
    pub verdict: Verdict,
}

/// Trials and external runs of one project, side by side.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ComparisonTable {
    pub currency: String,
    pub rows: Vec<ComparisonRow>,
    pub expectations: Vec<ExpectationView>,
    /// When the table was read, by the service's clock.
    pub as_of: DateTime<Utc>,
}

/// One point of a convergence curve: a metric against steps, tokens, hours and dollars. The row is
/// flat, with the same columns in every format.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    pub candidate: String,
    pub at: DateTime<Utc>,
    pub step: Option<i64>,
    /// Steps × tokens per step.
    pub tokens: Option<f64>,
    /// Billed hours on the instances, counted from the start of billing; for an external run, hours
    /// since its start.
    pub hours: f64,
    /// Cost up to this point: hours × the agreed price. For spot, based on the actual bill once it
    /// is known.
    pub usd: Option<Usd>,
    /// Measured: a five-minute mean.
    pub value: f64,
    pub trial_id: Option<TrialId>,
    pub run_id: Option<RunId>,
}

/// Where a curve reached the target for good, without leaving it again.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TargetView {
    pub candidate: String,
    pub is_reached: bool,
    pub step: Option<i64>,
    /// Tokens until then.
    pub tokens: Option<f64>,
    pub hours: Option<f64>,
    pub usd: Option<Usd>,
    /// The latest measured value.
    pub last_value: Option<f64>,
    pub trial_id: Option<TrialId>,
    pub run_id: Option<RunId>,
}

/// Convergence curves of one metric, for trials and external runs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Convergence {
    pub metric: String,
    pub target: Option<f64>,
    /// When a target is given: one entry per trial and external run.
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
    /// Each expectation, compared with the measured value.
    pub expectations: Vec<ExpectationView>,
    /// When the table was read, by the service's clock.
    pub as_of: DateTime<Utc>,
}
