//! Where ids and secrets are made: the only users of randomness, and what secrets are derived with.

use hmac::{Hmac, KeyInit, Mac};
use rand::Rng;
use sha2::Sha256;
use uuid::Uuid;

/// A UUIDv7: sorts by creation time.
#[expect(clippy::disallowed_methods, reason = "the one place that makes ids")]
pub fn fresh() -> Uuid {
    Uuid::now_v7()
}

/// 256 random bits.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that makes secrets"
)]
pub fn secret() -> [u8; 32] {
    let mut bytes = [0; 32];
    rand::rng().fill(&mut bytes);
    bytes
}

/// HMAC-SHA-256.
pub fn mac(key: &[u8], message: &[u8]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key)
        .unwrap_or_else(|_| unreachable!("HMAC takes a key of any length"));
    mac.update(message);
    mac
}
