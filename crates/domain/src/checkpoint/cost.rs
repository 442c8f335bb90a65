//! What keeping, restoring and losing checkpoints costs; when they are due is in [`crate::lifecycle`].

use chrono::TimeDelta;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use super::Checkpoint;
use crate::money::Usd;

const GB: u64 = 1_000_000_000;
/// Prefixes of 92 GB were restored; one of 369 GB failed its job before the container started.
const RESTORED_GB: u64 = 92;
/// How often checkpoints may be saved, in seconds: from five minutes to eight hours.
const INTERVALS: [u32; 7] = [300, 600, 1_800, 3_600, 7_200, 14_400, 28_800];

/// A month in S3 Standard, the first 50 TB in us-east-1 (https://aws.amazon.com/s3/pricing, 2026-11).
pub fn usd_per_month(bytes: u64) -> Usd {
    let per_gb = Decimal::new(23, 3);
    Usd(Decimal::from(bytes) / Decimal::from(GB) * per_gb)
}

/// What is to be feared of a prefix that may be too large to be restored.
pub fn restore_warning(bytes: u64) -> Option<String> {
    let gb = bytes / GB;
    (gb > RESTORED_GB).then(|| {
        format!(
            "{gb} GB lie below this prefix, and a restart restores all of it: {RESTORED_GB} GB were seen to work, 369 GB \
             to fail the job before its container starts. Keep fewer checkpoints"
        )
    })
}

/// What an interruption costs when checkpoints are this far apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    pub interval_seconds: u32,
    /// Expected: an interruption comes at any time between two checkpoints, on average in the middle, and
    /// what was done since the last is paid for again.
    pub expected_usd: Usd,
    /// Just before the next checkpoint.
    pub most_usd: Usd,
}

/// The loss at each interval, and at the one in use, for a job on so many instances at this price.
pub fn losses(usd_per_hour: Usd, instances: u32, in_use: Option<u32>) -> Vec<Loss> {
    let mut intervals = INTERVALS.to_vec();
    intervals.extend(in_use);
    intervals.sort_unstable();
    intervals.dedup();
    let loss = |interval_seconds: u32| {
        let all = usd_per_hour.0 * Decimal::from(instances);
        let most = all * Decimal::from(interval_seconds) / Decimal::from(3_600);
        Loss {
            interval_seconds,
            expected_usd: Usd(most / Decimal::TWO).rounded(),
            most_usd: Usd(most).rounded(),
        }
    };
    intervals.into_iter().map(loss).collect()
}

/// What an interval costs a run that is interrupted once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntervalCost {
    pub interval_seconds: u32,
    /// Expected: half an interval of work is done again, or half the run if it ends before its first checkpoint.
    pub lost_usd: Usd,
    /// Saving all checkpoints of the run, [`SAVE_SECONDS`] each.
    pub saving_usd: Usd,
}

impl IntervalCost {
    pub fn total_usd(&self) -> Usd {
        self.lost_usd + self.saving_usd
    }
}

/// Assumed of a checkpoint whose size is not known yet: training stands still for a minute while it is saved.
const SAVE_SECONDS: u64 = 60;
/// A better interval is worth telling from this share of the run's cost on.
const WORTH_PERCENT: u64 = 2;

/// What an interval costs a run of so many seconds at the price of all its instances, if it is interrupted once.
pub fn interval_cost(usd_per_hour: Usd, run_seconds: u64, interval_seconds: u32) -> IntervalCost {
    let interval = u64::from(interval_seconds.max(1));
    let usd = |seconds: u64| {
        Usd(usd_per_hour.0 * Decimal::from(seconds) / Decimal::from(3_600)).rounded()
    };
    IntervalCost {
        interval_seconds,
        lost_usd: usd(interval.min(run_seconds) / 2),
        saving_usd: usd(run_seconds / interval * SAVE_SECONDS),
    }
}

/// The interval of [`losses`] that costs such a run less than the one in use, if that is worth a change: by a dollar and
/// by 2 % of the run.
pub fn better_interval(usd_per_hour: Usd, run_seconds: u64, in_use: u32) -> Option<IntervalCost> {
    let cost = |interval| interval_cost(usd_per_hour, run_seconds, interval);
    let best = INTERVALS
        .map(cost)
        .into_iter()
        .min_by_key(IntervalCost::total_usd)?;
    let run = usd_per_hour.0 * Decimal::from(run_seconds) / Decimal::from(3_600);
    let least = (run * Decimal::from(WORTH_PERCENT) / Decimal::ONE_HUNDRED).max(Decimal::ONE);
    let saved = cost(in_use).total_usd() - best.total_usd();
    (saved.0 >= least).then_some(best)
}

/// The time between the two newest whole checkpoints of a series, in seconds; `None` with fewer.
pub fn seen_interval(checkpoints: &[Checkpoint]) -> Option<u32> {
    let newest = checkpoints.iter().rfind(|one| one.is_complete())?;
    let before = checkpoints
        .iter()
        .rfind(|one| one.is_complete() && one.step < newest.step && one.is_of_series(newest))?;
    let between: TimeDelta = newest.written_at - before.written_at;
    u32::try_from(between.num_seconds()).ok().filter(|s| *s > 0)
}
