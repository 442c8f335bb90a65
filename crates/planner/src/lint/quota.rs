//! The account's quotas against what an experiment asks for: what would wait for an increase, said
//! before it waits. Quotas change, so nothing is refused.

use bakeoff_domain::finding::Finding;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::quota::{Quota, Usage};
use bakeoff_domain::spec::{CandidateSpec, ExperimentSpec};

use crate::rules::found;

/// Finds the candidates that a quota cannot hold once. Quotas that are not known are no finding.
pub fn above_quota(spec: &ExperimentSpec, quotas: &[Quota]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, candidate) in spec.candidates.iter().enumerate() {
        for usage in usages(spec, candidate) {
            let quota = quotas
                .iter()
                .find(|one| one.instance_type == candidate.instance_type && one.usage == usage);
            if let Some(quota) = quota.filter(|quota| quota.instances < candidate.instance_count) {
                findings.push(finding(spec, index, candidate, quota));
            }
        }
    }
    findings
}

/// What a candidate's trials count against.
fn usages(spec: &ExperimentSpec, candidate: &CandidateSpec) -> Vec<Usage> {
    let options = candidate.purchase_options.iter();
    let mut usages: Vec<Usage> = options
        .map(|option| Usage::of(JobKind::Training, *option))
        .collect();
    if spec.keep_alive_seconds.is_some_and(|seconds| seconds > 0) {
        usages.push(Usage::WarmPool);
    }
    usages
}

fn finding(
    spec: &ExperimentSpec,
    index: usize,
    candidate: &CandidateSpec,
    quota: &Quota,
) -> Finding {
    let kind = &candidate.instance_type;
    let name = quota.usage.quota_name();
    let effect = match quota.usage {
        Usage::OnDemand | Usage::Processing | Usage::Transform | Usage::Endpoint => {
            "its trials wait until that is raised"
        }
        Usage::Spot => "its spot trials wait until that is raised",
        Usage::WarmPool => "none of its instances are kept for the next trial",
    };
    let needed = candidate.instance_count;
    found(
        "quota-too-low",
        format!("/candidates/{index}/instance_type"),
    )
    .says(format!(
        "the account's quota \"{kind} for {name}\" in {} is {}, and {} needs {needed}: {effect}",
        spec.region, quota.instances, candidate.name
    ))
    .fix(format!(
        "request an increase of \"{kind} for {name}\" to {needed} in Service Quotas"
    ))
}
