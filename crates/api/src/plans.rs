//! API views of a plan: each trial as it would run, with its forecast and what that is based on.

use bakeoff_domain::measure::overhead::Overhead;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::worst_case::WorstCase;
use bakeoff_domain::ranking::outcome::Wait;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::spec::{ProfileSpec, PurchaseOption};
use bakeoff_planner::plan::TrialPlan;
use bakeoff_planner::predict::Seconds;
use bakeoff_planner::predict::fit::{Fit, Term, Verdict};
use bakeoff_planner::predict::forecast::{Forecast, Interval, UsdInterval};
use bakeoff_planner::predict::strategy::{Advice, Strategy, Traffic};
use bakeoff_planner::preview::{CandidatePreview, Preview};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::catalog::PriceView;
use crate::findings::FindingView;
use crate::requests::RequestView;

view! {
    /// Preview of an experiment: what would happen if it were created.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Preview)]
    pub struct PreviewView of Preview {
        pub name: String,
        pub region: String,
        /// Whether the experiment could start as specified.
        pub would_start: bool,
        /// All findings of the linter.
        pub findings: Vec<FindingView> as each,
        pub candidates: Vec<CandidatePreviewView> as each,
        /// The most that all trials together could reserve.
        pub worst_case_usd: Usd,
        pub budget_usd: Usd,
    }
}

view! {
    /// One candidate with one purchase option. Its repeats are identical.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = CandidatePreview)]
    pub struct CandidatePreviewView of CandidatePreview {
        #[serde(flatten)]
        pub plan: PlanView,
        /// Number of identical trials.
        pub repeats: u32,
        /// Why the candidate cannot win. Empty when it can, or when too little is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cannot_win: Option<String>,
        /// A suggested profile for this type that keeps the global batch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub advice: Option<AdviceView> as maybe,
        /// Why no profile is suggested.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub no_advice: Option<String>,
        /// The CreateTrainingJob body as it would be sent, without the names that each attempt adds.
        #[schema(value_type = Object)]
        pub create_training_job: Option<Value>,
    }
}

/// One trial as it would run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = TrialPlan)]
pub struct PlanView {
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    /// Number of the repeat, from 1.
    pub repeat: u32,
    /// Sequences per optimiser step.
    pub global_batch: u64,
    /// Optimiser steps of the trial.
    pub steps: u64,
    pub fit: Option<FitView>,
    /// Findings about this candidate.
    pub findings: Vec<FindingView>,
    /// True when a finding rules the candidate out.
    pub refused: bool,
    /// The finding that keeps the trial out of the ranking.
    pub incomparable: Option<FindingView>,
    /// Why the trial does not start, though it could: it cannot change the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Why the trial waits until others have been measured: it starts if its figure is then still
    /// worth its price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// What the intervals of the workload's `recurring` hyperparameters are divided by in this trial, so
    /// that each takes place within its first minutes; null where they are sent as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intervals_divided_by: Option<f64>,
    /// How long it is expected to wait for its first instance; null without earlier starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_wait: Option<WaitView>,
    /// What its job is expected to be billed beside its steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_seconds: Option<OverheadView>,
    pub price: Option<PriceView>,
    /// The most that one attempt can cost. Empty when its price is unknown.
    pub worst_case: Option<WorstCaseView>,
    /// Predicted speed, hours and dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastView>,
    /// The request without job name, marker and checkpoint folder, which each attempt adds.
    pub request: Option<RequestView>,
}

impl From<TrialPlan> for PlanView {
    fn from(trial_plan: TrialPlan) -> Self {
        let TrialPlan {
            candidate,
            instance_type,
            instance_count,
            purchase_option,
            repeat,
            global_batch,
            steps,
            fit,
            findings,
            refused,
            incomparable,
            skipped,
            held,
            price,
            worst_case,
            intervals_divided_by,
            expected_wait,
            overhead,
            forecast,
            job,
        } = trial_plan;
        let request = match job {
            Some(Job::Training(request)) => Some((*request).into()),
            // Of a step, which has no plan to show.
            _ => None,
        };
        Self {
            candidate,
            instance_type,
            instance_count,
            purchase_option,
            repeat,
            global_batch,
            steps,
            fit: fit.map(Into::into),
            findings: findings.into_iter().map(Into::into).collect(),
            refused,
            incomparable: incomparable.map(Into::into),
            skipped,
            held,
            intervals_divided_by,
            expected_wait: expected_wait.map(Into::into),
            overhead_seconds: overhead.map(Into::into),
            price: price.map(Into::into),
            worst_case: worst_case.map(Into::into),
            forecast: forecast.map(Into::into),
            request,
        }
    }
}

/// Seconds that a job is billed beside its steps, paid once however long it trains: downloads, the start of the script, and the
/// upload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Overhead)]
pub struct OverheadView {
    /// Ends of the 90 % interval.
    pub low: f64,
    pub expected: f64,
    pub high: f64,
    /// Earlier jobs of this code that it was measured on; without any it is assumed.
    pub jobs: u32,
}

impl From<Overhead> for OverheadView {
    fn from(overhead: Overhead) -> Self {
        let [low, high] = overhead.interval();
        Self {
            low,
            expected: overhead.seconds,
            high,
            jobs: overhead.jobs,
        }
    }
}

view! {
    /// How long this project's earlier starts on the type, under the purchase option, have waited from a
    /// job's creation to its first instance. It counts in the hours of the full run, and not in its dollars.
    #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Wait)]
    pub struct WaitView of Wait {
        /// Hours, the median. Measured.
        pub hours: f64,
        /// Starts that it was measured on.
        pub starts: u32,
    }
}

