//! Failures of attempts: their class, by what SageMaker says, and which are worth another attempt or another machine.

use super::state::TrialState;
use crate::diagnosis::signatures;

/// Why an attempt failed; each class has its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// No capacity: try again later.
    Capacity,
    /// AWS's own fault: try again.
    Internal,
    /// An accelerator: the same code runs on another machine.
    Hardware,
    /// The training code: a retry would fail the same way.
    Algorithm,
    /// The request or its data: likewise.
    Client,
}

impl FailureClass {
    /// Classifies by the prefix of FailureReason: the text after it is the script's own and may say
    /// anything. Only a defective accelerator is named there, by the driver.
    pub fn of(reason: &str) -> Self {
        let prefixes = [
            ("CapacityError", Self::Capacity),
            ("InternalServerError", Self::Internal),
            ("AlgorithmError", Self::Algorithm),
        ];
        let found = prefixes
            .into_iter()
            .find(|(prefix, _)| reason.trim_start().starts_with(prefix));
        let class = found.map_or(Self::Client, |(_, class)| class);
        let is_defect = class == Self::Algorithm
            && signatures::in_reason(reason).any(|hit| hit.signature.is_hardware);
        if is_defect { Self::Hardware } else { class }
    }

    /// Whether an attempt that failed after so many others is worth another one. A defect is named by
    /// the script's own words, so that one more machine has to do.
    pub fn is_worth_a_retry(self, failures: u32) -> bool {
        match self {
            Self::Capacity | Self::Internal => true,
            Self::Hardware => failures == 0,
            Self::Algorithm | Self::Client => false,
        }
    }
}

/// Whether a trial is retried because the log of its last job names a defective machine: only the log does, it was the
/// first such trial, and no machine was found defective before. One more machine has to do. `attempts`: the classes of
/// its attempts, in order.
pub fn deserves_another_machine(
    trial: TrialState,
    is_retry: bool,
    attempts: &[Option<FailureClass>],
) -> bool {
    trial == TrialState::Failed
        && !is_retry
        && attempts.last() == Some(&Some(FailureClass::Algorithm))
        && !attempts.contains(&Some(FailureClass::Hardware))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_machine_has_to_do() {
        let algorithm = Some(FailureClass::Algorithm);
        let retries =
            |attempts: &[_]| deserves_another_machine(TrialState::Failed, false, attempts);
        assert!(retries(&[algorithm]));
        assert!(retries(&[Some(FailureClass::Capacity), None, algorithm]));
        // FailureReason named a defect, and the scheduler has tried another machine.
        assert!(!retries(&[Some(FailureClass::Hardware), algorithm]));
        assert!(!retries(&[algorithm, Some(FailureClass::Hardware)]));
        assert!(!retries(&[Some(FailureClass::Internal)]));
        assert!(!retries(&[]));
        assert!(!deserves_another_machine(
            TrialState::Failed,
            true,
            &[algorithm]
        ));
        assert!(!deserves_another_machine(
            TrialState::Stopped,
            false,
            &[algorithm]
        ));
    }
}
