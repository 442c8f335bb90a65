//! What is done about a model package next. A lost answer is never a refusal: the package may exist, and is
//! looked for by its marker before it is created again.

use chrono::{DateTime, TimeDelta, Utc};

use crate::lifecycle::policy::Policy;
use crate::registry::{Approval, RegistryState};
use crate::sagemaker::error::AwsError;

/// What is stored of a package that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageFacts {
    pub state: RegistryState,
    /// Tries so far, with this one; the first cannot have been made by anybody else.
    pub tries: u32,
    pub approval: Approval,
    pub wanted_approval: Approval,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageStep {
    /// An earlier try may have created it.
    LookThenCreate,
    Create,
    SetApproval,
    Nothing,
}

/// Decides the next step.
pub fn decide(facts: &PackageFacts) -> PackageStep {
    match facts.state {
        RegistryState::Registering if facts.tries > 1 => PackageStep::LookThenCreate,
        RegistryState::Registering => PackageStep::Create,
        RegistryState::Registered if facts.approval != facts.wanted_approval => {
            PackageStep::SetApproval
        }
        RegistryState::Registered | RegistryState::Failed => PackageStep::Nothing,
    }
}

/// What follows from a call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterError {
    /// Try again, which is safe.
    Again { at: DateTime<Utc>, why: String },
    /// Only a person can change it.
    GiveUp { why: String },
}

/// What follows from an error of SageMaker's or S3's. `what` names the call, and `permission` the right
/// that it needs.
pub fn after_error(
    error: &AwsError,
    what: &str,
    permission: &str,
    tries: u32,
    now: DateTime<Utc>,
    policy: &Policy,
) -> AfterError {
    let why = format!("{what}: {error}");
    match error {
        AwsError::Denied(_) => AfterError::GiveUp {
            why: format!("{why}. Allow the service {permission} (deploy/iam/control-plane.json)"),
        },
        AwsError::Rejected { .. } | AwsError::NotFound(_) | AwsError::AlreadyExists(_) => {
            AfterError::GiveUp { why }
        }
        AwsError::Throttled(_)
        | AwsError::LimitExceeded(_)
        | AwsError::Expired(_)
        | AwsError::Unknown(_) => AfterError::Again {
            at: now + policy.backoff_after(tries, what).max(TimeDelta::seconds(1)),
            why,
        },
    }
}

/// Whether a refusal says that there is no such group. SageMaker words it differently from operation to
/// operation.
pub fn lacks_group(error: &AwsError) -> bool {
    match error {
        AwsError::NotFound(_) => true,
        AwsError::Rejected { message, .. } => {
            let message = message.to_lowercase();
            message.contains("not found") || message.contains("does not exist")
        }
        _ => false,
    }
}

/// Whether a refusal to create a group says that there is one.
pub fn has_group(error: &AwsError) -> bool {
    match error {
        AwsError::AlreadyExists(_) => true,
        AwsError::Rejected { message, .. } => message.to_lowercase().contains("already exists"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_try_creates_without_a_look() {
        let facts = PackageFacts {
            state: RegistryState::Registering,
            tries: 1,
            approval: Approval::Pending,
            wanted_approval: Approval::Approved,
        };
        assert_eq!(decide(&facts), PackageStep::Create);
        let again = PackageFacts { tries: 2, ..facts };
        assert_eq!(decide(&again), PackageStep::LookThenCreate);
        let done = PackageFacts {
            state: RegistryState::Registered,
            ..again
        };
        assert_eq!(decide(&done), PackageStep::SetApproval);
        let agreed = PackageFacts {
            approval: Approval::Approved,
            ..done
        };
        assert_eq!(decide(&agreed), PackageStep::Nothing);
    }

    #[test]
    fn a_lost_answer_is_tried_again_and_a_denial_names_the_right() {
        let after = |error: AwsError| {
            after_error(
                &error,
                "CreateModelPackage",
                "sagemaker:CreateModelPackage",
                1,
                DateTime::UNIX_EPOCH,
                &Policy::default(),
            )
        };
        assert!(matches!(
            after(AwsError::Unknown("500".into())),
            AfterError::Again { at, .. } if at > DateTime::UNIX_EPOCH
        ));
        let AfterError::GiveUp { why } = after(AwsError::Denied("no".into())) else {
            panic!("only a person can change it");
        };
        assert!(why.contains("sagemaker:CreateModelPackage ("), "{why}");
    }
}
