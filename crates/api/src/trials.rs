//! API views of trials and their attempts.

use bakeoff_domain::ids::{ExperimentId, JobId, PriceId, TrialId};
use bakeoff_domain::lifecycle::spot::Interruption;
use bakeoff_domain::lifecycle::state::{AttemptState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::observed::Transition;
use bakeoff_domain::spec::PurchaseOption;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::plans::PlanView;

view! {
    /// One entry of SecondaryStatusTransitions.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Transition)]
    pub struct TransitionView of Transition {
        pub status: String,
        pub started_at: DateTime<Utc>,
        pub ended_at: Option<DateTime<Utc>>,
        pub message: String,
    }
}

view! {
    /// A spot interruption: AWS reclaimed the capacity.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Interruption)]
    pub struct InterruptionView of Interruption {
        pub at: DateTime<Utc>,
        /// When training resumed. Empty while the job waits, or if it never resumed.
        pub resumed_at: Option<DateTime<Utc>>,
    }
}

/// A trial.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TrialView {
    pub id: TrialId,
    pub experiment_id: ExperimentId,
    pub state: TrialState,
    pub reason: Option<String>,
    /// Empty when a newer program wrote the plan and this one cannot read it.
    pub plan: Option<PlanView>,
    pub attempts: Vec<AttemptView>,
    /// The trial that this one does once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<TrialId>,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    /// The service's time, as of which all of this is so.
    pub as_of: DateTime<Utc>,
}

/// An attempt with the trial that it belongs to.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttemptOfTrial {
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub purchase_option: PurchaseOption,
    #[serde(flatten)]
    pub attempt: AttemptView,
}

/// An attempt: one SageMaker job of a trial.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    pub id: JobId,
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
    /// True when AWS did not report the seconds and they are our own estimate.
    pub billing_estimated: bool,
    pub transitions: Vec<TransitionView>,
    pub planned_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
    /// Spot interruptions, from SageMaker's transitions.
    pub interruptions: Vec<InterruptionView>,
    /// Spot: SageMaker's own figure, 100 × (1 − billable time / training time).
    pub savings_percent: Option<f64>,
    /// When the newest object below the checkpoint prefix was written, as last seen.
    pub checkpoint_at: Option<DateTime<Utc>>,
    /// Spot: estimated cost, at the full price, of the work that an interruption now would lose.
    pub at_risk_usd: Option<Usd>,
}
