//! Creates secrets, and derives others from them.

use bakeoff_domain::ids::{TemplateId, WebhookEndpointId};
use hmac::{Hmac, KeyInit, Mac};
use rand::Rng;
use sha2::Sha256;

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

/// The key for an installation's events, as an API destination sends it: `Authorization: Bearer
/// bke_…`.
pub fn events_key(secret_key: &[u8; 32]) -> String {
    format!(
        "bke_{}",
        hex::encode(mac(secret_key, b"aws-events").finalize().into_bytes())
    )
}

/// The secret that messages to a webhook endpoint are signed with, by its number: 32 bytes, which nobody stores.
pub fn webhook_secret(
    secret_key: &[u8; 32],
    endpoint: WebhookEndpointId,
    version: u32,
) -> [u8; 32] {
    let name = format!("webhook-endpoint/{endpoint}/{version}");
    mac(secret_key, name.as_bytes())
        .finalize()
        .into_bytes()
        .into()
}

/// The secret of a CI template, by its number: 32 bytes, which nobody stores.
pub fn ci_secret(secret_key: &[u8; 32], template: TemplateId, version: u32) -> [u8; 32] {
    let name = match version {
        1 => format!("ci-template/{template}"),
        later => format!("ci-template/{template}/{later}"),
    };
    mac(secret_key, name.as_bytes())
        .finalize()
        .into_bytes()
        .into()
}
