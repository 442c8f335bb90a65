//! A message as a webhook endpoint gets it: id, time, signatures.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use hmac::Mac;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue};

use crate::auth::secrets::{mac, webhook_secret};
use bakeoff_process::clock::real_now;
use bakeoff_store::webhook_endpoints::WebhookEndpoint;

/// What is sent.
#[derive(Debug)]
pub struct Message {
    pub headers: HeaderMap,
    pub body: String,
}

/// A message with its id, the time of this try, and a signature of each secret that counts (Standard Webhooks 1.0.0).
/// `now`: on the domain clock, which rotations are on.
pub fn message(
    secret_key: &[u8; 32],
    endpoint: &WebhookEndpoint,
    id: &str,
    body: String,
    now: DateTime<Utc>,
) -> Result<Message, InvalidHeaderValue> {
    // What a receiver compares with its own clock.
    let sent = real_now().timestamp().to_string();
    let newest = endpoint.secret_version;
    let has_previous = newest > 1
        && endpoint
            .previous_secret_until
            .is_some_and(|until| now < until);
    let versions = [Some(newest), has_previous.then(|| newest - 1)];
    let signatures: Vec<String> = versions
        .into_iter()
        .flatten()
        .map(|version| {
            let key = webhook_secret(secret_key, endpoint.id, version);
            signature(&key, id, &sent, &body)
        })
        .collect();
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in [
        ("webhook-id", id),
        ("webhook-timestamp", &sent),
        ("webhook-signature", &signatures.join(" ")),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
    }
    Ok(Message { headers, body })
}

/// `v1,` and the base64 of the HMAC-SHA256 of id, time and body.
fn signature(key: &[u8], id: &str, sent: &str, body: &str) -> String {
    let signed = format!("{id}.{sent}.{body}");
    format!(
        "v1,{}",
        STANDARD.encode(mac(key, signed.as_bytes()).finalize().into_bytes())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Standard Webhooks 1.0.0.
    #[test]
    fn the_published_signature_is_ours() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert_eq!(
            signature(
                &key,
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                "1614265330",
                r#"{"test": 2432232314}"#
            ),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }
}
