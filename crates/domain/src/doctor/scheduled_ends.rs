//! Whether AWS itself can end what SageMaker never ends: the service may schedule it and pass the role, EventBridge
//! Scheduler may assume the role, and the role may delete endpoints and stop batch transforms.

use super::check::{Check, CheckName};
use super::found::{Observations, SchedulesFound};
use super::permissions::{POLICY, denied, not_asked, trusts};
use super::questions::{Caller, Context, Question, account_of, partition_of, question, role_name};
use super::wanted::CheckScope;
use crate::endpoint::scheduled_end::{NO_END, NO_ROLE, no_end, usd_per_day_absent};
use crate::money::Usd;
use crate::sagemaker::error::AwsError;

/// The service that assumes the role.
const SCHEDULER: &str = "scheduler.amazonaws.com";
/// Where the permissions of the role are written down.
const ROLE_POLICY: &str = "deploy/iam/scheduler.json";
const NAME: CheckName = CheckName::ScheduledEnds;

/// Scheduling the ends of our jobs, and passing the role for it.
pub fn questions_of_schedules(
    role_arn: &str,
    region: &str,
    caller: &Caller,
    installation: &str,
) -> Vec<Question> {
    let (partition, account) = (partition_of(&caller.arn), &caller.account);
    let schedule = format!(
        "arn:{partition}:scheduler:{region}:{account}:schedule/default/bakeoff-{installation}-0"
    );
    let actions = [
        "scheduler:CreateSchedule",
        "scheduler:UpdateSchedule",
        "scheduler:GetSchedule",
        "scheduler:DeleteSchedule",
    ];
    vec![
        question(&actions, schedule),
        Question {
            context: vec![Context::text("iam:PassedToService", SCHEDULER)],
            ..question(&["iam:PassRole"], role_arn.to_owned())
        },
    ]
}

/// What the role does.
pub fn questions_of_scheduler_role(
    role_arn: &str,
    region: &str,
    installation: &str,
) -> Vec<Question> {
    let (partition, account) = (partition_of(role_arn), account_of(role_arn));
    let of = |kind: &str| {
        format!("arn:{partition}:sagemaker:{region}:{account}:{kind}/bakeoff-{installation}-0")
    };
    vec![
        question(&["sagemaker:DeleteEndpoint"], of("endpoint")),
        question(&["sagemaker:StopTransformJob"], of("transform-job")),
    ]
}

/// What each day without the service costs on the dearest type that is to be used.
fn absence(wanted: &CheckScope, found: &Observations) -> String {
    let is_meant = |kind: &str| {
        wanted.instance_types.is_empty() || wanted.instance_types.iter().any(|one| one == kind)
    };
    let priced = found
        .prices
        .iter()
        .filter(|one| is_meant(&one.instance_type));
    let priced = priced.filter_map(|one| Some((one.usd_per_hour?, &one.instance_type)));
    match priced.max_by_key(|(usd, _)| *usd) {
        Some((usd, kind)) => {
            let per_day: Usd = usd_per_day_absent(usd, 1);
            format!("an endpoint has {} (one {kind})", no_end(per_day))
        }
        None => format!("an endpoint has {NO_END}"),
    }
}

/// Judges it: a failure where the installation requires an end at AWS, otherwise a warning with what it costs.
pub(super) fn check(
    wanted: &CheckScope,
    found: &Observations,
    schedules: Option<&SchedulesFound>,
    principal: &str,
) -> Check {
    let broken = |why: Option<String>, fix: String| {
        let cost = absence(wanted, found);
        let detail = why.map_or_else(|| cost.clone(), |why| format!("{why}; {cost}"));
        let check = if found.requires_scheduled_end {
            Check::failed(
                NAME,
                format!("{detail}; it is refused (--require-scheduled-end)"),
            )
        } else {
            Check::warning(NAME, detail)
        };
        check.fix(fix)
    };
    let Some(schedules) = schedules else {
        return broken(None, NO_ROLE.to_owned());
    };
    let role = &schedules.role_arn;
    judged(schedules, principal, broken).of(role)
}

fn judged(
    schedules: &SchedulesFound,
    principal: &str,
    broken: impl Fn(Option<String>, String) -> Check,
) -> Check {
    let name = role_name(&schedules.role_arn);
    match &schedules.role {
        Err(AwsError::NotFound(_)) => {
            return broken(
                Some("there is no such role".to_owned()),
                format!(
                    "create it: aws iam create-role --role-name {name} --assume-role-policy-document \
                     file://deploy/iam/scheduler-trust.json, then give it {ROLE_POLICY}"
                ),
            );
        }
        Err(error) => return not_asked(NAME, error, principal),
        Ok(found) if !trusts(&found.trust_policy, SCHEDULER) => {
            return broken(
                Some(format!(
                    "its trust policy does not let {SCHEDULER} assume it"
                )),
                format!(
                    "aws iam update-assume-role-policy --role-name {name} --policy-document file://deploy/iam/scheduler-trust.json"
                ),
            );
        }
        Ok(_) => {}
    }
    for (whose, answered, fix) in [
        (
            "the service's",
            &schedules.rights,
            format!("allow {principal} these ({POLICY}, ScheduleEnds and PassTheSchedulersRole)"),
        ),
        (
            "its",
            &schedules.role_permissions,
            format!(
                "aws iam put-role-policy --role-name {name} --policy-name bakeoff --policy-document file://{ROLE_POLICY} (with your account in it)"
            ),
        ),
    ] {
        match answered {
            Err(error) => return not_asked(NAME, error, principal),
            Ok(decisions) => {
                if let Some(refused) = denied(decisions) {
                    return broken(Some(refused.says(whose)), fix);
                }
            }
        }
    }
    Check::ok(
        NAME,
        "AWS itself ends endpoints and batch transforms, also if the service is away",
    )
}
