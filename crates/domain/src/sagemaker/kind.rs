//! The kinds of job that this service has SageMaker run, and a request of any kind. What each kind sends is
//! in [`super::request`], [`super::processing`], [`super::tuning`] and [`super::hosting`].

use crate::sagemaker::endpoint::{EndpointRequest, TransformJobRequest};
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

/// The job of a step that compares nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum StepJob {
    Processing(ProcessingJobRequest),
    Tuning(Box<TuningJobRequest>),
    Transform(TransformJobRequest),
    Endpoint(EndpointRequest),
}

impl StepJob {
    pub fn request(&self) -> JobRequest<'_> {
        match self {
            Self::Processing(one) => JobRequest::Processing(one),
            Self::Tuning(one) => JobRequest::Tuning(one),
            Self::Transform(one) => JobRequest::Transform(one),
            Self::Endpoint(one) => JobRequest::Endpoint(one),
        }
    }
}
