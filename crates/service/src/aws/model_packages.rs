//! Calls to SageMaker's Model Registry, paced and counted.

use bakeoff_domain::model_package::decide::is_gone;
use bakeoff_domain::model_package::{Approval, ModelPackageRequest, ObservedPackage};
use bakeoff_domain::ports::PageRequest;
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::{DateTime, Utc};

use super::jobs::account_of;
use super::{Aws, LIST_PAGES_MAX, Operation};

impl Aws {
    pub async fn create_model_group(&self, group: &str) -> Result<(), AwsError> {
        self.wait_for(Operation::CreateModelPackageGroup).await?;
        let reply = self.ports.registry.create_group(group).await;
        self.count(Operation::CreateModelPackageGroup, reply, 0)
    }

    /// Creates a version of a model, and returns its ARN.
    pub async fn create_model_package(
        &self,
        request: &ModelPackageRequest,
    ) -> Result<String, AwsError> {
        self.wait_for(Operation::CreateModelPackage).await?;
        let reply = self.ports.registry.create(request).await;
        let arn = self.count(Operation::CreateModelPackage, reply, 0)?;
        match account_of(&arn).filter(|account| !self.may_own(account)) {
            None => Ok(arn),
            Some(account) => {
                // The credentials changed after the account was confirmed.
                self.doubt_account();
                let what = format!("the package was created in account {account}, not in ours");
                Err(AwsError::Unknown(what))
            }
        }
    }

    /// The version of a group with a marker, among those created after a moment.
    pub async fn find_model_package(
        &self,
        group: &str,
        marker: &str,
        created_after: DateTime<Utc>,
    ) -> Result<Option<ObservedPackage>, AwsError> {
        let ask = |token| {
            let page = PageRequest {
                fragment: group.to_owned(),
                created_after,
                token,
            };
            async move { self.ports.registry.list(&page).await }
        };
        let listed = self
            .pages(Operation::ListModelPackages, LIST_PAGES_MAX, ask)
            .await?;
        for arn in listed {
            let found = match self.describe_model_package(&arn).await {
                Ok(found) => found,
                // Deleted since it was listed.
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(error),
            };
            let is_ours = account_of(&arn).is_none_or(|account| self.may_own(account));
            if is_ours && found.is_marked(marker) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub async fn describe_model_package(&self, arn: &str) -> Result<ObservedPackage, AwsError> {
        self.wait_for(Operation::DescribeModelPackage).await?;
        let reply = self.ports.registry.describe(arn).await;
        self.count(Operation::DescribeModelPackage, reply, 0)
    }

    pub async fn set_model_approval(
        &self,
        arn: &str,
        approval: Approval,
        note: Option<&str>,
    ) -> Result<(), AwsError> {
        self.wait_for(Operation::UpdateModelPackage).await?;
        let reply = self.ports.registry.set_approval(arn, approval, note).await;
        self.count(Operation::UpdateModelPackage, reply, 0)
    }
}
