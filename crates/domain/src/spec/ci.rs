//! What starts a CI template, with what, and what its runs are held to: user input. What it means is in
//! [`crate::ci::template`] and [`crate::ci::gate`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::money::Usd;

/// Which deliveries start a template, and with what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateSettings {
    /// Branches whose pushes start it, each a name or a prefix with a `*` at its end; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<String>,
    /// Whether pull requests and merge requests start it, those of forks excepted.
    #[serde(default)]
    pub pull_requests: bool,
    /// Hyperparameters of a trigger that names none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hyperparameters: BTreeMap<String, String>,
    /// The repository whose webhooks start it, as its host names it: `owner/name`, or its number. When absent, that of the
    /// first webhook that starts something; those of others are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Whether a newer commit of a branch ends the runs of earlier ones that have no verdict yet: their experiments are
    /// cancelled. When absent, on all branches but the gate's baseline branch, whose commits are all measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersede: Option<bool>,
    /// What its runs are held to. Without it, a run passes if no trial has failed and one has completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateSettings>,
    /// Runs that may be under way at once, 1 to 1000; 10 when absent. Further ones wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_at_once: Option<u32>,
    /// Dollars that its runs may have reserved and settled on a day (UTC); ten times its experiment's budget when absent.
    /// A run that does not fit is refused: its verdict is `error`, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_day: Option<Usd>,
    /// Likewise in a calendar month (UTC); a hundred times its experiment's budget when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_month: Option<Usd>,
}

named! {
    /// A figure that a gate compares. Dollars are compared at one price, that of the newest run: a change of price is
    /// no change of code.
    Measure {
        /// Dollars for a million trained tokens at the steady speed.
        UsdPerMillionTokens = "usd_per_million_tokens",
        /// The steady speed; less is worse.
        TokensPerSecond = "tokens_per_second",
        /// The highest minute of GPU memory in use, percent, as a mean over the GPUs that are reported together.
        PeakGpuMemoryPercent = "peak_gpu_memory_percent",
        /// The last training loss, of trials that have trained all their tokens.
        TrainLoss = "train_loss",
        /// The last validation loss, likewise.
        ValidationLoss = "validation_loss",
        /// What the billed time of a trial's training job costs, its set-up included.
        TrainingUsd = "training_usd",
    }
}

named! {
    /// What a run that is neither passed nor regressed means for CI.
    Inconclusive {
        Success = "success",
        Failure = "failure",
    }
}

/// What a template's runs are held to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GateSettings {
    /// At least one, each measure once.
    pub limits: Vec<GateLimit>,
    /// Runs of this branch make the baseline; `main` when absent. Those of pull requests never do.
    #[serde(default = "baseline_branch")]
    pub baseline_branch: String,
    /// Trials that the baseline consists of, the newest ones: 5 to 50.
    #[serde(default = "baseline_trials")]
    pub baseline_trials: u32,
    /// How often an inconclusive commit is measured at most, 1 to 3. Each time costs as much as the first.
    #[serde(default = "rounds")]
    pub rounds: u32,
    /// How CI takes an inconclusive run.
    #[serde(default = "inconclusive")]
    pub inconclusive: Inconclusive,
}

/// How much worse a figure may be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GateLimit {
    pub measure: Measure,
    /// Percent of the baseline, 0 to 100: what is less is not worth an alarm.
    #[serde(default = "worse_by_percent")]
    pub worse_by_percent: f64,
    /// A number to compare with, in place of earlier runs; dollars are compared at the newest price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<f64>,
}

fn baseline_branch() -> String {
    "main".to_owned()
}

fn baseline_trials() -> u32 {
    10
}

fn rounds() -> u32 {
    3
}

fn inconclusive() -> Inconclusive {
    Inconclusive::Success
}

fn worse_by_percent() -> f64 {
    3.0
}
