//! Timestamps as awsJson writes them.

use chrono::{DateTime, Utc};

/// awsJson timestamps: seconds since 1970, with fractions.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds since 1970 lie far below 2^53"
)]
pub(crate) fn epoch(at: DateTime<Utc>) -> f64 {
    at.timestamp_millis() as f64 / 1000.0
}
