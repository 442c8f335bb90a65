//! API views of external runs.

use bakeoff_domain::ids::RunId;
use bakeoff_domain::lifecycle::state::RunState;
use bakeoff_domain::spec::run::RunSpec;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::comparison::ComparisonRow;

/// An external run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    pub id: RunId,
    pub state: RunState,
    pub spec: RunSpec,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
    /// Its results and cost so far, with estimates of what is left, as in the comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<ComparisonRow>,
}
