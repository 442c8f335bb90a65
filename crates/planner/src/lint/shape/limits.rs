//! The members of a CreateTrainingJob body and their limits, from the API model (botocore 1.44.5):
//! data, no code.

/// The kinds of value that a member may have.
pub(super) enum Check {
    /// Text of this minimum and maximum number of characters.
    Text(usize, usize),
    /// Text that matches the whole regular expression, with a maximum number of characters.
    Pattern(&'static str, usize),
    /// A whole number within these bounds.
    Range(u64, u64),
    /// A list of this minimum and maximum number of items.
    Items(usize, usize),
    /// An object: the maximum number of entries, and the longest key and value.
    Entries(usize, usize, usize),
    OneOf(&'static [&'static str]),
    /// Text of a tag: letters, digits, spaces and `_.:/=+-@`.
    Label(usize, usize),
    /// true or false.
    Truth,
}

use Check::{Entries, Items, Label, OneOf, Pattern, Range, Text, Truth};

/// Rule, path (`*` matches every item), and the check that applies there.
pub(super) const LIMITS: [(&str, &str, Check); 60] = [
    (
        "job-name",
        "/TrainingJobName",
        Pattern("[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", 63),
    ),
    (
        "role-arn",
        "/RoleArn",
        Pattern(
            r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+",
            2048,
        ),
    ),
    (
        "hyperparameter-limits",
        "/HyperParameters",
        Entries(100, 256, 2500),
    ),
    ("environment-limits", "/Environment", Entries(100, 512, 512)),
    (
        "s3-uri",
        "/CheckpointConfig/S3Uri",
        Pattern(r"(https|s3)://([^/]+)/?(.*)", 1024),
    ),
    (
        "image",
        "/AlgorithmSpecification/TrainingImage",
        Text(1, 255),
    ),
    (
        "image",
        "/AlgorithmSpecification/AlgorithmName",
        Text(1, 170),
    ),
    (
        "input-mode",
        "/AlgorithmSpecification/TrainingInputMode",
        OneOf(&["File", "Pipe", "FastFile"]),
    ),
    (
        "metric-count",
        "/AlgorithmSpecification/MetricDefinitions",
        Items(0, 40),
    ),
    (
        "metric-name",
        "/AlgorithmSpecification/MetricDefinitions/*/Name",
        Text(1, 255),
    ),
    (
        "metric-regex",
        "/AlgorithmSpecification/MetricDefinitions/*/Regex",
        Text(1, 500),
    ),
    (
        "entrypoint-limits",
        "/AlgorithmSpecification/ContainerEntrypoint",
        Items(1, 100),
    ),
    (
        "entrypoint-limits",
        "/AlgorithmSpecification/ContainerEntrypoint/*",
        Text(0, 256),
    ),
    (
        "entrypoint-limits",
        "/AlgorithmSpecification/ContainerArguments",
        Items(1, 100),
    ),
    (
        "entrypoint-limits",
        "/AlgorithmSpecification/ContainerArguments/*",
        Text(0, 256),
    ),
    ("channels", "/InputDataConfig", Items(1, 20)),
    (
        "channel-name",
        "/InputDataConfig/*/ChannelName",
        Pattern(r"[A-Za-z0-9.\-_]{1,64}", 1024),
    ),
    (
        "channel-compression",
        "/InputDataConfig/*/CompressionType",
        OneOf(&["None", "Gzip"]),
    ),
    (
        "s3-uri",
        "/InputDataConfig/*/DataSource/S3DataSource/S3Uri",
        Pattern(r"(https|s3)://([^/]+)/?(.*)", 1024),
    ),
    (
        "s3-data-type",
        "/InputDataConfig/*/DataSource/S3DataSource/S3DataType",
        OneOf(&[
            "ManifestFile",
            "S3Prefix",
            "AugmentedManifestFile",
            "Converse",
        ]),
    ),
    (
        "s3-distribution",
        "/InputDataConfig/*/DataSource/S3DataSource/S3DataDistributionType",
        OneOf(&["FullyReplicated", "ShardedByS3Key"]),
    ),
    (
        "channel-lists",
        "/InputDataConfig/*/DataSource/S3DataSource/AttributeNames",
        Items(0, 16),
    ),
    (
        "channel-lists",
        "/InputDataConfig/*/DataSource/S3DataSource/InstanceGroupNames",
        Items(0, 5),
    ),
    (
        "file-system",
        "/InputDataConfig/*/DataSource/FileSystemDataSource/FileSystemType",
        OneOf(&["EFS", "FSxLustre"]),
    ),
    (
        "file-system",
        "/InputDataConfig/*/DataSource/FileSystemDataSource/FileSystemAccessMode",
        OneOf(&["ro", "rw"]),
    ),
    (
        "output-path",
        "/OutputDataConfig/S3OutputPath",
        Pattern(r"(https|s3)://([^/]+)/?(.*)", 1024),
    ),
    (
        "output-path",
        "/OutputDataConfig/CompressionType",
        OneOf(&["GZIP", "NONE"]),
    ),
    (
        "instance-count",
        "/ResourceConfig/InstanceCount",
        Range(1, 1000),
    ),
    (
        "volume-size",
        "/ResourceConfig/VolumeSizeInGB",
        Range(0, 16_384),
    ),
    (
        "groups-count",
        "/ResourceConfig/InstanceGroups",
        Items(1, 5),
    ),
    (
        "preferences-number",
        "/ResourceConfig/InstancePreferences",
        Items(1, 5),
    ),
    (
        "training-plan",
        "/ResourceConfig/TrainingPlanArn",
        Text(50, 2048),
    ),
    (
        "placement",
        "/ResourceConfig/InstancePlacementConfig/PlacementSpecifications",
        Items(0, 10),
    ),
    (
        "max-runtime",
        "/StoppingCondition/MaxRuntimeInSeconds",
        Range(1, 28 * 86_400),
    ),
    (
        "max-wait",
        "/StoppingCondition/MaxWaitTimeInSeconds",
        Range(1, 30 * 86_400),
    ),
    (
        "max-pending",
        "/StoppingCondition/MaxPendingTimeInSeconds",
        Range(1800, 2_419_200),
    ),
    (
        "keep-alive",
        "/ResourceConfig/KeepAlivePeriodInSeconds",
        Range(0, 21_600),
    ),
    (
        "profiler-interval",
        "/ProfilerConfig/ProfilingIntervalInMilliseconds",
        Range(100, 60_000),
    ),
    (
        "group-incomplete",
        "/ResourceConfig/InstanceGroups/*/InstanceGroupName",
        Text(1, 64),
    ),
    ("truth-value", "/EnableManagedSpotTraining", Truth),
    ("truth-value", "/EnableNetworkIsolation", Truth),
    (
        "truth-value",
        "/EnableInterContainerTrafficEncryption",
        Truth,
    ),
    ("truth-value", "/ProfilerConfig/DisableProfiler", Truth),
    ("truth-value", "/InfraCheckConfig/EnableInfraCheck", Truth),
    (
        "rule-limits",
        "/DebugRuleConfigurations/*/RuleParameters",
        Entries(100, 256, 256),
    ),
    (
        "rule-limits",
        "/ProfilerRuleConfigurations/*/RuleParameters",
        Entries(100, 256, 256),
    ),
    (
        "experiment-names",
        "/ExperimentConfig/TrialName",
        Text(1, 120),
    ),
    (
        "experiment-names",
        "/ExperimentConfig/TrialComponentDisplayName",
        Text(1, 120),
    ),
    (
        "experiment-names",
        "/ExperimentConfig/RunName",
        Text(1, 120),
    ),
    ("vpc", "/VpcConfig/SecurityGroupIds", Items(1, 5)),
    ("vpc", "/VpcConfig/Subnets", Items(1, 16)),
    ("tags", "/Tags", Items(0, 50)),
    ("tags", "/Tags/*/Key", Label(1, 128)),
    ("tags", "/Tags/*/Value", Label(0, 256)),
    (
        "retry-attempts",
        "/RetryStrategy/MaximumRetryAttempts",
        Range(1, 30),
    ),
    (
        "debugger-limits",
        "/DebugHookConfig/HookParameters",
        Entries(20, 256, 256),
    ),
    (
        "debugger-limits",
        "/DebugHookConfig/CollectionConfigurations",
        Items(0, 20),
    ),
    ("rule-limits", "/DebugRuleConfigurations", Items(0, 20)),
    ("rule-limits", "/ProfilerRuleConfigurations", Items(0, 20)),
    (
        "experiment-names",
        "/ExperimentConfig/ExperimentName",
        Text(1, 120),
    ),
];

