//! What somebody asks for who wants the full run of an answer. What becomes of it is in
//! [`crate::ranking::full_run`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::PurchaseOption;
use crate::money::Usd;

/// Which row of an answer is meant, and how it is run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Choice {
    /// A ranked candidate; the recommended one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
    /// Needed only where the candidate is ranked under both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purchase_option: Option<PurchaseOption>,
    /// Whether to go on from the trial's checkpoints; yes when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_checkpoint: Option<bool>,
    /// The trial's checkpoint to go on from, by its name in the list, copied beforehand
    /// (`POST /v1/trials/{trial_id}/checkpoints/copy`); the newest when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// SageMaker's MaxRuntimeInSeconds; a quarter more than the projection's upper end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime_seconds: Option<u32>,
}

/// A full run to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FullRunSpec {
    /// A ranked candidate; the recommended one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<String>,
    /// Needed only where the candidate is ranked under both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purchase_option: Option<PurchaseOption>,
    /// Hard cap on what this run may spend, apart from the experiment's.
    pub budget_usd: Usd,
    /// The name of the run; the experiment's with "full run" when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// SageMaker's MaxRuntimeInSeconds; a quarter more than the projection's upper end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime_seconds: Option<u32>,
    /// SageMaker's MaxWaitTimeInSeconds, on spot; twice the runtime when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_seconds: Option<u32>,
    /// Go on from the trial's checkpoints, in their folder, where the experiment has a place for
    /// them.
    #[serde(default = "yes")]
    pub from_checkpoint: bool,
    /// The trial's checkpoint to go on from, by its name in the list, copied beforehand
    /// (`POST /v1/trials/{trial_id}/checkpoints/copy`); the newest when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Hyperparameters that differ from the trial's: how a script that sets its own length is told to
    /// train all of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hyperparameters: BTreeMap<String, String>,
}

fn yes() -> bool {
    true
}

impl FullRunSpec {
    /// A full run as chosen.
    pub fn of(choice: Choice, budget_usd: Usd) -> Self {
        Self {
            candidate: choice.candidate,
            purchase_option: choice.purchase_option,
            budget_usd,
            name: None,
            max_runtime_seconds: choice.max_runtime_seconds,
            max_wait_seconds: None,
            from_checkpoint: choice.from_checkpoint.unwrap_or(true),
            checkpoint: choice.checkpoint,
            hyperparameters: BTreeMap::new(),
        }
    }
}
