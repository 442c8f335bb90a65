//! How long to wait, and how often to try again.

use chrono::TimeDelta;

/// Intervals and bounds of the scheduler, on the domain clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Until a look is repeated that showed less than it should: no job, no stop, a pool that still
    /// waits.
    pub poll: TimeDelta,
    /// Between two looks at a running job when no listing and no event asks for one.
    pub net: TimeDelta,
    /// How long a cancelled attempt that may have been sent is held before we believe that no job
    /// exists.
    pub quarantine: TimeDelta,
    /// First wait after a throttle or a failure; doubles up to 64 times.
    pub backoff: TimeDelta,
    /// Attempts of one trial that may come to nothing.
    pub attempts_max: u32,
    /// Looks in a row at which a running job may be absent before it counts as vanished.
    pub absent_max: u32,
    /// Creates that a quota may turn down before the trial is parked: with the longest backoff,
    /// about a day.
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
    /// Exponential, capped, and spread over its upper half: whoever was turned down together does
    /// not come back together. `tries` counts from 0; `salt` is what differs between those who
    /// wait, so that the spread needs no dice.
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
