//! What IAM's answers, a role's trust policy and refused looks mean: which permission is missing, and
//! which statement of the shipped policies grants it.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::check::{Check, CheckName};
use super::found::{AwsFound, Observations};
use super::questions::{Decision, SAGEMAKER, account_of, role_name};
use super::wanted::CheckScope;
use crate::sagemaker::error::AwsError;

/// Where the permissions of the service are written down.
pub(super) const POLICY: &str = "deploy/iam/control-plane.json";
const ROLE_POLICY: &str = "deploy/iam/training-execution.json";

/// Something that the service reads, which needs a permission.
pub(super) struct ReadPermission {
    name: CheckName,
    action: &'static str,
    /// What it cannot see without.
    what: &'static str,
}

pub(super) const JOB_LIST: ReadPermission = ReadPermission {
    name: CheckName::JobList,
    action: "sagemaker:ListTrainingJobs",
    what: "jobs whose end is noticed by listing them",
};
pub(super) const LOGS: ReadPermission = ReadPermission {
    name: CheckName::Logs,
    action: "logs:DescribeLogStreams and logs:GetLogEvents",
    what: "why a job failed",
};
pub(super) const METRICS: ReadPermission = ReadPermission {
    name: CheckName::Metrics,
    action: "cloudwatch:GetMetricData",
    what: "speeds and losses of jobs",
};
pub(super) const PRICE_LIST: ReadPermission = ReadPermission {
    name: CheckName::PriceList,
    action: "pricing:GetProducts",
    what: "new prices",
};
pub(super) const QUOTAS: ReadPermission = ReadPermission {
    name: CheckName::Quotas,
    action: "servicequotas:ListServiceQuotas",
    what: "how many instances may run",
};

impl ReadPermission {
    /// The check of something that was simply read.
    pub(super) fn check(&self, read: &Result<(), AwsError>, principal: &str) -> Check {
        match read {
            Ok(()) => Check::ok(self.name, "can be read"),
            Err(error) => self.failed(error, principal),
        }
    }

    /// The check of something that could not be read.
    pub(super) fn failed(&self, error: &AwsError, principal: &str) -> Check {
        let Self { name, action, what } = *self;
        match error {
            AwsError::Denied(said) => Check::failed(
                name,
                format!("AWS denies {action}, so the service cannot see {what}: {said}"),
            )
            .fix(format!("allow {principal} {action} ({POLICY})")),
            error => Check::unknown(name, format!("{action}: {error}")).fix("run it again"),
        }
    }
}

const MAY_NOT_ASK: &str = "the service may not ask IAM";
const PROOF: &str =
    "; or run the one proof of everything, a job of a few cents: the same command with --job";

pub(super) fn not_asked(name: CheckName, error: &AwsError, principal: &str) -> Check {
    match error {
        AwsError::Denied(said) => Check::unknown(name, format!("{MAY_NOT_ASK}: {said}")).fix(format!(
            "allow {principal} iam:GetRole and iam:SimulatePrincipalPolicy ({POLICY}, SeeWhatIsAllowed){PROOF}"
        )),
        error => Check::unknown(name, error.to_string()).fix("run it again"),
    }
}

/// What is denied, and whether that is sure: where a policy asks for a condition key that the question
/// did not have, a job may be allowed all the same.
pub(super) struct Denied {
    what: Vec<String>,
    unsure_for: BTreeSet<String>,
}

pub(super) fn denied(decisions: &[Decision]) -> Option<Denied> {
    let refused: Vec<&Decision> = decisions.iter().filter(|one| !one.is_allowed).collect();
    let is_sure = refused.iter().any(|one| one.missing_context.is_empty());
    let missing = refused.iter().flat_map(|one| one.missing_context.clone());
    (!refused.is_empty()).then(|| Denied {
        what: refused
            .iter()
            .map(|one| format!("{} on {}", one.action, one.resource))
            .collect(),
        unsure_for: missing.filter(|_| !is_sure).collect(),
    })
}

