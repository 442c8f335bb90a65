//! Hyperparameter tuning jobs on aws-sdk-sagemaker. SageMaker reports the time of each trial and not that of the
//! whole: what a tuning job is billed is the sum over its trials, which are listed apart.

use aws_sdk_sagemaker::Client;
use aws_sdk_sagemaker::operation::create_hyper_parameter_tuning_job::builders::CreateHyperParameterTuningJobFluentBuilder;
use aws_sdk_sagemaker::operation::describe_hyper_parameter_tuning_job::DescribeHyperParameterTuningJobOutput;
use aws_sdk_sagemaker::types::{
    BestObjectiveNotImproving, CategoricalParameterRange, CheckpointConfig, CompleteOnConvergence,
    ContinuousParameterRange, ConvergenceDetected, FinalHyperParameterTuningJobObjectiveMetric,
    HyperParameterAlgorithmSpecification, HyperParameterScalingType,
    HyperParameterTrainingJobDefinition, HyperParameterTrainingJobSummary,
    HyperParameterTuningJobConfig, HyperParameterTuningJobObjective,
    HyperParameterTuningJobObjectiveType, HyperParameterTuningJobSortByOptions,
    HyperParameterTuningJobStatus, HyperParameterTuningJobStrategyConfig,
    HyperParameterTuningJobStrategyType, HyperParameterTuningJobSummary,
    HyperParameterTuningJobWarmStartConfig, HyperParameterTuningJobWarmStartType,
    HyperParameterTuningResourceConfig, HyperbandStrategyConfig, IntegerParameterRange,
    MetricDefinition, OutputDataConfig, ParameterRanges, ParentHyperParameterTuningJob,
    ResourceLimits, RetryStrategy, SortOrder, StoppingCondition, TrainingInputMode,
    TrainingInstanceType, TrainingJobEarlyStoppingType, TrainingJobSortByOptions,
    TuningJobCompletionCriteria,
};
use bakeoff_domain::ports::{JobPage, Page, PageRequest};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::{Actual, JobSummary, ObservedJob, seconds_between};
use bakeoff_domain::sagemaker::request::{self, MARKER, TrainingJobRequest};
use bakeoff_domain::sagemaker::tuning::{
    Goal, NumberRange, Ranges, Scaling, Strategy, TunedTrial, TuningJobRequest, WarmStart,
};

use crate::convert::{PAGE_SIZE, input, int, moment, readable, sdk_moment, status, tags};
use crate::error::classify;

pub(crate) async fn create(client: &Client, request: &TuningJobRequest) -> Result<(), AwsError> {
    let call = fill(client.create_hyper_parameter_tuning_job(), request);
    call.send().await.map(drop).map_err(classify)
}

pub(crate) async fn describe(client: &Client, job_name: &str) -> Result<ObservedJob, AwsError> {
    let call = client
        .describe_hyper_parameter_tuning_job()
        .hyper_parameter_tuning_job_name(job_name);
    let output = call.send().await.map_err(classify)?;
    Ok(observed(job_name, &output))
}

pub(crate) async fn stop(client: &Client, job_name: &str) -> Result<(), AwsError> {
    let call = client
        .stop_hyper_parameter_tuning_job()
        .hyper_parameter_tuning_job_name(job_name);
    call.send().await.map(drop).map_err(classify)
}

pub(crate) async fn list(client: &Client, page: &PageRequest) -> Result<JobPage, AwsError> {
    let call = client
        .list_hyper_parameter_tuning_jobs()
        .name_contains(&page.fragment)
        .creation_time_after(sdk_moment(page.created_after))
        .sort_by(HyperParameterTuningJobSortByOptions::CreationTime)
        .sort_order(SortOrder::Descending)
        .max_results(PAGE_SIZE)
        .set_next_token(page.token.clone());
    let output = call.send().await.map_err(classify)?;
    Ok(JobPage {
        jobs: output
            .hyper_parameter_tuning_job_summaries()
            .iter()
            .filter_map(summary)
            .collect(),
        next: output.next_token().map(str::to_owned),
    })
}

