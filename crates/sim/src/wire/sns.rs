//! The signing half of Amazon SNS: a topic's messages, the certificate that proves them, and the
//! confirmation of a subscription. It keeps no topics and delivers nothing itself;
//! [`crate::wire::events`] does.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256, SigningKey};
use serde_json::{Value, json};

/// Named as SNS does it, after the hash of the certificate, which nobody checks.
pub(crate) const CERTIFICATE_PATH: &str =
    "/SimpleNotificationService-51d51d51d51d51d51d51d51d51d51d51.pem";
/// SNS's query API.
pub(crate) const CONFIRM_PATH: &str = "/";
/// In real time, which certificates are judged by.
const VALID_YEARS: (i32, i32) = (2020, 2100);

struct Signer {
    key: KeyPair,
    certificate: String,
}

/// The key of the simulated SNS, which anybody may know: only a service that was told to listen to
/// this region believes it. Kept in a file because `ring` makes no RSA keys.
const KEY: &str = include_str!("../../data/published-rsa-key.pem");

static SIGNER: LazyLock<Option<Signer>> = LazyLock::new(|| {
    let key = KeyPair::from_pkcs8_pem_and_sign_algo(KEY, &PKCS_RSA_SHA256).ok()?;
    let mut params = CertificateParams::new(vec!["sns.amazonaws.com".to_owned()]).ok()?;
    params.not_before = rcgen::date_time_ymd(VALID_YEARS.0, 1, 1);
    params.not_after = rcgen::date_time_ymd(VALID_YEARS.1, 1, 1);
    let certificate = params.self_signed(&key).ok()?.pem();
    Some(Signer { key, certificate })
});

pub(crate) async fn certificate() -> Response {
    let pem = SIGNER
        .as_ref()
        .map_or_else(String::new, |signer| signer.certificate.clone());
    ([(header::CONTENT_TYPE, "application/x-pem-file")], pem).into_response()
}

/// A signed message (version 2) of a topic. `origin` is the address this region listens on.
pub(crate) fn envelope(
    origin: &str,
    topic: &str,
    kind: &str,
    message: &str,
    now: DateTime<Utc>,
) -> Value {
    #[expect(
        clippy::disallowed_methods,
        reason = "a message id is for telling repeats apart, not part of the world"
    )]
    let id = uuid::Uuid::now_v7();
    let timestamp = now.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
    let mut envelope = json!({
        "Type": kind, "MessageId": id, "TopicArn": topic, "Message": message, "Timestamp": timestamp,
        "SignatureVersion": "2", "SigningCertURL": format!("{origin}{CERTIFICATE_PATH}"),
    });
    if kind != "Notification" {
        envelope["Token"] = json!("2336412f37");
        let query = format!("Action=ConfirmSubscription&TopicArn={topic}&Token=2336412f37");
        envelope["SubscribeURL"] = json!(format!("{origin}{CONFIRM_PATH}?{query}"));
    }
    let text: String = [
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ]
    .into_iter()
    .filter_map(|name| Some(format!("{name}\n{}\n", envelope[name].as_str()?)))
    .collect();
    let signature = SIGNER
        .as_ref()
        .and_then(|signer| signer.key.sign(text.as_bytes()).ok())
        .unwrap_or_default();
    envelope["Signature"] = json!(base64(&signature));
    envelope
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
