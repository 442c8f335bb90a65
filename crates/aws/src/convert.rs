//! Conversions between SDK types and domain types. A value that AWS adds later must not crash
//! anything: it is kept as text.

use std::collections::BTreeMap;

use aws_sdk_sagemaker::operation::create_training_job::builders::CreateTrainingJobFluentBuilder;
use aws_sdk_sagemaker::operation::describe_training_job::DescribeTrainingJobOutput;
use aws_sdk_sagemaker::types::{
    AlgorithmSpecification, Channel, CheckpointConfig, CollectionConfiguration, DataSource,
    DebugHookConfig, DebugRuleConfiguration, InfraCheckConfig, InstanceGroup, MetricData,
    MetricDefinition, OutputDataConfig, ProfilerConfig, ProfilerRuleConfiguration, ResourceConfig,
    RetryStrategy, RuleEvaluationStatus, S3DataDistribution, S3DataSource, S3DataType,
    SecondaryStatusTransition, StoppingCondition, Tag, TrainingInputMode, TrainingInstanceType,
    TrainingJobStatus, TrainingJobSummary, WarmPoolStatus as SdkWarmPool,
};
use aws_smithy_types::DateTime as SdkDateTime;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::{
    Actual, FinalMetric, JobStatus, JobSummary, ObservedJob, RuleEvaluation, Transition, WarmPool,
    WarmPoolStatus,
};
use bakeoff_domain::sagemaker::request::{self, MARKER, TrainingJobRequest};
use chrono::{DateTime, SubsecRound, Utc};

/// The longest page that SageMaker's listings have.
pub(crate) const PAGE_SIZE: i32 = 100;

/// An AWS timestamp, rounded to the millisecond, which is AWS's own precision: the SDK parses it
/// from fractional seconds, so `.376` becomes `.375999927`. Unrounded, the same timestamp from an
/// event would look later, and the listing would be treated as stale.
pub(crate) fn moment(at: &SdkDateTime) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(at.secs(), at.subsec_nanos()).map(|at| at.round_subsecs(3))
}

pub(crate) fn sdk_moment(at: DateTime<Utc>) -> SdkDateTime {
    SdkDateTime::from_secs_and_nanos(at.timestamp(), at.timestamp_subsec_nanos())
}

pub(crate) fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// None when there are none: the SDK sends an empty list as one.
pub(crate) fn tags(all: &BTreeMap<String, String>) -> Option<Vec<Tag>> {
    let each = all.iter();
    let tags = each.map(|(key, value)| Tag::builder().key(key).value(value).build());
    (!all.is_empty()).then(|| tags.collect())
}

/// The status of a job; unknown when SageMaker tells none.
pub(crate) fn status(told: Option<&str>) -> JobStatus {
    told.map_or(JobStatus::Unknown(String::new()), JobStatus::parse)
}

/// Fills a CreateTrainingJob call.
pub(crate) fn fill(
    call: CreateTrainingJobFluentBuilder,
    request: &TrainingJobRequest,
) -> CreateTrainingJobFluentBuilder {
    let mut algorithm = AlgorithmSpecification::builder()
        .training_image(&request.image)
        .training_input_mode(TrainingInputMode::File);
    for word in &request.container_entrypoint {
        algorithm = algorithm.container_entrypoint(word);
    }
    if request.metrics_time_series {
        algorithm = algorithm.enable_sage_maker_metrics_time_series(true);
    }
    for metric in &request.metrics {
        algorithm = algorithm.metric_definitions(
            MetricDefinition::builder()
                .name(&metric.name)
                .regex(&metric.regex)
                .build(),
        );
    }
    let is_mixed = !request.instance_groups.is_empty();
    let groups = request.instance_groups.iter().map(|group| {
        InstanceGroup::builder()
            .instance_group_name(&group.name)
            .instance_type(TrainingInstanceType::from(group.instance_type.as_str()))
            .instance_count(int(group.instance_count))
            .build()
    });
    let resources = ResourceConfig::builder()
        .set_instance_type(
            (!is_mixed).then(|| TrainingInstanceType::from(request.instance_type.as_str())),
        )
        .set_instance_count((!is_mixed).then(|| int(request.instance_count)))
        .set_instance_groups(is_mixed.then(|| groups.collect()))
        .volume_size_in_gb(int(request.volume_size_gb))
        .set_keep_alive_period_in_seconds(request.keep_alive_seconds.map(int))
        .build();
    let stopping = StoppingCondition::builder()
        .max_runtime_in_seconds(int(request.max_runtime_seconds))
        .set_max_wait_time_in_seconds(request.max_wait_seconds.map(int))
        .build();
    let mut call = call
        .training_job_name(&request.job_name)
        .role_arn(&request.role_arn)
        .algorithm_specification(algorithm.build())
        .output_data_config(
            OutputDataConfig::builder()
                .s3_output_path(&request.output_s3_uri)
                .build(),
        )
        .resource_config(resources)
        .stopping_condition(stopping)
        .set_enable_managed_spot_training(request.max_wait_seconds.map(|_| true));
    for channel in &request.channels {
        call = call.input_data_config(input(&channel.name, &channel.s3_uri));
    }
    for (key, value) in &request.hyperparameters {
        call = call.hyper_parameters(key, value);
    }
    for (key, value) in &request.environment {
        call = call.environment(key, value);
    }
    call = call.set_tags(tags(&request.tags));
    if let Some(checkpoint) = &request.checkpoint {
        let config = CheckpointConfig::builder()
            .s3_uri(&checkpoint.s3_uri)
            .local_path(&checkpoint.local_path);
        call = call.checkpoint_config(config.build());
    }
    observed_by(call, request)
}

