//! Wait times and retry limits.

use chrono::TimeDelta;

/// Intervals and limits of the scheduler, on the domain clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Wait before repeating a poll that showed less than expected: no job, no stop, a pool that
    /// still waits.
    pub poll: TimeDelta,
    /// Interval between polls of a running job when no listing or event requests one.
    pub net: TimeDelta,
    /// How long to hold a cancelled attempt whose create may have been sent before concluding that
    /// no job exists.
    pub quarantine: TimeDelta,
    /// First wait after a throttle or a failure; later waits double, up to 64 times this one.
    pub backoff: TimeDelta,
    /// How many attempts of one trial may be unsuccessful.
    pub attempts_max: u32,
    /// Consecutive polls in which a running job may be absent before it counts as vanished.
    pub absent_max: u32,
    /// Creates that a quota may reject before the trial is parked: with the longest backoff, about
    /// a day.
    pub over_quota_max: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            poll: TimeDelta::seconds(30),
            net: TimeDelta::hours(6),
            quarantine: TimeDelta::minutes(10),
            backoff: TimeDelta::seconds(15),
            attempts_max: 4,
            absent_max: 5,
            over_quota_max: 100,
        }
    }
}

impl Policy {
    /// Exponential, capped backoff with jitter over its upper half, so that callers rejected
    /// together do not retry together. `tries` counts from 0; `salt` differs between callers, so
    /// the jitter needs no randomness.
    pub fn backoff_after(&self, tries: u32, salt: &str) -> TimeDelta {
        let whole = self.backoff * (1i32 << tries.min(6));
        // FNV-1a.
        let hash = salt
            .bytes()
            .chain(tries.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let share = i32::try_from(hash >> 32 & 0x3ff).unwrap_or_default();
        whole / 2 + whole * share / 2048
    }
}
