//! The figures of a storm: which must be zero, and how they are shown.

use serde_json::Value;

use super::verdict::Verdict;

pub(super) type Figure = (&'static str, fn(&Verdict) -> u32);
pub(super) type Count = (&'static str, fn(&Verdict) -> u64);

/// Figures that must be zero.
pub(super) const WRONGS: [Figure; 21] = [
    ("duplicates", |one| one.duplicates),
    ("lost", |one| one.lost),
    ("orphans", |one| one.orphans),
    ("over_budget", |one| one.over_budget),
    ("pools_leaked", |one| one.pools_leaked),
    ("unstopped", |one| one.unstopped),
    ("metrics_wrong", |one| one.metrics_wrong),
    ("trespasses", |one| one.trespasses),
    ("unnoticed_upgrades", |one| one.unnoticed),
    ("transactions_left_open", |one| one.left_open),
    ("panics", |one| one.panics),
    ("statuses_backwards", |one| one.backwards),
    ("model_packages_wrong", |one| one.packages_wrong),
    ("pipelines_wrong", |one| one.pipelines_wrong),
    ("webhooks_wrong", |one| one.webhooks_wrong),
    ("endpoints_leaked", |one| one.endpoints_leaked),
    ("endpoints_wrong", |one| one.endpoints_wrong),
    ("feed_wrong", |one| one.feed_wrong),
    ("false_alarms", |one| one.false_alarms),
    ("ci_wrong", |one| one.ci_wrong),
    ("missing_alarms", |one| one.missing_alarms),
];

/// What was seen of alarms, CI, endpoints and pipelines' budgets.
pub(super) const COUNTS: [Count; 8] = [
    ("alarms_judged", |one| one.alarms_judged),
    ("ci_runs_judged", |one| one.ci_runs),
    ("ci_deliveries", |one| one.ci_deliveries),
    ("forgeries_refused", |one| one.forgeries_refused),
    ("endpoints_extended", |one| one.extensions),
    ("endpoints_deleted", |one| one.deletions),
    ("extensions_refused", |one| one.refused_extensions),
    ("pipelines_out_of_budget", |one| one.pipelines_bound),
];

pub(super) fn show(result: &Value) {
    println!("\n{:<28} {}", "seeds", result["seeds"]);
    for (kind, count) in result["faults"].as_object().into_iter().flatten() {
        println!("  {kind:<26} {count}");
    }
    let wrongs = WRONGS.map(|(name, _)| name);
    let counts = COUNTS.map(|(name, _)| name);
    for key in ["played_again", "attempts", "jobs"]
        .into_iter()
        .chain(wrongs)
        .chain(counts)
        .chain([
            "refused_reservations",
            "losers_stopped",
            "points_compared",
            "model_packages",
            "steps_completed",
            "webhooks_delivered",
            "jobs_by_kind",
            "cancels_judged",
            "cancel_p99_seconds",
            "pools_reused",
            "orphans_stopped_and_billed",
            "recoveries",
            "recovery_p50_seconds",
            "recovery_p99_seconds",
            "recoveries_from_freezes",
            "recovery_from_freezes_p99_seconds",
            "recovery_limit_seconds",
            "session_looks",
            "took_seconds",
        ])
    {
        println!("{key:<28} {}", result[key]);
    }
}
