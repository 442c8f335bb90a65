//! What is answered: which candidate to buy, the table behind it, and the odds. It holds no rule.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::TrialId;
use crate::money::Usd;
use crate::money::price::PriceStatus;
use crate::spec::PurchaseOption;

/// How conclusive the evidence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// Buy: the first was measured beside another, keeps to the limits with P ≥ 0.95, is worse than
    /// the best by more than 5 % with P ≤ 0.05, and costs at most 1 % more than the best, expected, or
    /// as much as measuring once more would cost of the run.
    Clear,
    /// The first leads, but one of these does not hold.
    Leading,
    /// A trial has reached the target loss, and its model is kept: nothing is left to buy.
    Reached,
    /// No candidate, measured or only predicted, stays within the full run's budget and deadline.
    Infeasible,
    NotEnoughEvidence,
    /// Nothing is decided: this is the full run of another experiment's answer.
    FullRun,
}

impl Conclusion {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Leading => "leading",
            Self::Reached => "reached",
            Self::Infeasible => "infeasible",
            Self::NotEnoughEvidence => "not_enough_evidence",
            Self::FullRun => "full_run",
        }
    }
}

/// One ranked candidate under one purchase option, with all its repeats. Projections are for
/// `projected_tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    pub rank: u32,
    /// The first of its trials.
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    /// Measured.
    pub tokens_per_second: f64,
    /// Measured: half width of the 95 % interval.
    pub tokens_per_second_half_width: f64,
    /// Measured, on this candidate and the others: share of a full run's time in which steps are done,
    /// at that speed. Evaluations, checkpoints and stalls take the rest. 1 where the speed is of all
    /// the time; empty where that is not known: then pauses are not projected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stepping_share: Option<f64>,
    /// Measured speed, pauses included, × the price named.
    pub usd_per_million_tokens: Usd,
    /// The workload's `total_tokens`, or what its trials needed to its target loss; empty in
    /// recommendations from before there were targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projected_tokens: Option<u64>,
    /// Projected.
    pub projected_hours: f64,
    /// Of `projected_hours`, the wait for the first instance, which is not billed; empty for spot, whose
    /// waits recur, and in recommendations from before it was kept apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_hours: Option<f64>,
    /// Projected.
    pub projected_cost_usd: Usd,
    /// Projected at the highest price that the estimate allows; equal to `projected_cost_usd` for a
    /// known price.
    pub projected_cost_usd_max: Usd,
    pub price: String,
    pub price_status: PriceStatus,
    /// What its full run saves against that of the cheapest as predicted, which would have been bought without measuring:
    /// projected; empty where that one was not measured, or spot's savings are part of the choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saves_usd: Option<Usd>,
    /// Return on what the trials of the other choices have cost: what it saves beyond that, as a multiple of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_on_trials: Option<f64>,
    /// On the Pareto front of cost against time: no other candidate dominates it.
    pub pareto: bool,
    /// Stays within the full run's budget and deadline, as projected.
    pub feasible: bool,
    /// The odds of buying it; empty in recommendations from before they were computed.
    #[serde(default)]
    pub odds: Option<RunOdds>,
}

/// The odds of one full run, which include the luck of the machines it gets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunOdds {
    /// 90 % interval of the full run's hours.
    pub hours_low: f64,
    pub hours_high: f64,
    /// 90 % interval of the full run's cost.
    pub cost_usd_low: Usd,
    pub cost_usd_high: Usd,
    /// P(it is the best within the limits), counting what has not run by its prediction.
    pub p_best: f64,
    /// P(no other is both cheaper and faster); empty in recommendations from before it was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_pareto: Option<f64>,
    /// P(cost ≤ budget); empty without a budget.
    pub p_within_budget: Option<f64>,
    /// P(time ≤ deadline); empty without a deadline.
    pub p_within_deadline: Option<f64>,
    /// What choosing it is expected to lose against the best, percent of the objective.
    pub expected_regret_percent: f64,
    /// P(it is worse than the best by more than 5 %).
    pub p_worse_by_5_percent: f64,
}

/// A trial that is not ranked, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NotRanked {
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub purchase_option: PurchaseOption,
    pub reason: String,
    /// What to change.
    pub fix: Option<String>,
    /// The odds of its full run as predicted, where it may still be the one to buy.
    #[serde(default)]
    pub odds: Option<RunOdds>,
}

/// What an answer has cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spend {
    /// On all trials so far.
    pub usd: Usd,
    /// Of it, on choices other than the first: the trials of the first are the head of its full run.
    pub losers_usd: Usd,
    /// Estimated: what every trial would have cost, run to its end. Empty if nothing is known of one.
    pub full_usd: Option<Usd>,
    /// Ends of its 90 % interval; empty in answers from before it was stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_usd_90: Option<[Usd; 2]>,
}

/// Which instance to buy, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    pub conclusion: Conclusion,
    /// One sentence.
    pub headline: String,
    pub reasons: Vec<String>,
    pub ranked: Vec<Ranked>,
    pub not_ranked: Vec<NotRanked>,
    /// What is measured and what is not.
    pub basis: Vec<String>,
    /// True while trials are still running, or one waits for a person.
    pub provisional: bool,
    /// Empty in recommendations from before it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spend: Option<Spend>,
    /// SHA-256 of what it rests on, which one version of the program always answers with the same bytes.
    /// Empty where it is not kept, and in recommendations from before it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence_sha256: Option<String>,
}

impl Recommendation {
    /// The recommended candidate: only of a clear conclusion.
    pub fn winner(&self) -> Option<&str> {
        let first = self.ranked.first()?;
        (self.conclusion == Conclusion::Clear).then_some(first.candidate.as_str())
    }

    /// Whether another recommendation from the same evidence differs: in its conclusion, its order,
    /// a cost, or the number of trials not ranked.
    pub fn differs(&self, other: &Self) -> bool {
        let key = |one: &Self| {
            let rows = one
                .ranked
                .iter()
                .map(|row| (row.trial_id, row.projected_cost_usd));
            (
                one.conclusion,
                rows.collect::<Vec<_>>(),
                one.not_ranked.len(),
            )
        };
        key(self) != key(other)
    }
}
