//! Models, endpoint configurations and endpoints on aws-sdk-sagemaker, and requests to endpoints on
//! aws-sdk-sagemakerruntime. An endpoint has no end: it is in progress until it is being deleted, and then it is
//! not found. It is billed from its creation, which is the earliest that anybody reports.

use async_trait::async_trait;
use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_sagemaker::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_sagemaker::error::BoxError;
use aws_sdk_sagemaker::operation::describe_endpoint::DescribeEndpointOutput;
use aws_sdk_sagemaker::types::{
    ContainerDefinition, EndpointSortKey, EndpointStatus, EndpointSummary, ModelCompressionType,
    ModelDataSource, OrderKey, ProductionVariant, ProductionVariantInstanceType,
    ProductionVariantSummary, S3ModelDataSource, S3ModelDataType,
};
use aws_smithy_types::Blob;
use bakeoff_domain::ports::{
    ANSWER_MAX, ClaimHolds, EndpointUpdate, Endpoints, JobPage, PageRequest,
};
use bakeoff_domain::sagemaker::endpoint::{
    EndpointRequest, ModelContainer, ModelRequest, ModelSource, VARIANT,
};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::{Actual, JobStatus, JobSummary, ObservedJob};
use bakeoff_domain::spec::pipeline::endpoint::SmokeTest;
use std::collections::BTreeMap;
use std::fmt;

use crate::convert::{PAGE_SIZE, int, moment, readable, sdk_moment, tags};
use crate::error::classify;
use crate::sagemaker::SageMaker;

/// Keeps a request from being sent once its claim no longer holds. It is asked after the signature is made: a process
/// that stands still between the two finds its claim gone, and one that stands still afterwards has a signature that AWS
/// refuses after five minutes (IAM user guide, Signature Version 4).
#[derive(Clone)]
struct OnlyWhileHeld(ClaimHolds);

impl fmt::Debug for OnlyWhileHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnlyWhileHeld")
    }
}

impl Intercept for OnlyWhileHeld {
    fn name(&self) -> &'static str {
        "OnlyWhileHeld"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if (self.0)() {
            Ok(())
        } else {
            Err("not sent: another replica may hold the claim by now".into())
        }
    }
}

#[async_trait]
impl Endpoints for SageMaker {
    async fn create_model(
        &self,
        name: &str,
        model: &ModelRequest,
        all: &BTreeMap<String, String>,
    ) -> Result<(), AwsError> {
        let call = self
            .client
            .create_model()
            .model_name(name)
            .execution_role_arn(&model.role_arn)
            .set_tags(tags(all));
        let call = match &model.source {
            ModelSource::Package(arn) => call.containers(
                ContainerDefinition::builder()
                    .model_package_name(arn)
                    .build(),
            ),
            ModelSource::Container(of) => call.primary_container(container(of)),
        };
        call.send().await.map(drop).map_err(classify)
    }

    async fn create_config(&self, name: &str, request: &EndpointRequest) -> Result<(), AwsError> {
        let kind = ProductionVariantInstanceType::from(request.instance_type.as_str());
        let variant = ProductionVariant::builder()
            .variant_name(VARIANT)
            .model_name(name)
            .instance_type(kind)
            .initial_instance_count(int(request.instance_count))
            .initial_variant_weight(1.0)
            .model_data_download_timeout_in_seconds(int(request.startup_seconds))
            .container_startup_health_check_timeout_in_seconds(int(request.startup_seconds))
            .set_volume_size_in_gb(request.volume_size_gb.map(int))
            .build();
        let call = self
            .client
            .create_endpoint_config()
            .endpoint_config_name(name)
            .production_variants(variant)
            .set_tags(tags(&request.tags));
        call.send().await.map(drop).map_err(classify)
    }

    async fn update(&self, update: EndpointUpdate<'_>) -> Result<(), AwsError> {
        // Without a DeploymentConfig: all traffic at once and no baking period, of which one fleet is billed (developer
        // guide, Blue/Green Deployments).
        let sent = self
            .client
            .update_endpoint()
            .endpoint_name(update.endpoint)
            .endpoint_config_name(update.config);
        sent.send().await.map(drop).map_err(classify)
    }

    async fn delete_config(&self, name: &str) -> Result<(), AwsError> {
        let call = self.client.delete_endpoint_config();
        let sent = call.endpoint_config_name(name).send().await;
        sent.map(drop).map_err(classify)
    }

    async fn delete_model(&self, name: &str) -> Result<(), AwsError> {
        let sent = self.client.delete_model().model_name(name).send().await;
        sent.map(drop).map_err(classify)
    }

