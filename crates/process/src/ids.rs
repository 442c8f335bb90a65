//! Generates ids.

use uuid::Uuid;

/// A UUIDv7: sorts by creation time.
#[expect(clippy::disallowed_methods, reason = "the one place that makes ids")]
pub fn fresh() -> Uuid {
    Uuid::now_v7()
}
