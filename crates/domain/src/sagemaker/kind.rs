//! The kinds of job that this service has SageMaker run, and a request of any kind. What each kind sends is
//! in [`super::request`], [`super::processing`], [`super::tuning`] and [`super::hosting`].

use crate::money::cost;
use crate::money::price::Component;
use crate::sagemaker::hosting::{EndpointRequest, TransformJobRequest};
use crate::sagemaker::processing::ProcessingJobRequest;
use crate::sagemaker::request::TrainingJobRequest;
use crate::sagemaker::tuning::TuningJobRequest;

named! {
    /// What a job is to SageMaker: each kind has its own operations, names, quotas and rates
    JobKind {
        Training = "training",
        Processing = "processing",
        /// A hyperparameter tuning job, with the training jobs that SageMaker starts for it.
        Tuning = "tuning",
        /// A batch transform job, with its model.
        Transform = "transform",
        /// An endpoint, with its configuration and its model: it runs until it is deleted.
        Endpoint = "endpoint",
    }
}

impl JobKind {
    /// What its instances are billed as.
    pub fn component(self) -> Component {
        match self {
            Self::Training | Self::Tuning => Component::Training,
            Self::Processing => Component::Processing,
            Self::Transform => Component::Transform,
            Self::Endpoint => Component::Hosting,
        }
    }

    /// Whether SageMaker ends it at its limit. Others run, and are billed, until somebody ends them.
    pub fn is_limited(self) -> bool {
        match self {
            Self::Training | Self::Processing | Self::Tuning => true,
            Self::Transform | Self::Endpoint => false,
        }
    }
}

/// A request for a job of any kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum JobRequest<'a> {
    Training(&'a TrainingJobRequest),
    Processing(&'a ProcessingJobRequest),
    Tuning(&'a TuningJobRequest),
    Transform(&'a TransformJobRequest),
    Endpoint(&'a EndpointRequest),
}

impl JobRequest<'_> {
    pub fn kind(self) -> JobKind {
        match self {
            Self::Training(_) => JobKind::Training,
            Self::Processing(_) => JobKind::Processing,
            Self::Tuning(_) => JobKind::Tuning,
            Self::Transform(_) => JobKind::Transform,
            Self::Endpoint(_) => JobKind::Endpoint,
        }
    }

    pub fn instance_type(&self) -> &str {
        match self {
            Self::Training(request) => &request.instance_type,
            Self::Processing(request) => &request.instance_type,
            Self::Tuning(request) => &request.training.instance_type,
            Self::Transform(request) => &request.instance_type,
            Self::Endpoint(request) => &request.instance_type,
        }
    }

    /// Instances that are billed at once; of a tuning job, those of one trial.
    pub fn instance_count(self) -> u32 {
        match self {
            Self::Training(request) => request.instance_count,
            Self::Processing(request) => request.instance_count,
            Self::Tuning(request) => request.training.instance_count,
            Self::Transform(request) => request.instance_count,
            Self::Endpoint(request) => request.instance_count,
        }
    }

    /// Instances that count against the quota at once.
    pub fn instances_at_once(self) -> u32 {
        match self {
            Self::Tuning(request) => request
                .training
                .instance_count
                .saturating_mul(request.parallel_max),
            _ => self.instance_count(),
        }
    }

    pub fn volume_size_gb(self) -> u32 {
        match self {
            Self::Training(request) => request.volume_size_gb,
            Self::Processing(request) => request.volume_size_gb,
            Self::Tuning(request) => request.training.volume_size_gb,
            // Its volume cannot be asked for, and no price of one is known.
            Self::Transform(_) => 0,
            Self::Endpoint(request) => request.volume_size_gb.unwrap_or(0),
        }
    }

    /// The longest time that its instances can be billed, seconds of one instance; of a tuning job, those of all
    /// trials together. `transfer_seconds`: to move what is known to be large.
    pub fn billed_seconds_max(self, transfer_seconds: u64) -> u64 {
        let longest = |runtime| cost::longest_billed_seconds(runtime, transfer_seconds);
        match self {
            Self::Training(request) => longest(request.max_runtime_seconds),
            Self::Processing(request) => longest(request.max_runtime_seconds),
            Self::Tuning(request) => {
                u64::from(request.trials_max) * longest(request.training.max_runtime_seconds)
            }
            Self::Transform(request) => longest(request.max_runtime_seconds),
            Self::Endpoint(request) => {
                u64::from(request.time_to_live_seconds) + ENDPOINT_AROUND_SECONDS
            }
        }
    }

    /// How long it may wait for its instances, with those of spot, beyond what is billed.
    pub fn waits_seconds_max(self) -> u64 {
        let wait = |training: &TrainingJobRequest| {
            let wait = training.max_wait_seconds.map(u64::from);
            wait.unwrap_or(0)
                .saturating_sub(u64::from(training.max_runtime_seconds))
        };
        match self {
            Self::Training(request) => wait(request),
            Self::Tuning(request) => u64::from(request.trials_max) * wait(&request.training),
            Self::Processing(_) | Self::Transform(_) | Self::Endpoint(_) => 0,
        }
    }
}

/// What an endpoint may be billed beside its time to live: one that is being created or updated cannot be
/// deleted, and it takes about an hour until SageMaker gives up one whose model is missing
/// (aws/amazon-sagemaker-examples#3432); a quarter of an hour to delete it.
pub const ENDPOINT_AROUND_SECONDS: u64 = 75 * 60;
