//! Faults on demand: how often the region throttles, runs out of capacity, or does what was asked and loses the reply.

use clap::Args;

/// Probabilities from 0 to 1.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Faults {
    /// Share of SageMaker and CloudWatch calls answered with ThrottlingException.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) throttle: f64,
    /// Share of CreateTrainingJob calls that create the job and answer with a 500.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) lost_reply: f64,
    /// Share of CreateTrainingJob calls under a taken name that are answered with AccessDeniedException, as after a change of
    /// permissions.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) deny_again: f64,
    /// Share of on-demand jobs that fail with CapacityError before they start.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) no_capacity: f64,
}
