//! What IAM is asked (`SimulatePrincipalPolicy`): may the service, or the execution role, do what
//! Bakeoff needs? IAM knows the policies of a principal, not those of buckets and keys, and not what an
//! organisation forbids; the one proof of everything is a job.

use super::wanted::{CheckScope, S3Place, S3Use};
use crate::sagemaker::error::AwsError;
use crate::sagemaker::image::ImageUri;

/// The service that assumes execution roles.
pub(super) const SAGEMAKER: &str = "sagemaker.amazonaws.com";

/// The caller as AWS sees it (sts:GetCallerIdentity).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Twelve digits.
    pub account: String,
    pub arn: String,
}

/// One question: may the principal do this to that?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub actions: Vec<&'static str>,
    /// An ARN, or `*`.
    pub resource: String,
    /// Condition keys with their values.
    pub context: Vec<Context>,
}

/// The value of a condition key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    pub key: &'static str,
    pub values: Vec<String>,
    pub kind: ContextKind,
}

/// The type of a condition key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextKind {
    Text,
    TextList,
    Number,
}

impl Context {
    pub(super) fn text(key: &'static str, value: impl Into<String>) -> Self {
        Self {
            key,
            values: vec![value.into()],
            kind: ContextKind::Text,
        }
    }
}

/// The answer for one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub action: String,
    pub resource: String,
    pub is_allowed: bool,
    /// Condition keys that a policy asks for and the question did not have: a denial may be due to that.
    pub missing_context: Vec<String>,
}

/// The answers to all questions about a principal.
pub type Answered = Result<Vec<Decision>, AwsError>;

/// A role (iam:GetRole).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleFound {
    pub arn: String,
    /// JSON.
    pub trust_policy: String,
}

/// The IAM principal behind a caller: an assumed role's session is not one. `None` for the root user,
/// which IAM does not answer for.
pub fn principal_of(caller_arn: &str) -> Option<Principal> {
    let mut parts = caller_arn.splitn(6, ':');
    let account = parts.nth(4)?;
    let resource = parts.next()?;
    match resource.split_once('/') {
        Some(("assumed-role", session)) => {
            let name = session.split('/').next()?;
            let partition = caller_arn.split(':').nth(1)?;
            Some(Principal {
                arn: format!("arn:{partition}:iam::{account}:role/{name}"),
                role_name: Some(name.to_owned()),
            })
        }
        Some(_) => Some(Principal {
            arn: caller_arn.to_owned(),
            role_name: None,
        }),
        None => None,
    }
}

/// An IAM principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Of a role, without its path, which its session does not tell.
    pub arn: String,
    /// Set for a role, whose whole ARN iam:GetRole knows.
    pub role_name: Option<String>,
}

/// The name of a role, from its ARN.
pub fn role_name(role_arn: &str) -> &str {
    role_arn.rsplit('/').next().unwrap_or(role_arn)
}

pub(super) fn account_of(arn: &str) -> &str {
    arn.split(':').nth(4).unwrap_or_default()
}

/// `aws`, `aws-cn`, `aws-us-gov`.
pub(super) fn partition_of(arn: &str) -> &str {
    arn.split(':').nth(1).unwrap_or("aws")
}

/// What the service does with its own jobs.
pub fn questions_of_service(
    wanted: &CheckScope,
    caller: &Caller,
    installation: &str,
) -> Vec<Question> {
    let region = &wanted.region;
    let (partition, account) = (partition_of(&caller.arn), &caller.account);
    let runtime = wanted.max_runtime_seconds.unwrap_or(3_600);
    let mut context = vec![
        Context::text("aws:RequestTag/bakeoff:managed-by", "bakeoff-control-plane"),
        Context::text("sagemaker:TaggingAction", "CreateTrainingJob"),
        Context {
            key: "sagemaker:MaxRuntimeInSeconds",
            values: vec![runtime.to_string()],
            kind: ContextKind::Number,
        },
    ];
    if !wanted.instance_types.is_empty() {
        context.push(Context {
            key: "sagemaker:InstanceTypes",
            values: wanted.instance_types.clone(),
            kind: ContextKind::TextList,
        });
    }
    let mut actions = vec![
        "sagemaker:AddTags",
        "sagemaker:DescribeTrainingJob",
        "sagemaker:StopTrainingJob",
        "sagemaker:UpdateTrainingJob",
        "sagemaker:ListTags",
    ];
    // A policy may allow some types only: without one, its answer would say nothing.
    if !wanted.instance_types.is_empty() {
        actions.push("sagemaker:CreateTrainingJob");
    }
    vec![Question {
        actions,
        resource: format!(
            "arn:{partition}:sagemaker:{region}:{account}:training-job/bakeoff-{installation}-0"
        ),
        context,
    }]
}

/// Passing the role.
pub fn questions_of_pass_role(role_arn: &str) -> Vec<Question> {
    vec![Question {
        actions: vec!["iam:PassRole"],
        resource: role_arn.to_owned(),
        context: vec![Context::text("iam:PassedToService", SAGEMAKER)],
    }]
}

pub(super) fn question(actions: &[&'static str], resource: String) -> Question {
    Question {
        actions: actions.to_vec(),
        resource,
        context: Vec::new(),
    }
}

/// What jobs do with a prefix.
fn questions_of_place(place: &S3Place, partition: &str) -> Vec<Question> {
    let actions: &[&'static str] = match place.usage {
        S3Use::Input => &["s3:GetObject"],
        S3Use::Output => &["s3:PutObject"],
        S3Use::Checkpoints => &["s3:PutObject", "s3:GetObject"],
    };
    let mut all = vec![question(actions, place.object_arn(partition))];
    if place.usage != S3Use::Output {
        let bucket = format!("arn:{partition}:s3:::{}", place.bucket());
        all.push(Question {
            context: vec![Context::text("s3:prefix", place.prefix())],
            ..question(&["s3:ListBucket"], bucket)
        });
    }
    all
}

/// What jobs do under their role.
pub fn questions_of_role(wanted: &CheckScope) -> Vec<Question> {
    let region = &wanted.region;
    let role = wanted.role_arn.as_deref().unwrap_or_default();
    let (partition, account) = (partition_of(role), account_of(role));
    let group =
        format!("arn:{partition}:logs:{region}:{account}:log-group:/aws/sagemaker/TrainingJobs");
    let mut all = vec![
        question(&["logs:CreateLogGroup"], group.clone()),
        question(
            &["logs:CreateLogStream", "logs:PutLogEvents"],
            format!("{group}:log-stream:bakeoff"),
        ),
        Question {
            context: vec![Context::text(
                "cloudwatch:namespace",
                "/aws/sagemaker/TrainingJobs",
            )],
            ..question(&["cloudwatch:PutMetricData"], "*".to_owned())
        },
    ];
    for place in &wanted.places {
        all.extend(questions_of_place(place, partition));
    }
    let image = wanted.image.as_ref().and_then(ImageUri::parts);
    if let Some(image) = image {
        all.push(question(&["ecr:GetAuthorizationToken"], "*".to_owned()));
        all.push(question(
            &["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            format!(
                "arn:{partition}:ecr:{}:{}:repository/{}",
                image.region, image.account, image.repository
            ),
        ));
    }
    all
}
