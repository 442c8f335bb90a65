//! What the ranking reads of each trial, and the full run that it stands for. It holds no rule.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::finding::{BUDGET_BELOW_TRIAL, Finding};
use crate::ids::TrialId;
use crate::lifecycle::state::TrialState;
use crate::measure::overhead::{EndedJob, Overhead};
use crate::measure::speed::SteppingShare;
use crate::measure::steady::Steady;
use crate::money::Usd;
use crate::money::price::Price;
use crate::number::{NORMAL_95, of_items, real, whole};
use crate::spec::{ObjectiveSpec, PurchaseOption, WorkloadSpec};

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
    /// What the intervals of its recurring work were divided by; empty where they are those of the full
    /// run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intervals_divided_by: Option<f64>,
    pub predicted: Option<Predicted>,
    /// How long earlier starts of its type waited; empty without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_wait: Option<Wait>,
    /// Billed time apart from steps that its plan expected of one job; empty in plans made before this was stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Overhead>,
    /// Tokens trained so far, by the last step that was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_done: Option<f64>,
    /// TrainingTimeInSeconds and BillableTimeInSeconds, summed over attempts.
    pub training_seconds: u64,
    pub billable_seconds: u64,
    /// From creation to end over all attempts, including waiting.
    pub wall_seconds: u64,
    /// When the newest checkpoint was written.
    pub checkpoint_at: Option<DateTime<Utc>>,
    /// When it reached the target loss for good, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<Reached>,
    /// All that the trial has cost so far.
    pub cost_usd: Usd,
    /// What it was predicted to cost, to its end.
    pub predicted_usd: Option<Usd>,
}

/// Where a trial reached the target loss, below which it stayed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reached {
    pub at: DateTime<Utc>,
    pub tokens: f64,
    /// What the trial had cost by then; empty on spot while it runs.
    pub usd: Option<Usd>,
}

/// How long starts on an instance type under a purchase option have waited, from the creation of the
/// first job to the first instance: for quotas, capacity and machines.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// Hours, the median.
    pub hours: f64,
    /// Starts that it was measured on.
    pub starts: u32,
}

impl Wait {
    /// Whether it is long enough to be worth a word: a quarter of an hour.
    pub fn is_long(self) -> bool {
        self.hours >= 0.25
    }
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

impl Pauses {
    /// Tokens per second of all time after the start, at this speed.
    pub fn goodput(self, tokens_per_second: f64) -> f64 {
        match self {
            Self::Apart(share) => tokens_per_second * share.mean,
            Self::Unknown | Self::InSpeed | Self::Contradictory => tokens_per_second,
        }
    }

    /// Whether its steps are known, which are told of one attempt only.
    pub fn is_of_one_attempt(self) -> bool {
        matches!(self, Self::Apart(_) | Self::InSpeed)
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tokens {
    pub trial: u64,
    /// Of the full run: up to its target loss if trials have reached it, and otherwise all.
    pub total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
}

/// A loss that the full run is projected to, and how far trials have come towards it. Comparable trials
/// need about the same tokens for it, however fast they are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Target {
    pub loss: f64,
    pub is_validation: bool,
    /// Trials that have reported losses, and those of them that have reached it for good.
    pub trials: usize,
    pub reached_by: usize,
    /// The least loss of all trials, in five-minute means; empty before the first.
    pub least: Option<f64>,
}

impl Target {
    /// `validation loss 2.1`.
    pub fn name(&self) -> String {
        let of = if self.is_validation {
            "validation"
        } else {
            "training"
        };
        format!("{of} loss {}", self.loss)
    }
}

/// How much the tokens that a run needs to a loss differ from one run to the next, as a standard
/// deviation: in ten repeats of MLPerf's fine-tuning on one system, 6.4 % at the median.
const RUN_TO_RUN: f64 = 0.064;

impl Tokens {
    /// Of a full run that trains on all tokens.
    pub fn of(workload: &WorkloadSpec) -> Self {
        Self {
            trial: workload.trial_tokens,
            total: workload.total_tokens,
            target: None,
        }
    }