/// Sets retries, health checks, profiler and debugger.
fn observed_by(
    mut call: CreateTrainingJobFluentBuilder,
    request: &TrainingJobRequest,
) -> CreateTrainingJobFluentBuilder {
    if let Some(attempts) = request.retry_attempts {
        call = call.retry_strategy(
            RetryStrategy::builder()
                .maximum_retry_attempts(int(attempts))
                .build(),
        );
    }
    if request.infra_check {
        call =
            call.infra_check_config(InfraCheckConfig::builder().enable_infra_check(true).build());
    }
    if let Some(profiler) = &request.profiler {
        let config = ProfilerConfig::builder()
            .s3_output_path(&request.output_s3_uri)
            .disable_profiler(false)
            .set_profiling_interval_in_milliseconds(profiler.interval_milliseconds.map(i64::from));
        call = call.profiler_config(config.build());
        for rule in &profiler.rules {
            let configuration = ProfilerRuleConfiguration::builder()
                .rule_configuration_name(&rule.name)
                .rule_evaluator_image(&rule.image)
                .set_rule_parameters(Some(rule.parameters.clone().into_iter().collect()));
            call = call.profiler_rule_configurations(configuration.build());
        }
    }
    if let Some(debugger) = &request.debugger {
        let collections = debugger.collections.iter().map(|(name, parameters)| {
            let parameters =
                (!parameters.is_empty()).then(|| parameters.clone().into_iter().collect());
            CollectionConfiguration::builder()
                .collection_name(name)
                .set_collection_parameters(parameters)
                .build()
        });
        let hook = DebugHookConfig::builder()
            .s3_output_path(&request.output_s3_uri)
            .set_collection_configurations(Some(collections.collect()));
        call = call.set_debug_hook_config((!debugger.is_hook_off).then(|| hook.build()));
        for rule in &debugger.rules {
            let configuration = DebugRuleConfiguration::builder()
                .rule_configuration_name(&rule.name)
                .rule_evaluator_image(&rule.image)
                .set_rule_parameters(Some(rule.parameters.clone().into_iter().collect()));
            call = call.debug_rule_configurations(configuration.build());
        }
    }
    call
}

pub(crate) fn input(name: &str, s3_uri: &str) -> Channel {
    let source = S3DataSource::builder()
        .s3_data_type(S3DataType::S3Prefix)
        .s3_uri(s3_uri)
        .s3_data_distribution_type(S3DataDistribution::FullyReplicated)
        .build();
    Channel::builder()
        .channel_name(name)
        .data_source(DataSource::builder().s3_data_source(source).build())
        .build()
}

fn seconds(value: Option<i32>) -> Option<u64> {
    value.and_then(|seconds| u64::try_from(seconds).ok())
}

/// Converts the output of DescribeTrainingJob.
pub(crate) fn observed(job_name: &str, output: &DescribeTrainingJobOutput) -> ObservedJob {
    let status = output.training_job_status();
    let status = status.map_or("", |status| status.as_str());
    ObservedJob {
        arn: output.training_job_arn().unwrap_or("").to_owned(),
        marker: output
            .environment()
            .and_then(|environment| Some(request::marker(environment.get(MARKER)?))),
        secondary_status: output
            .secondary_status()
            .map_or_else(String::new, |status| status.as_str().to_owned()),
        failure_reason: output.failure_reason().map(readable),
        created_at: output.creation_time().and_then(moment),
        modified_at: output.last_modified_time().and_then(moment),
        started_at: output.training_start_time().and_then(moment),
        ended_at: output.training_end_time().and_then(moment),
        training_seconds: seconds(output.training_time_in_seconds()),
        billable_seconds: seconds(output.billable_time_in_seconds()),
        transitions: output
            .secondary_status_transitions()
            .iter()
            .filter_map(transition)
            .collect(),
        warm_pool: output.warm_pool_status().map(warm_pool),
        final_metrics: output
            .final_metric_data_list()
            .iter()
            .filter_map(final_metric)
            .collect(),
        actual: actual(output),
        model_s3_uri: output
            .model_artifacts()
            .and_then(|artifacts| artifacts.s3_model_artifacts())
            // The SDK fills in a required field that is absent.
            .filter(|uri| !uri.is_empty())
            .map(str::to_owned),
        rules: rules(output),
        ..ObservedJob::named(job_name, JobStatus::parse(status))
    }
}

