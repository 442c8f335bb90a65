//! Counts as real numbers, for ratios and rates, and back.

/// Exact below 2^53, which seconds, steps and tokens are far below.
#[expect(
    clippy::cast_precision_loss,
    reason = "seconds, steps and tokens lie far below 2^53"
)]
pub fn real(count: u64) -> f64 {
    count as f64
}

/// A reported counter as a count; `None` below zero, or beyond what a real number holds exactly.
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "the range is checked"
)]
pub fn whole(value: f64) -> Option<i64> {
    (0.0..9e15).contains(&value).then_some(value as i64)
}
