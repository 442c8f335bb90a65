//! Training jobs on aws-sdk-sagemaker.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::types::TrainingJobStatus;
use bakeoff_domain::job::{ObservedJob, TrainingJobRequest};
use bakeoff_domain::ports::{AwsError, TrainingJobs};

use crate::convert;
use crate::error::classify;

/// Pages of ListTrainingJobs that one listing may take.
const PAGES_MAX: usize = 200;
const PAGE_SIZE: i32 = 100;

/// SageMaker in one region.
#[derive(Debug, Clone)]
pub struct SageMaker {
    client: Client,
}

impl SageMaker {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self { client: Client::new(config) }
    }
}

#[async_trait]
impl TrainingJobs for SageMaker {
    async fn create(&self, request: &TrainingJobRequest) -> Result<(), AwsError> {
        let call = convert::fill(self.client.create_training_job(), request);
        call.send().await.map(drop).map_err(classify)
    }

    async fn describe(&self, job_name: &str) -> Result<ObservedJob, AwsError> {
        let output = self.client.describe_training_job().training_job_name(job_name).send().await.map_err(classify)?;
        Ok(convert::observed(job_name, &output))
    }

    async fn stop(&self, job_name: &str) -> Result<(), AwsError> {
        self.client.stop_training_job().training_job_name(job_name).send().await.map(drop).map_err(classify)
    }

    /// Pages are filtered by status after they are cut, so an empty page may have a successor.
    async fn list_in_progress(&self, fragment: &str) -> Result<Vec<String>, AwsError> {
        let mut names = Vec::new();
        let mut token = None;
        for _ in 0..PAGES_MAX {
            let page = self
                .client
                .list_training_jobs()
                .name_contains(fragment)
                .status_equals(TrainingJobStatus::InProgress)
                .max_results(PAGE_SIZE)
                .set_next_token(token)
                .send()
                .await
                .map_err(classify)?;
            let found = page.training_job_summaries().iter().filter_map(|summary| summary.training_job_name());
            names.extend(found.map(str::to_owned));
            token = page.next_token().map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        Ok(names)
    }
}
