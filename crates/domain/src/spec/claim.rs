//! Claims: a user's assumptions about hardware, prices, sizes and speeds. They do not change what
//! runs; the linter checks them against the catalog and against physics, so that no plan is built
//! on a wrong number.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Assumptions for the linter to check. Everything is optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Claims {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hardware: Vec<HardwareClaim>,
    /// Parameters of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<f64>,
    /// Size of the dataset as the training reads it, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_bytes: Option<f64>,
    /// Tokens in the dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_tokens: Option<f64>,
    /// Optimiser steps of the whole training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_steps: Option<f64>,
    /// Passes over the data in the whole training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Training loss before the first step, nats per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<SpeedClaim>,
}

/// Assumptions about one instance type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HardwareClaim {
    pub instance_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<u32>,
    /// Name of the accelerator: `A10G`, `H200`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// Memory per accelerator, GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator_memory_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Host memory, GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gb: Option<f64>,
    /// Network bandwidth of the whole instance, Gbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_gbps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efa: Option<bool>,
    /// Local NVMe of the whole instance, GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_gb: Option<f64>,
    /// On-demand price, USD per hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_hour: Option<f64>,
    /// Managed spot price, USD per hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spot_usd_per_hour: Option<f64>,
    /// Claims that no larger instance type is available.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_the_largest: bool,
}

/// A claimed training speed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpeedClaim {
    /// The instance type, or one with the same accelerators.
    pub instance_type: String,
    #[serde(default = "super::default::one")]
    pub instance_count: u32,
    /// Optimiser steps per hour.
    pub steps_per_hour: f64,
}
