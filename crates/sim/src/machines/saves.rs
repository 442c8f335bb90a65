//! What of an interrupted job's progress is left.

use crate::machines::timeline::CHECKPOINT_SECONDS;

/// What of a job's progress reaches S3, from where it goes on after an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saves {
    /// No checkpoint is configured, or SageMaker dropped the setting: it begins again.
    Nothing,
    /// The sync stops after its first checkpoint.
    FirstOnly,
    EachCheckpoint,
}

impl Saves {
    /// The work from which a job goes on that was interrupted after so much.
    pub(crate) fn kept(self, reached: f64) -> f64 {
        let whole = (reached / CHECKPOINT_SECONDS).floor() * CHECKPOINT_SECONDS;
        match self {
            Self::Nothing => 0.0,
            Self::FirstOnly => whole.min(CHECKPOINT_SECONDS),
            Self::EachCheckpoint => whole,
        }
    }
}
