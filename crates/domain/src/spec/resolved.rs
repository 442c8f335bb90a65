//! An experiment whose references are filled in, as it is stored, scheduled and ranked. What
//! somebody sends may lack anything, and is an [`ExperimentSpec`].

use super::{CandidateSpec, ExperimentSpec, ProfileSpec, WorkloadSpec};

/// An experiment with a workload, and with a profile for each candidate.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedExperiment {
    spec: ExperimentSpec,
    workload: WorkloadSpec,
    profiles: Vec<ProfileSpec>,
}

impl ResolvedExperiment {
    /// `None` if the workload or a profile is missing.
    pub fn of(spec: ExperimentSpec) -> Option<Self> {
        let profiles = spec.candidates.iter().map(|one| one.profile.clone());
        Some(Self {
            workload: spec.workload.clone()?,
            profiles: profiles.collect::<Option<_>>()?,
            spec,
        })
    }

    pub fn spec(&self) -> &ExperimentSpec {
        &self.spec
    }

    pub fn into_spec(self) -> ExperimentSpec {
        self.spec
    }

    pub fn workload(&self) -> &WorkloadSpec {
        &self.workload
    }

    /// In the order of the spec.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        let all = self.spec.candidates.iter().zip(&self.profiles);
        all.map(|(spec, profile)| Candidate {
            workload: &self.workload,
            spec,
            profile,
        })
    }
}

/// A candidate with the workload and the profile that it names.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub workload: &'a WorkloadSpec,
    pub spec: &'a CandidateSpec,
    pub profile: &'a ProfileSpec,
}

impl<'a> Candidate<'a> {
    /// `None` if the experiment has no workload or the candidate no profile. A draft is linted and
    /// previewed candidate by candidate, whatever the others lack.
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
}
