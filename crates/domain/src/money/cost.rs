//! The cost of a job in dollars: its maximum, the cost so far, and the final cost. Decimal
//! throughout. Spot is never discounted twice: BillableTimeInSeconds already includes the discount
//! and is priced at the on-demand rate.

use rust_decimal::Decimal;
use rust_decimal::prelude::FromPrimitive;

use crate::money::Usd;

/// Time from SIGTERM to SIGKILL after StopTrainingJob (SageMaker developer guide).
pub const STOP_GRACE_SECONDS: u64 = 120;
/// Downloading the image and data before training, and uploading the artefacts after it, are billed
/// too. This is our own generous allowance for small transfers, not an AWS rule; large transfers
/// are added on top, see [`transfer_seconds`].
pub const TRANSFER_ALLOWANCE_SECONDS: u64 = 900;
/// Upload speed in bytes per second, our own cautious guess: a single gzip thread packs artefacts
/// before they go to S3.
const UPLOAD_BYTES_PER_SECOND: f64 = 60e6;
/// Download speed in bytes per second, our own cautious guess: weights and data come from S3 in
/// parallel.
const DOWNLOAD_BYTES_PER_SECOND: f64 = 200e6;
/// CloudWatch GetMetricData: $0.01 per 1,000 metrics requested.
const USD_PER_METRIC_REQUESTED: Decimal = Decimal::from_parts(1, 0, 0, false, 5);
const SECONDS_PER_HOUR: Decimal = Decimal::from_parts(3600, 0, 0, false, 0);

/// Cost of `billable_seconds` on `count` instances at an hourly rate, to a millionth of a dollar.
pub fn training(billable_seconds: u64, count: u32, usd_per_hour: Usd) -> Usd {
    let instance_hours = Decimal::from(billable_seconds) * Decimal::from(count) / SECONDS_PER_HOUR;
    (usd_per_hour * instance_hours).rounded()
}

/// Transfer time in seconds for weights and data of known size, beyond the usual allowance: weights
/// are downloaded and uploaded, data only downloaded. Sizes are in bytes; invalid ones count as
/// zero.
pub fn transfer_seconds(weight_bytes: f64, data_bytes: f64) -> u64 {
    let size = |bytes: f64| {
        if bytes.is_finite() {
            bytes.clamp(0.0, 1e15)
        } else {
            0.0
        }
    };
    let (weights, data) = (size(weight_bytes), size(data_bytes));
    let seconds = weights / UPLOAD_BYTES_PER_SECOND + (weights + data) / DOWNLOAD_BYTES_PER_SECOND;
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to thirty million"
    )]
    let whole = seconds.ceil() as u64;
    whole
}

/// The longest time that one instance of a job can be billed: download, maximum runtime, stop
/// grace, upload.
pub fn longest_billed_seconds(max_runtime_seconds: u32, transfer_seconds: u64) -> u64 {
    u64::from(max_runtime_seconds)
        + STOP_GRACE_SECONDS
        + TRANSFER_ALLOWANCE_SECONDS
        + transfer_seconds
}

/// Cost of reading metrics, at a rate per 1,000 metrics or at the default rate. Each metric of each
/// GetMetricData call counts once.
pub fn metrics(requested: u64, usd_per_thousand: Option<Usd>) -> Usd {
    let each = usd_per_thousand.map_or(USD_PER_METRIC_REQUESTED, |usd| {
        usd.0 / Decimal::from(1000u32)
    });
    Usd(Decimal::from(requested) * each).rounded()
}

/// The most that reading a job's metrics can cost: every series at every read over its longest
/// life, plus reads repeated after faults (a quarter more, plus ten).
pub fn worst_case_metrics(series: u64, span_seconds: u64, interval_seconds: u64) -> Usd {
    let reads = span_seconds / interval_seconds.max(1);
    metrics(series * (reads + reads / 4 + 10), None)
}

/// USD per million tokens at a steady rate: `1e6 × P × n / (3600 × tokens/s)`, times the billed
/// share of the time.
pub fn usd_per_million_tokens(
    usd_per_hour: Usd,
    count: u32,
    tokens_per_second: f64,
    billed_share: f64,
) -> Option<Usd> {
    // The rate comes from a user's log: values that no machine can reach are not evidence, and
    // would overflow.
    if !(1e-6..1e12).contains(&tokens_per_second) || !(0.0..1e6).contains(&billed_share) {
        return None;
    }
    let rate = Decimal::from_f64(tokens_per_second)?;
    let share = Decimal::from_f64(billed_share)?;
    let million = Decimal::from(1_000_000u32);
    Some(
        (usd_per_hour * (Decimal::from(count) * million * share / (SECONDS_PER_HOUR * rate)))
            .rounded(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_arithmetic_is_reproduced() {
        // Document 000: 20 hours at $8.64, 25 hours at $5.76.
        assert_eq!(
            training(20 * 3600, 1, Usd(Decimal::new(864, 2))).to_string(),
            "$172.80"
        );
        assert_eq!(
            training(25 * 3600, 1, Usd(Decimal::new(576, 2))).to_string(),
            "$144.00"
        );
    }

    #[test]
    fn a_thousand_metrics_cost_a_cent() {
        assert_eq!(metrics(1000, None), Usd(Decimal::new(1, 2)));
    }

    #[test]
    fn usd_per_million_tokens_follows_the_formula() {
        let usd = usd_per_million_tokens(Usd(Decimal::from(36)), 1, 10_000.0, 1.0).unwrap();
        assert_eq!(usd, Usd(Decimal::ONE));
        assert!(usd_per_million_tokens(Usd(Decimal::from(36)), 1, 0.0, 1.0).is_none());
        assert!(usd_per_million_tokens(Usd(Decimal::from(36)), 1, 1e27, 1.0).is_none());
    }

    #[test]
    fn the_longest_bill_covers_grace_and_transfer() {
        assert_eq!(longest_billed_seconds(100, 0), 100 + 120 + 900);
        // 70 billion parameters in bf16: 140 GB through one gzip thread take more than half an
        // hour.
        let large = transfer_seconds(140e9, 0.0);
        assert!((1800..7200).contains(&large), "{large}");
        assert_eq!(transfer_seconds(f64::NAN, -1.0), 0);
    }
}
