//! API views of a race as it went, and of the answers that an experiment has had.

use bakeoff_domain::ids::{ExperimentId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::ranking::looks::{Arm, Brief, BriefChoice};
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_store::experiments::looks::Look;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::decisions::DecisionView;

/// How an experiment's race went: each look that said something new, and what became of each trial.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Race)]
pub struct RaceView {
    pub experiment_id: ExperimentId,
    /// Oldest first; the newest 1,000 looks. Another is kept when 5 % more is spent, or the answer changes.
    pub looks: Vec<LookView>,
    /// In the order of the specification.
    pub trials: Vec<RacerView>,
}

/// One look at a race.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Look)]
pub struct LookView {
    pub at: DateTime<Utc>,
    /// Spent on all trials by then.
    pub spent_usd: Usd,
    /// By rank.
    pub arms: Vec<ArmView>,
}

impl From<Look> for LookView {
    fn from(look: Look) -> Self {
        let Look {
            looked_at,
            spent_usd,
            arms,
        } = look;
        Self {
            at: looked_at,
            spent_usd,
            arms: arms.into_iter().map(Into::into).collect(),
        }
    }
}

view! {
    /// A ranked choice as it stood at a look. Projections are for its full run.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Arm)]
    pub struct ArmView of Arm {
        /// The first of its trials.
        pub trial_id: TrialId,
        pub candidate: String,
        pub purchase_option: PurchaseOption,
        pub usd_per_million_tokens: Usd,
        pub projected_cost_usd: Usd,
        pub projected_hours: f64,
        /// Ends of the 90 % interval of the cost; null where the odds are not known.
        pub cost_usd_90: Option<[Usd; 2]>,
        /// Ends of the 90 % interval of the hours.
        pub hours_90: Option<[f64; 2]>,
        /// P(it is the best within the limits).
        pub p_best: Option<f64>,
    }
}

/// What became of a trial in the race.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Racer)]
pub struct RacerView {
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub purchase_option: PurchaseOption,
    pub state: TrialState,
    /// Why it was stopped or refused, or what it waits for.
    pub reason: Option<String>,
    /// What it has cost so far; of what runs, an estimate.
    pub usd: Usd,
    pub ended_at: Option<DateTime<Utc>>,
}

/// An answer of an experiment, and what it said that the one before it did not.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AnswerVersion {
    /// Counts from 1, among those that are listed.
    pub number: u32,
    pub found_at: DateTime<Utc>,
    /// Spent on all trials by then.
    pub spent_usd: Usd,
    /// In words; empty of the first.
    pub changes: Vec<String>,
    pub recommendation: DecisionView,
}

view! {
    /// An answer in one line.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = AnswerBrief)]
    pub struct BriefView of Brief {
        pub conclusion: Conclusion,
        /// The conclusion in one sentence.
        pub headline: String,
        /// True while trials are still running, or one waits for a person.
        pub provisional: bool,
        pub first: Option<BriefChoiceView> as maybe,
        pub runner_up: Option<BriefChoiceView> as maybe,
    }
}

view! {
    /// A ranked choice in brief.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = BriefChoice)]
    pub struct BriefChoiceView of BriefChoice {
        pub candidate: String,
        pub instance_type: String,
        pub instance_count: u32,
        pub purchase_option: PurchaseOption,
        /// Projected cost of the full run.
        pub projected_cost_usd: Usd,
        /// Projected hours of the full run.
        pub projected_hours: f64,
        /// P(it is the best within the limits).
        pub p_best: Option<f64>,
    }
}
