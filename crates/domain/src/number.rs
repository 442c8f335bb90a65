//! Counts as real numbers, for ratios and rates, and back; and the unit that memory is counted in.

/// Bytes of a gibibyte.
pub const GIB: f64 = 1_073_741_824.0;

/// Standard deviations from the mean to either end of a normal distribution's 90 % interval,
pub const NORMAL_95: f64 = 1.645;
/// and of its 95 % interval.
pub const NORMAL_975: f64 = 1.96;

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

/// The middle value, or the mean of the two in the middle; zero of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle).copied().unwrap_or(0.0);
    if values.len().is_multiple_of(2) {
        let lower = middle.checked_sub(1).and_then(|place| values.get(place));
        lower.map_or(upper, |lower| f64::midpoint(*lower, upper))
    } else {
        upper
    }
}

/// A number of items as a real number; counts beyond 2^32 do not occur.
pub fn of_items(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number_lies_between() {
        assert_eq!(median(vec![-20.0, 20.0]).to_bits(), 0.0_f64.to_bits());
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!(median(Vec::new()).abs() < 1e-12);
    }
}
