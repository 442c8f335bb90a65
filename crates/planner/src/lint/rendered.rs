//! Checks a candidate's rendered request for what SageMaker itself would refuse.

use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::spec::{Candidate, ExperimentSpec};

use super::api::Call;
use super::shape;
use crate::render::{body, request};

/// As long as the names that attempts are given.
const LONGEST_NAME: &str = "bakeoff-00000000-00000000000000000000000000000000";
const LONGEST_MARKER: &str = "job_00000000000000000000000000000000";

/// Reports what SageMaker itself would refuse in the request that is sent, beyond what other rules
/// have reported.
pub(super) fn check(spec: &ExperimentSpec, index: usize, findings: &mut Vec<Finding>) {
    let at = format!("/candidates/{index}");
    let is_error =
        |finding: &Finding| finding.severity == Severity::Error && finding.candidate().is_none();
    if findings
        .iter()
        .any(|finding| is_error(finding) || finding.refuses(index))
    {
        return;
    }
    let candidate = spec.candidates.get(index);
    let Some(whole) = candidate.and_then(|candidate| Candidate::of(spec, candidate)) else {
        return;
    };
    for option in &whole.spec.purchase_options {
        let template = request::template(spec, whole, *option, 1);
        let request = request::for_attempt(&template, LONGEST_NAME, LONGEST_MARKER, LONGEST_MARKER);
        let mut refused = Vec::new();
        shape::check(Call::TrainingJob, &body::body(&request), &mut refused);
        for mut finding in refused
            .into_iter()
            .filter(|finding| finding.severity >= Severity::Refused)
        {
            finding.message = format!(
                "SageMaker would reject {} in this request: {}",
                finding.pointer, finding.message
            );
            finding.pointer = origin(&finding.pointer, &at);
            finding.patch = Vec::new();
            findings.push(finding);
        }
    }
}

/// The pointer in an experiment that a member of the request comes from.
fn origin(member: &str, at: &str) -> String {
    let first = member.split('/').nth(1).unwrap_or("");
    match first {
        "HyperParameters" => "/workload/hyperparameters".to_owned(),
        "AlgorithmSpecification" if member.contains("Metric") => "/workload/metrics".to_owned(),
        "AlgorithmSpecification" if member.contains("Entrypoint") => {
            "/workload/container_entrypoint".to_owned()
        }
        "AlgorithmSpecification" => "/workload/image".to_owned(),
        "InputDataConfig" => "/workload/channels".to_owned(),
        "OutputDataConfig" => "/workload/output_s3_uri".to_owned(),
        "RoleArn" => "/workload/role_arn".to_owned(),
        "CheckpointConfig" => "/checkpoint".to_owned(),
        "StoppingCondition" if member.ends_with("MaxWaitTimeInSeconds") => {
            "/max_wait_seconds".to_owned()
        }
        "StoppingCondition" => "/max_runtime_seconds".to_owned(),
        "RetryStrategy" => "/workload/techniques/retry_attempts".to_owned(),
        "DebugHookConfig" | "DebugRuleConfigurations" => "/workload/techniques/debugger".to_owned(),
        "ProfilerConfig" | "ProfilerRuleConfigurations" => {
            "/workload/techniques/profiler".to_owned()
        }
        "ResourceConfig" if member.ends_with("VolumeSizeInGB") => {
            format!("{at}/profile/volume_size_gb")
        }
        "ResourceConfig" => format!("{at}/instance_type"),
        "Environment" => format!("{at}/profile/environment"),
        _ => format!("{at}/profile"),
    }
}
