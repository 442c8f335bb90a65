//! What a pipeline's step asks of a person before it buys, and what the person has decided.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::PipelineId;
use crate::pipeline::purchase::PURCHASE_WAIT;

/// A step that waits for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingPurchase {
    pub pipeline_id: PipelineId,
    pub step: String,
    /// The first row of the answer.
    pub candidate: String,
    pub reason: String,
}

impl WaitingPurchase {
    pub(super) fn way_out(&self) -> String {
        let Self {
            pipeline_id,
            step,
            candidate,
            ..
        } = self;
        format!(
            "Choose what it buys: `bakeoff pipelines approve {pipeline_id} {step} --candidate {candidate}`, or any \
             other ranked one; or `bakeoff pipelines refuse {pipeline_id} {step}`. Without a decision the step fails \
             after {} days; `bakeoff pipelines resume` asks again.",
            PURCHASE_WAIT.num_days()
        )
    }
}

impl fmt::Display for WaitingPurchase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pipeline_id,
            step,
            reason,
            ..
        } = self;
        write!(
            f,
            "step {step} of {pipeline_id} waits for a person: {reason}"
        )
    }
}

/// What a person has decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedPurchase {
    pub pipeline_id: PipelineId,
    pub step: String,
    /// What is bought; empty if nothing is.
    pub candidate: Option<String>,
    /// The API key.
    pub by: String,
    pub reason: Option<String>,
}

impl fmt::Display for DecidedPurchase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (step, by) = (&self.step, &self.by);
        match &self.candidate {
            Some(candidate) => write!(f, "{by} approved {candidate} for step {step}")?,
            None => write!(f, "{by} refused the purchase of step {step}")?,
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}
