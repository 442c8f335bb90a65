//! The Model Registry on aws-sdk-sagemaker.

use async_trait::async_trait;
use aws_sdk_sagemaker::operation::create_model_package::builders::CreateModelPackageFluentBuilder;
use aws_sdk_sagemaker::types::{
    InferenceSpecification, MetricsSource, ModelApprovalStatus, ModelMetrics,
    ModelPackageContainerDefinition, ModelPackageSortBy, ModelQuality,
    ProductionVariantInstanceType, SkipModelValidation, SortOrder, TransformInstanceType,
};
use bakeoff_domain::model_package::{Approval, ModelPackageRequest, ObservedPackage};
use bakeoff_domain::ports::{ModelRegistry, Page, PageRequest};
use bakeoff_domain::sagemaker::error::AwsError;

use crate::convert;
use crate::convert::PAGE_SIZE;
use crate::error::classify;
use crate::sagemaker::SageMaker;

fn status(approval: Approval) -> ModelApprovalStatus {
    match approval {
        Approval::Pending => ModelApprovalStatus::PendingManualApproval,
        Approval::Approved => ModelApprovalStatus::Approved,
        Approval::Rejected => ModelApprovalStatus::Rejected,
    }
}

/// What SageMaker adds later may not be deployed.
fn approval(status: Option<&ModelApprovalStatus>) -> Approval {
    match status {
        Some(ModelApprovalStatus::Approved) => Approval::Approved,
        Some(ModelApprovalStatus::Rejected) => Approval::Rejected,
        Some(_) | None => Approval::Pending,
    }
}

/// The container and what it takes; as SageMaker's Python SDK sends it.
fn inference(request: &ModelPackageRequest) -> InferenceSpecification {
    let environment = (!request.environment.is_empty())
        .then(|| request.environment.clone().into_iter().collect());
    let container = ModelPackageContainerDefinition::builder()
        .image(&request.image)
        .model_data_url(&request.model_s3_uri)
        .set_environment(environment);
    let realtime = request
        .realtime_instance_types
        .iter()
        .map(|name| ProductionVariantInstanceType::from(name.as_str()));
    let transform = request
        .transform_instance_types
        .iter()
        .map(|name| TransformInstanceType::from(name.as_str()));

    InferenceSpecification::builder()
        .containers(container.build())
        .set_supported_content_types(Some(request.content_types.clone()))
        .set_supported_response_mime_types(Some(request.response_types.clone()))
        .set_supported_realtime_inference_instance_types(
            (realtime.len() > 0).then(|| realtime.collect()),
        )
        .set_supported_transform_instance_types((transform.len() > 0).then(|| transform.collect()))
        .build()
}

fn fill(
    call: CreateModelPackageFluentBuilder,
    request: &ModelPackageRequest,
) -> CreateModelPackageFluentBuilder {
    let statistics = MetricsSource::builder()
        .content_type("application/json")
        .s3_uri(&request.statistics_s3_uri);
    let quality = ModelQuality::builder().statistics(statistics.build());
    call.model_package_group_name(&request.group)
        .model_package_description(&request.description)
        .inference_specification(inference(request))
        .model_metrics(
            ModelMetrics::builder()
                .model_quality(quality.build())
                .build(),
        )
        .set_customer_metadata_properties(Some(request.metadata.clone().into_iter().collect()))
        .model_approval_status(status(request.approval))
        .certify_for_marketplace(false)
        .skip_model_validation(SkipModelValidation::None)
        .client_token(&request.client_token)
}

#[async_trait]
impl ModelRegistry for SageMaker {
    async fn create_group(&self, group: &str) -> Result<(), AwsError> {
        self.client
            .create_model_package_group()
            .model_package_group_name(group)
            .send()
            .await
            .map(drop)
            .map_err(classify)
    }

    async fn create(&self, request: &ModelPackageRequest) -> Result<String, AwsError> {
        let call = fill(self.client.create_model_package(), request);
        let output = call.send().await.map_err(classify)?;
        let arn = output.model_package_arn().map(str::to_owned);
        arn.ok_or_else(|| AwsError::Unknown("CreateModelPackage returned no ARN".to_owned()))
    }

    async fn list(&self, page: &PageRequest) -> Result<Page<String>, AwsError> {
        let output = self
            .client
            .list_model_packages()
            .model_package_group_name(&page.fragment)
            .creation_time_after(convert::sdk_moment(page.created_after))
            .sort_by(ModelPackageSortBy::CreationTime)
            .sort_order(SortOrder::Descending)
            .max_results(PAGE_SIZE)
            .set_next_token(page.token.clone())
            .send()
            .await
            .map_err(classify)?;
        let items = output.model_package_summary_list().iter();
        Ok(Page {
            items: items
                .filter_map(|one| one.model_package_arn().map(str::to_owned))
                .collect(),
            next: output.next_token().map(str::to_owned),
        })
    }

    async fn describe(&self, arn: &str) -> Result<ObservedPackage, AwsError> {
        let output = self
            .client
            .describe_model_package()
            .model_package_name(arn)
            .send()
            .await
            .map_err(classify)?;
        let metadata = output.customer_metadata_properties().into_iter().flatten();
        Ok(ObservedPackage {
            arn: output.model_package_arn().unwrap_or(arn).to_owned(),
            approval: approval(output.model_approval_status()),
            metadata: metadata
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        })
    }

    async fn set_approval(
        &self,
        arn: &str,
        approval: Approval,
        note: Option<&str>,
    ) -> Result<(), AwsError> {
        self.client
            .update_model_package()
            .model_package_arn(arn)
            .model_approval_status(status(approval))
            .set_approval_description(note.map(str::to_owned))
            .send()
            .await
            .map(drop)
            .map_err(classify)
    }
}
