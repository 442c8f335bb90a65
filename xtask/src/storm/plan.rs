//! What happens to one seed: drawn in advance, so that a failing seed can be replayed.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Named points between two transactions at which the service can be killed or frozen
/// (`crates/process/src/crash.rs`).
const BETWEEN: [&str; 24] = [
    "before_schedule",
    "after_schedule",
    "after_move_schedule",
    "after_delete_schedule",
    "before_steps",
    "after_step",
    "before_register",
    "after_register",
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
    "before_metrics",
    "after_metrics",
];

/// Points inside a transaction, holding row locks. Those that hold a claim are drawn more often,
/// because others must take it over.
const WITHIN: [&str; 8] = [
    "in_step",
    "in_admission",
    "in_plan",
    "in_plan",
    "in_settlement",
    "in_settlement",
    "in_listing",
    "in_metrics",
];

/// Every fault, as it is counted, and what people and programs do meanwhile.
pub(super) const FAULTS: [&str; 68] = [
    "algorithm_error",
    "archive",
    "away",
    "billing_late",
    "billing_low",
    "budget_change",
    "candidate_added",
    "checkpoint_stall",
    "clock_jump",
    "clock_set_back",
    "correction",
    "cut_connections",
    "database_copy",
    "database_kill",
    "deleting",
    "denied_again",
    "done_then_500",
    "done_then_reset",
    "done_then_timeout",
    "duplicate_event",
    "endpoint_deleted_early",
    "endpoint_failed",
    "endpoint_rolled_back",
    "expired_credentials",
    "expired_page",
    "failed_series",
    "feed_resumed",
    "foreign_credentials",
    "forgotten_job",
    "freeze",
    "freeze_at_point",
    "freeze_for_good",
    "freeze_in_transaction",
    "full_run",
    "http_load",
    "internal_error",
    "kill",
    "kill_at_point",
    "kill_in_transaction",
    "lag",
    "late_event",
    "lost_event",
    "metric_pages",
    "no_capacity",
    "no_spot_capacity",
    "odd_status",
    "partial_metrics",
    "pause",
    "pending",
    "price_change",
    "reset_before",
    "restored_backup",
    "retry",
    "server_error",
    "short_page",
    "silent_connections",
    "silent_drop",
    "slow_reply",
    "step_reused",
    "strangers_job",
    "throttle",
    "timeout_before",
    "truncated_reply",
    "unknown_code",
    "upgrade",
    "webhook_gone",
    "webhook_later",
    "cancel",
];

/// How fast virtual time runs in a seed, and where it begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Virtual seconds per real second.
    pub(super) factor: i32,
    pub(super) origin: &'static str,
    /// Virtual seconds between two listings.
    pub(super) poll_seconds: u32,
}

/// Minutes of a job pass in seconds.
pub(super) const USUAL: Pace = Pace {
    factor: 300,
    origin: "2026-11-20T00:00:00Z",
    poll_seconds: 600,
};
/// Hours of a job pass in seconds; little else, the end of a month, and a price change.
const QUIET: Pace = Pace {
    factor: 2400,
    origin: "2026-11-30T20:00:00Z",
    poll_seconds: 3600,
};
/// One seed in this many is quiet.
const QUIET_EVERY: u64 = 10;
/// For seeds with a second database: the fence is renewed every minute, which must be long for a
/// process.
const FENCED: Pace = Pace {
    factor: 20,
    origin: "2026-11-20T00:00:00Z",
    poll_seconds: 40,
};
/// One seed in this many has a second database, a copy and a backup in turn.
const FENCED_EVERY: u64 = 20;

/// One fault injected into the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blow {
    Kill,
    /// All replicas are gone for an hour of the region's time.
    Away,
    Freeze,
    /// A replica is stopped and never continues.
    FreezeForGood,
    CutConnections,
    /// Connections to Postgres stay open, but pass nothing any more.
    SilenceConnections,
    /// For a while the credentials belong to another account.
    ForeignCredentials,
    /// The database is migrated by a newer program, whose replicas then never appear.
    Upgrade,
    /// Someone else's job takes up half of a quota.
    StrangersJob,
    /// A replica restarts with a clock that is off by this many virtual seconds.
    ClockJump(i64),
    Cancel,
}

