//! The AWS operations in use: their names and starting rates. [`super::Aws`] calls them.

use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::limiter::Limiter;

/// An operation with its own limiter and tally.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    CreateTrainingJob,
    DescribeTrainingJob,
    StopTrainingJob,
    UpdateTrainingJob,
    ListTrainingJobs,
    ListTags,
    GetMetricData,
    ListServiceQuotas,
    ListObjectsV2,
    GetObject,
    PutObject,
    GetProducts,
    BatchGetMetrics,
    GetCallerIdentity,
    DescribeLogStreams,
    GetLogEvents,
    FilterLogEvents,
    DeleteObjects,
    HeadBucket,
    BatchGetImage,
    GetRole,
    SimulatePrincipalPolicy,
    CopyObject,
    CreateMultipartUpload,
    UploadPartCopy,
    CompleteMultipartUpload,
    CreateModelPackageGroup,
    CreateModelPackage,
    ListModelPackages,
    DescribeModelPackage,
    UpdateModelPackage,
    CreateProcessingJob,
    DescribeProcessingJob,
    StopProcessingJob,
    ListProcessingJobs,
    CreateHyperParameterTuningJob,
    DescribeHyperParameterTuningJob,
    StopHyperParameterTuningJob,
    ListHyperParameterTuningJobs,
    ListTrainingJobsForTuning,
    CreateTransformJob,
    DescribeTransformJob,
    StopTransformJob,
    ListTransformJobs,
    CreateModel,
    DeleteModel,
    CreateEndpointConfig,
    DeleteEndpointConfig,
    CreateEndpoint,
    UpdateEndpoint,
    DescribeEndpoint,
    DeleteEndpoint,
    ListEndpoints,
    InvokeEndpoint,
    CreateSchedule,
    UpdateSchedule,
    GetSchedule,
    DeleteSchedule,
}

impl Operation {
    /// What creates a job of a kind.
    pub fn create(kind: JobKind) -> Self {
        match kind {
            JobKind::Training => Self::CreateTrainingJob,
            JobKind::Processing => Self::CreateProcessingJob,
            JobKind::Tuning => Self::CreateHyperParameterTuningJob,
            JobKind::Transform => Self::CreateTransformJob,
            JobKind::Endpoint => Self::CreateEndpoint,
        }
    }

    /// What describes a job of a kind.
    pub(super) fn describe(kind: JobKind) -> Self {
        match kind {
            JobKind::Training => Self::DescribeTrainingJob,
            JobKind::Processing => Self::DescribeProcessingJob,
            JobKind::Tuning => Self::DescribeHyperParameterTuningJob,
            JobKind::Transform => Self::DescribeTransformJob,
            JobKind::Endpoint => Self::DescribeEndpoint,
        }
    }

    /// What stops a job of a kind, or deletes it.
    pub(super) fn stop(kind: JobKind) -> Self {
        match kind {
            JobKind::Training => Self::StopTrainingJob,
            JobKind::Processing => Self::StopProcessingJob,
            JobKind::Tuning => Self::StopHyperParameterTuningJob,
            JobKind::Transform => Self::StopTransformJob,
            JobKind::Endpoint => Self::DeleteEndpoint,
        }
    }

    /// What lists jobs of a kind.
    pub fn list(kind: JobKind) -> Self {
        match kind {
            JobKind::Training => Self::ListTrainingJobs,
            JobKind::Processing => Self::ListProcessingJobs,
            JobKind::Tuning => Self::ListHyperParameterTuningJobs,
            JobKind::Transform => Self::ListTransformJobs,
            JobKind::Endpoint => Self::ListEndpoints,
        }
    }

