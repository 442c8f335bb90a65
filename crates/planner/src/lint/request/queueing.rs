//! Rules on how an experiment waits, and by what it is found: priority, warm pools, checkpoints' interval, labels.

use bakeoff_domain::finding::Finding;
use bakeoff_domain::lifecycle::pool::KEEP_ALIVE_SECONDS_MAX;
use bakeoff_domain::spec::{ExperimentSpec, PRIORITY_MAX, PurchaseOption, labels};

use crate::rules::found;

/// Checks warm pools, priority and labels.
pub(in crate::lint) fn queueing(spec: &ExperimentSpec, findings: &mut Vec<Finding>) {
    findings.extend(labels::flaws(&spec.labels).into_iter().map(|flaw| {
        found("labels", format!("/labels{}", flaw.pointer))
            .says(flaw.detail)
            .fix(flaw.fix)
    }));
    if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&spec.priority) {
        findings.push(
            found("priority", "/priority")
                .says(format!("the priority is {}", spec.priority))
                .fix(format!(
                    "choose -{PRIORITY_MAX} to {PRIORITY_MAX}; 0 is usual"
                )),
        );
    }
    if spec
        .checkpoint
        .as_ref()
        .is_some_and(|checkpoint| !(60..=86_400).contains(&checkpoint.interval_seconds))
    {
        findings.push(
            found("checkpoint-interval", "/checkpoint/interval_seconds")
                .says("the checkpoint interval is too short or too long")
                .fix("set the seconds between two checkpoints, 60 to 86400"),
        );
    }
    let Some(seconds) = spec.keep_alive_seconds.filter(|seconds| *seconds > 0) else {
        return;
    };
    if seconds > KEEP_ALIVE_SECONDS_MAX {
        findings.push(
            found("keep-alive", "/keep_alive_seconds")
                .says(format!("instances would be kept warm for {seconds} s"))
                .fix(format!("choose at most {KEEP_ALIVE_SECONDS_MAX} (6 hours)")),
        );
    }
    let has = |option| {
        spec.candidates
            .iter()
            .any(|candidate| candidate.purchase_options.contains(&option))
    };
    if !has(PurchaseOption::OnDemand) {
        findings.push(
            found("keep-alive-with-spot", "/keep_alive_seconds")
                .says("every trial runs on spot, and SageMaker has no warm pools of spot instances")
                .fix("omit keep_alive_seconds, or add \"on_demand\" to a candidate's purchase_options"),
        );
    }
}
