//! Amazon SNS as a way for events: a message counts when SNS signed it and it came through our topic. Nothing is stored.
//!
//! Source: SNS developer guide, "Verifying the signatures of Amazon SNS messages". Only signature version 2 (SHA-256) is
//! taken; version 1 is SHA-1. Replays are not told apart: an event is a hint, and an old one changes nothing.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use tokio::sync::Mutex;
use webpki::EndEntityCert;
use webpki::aws_lc_rs::RSA_PKCS1_2048_8192_SHA256;

const PATIENCE: Duration = Duration::from_secs(5);
/// A certificate is about 2 kB.
const CERTIFICATE_BYTES_MAX: usize = 64 * 1024;

/// A message as SNS posts it to an HTTPS subscription.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Envelope {
    #[serde(rename = "Type")]
    kind: String,
    message_id: String,
    topic_arn: String,
    subject: Option<String>,
    message: String,
    timestamp: String,
    token: Option<String>,
    #[serde(rename = "SubscribeURL")]
    subscribe_url: Option<String>,
    signature_version: String,
    signature: String,
    #[serde(rename = "SigningCertURL")]
    signing_cert_url: String,
}

/// What a message is, once it is known to be SNS's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// The published text.
    Notification(String),
    /// SNS asked whether the topic may send here, and was told that it may.
    Subscribed,
    /// Anything else that SNS says.
    Nothing,
}

/// Why a message does not count.
#[derive(Debug, thiserror::Error)]
pub enum SnsError {
    #[error("it is not a message of SNS's: {0}")]
    Malformed(String),
    #[error("its topic is {0}, and this service was started for another")]
    OtherTopic(String),
    #[error("SignatureVersion is {0}; set the topic's attribute SignatureVersion to 2 (SHA-256)")]
    Version(String),
    #[error("{0} is not an address of SNS's in this region")]
    Address(String),
    #[error("the signature is not SNS's")]
    Signature,
    #[error("SNS could not be reached: {0}")]
    Unreachable(String),
}

/// Opens messages of one topic.
#[derive(Debug)]
pub struct Sns {
    topic_arn: String,
    /// Ends with a slash, so that nothing but a path can follow.
    origin: String,
    http: reqwest::Client,
    /// The last certificate and where it came from. SNS changes it about once a year.
    certificate: Mutex<Option<(String, CertificateDer<'static>)>>,
}

impl Sns {
    /// For SNS itself, in the topic's region.
    pub fn of_topic(topic_arn: &str) -> Option<Self> {
        let mut parts = topic_arn.split(':');
        let (Some("arn"), Some(partition), Some("sns"), Some(region), Some(_), Some(_)) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        let is_plain = region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        let domain = match partition {
            "aws" | "aws-us-gov" => "amazonaws.com",
            "aws-cn" => "amazonaws.com.cn",
            _ => return None,
        };
        (is_plain && !region.is_empty()).then(|| Self::at(topic_arn, format!("https://sns.{region}.{domain}/")))
    }

    /// For a simulated SNS at another origin.
    pub fn at(topic_arn: &str, origin: String) -> Self {
        let http = reqwest::Client::builder().timeout(PATIENCE).redirect(reqwest::redirect::Policy::none());
        Self {
            topic_arn: topic_arn.to_owned(),
            origin,
            http: http.build().unwrap_or_default(),
            certificate: Mutex::new(None),
        }
    }

