//! Attempts of trials, as stored: each is one job.

use bakeoff_domain::ids::{JobId, PriceId, TrialId};
use bakeoff_domain::lifecycle::state::{AttemptPhase, AttemptState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::observed::Transition;
use bakeoff_domain::sagemaker::phase::JobPhase;
use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::{StoreError, error, stored};

/// A stored attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub id: JobId,
    pub trial_id: TrialId,
    pub number: u32,
    pub job_name: String,
    pub phase: AttemptPhase,
    pub price_id: PriceId,
    pub usd_per_hour: Usd,
    pub reserved_training_usd: Usd,
    pub reserved_metrics_usd: Usd,
    pub absent: u32,
    pub postponed: u32,
    pub job_status: Option<String>,
    pub secondary_status: Option<String>,
    pub failure_reason: Option<String>,
    pub transitions: Vec<Transition>,
    pub training_seconds: Option<i64>,
    pub billable_seconds: Option<i64>,
    pub billing_estimated: bool,
    pub metrics_requested: i64,
    pub planned_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
    /// Whether the requested settings have been compared with the actual ones.
    pub is_compared: bool,
    /// When the newest checkpoint was written, as last seen.
    pub checkpoint_at: Option<DateTime<Utc>>,
    /// When its checkpoints were written, as far as they tell what interruptions lost.
    pub checkpoint_times: Vec<DateTime<Utc>>,
    /// While the job trains: start of the current uninterrupted training.
    pub training_since: Option<DateTime<Utc>>,
    /// SageMaker's LastModifiedTime, as last seen.
    pub modified_at: Option<DateTime<Utc>>,
    /// Of an endpoint: when its deletion was last asked for.
    pub delete_asked_at: Option<DateTime<Utc>>,
    /// In tables, for unsettled attempts: time of the last complete listing, read together with the
    /// status.
    pub listed_at: Option<DateTime<Utc>>,
}

impl Attempt {
    /// The phase of its job, as last seen.
    pub fn job_phase(&self) -> JobPhase {
        JobPhase::of(self.secondary_status.as_deref().unwrap_or_default())
    }
}

/// An attempt's row.
pub(super) struct AttemptRow {
    pub(super) id: Uuid,
    pub(super) trial_id: Uuid,
    pub(super) number: i32,
    pub(super) job_name: String,
    pub(super) state: String,
    pub(super) price_id: Uuid,
    pub(super) usd_per_hour: Decimal,
    pub(super) reserved_training_usd: Decimal,
    pub(super) reserved_metrics_usd: Decimal,
    pub(super) quarantine_until: Option<DateTime<Utc>>,
    pub(super) absent: i32,
    pub(super) postponed: i32,
    pub(super) job_status: Option<String>,
    pub(super) secondary_status: Option<String>,
    pub(super) failure_reason: Option<String>,
    pub(super) transitions: String,
    pub(super) training_seconds: Option<i64>,
    pub(super) billable_seconds: Option<i64>,
    pub(super) billing_estimated: bool,
    pub(super) metrics_requested: i64,
    pub(super) planned_at: DateTime<Utc>,
    pub(super) started_at: Option<DateTime<Utc>>,
    pub(super) ended_at: Option<DateTime<Utc>>,
    pub(super) is_compared: bool,
    pub(super) checkpoint_at: Option<DateTime<Utc>>,
    pub(super) checkpoint_times: Vec<DateTime<Utc>>,
    pub(super) training_since: Option<DateTime<Utc>>,
    pub(super) modified_at: Option<DateTime<Utc>>,
    pub(super) delete_asked_at: Option<DateTime<Utc>>,
    pub(super) listed_at: Option<DateTime<Utc>>,
}

impl AttemptRow {
    /// For people: without its transitions where they are unreadable.
    pub(super) fn shown(self) -> Result<Attempt, StoreError> {
        let transitions = self.transitions().unwrap_or_else(|error| {
            tracing::error!(%error, "unreadable transitions; attempt shown without them");
            Vec::new()
        });
        Attempt::with_transitions(self, transitions)
    }

    pub(super) fn transitions(&self) -> Result<Vec<Transition>, StoreError> {
        stored::read_text(&self.transitions, "jobs", self.id, "transitions")
    }
}

impl Attempt {
    pub(super) fn with_transitions(
        row: AttemptRow,
        transitions: Vec<Transition>,
    ) -> Result<Self, StoreError> {
        let corrupt = |column| StoreError::corrupt("jobs", row.id, column);
        let count = |value: i32, column| error::count(value, "jobs", row.id, column);
        let state = AttemptState::parse(&row.state).ok_or_else(|| corrupt("state"))?;
        Ok(Self {
            id: JobId(row.id),
            trial_id: TrialId(row.trial_id),
            number: count(row.number, "number")?,
            job_name: row.job_name,
            price_id: PriceId(row.price_id),
            usd_per_hour: Usd(row.usd_per_hour),
            reserved_training_usd: Usd(row.reserved_training_usd),
            reserved_metrics_usd: Usd(row.reserved_metrics_usd),
            phase: AttemptPhase::of(state, row.quarantine_until)
                .ok_or_else(|| corrupt("quarantine_until"))?,
            absent: count(row.absent, "absent")?,
            postponed: count(row.postponed, "postponed")?,
            job_status: row.job_status,
            secondary_status: row.secondary_status,
            failure_reason: row.failure_reason,
            transitions,
            training_seconds: row.training_seconds,
            billable_seconds: row.billable_seconds,
            billing_estimated: row.billing_estimated,
            metrics_requested: row.metrics_requested,
            planned_at: row.planned_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
            is_compared: row.is_compared,
            checkpoint_at: row.checkpoint_at,
            checkpoint_times: row.checkpoint_times,
            training_since: row.training_since,
            modified_at: row.modified_at,
            delete_asked_at: row.delete_asked_at,
            listed_at: row.listed_at,
        })
    }
}
