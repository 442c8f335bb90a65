//! What happens to one seed: drawn in advance, so that a failing seed can be played again.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Named points of the service at which it can be killed or frozen (`src/crash.rs`).
const POINTS: [&str; 14] = [
    "claimed",
    "before_plan",
    "after_plan",
    "before_create",
    "after_create",
    "after_running",
    "before_stop",
    "after_stop",
    "before_settle",
    "after_settle",
    "mid_listing",
    "before_end_pool",
    "after_end_pool",
    "before_create",
];

/// One thing that is done to the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    Kill,
    Freeze,
    CutConnections,
    /// A replica comes back with a clock that is off, by this many virtual seconds.
    ClockJump(i64),
    Cancel,
}

/// The course of a seed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) replicas: usize,
    pub(super) push: bool,
    /// What the region does wrong while it storms.
    pub(super) region: Value,
    /// Moments (milliseconds) and blows, in order.
    pub(super) blows: Vec<(u64, Blow)>,
    /// What the replicas are armed with as they start, in order; then they start unarmed.
    pub(super) armed: Vec<String>,
    pub(super) cancels_what_freezes: bool,
    pub(super) dice: StdRng,
}

/// How long it storms.
pub(super) const STORM_MILLIS: u64 = 14_000;

impl Plan {
    pub(super) fn draw(seed: u64) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut share = |most: f64| if dice.random_bool(0.6) { dice.random_range(0.0..most) } else { 0.0 };
        let region = json!({
            "throttle": share(0.10), "server_error": share(0.05), "lost_reply": share(0.30), "hang_before": share(0.03),
            "hang_after": share(0.05), "reset_before": share(0.05), "reset_after": share(0.05), "truncate": share(0.05),
            "slow": share(0.05), "odd_status": share(0.03), "no_capacity": share(0.15), "internal_error": share(0.10),
            "algorithm_error": share(0.05), "event_loss": share(0.50), "event_duplicate": share(0.50),
            "event_late": share(0.50), "silent_drop": share(0.10), "checkpoint_stall": share(0.30),
        });
        let mut blows: Vec<(u64, Blow)> = (0..dice.random_range(2..7))
            .map(|_| {
                let blow = match dice.random_range(0..10) {
                    0..4 => Blow::Kill,
                    4..6 => Blow::Freeze,
                    6..8 => Blow::CutConnections,
                    8 => Blow::ClockJump(dice.random_range(-3600..3600)),
                    _ => Blow::Cancel,
                };
                (dice.random_range(500..STORM_MILLIS), blow)
            })
            .collect();
        blows.sort_unstable_by_key(|(at, _)| *at);
        let armed = (0..dice.random_range(1..6)).map(|_| arm(&mut dice)).collect();
        Self {
            replicas: dice.random_range(1..=3),
            push: dice.random_bool(0.5),
            region,
            blows,
            armed,
            cancels_what_freezes: dice.random_bool(0.5),
            dice,
        }
    }

    pub(super) fn has_clock_jump(&self) -> bool {
        self.blows.iter().any(|(_, blow)| matches!(blow, Blow::ClockJump(_)))
    }
}

fn arm(dice: &mut StdRng) -> String {
    let point = POINTS.choose(dice).copied().unwrap_or("after_create");
    // Freezing is worst between the last check and the send.
    let what = if point == "before_create" && dice.random_bool(0.7) { "freeze" } else { "kill" };
    format!("{what}@{point}:{}", dice.random_range(1..4))
}