    /// Checks a message and says what it is; a subscription to our topic is confirmed.
    pub async fn open(&self, body: &[u8]) -> Result<Opened, SnsError> {
        let envelope: Envelope =
            serde_json::from_slice(body).map_err(|error| SnsError::Malformed(error.to_string()))?;
        if envelope.topic_arn != self.topic_arn {
            return Err(SnsError::OtherTopic(envelope.topic_arn));
        }
        if envelope.signature_version != "2" {
            return Err(SnsError::Version(envelope.signature_version));
        }
        let signature = STANDARD.decode(&envelope.signature).map_err(|_| SnsError::Signature)?;
        let certificate = self.certificate(&envelope.signing_cert_url).await?;
        EndEntityCert::try_from(&certificate)
            .and_then(|end| end.verify_signature(RSA_PKCS1_2048_8192_SHA256, signed(&envelope).as_bytes(), &signature))
            .map_err(|_| SnsError::Signature)?;
        match (envelope.kind.as_str(), envelope.subscribe_url) {
            ("Notification", _) => Ok(Opened::Notification(envelope.message)),
            ("SubscriptionConfirmation", Some(url)) => {
                self.get(&url).await?;
                Ok(Opened::Subscribed)
            }
            _ => Ok(Opened::Nothing),
        }
    }

    async fn certificate(&self, url: &str) -> Result<CertificateDer<'static>, SnsError> {
        // Held over the request: a flood of messages fetches one at a time.
        let mut kept = self.certificate.lock().await;
        if let Some((_, certificate)) = kept.as_ref().filter(|(from, _)| from == url) {
            return Ok(certificate.clone());
        }
        let pem = self.get(url).await?;
        let certificate = CertificateDer::from_pem_slice(&pem).map_err(|_| SnsError::Signature)?;
        *kept = Some((url.to_owned(), certificate.clone()));
        Ok(certificate)
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, SnsError> {
        if !url.starts_with(&self.origin) {
            return Err(SnsError::Address(url.to_owned()));
        }
        let unreachable = |error: reqwest::Error| SnsError::Unreachable(error.without_url().to_string());
        let mut reply =
            self.http.get(url).send().await.and_then(reqwest::Response::error_for_status).map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = reply.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > CERTIFICATE_BYTES_MAX {
                return Err(SnsError::Unreachable("its reply is too long".to_owned()));
            }
        }
        Ok(body)
    }
}

/// The text that SNS signs: name and value of some fields, each on a line of its own, in this order.
fn signed(envelope: &Envelope) -> String {
    let mut fields = vec![("Message", Some(&envelope.message)), ("MessageId", Some(&envelope.message_id))];
    if envelope.kind == "Notification" {
        fields.push(("Subject", envelope.subject.as_ref()));
    } else {
        fields.push(("SubscribeURL", envelope.subscribe_url.as_ref()));
    }
    fields.push(("Timestamp", Some(&envelope.timestamp)));
    if envelope.kind != "Notification" {
        fields.push(("Token", envelope.token.as_ref()));
    }
    fields.push(("TopicArn", Some(&envelope.topic_arn)));
    fields.push(("Type", Some(&envelope.kind)));
    fields.into_iter().filter_map(|(name, value)| Some(format!("{name}\n{}\n", value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_is_sns_in_the_topics_region_and_nothing_else() {
        let origin = |arn: &str| Sns::of_topic(arn).map(|sns| sns.origin);
        assert_eq!(origin("arn:aws:sns:eu-west-1:111122223333:jobs").unwrap(), "https://sns.eu-west-1.amazonaws.com/");
        assert_eq!(
            origin("arn:aws-cn:sns:cn-north-1:111122223333:jobs").unwrap(),
            "https://sns.cn-north-1.amazonaws.com.cn/"
        );
        assert_eq!(origin("arn:aws:sns:evil.example/#:1:jobs"), None);
        assert_eq!(origin("arn:aws:sqs:eu-west-1:1:jobs"), None);
    }

    #[tokio::test]
    async fn an_address_elsewhere_is_never_fetched() {
        let sns = Sns::of_topic("arn:aws:sns:us-east-1:111122223333:jobs").unwrap();
        for url in
            ["https://sns.us-east-1.amazonaws.com.evil.example/a.pem", "http://sns.us-east-1.amazonaws.com/a.pem"]
        {
            assert!(matches!(sns.get(url).await, Err(SnsError::Address(_))), "{url}");
        }
    }
}
