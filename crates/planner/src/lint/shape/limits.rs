//! Which rule of the register stands for the limits of which members, and limits that the API's
//! documentation has but its model has not: data, no code.

/// Paths of a training job's members (`*` for every item), and the rule that a breach there is of;
/// the longest path counts, and what is below it is included. Any other is of `api-limits`.
pub(super) const RULES: [(&str, &str); 48] = [
    ("/AlgorithmSpecification/AlgorithmName", "image"),
    (
        "/AlgorithmSpecification/ContainerArguments",
        "entrypoint-limits",
    ),
    (
        "/AlgorithmSpecification/ContainerEntrypoint",
        "entrypoint-limits",
    ),
    ("/AlgorithmSpecification/MetricDefinitions", "metric-count"),
    (
        "/AlgorithmSpecification/MetricDefinitions/*/Name",
        "metric-name",
    ),
    (
        "/AlgorithmSpecification/MetricDefinitions/*/Regex",
        "metric-regex",
    ),
    ("/AlgorithmSpecification/TrainingImage", "image"),
    ("/AlgorithmSpecification/TrainingInputMode", "input-mode"),
    ("/CheckpointConfig/S3Uri", "s3-uri"),
    ("/DebugHookConfig", "debugger-limits"),
    ("/DebugRuleConfigurations", "rule-limits"),
    ("/EnableInterContainerTrafficEncryption", "truth-value"),
    ("/EnableManagedSpotTraining", "truth-value"),
    ("/EnableNetworkIsolation", "truth-value"),
    ("/Environment", "environment-limits"),
    ("/ExperimentConfig", "experiment-names"),
    ("/HyperParameters", "hyperparameter-limits"),
    ("/InfraCheckConfig/EnableInfraCheck", "truth-value"),
    ("/InputDataConfig", "channels"),
    ("/InputDataConfig/*/ChannelName", "channel-name"),
    ("/InputDataConfig/*/CompressionType", "channel-compression"),
    (
        "/InputDataConfig/*/DataSource/FileSystemDataSource",
        "file-system",
    ),
    (
        "/InputDataConfig/*/DataSource/S3DataSource/AttributeNames",
        "channel-lists",
    ),
    (
        "/InputDataConfig/*/DataSource/S3DataSource/InstanceGroupNames",
        "channel-lists",
    ),
    (
        "/InputDataConfig/*/DataSource/S3DataSource/S3DataDistributionType",
        "s3-distribution",
    ),
    (
        "/InputDataConfig/*/DataSource/S3DataSource/S3DataType",
        "s3-data-type",
    ),
    ("/InputDataConfig/*/DataSource/S3DataSource/S3Uri", "s3-uri"),
    ("/OutputDataConfig/CompressionType", "output-path"),
    ("/OutputDataConfig/S3OutputPath", "output-path"),
    ("/ProfilerConfig/DisableProfiler", "truth-value"),
    (
        "/ProfilerConfig/ProfilingIntervalInMilliseconds",
        "profiler-interval",
    ),
    ("/ProfilerRuleConfigurations", "rule-limits"),
    ("/ResourceConfig/InstanceCount", "instance-count"),
    ("/ResourceConfig/InstanceGroups", "groups-count"),
    (
        "/ResourceConfig/InstanceGroups/*/InstanceGroupName",
        "group-incomplete",
    ),
    (
        "/ResourceConfig/InstancePlacementConfig/PlacementSpecifications",
        "placement",
    ),
    ("/ResourceConfig/InstancePreferences", "preferences-number"),
    ("/ResourceConfig/KeepAlivePeriodInSeconds", "keep-alive"),
    ("/ResourceConfig/TrainingPlanArn", "training-plan"),
    ("/ResourceConfig/VolumeSizeInGB", "volume-size"),
    ("/RetryStrategy/MaximumRetryAttempts", "retry-attempts"),
    ("/RoleArn", "role-arn"),
    ("/StoppingCondition/MaxPendingTimeInSeconds", "max-pending"),
    ("/StoppingCondition/MaxRuntimeInSeconds", "max-runtime"),
    ("/StoppingCondition/MaxWaitTimeInSeconds", "max-wait"),
    ("/Tags", "tags"),
    ("/TrainingJobName", "job-name"),
    ("/VpcConfig", "vpc"),
];

/// Limits beyond the model's: path, least and most.
pub(super) const STRICTER: [(&str, u64, u64); 5] = [
    ("/ResourceConfig/InstanceCount", 1, 1000),
    ("/ResourceConfig/VolumeSizeInGB", 0, 16_384),
    ("/StoppingCondition/MaxRuntimeInSeconds", 1, 28 * 86_400),
    ("/StoppingCondition/MaxWaitTimeInSeconds", 1, 30 * 86_400),
    (
        "/ProfilerConfig/ProfilingIntervalInMilliseconds",
        100,
        60_000,
    ),
];

/// What a training job needs beyond the model's required members, unless it is serverless.
pub(super) const REQUIRED: [&str; 3] = [
    "AlgorithmSpecification",
    "ResourceConfig",
    "StoppingCondition",
];
