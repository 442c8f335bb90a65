//! What is done about a model package next. A lost answer is never a refusal: the package may exist, and is
//! looked for by its marker before it is created again.

use chrono::{DateTime, TimeDelta, Utc};

use crate::model_package::{Approval, ObservedPackage, RegistryState};
use crate::sagemaker::error::AwsError;

/// What is stored of a package that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageFacts {
    pub state: RegistryState,
    /// Tries so far, with this one; the first cannot have been made by anybody else.
    pub tries: u32,
    /// As it was asked for with the registration.
    pub asked_approval: Approval,
    /// As SageMaker last had it.
    pub approval: Approval,
    pub wanted_approval: Approval,
    /// When SageMaker accepted that approval; a call of an earlier try may have come after it.
    pub set_at: Option<DateTime<Utc>>,
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
        RegistryState::Registered if facts.set_at.is_some() => PackageStep::Confirm,
        RegistryState::Registered => PackageStep::SetApproval,
        RegistryState::Failed => PackageStep::Nothing,
    }
}

/// When an approval is looked at once more: a call that was given up has arrived by then (assumed; the
/// service waits ten seconds for one).
const CONFIRM_AFTER: TimeDelta = TimeDelta::minutes(2);

/// What a step has led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageChange {
    Registered(ObservedPackage),
    /// SageMaker has accepted the wanted approval.
    Set,
    /// SageMaker has this approval.
    Seen(Approval),
    Failed(AfterError),
}

/// What is to be stored of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageNext {
    pub state: RegistryState,
    /// Once it is registered; what is stored stays otherwise.
    pub arn: Option<String>,
    pub approval: Approval,
    pub wanted_approval: Approval,
    pub set_at: Option<DateTime<Utc>>,
    /// When something is done about it next.
    pub due_at: Option<DateTime<Utc>>,
    pub reason: Option<String>,
}

/// What becomes of a package.
pub fn after(facts: &PackageFacts, change: PackageChange, now: DateTime<Utc>) -> PackageNext {
    let mut next = PackageNext {
        state: facts.state,
        arn: None,
        approval: facts.approval,
        wanted_approval: facts.wanted_approval,
        set_at: facts.set_at,
        due_at: None,
        reason: None,
    };
    match change {
        PackageChange::Registered(found) => {
            next.state = RegistryState::Registered;
            next.arn = Some(found.arn);
            next.approval = found.approval;
            // Somebody may have decided in the console before it was found; here, nobody has.
            if facts.wanted_approval == facts.asked_approval {
                next.wanted_approval = found.approval;
            }
            next.due_at = (found.approval != next.wanted_approval).then_some(now);
        }
        PackageChange::Set => {
            next.approval = facts.wanted_approval;
            next.set_at = Some(now);
            next.due_at = Some(now + CONFIRM_AFTER);
        }
        PackageChange::Seen(observed) => {
            next.approval = observed;
            if facts.wanted_approval == Approval::Pending {
                next.wanted_approval = observed;
            } else if facts.wanted_approval != observed {
                (next.set_at, next.due_at) = (None, Some(now));
            }
        }
        PackageChange::Failed(AfterError::Again { at, why }) => {
            (next.due_at, next.reason) = (Some(at), Some(why));
        }
        PackageChange::Failed(AfterError::GiveUp { why }) => {
            next.reason = Some(why);
            if facts.state == RegistryState::Registering {
                next.state = RegistryState::Failed;
            }
        }
    }
    next
}

/// What follows from a call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfterError {
    /// Try again, which is safe.
    Again { at: DateTime<Utc>, why: String },
    /// Only a person can change it.
    GiveUp { why: String },
}

/// A call that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub error: AwsError,
    /// Names the call.
    pub what: &'static str,
    /// The right that it needs.
    pub permission: String,
    /// Whether the package may exist all the same, or yet: then no refusal is the end.
    pub may_exist: bool,
}

