//! Where ids and secrets are made: the only users of randomness.

use rand::Rng;
use uuid::Uuid;

/// A UUIDv7: sorts by creation time.
#[expect(clippy::disallowed_methods, reason = "the one place that makes ids")]
pub fn fresh() -> Uuid {
    Uuid::now_v7()
}

/// 256 random bits.
#[expect(clippy::disallowed_methods, reason = "the one place that makes secrets")]
pub fn secret() -> [u8; 32] {
    let mut bytes = [0; 32];
    rand::rng().fill(&mut bytes);
    bytes
}