pub(crate) async fn trials(
    client: &Client,
    job_name: &str,
    token: Option<String>,
) -> Result<Page<TunedTrial>, AwsError> {
    // Sorted by the objective, those without one would be missing.
    let call = client
        .list_training_jobs_for_hyper_parameter_tuning_job()
        .hyper_parameter_tuning_job_name(job_name)
        .sort_by(TrainingJobSortByOptions::CreationTime)
        .sort_order(SortOrder::Ascending)
        .max_results(PAGE_SIZE)
        .set_next_token(token);
    let output = call.send().await.map_err(classify)?;
    Ok(Page {
        items: output
            .training_job_summaries()
            .iter()
            .filter_map(trial)
            .collect(),
        next: output.next_token().map(str::to_owned),
    })
}

fn strategy(strategy: Strategy) -> HyperParameterTuningJobStrategyType {
    match strategy {
        Strategy::Bayesian => HyperParameterTuningJobStrategyType::Bayesian,
        Strategy::Random => HyperParameterTuningJobStrategyType::Random,
        Strategy::Grid => HyperParameterTuningJobStrategyType::Grid,
        Strategy::Hyperband => HyperParameterTuningJobStrategyType::Hyperband,
    }
}

fn scaling(scaling: Scaling) -> HyperParameterScalingType {
    match scaling {
        Scaling::Auto => HyperParameterScalingType::Auto,
        Scaling::Linear => HyperParameterScalingType::Linear,
        Scaling::Logarithmic => HyperParameterScalingType::Logarithmic,
        Scaling::ReverseLogarithmic => HyperParameterScalingType::ReverseLogarithmic,
    }
}

fn ranges(ranges: &Ranges) -> ParameterRanges {
    let continuous = |one: &NumberRange| {
        ContinuousParameterRange::builder()
            .name(&one.name)
            .min_value(&one.min)
            .max_value(&one.max)
            .scaling_type(scaling(one.scaling))
            .build()
    };
    let integer = |one: &NumberRange| {
        IntegerParameterRange::builder()
            .name(&one.name)
            .min_value(&one.min)
            .max_value(&one.max)
            .scaling_type(scaling(one.scaling))
            .build()
    };
    let categorical = ranges.categorical.iter().map(|one| {
        CategoricalParameterRange::builder()
            .name(&one.name)
            .set_values(Some(one.values.clone()))
            .build()
    });
    ParameterRanges::builder()
        .set_continuous_parameter_ranges(Some(ranges.continuous.iter().map(continuous).collect()))
        .set_integer_parameter_ranges(Some(ranges.integer.iter().map(integer).collect()))
        .set_categorical_parameter_ranges(Some(categorical.collect()))
        .build()
}

fn completion(request: &TuningJobRequest) -> Option<TuningJobCompletionCriteria> {
    let wanted = &request.completion;
    let is_wanted =
        wanted.target.is_some() || wanted.not_improving.is_some() || wanted.on_convergence;
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        reason = "the API takes 32 bits"
    )]
    let target = wanted.target.map(|target| target as f32);
    let not_improving = wanted.not_improving.map(|count| {
        BestObjectiveNotImproving::builder()
            .max_number_of_training_jobs_not_improving(int(count))
            .build()
    });
    let convergence = wanted.on_convergence.then(|| {
        ConvergenceDetected::builder()
            .complete_on_convergence(CompleteOnConvergence::Enabled)
            .build()
    });
    is_wanted.then(|| {
        TuningJobCompletionCriteria::builder()
            .set_target_objective_metric_value(target)
            .set_best_objective_not_improving(not_improving)
            .set_convergence_detected(convergence)
            .build()
    })
}

