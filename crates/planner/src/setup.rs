//! The input to estimates: what determines memory and speed. Nothing is decided here.

use bakeoff_domain::catalog;
use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::{ModelShape, is_sound};
use bakeoff_domain::spec::{Candidate, Precision, ProfileSpec};

/// A model under a profile on a cluster: determines memory and speed.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    pub model: &'a ModelShape,
    pub profile: &'a ProfileSpec,
    pub precision: Precision,
    pub cluster: Cluster<'a>,
}

impl<'a> Setup<'a> {
    /// A candidate on the catalog's row of its type.
    pub fn of(candidate: Candidate<'a>, instance: &'a InstanceType) -> Self {
        Self {
            model: &candidate.workload.model,
            profile: candidate.profile,
            precision: candidate.workload.precision,
            cluster: Cluster {
                instance,
                count: candidate.spec.instance_count,
            },
        }
    }

    /// The setup of a candidate whose memory and speed can be computed; `None` if the catalog lacks its
    /// type, its model is not sound, or one replica needs more accelerators than it has.
    pub fn resolved(candidate: Candidate<'a>) -> Option<Self> {
        let is_possible = is_sound(&candidate.workload.model)
            && candidate.profile.accelerators_per_replica() <= candidate.spec.accelerators();
        let instance = catalog::find(&candidate.spec.instance_type).filter(|_| is_possible)?;
        Some(Self::of(candidate, instance))
    }

    /// The same setup under another profile.
    #[must_use]
    pub fn under<'b>(self, profile: &'b ProfileSpec) -> Setup<'b>
    where
        'a: 'b,
    {
        Setup { profile, ..self }
    }
}
