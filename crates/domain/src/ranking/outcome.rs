//! What the ranking reads of each trial, and the full run that it stands for. It holds no rule.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::finding::{BUDGET_BELOW_TRIAL, Finding};
use crate::ids::TrialId;
use crate::lifecycle::state::TrialState;
use crate::measure::speed::SteppingShare;
use crate::measure::steady::Steady;
use crate::money::Usd;
use crate::money::price::Price;
use crate::spec::{ObjectiveSpec, PurchaseOption};

/// The outcome of one trial: the row of the comparison table that ranking needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    pub trial_id: TrialId,
    pub candidate: String,
    pub instance_type: String,
    pub instance_count: u32,
    pub purchase_option: PurchaseOption,
    pub state: TrialState,
    pub reason: Option<String>,
    /// Since when it may start; empty while it is held back.
    pub released_at: Option<DateTime<Utc>>,
    /// Findings that refuse the candidate.
    pub refusals: Vec<Finding>,
    /// Why it may not be ranked with the others.
    pub incomparable: Option<Finding>,
    pub price: Option<Price>,
    /// The speed of its steps, or of all wall time: [`Pauses`] says which.
    pub tokens_per_second: Option<Steady>,
    pub pauses: Pauses,
    pub predicted: Option<Predicted>,
    /// TrainingTimeInSeconds and BillableTimeInSeconds, summed over attempts.
    pub training_seconds: u64,
    pub billable_seconds: u64,
    /// From creation to end over all attempts, including waiting.
    pub wall_seconds: u64,
    /// When the newest checkpoint was written.
    pub checkpoint_at: Option<DateTime<Utc>>,
    /// All that the trial has cost so far.
    pub cost_usd: Usd,
    /// What it was predicted to cost, to its end.
    pub predicted_usd: Option<Usd>,
}

/// What is known of the time that a trial spends between its steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub enum Pauses {
    /// Nothing apart from the speed.
    #[default]
    Unknown,
    /// They are in the speed: it is of finished steps over all wall time.
    InSpeed,
    /// The share of the wall time in which it does steps, at its speed.
    Apart(SteppingShare),
    /// Its steps and its speed do not mean the same: no share of this code can be trusted.
    Contradictory,
}

/// The speed that was predicted before the trial ran.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Predicted {
    pub tokens_per_second: f64,
    /// Standard deviation of its logarithm.
    pub log_sd: f64,
    /// The part of it that is left once the same code has been measured on another type.
    pub own_log_sd: f64,
}

/// The workload's token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Tokens {
    pub trial: u64,
    pub total: u64,
}

impl Outcome {
    /// Whether it was refused because it cannot run as it is, and not for want of budget.
    pub(super) fn is_impossible(&self) -> bool {
        let mut findings = self.refusals.iter();
        self.state == TrialState::Refused
            && findings.any(|finding| finding.rule != BUDGET_BELOW_TRIAL)
    }

    /// The share of the time that its steps take, if it is known apart.
    pub(super) fn stepping(&self) -> Option<SteppingShare> {
        match self.pauses {
            Pauses::Apart(share) => Some(share),
            Pauses::Unknown | Pauses::InSpeed | Pauses::Contradictory => None,
        }
    }

    /// Whether a job of it has begun; those that wait have spent no time on a machine.
    pub(super) fn has_started(&self) -> bool {
        self.wall_seconds > 0
    }
}

/// SHA-256, in hexadecimal digits, of what an answer rests on, written as JSON: one version of the
/// program answers the same evidence with the same bytes.
pub fn evidence_sha256(outcomes: &[Outcome], objective: &ObjectiveSpec, tokens: Tokens) -> String {
    let text = serde_json::json!({
        "outcomes": outcomes, "objective": objective, "tokens": tokens,
    })
    .to_string();
    let digest = Sha256::digest(text.as_bytes());
    hex::encode(digest)
}

/// The full run, projected from the trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct FullRun {
    pub(super) hours: f64,
    /// Of these, what is spent once, however long the run is.
    pub(super) hours_once: f64,
    pub(super) billed_hours: f64,
    /// Billed time over productive time.
    pub(super) billed_share: f64,
}