impl Denied {
    /// What is denied, in a sentence.
    pub(super) fn says(&self, whose: &str) -> String {
        format!("{whose} policies deny {}", self.what.join(", "))
    }

    fn check(&self, name: CheckName, whose: &str, fix: String) -> Check {
        let what = self.what.join(", ");
        if self.unsure_for.is_empty() {
            return Check::failed(name, format!("{whose} policies deny {what}")).fix(fix);
        }
        let keys: Vec<&str> = self.unsure_for.iter().map(String::as_str).collect();
        Check::unknown(
            name,
            format!(
                "{whose} policies deny {what}, unless {} is as they ask",
                keys.join(", ")
            ),
        )
        .fix(format!("{fix}{PROOF}"))
    }
}

pub(super) fn own_jobs(wanted: &CheckScope, aws: &AwsFound, principal: &str) -> Check {
    let name = CheckName::OwnJobs;
    let decisions = match &aws.own_jobs {
        Ok(decisions) => decisions,
        Err(error) => return not_asked(name, error, principal),
    };
    let whose = "the service's";
    if let Some(refused) = denied(decisions) {
        return refused.check(name, whose, format!(
            "allow {principal} these ({POLICY}, CreateBakeoffJobs, TagJobsOnCreate and WatchAndStopOwnJobs; the types and \
             the longest runtime are listed there)"
        ));
    }
    if wanted.instance_types.is_empty() {
        return Check::unknown(
            name,
            "the service's policies allow watching and stopping jobs; creating was not asked, because no type was named",
        )
        .fix("name the types: --instance-type ml.g6.xlarge, or an experiment's file");
    }
    let types = wanted.instance_types.join(", ");
    Check::ok(
        name,
        format!("the service's policies allow creating, watching and stopping jobs on {types}"),
    )
}

pub(super) fn pass_role(wanted: &CheckScope, aws: &AwsFound, principal: &str) -> Check {
    let name = CheckName::PassRole;
    let Some((role, answered)) = wanted.role_arn.as_ref().zip(aws.pass_role.as_ref()) else {
        return Check::unknown(name, "no role was named");
    };
    let checked = match answered {
        Err(error) => not_asked(name, error, principal),
        Ok(decisions) => match denied(decisions) {
            None => Check::ok(name, "the service may pass it to SageMaker"),
            Some(refused) => refused.check(name, "the service's", format!(
            "allow {principal} iam:PassRole on {role} with iam:PassedToService = {SAGEMAKER} ({POLICY}, PassOneRoleToSageMakerOnly)"
            )),
        },
    };
    checked.of(role)
}

pub(super) fn role_permissions(wanted: &CheckScope, aws: &AwsFound, principal: &str) -> Check {
    let name = CheckName::RolePermissions;
    let Some((role, answered)) = wanted.role_arn.as_ref().zip(aws.role_permissions.as_ref()) else {
        return Check::unknown(name, "no role was named");
    };
    let checked = match answered {
        Err(AwsError::NotFound(_)) => Check::unknown(name, "the role does not exist (see `role`)"),
        Err(error) => not_asked(name, error, principal),
        Ok(decisions) => match denied(decisions) {
            None => Check::ok(
                name,
                "its policies allow what jobs do; what buckets and keys say themselves is not looked at",
            ),
            Some(refused) => refused.check(
                name,
                "its",
                format!(
                    "aws iam put-role-policy --role-name {} --policy-name bakeoff --policy-document file://{ROLE_POLICY} (with \
                     your bucket and account in it)",
                    role_name(role)
                ),
            ),
        },
    };
    checked.of(role)
}

