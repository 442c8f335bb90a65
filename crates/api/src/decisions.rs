//! API views of rankings, and of how price changes affect them.

use bakeoff_domain::ids::{ExperimentId, PriceId, TrialId};
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::PriceStatus;
use bakeoff_domain::ranking::recommendation::{
    Conclusion, NotRanked, Ranked, Recommendation, RunOdds, Spend,
};
use bakeoff_domain::spec::PurchaseOption;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use bakeoff_store::money::repricing::Repricing;

view! {
    /// The recommended instance, and why.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Recommendation)]
    pub struct DecisionView of Recommendation {
        pub conclusion: Conclusion,
        /// The conclusion in one sentence.
        pub headline: String,
        pub reasons: Vec<String>,
        pub ranked: Vec<RankedView> as each,
        pub not_ranked: Vec<NotRankedView> as each,
        /// Which figures are measured and which are not.
        pub basis: Vec<String>,
        /// True while trials are still running, or one waits for a person.
        pub provisional: bool,
        /// What this answer has cost; null in recommendations from before it was counted.
        pub spend: Option<SpendView> as maybe,
        /// SHA-256 of all that this answer rests on: speeds, prices, costs, predictions and the objective.
        /// One version of the service answers the same evidence with the same bytes. Null in
        /// recommendations from before it was kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub evidence_sha256: Option<String>,
    }
}

view! {
    /// What an answer has cost.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Spend)]
    pub struct SpendView of Spend {
        /// On all trials so far.
        pub usd: Usd,
        /// Of it, on choices other than the first one: the trials of the first are the head of its full
        /// run.
        pub losers_usd: Usd,
        /// Estimated: what every trial would have cost, run to its end. Null if nothing is known of
        /// one.
        pub full_usd: Option<Usd>,
        /// Ends of its 90 % interval.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub full_usd_90: Option<[Usd; 2]>,
    }
}

view! {
    /// One ranked candidate. Projections are for the workload's `total_tokens`.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Ranked)]
    pub struct RankedView of Ranked {
        pub rank: u32,
        pub trial_id: TrialId,
        pub candidate: String,
        pub instance_type: String,
        pub instance_count: u32,
        pub purchase_option: PurchaseOption,
        /// Measured throughput.
        pub tokens_per_second: f64,
        /// Half width of the 95 % interval of `tokens_per_second`. Measured.
        pub tokens_per_second_half_width: f64,
        /// Share of the full run's time in which steps are done, at that speed; evaluations, checkpoints
        /// and stalls take the rest. Measured, on this candidate and the others. 1 where the speed is of all
        /// the time; null where that is not known: then pauses are not projected.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub stepping_share: Option<f64>,
        /// Cost per million tokens, from the measured speed, pauses included, and the price given in
        /// `price`.
        pub usd_per_million_tokens: Usd,
        /// Tokens that the projection is for: all, or as many as it took to the target loss; null in
        /// recommendations from before there were targets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub projected_tokens: Option<u64>,
        /// Projected hours of the full run.
        pub projected_hours: f64,
        /// Of `projected_hours`, the wait for the first instance, which is not billed; null for spot, whose
        /// waits recur, and in recommendations from before it was kept apart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub waiting_hours: Option<f64>,
        /// Projected cost of the full run.
        pub projected_cost_usd: Usd,
        /// Projected cost at the upper bound of an estimated price; equals `projected_cost_usd` when
        /// the price is known.
        pub projected_cost_usd_max: Usd,
        pub price: String,
        pub price_status: PriceStatus,
        /// What its full run saves against that of the cheapest as predicted, which would have been bought without
        /// measuring. Projected; null where that one was not measured, and with spot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub saves_usd: Option<Usd>,
        /// Return on what the trials of the other choices have cost (ROI): what it saves beyond that, as a multiple of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub return_on_trials: Option<f64>,
        /// On the Pareto front of cost and time: no other candidate is better in both.
        pub pareto: bool,
        /// Whether the full run, as projected, stays within its budget and deadline.
        pub feasible: bool,
        /// The odds of buying it; null in recommendations from before they were computed.
        pub odds: Option<RunOddsView> as maybe,
    }
}

view! {
    /// The odds of one full run, including the luck of the machines that it gets.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = RunOdds)]
    pub struct RunOddsView of RunOdds {
        /// Lower end of the 90 % interval of the full run's hours.
        pub hours_low: f64,
        /// Upper end of it.
        pub hours_high: f64,
        /// Lower end of the 90 % interval of the full run's cost.
        pub cost_usd_low: Usd,
        /// Upper end of it.
        pub cost_usd_high: Usd,
        /// P(it is the best within the limits), where what has not run counts by its prediction.
        pub p_best: f64,
        /// P(no other is both cheaper and faster); null in recommendations from before it was computed.
        pub p_pareto: Option<f64>,
        /// P(cost ≤ budget); null without a budget.
        pub p_within_budget: Option<f64>,
        /// P(time ≤ deadline); null without a deadline.
        pub p_within_deadline: Option<f64>,
        /// What choosing it is expected to lose against the best, percent of the objective.
        pub expected_regret_percent: f64,
        /// P(it is worse than the best by more than 5 %).
        pub p_worse_by_5_percent: f64,
    }
}

view! {
    /// A trial left out of the ranking, and why.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = NotRanked)]
    pub struct NotRankedView of NotRanked {
        pub trial_id: TrialId,
        pub candidate: String,
        pub instance_type: String,
        pub purchase_option: PurchaseOption,
        pub reason: String,
        /// How to fix it.
        pub fix: Option<String>,
        /// The odds of its full run as predicted, where it may still be the one to buy.
        pub odds: Option<RunOddsView> as maybe,
    }
}

/// An experiment's recommendation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RecommendationView {
    pub experiment_id: ExperimentId,
    pub name: String,
    pub state: ExperimentState,
    #[serde(flatten)]
    pub recommendation: DecisionView,
    /// Price changes since then, newest first.
    #[serde(default)]
    pub repricings: Vec<RepricingView>,
}

view! {
    /// The effect of a price change on an experiment.
    #[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
    pub struct RepricingView of Repricing {
        /// The prices that caused the change.
        pub price_ids: Vec<PriceId>,
        pub reason: String,
        /// Change in the settled amount, USD.
        pub usd: Usd,
        /// Whether the ranking was recomputed.
        pub is_decided_anew: bool,
        pub recorded_at: DateTime<Utc>,
    }
}
