//! How the account is set up, by an administrator who may have been careless: what IAM denies, where
//! buckets lie, whether roles and images exist. Set on the command line, and changed at runtime
//! (`POST /_sim/setup`). By default, everything is as it should be.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::account::refusal::{Refusal, invalid};

/// The service that assumes execution roles.
const SAGEMAKER: &str = "sagemaker.amazonaws.com";
/// The service that assumes the roles of schedules.
const SCHEDULER: &str = "scheduler.amazonaws.com";
/// Requests may be signed this many seconds off.
const SIGNED_WITHIN: i64 = 300;

/// The account's set-up.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Setup {
    /// An action that IAM denies the caller: `logs:DescribeLogStreams`. May be repeated.
    #[arg(long = "deny", value_name = "ACTION")]
    deny: Vec<String>,
    /// An action that IAM denies execution roles. May be repeated.
    #[arg(long = "deny-role", value_name = "ACTION")]
    deny_role: Vec<String>,
    /// No execution role exists.
    #[arg(long)]
    no_role: bool,
    /// The service that may assume roles; SageMaker when absent.
    #[arg(long, value_name = "SERVICE")]
    role_trusts: Option<String>,
    /// The service that may assume the role of schedules; EventBridge Scheduler when absent.
    #[arg(long, value_name = "SERVICE")]
    scheduler_role_trusts: Option<String>,
    /// The region of all buckets; this one when absent.
    #[arg(long, value_name = "REGION")]
    bucket_region: Option<String>,
    /// S3 asks every caller to slow down.
    #[arg(long)]
    s3_slow_down: bool,
    /// No repository has the tag that is asked for.
    #[arg(long)]
    no_image: bool,
    /// AWS's clock minus this machine's, in seconds.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    clock_off_seconds: i64,
    /// AWS knows no such credentials.
    #[arg(long)]
    unknown_credentials: bool,
}

impl Setup {
    pub(crate) fn denies(&self, action: &str) -> bool {
        self.deny.iter().any(|denied| denied == action)
    }

    pub(crate) fn denies_role(&self, action: &str) -> bool {
        self.deny_role.iter().any(|denied| denied == action)
    }

    /// Where buckets lie, if not in the region itself.
    pub(crate) fn other_bucket_region(&self, own: &str) -> Option<&str> {
        self.bucket_region.as_deref().filter(|other| *other != own)
    }

    pub(crate) fn s3_slows_down(&self) -> bool {
        self.s3_slow_down
    }

    pub(crate) fn has_image(&self) -> bool {
        !self.no_image
    }

    pub(crate) fn has_role(&self) -> bool {
        !self.no_role
    }

    pub(crate) fn clock_off_seconds(&self) -> i64 {
        self.clock_off_seconds
    }

    /// Why no request is accepted: code and message of the JSON protocols.
    pub(crate) fn refuses_all(&self) -> Option<Refusal> {
        if self.unknown_credentials {
            return Some(Refusal {
                code: "UnrecognizedClientException",
                message: "The security token included in the request is invalid.".to_owned(),
            });
        }
        (self.clock_off_seconds.abs() > SIGNED_WITHIN).then(|| Refusal {
            code: "InvalidSignatureException",
            message:
                "Signature expired: the time of the request is too far from the time of the server"
                    .to_owned(),
        })
    }

    /// The service that may assume a role; that of schedules is called so.
    pub(crate) fn trusted_service(&self, role: &str) -> &str {
        if role.contains("scheduler") {
            return self.scheduler_role_trusts.as_deref().unwrap_or(SCHEDULER);
        }
        self.role_trusts.as_deref().unwrap_or(SAGEMAKER)
    }

    /// The trust policy of a role.
    pub(crate) fn trust_policy(&self, role: &str) -> Value {
        let service = self.trusted_service(role);
        json!({
            "Version": "2012-10-17",
            "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}],
        })
    }

    /// Whether SageMaker may do with the role and the image of a request what it must, in its order.
    pub(crate) fn check_create(&self, body: &Value, region: &str) -> Result<(), Refusal> {
        let image = body["AlgorithmSpecification"]["TrainingImage"].as_str();
        self.check_job(body, image.unwrap_or_default(), region)
    }

    /// The same of a job of any kind.
    pub(crate) fn check_job(&self, body: &Value, image: &str, region: &str) -> Result<(), Refusal> {
        let role = body["RoleArn"].as_str().unwrap_or_default();
        if self.denies("iam:PassRole") {
            return Err(denied(
                "iam:PassRole",
                &format!(
                    "resource: {role} because no identity-based policy allows the iam:PassRole action"
                ),
            ));
        }
        let trusts = self.role_trusts.as_deref().unwrap_or(SAGEMAKER);
        if self.no_role || trusts != SAGEMAKER {
            return Err(invalid(format!(
                "Could not assume role {role}. Please ensure that the role exists and allows principal '{SAGEMAKER}' to assume the role."
            )));
        }
        if let Some(other) = self.other_bucket_region(region) {
            return Err(invalid(format!(
                "The bucket of the output path is in this region: {other}. Please use a bucket in {region}."
            )));
        }
        if self.no_image {
            return Err(invalid(format!(
                "Cannot find requested image: {image}. Please check if your ECR image exists and that the role has proper pull permissions for SageMaker."
            )));
        }
        Ok(())
    }
}

/// IAM's refusal.
pub(crate) fn denied(action: &str, on: &str) -> Refusal {
    Refusal {
        code: "AccessDeniedException",
        message: format!("User is not authorized to perform: {action} on {on}"),
    }
}
