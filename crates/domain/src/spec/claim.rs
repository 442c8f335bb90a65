//! Claims: what a question takes for true of hardware, prices, sizes and speeds. They change
//! nothing of what is run; the linter holds them against the catalog and against physics, so that a
//! plan is not built on a wrong number.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is taken for true. Everything is optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Claims {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hardware: Vec<HardwareClaim>,
    /// Parameters of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<f64>,
    /// Bytes of the data as the training reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_bytes: Option<f64>,
    /// Tokens of the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset_tokens: Option<f64>,
    /// Optimiser steps of the whole training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_steps: Option<f64>,
    /// Passes over the data that the whole training makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Training loss before the first step, nats a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub speeds: Vec<SpeedClaim>,
}

/// What is taken for true of one instance type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HardwareClaim {
    pub instance_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerators: Option<u32>,
    /// `A10G`, `H200`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// Of each accelerator, GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator_memory_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Host memory, GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gb: Option<f64>,
    /// Of the whole instance, Gbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_gbps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efa: Option<bool>,
    /// Local NVMe of the whole instance, GB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_gb: Option<f64>,
    /// On demand, USD an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_hour: Option<f64>,
    /// On managed spot, USD an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spot_usd_per_hour: Option<f64>,
    /// Nothing larger can be had.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_the_largest: bool,
}

/// How fast somebody says that it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SpeedClaim {
    /// The instance type, or one with the same accelerators.
    pub instance_type: String,
    #[serde(default = "super::default::one")]
    pub instance_count: u32,
    /// Optimiser steps an hour.
    pub steps_per_hour: f64,
}
