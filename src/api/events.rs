//! API views of events.

use bakeoff_domain::ids::TrialId;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::store::events::Event;

/// An event in the life of an experiment or trial.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    pub id: i64,
    pub trial_id: Option<TrialId>,
    /// Dotted name, such as `trial.completed`.
    pub kind: String,
    /// `info`, `warning` or `alarm`.
    pub severity: String,
    pub message: String,
    pub recorded_at: DateTime<Utc>,
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        let Event {
            id,
            trial_id,
            kind,
            severity,
            message,
            recorded_at,
        } = event;
        Self {
            id,
            trial_id,
            kind,
            severity,
            message,
            recorded_at,
        }
    }
}
