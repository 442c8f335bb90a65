//! External runs: training outside SageMaker (another cloud, a local machine), compared in the same
//! table. The user supplies their rate; nothing here is started or stopped.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::claim::Claims;
use super::expectation::Expectation;
use super::profile::ProfileSpec;
use crate::catalog::model::ModelShape;
use crate::catalog::{self, InstanceType};
use crate::money::Usd;

/// An external run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunSpec {
    pub name: String,
    /// Human-readable hardware description: `8x H100 SXM, Hyperbolic`.
    pub hardware: String,
    /// An instance type with the same accelerators, used for their peak performance:
    /// `ml.p5.48xlarge` has eight H100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub like_instance_type: Option<String>,
    pub accelerator_count: u32,
    /// USD per hour for all its machines together; when absent, the cost is unknown.
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
    /// When it began; the time of the first point when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    /// Expectations, shown beside the measured values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expectations: Vec<Expectation>,
    /// Its configuration, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileSpec>,
    /// Assumptions about its hardware, data and speed, checked by the linter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
}

impl RunSpec {
    /// Tokens per optimiser step.
    pub fn tokens_per_step(&self) -> Option<u64> {
        self.global_batch?
            .checked_mul(u64::from(self.model.as_ref()?.sequence_length))
    }

    /// The instance type that its hardware is like.
    pub fn like(&self) -> Option<&'static InstanceType> {
        catalog::find(self.like_instance_type.as_deref()?)
    }

    /// Peak dense 16-bit TFLOP/s of one accelerator.
    pub fn peak_tflops(&self) -> Option<f64> {
        self.like()?.peak_tflops()
    }
}
