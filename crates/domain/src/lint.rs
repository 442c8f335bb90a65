//! The linter: rules that an experiment must keep, each with an id, a pointer, a way out and a source.
//!
//! A rule is a function in [`request`] (the whole document) or [`candidate`] (one candidate on its hardware), listed in
//! [`lint`]. Errors stop the request; refusals stop one candidate; warnings and notes go with the plan.

mod candidate;
mod request;

use crate::comparison;
use crate::finding::{Finding, Severity};
use crate::price::Price;
use crate::spec::{ExperimentSpec, WorkloadSpec};

/// Checks an experiment whose workload and profiles have been filled in. `prices` are those in force.
pub fn lint(spec: &ExperimentSpec, prices: &[Price]) -> Vec<Finding> {
    let mut findings = Vec::new();
    request::experiment(spec, &mut findings);
    request::limits(spec, &mut findings);
    request::spot(spec, &mut findings);
    request::queueing(spec, &mut findings);
    match &spec.workload {
        None => findings.push(request::workload_missing()),
        Some(workload) => request::workload(workload, &mut findings),
    }
    for (index, _) in spec.candidates.iter().enumerate() {
        candidate::check(spec, index, prices, &mut findings);
    }
    findings.extend(comparability(spec, &findings).into_iter().flatten());
    findings
}

/// One entry per candidate: the finding that keeps it out of the ranking. What is refused by `findings` has none, and does
/// not count for what is usual.
pub fn comparability(spec: &ExperimentSpec, findings: &[Finding]) -> Vec<Option<Finding>> {
    let mut places = Vec::new();
    let mut identities = Vec::new();
    for (index, candidate) in spec.candidates.iter().enumerate() {
        let at = format!("/candidates/{index}/");
        let is_refused = findings.iter().any(|f| f.severity >= Severity::Refused && f.pointer.starts_with(&at));
        let Some(profile) = candidate.profile.as_ref().filter(|_| !is_refused) else { continue };
        places.push(index);
        identities.push(comparison::Identity {
            index,
            candidate: candidate.name.clone(),
            global_batch: profile.global_batch(candidate::accelerators(candidate)),
            accelerators: candidate::accelerators(candidate),
            profile: profile.clone(),
        });
    }
    let mut all = vec![None; spec.candidates.len()];
    for (place, finding) in places.into_iter().zip(comparison::incomparable(&identities)) {
        if let Some(slot) = all.get_mut(place) {
            *slot = finding;
        }
    }
    all
}

/// The workload of a spec that has passed the linter.
pub(crate) fn filled(spec: &ExperimentSpec) -> Option<&WorkloadSpec> {
    spec.workload.as_ref()
}

#[cfg(test)]
mod tests;
