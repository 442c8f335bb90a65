//! Identifies the job that a ledger row or an event belongs to.

use bakeoff_domain::ids::{ExperimentId, JobId, PriceId, ProjectId, TrialId};

/// The job of an attempt that money belongs to, with its price.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    pub project_id: ProjectId,
    pub experiment_id: ExperimentId,
    pub trial_id: TrialId,
    pub job_id: JobId,
    pub price_id: PriceId,
}
