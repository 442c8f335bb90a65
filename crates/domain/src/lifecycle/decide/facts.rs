//! What is stored of the attempt that a decision is about.

use chrono::{DateTime, TimeDelta, Utc};

use crate::lifecycle::state::AttemptPhase;

/// Stored facts about the current attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptFacts {
    pub phase: AttemptPhase,
    /// Earlier unsuccessful attempts of the trial.
    pub failures: u32,
    /// Creates of the trial that a quota rejected.
    pub over_quota: u32,
    /// Jobs of the trial that found no capacity.
    pub no_capacity: u32,
    /// The experiment's deadline, until which the trial waits for capacity.
    pub give_up_at: DateTime<Utc>,
    /// The longest time that an instance of its job can be billed, seconds: the most of an estimate.
    pub longest_billed_seconds: u64,
    /// Whether SageMaker ends its job then. Otherwise it may have run on, until its end.
    pub is_limited: bool,
    /// Value of the marker that its job must carry.
    pub marker: String,
    /// Consecutive polls that found no job.
    pub absent: u32,
    /// Consecutive creates that were postponed.
    pub postponed: u32,
    /// A create from an earlier claim may still be in flight: its sender timed out, died, or is
    /// suspended.
    pub may_be_under_way: bool,
    /// When billing began, as last seen.
    pub started_at: Option<DateTime<Utc>>,
    /// How long it may run before we stop it, where SageMaker has no limit of its own.
    pub runtime_limit: Option<TimeDelta>,
    /// How often it is worth a look while it runs, where listings do not tell what is new.
    pub look_every: Option<TimeDelta>,
    /// Periods without instances, as last seen.
    pub waits: Vec<(DateTime<Utc>, DateTime<Utc>)>,
    /// When AWS itself ends its job, by a schedule.
    pub ends_at: Option<DateTime<Utc>>,
    /// Whether a create of its job may have been carried out. Known to be false only of an endpoint.
    pub is_sent: bool,
}

impl AttemptFacts {
    /// Whether AWS has ended its job by now, by a schedule, if there was one.
    pub(super) fn has_ended(&self, now: DateTime<Utc>) -> bool {
        self.ends_at.is_some_and(|end| end <= now)
    }
}
