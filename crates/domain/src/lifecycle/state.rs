//! States of experiments, trials, attempts and external runs, with their names in the database and
//! the API. [`crate::lifecycle::decide`] decides the transitions.

use chrono::{DateTime, Utc};

named! {
    /// A trial: one candidate under one purchase option, one repeat.
    TrialState {
        /// Cannot run as configured; nothing was or will be started.
        Refused = "refused",
        /// Waiting for its turn, its budget, or a retry.
        Queued = "queued",
        /// Admitted: an attempt is being committed, and CreateTrainingJob is being or may have been
        /// sent.
        Submitting = "submitting",
        /// Cannot continue until a person acts: its reason says what to do, and a resume queues it
        /// again.
        Parked = "parked",
        /// The job exists.
        Running = "running",
        /// A stop is requested or under way.
        Stopping = "stopping",
        Completed = "completed",
        Failed = "failed",
        /// Ended early: cancelled, or at its runtime or wait limit.
        Stopped = "stopped",
    }
}

/// The initial state of a trial.
impl Default for TrialState {
    fn default() -> Self {
        Self::Queued
    }
}

named! {
    /// An attempt: one SageMaker job of a trial.
    AttemptState {
        /// Committed with its name and reservation; CreateTrainingJob may have been sent.
        Planned = "planned",
        Running = "running",
        /// Cancelled or refused while a create may have been in flight: the reservation is kept
        /// until it is certain that no job exists.
        Quarantined = "quarantined",
        Completed = "completed",
        Failed = "failed",
        Stopped = "stopped",
        /// SageMaker refused it, or it was cancelled before it was sent: no job, no cost.
        NeverCreated = "never_created",
    }
}

named! {
    /// State of an experiment.
    ExperimentState {
        Running = "running",
        /// A cancel was requested; trials are being stopped.
        Cancelling = "cancelling",
        Completed = "completed",
        /// The experiment is over, and every trial failed or was refused.
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

named! {
    /// State of an external run.
    RunState {
        Running = "running",
        Completed = "completed",
        Failed = "failed",
    }
}

/// How far an attempt is, with the data that belongs to that phase. The database holds the same
/// rule: a time exactly for what is quarantined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptPhase {
    /// Committed; CreateTrainingJob may have been sent.
    Planned,
    /// Its job exists.
    Running,
    /// Its reservation is kept at least until then.
    Quarantined {
        until: DateTime<Utc>,
    },
    Over(AttemptEnd),
}

/// How an attempt ended: the terminal states of [`AttemptState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptEnd {
    Completed,
    Failed,
    Stopped,
    NeverCreated,
}

impl AttemptPhase {
    /// `None` for a quarantine without its time, or a time without a quarantine.
    pub fn of(state: AttemptState, quarantine_until: Option<DateTime<Utc>>) -> Option<Self> {
        match (state, quarantine_until) {
            (AttemptState::Quarantined, until) => until.map(|until| Self::Quarantined { until }),
            (_, Some(_)) => None,
            (AttemptState::Planned, None) => Some(Self::Planned),
            (AttemptState::Running, None) => Some(Self::Running),
            (AttemptState::Completed, None) => Some(Self::Over(AttemptEnd::Completed)),
            (AttemptState::Failed, None) => Some(Self::Over(AttemptEnd::Failed)),
            (AttemptState::Stopped, None) => Some(Self::Over(AttemptEnd::Stopped)),
            (AttemptState::NeverCreated, None) => Some(Self::Over(AttemptEnd::NeverCreated)),
        }
    }

    /// Its name in the database and the API.
    pub fn state(self) -> AttemptState {
        match self {
            Self::Planned => AttemptState::Planned,
            Self::Running => AttemptState::Running,
            Self::Quarantined { .. } => AttemptState::Quarantined,
            Self::Over(AttemptEnd::Completed) => AttemptState::Completed,
            Self::Over(AttemptEnd::Failed) => AttemptState::Failed,
            Self::Over(AttemptEnd::Stopped) => AttemptState::Stopped,
            Self::Over(AttemptEnd::NeverCreated) => AttemptState::NeverCreated,
        }
    }

    pub fn is_over(self) -> bool {
        matches!(self, Self::Over(_))
    }
}

impl ExperimentState {
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl TrialState {
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Refused | Self::Completed | Self::Failed | Self::Stopped
        )
    }

    /// The allowed next states, drawn in `docs/reference/states.md`; the database refuses to leave a terminal
    /// one.
    pub fn followers(self) -> &'static [Self] {
        match self {
            Self::Queued => &[Self::Submitting, Self::Parked, Self::Stopped],
            Self::Submitting => &[
                Self::Running,
                Self::Queued,
                Self::Parked,
                Self::Stopping,
                Self::Refused,
                Self::Failed,
                Self::Stopped,
            ],
            Self::Parked => &[Self::Queued, Self::Stopped],
            Self::Running => &[
                Self::Stopping,
                Self::Queued,
                Self::Completed,
                Self::Failed,
                Self::Stopped,
            ],
            Self::Stopping => &[Self::Completed, Self::Failed, Self::Stopped],
            Self::Refused | Self::Completed | Self::Failed | Self::Stopped => &[],
        }
    }
}

impl AttemptState {
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Stopped | Self::NeverCreated
        )
    }

    /// The allowed next states.
    pub fn followers(self) -> &'static [Self] {
        match self {
            Self::Planned => &[Self::Running, Self::Quarantined, Self::NeverCreated],
            Self::Quarantined => &[Self::Running, Self::NeverCreated],
            Self::Running => &[Self::Completed, Self::Failed, Self::Stopped],
            Self::Completed | Self::Failed | Self::Stopped | Self::NeverCreated => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for state in TrialState::ALL {
            assert_eq!(TrialState::parse(state.as_str()), Some(*state));
        }
        for state in AttemptState::ALL {
            assert_eq!(AttemptState::parse(state.as_str()), Some(*state));
        }
        assert_eq!(TrialState::parse("lost"), None);
    }
}
