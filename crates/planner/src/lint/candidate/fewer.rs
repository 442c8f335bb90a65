//! Whether one instance would do where several are asked for: each token is then cheaper, because nothing waits for
//! the network between instances.

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::finding::Finding;
use bakeoff_domain::number::real;
use bakeoff_domain::spec::{Candidate, ExperimentSpec, Minimize, ProfileSpec};

use crate::predict::fit::{Verdict, fit};
use crate::predict::{Calibration, Case};
use crate::rules::found;
use crate::setup::Setup;

/// Savings below this many percent are not worth a word: the law is not that exact.
const WORTH_PERCENT: f64 = 3.0;
/// The most micro-steps per optimiser step that are suggested.
const ACCUMULATION_MAX: u32 = 1024;

pub(super) fn instances(
    spec: &ExperimentSpec,
    candidate: Candidate<'_>,
    instance: &InstanceType,
    calibration: &Calibration,
    at: &str,
    findings: &mut Vec<Finding>,
) {
    let count = candidate.spec.instance_count;
    let asks_for_time = spec.objective.minimize == Minimize::Time;
    let (Some(profile), false) = (on_one(candidate, instance), count < 2 || asks_for_time) else {
        return;
    };
    let several = Setup::of(candidate, instance);
    let one = Setup {
        profile: &profile,
        cluster: Cluster { instance, count: 1 },
        ..several
    };
    let (Some(together), Some(alone)) = (Case::new(several), Case::new(one)) else {
        return;
    };
    if fit(one).verdict != Verdict::Fits {
        return;
    }
    let [_, speed_together, _] = calibration.tokens_per_second(&together);
    let [slowest, speed, _] = calibration.tokens_per_second(&alone);
    let hours = real(candidate.workload.total_tokens) / slowest / 3600.0;
    let deadline = spec.objective.full_run_deadline_hours;
    let keeps_deadline = deadline.is_none_or(|deadline| hours <= deadline);
    let times = speed_together / speed;
    let saved = 100.0 * (1.0 - times / f64::from(count));
    if saved < WORTH_PERCENT || !keeps_deadline {
        return;
    }
    let name = &instance.instance_type;
    findings.push(
        found("fewer-instances", format!("{at}/instance_count"))
            .says(format!(
                "the model fits on one {name}, where each token would cost {saved:.0} % less: {count} of them cost {count} times as much and are {times:.1} times as fast (predicted)"
            ))
            .fix(format!(
                "set instance_count 1 and gradient_accumulation_steps {}, which keeps the global batch, unless time matters more than money",
                profile.gradient_accumulation_steps
            )),
    );
}

/// The profile with which one instance makes the same global batch; `None` if a replica needs more than one.
fn on_one(candidate: Candidate<'_>, instance: &InstanceType) -> Option<ProfileSpec> {
    let profile = candidate.profile;
    let accumulation = profile
        .gradient_accumulation_steps
        .checked_mul(candidate.spec.instance_count)?;
    let is_possible = profile.accelerators_per_replica() <= instance.accelerator_count;
    (is_possible && accumulation <= ACCUMULATION_MAX).then(|| ProfileSpec {
        gradient_accumulation_steps: accumulation,
        hybrid_shard_degree: None,
        ..profile.clone()
    })
}
