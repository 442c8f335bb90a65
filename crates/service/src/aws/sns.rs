//! Amazon SNS as a transport for events: a message is accepted if SNS signed it and it came through
//! our topic. Nothing is stored.
//!
//! Source: SNS developer guide, "Verifying the signatures of Amazon SNS messages". Only signature
//! version 2 (SHA-256) is accepted; version 1 is SHA-1. Replays are not detected: an event is a
//! hint, and an old one changes nothing.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use serde::Deserialize;
use tokio::sync::Semaphore;
use webpki::ring::RSA_PKCS1_2048_8192_SHA256;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};

use bakeoff_process::clock::real_now;

const PATIENCE: Duration = Duration::from_secs(5);
/// A certificate is about 2 kB.
const CERTIFICATE_BYTES_MAX: usize = 16 * 1024;
/// SNS has one certificate at a time, and two during a rotation.
const CERTIFICATES_MAX: usize = 8;
/// Maximum number of remembered addresses without an SNS certificate.
const BOGUS_MAX: usize = 256;
/// How long such an address is not fetched again: SNS may put its new certificate there later.
const BOGUS_FOR: TimeDelta = TimeDelta::minutes(10);
/// Maximum number of concurrent fetches. A genuine message rarely needs one: its certificate is
/// known from earlier messages.
const FETCHES_MAX: usize = 8;
/// Prefix of a signing certificate's file name; the rest is its hash.
const FILE: &str = "SimpleNotificationService-";
const FILE_DIGITS_MIN: usize = 32;

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

/// The meaning of a message verified as coming from SNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// The text of a published message.
    Notification(String),
    /// SNS asked to confirm the subscription, and it was confirmed.
    Subscribed,
    /// Any other message from SNS.
    Nothing,
}

/// Why a message is rejected.
#[derive(Debug, thiserror::Error)]
pub enum SnsError {
    #[error("not an SNS message: {0}")]
    Malformed(String),
    #[error("the message is from topic {0}, but this service was started for another topic")]
    OtherTopic(String),
    #[error("SignatureVersion is {0}; set the topic's attribute SignatureVersion to 2 (SHA-256)")]
    Version(String),
    #[error("{0} is not an SNS URL of this region")]
    Address(String),
    #[error("the certificate at SigningCertURL is not a valid SNS certificate")]
    Certificate,
    #[error("the signature is not valid")]
    Signature,
    #[error("SNS is unreachable: {0}")]
    Unreachable(String),
}

/// Verifies messages of one topic.
#[derive(Debug)]
pub struct Sns {
    topic_arn: String,
    /// Ends with a slash, so that only a path can follow.
    origin: String,
    http: reqwest::Client,
    /// Names that a signing certificate may be issued to.
    names: Vec<String>,
    /// Permitted issuers of the certificate; any issuer if empty.
    issuers: Vec<TrustAnchor<'static>>,
    seen: Mutex<CertificateCache>,
    fetches: Semaphore,
}

/// Results by address, most recently used last. Never locked during a request.
#[derive(Debug, Default)]
struct CertificateCache {
    genuine: VecDeque<(String, CertificateDer<'static>)>,
    bogus: VecDeque<(String, DateTime<Utc>)>,
}

impl CertificateCache {
    /// The cached certificate of an address; an error if the address is known to have none.
    fn find(
        &mut self,
        url: &str,
        now: DateTime<Utc>,
    ) -> Result<Option<CertificateDer<'static>>, SnsError> {
        self.bogus
            .retain(|(_, asked)| (*asked..*asked + BOGUS_FOR).contains(&now));
        if self.bogus.iter().any(|(known, _)| known == url) {
            return Err(SnsError::Certificate);
        }
        let Some(place) = self.genuine.iter().position(|(known, _)| known == url) else {
            return Ok(None);
        };
        let Some(found) = self.genuine.remove(place) else {
            return Ok(None);
        };
        let certificate = found.1.clone();
        self.genuine.push_back(found);
        Ok(Some(certificate))
    }

