//! What the ranking reads of each trial, and the full run that it stands for. It holds no rule.

use chrono::{DateTime, Utc};

use crate::finding::Finding;
use crate::ids::TrialId;
use crate::lifecycle::state::TrialState;
use crate::measure::steady::Steady;
use crate::money::Usd;
use crate::money::price::Price;
use crate::spec::PurchaseOption;

/// The outcome of one trial: the row of the comparison table that ranking needs.
#[derive(Debug, Clone, PartialEq)]
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
    pub tokens_per_second: Option<Steady>,
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

/// The speed that was predicted before the trial ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted {
    pub tokens_per_second: f64,
    /// Standard deviation of its logarithm.
    pub log_sd: f64,
    /// The part of it that is left once the same code has been measured on another type.
    pub own_log_sd: f64,
}

/// The workload's token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    pub trial: u64,
    pub total: u64,
}

impl Outcome {
    /// Whether a job of it has begun; those that wait have spent no time on a machine.
    pub(super) fn has_started(&self) -> bool {
        self.wall_seconds > 0
    }
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
