//! The input to estimates: what determines memory and speed. Nothing is decided here.

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::ModelShape;
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

    /// The same setup under another profile.
    #[must_use]
    pub fn under<'b>(self, profile: &'b ProfileSpec) -> Setup<'b>
    where
        'a: 'b,
    {
        Setup { profile, ..self }
    }
}