fn rules(output: &DescribeTrainingJobOutput) -> Vec<RuleEvaluation> {
    let debugger = output.debug_rule_evaluation_statuses().iter().map(|rule| {
        rule_of(
            rule.rule_configuration_name(),
            rule.rule_evaluation_status(),
            rule.status_details(),
            rule.last_modified_time(),
        )
    });
    let profiler = output
        .profiler_rule_evaluation_statuses()
        .iter()
        .map(|rule| {
            rule_of(
                rule.rule_configuration_name(),
                rule.rule_evaluation_status(),
                rule.status_details(),
                rule.last_modified_time(),
            )
        });
    debugger.chain(profiler).collect()
}

fn rule_of(
    name: Option<&str>,
    status: Option<&RuleEvaluationStatus>,
    details: Option<&str>,
    modified_at: Option<&SdkDateTime>,
) -> RuleEvaluation {
    RuleEvaluation {
        name: readable(name.unwrap_or("")),
        status: status.map_or_else(String::new, |status| status.as_str().to_owned()),
        details: readable(details.unwrap_or("")),
        modified_at: modified_at.and_then(moment),
    }
}

/// A text that scripts wrote, without NUL characters, which Postgres cannot store.
pub(crate) fn readable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn transition(entry: &SecondaryStatusTransition) -> Option<Transition> {
    Some(Transition {
        status: entry.status()?.as_str().to_owned(),
        started_at: entry.start_time().and_then(moment)?,
        ended_at: entry.end_time().and_then(moment),
        message: entry.status_message().unwrap_or("").to_owned(),
    })
}

fn warm_pool(told: &SdkWarmPool) -> WarmPool {
    WarmPool {
        status: WarmPoolStatus::parse(told.status().map_or("", |status| status.as_str())),
        retained_seconds: seconds(told.resource_retained_billable_time_in_seconds()),
        reused_by: told.reused_by_job().map(str::to_owned),
    }
}

fn final_metric(data: &MetricData) -> Option<FinalMetric> {
    let value = f64::from(data.value()?);
    Some(FinalMetric {
        name: data.metric_name()?.to_owned(),
        at: data.timestamp().and_then(moment)?,
        value,
    })
}

fn actual(output: &DescribeTrainingJobOutput) -> Actual {
    let resources = output.resource_config();
    let positive = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
    let definitions = output
        .algorithm_specification()
        .map(aws_sdk_sagemaker::types::AlgorithmSpecification::metric_definitions);
    Actual {
        instance_type: resources
            .and_then(|config| config.instance_type())
            .map(|kind| kind.as_str().to_owned()),
        instance_count: positive(
            resources.and_then(aws_sdk_sagemaker::types::ResourceConfig::instance_count),
        ),
        spot: output.enable_managed_spot_training(),
        keep_alive_seconds: positive(
            resources
                .and_then(aws_sdk_sagemaker::types::ResourceConfig::keep_alive_period_in_seconds),
        ),
        checkpoint_s3_uri: output
            .checkpoint_config()
            .and_then(|config| config.s3_uri())
            .map(str::to_owned),
        metric_names: definitions
            .unwrap_or_default()
            .iter()
            .filter_map(|definition| definition.name().map(str::to_owned))
            .collect(),
        config_name: None,
    }
}

/// Converts one entry of ListTrainingJobs.
pub(crate) fn summary(entry: &TrainingJobSummary) -> Option<JobSummary> {
    Some(JobSummary {
        kind: JobKind::Training,
        job_name: entry.training_job_name()?.to_owned(),
        status: status(entry.training_job_status().map(TrainingJobStatus::as_str)),
        secondary_status: entry
            .secondary_status()
            .map_or_else(String::new, |status| status.as_str().to_owned()),
        created_at: entry.creation_time().and_then(moment),
        modified_at: entry.last_modified_time().and_then(moment),
        warm_pool: entry.warm_pool_status().map(warm_pool),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_a_reply_is_that_of_an_event() {
        for millis in (1_795_054_835_000..1_795_054_836_000).chain([1_795_054_835_999]) {
            let told = DateTime::from_timestamp_millis(millis);
            let seconds = format!("{}.{:03}", millis / 1000, millis % 1000);
            let read = SdkDateTime::from_secs_f64(seconds.parse().expect("a number"));
            assert_eq!(moment(&read), told, "{seconds}");
        }
    }
}
