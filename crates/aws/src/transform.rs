//! Batch transform jobs on aws-sdk-sagemaker. Their status stands for the phase, and an ended job is billed from
//! its start to its end.

use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::operation::create_transform_job::builders::CreateTransformJobFluentBuilder;
use aws_sdk_sagemaker::operation::describe_transform_job::DescribeTransformJobOutput;
use aws_sdk_sagemaker::types::{
    AssemblyType, BatchStrategy, DataProcessing, JoinSource, S3DataType, SortBy, SortOrder,
    SplitType, TransformDataSource, TransformInput, TransformInstanceType, TransformJobStatus,
    TransformJobSummary, TransformOutput, TransformResources, TransformS3DataSource,
};
use bakeoff_domain::ports::{JobPage, PageRequest};
use bakeoff_domain::sagemaker::endpoint::TransformJobRequest;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::{Actual, JobSummary, ObservedJob, seconds_between};
use bakeoff_domain::sagemaker::request::{self, MARKER};

use crate::convert::{PAGE_SIZE, int, moment, readable, sdk_moment, status, tags};
use crate::error::classify;

pub(crate) async fn create(client: &Client, request: &TransformJobRequest) -> Result<(), AwsError> {
    let call = fill(client.create_transform_job(), request);
    call.send().await.map(drop).map_err(classify)
}

pub(crate) async fn describe(client: &Client, job_name: &str) -> Result<ObservedJob, AwsError> {
    let call = client.describe_transform_job();
    let output = call.transform_job_name(job_name).send().await;
    Ok(observed(job_name, &output.map_err(classify)?))
}

pub(crate) async fn stop(client: &Client, job_name: &str) -> Result<(), AwsError> {
    let call = client.stop_transform_job();
    let output = call.transform_job_name(job_name).send().await;
    output.map(drop).map_err(classify)
}

pub(crate) async fn list(client: &Client, page: &PageRequest) -> Result<JobPage, AwsError> {
    let call = client
        .list_transform_jobs()
        .name_contains(&page.fragment)
        .creation_time_after(sdk_moment(page.created_after))
        .sort_by(SortBy::CreationTime)
        .sort_order(SortOrder::Descending)
        .max_results(PAGE_SIZE)
        .set_next_token(page.token.clone());
    let output = call.send().await.map_err(classify)?;
    Ok(JobPage {
        jobs: output
            .transform_job_summaries()
            .iter()
            .filter_map(summary)
            .collect(),
        next: output.next_token().map(str::to_owned),
    })
}

fn source(request: &TransformJobRequest) -> TransformInput {
    let from = TransformS3DataSource::builder()
        .s3_data_type(S3DataType::S3Prefix)
        .s3_uri(&request.input_s3_uri)
        .build();
    TransformInput::builder()
        .data_source(TransformDataSource::builder().s3_data_source(from).build())
        .set_content_type(request.content_type.clone())
        .set_split_type(request.split.map(|split| SplitType::from(split.as_str())))
        .build()
}

fn output(request: &TransformJobRequest) -> TransformOutput {
    TransformOutput::builder()
        .s3_output_path(&request.output_s3_uri)
        .set_accept(request.accept.clone())
        .set_assemble_with(
            request
                .split
                .map(|split| AssemblyType::from(split.as_str())),
        )
        .build()
}

fn processing(request: &TransformJobRequest) -> Option<DataProcessing> {
    let is_wanted =
        request.input_filter.is_some() || request.output_filter.is_some() || request.joins_input;
    is_wanted.then(|| {
        DataProcessing::builder()
            .set_input_filter(request.input_filter.clone())
            .set_output_filter(request.output_filter.clone())
            .set_join_source(request.joins_input.then_some(JoinSource::Input))
            .build()
    })
}

/// Fills a CreateTransformJob call; its model has its name.
fn fill(
    call: CreateTransformJobFluentBuilder,
    request: &TransformJobRequest,
) -> CreateTransformJobFluentBuilder {
    let resources = TransformResources::builder()
        .instance_type(TransformInstanceType::from(request.instance_type.as_str()))
        .instance_count(int(request.instance_count))
        .build();
    let strategy = request
        .is_multi_record
        .then_some(BatchStrategy::MultiRecord);
    let mut call = call
        .transform_job_name(&request.job_name)
        .model_name(&request.job_name)
        .transform_input(source(request))
        .transform_output(output(request))
        .transform_resources(resources)
        .set_data_processing(processing(request))
        .set_batch_strategy(strategy)
        .set_max_concurrent_transforms(request.max_concurrent.map(int))
        .set_max_payload_in_mb(request.max_payload_mb.map(int));
    for (key, value) in &request.environment {
        call = call.environment(key, value);
    }
    call.set_tags(tags(&request.tags))
}

fn observed(job_name: &str, output: &DescribeTransformJobOutput) -> ObservedJob {
    let status = status(
        output
            .transform_job_status()
            .map(TransformJobStatus::as_str),
    );
    let started_at = output.transform_start_time().and_then(moment);
    let ended_at = output.transform_end_time().and_then(moment);
    let ran = started_at
        .zip(ended_at)
        .map(|(start, end)| seconds_between(start, end));
    let resources = output.transform_resources();
    let count = resources.and_then(TransformResources::instance_count);
    ObservedJob {
        arn: output.transform_job_arn().unwrap_or("").to_owned(),
        marker: output
            .environment()
            .and_then(|environment| Some(request::marker(environment.get(MARKER)?))),
        failure_reason: output.failure_reason().map(readable),
        created_at: output.creation_time().and_then(moment),
        started_at,
        ended_at,
        training_seconds: ran,
        billable_seconds: ran,
        actual: Actual {
            instance_type: resources
                .and_then(TransformResources::instance_type)
                .map(|kind| kind.as_str().to_owned()),
            instance_count: count.and_then(|count| u32::try_from(count).ok()),
            ..Actual::default()
        },
        ..ObservedJob::named(job_name, status)
    }
}

fn summary(entry: &TransformJobSummary) -> Option<JobSummary> {
    let status = status(entry.transform_job_status().map(TransformJobStatus::as_str));
    Some(JobSummary {
        kind: JobKind::Transform,
        job_name: entry.transform_job_name()?.to_owned(),
        secondary_status: status.as_str().to_owned(),
        status,
        created_at: entry.creation_time().and_then(moment),
        modified_at: entry.last_modified_time().and_then(moment),
        warm_pool: None,
    })
}