/// Required members. Serverless jobs may omit AlgorithmSpecification, ResourceConfig and
/// StoppingCondition.
pub(super) const REQUIRED: [&str; 9] = [
    "/TrainingJobName",
    "/RoleArn",
    "/OutputDataConfig/S3OutputPath",
    "/AlgorithmSpecification/TrainingInputMode",
    "/ResourceConfig",
    "/StoppingCondition",
    "/CheckpointConfig/S3Uri",
    "/DebugHookConfig/S3OutputPath",
    "/RetryStrategy/MaximumRetryAttempts",
];

/// Objects whose member is only required if the object itself is present.
pub(super) const OPTIONAL_OBJECTS: [&str; 3] =
    ["CheckpointConfig", "DebugHookConfig", "RetryStrategy"];

/// Members of the body and of its objects.
pub(super) const MEMBERS: [(&str, &[&str]); 9] = [
    (
        "",
        &[
            "TrainingJobName",
            "HyperParameters",
            "AlgorithmSpecification",
            "RoleArn",
            "InputDataConfig",
            "OutputDataConfig",
            "ResourceConfig",
            "VpcConfig",
            "StoppingCondition",
            "Tags",
            "EnableNetworkIsolation",
            "EnableInterContainerTrafficEncryption",
            "EnableManagedSpotTraining",
            "CheckpointConfig",
            "DebugHookConfig",
            "DebugRuleConfigurations",
            "TensorBoardOutputConfig",
            "ExperimentConfig",
            "ProfilerConfig",
            "ProfilerRuleConfigurations",
            "Environment",
            "RetryStrategy",
            "RemoteDebugConfig",
            "InfraCheckConfig",
            "SessionChainingConfig",
            "ServerlessJobConfig",
            "MlflowConfig",
            "ModelPackageConfig",
        ],
    ),
    (
        "/AlgorithmSpecification",
        &[
            "TrainingImage",
            "AlgorithmName",
            "TrainingInputMode",
            "MetricDefinitions",
            "EnableSageMakerMetricsTimeSeries",
            "ContainerEntrypoint",
            "ContainerArguments",
            "TrainingImageConfig",
        ],
    ),
    (
        "/ResourceConfig",
        &[
            "InstanceType",
            "InstanceCount",
            "VolumeSizeInGB",
            "VolumeKmsKeyId",
            "KeepAlivePeriodInSeconds",
            "InstanceGroups",
            "TrainingPlanArn",
            "InstancePlacementConfig",
            "InstancePreferences",
        ],
    ),
    (
        "/StoppingCondition",
        &[
            "MaxRuntimeInSeconds",
            "MaxWaitTimeInSeconds",
            "MaxPendingTimeInSeconds",
        ],
    ),
    (
        "/OutputDataConfig",
        &["S3OutputPath", "KmsKeyId", "CompressionType"],
    ),
    ("/CheckpointConfig", &["S3Uri", "LocalPath"]),
    ("/RetryStrategy", &["MaximumRetryAttempts"]),
    ("/InfraCheckConfig", &["EnableInfraCheck"]),
    (
        "/ProfilerConfig",
        &[
            "S3OutputPath",
            "DisableProfiler",
            "ProfilingIntervalInMilliseconds",
            "ProfilingParameters",
        ],
    ),
];
