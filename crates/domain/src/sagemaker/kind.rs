//! The kinds of job that this service has SageMaker run, and a request of any kind. What each kind sends is
//! in [`super::request`] and [`super::processing`].

use crate::money::price::Component;
use crate::sagemaker::processing::ProcessingJobRequest;
use crate::sagemaker::request::TrainingJobRequest;

named! {
    /// What a job is to SageMaker: each kind has its own operations, names, quotas and rates
    JobKind {
        Training = "training",
        Processing = "processing",
    }
}

impl JobKind {
    /// What its instances are billed as.
    pub fn component(self) -> Component {
        match self {
            Self::Training => Component::Training,
            Self::Processing => Component::Processing,
        }
    }
}

/// A request for a job of either kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRequest<'a> {
    Training(&'a TrainingJobRequest),
    Processing(&'a ProcessingJobRequest),
}

impl JobRequest<'_> {
    pub fn kind(self) -> JobKind {
        match self {
            Self::Training(_) => JobKind::Training,
            Self::Processing(_) => JobKind::Processing,
        }
    }

    pub fn instance_type(&self) -> &str {
        match self {
            Self::Training(request) => &request.instance_type,
            Self::Processing(request) => &request.instance_type,
        }
    }

    pub fn instance_count(self) -> u32 {
        match self {
            Self::Training(request) => request.instance_count,
            Self::Processing(request) => request.instance_count,
        }
    }

    pub fn volume_size_gb(self) -> u32 {
        match self {
            Self::Training(request) => request.volume_size_gb,
            Self::Processing(request) => request.volume_size_gb,
        }
    }

    pub fn max_runtime_seconds(self) -> u32 {
        match self {
            Self::Training(request) => request.max_runtime_seconds,
            Self::Processing(request) => request.max_runtime_seconds,
        }
    }
}