    /// Of a full run to a loss, which trials have reached after these tokens, more than none: the
    /// geometric mean of them is what the next needs.
    #[must_use]
    pub fn towards(self, target: Target, reached: &[f64]) -> Self {
        let logs: f64 = reached.iter().map(|tokens| tokens.ln()).sum();
        let needed = whole((logs / of_items(reached.len())).exp().round());
        let needed = needed.and_then(|tokens| u64::try_from(tokens).ok());
        Self {
            total: needed.map_or(self.total, |tokens| tokens.clamp(1, self.total)),
            target: Some(Target {
                reached_by: reached.len(),
                ..target
            }),
            ..self
        }
    }

    /// The upper end of the 90 % interval of the tokens that the next run needs, and at most all of the workload's.
    pub fn upper(self, all: u64) -> u64 {
        let upper = real(self.total) * (NORMAL_95 * self.log_sd()).exp();
        let upper = whole(upper.ceil()).and_then(|tokens| u64::try_from(tokens).ok());
        upper.unwrap_or(all).min(all)
    }

    /// Whether the full run ends at a loss that a trial has reached.
    pub fn ends_at_loss(self) -> bool {
        self.target.is_some_and(|target| target.reached_by > 0)
    }

    /// Standard deviation of the logarithm of the tokens that the next run needs.
    pub(super) fn log_sd(self) -> f64 {
        let reached = self.target.map_or(0, |target| target.reached_by);
        if reached == 0 {
            return 0.0;
        }
        RUN_TO_RUN * (1.0 + 1.0 / of_items(reached)).sqrt()
    }
}

impl Outcome {
    /// Whether it was refused because it cannot run as it is, and not for want of budget.
    pub(super) fn is_impossible(&self) -> bool {
        let mut findings = self.refusals.iter();
        self.state == TrialState::Refused
            && findings.any(|finding| finding.rule != BUDGET_BELOW_TRIAL)
    }

    /// Whether a model with the target loss is left of it: it ran to its end, or has saved a checkpoint since.
    pub(super) fn has_reached_model(&self) -> bool {
        let Some(reached) = self.reached else {
            return false;
        };
        let is_saved = self.checkpoint_at.is_some_and(|saved| saved >= reached.at);
        match self.state {
            TrialState::Completed => true,
            // One that failed may have left broken checkpoints.
            TrialState::Failed | TrialState::Refused => false,
            TrialState::Queued
            | TrialState::Submitting
            | TrialState::Running
            | TrialState::Stopping
            | TrialState::Parked
            | TrialState::Stopped => is_saved,
        }
    }

    /// The share of a full run's time that its steps take, if it is known apart.
    pub(super) fn stepping(&self) -> Option<SteppingShare> {
        match self.pauses {
            Pauses::Apart(share) => Some(
                self.intervals_divided_by
                    .map_or(share, |factor| share.at_longer_intervals(factor)),
            ),
            Pauses::Unknown | Pauses::InSpeed | Pauses::Contradictory => None,
        }
    }

    /// Tokens per second of all its time after the start, pauses at its own intervals included; `None` without a speed.
    pub(super) fn own_goodput(&self) -> Option<f64> {
        let speed = self.tokens_per_second.as_ref()?.mean;
        Some(self.pauses.goodput(speed))
    }

    /// What it was billed beside its steps, seconds: of a job on demand that has ended. `None` if that cannot be told.
    pub(super) fn billed_beside_steps(&self, tokens: Tokens) -> Option<f64> {
        let has_ended = matches!(self.state, TrialState::Completed | TrialState::Stopped);
        if self.purchase_option != PurchaseOption::OnDemand || !has_ended {
            return None;
        }
        let job = EndedJob {
            billable_seconds: self.billable_seconds,
            is_completed: self.state == TrialState::Completed,
            trial_tokens: real(tokens.trial),
            tokens_done: self.tokens_done,
            is_of_one_attempt: self.pauses.is_of_one_attempt(),
            goodput: self.own_goodput()?,
        };
        job.billed_beside_steps()
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
