//! The region's own bill: integer micro-dollars, a rate card of its own. Kept apart from the product's arithmetic on
//! purpose: the ledger is judged against it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

static RATES: LazyLock<BTreeMap<&'static str, i64>> = LazyLock::new(|| {
    let rows = include_str!("../data/rate-card.csv").lines().filter(|line| line.starts_with("ml."));
    rows.filter_map(|line| line.split_once(',')).filter_map(|(name, rate)| Some((name, rate.parse().ok()?))).collect()
});

/// Micro-dollars per instance-hour; `None` for a type that this account has no rate for.
pub(crate) fn micro_usd_per_hour(instance_type: &str) -> Option<i64> {
    RATES.get(instance_type).copied()
}

/// Micro-dollars for billable seconds on `count` instances, rounded half up.
pub(crate) fn micro_usd(instance_type: &str, count: i64, billable_seconds: i64) -> Option<i64> {
    let rate = micro_usd_per_hour(instance_type)?;
    Some((billable_seconds * count * rate * 2 + 3600) / 7200)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_hour_is_the_hourly_rate() {
        assert_eq!(super::micro_usd("ml.g5.12xlarge", 2, 3600), Some(14_180_000));
        assert_eq!(super::micro_usd("ml.unheard.of", 1, 3600), None);
    }
}
