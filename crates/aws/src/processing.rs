//! Processing jobs on aws-sdk-sagemaker. SageMaker reports neither phases nor billed seconds of them: the
//! status stands for the phase, and an ended job is billed from its start to its end.

use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::operation::create_processing_job::builders::CreateProcessingJobFluentBuilder;
use aws_sdk_sagemaker::operation::describe_processing_job::DescribeProcessingJobOutput;
use aws_sdk_sagemaker::types::{
    AppSpecification, ProcessingClusterConfig, ProcessingInput, ProcessingInstanceType,
    ProcessingJobStatus, ProcessingJobSummary, ProcessingOutput, ProcessingOutputConfig,
    ProcessingResources, ProcessingS3CompressionType, ProcessingS3DataDistributionType,
    ProcessingS3DataType, ProcessingS3Input, ProcessingS3InputMode, ProcessingS3Output,
    ProcessingS3UploadMode, ProcessingStoppingCondition, SortBy, SortOrder,
};
use bakeoff_domain::ports::{JobPage, PageRequest};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::{Actual, JobSummary, ObservedJob, seconds_between};
use bakeoff_domain::sagemaker::processing::{self, ProcessingJobRequest};
use bakeoff_domain::sagemaker::request::{self, MARKER};

use crate::convert::{PAGE_SIZE, int, moment, readable, sdk_moment, status, tags};
use crate::error::classify;

pub(crate) async fn create(
    client: &Client,
    request: &ProcessingJobRequest,
) -> Result<(), AwsError> {
    let call = fill(client.create_processing_job(), request);
    call.send().await.map(drop).map_err(classify)
}

pub(crate) async fn describe(client: &Client, job_name: &str) -> Result<ObservedJob, AwsError> {
    let call = client
        .describe_processing_job()
        .processing_job_name(job_name);
    let output = call.send().await.map_err(classify)?;
    Ok(observed(job_name, &output))
}

pub(crate) async fn stop(client: &Client, job_name: &str) -> Result<(), AwsError> {
    let call = client.stop_processing_job().processing_job_name(job_name);
    call.send().await.map(drop).map_err(classify)
}

pub(crate) async fn list(client: &Client, page: &PageRequest) -> Result<JobPage, AwsError> {
    let call = client
        .list_processing_jobs()
        .name_contains(&page.fragment)
        .creation_time_after(sdk_moment(page.created_after))
        .sort_by(SortBy::CreationTime)
        .sort_order(SortOrder::Descending)
        .max_results(PAGE_SIZE)
        .set_next_token(page.token.clone());
    let output = call.send().await.map_err(classify)?;
    Ok(JobPage {
        jobs: output
            .processing_job_summaries()
            .iter()
            .filter_map(summary)
            .collect(),
        next: output.next_token().map(str::to_owned),
    })
}

fn input(input: &processing::ProcessingInput) -> ProcessingInput {
    let from = ProcessingS3Input::builder()
        .s3_uri(&input.s3_uri)
        .local_path(&input.local_path)
        .s3_data_type(ProcessingS3DataType::S3Prefix)
        .s3_input_mode(ProcessingS3InputMode::File)
        .s3_data_distribution_type(if input.is_sharded {
            ProcessingS3DataDistributionType::Shardedbys3Key
        } else {
            ProcessingS3DataDistributionType::Fullyreplicated
        })
        .s3_compression_type(ProcessingS3CompressionType::None);
    ProcessingInput::builder()
        .input_name(&input.name)
        .app_managed(false)
        .s3_input(from.build())
        .build()
}

fn output(output: &processing::ProcessingOutput) -> ProcessingOutput {
    let to = ProcessingS3Output::builder()
        .s3_uri(&output.s3_uri)
        .local_path(&output.local_path)
        .s3_upload_mode(if output.is_continuous {
            ProcessingS3UploadMode::Continuous
        } else {
            ProcessingS3UploadMode::EndOfJob
        });
    ProcessingOutput::builder()
        .output_name(&output.name)
        .app_managed(false)
        .s3_output(to.build())
        .build()
}

