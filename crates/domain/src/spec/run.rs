//! External runs: training that SageMaker never saw (another cloud, a machine in the cellar),
//! compared in the same table. Their rate is what the user says; nothing here is started or
//! stopped.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::claim::Claims;
use super::expectation::Expectation;
use super::profile::ProfileSpec;
use crate::catalog;
use crate::catalog::model::ModelShape;
use crate::money::Usd;

/// An external run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunSpec {
    pub name: String,
    /// What it runs on, for people: `8x H100 SXM, Hyperbolic`.
    pub hardware: String,
    /// The instance type with the same accelerators, for their peak: `ml.p5.48xlarge` has eight
    /// H100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like_instance_type: Option<String>,
    pub accelerator_count: u32,
    /// USD an hour of all its machines together; its cost is unknown when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_hour: Option<Usd>,
    /// Where the rate comes from.
    #[serde(default)]
    pub price_source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelShape>,
    /// Sequences per optimiser step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_batch: Option<u64>,
    /// Optimiser steps of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_steps: Option<u64>,
    /// Tokens of one pass over the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_tokens: Option<u64>,
    /// When it began; the first point's moment when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    /// What somebody expected of it, shown beside what was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Expectation>,
    /// How it is configured, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileSpec>,
    /// What is taken for true of its hardware, data and speed: checked by the linter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
}

impl RunSpec {
    /// Tokens of one optimiser step.
    pub fn tokens_per_step(&self) -> Option<u64> {
        self.global_batch?
            .checked_mul(u64::from(self.model.as_ref()?.sequence_length))
    }

    /// Peak dense TFLOP/s of one accelerator in 16 bit.
    pub fn peak_tflops(&self) -> Option<f64> {
        catalog::find(self.like_instance_type.as_deref()?)?.peak_tflops()
    }
}
