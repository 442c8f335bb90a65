//! Counts as real numbers, for ratios and rates.

/// Exact below 2^53, which seconds, steps and tokens are far below.
#[expect(
    clippy::cast_precision_loss,
    reason = "seconds, steps and tokens lie far below 2^53"
)]
pub fn real(count: u64) -> f64 {
    count as f64
}