/// The course of a seed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) replicas: usize,
    pub(super) pace: Pace,
    /// Few faults and fast time: covers what happens every few hours, at the end of a month, and
    /// with a new price.
    pub(super) is_quiet: bool,
    /// What becomes of a second database of the installation, if there is one.
    pub(super) twin: Option<Kind>,
    pub(super) push: bool,
    /// The region's faults during the storm.
    pub(super) region: Value,
    /// Times (milliseconds) and faults, in order.
    pub(super) injected: Vec<(u64, Blow)>,
    /// What the replicas are armed with as they start, in order; later starts are unarmed.
    pub(super) armed: Vec<String>,
    pub(super) cancels_what_freezes: bool,
    /// Whether a replica that freezes within a transaction never continues, if there is another.
    pub(super) loses_what_freezes: bool,
    /// Whether other users' requests run alongside.
    pub(super) has_load: bool,
    /// Whether a replica's clock is wrong for a while.
    pub(super) is_clock_off: bool,
    pub(super) dice: StdRng,
}

/// Duration of the storm.
pub(super) const STORM_MILLIS: u64 = 14_000;

impl Plan {
    /// Draws a plan. `is_one_frozen`: three replicas, one of which freezes for good.
    pub(super) fn draw(seed: u64, is_one_frozen: bool) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        let is_quiet = seed % QUIET_EVERY == QUIET_EVERY - 1;
        let is_fenced = is_fenced(seed) && !is_one_frozen;
        let is_calm = is_quiet || is_fenced;
        let calmer = if is_calm { 0.2 } else { 1.0 };
        let mut region = region(&mut dice, calmer);
        let mut injected: Vec<(u64, Blow)> = (0..if is_calm { 2 } else { dice.random_range(2..8) })
            .map(|_| blow(&mut dice))
            .collect();
        let mut replicas = dice.random_range(1..=3);
        if is_one_frozen {
            replicas = 3;
        }
        if replicas > 1 && (is_one_frozen || dice.random_bool(0.2)) {
            injected.push((dice.random_range(500..STORM_MILLIS), Blow::FreezeForGood));
        }
        injected.sort_unstable_by_key(|(at, _)| *at);
        let mut armed: Vec<String> = (0..dice.random_range(1..6))
            .map(|_| arm(&mut dice, replicas == 1))
            .collect();
        let cancels_what_freezes = dice.random_bool(0.6);
        if replicas > 1 && cancels_what_freezes && dice.random_bool(0.6) {
            // A create that arrives late, for a trial cancelled meanwhile: the case quarantines
            // exist for.
            armed.insert(
                0,
                format!("freeze@before_create:{}", dice.random_range(1..4)),
            );
        }
        if is_fenced {
            // The effect of a cancel shows in only one of two databases, and a replica whose clock
            // is off counts as a stranger.
            injected.retain(|(_, blow)| {
                matches!(blow, Blow::Kill | Blow::Freeze | Blow::CutConnections)
            });
            armed.clear();
        }
        // A replica whose clock is off by more than the wait for a bill accepts the first one it
        // gets.
        let is_clock_off = injected
            .iter()
            .any(|(_, blow)| matches!(blow, Blow::ClockJump(_)))
            || armed.iter().any(|one| one.starts_with("set-back"));
        if is_clock_off && let Some(region) = region.as_object_mut() {
            region.retain(|fault, _| !fault.starts_with("billing_"));
        }
        Self {
            replicas,
            pace: match (is_quiet, is_fenced) {
                (true, _) => QUIET,
                (false, true) => FENCED,
                (false, false) => USUAL,
            },
            is_quiet,
            twin: is_fenced.then_some(if (seed / FENCED_EVERY).is_multiple_of(2) {
                Kind::Copy
            } else {
                Kind::Backup
            }),
            push: dice.random_bool(0.5),
            region,
            injected,
            armed,
            cancels_what_freezes,
            loses_what_freezes: replicas > 1 && dice.random_bool(0.5),
            has_load: dice.random_bool(0.5),
            is_clock_off,
            dice,
        }
    }
}