view! {
    /// The most that one attempt can cost, by component.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = WorstCase)]
    pub struct WorstCaseView of WorstCase {
        /// The job's instances and volumes.
        pub training_usd: Usd,
        /// Reading the job's metrics from CloudWatch.
        pub metrics_usd: Usd,
        /// Instances and volumes kept warm after the job, until the keep-alive ends.
        #[serde(default)]
        pub pool_usd: Usd,
        pub total_usd: Usd,
        /// The longest that one instance of the job can be billed. 0 in older plans, which did not
        /// store it.
        #[serde(default)]
        pub billed_seconds: u64,
        /// Part of `billed_seconds`: time to transfer weights and data of known size, beyond the usual
        /// allowance.
        #[serde(default)]
        pub transfer_seconds: u64,
    }
}

view! {
    /// Whether the training fits into memory, with the terms of the estimate. All figures are
    /// estimated.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Fit)]
    pub struct FitView of Fit {
        pub verdict: Verdict,
        /// Memory needed per accelerator, GiB, estimated.
        pub accelerator_gib: f64,
        /// Memory of one accelerator that a job can use, GiB.
        pub accelerator_capacity_gib: Option<f64>,
        /// Host memory needed for offloaded states, GiB, estimated.
        pub host_gib: f64,
        pub host_capacity_gib: Option<f64>,
        /// Terms of the accelerator's memory.
        pub terms: Vec<TermView> as each,
        /// Terms of the host's memory.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub host_terms: Vec<TermView> as each,
    }
}

view! {
    /// One term of the memory estimate.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Term)]
    pub struct TermView of Term {
        pub name: String,
        pub gib: f64,
    }
}

/// Forecast for one candidate. All figures are predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Forecast)]
pub struct ForecastView {
    /// Total over all accelerators.
    pub tokens_per_second: IntervalView,
    /// Model FLOP utilisation at the expected speed, 0 to 100.
    pub mfu_percent: f64,
    /// Where the time of a micro-step goes.
    pub seconds_per_micro_step: MicroStepView,
    /// Billed hours to train on the trial's tokens: downloads and start, steps and what recurs between them, and the
    /// upload.
    pub trial_hours: IntervalView,
    pub full_run_hours: IntervalView,
    /// At the current price. Empty when the price is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial_usd: Option<UsdIntervalView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_run_usd: Option<UsdIntervalView>,
    /// Whether a measurement on this type was used.
    pub is_rescaled: bool,
    /// The source of the model, and what it does not cover here.
    pub basis: Vec<String>,
}

impl From<Forecast> for ForecastView {
    fn from(forecast: Forecast) -> Self {
        let Forecast {
            tokens_per_second,
            // Only the ranking needs to know what part of the interval all candidates share.
            shared_log_sd: _,
            mfu_percent,
            seconds_per_micro_step,
            trial_hours,
            full_run_hours,
            trial_usd,
            full_run_usd,
            is_rescaled,
            basis,
        } = forecast;
        Self {
            tokens_per_second: tokens_per_second.into(),
            mfu_percent,
            seconds_per_micro_step: seconds_per_micro_step.into(),
            trial_hours: trial_hours.into(),
            full_run_hours: full_run_hours.into(),
            trial_usd: trial_usd.map(Into::into),
            full_run_usd: full_run_usd.map(Into::into),
            is_rescaled,
            basis,
        }
    }
}

view! {
    /// A figure with its 90 % interval.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Interval)]
    pub struct IntervalView of Interval {
        pub low: f64,
        pub expected: f64,
        pub high: f64,
    }
}

view! {
    /// Dollars with their interval. For spot, only the bounds are known in advance; the saving is known
    /// at the end.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = UsdInterval)]
    pub struct UsdIntervalView of UsdInterval {
        pub low: Usd,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub expected: Option<Usd>,
        pub high: Usd,
    }
}

view! {
    /// Seconds of one micro-step on each accelerator, by activity.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Seconds)]
    pub struct MicroStepView of Seconds {
        pub matrix_products: f64,
        pub attention: f64,
        /// Elementwise operations and logits, limited by memory traffic.
        pub memory: f64,
        /// Communication within the instance that is not overlapped with computation.
        pub communication: f64,
        /// Communication between instances, before overlap with computation.
        pub network: f64,
        pub latency: f64,
        pub optimiser: f64,
        /// Waiting for the host (offload) and for other stages (pipeline).
        pub waiting: f64,
        /// Total time, all of the above combined.
        pub total: f64,
    }
}

view! {
    /// Recommended setup for one instance type.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Advice)]
    pub struct AdviceView of Advice {
        pub strategy: Strategy,
        /// A profile for this type that keeps the global batch, ready to use.
        pub profile: ProfileSpec,
        /// The matching DeepSpeed configuration, if DeepSpeed is used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(value_type = Object)]
        pub deepspeed_config: Option<Map<String, Value>>,
        pub fit: FitView,
        /// Predicted tokens/s over all accelerators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tokens_per_second: Option<f64>,
        pub traffic: Vec<TrafficView> as each,
        /// Why this setup was chosen.
        pub reasons: Vec<String>,
    }
}

view! {
    /// Bytes that one accelerator sends per optimiser step, by collective operation.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Traffic)]
    pub struct TrafficView of Traffic {
        /// `all_reduce`, `all_gather` or `reduce_scatter`.
        pub collective: String,
        /// The tensors that are sent.
        pub of: String,
        pub bytes_per_step: f64,
    }
}
