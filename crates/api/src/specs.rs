//! API views of stored workloads and profiles.

use bakeoff_domain::ids::{ProfileId, WorkloadId};
use bakeoff_domain::spec::{ProfileSpec, WorkloadSpec};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One version of a workload.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkloadView {
    pub id: WorkloadId,
    /// Counts from 1 for each name. Identical content keeps its version.
    pub version: i32,
    pub created_at: DateTime<Utc>,
    pub spec: WorkloadSpec,
}

/// One version of an instance profile.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    pub id: ProfileId,
    pub name: String,
    /// Counts from 1 for each name.
    pub version: i32,
    pub instance_type: String,
    pub created_at: DateTime<Utc>,
    pub spec: ProfileSpec,
}