/// How often the region fails, by kind of fault.
fn region(dice: &mut StdRng, calmer: f64) -> Value {
    let mut share = |most: f64| {
        if dice.random_bool(0.6) {
            dice.random_range(0.0..most) * calmer
        } else {
            0.0
        }
    };
    json!({
        "throttle": share(0.10), "server_error": share(0.05), "lost_reply": share(0.30), "forgotten_token": share(0.30), "hang_before": share(0.03),
        "hang_after": share(0.05), "reset_before": share(0.05), "reset_after": share(0.05), "truncate": share(0.05),
        "slow": share(0.05), "odd_status": share(0.03), "no_capacity": share(0.15), "internal_error": share(0.10),
        "algorithm_error": share(0.05), "event_loss": share(0.50), "event_duplicate": share(0.50),
        "event_late": share(0.50), "silent_drop": share(0.10), "checkpoint_stall": share(0.30),
        "deny_again": share(0.20), "expired_credentials": share(0.03), "unknown_code": share(0.03),
        "lag": share(0.30), "forgotten": share(0.15), "billing_late": share(0.30), "billing_low": share(0.20), "short_pages": share(0.30),
        "expired_page": share(0.60), "pending": share(0.30), "no_spot_capacity": share(0.20),
        "deleting": share(0.30), "partial_metrics": share(0.20), "failed_series": share(0.10), "metric_pages": share(0.30),
    })
}

/// What becomes of the second database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is started beside its original, and told to cancel everything.
    Copy,
    /// It replaces its original, which is lost together with everything done since.
    Backup,
}

/// Whether a seed has a second database; it then takes minutes instead of half of one.
pub(super) fn is_fenced(seed: u64) -> bool {
    seed % FENCED_EVERY == FENCED_EVERY / 2 + 3
}

fn blow(dice: &mut StdRng) -> (u64, Blow) {
    let blow = match dice.random_range(0..17) {
        0..4 => Blow::Kill,
        4..6 => Blow::Freeze,
        6..8 => Blow::CutConnections,
        8..10 => Blow::SilenceConnections,
        10 => Blow::ClockJump(dice.random_range(-3600..3600)),
        11 => Blow::ForeignCredentials,
        12 => Blow::StrangersJob,
        13 => Blow::Upgrade,
        14 => Blow::Away,
        _ => Blow::Cancel,
    };
    (dice.random_range(500..STORM_MILLIS), blow)
}

/// Draws what a replica is armed with. `is_alone`: only without other replicas does it show whether
/// a clock that was set back stops the service.
fn arm(dice: &mut StdRng, is_alone: bool) -> String {
    let mut of = |points: &[&'static str]| points.choose(dice).copied().unwrap_or("after_create");
    let (within, between) = (of(&WITHIN), of(&BETWEEN));
    let (what, point) = match dice.random_range(0..10) {
        0..3 => ("freeze", within),
        3 => ("kill", within),
        4 => ("set-back", between),
        7..9 if is_alone => ("set-back", between),
        // Freezing is worst between the last check and the send or the write.
        5 => ("freeze", "before_last_metrics"),
        6 => ("freeze", "before_create"),
        _ => ("kill", between),
    };
    format!("{what}@{point}:{}", dice.random_range(1..4))
}

/// `300` is the seeds from 0 on, `100..150` a part of a longer run.
pub(super) fn seeds(text: &str) -> Result<Vec<u64>, String> {
    let (from, to) = text.split_once("..").unwrap_or(("0", text));
    let number = |text: &str| {
        text.parse::<u64>()
            .map_err(|_| format!("{text:?} is no number"))
    };
    Ok((number(from)?..number(to)?).collect())
}
