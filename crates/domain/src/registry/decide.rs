//! What is done about a model package next. A lost answer is never a refusal: the package may exist, and is
//! looked for by its marker before it is created again.

use chrono::{DateTime, Utc};

use crate::registry::{Approval, RegistryState};
use crate::sagemaker::error::AwsError;

/// What is stored of a package that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageFacts {
    pub state: RegistryState,
    /// Tries so far, with this one; the first cannot have been made by anybody else.
    pub tries: u32,
    pub wanted_approval: Approval,
    /// Whether SageMaker has accepted that approval; a call of an earlier try may have come after it.
    pub is_set: bool,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageStep {
    /// An earlier try may have created it.
    LookThenCreate,
    Create,
    SetApproval,
    /// See whether SageMaker has the approval that is wanted.
    Confirm,
    Nothing,
}

/// Decides the next step.
pub fn decide(facts: &PackageFacts) -> PackageStep {
    match facts.state {
        RegistryState::Registering if facts.tries > 1 => PackageStep::LookThenCreate,
        RegistryState::Registering => PackageStep::Create,
        // Nobody has decided here; in AWS's console, somebody may have.
        RegistryState::Registered if facts.wanted_approval == Approval::Pending => {
            PackageStep::Confirm
        }
        RegistryState::Registered if facts.is_set => PackageStep::Confirm,
        RegistryState::Registered => PackageStep::SetApproval,
        RegistryState::Failed => PackageStep::Nothing,
    }
}

/// The approval that a package has for good, if what SageMaker has is what is wanted; `None` if it must be set
/// again.
pub fn confirmed(wanted: Approval, observed: Approval) -> Option<Approval> {
    (wanted == Approval::Pending || wanted == observed).then_some(observed)
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
/// that it needs; where trying again may help, it is at `again_at`.
pub fn after_error(
    error: &AwsError,
    what: &str,
    permission: &str,
    again_at: DateTime<Utc>,
) -> AfterError {
    let why = format!("{what}: {error}");
    match error {
        AwsError::Denied(_) => AfterError::GiveUp {
            why: format!("{why}. Allow the service {permission} (deploy/iam/control-plane.json)"),
        },
        // Somebody else changes the same group or version.
        AwsError::Rejected { code, .. } if code != "ConflictException" => {
            AfterError::GiveUp { why }
        }
        AwsError::NotFound(_) | AwsError::AlreadyExists(_) => AfterError::GiveUp { why },
        AwsError::Rejected { .. }
        | AwsError::Throttled(_)
        | AwsError::LimitExceeded(_)
        | AwsError::Expired(_)
        | AwsError::Unknown(_) => AfterError::Again { at: again_at, why },
    }
}

/// Whether a refusal says that there is no such group. SageMaker words it differently from operation to
/// operation.
pub fn lacks_group(error: &AwsError) -> bool {
    match error {
        AwsError::NotFound(_) => true,
        AwsError::Rejected { message, .. } => {
            let message = message.to_lowercase();
            let is_none = message.contains("not found") || message.contains("does not exist");
            let is_group = ["package group", "packagegroup", "requested resource"]
                .iter()
                .any(|what| message.contains(what));
            is_none && is_group
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
            wanted_approval: Approval::Approved,
            is_set: false,
        };
        assert_eq!(decide(&facts), PackageStep::Create);
        let again = PackageFacts { tries: 2, ..facts };
        assert_eq!(decide(&again), PackageStep::LookThenCreate);
    }

    #[test]
    fn an_approval_is_set_and_then_confirmed() {
        let facts = PackageFacts {
            state: RegistryState::Registered,
            tries: 2,
            wanted_approval: Approval::Approved,
            is_set: false,
        };
        assert_eq!(decide(&facts), PackageStep::SetApproval);
        let set = PackageFacts {
            is_set: true,
            ..facts
        };
        assert_eq!(decide(&set), PackageStep::Confirm);
        assert_eq!(confirmed(Approval::Approved, Approval::Rejected), None);
        // What somebody decided in the console is not taken back by who has decided nothing here.
        let open = PackageFacts {
            wanted_approval: Approval::Pending,
            ..facts
        };
        assert_eq!(decide(&open), PackageStep::Confirm);
        let seen = confirmed(Approval::Pending, Approval::Approved);
        assert_eq!(seen, Some(Approval::Approved));
    }

    #[test]
    fn only_a_missing_group_is_a_missing_group() {
        let refused = |message: &str| AwsError::Rejected {
            code: "ValidationException".to_owned(),
            message: message.to_owned(),
        };
        assert!(lacks_group(&refused("Model Package Group does not exist.")));
        assert!(lacks_group(&refused(
            "The requested resource was not found"
        )));
        assert!(!lacks_group(&refused("The image 1.dkr does not exist")));
    }

    #[test]
    fn a_lost_answer_is_tried_again_and_a_denial_names_the_right() {
        let after = |error: AwsError| {
            after_error(
                &error,
                "CreateModelPackage",
                "sagemaker:CreateModelPackage",
                DateTime::UNIX_EPOCH,
            )
        };
        assert!(matches!(
            after(AwsError::Unknown("500".into())),
            AfterError::Again { at, .. } if at == DateTime::UNIX_EPOCH
        ));
        let AfterError::GiveUp { why } = after(AwsError::Denied("no".into())) else {
            panic!("only a person can change it");
        };
        assert!(why.contains("sagemaker:CreateModelPackage ("), "{why}");
    }
}
