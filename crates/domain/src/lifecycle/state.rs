//! States of a trial and of its attempts, with their names in the database and the API.
//! Which state follows which is decided in [`crate::lifecycle::decide`].

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! named_states {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// `None` when the text names no state.
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|state| state.as_str() == text)
            }
        }
    };
}

named_states! {
    /// A trial: one candidate under one purchase option, one repeat.
    TrialState {
        /// Cannot run as configured; nothing was or will be started.
        Refused = "refused",
        /// Waiting for its turn, its budget, or a retry.
        Queued = "queued",
        /// Its turn has come: an attempt is being committed, and CreateTrainingJob is being or may
        /// have been sent.
        Submitting = "submitting",
        /// Cannot go on until a person acts: its reason says what to do, and a resume queues it
        /// again.
        Parked = "parked",
        /// The job exists.
        Running = "running",
        /// A stop is wanted or under way.
        Stopping = "stopping",
        Completed = "completed",
        Failed = "failed",
        /// Ended early: cancelled, or at its runtime or wait limit.
        Stopped = "stopped",
    }
}

/// As a trial begins.
impl Default for TrialState {
    fn default() -> Self {
        Self::Queued
    }
}

named_states! {
    /// An attempt: one SageMaker job of a trial.
    AttemptState {
        /// Committed with its name and reservation; CreateTrainingJob may have been sent.
        Planned = "planned",
        Running = "running",
        /// Cancelled or refused while a create may have been under way: the reservation is kept
        /// until it is certain that no job exists.
        Quarantined = "quarantined",
        Completed = "completed",
        Failed = "failed",
        Stopped = "stopped",
        /// SageMaker refused it, or it was cancelled before it was sent: no job, no cost.
        NeverCreated = "never_created",
    }
}

named_states! {
    /// An experiment.
    ExperimentState {
        Running = "running",
        /// A cancel was asked for; trials are being stopped.
        Cancelling = "cancelling",
        Completed = "completed",
        /// It is over, and every trial failed or was refused.
        Failed = "failed",
        Cancelled = "cancelled",
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

    /// The states that may follow this one. Drawn in `docs/states.md`; the database refuses to
    /// leave a terminal one.
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

    /// The states that may follow this one.
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