    pub(super) const ALL: [Self; 58] = [
        Self::CreateTrainingJob,
        Self::DescribeTrainingJob,
        Self::StopTrainingJob,
        Self::UpdateTrainingJob,
        Self::ListTrainingJobs,
        Self::ListTags,
        Self::GetMetricData,
        Self::ListServiceQuotas,
        Self::ListObjectsV2,
        Self::GetObject,
        Self::PutObject,
        Self::GetProducts,
        Self::BatchGetMetrics,
        Self::GetCallerIdentity,
        Self::DescribeLogStreams,
        Self::GetLogEvents,
        Self::FilterLogEvents,
        Self::DeleteObjects,
        Self::HeadBucket,
        Self::BatchGetImage,
        Self::GetRole,
        Self::SimulatePrincipalPolicy,
        Self::CopyObject,
        Self::CreateMultipartUpload,
        Self::UploadPartCopy,
        Self::CompleteMultipartUpload,
        Self::CreateModelPackageGroup,
        Self::CreateModelPackage,
        Self::ListModelPackages,
        Self::DescribeModelPackage,
        Self::UpdateModelPackage,
        Self::CreateProcessingJob,
        Self::DescribeProcessingJob,
        Self::StopProcessingJob,
        Self::ListProcessingJobs,
        Self::CreateHyperParameterTuningJob,
        Self::DescribeHyperParameterTuningJob,
        Self::StopHyperParameterTuningJob,
        Self::ListHyperParameterTuningJobs,
        Self::ListTrainingJobsForTuning,
        Self::CreateTransformJob,
        Self::DescribeTransformJob,
        Self::StopTransformJob,
        Self::ListTransformJobs,
        Self::CreateModel,
        Self::DeleteModel,
        Self::CreateEndpointConfig,
        Self::DeleteEndpointConfig,
        Self::CreateEndpoint,
        Self::UpdateEndpoint,
        Self::DescribeEndpoint,
        Self::DeleteEndpoint,
        Self::ListEndpoints,
        Self::InvokeEndpoint,
        Self::CreateSchedule,
        Self::UpdateSchedule,
        Self::GetSchedule,
        Self::DeleteSchedule,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreateTrainingJob => "CreateTrainingJob",
            Self::DescribeTrainingJob => "DescribeTrainingJob",
            Self::StopTrainingJob => "StopTrainingJob",
            Self::UpdateTrainingJob => "UpdateTrainingJob",
            Self::ListTrainingJobs => "ListTrainingJobs",
            Self::ListTags => "ListTags",
            Self::GetMetricData => "GetMetricData",
            Self::ListServiceQuotas => "ListServiceQuotas",
            Self::ListObjectsV2 => "ListObjectsV2",
            Self::GetObject => "GetObject",
            Self::PutObject => "PutObject",
            Self::GetProducts => "GetProducts",
            Self::BatchGetMetrics => "BatchGetMetrics",
            Self::GetCallerIdentity => "GetCallerIdentity",
            Self::DescribeLogStreams => "DescribeLogStreams",
            Self::GetLogEvents => "GetLogEvents",
            Self::FilterLogEvents => "FilterLogEvents",
            Self::DeleteObjects => "DeleteObjects",
            Self::HeadBucket => "HeadBucket",
            Self::BatchGetImage => "BatchGetImage",
            Self::GetRole => "GetRole",
            Self::SimulatePrincipalPolicy => "SimulatePrincipalPolicy",
            Self::CopyObject => "CopyObject",
            Self::CreateMultipartUpload => "CreateMultipartUpload",
            Self::UploadPartCopy => "UploadPartCopy",
            Self::CompleteMultipartUpload => "CompleteMultipartUpload",
            Self::CreateModelPackageGroup => "CreateModelPackageGroup",
            Self::CreateModelPackage => "CreateModelPackage",
            Self::ListModelPackages => "ListModelPackages",
            Self::DescribeModelPackage => "DescribeModelPackage",
            Self::UpdateModelPackage => "UpdateModelPackage",
            Self::CreateProcessingJob => "CreateProcessingJob",
            Self::DescribeProcessingJob => "DescribeProcessingJob",
            Self::StopProcessingJob => "StopProcessingJob",
            Self::ListProcessingJobs => "ListProcessingJobs",
            Self::CreateHyperParameterTuningJob => "CreateHyperParameterTuningJob",
            Self::DescribeHyperParameterTuningJob => "DescribeHyperParameterTuningJob",
            Self::StopHyperParameterTuningJob => "StopHyperParameterTuningJob",
            Self::ListHyperParameterTuningJobs => "ListHyperParameterTuningJobs",
            Self::ListTrainingJobsForTuning => "ListTrainingJobsForHyperParameterTuningJob",
            Self::CreateTransformJob => "CreateTransformJob",
            Self::DescribeTransformJob => "DescribeTransformJob",
            Self::StopTransformJob => "StopTransformJob",
            Self::ListTransformJobs => "ListTransformJobs",
            Self::CreateModel => "CreateModel",
            Self::DeleteModel => "DeleteModel",
            Self::CreateEndpointConfig => "CreateEndpointConfig",
            Self::DeleteEndpointConfig => "DeleteEndpointConfig",
            Self::CreateEndpoint => "CreateEndpoint",
            Self::UpdateEndpoint => "UpdateEndpoint",
            Self::DescribeEndpoint => "DescribeEndpoint",
            Self::DeleteEndpoint => "DeleteEndpoint",
            Self::ListEndpoints => "ListEndpoints",
            Self::InvokeEndpoint => "InvokeEndpoint",
            Self::CreateSchedule => "CreateSchedule",
            Self::UpdateSchedule => "UpdateSchedule",
            Self::GetSchedule => "GetSchedule",
            Self::DeleteSchedule => "DeleteSchedule",
        }
    }

    /// Few request quotas are known: ListTrainingJobs 2/s (we use half of it, leaving the rest to
    /// others in the account), GetMetricData 50/s, DescribeLogStreams 25/s, GetLogEvents 10/s and FilterLogEvents 5/s.
    /// The others are learnt from a modest start: CreateTrainingJob is throttled with five concurrent callers.
    pub(super) fn limiter(self, start: f64) -> Limiter {
        match self {
            Self::ListTrainingJobs
            | Self::ListProcessingJobs
            | Self::ListHyperParameterTuningJobs
            | Self::ListTransformJobs
            | Self::ListEndpoints => Limiter::at_most(start),
            Self::GetMetricData => Limiter::at_most(40.0 * start),
            Self::DescribeLogStreams => Limiter::at_most(10.0 * start),
            Self::GetLogEvents => Limiter::at_most(8.0 * start),
            Self::FilterLogEvents => Limiter::at_most(3.0 * start),
            Self::CreateTrainingJob
            | Self::CreateHyperParameterTuningJob
            | Self::CreateTransformJob
            | Self::CreateEndpoint
            | Self::UpdateEndpoint => Limiter::learning(start),
            // 1/s, not adjustable (Amazon SageMaker endpoints and quotas).
            Self::CreateProcessingJob => Limiter::at_most(0.8 * start),
            Self::DescribeTrainingJob
            | Self::DescribeProcessingJob
            | Self::StopProcessingJob
            | Self::DescribeHyperParameterTuningJob
            | Self::StopHyperParameterTuningJob
            | Self::ListTrainingJobsForTuning
            | Self::DescribeTransformJob
            | Self::StopTransformJob
            | Self::DescribeEndpoint
            | Self::DeleteEndpoint
            | Self::InvokeEndpoint
            | Self::StopTrainingJob
            | Self::UpdateTrainingJob
            | Self::ListTags
            | Self::ListServiceQuotas
            | Self::ListObjectsV2
            | Self::GetObject
            | Self::PutObject
            | Self::DeleteObjects
            | Self::GetProducts
            | Self::BatchGetMetrics
            | Self::GetCallerIdentity
            | Self::HeadBucket
            | Self::BatchGetImage
            | Self::GetRole
            | Self::SimulatePrincipalPolicy
            | Self::CopyObject
            | Self::CreateMultipartUpload
            | Self::UploadPartCopy
            | Self::CompleteMultipartUpload
            // EventBridge Scheduler has 50/s and more for each (Amazon EventBridge Scheduler quotas).
            | Self::CreateSchedule
            | Self::UpdateSchedule
            | Self::GetSchedule
            | Self::DeleteSchedule => Limiter::learning(10.0 * start),
            // Their quotas are not published.
            Self::CreateModel
            | Self::DeleteModel
            | Self::CreateEndpointConfig
            | Self::DeleteEndpointConfig
            | Self::CreateModelPackageGroup
            | Self::CreateModelPackage
            | Self::ListModelPackages
            | Self::DescribeModelPackage
            | Self::UpdateModelPackage => Limiter::learning(2.0 * start),
        }
    }
}
