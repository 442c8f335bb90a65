//! The linter: rules that an experiment must keep, each with an id, a pointer, a way out and a source.
//!
//! A rule is a function in [`request`] (the whole document) or [`candidate`] (one candidate on its hardware), listed in
//! [`lint`]. Errors stop the request; refusals stop one candidate; warnings and notes go with the plan.

mod candidate;
mod request;

use crate::comparison;
use crate::finding::Finding;
use crate::price::Price;
use crate::spec::{ExperimentSpec, ProfileSpec, WorkloadSpec};

/// Checks an experiment whose workload and profiles have been filled in. `prices` are those in force.
pub fn lint(spec: &ExperimentSpec, prices: &[Price]) -> Vec<Finding> {
    let mut findings = Vec::new();
    request::experiment(spec, &mut findings);
    request::limits(spec, &mut findings);
    request::spot(spec, &mut findings);
    match &spec.workload {
        None => findings.push(request::workload_missing()),
        Some(workload) => request::workload(workload, &mut findings),
    }
    for (index, _) in spec.candidates.iter().enumerate() {
        candidate::check(spec, index, prices, &mut findings);
    }
    findings.extend(comparability(spec).into_iter().flatten());
    findings
}

/// One entry per candidate: the finding that keeps it out of the ranking.
pub fn comparability(spec: &ExperimentSpec) -> Vec<Option<Finding>> {
    let profiles: Vec<ProfileSpec> = spec.candidates.iter().filter_map(|candidate| candidate.profile.clone()).collect();
    if profiles.len() != spec.candidates.len() {
        return vec![None; spec.candidates.len()];
    }
    let accelerators: Vec<u32> = spec.candidates.iter().map(candidate::accelerators).collect();
    let identities: Vec<comparison::Identity> = spec
        .candidates
        .iter()
        .zip(&profiles)
        .zip(&accelerators)
        .map(|((candidate, profile), gpus)| comparison::Identity {
            candidate: candidate.name.clone(),
            global_batch: profile.global_batch(*gpus),
            hyperparameters: profile.hyperparameters.clone(),
        })
        .collect();
    comparison::incomparable(&identities, &profiles, &accelerators)
}

/// The workload of a spec that has passed the linter.
pub(crate) fn filled(spec: &ExperimentSpec) -> Option<&WorkloadSpec> {
    spec.workload.as_ref()
}

#[cfg(test)]
mod tests;