fn config(request: &TuningJobRequest) -> HyperParameterTuningJobConfig {
    let goal = match request.goal {
        Goal::Minimize => HyperParameterTuningJobObjectiveType::Minimize,
        Goal::Maximize => HyperParameterTuningJobObjectiveType::Maximize,
    };
    let objective = HyperParameterTuningJobObjective::builder()
        .metric_name(&request.objective)
        .r#type(goal)
        .build();
    // A grid has as many trials as it has combinations, and refuses another number.
    let trials = (request.strategy != Strategy::Grid).then(|| int(request.trials_max));
    let limits = ResourceLimits::builder()
        .set_max_number_of_training_jobs(trials)
        .max_parallel_training_jobs(int(request.parallel_max))
        .set_max_runtime_in_seconds(request.runtime_max_seconds.map(int))
        .build();
    let hyperband = request.resources.map(|resources| {
        let config = HyperbandStrategyConfig::builder()
            .min_resource(int(resources.min))
            .max_resource(int(resources.max))
            .build();
        HyperParameterTuningJobStrategyConfig::builder()
            .hyperband_strategy_config(config)
            .build()
    });
    HyperParameterTuningJobConfig::builder()
        .strategy(strategy(request.strategy))
        .set_strategy_config(hyperband)
        .hyper_parameter_tuning_job_objective(objective)
        .resource_limits(limits)
        .parameter_ranges(ranges(&request.ranges))
        .training_job_early_stopping_type(if request.stops_early {
            TrainingJobEarlyStoppingType::Auto
        } else {
            TrainingJobEarlyStoppingType::Off
        })
        .set_tuning_job_completion_criteria(completion(request))
        .set_random_seed(request.random_seed.map(int))
        .build()
}

fn algorithm(training: &TrainingJobRequest) -> HyperParameterAlgorithmSpecification {
    let metrics = training.metrics.iter().map(|metric| {
        MetricDefinition::builder()
            .name(&metric.name)
            .regex(&metric.regex)
            .build()
    });
    HyperParameterAlgorithmSpecification::builder()
        .training_image(&training.image)
        .training_input_mode(TrainingInputMode::File)
        .set_metric_definitions(Some(metrics.collect()))
        .build()
}

fn resources(training: &TrainingJobRequest) -> HyperParameterTuningResourceConfig {
    HyperParameterTuningResourceConfig::builder()
        .instance_type(TrainingInstanceType::from(training.instance_type.as_str()))
        .instance_count(int(training.instance_count))
        .volume_size_in_gb(int(training.volume_size_gb))
        .build()
}

fn definition(training: &TrainingJobRequest) -> HyperParameterTrainingJobDefinition {
    let stopping = StoppingCondition::builder()
        .max_runtime_in_seconds(int(training.max_runtime_seconds))
        .set_max_wait_time_in_seconds(training.max_wait_seconds.map(int))
        .build();
    let output = OutputDataConfig::builder()
        .s3_output_path(&training.output_s3_uri)
        .build();
    let channels = training.channels.iter();
    let channels = channels.map(|channel| input(&channel.name, &channel.s3_uri));
    let checkpoint = training
        .checkpoint
        .as_ref()
        .map(|to| CheckpointConfig::builder().s3_uri(&to.s3_uri).build());
    let retries = training.retry_attempts.map(|attempts| {
        RetryStrategy::builder()
            .maximum_retry_attempts(int(attempts))
            .build()
    });
    let environment = training.environment.clone().into_iter().collect();
    HyperParameterTrainingJobDefinition::builder()
        .set_static_hyper_parameters(Some(training.hyperparameters.clone().into_iter().collect()))
        .algorithm_specification(algorithm(training))
        .role_arn(&training.role_arn)
        .set_input_data_config(Some(channels.collect()))
        .output_data_config(output)
        .hyper_parameter_tuning_resource_config(resources(training))
        .stopping_condition(stopping)
        .set_enable_managed_spot_training(training.max_wait_seconds.map(|_| true))
        .set_checkpoint_config(checkpoint)
        .set_retry_strategy(retries)
        .set_environment((!training.environment.is_empty()).then_some(environment))
        .build()
}

