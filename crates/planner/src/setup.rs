//! The input to estimates, plans and requests: a candidate with its references resolved, the
//! cluster it runs on, and the combination of both that determines memory and speed. Nothing is
//! decided here.

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::spec::{CandidateSpec, ExperimentSpec, Precision, ProfileSpec, WorkloadSpec};

/// A model under a profile on a cluster: determines memory and speed.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    pub model: &'a ModelShape,
    pub profile: &'a ProfileSpec,
    pub precision: Precision,
    pub cluster: Cluster<'a>,
}

impl<'a> Setup<'a> {
    /// The same setup under another profile.
    #[must_use]
    pub fn under<'b>(self, profile: &'b ProfileSpec) -> Setup<'b>
    where
        'a: 'b,
    {
        Setup { profile, ..self }
    }
}

/// A candidate of an experiment, with the workload and the profile that it names.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub workload: &'a WorkloadSpec,
    pub spec: &'a CandidateSpec,
    pub profile: &'a ProfileSpec,
}

impl<'a> Candidate<'a> {
    /// `None` if the experiment has no workload or the candidate no profile.
    pub fn of(experiment: &'a ExperimentSpec, spec: &'a CandidateSpec) -> Option<Self> {
        Some(Self {
            workload: experiment.workload.as_ref()?,
            spec,
            profile: spec.profile.as_ref()?,
        })
    }

    /// Sequences per optimiser step, over all accelerators.
    pub fn global_batch(&self) -> u64 {
        self.profile.global_batch(self.spec.accelerators())
    }

    /// The setup that determines its memory and speed. `instance` is its type's row of the catalog.
    pub fn on(&self, instance: &'a InstanceType) -> Setup<'a> {
        Setup {
            model: &self.workload.model,
            profile: self.profile,
            precision: self.workload.precision,
            cluster: Cluster {
                instance,
                count: self.spec.instance_count,
            },
        }
    }
}
