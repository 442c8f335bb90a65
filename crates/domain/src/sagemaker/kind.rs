//! The kinds of job that this service has SageMaker run.

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

    /// Whether a model of its name is made before it, and is left behind by it.
    pub fn has_model(self) -> bool {
        match self {
            Self::Transform | Self::Endpoint => true,
            Self::Training | Self::Processing | Self::Tuning => false,
        }
    }
}