fn resources(request: &ProcessingJobRequest) -> ProcessingResources {
    let cluster = ProcessingClusterConfig::builder()
        .instance_type(ProcessingInstanceType::from(request.instance_type.as_str()))
        .instance_count(int(request.instance_count))
        .volume_size_in_gb(int(request.volume_size_gb))
        .build();
    ProcessingResources::builder()
        .cluster_config(cluster)
        .build()
}

/// Fills a CreateProcessingJob call.
fn fill(
    call: CreateProcessingJobFluentBuilder,
    request: &ProcessingJobRequest,
) -> CreateProcessingJobFluentBuilder {
    let words = |words: &[String]| (!words.is_empty()).then(|| words.to_vec());
    let application = AppSpecification::builder()
        .image_uri(&request.image)
        .set_container_entrypoint(words(&request.entrypoint))
        .set_container_arguments(words(&request.arguments))
        .build();
    let stopping = ProcessingStoppingCondition::builder()
        .max_runtime_in_seconds(int(request.max_runtime_seconds))
        .build();
    let outputs = ProcessingOutputConfig::builder()
        .set_outputs(Some(request.outputs.iter().map(output).collect()))
        .build();
    let mut call = call
        .processing_job_name(&request.job_name)
        .role_arn(&request.role_arn)
        .app_specification(application)
        .processing_resources(resources(request))
        .stopping_condition(stopping)
        .set_processing_output_config((!request.outputs.is_empty()).then_some(outputs));
    for one in &request.inputs {
        call = call.processing_inputs(input(one));
    }
    for (key, value) in &request.environment {
        call = call.environment(key, value);
    }
    call.set_tags(tags(&request.tags))
}

/// Converts the output of DescribeProcessingJob.
fn observed(job_name: &str, output: &DescribeProcessingJobOutput) -> ObservedJob {
    let status = status(
        output
            .processing_job_status()
            .map(ProcessingJobStatus::as_str),
    );
    let started_at = output.processing_start_time().and_then(moment);
    let ended_at = output.processing_end_time().and_then(moment);
    let ran = started_at
        .zip(ended_at)
        .map(|(start, end)| seconds_between(start, end));
    let cluster = output
        .processing_resources()
        .and_then(|resources| resources.cluster_config());
    let count = cluster.and_then(ProcessingClusterConfig::instance_count);
    ObservedJob {
        arn: output.processing_job_arn().unwrap_or("").to_owned(),
        marker: output
            .environment()
            .and_then(|environment| Some(request::marker(environment.get(MARKER)?))),
        failure_reason: output.failure_reason().map(readable),
        created_at: output.creation_time().and_then(moment),
        modified_at: output.last_modified_time().and_then(moment),
        started_at,
        ended_at,
        training_seconds: ran,
        billable_seconds: ran,
        actual: Actual {
            instance_type: cluster
                .and_then(|cluster| cluster.instance_type())
                .map(|kind| kind.as_str().to_owned()),
            instance_count: count.and_then(|count| u32::try_from(count).ok()),
            ..Actual::default()
        },
        exit_message: output.exit_message().map(readable),
        ..ObservedJob::named(job_name, status)
    }
}

/// Converts one entry of ListProcessingJobs.
fn summary(entry: &ProcessingJobSummary) -> Option<JobSummary> {
    let status = status(
        entry
            .processing_job_status()
            .map(ProcessingJobStatus::as_str),
    );
    Some(JobSummary {
        kind: JobKind::Processing,
        job_name: entry.processing_job_name()?.to_owned(),
        secondary_status: status.as_str().to_owned(),
        status,
        created_at: entry.creation_time().and_then(moment),
        modified_at: entry.last_modified_time().and_then(moment),
        warm_pool: None,
    })
}
