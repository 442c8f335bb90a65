//! API views of stored workloads, profiles and CI templates.

use bakeoff_domain::ids::{ExperimentId, ProfileId, TemplateId, WorkloadId};
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

/// A stored template and its secret, which is shown only once.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedTemplate {
    pub id: TemplateId,
    pub name: String,
    /// HMAC key, as text. It is derived from the installation's key and never stored.
    pub secret: String,
}

/// The experiment started by a CI delivery.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CiStarted {
    pub experiment_id: ExperimentId,
    /// True when this delivery was seen before and nothing new was started.
    pub duplicate: bool,
}