    fn keep(
        &mut self,
        url: &str,
        certificate: Option<CertificateDer<'static>>,
        now: DateTime<Utc>,
    ) {
        match certificate {
            Some(certificate) => {
                self.genuine.retain(|(known, _)| known != url);
                self.genuine.push_back((url.to_owned(), certificate));
            }
            None => self.bogus.push_back((url.to_owned(), now)),
        }
        if self.genuine.len() > CERTIFICATES_MAX {
            self.genuine.pop_front();
        }
        if self.bogus.len() > BOGUS_MAX {
            self.bogus.pop_front();
        }
    }
}

impl Sns {
    /// For the real SNS, in the topic's region.
    pub fn of_topic(topic_arn: &str) -> Option<Self> {
        let mut parts = topic_arn.split(':');
        let (Some("arn"), Some(partition), Some("sns"), Some(region), Some(_), Some(_)) = (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) else {
            return None;
        };
        let is_plain = region
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        let domain = match partition {
            "aws" | "aws-us-gov" => "amazonaws.com",
            "aws-cn" => "amazonaws.com.cn",
            _ => return None,
        };
        if !is_plain || region.is_empty() {
            return None;
        }
        // The names are those of AWS's own validators (sns-message-manager of the Java SDK): opt-in
        // regions and the other partitions have names of their own.
        let regional = [
            format!("sns.{region}.{domain}"),
            format!("sns-signing.{region}.{domain}"),
            format!("sns-{region}.{domain}"),
        ];
        let shared = match partition {
            "aws" => Some("sns.amazonaws.com"),
            "aws-us-gov" => Some("sns-us-gov-west-1.amazonaws.com"),
            _ => None,
        };
        let mut sns = Self::at(topic_arn, format!("https://sns.{region}.{domain}/"));
        sns.names = regional
            .into_iter()
            .chain(shared.map(str::to_owned))
            .collect();
        Some(sns)
    }

