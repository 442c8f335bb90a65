//! User input: experiments, workloads, profiles, claims, and training outside SageMaker.

pub mod ci;
pub mod claim;
pub mod expectation;
mod experiment;
pub mod full_run;
pub mod labels;
pub mod measurement;
pub mod metric_definitions;
mod parallel;
pub mod pipeline;
mod profile;
mod resolved;
pub mod run;
pub mod technique;
mod workload;

pub(crate) use self::experiment::DEADLINE_HOURS_DEFAULT;
pub use self::experiment::{
    CandidateSpec, ExperimentSpec, Minimize, NoReadings, ObjectiveSpec, PRIORITY_MAX,
    StoppingPolicy, deadline_after,
};
pub use self::parallel::{ParallelLibrary, runs_on};
pub use self::profile::{CpuOffload, OptimizerStates, Precision, ProfileSpec, Recompute};
pub use self::resolved::{Candidate, ResolvedExperiment};
pub use self::workload::WorkloadSpec;
pub use crate::sagemaker::locations::{Channel, CheckpointSpec};
pub use crate::sagemaker::purchase_option::PurchaseOption;

/// Default values of optional members.
mod default {
    pub(super) fn one() -> u32 {
        1
    }
}
