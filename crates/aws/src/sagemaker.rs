//! Jobs of every kind on aws-sdk-sagemaker: each kind has its module.

use std::collections::BTreeMap;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::types::ResourceConfigForUpdate;
use bakeoff_domain::ports::{ClaimHolds, JobPage, Jobs, Page, PageRequest};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::ObservedJob;
use bakeoff_domain::sagemaker::tuning::TunedTrial;

use crate::error::classify;
use crate::{endpoints, processing, training, transform, tuning};

/// SageMaker in one region, with what its endpoints answer.
#[derive(Debug, Clone)]
pub struct SageMaker {
    pub(crate) client: Client,
    pub(crate) runtime: aws_sdk_sagemakerruntime::Client,
}

impl SageMaker {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
            runtime: aws_sdk_sagemakerruntime::Client::new(config),
        }
    }
}

#[async_trait]
impl Jobs for SageMaker {
    async fn create(&self, job: &Job, holds: ClaimHolds) -> Result<(), AwsError> {
        let client = &self.client;
        match job {
            Job::Training(request) => training::create(client, request).await,
            Job::Processing(request) => processing::create(client, request).await,
            Job::Tuning(request) => tuning::create(client, request).await,
            Job::Transform(request) => transform::create(client, request).await,
            Job::Endpoint(request) => endpoints::create(client, request, holds).await,
        }
    }

    async fn describe(&self, kind: JobKind, job_name: &str) -> Result<ObservedJob, AwsError> {
        let client = &self.client;
        match kind {
            JobKind::Training => training::describe(client, job_name).await,
            JobKind::Processing => processing::describe(client, job_name).await,
            JobKind::Tuning => tuning::describe(client, job_name).await,
            JobKind::Transform => transform::describe(client, job_name).await,
            JobKind::Endpoint => endpoints::describe(client, job_name).await,
        }
    }

    async fn stop(&self, kind: JobKind, job_name: &str) -> Result<(), AwsError> {
        let client = &self.client;
        match kind {
            JobKind::Training => training::stop(client, job_name).await,
            JobKind::Processing => processing::stop(client, job_name).await,
            JobKind::Tuning => tuning::stop(client, job_name).await,
            JobKind::Transform => transform::stop(client, job_name).await,
            JobKind::Endpoint => endpoints::delete(client, job_name).await,
        }
    }

    async fn list(&self, kind: JobKind, page: &PageRequest) -> Result<JobPage, AwsError> {
        let client = &self.client;
        match kind {
            JobKind::Training => training::list(client, page).await,
            JobKind::Processing => processing::list(client, page).await,
            JobKind::Tuning => tuning::list(client, page).await,
            JobKind::Transform => transform::list(client, page).await,
            JobKind::Endpoint => endpoints::list(client, page).await,
        }
    }

    async fn end_pool(&self, job_name: &str) -> Result<(), AwsError> {
        let none = ResourceConfigForUpdate::builder()
            .keep_alive_period_in_seconds(0)
            .build();
        let call = self
            .client
            .update_training_job()
            .training_job_name(job_name)
            .resource_config(none);
        call.send().await.map(drop).map_err(classify)
    }

    async fn tags(&self, arn: &str) -> Result<BTreeMap<String, String>, AwsError> {
        let output = self
            .client
            .list_tags()
            .resource_arn(arn)
            .send()
            .await
            .map_err(classify)?;
        let pairs = output
            .tags()
            .iter()
            .filter_map(|tag| Some((tag.key()?.to_owned(), tag.value()?.to_owned())));
        Ok(pairs.collect())
    }

    async fn trials(
        &self,
        job_name: &str,
        token: Option<String>,
    ) -> Result<Page<TunedTrial>, AwsError> {
        tuning::trials(&self.client, job_name, token).await
    }
}