    /// For a simulated SNS at another origin.
    pub fn at(topic_arn: &str, origin: String) -> Self {
        let http = bakeoff_process::tls::http_client()
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none());
        Self {
            topic_arn: topic_arn.to_owned(),
            origin,
            http: http.build().unwrap_or_default(),
            names: vec!["sns.amazonaws.com".to_owned()],
            issuers: Vec::new(),
            seen: Mutex::default(),
            fetches: Semaphore::new(FETCHES_MAX),
        }
    }

    /// Accepts only certificates issued by one of these.
    ///
    /// # Errors
    /// If one of them is not a certificate.
    pub fn trusting(mut self, issuers: &[CertificateDer<'_>]) -> Result<Self, SnsError> {
        let anchor = |issuer| anchor_from_trusted_cert(issuer).map(|anchor| anchor.to_owned());
        let anchors: Result<Vec<_>, Error> = issuers.iter().map(anchor).collect();
        self.issuers = anchors.map_err(|_| SnsError::Certificate)?;
        Ok(self)
    }

    /// Verifies a message and classifies it; confirms a subscription to our topic.
    pub async fn open(&self, body: &[u8]) -> Result<Opened, SnsError> {
        let envelope: Envelope =
            serde_json::from_slice(body).map_err(|error| SnsError::Malformed(error.to_string()))?;
        if envelope.topic_arn != self.topic_arn {
            return Err(SnsError::OtherTopic(envelope.topic_arn));
        }
        if envelope.signature_version != "2" {
            return Err(SnsError::Version(envelope.signature_version));
        }
        let signature = STANDARD
            .decode(&envelope.signature)
            .map_err(|_| SnsError::Signature)?;
        let certificate = self.certificate(&envelope.signing_cert_url).await?;
        EndEntityCert::try_from(&certificate)
            .and_then(|end| {
                end.verify_signature(
                    RSA_PKCS1_2048_8192_SHA256,
                    signed(&envelope).as_bytes(),
                    &signature,
                )
            })
            .map_err(|_| SnsError::Signature)?;
        match (envelope.kind.as_str(), envelope.subscribe_url) {
            ("Notification", _) => Ok(Opened::Notification(envelope.message)),
            ("SubscriptionConfirmation", Some(url)) => {
                self.check_confirmation(&url)?;
                self.get(&url).await?;
                Ok(Opened::Subscribed)
            }
            _ => Ok(Opened::Nothing),
        }
    }

    async fn certificate(&self, url: &str) -> Result<CertificateDer<'static>, SnsError> {
        let file = url
            .strip_prefix(&self.origin)
            .and_then(|path| path.strip_prefix(FILE)?.strip_suffix(".pem"));
        let is_digits = |text: &str| {
            text.bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if !file.is_some_and(|digits| digits.len() >= FILE_DIGITS_MIN && is_digits(digits)) {
            return Err(SnsError::Address(url.to_owned()));
        }
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen().find(url, real_now())? {
            // It may have expired since it was cached.
            return if self.is_of_sns(&known, real_now()) {
                Ok(known)
            } else {
                Err(SnsError::Certificate)
            };
        }
        let busy =
            || SnsError::Unreachable("too many certificates are being fetched at once".to_owned());
        let fetching = self.fetches.try_acquire().map_err(|_| busy())?;
        let body = self.get(url).await?;
        drop(fetching);
        let certificate =
            only_certificate(&body).filter(|certificate| self.is_of_sns(certificate, real_now()));
        seen().keep(url, certificate.clone(), real_now());
        certificate.ok_or(SnsError::Certificate)
    }

    /// Checks that a certificate is SNS's by its name, its dates, and its issuer if the operator
    /// has configured the permitted ones. SNS publishes the certificate alone, without the
    /// intermediate that issued it, so verifying a chain needs that from another source. Otherwise,
    /// authenticity rests on where the file was fetched from: HTTPS (which has a chain), the exact
    /// host of the topic's region, and a path where only SNS puts files.
    fn is_of_sns(&self, certificate: &CertificateDer<'_>, now: DateTime<Utc>) -> bool {
        let Ok(end) = EndEntityCert::try_from(certificate) else {
            return false;
        };
        let is_named = self.names.iter().any(|name| {
            let name = ServerName::try_from(name.as_str());
            name.is_ok_and(|name| end.verify_is_valid_for_subject_name(&name).is_ok())
        });
        let now = UnixTime::since_unix_epoch(Duration::from_secs(
            u64::try_from(now.timestamp()).unwrap_or(0),
        ));
        let usage = KeyUsage::server_auth();
        let issued = end.verify_for_usage(
            ALL_VERIFICATION_ALGS,
            &self.issuers,
            &[],
            now,
            usage,
            None,
            None,
        );
        // Without configured issuers, an unknown issuer is the only error left: dates and usage are
        // checked before it.
        let is_sound = match issued {
            Ok(_) => true,
            Err(Error::UnknownIssuer) => self.issuers.is_empty(),
            Err(_) => false,
        };
        is_named && is_sound
    }

    /// Accepts only a confirmation for our topic, so that nothing else is requested from SNS's API.
    fn check_confirmation(&self, url: &str) -> Result<(), SnsError> {
        let refused = || SnsError::Address(url.to_owned());
        let parsed = url
            .starts_with(&self.origin)
            .then(|| reqwest::Url::parse(url).ok())
            .flatten();
        let parsed = parsed.filter(|url| url.path() == "/").ok_or_else(refused)?;
        let is_only = |key: &str, wanted: &str| {
            let mut values = parsed
                .query_pairs()
                .filter(|(name, _)| name == key)
                .map(|(_, value)| value);
            values.next().is_some_and(|value| value == wanted) && values.next().is_none()
        };
        let is_ours =
            is_only("Action", "ConfirmSubscription") && is_only("TopicArn", &self.topic_arn);
        if is_ours { Ok(()) } else { Err(refused()) }
    }

    async fn get(&self, url: &str) -> Result<Vec<u8>, SnsError> {
        if !url.starts_with(&self.origin) {
            return Err(SnsError::Address(url.to_owned()));
        }
        let unreachable =
            |error: reqwest::Error| SnsError::Unreachable(error.without_url().to_string());
        let mut reply = self
            .http
            .get(url)
            .send()
            .await
            .and_then(reqwest::Response::error_for_status)
            .map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = reply.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > CERTIFICATE_BYTES_MAX {
                return Err(SnsError::Unreachable("the reply is too long".to_owned()));
            }
        }
        Ok(body)
    }
}

