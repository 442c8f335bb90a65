//! How far apart a spot candidate's checkpoints are: what the first interruption will cost, before it does.

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::checkpoint::cost;
use bakeoff_domain::finding::{Finding, Operation};
use bakeoff_domain::money::Usd;
use bakeoff_domain::number::{self, real};
use bakeoff_domain::spec::{Candidate, ExperimentSpec, PurchaseOption};
use rust_decimal::Decimal;

use super::super::LintContext;
use super::is_computable;
use crate::predict::Case;
use crate::rules::found;
use crate::setup::Setup;

/// Finds checkpoints so far apart that one interruption costs more than closer ones would: the work between them, or
/// the time that saving them takes.
pub(super) fn interval(
    spec: &ExperimentSpec,
    candidate: Candidate<'_>,
    instance: &InstanceType,
    known: LintContext<'_>,
    findings: &mut Vec<Finding>,
) {
    let is_spot = candidate
        .spec
        .purchase_options
        .contains(&PurchaseOption::Spot);
    let Some(checkpoint) = spec.checkpoint.as_ref().filter(|_| is_spot) else {
        return;
    };
    let mut prices = known.prices.iter();
    let price = prices
        .find(|price| price.instance_type == instance.instance_type && price.region == spec.region);
    let case = is_computable(candidate).then(|| Case::new(Setup::of(candidate, instance)));
    let (Some(price), Some(case)) = (price, case.flatten()) else {
        return;
    };
    let [_, tokens_per_second, _] = known.calibration.tokens_per_second(&case);
    let expected = number::whole(real(candidate.workload.trial_tokens) / tokens_per_second);
    let Some(expected) = expected.and_then(|seconds| u64::try_from(seconds).ok()) else {
        return;
    };
    let runtime = expected.min(u64::from(spec.max_runtime_seconds));
    let count = Decimal::from(candidate.spec.instance_count);
    let usd_per_hour = Usd(price.usd_per_hour.0 * count);
    let asked = checkpoint.interval_seconds;
    let Some(best) = cost::better_interval(usd_per_hour, runtime, asked) else {
        return;
    };
    let now = cost::interval_cost(usd_per_hour, runtime, asked);
    findings.push(
        found("spot-checkpoint-interval", "/checkpoint/interval_seconds")
            .says(format!(
                "one interruption of {} ({:.1} h of training) would cost {} on average: {} of work since the last checkpoint, \
                 {:.1} h apart, and {} of saving them, at a minute each; {:.0} minutes apart, {}",
                candidate.spec.name,
                hours(runtime),
                now.total_usd(),
                now.lost_usd,
                hours(u64::from(asked)),
                now.saving_usd,
                f64::from(best.interval_seconds) / 60.0,
                best.total_usd(),
            ))
            .fix(format!("set checkpoint.interval_seconds to {}", best.interval_seconds))
            .patch(vec![Operation::set("/checkpoint/interval_seconds", best.interval_seconds)]),
    );
}

fn hours(seconds: u64) -> f64 {
    real(seconds) / 3600.0
}
