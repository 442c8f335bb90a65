//! Training jobs on aws-sdk-sagemaker.

use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::types::{SortBy, SortOrder};
use bakeoff_domain::ports::{JobPage, PageRequest};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::observed::ObservedJob;
use bakeoff_domain::sagemaker::request::TrainingJobRequest;

use crate::convert::{self, PAGE_SIZE};
use crate::error::classify;

pub(crate) async fn create(client: &Client, request: &TrainingJobRequest) -> Result<(), AwsError> {
    let call = convert::fill(client.create_training_job(), request);
    call.send().await.map(drop).map_err(classify)
}

pub(crate) async fn describe(client: &Client, job_name: &str) -> Result<ObservedJob, AwsError> {
    let output = client
        .describe_training_job()
        .training_job_name(job_name)
        .send()
        .await
        .map_err(classify)?;
    Ok(convert::observed(job_name, &output))
}

pub(crate) async fn stop(client: &Client, job_name: &str) -> Result<(), AwsError> {
    client
        .stop_training_job()
        .training_job_name(job_name)
        .send()
        .await
        .map(drop)
        .map_err(classify)
}

pub(crate) async fn list(client: &Client, page: &PageRequest) -> Result<JobPage, AwsError> {
    let output = client
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
