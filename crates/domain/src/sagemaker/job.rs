//! A job that is sent to SageMaker, of any kind. What each kind sends is in [`super::request`], [`super::processing`],
//! [`super::tuning`] and [`super::endpoint`].

use serde::{Deserialize, Serialize};

use crate::sagemaker::endpoint::{EndpointRequest, TransformJobRequest};
use crate::sagemaker::kind::JobKind;
use crate::sagemaker::processing::ProcessingJobRequest;
use crate::sagemaker::request::TrainingJobRequest;
use crate::sagemaker::tuning::TuningJobRequest;

/// A request for a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    Training(Box<TrainingJobRequest>),
    Processing(Box<ProcessingJobRequest>),
    Tuning(Box<TuningJobRequest>),
    Transform(Box<TransformJobRequest>),
    Endpoint(Box<EndpointRequest>),
}

impl Job {
    pub fn kind(&self) -> JobKind {
        match self {
            Self::Training(_) => JobKind::Training,
            Self::Processing(_) => JobKind::Processing,
            Self::Tuning(_) => JobKind::Tuning,
            Self::Transform(_) => JobKind::Transform,
            Self::Endpoint(_) => JobKind::Endpoint,
        }
    }

    /// `None` for the training jobs inside a tuning job, too.
    pub fn training(&self) -> Option<&TrainingJobRequest> {
        match self {
            Self::Training(request) => Some(request),
            _ => None,
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
    pub fn instance_count(&self) -> u32 {
        match self {
            Self::Training(request) => request.instance_count,
            Self::Processing(request) => request.instance_count,
            Self::Tuning(request) => request.training.instance_count,
            Self::Transform(request) => request.instance_count,
            Self::Endpoint(request) => request.instance_count,
        }
    }

    /// Instances that count against the quota at once.
    pub fn instances_at_once(&self) -> u32 {
        match self {
            Self::Tuning(request) => self.instance_count().saturating_mul(request.parallel_max),
            _ => self.instance_count(),
        }
    }

    pub fn volume_size_gb(&self) -> u32 {
        match self {
            Self::Training(request) => request.volume_size_gb,
            Self::Processing(request) => request.volume_size_gb,
            Self::Tuning(request) => request.training.volume_size_gb,
            // Its volume cannot be asked for, and no price of one is known.
            Self::Transform(_) => 0,
            Self::Endpoint(request) => request.volume_size_gb.unwrap_or(0),
        }
    }

    /// What its training jobs are sent; only those may be of spot.
    fn of_training(&self) -> Option<&TrainingJobRequest> {
        match self {
            Self::Training(request) => Some(request),
            Self::Tuning(request) => Some(&request.training),
            Self::Processing(_) | Self::Transform(_) | Self::Endpoint(_) => None,
        }
    }

    pub fn is_spot(&self) -> bool {
        self.of_training()
            .is_some_and(|training| training.max_wait_seconds.is_some())
    }

    /// How long it may wait for its instances, with those of spot, beyond what is billed.
    pub fn waits_seconds_max(&self) -> u64 {
        let Some(training) = self.of_training() else {
            return 0;
        };
        let wait = training.max_wait_seconds.unwrap_or(0);
        let wait = u64::from(wait.saturating_sub(training.max_runtime_seconds));
        match self {
            Self::Tuning(request) => u64::from(request.trials_max) * wait,
            _ => wait,
        }
    }
}