pub(super) fn role(
    wanted: &CheckScope,
    found: &Observations,
    aws: &AwsFound,
    principal: &str,
) -> Check {
    let name = CheckName::Role;
    let Some((role, read)) = wanted.role_arn.as_ref().zip(aws.role.as_ref()) else {
        return Check::unknown(name, "no execution role was named").fix(
            "name one: --role-arn arn:aws:iam::<account>:role/<name>, or an experiment's file",
        );
    };
    let own = found.caller.as_ref().map_or("", |caller| &caller.account);
    let of_role = account_of(role);
    if of_role != own {
        return Check::failed(
            name,
            format!("it is in account {of_role}, but jobs run in {own}, and a role cannot be passed between accounts"),
        )
        .fix(format!("name a role of account {own}"))
        .of(role);
    }
    let statement = format!(
        "{{\"Effect\":\"Allow\",\"Principal\":{{\"Service\":\"{SAGEMAKER}\"}},\"Action\":\"sts:AssumeRole\"}}"
    );
    let trust = format!("{{\"Version\":\"2012-10-17\",\"Statement\":[{statement}]}}");
    let role_name = role_name(role);
    let checked = match read {
        Err(AwsError::NotFound(_)) => Check::failed(name, "there is no such role").fix(format!(
            "name another (aws iam list-roles --query 'Roles[].Arn'), or create it: aws iam create-role --role-name {role_name} \
             --assume-role-policy-document '{trust}', then give it {ROLE_POLICY}"
        )),
        Err(error) => not_asked(name, error, principal),
        Ok(found) if found.arn != *role => Check::failed(
            name,
            format!("there is one of that name, but it is {}", found.arn),
        )
        .fix(format!("name it as it is: {}", found.arn)),
        Ok(found) if trusts_sagemaker(&found.trust_policy) => {
            Check::ok(name, "exists, and SageMaker may assume it")
        }
        Ok(_) => Check::failed(
            name,
            format!("its trust policy does not let {SAGEMAKER} assume it"),
        )
        .fix(format!(
            "add {statement} to its trust policy (aws iam get-role --role-name {role_name}), or, if it is of no other use, replace it: \
             aws iam update-assume-role-policy --role-name {role_name} --policy-document '{trust}'"
        )),
    };
    checked.of(role)
}

/// One or many.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn any(&self, is_meant: impl Fn(&T) -> bool) -> bool {
        match self {
            Self::One(one) => is_meant(one),
            Self::Many(many) => many.iter().any(is_meant),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TrustPolicy {
    statement: OneOrMany<Statement>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Statement {
    effect: String,
    action: Option<OneOrMany<String>>,
    principal: Option<serde_json::Value>,
    condition: Option<serde_json::Value>,
}

/// Whether a trust policy lets SageMaker assume the role.
pub(super) fn trusts_sagemaker(policy: &str) -> bool {
    trusts(policy, SAGEMAKER)
}

/// Whether a trust policy lets a service assume the role. Conditions are taken to hold where they allow, and
/// not to where they deny, as guards against other accounts do; any other shows in the first job.
pub(super) fn trusts(policy: &str, service: &str) -> bool {
    let Ok(policy) = serde_json::from_str::<TrustPolicy>(policy) else {
        return false;
    };
    let is_assume = |action: &String| {
        let action = action.to_ascii_lowercase();
        let wild = action.strip_suffix('*');
        action == "sts:assumerole" || wild.is_some_and(|start| "sts:assumerole".starts_with(start))
    };
    let concerns = |statement: &Statement| {
        let services = statement
            .principal
            .as_ref()
            .and_then(|all| all.get("Service"));
        let is_meant = match services {
            Some(serde_json::Value::String(one)) => one == service,
            Some(serde_json::Value::Array(many)) => many.iter().any(|one| one == service),
            _ => false,
        };
        let is_anyone = statement.principal.as_ref().is_some_and(|all| all == "*");
        (is_meant || is_anyone) && statement.action.as_ref().is_some_and(|a| a.any(is_assume))
    };
    let allows = |one: &Statement| one.effect == "Allow" && concerns(one);
    let denies = |one: &Statement| one.effect == "Deny" && one.condition.is_none() && concerns(one);
    policy.statement.any(allows) && !policy.statement.any(denies)
}
