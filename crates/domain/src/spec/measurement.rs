//! A speed that was measured before, as a user gives it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::profile::ProfileSpec;

/// A speed that was measured before, of the same workload: it moves the predictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Measurement {
    pub instance_type: String,
    #[serde(default = "super::default::one")]
    pub instance_count: u32,
    /// How it was configured.
    pub profile: ProfileSpec,
    /// Over all accelerators.
    pub tokens_per_second: f64,
    /// Who measured it, and when.
    #[serde(default)]
    pub source: String,
}