/// Fills a CreateHyperParameterTuningJob call.
fn fill(
    call: CreateHyperParameterTuningJobFluentBuilder,
    request: &TuningJobRequest,
) -> CreateHyperParameterTuningJobFluentBuilder {
    let warm = request.warm_start.as_ref().map(|warm| {
        let parents = warm.names.iter().map(|name| {
            ParentHyperParameterTuningJob::builder()
                .hyper_parameter_tuning_job_name(name)
                .build()
        });
        let kind = match warm.kind {
            WarmStart::Identical => HyperParameterTuningJobWarmStartType::IdenticalDataAndAlgorithm,
            WarmStart::TransferLearning => HyperParameterTuningJobWarmStartType::TransferLearning,
        };
        HyperParameterTuningJobWarmStartConfig::builder()
            .set_parent_hyper_parameter_tuning_jobs(Some(parents.collect()))
            .warm_start_type(kind)
            .build()
    });
    let call = call
        .hyper_parameter_tuning_job_name(&request.job_name)
        .hyper_parameter_tuning_job_config(config(request))
        .training_job_definition(definition(&request.training))
        .set_warm_start_config(warm);
    call.set_tags(tags(&request.training.tags))
}

fn observed(job_name: &str, output: &DescribeHyperParameterTuningJobOutput) -> ObservedJob {
    let status = status(
        output
            .hyper_parameter_tuning_job_status()
            .map(HyperParameterTuningJobStatus::as_str),
    );
    let definition = output.training_job_definition();
    let environment = definition.and_then(HyperParameterTrainingJobDefinition::environment);
    let resources = definition
        .and_then(HyperParameterTrainingJobDefinition::hyper_parameter_tuning_resource_config);
    let count = resources.and_then(HyperParameterTuningResourceConfig::instance_count);
    let created_at = output.creation_time().and_then(moment);
    ObservedJob {
        arn: output
            .hyper_parameter_tuning_job_arn()
            .unwrap_or("")
            .to_owned(),
        marker: environment.and_then(|environment| Some(request::marker(environment.get(MARKER)?))),
        failure_reason: output.failure_reason().map(readable),
        created_at,
        modified_at: output.last_modified_time().and_then(moment),
        ended_at: output.hyper_parameter_tuning_end_time().and_then(moment),
        actual: Actual {
            instance_type: resources
                .and_then(HyperParameterTuningResourceConfig::instance_type)
                .map(|kind| kind.as_str().to_owned()),
            instance_count: count.and_then(|count| u32::try_from(count).ok()),
            spot: definition
                .and_then(HyperParameterTrainingJobDefinition::enable_managed_spot_training),
            ..Actual::default()
        },
        ..ObservedJob::named(job_name, status)
    }
}

fn summary(entry: &HyperParameterTuningJobSummary) -> Option<JobSummary> {
    let status = status(
        entry
            .hyper_parameter_tuning_job_status()
            .map(HyperParameterTuningJobStatus::as_str),
    );
    Some(JobSummary {
        kind: JobKind::Tuning,
        job_name: entry.hyper_parameter_tuning_job_name()?.to_owned(),
        secondary_status: status.as_str().to_owned(),
        status,
        created_at: entry.creation_time().and_then(moment),
        modified_at: entry.last_modified_time().and_then(moment),
        warm_pool: None,
    })
}

fn trial(entry: &HyperParameterTrainingJobSummary) -> Option<TunedTrial> {
    let started_at = entry.training_start_time().and_then(moment);
    let ended_at = entry.training_end_time().and_then(moment);
    let objective = entry.final_hyper_parameter_tuning_job_objective_metric();
    let searched = entry.tuned_hyper_parameters().into_iter().flatten();
    Some(TunedTrial {
        job_name: entry.training_job_name()?.to_owned(),
        status: entry
            .training_job_status()
            .map_or_else(String::new, |status| status.as_str().to_owned()),
        hyperparameters: searched
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        objective: objective
            .and_then(FinalHyperParameterTuningJobObjectiveMetric::value)
            .filter(|value| value.is_finite())
            .map(f64::from),
        started_at,
        ended_at,
        billed_seconds: started_at
            .zip(ended_at)
            .map_or(0, |(start, end)| seconds_between(start, end)),
        failure_reason: entry.failure_reason().map(readable),
    })
}