/// What follows from an error of SageMaker's or S3's; where trying again may help, it is at `again_at`.
pub fn after_error(refused: &Refused, again_at: DateTime<Utc>) -> AfterError {
    let Refused {
        error,
        what,
        permission,
        may_exist,
    } = refused;
    let why = format!("{what}: {error}");
    let why = match error {
        AwsError::Denied(_) => {
            format!("{why}. Allow the service {permission} (deploy/iam/control-plane.json)")
        }
        _ => why,
    };
    match error {
        _ if *may_exist => AfterError::Again { at: again_at, why },
        // Somebody else changes the same group or version.
        AwsError::Rejected { code, .. } if code != "ConflictException" => {
            AfterError::GiveUp { why }
        }
        AwsError::Denied(_) | AwsError::NotFound(_) | AwsError::AlreadyExists(_) => {
            AfterError::GiveUp { why }
        }
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
            let is_none = is_gone(error);
            let is_group = ["package group", "packagegroup", "requested resource"]
                .iter()
                .any(|what| message.contains(what));
            is_none && is_group
        }
        _ => false,
    }
}

/// Whether a refusal says that what was asked for does not exist.
pub fn is_gone(error: &AwsError) -> bool {
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

    fn facts(state: RegistryState, tries: u32, wanted_approval: Approval) -> PackageFacts {
        PackageFacts {
            state,
            tries,
            asked_approval: Approval::Pending,
            approval: Approval::Pending,
            wanted_approval,
            set_at: None,
        }
    }

    const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

    #[test]
    fn only_the_first_try_creates_without_a_look() {
        let step = |tries| {
            decide(&facts(
                RegistryState::Registering,
                tries,
                Approval::Approved,
            ))
        };
        assert_eq!(step(1), PackageStep::Create);
        assert_eq!(step(2), PackageStep::LookThenCreate);
    }

    #[test]
    fn an_approval_is_set_and_then_confirmed() {
        let wanted = facts(RegistryState::Registered, 2, Approval::Approved);
        assert_eq!(decide(&wanted), PackageStep::SetApproval);
        let set = after(&wanted, PackageChange::Set, NOW);
        assert_eq!(set.due_at, Some(NOW + CONFIRM_AFTER));
        let set = PackageFacts {
            set_at: set.set_at,
            ..wanted
        };
        assert_eq!(decide(&set), PackageStep::Confirm);
        let seen = after(&set, PackageChange::Seen(Approval::Approved), NOW);
        assert_eq!(seen.due_at, None);
        let other = after(&set, PackageChange::Seen(Approval::Rejected), NOW);
        assert_eq!(
            (other.set_at, other.due_at),
            (None, Some(NOW)),
            "set it again"
        );
    }

    #[test]
    fn what_somebody_decided_in_the_console_stands_where_nobody_decided_here() {
        let open = facts(RegistryState::Registered, 2, Approval::Pending);
        assert_eq!(decide(&open), PackageStep::Confirm);
        let seen = after(&open, PackageChange::Seen(Approval::Approved), NOW);
        assert_eq!(
            (seen.wanted_approval, seen.due_at),
            (Approval::Approved, None)
        );
        let found = || {
            PackageChange::Registered(ObservedPackage {
                arn: "arn:aws:sagemaker:us-east-1:1:model-package/g/1".to_owned(),
                approval: Approval::Approved,
                metadata: std::collections::BTreeMap::new(),
            })
        };
        let adopted = after(
            &facts(RegistryState::Registering, 2, Approval::Pending),
            found(),
            NOW,
        );
        assert_eq!(
            (adopted.wanted_approval, adopted.due_at),
            (Approval::Approved, None)
        );
        let decided = after(
            &facts(RegistryState::Registering, 2, Approval::Rejected),
            found(),
            NOW,
        );
        assert_eq!(
            (decided.wanted_approval, decided.due_at),
            (Approval::Rejected, Some(NOW))
        );
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
            let refused = Refused {
                error,
                what: "CreateModelPackage",
                permission: "sagemaker:CreateModelPackage".to_owned(),
                may_exist: false,
            };
            after_error(&refused, NOW)
        };
        assert!(matches!(
            after(AwsError::Unknown("500".into())),
            AfterError::Again { at, .. } if at == NOW
        ));
        let AfterError::GiveUp { why } = after(AwsError::Denied("no".into())) else {
            panic!("only a person can change it");
        };
        assert!(why.contains("sagemaker:CreateModelPackage ("), "{why}");
        let refused = Refused {
            error: AwsError::Denied("no".into()),
            what: "ListModelPackages",
            permission: "sagemaker:ListModelPackages".to_owned(),
            may_exist: true,
        };
        assert!(matches!(
            after_error(&refused, NOW),
            AfterError::Again { .. }
        ));
    }
}
