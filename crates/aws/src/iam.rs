//! Roles and permissions, on aws-sdk-iam.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_iam::Client;
use aws_sdk_iam::types::{ContextEntry, ContextKeyTypeEnum, PolicyEvaluationDecisionType};
use bakeoff_domain::doctor::questions::{Context, ContextKind, Decision, Question, RoleFound};
use bakeoff_domain::ports::Permissions;
use bakeoff_domain::sagemaker::error::AwsError;
use percent_encoding::percent_decode_str;

use crate::error::classify;

/// Identity and Access Management.
#[derive(Debug, Clone)]
pub struct Iam {
    client: Client,
}

impl Iam {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

fn entry(context: &Context) -> ContextEntry {
    let kind = match context.kind {
        ContextKind::Text => ContextKeyTypeEnum::String,
        ContextKind::TextList => ContextKeyTypeEnum::StringList,
        ContextKind::Number => ContextKeyTypeEnum::Numeric,
    };
    ContextEntry::builder()
        .context_key_name(context.key)
        .set_context_key_values(Some(context.values.clone()))
        .context_key_type(kind)
        .build()
}

/// IAM's code for a principal that does not exist.
fn missing(error: AwsError) -> AwsError {
    match error {
        AwsError::Unknown(said) if said.starts_with("NoSuchEntity") => AwsError::NotFound(said),
        other => other,
    }
}

#[async_trait]
impl Permissions for Iam {
    async fn role(&self, name: &str) -> Result<RoleFound, AwsError> {
        let reply = self.client.get_role().role_name(name).send().await;
        let found = reply.map_err(classify).map_err(missing)?;
        let role = found
            .role()
            .ok_or_else(|| AwsError::Unknown("IAM named no role".to_owned()))?;
        // RFC 3986, as the documentation of GetRole says.
        let policy = role.assume_role_policy_document().unwrap_or_default();
        Ok(RoleFound {
            arn: role.arn().to_owned(),
            trust_policy: percent_decode_str(policy).decode_utf8_lossy().into_owned(),
        })
    }

    async fn simulate(
        &self,
        principal_arn: &str,
        question: &Question,
    ) -> Result<Vec<Decision>, AwsError> {
        let call = self
            .client
            .simulate_principal_policy()
            .policy_source_arn(principal_arn)
            .set_action_names(Some(
                question.actions.iter().map(|&one| one.to_owned()).collect(),
            ))
            .resource_arns(&question.resource)
            .set_context_entries(Some(question.context.iter().map(entry).collect()));
        let found = call.send().await.map_err(classify).map_err(missing)?;
        let decisions = found.evaluation_results().iter().map(|one| Decision {
            action: one.eval_action_name().to_owned(),
            resource: question.resource.clone(),
            is_allowed: *one.eval_decision() == PolicyEvaluationDecisionType::Allowed,
            missing_context: one.missing_context_values().to_vec(),
        });
        Ok(decisions.collect())
    }
}
