//! The AWS operations in use: their names and starting rates. [`super::Aws`] calls them.

use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::limiter::Limiter;

/// The operations, under the names that AWS has for them.
macro_rules! operations {
    ($($name:ident)+) => {
        /// An operation with its own limiter and tally.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Operation { $($name),+ }

        impl Operation {
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }
        }
    };
}

operations! {
    CreateTrainingJob
    DescribeTrainingJob
    StopTrainingJob
    UpdateTrainingJob
    ListTrainingJobs
    ListTags
    GetMetricData
    ListServiceQuotas
    ListObjectsV2
    GetObject
    PutObject
    GetProducts
    BatchGetMetrics
    GetCallerIdentity
    DescribeLogStreams
    GetLogEvents
    FilterLogEvents
    DeleteObjects
    HeadBucket
    BatchGetImage
    GetRole
    SimulatePrincipalPolicy
    CopyObject
    CreateMultipartUpload
    UploadPartCopy
    CompleteMultipartUpload
    CreateModelPackageGroup
    CreateModelPackage
    ListModelPackages
    DescribeModelPackage
    UpdateModelPackage
    CreateProcessingJob
    DescribeProcessingJob
    StopProcessingJob
    ListProcessingJobs
    CreateHyperParameterTuningJob
    DescribeHyperParameterTuningJob
    StopHyperParameterTuningJob
    ListHyperParameterTuningJobs
    ListTrainingJobsForHyperParameterTuningJob
    CreateTransformJob
    DescribeTransformJob
    StopTransformJob
    ListTransformJobs
    CreateModel
    DeleteModel
    CreateEndpointConfig
    DeleteEndpointConfig
    CreateEndpoint
    UpdateEndpoint
    DescribeEndpoint
    DeleteEndpoint
    ListEndpoints
    InvokeEndpoint
    CreateSchedule
    UpdateSchedule
    GetSchedule
    DeleteSchedule
}

/// What is called for jobs of a kind.
#[derive(Debug, Clone, Copy)]
pub struct JobOperations {
    pub create: Operation,
    pub(super) describe: Operation,
    /// Stops it, or deletes it.
    pub(super) stop: Operation,
    pub list: Operation,
}

impl JobOperations {
    pub fn of(kind: JobKind) -> Self {
        use Operation as To;
        let [create, describe, stop, list] = match kind {
            JobKind::Training => [
                To::CreateTrainingJob,
                To::DescribeTrainingJob,
                To::StopTrainingJob,
                To::ListTrainingJobs,
            ],
            JobKind::Processing => [
                To::CreateProcessingJob,
                To::DescribeProcessingJob,
                To::StopProcessingJob,
                To::ListProcessingJobs,
            ],
            JobKind::Tuning => [
                To::CreateHyperParameterTuningJob,
                To::DescribeHyperParameterTuningJob,
                To::StopHyperParameterTuningJob,
                To::ListHyperParameterTuningJobs,
            ],
            JobKind::Transform => [
                To::CreateTransformJob,
                To::DescribeTransformJob,
                To::StopTransformJob,
                To::ListTransformJobs,
            ],
            JobKind::Endpoint => [
                To::CreateEndpoint,
                To::DescribeEndpoint,
                To::DeleteEndpoint,
                To::ListEndpoints,
            ],
        };
        Self {
            create,
            describe,
            stop,
            list,
        }
    }
}

impl Operation {
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
            | Self::ListTrainingJobsForHyperParameterTuningJob
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