/// The certificate in a file that contains exactly one, and otherwise only white space.
fn only_certificate(body: &[u8]) -> Option<CertificateDer<'static>> {
    let text = std::str::from_utf8(body).ok()?.trim();
    let inner = text
        .strip_prefix("-----BEGIN CERTIFICATE-----")?
        .strip_suffix("-----END CERTIFICATE-----")?;
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(&byte);
    inner
        .bytes()
        .all(is_base64)
        .then(|| CertificateDer::from_pem_slice(text.as_bytes()).ok())
        .flatten()
}

/// The text that SNS signs: name and value of certain fields, each on its own line, in this order.
fn signed(envelope: &Envelope) -> String {
    let mut fields = vec![
        ("Message", Some(&envelope.message)),
        ("MessageId", Some(&envelope.message_id)),
    ];
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
    fields
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}\n{}\n", value?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_is_sns_in_the_topics_region_and_nothing_else() {
        let origin = |arn: &str| Sns::of_topic(arn).map(|sns| sns.origin);
        assert_eq!(
            origin("arn:aws:sns:eu-west-1:111122223333:jobs").unwrap(),
            "https://sns.eu-west-1.amazonaws.com/"
        );
        assert_eq!(
            origin("arn:aws-cn:sns:cn-north-1:111122223333:jobs").unwrap(),
            "https://sns.cn-north-1.amazonaws.com.cn/"
        );
        assert_eq!(origin("arn:aws:sns:evil.example/#:1:jobs"), None);
        assert_eq!(origin("arn:aws:sqs:eu-west-1:1:jobs"), None);
    }

    #[test]
    fn what_is_kept_is_bounded_and_bogus_for_a_while_only() {
        let mut seen = CertificateCache::default();
        let now = real_now();
        for number in 0..1000 {
            seen.keep(&format!("bogus {number}"), None, now);
            seen.keep(
                &format!("genuine {number}"),
                Some(CertificateDer::from(vec![1])),
                now,
            );
            assert!(seen.find("genuine 0", now).is_ok());
        }
        assert_eq!(
            (seen.genuine.len(), seen.bogus.len()),
            (CERTIFICATES_MAX, BOGUS_MAX)
        );
        assert!(
            matches!(seen.find("genuine 0", now), Ok(Some(_))),
            "what is used is kept"
        );
        assert!(matches!(seen.find("genuine 5", now), Ok(None)));
        assert!(matches!(
            seen.find("bogus 999", now),
            Err(SnsError::Certificate)
        ));
        assert!(
            matches!(seen.find("bogus 999", now + BOGUS_FOR), Ok(None)),
            "asked again after a while"
        );
    }

    #[tokio::test]
    async fn an_address_elsewhere_is_never_fetched() {
        let sns = Sns::of_topic("arn:aws:sns:us-east-1:111122223333:jobs").unwrap();
        for url in [
            "https://sns.us-east-1.amazonaws.com.evil.example/a.pem",
            "http://sns.us-east-1.amazonaws.com/a.pem",
        ] {
            assert!(
                matches!(sns.get(url).await, Err(SnsError::Address(_))),
                "{url}"
            );
        }
    }
}
