//! Training jobs on aws-sdk-sagemaker.

use std::collections::BTreeMap;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::types::{ResourceConfigForUpdate, SortBy, SortOrder};
use bakeoff_domain::ports::{JobPage, PageRequest, TrainingJobs};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::observed::ObservedJob;
use bakeoff_domain::sagemaker::request::TrainingJobRequest;

use crate::convert;
use crate::error::classify;

pub(crate) const PAGE_SIZE: i32 = 100;

/// SageMaker in one region.
#[derive(Debug, Clone)]
pub struct SageMaker {
    pub(crate) client: Client,
}

impl SageMaker {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

#[async_trait]
impl TrainingJobs for SageMaker {
    async fn create(&self, request: &TrainingJobRequest) -> Result<(), AwsError> {
        let call = convert::fill(self.client.create_training_job(), request);
        call.send().await.map(drop).map_err(classify)
    }

    async fn describe(&self, job_name: &str) -> Result<ObservedJob, AwsError> {
        let output = self
            .client
            .describe_training_job()
            .training_job_name(job_name)
            .send()
            .await
            .map_err(classify)?;
        Ok(convert::observed(job_name, &output))
    }

    async fn stop(&self, job_name: &str) -> Result<(), AwsError> {
        self.client
            .stop_training_job()
            .training_job_name(job_name)
            .send()
            .await
            .map(drop)
            .map_err(classify)
    }

    async fn list(&self, page: &PageRequest) -> Result<JobPage, AwsError> {
        let output = self
            .client
            .list_training_jobs()
            .name_contains(&page.fragment)
            .creation_time_after(convert::sdk_moment(page.created_after))
            .sort_by(SortBy::CreationTime)
            .sort_order(SortOrder::Descending)
            .max_results(PAGE_SIZE)
            .set_next_token(page.token.clone())
            .send()
            .await
            .map_err(classify)?;
        Ok(JobPage {
            jobs: output
                .training_job_summaries()
                .iter()
                .filter_map(convert::summary)
                .collect(),
            next: output.next_token().map(str::to_owned),
        })
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
}