    async fn invoke(&self, name: &str, test: &SmokeTest) -> Result<Vec<u8>, AwsError> {
        let call = self
            .runtime
            .invoke_endpoint()
            .endpoint_name(name)
            .content_type(&test.content_type)
            .body(Blob::new(test.body.clone().into_bytes()));
        let output = call.send().await.map_err(classify)?;
        let mut answer = output
            .body()
            .map_or_else(Vec::new, |body| body.as_ref().to_vec());
        answer.truncate(ANSWER_MAX);
        Ok(answer)
    }
}

/// Creates an endpoint whose configuration has its name, as long as the claim holds.
pub(crate) async fn create(
    client: &Client,
    request: &EndpointRequest,
    holds: ClaimHolds,
) -> Result<(), AwsError> {
    let sent = client
        .create_endpoint()
        .endpoint_name(&request.job_name)
        .endpoint_config_name(&request.job_name)
        .set_tags(tags(&request.tags))
        .customize()
        .interceptor(OnlyWhileHeld(holds));
    sent.send().await.map(drop).map_err(classify)
}

pub(crate) async fn describe(client: &Client, name: &str) -> Result<ObservedJob, AwsError> {
    let call = client.describe_endpoint().endpoint_name(name);
    let output = call.send().await.map_err(classify)?;
    Ok(observed(name, &output))
}

pub(crate) async fn list(client: &Client, page: &PageRequest) -> Result<JobPage, AwsError> {
    let call = client
        .list_endpoints()
        .name_contains(&page.fragment)
        .creation_time_after(sdk_moment(page.created_after))
        .sort_by(EndpointSortKey::CreationTime)
        .sort_order(OrderKey::Descending)
        .max_results(PAGE_SIZE)
        .set_next_token(page.token.clone());
    let output = call.send().await.map_err(classify)?;
    Ok(JobPage {
        jobs: output.endpoints().iter().filter_map(summary).collect(),
        next: output.next_token().map(str::to_owned),
    })
}

pub(crate) async fn delete(client: &Client, name: &str) -> Result<(), AwsError> {
    let call = client.delete_endpoint().endpoint_name(name);
    call.send().await.map(drop).map_err(classify)
}

/// An image with a `model.tar.gz`, or with an uncompressed model below a prefix.
fn container(of: &ModelContainer) -> ContainerDefinition {
    let environment = of.environment.clone().into_iter().collect();
    let container = ContainerDefinition::builder()
        .image(&of.image)
        .set_environment(Some(environment));
    if !of.model_s3_uri.ends_with('/') {
        return container.model_data_url(&of.model_s3_uri).build();
    }
    let source = S3ModelDataSource::builder()
        .s3_uri(&of.model_s3_uri)
        .s3_data_type(S3ModelDataType::S3Prefix)
        .compression_type(ModelCompressionType::None)
        .build();
    container
        .model_data_source(ModelDataSource::builder().s3_data_source(source).build())
        .build()
}

/// As a job's: it is under way until it is being deleted, also when it has failed.
fn status(told: Option<&EndpointStatus>) -> JobStatus {
    match told {
        Some(EndpointStatus::Deleting) => JobStatus::Stopping,
        Some(_) => JobStatus::InProgress,
        None => JobStatus::Unknown(String::new()),
    }
}

fn observed(name: &str, output: &DescribeEndpointOutput) -> ObservedJob {
    let told = output.endpoint_status();
    let created_at = output.creation_time().and_then(moment);
    let variant = output.production_variants().first();
    let count = variant.and_then(ProductionVariantSummary::current_instance_count);
    ObservedJob {
        arn: output.endpoint_arn().unwrap_or("").to_owned(),
        secondary_status: told.map_or_else(String::new, |told| told.as_str().to_owned()),
        failure_reason: output.failure_reason().map(readable),
        created_at,
        modified_at: output.last_modified_time().and_then(moment),
        started_at: created_at,
        actual: Actual {
            instance_count: count.and_then(|count| u32::try_from(count).ok()),
            config_name: output.endpoint_config_name().map(str::to_owned),
            ..Actual::default()
        },
        ..ObservedJob::named(name, status(told))
    }
}

fn summary(entry: &EndpointSummary) -> Option<JobSummary> {
    let told = entry.endpoint_status();
    Some(JobSummary {
        kind: JobKind::Endpoint,
        job_name: entry.endpoint_name()?.to_owned(),
        status: status(told),
        secondary_status: told.map_or_else(String::new, |told| told.as_str().to_owned()),
        created_at: entry.creation_time().and_then(moment),
        modified_at: entry.last_modified_time().and_then(moment),
        warm_pool: None,
    })
}
