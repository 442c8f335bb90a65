//! An earlier speed measurement, supplied by the user.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::profile::ProfileSpec;

/// An earlier speed measurement of the same model; it adjusts the predictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Measurement {
    pub instance_type: String,
    #[serde(default = "super::default::one")]
    pub instance_count: u32,
    /// How it was configured.
    pub profile: ProfileSpec,
    /// Total over all accelerators.
    pub tokens_per_second: f64,
    /// Seconds that its job was billed beside its steps, if known: for downloads, the start of the script and the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_seconds: Option<f64>,
    /// Version of the training code, if it was not the workload's: it says less of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_version: Option<String>,
    /// Who measured it, and when.
    #[serde(default)]
    pub source: String,
}
