//! Requests to GitHub and GitLab with a project's credentials: who we are to them. What is asked is in
//! [`bakeoff_domain::ci::commit_status`].

use std::fmt;

use bakeoff_domain::ci::commit_status::{CodeHost, HostAnswer, HostRequest, StatusTarget};
use bakeoff_domain::ids::TemplateId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Answer, NoAnswer, Outgoing, Request};
use crate::auth::seal::{open, seal};
use bakeoff_process::clock::real_now;

/// Bytes of an answer that are read: a page of comments may be long.
const ANSWER_MAX: usize = 4 << 20;
/// Of an App's own token; GitHub takes ten minutes at most, and clocks differ.
const APP_TOKEN_AGE: TimeDelta = TimeDelta::minutes(1);
const APP_TOKEN_LIFE: TimeDelta = TimeDelta::minutes(8);

/// With what a code host is asked. Stored encrypted, and never shown.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credentials {
    Token(String),
    /// A GitHub App, which gets a token for an hour with its key.
    App {
        app_id: String,
        installation_id: u64,
        /// PEM, PKCS #1 or PKCS #8.
        private_key: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    /// Encrypted, for one template's target.
    pub fn seal(
        &self,
        secret_key: &[u8; 32],
        template: TemplateId,
        target: &StatusTarget,
    ) -> serde_json::Result<Vec<u8>> {
        let plain = serde_json::to_vec(self)?;
        Ok(seal(secret_key, &purpose(template, target), &plain))
    }

    /// As they were before; `None` if they were sealed with another key, or for another target.
    pub fn open(
        secret_key: &[u8; 32],
        template: TemplateId,
        target: &StatusTarget,
        sealed: &[u8],
    ) -> Option<Self> {
        let plain = open(secret_key, &purpose(template, target), sealed)?;
        serde_json::from_slice(&plain).ok()
    }

    /// What must not be shown.
    pub fn secret(&self) -> &str {
        match self {
            Self::Token(secret)
            | Self::App {
                private_key: secret,
                ..
            } => secret,
        }
    }

    /// Why they cannot be used at all.
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            Self::Token(token) => (!is_header(token) || token.is_empty())
                .then_some("has characters that no token has"),
            Self::App { private_key, .. } => key_pair(private_key).err(),
        }
    }
}

/// What a template's credentials are sealed for: beside another host or address they do not open.
fn purpose(template: TemplateId, target: &StatusTarget) -> String {
    let host = target.host.as_str();
    format!("ci-status/{template}/{host}/{}", target.api_url)
}

fn is_header(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn key_pair(pem: &str) -> Result<RsaKeyPair, &'static str> {
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| "is no private key in PEM form")?;
    match key {
        PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
        PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
        _ => return Err("is no RSA key"),
    }
    .map_err(|_| "is no RSA key of 2048 bits or more")
}

/// What an App shows GitHub to get a token: a JSON Web Token, signed with RS256.
fn app_token(app_id: &str, private_key: &str, now: DateTime<Utc>) -> Result<String, &'static str> {
    let pair = key_pair(private_key)?;
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({
        "iat": (now - APP_TOKEN_AGE).timestamp(),
        "exp": (now + APP_TOKEN_LIFE).timestamp(),
        "iss": app_id,
    });
    let signed = format!(
        "{}.{}",
        part(json!({"alg": "RS256", "typ": "JWT"})),
        part(claims)
    );
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        signed.as_bytes(),
        &mut signature,
    )
    .map_err(|_| "cannot sign")?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// One target, and what it is asked with.
#[expect(missing_debug_implementations, reason = "it holds a token")]
pub struct HostClient<'a> {
    outgoing: &'a Outgoing,
    target: &'a StatusTarget,
    token: String,
}

impl<'a> HostClient<'a> {
    /// With a token; an App gets one first. `Err(Ok(…))`: GitHub gives it none.
    pub async fn new(
        outgoing: &'a Outgoing,
        target: &'a StatusTarget,
        credentials: &Credentials,
    ) -> Result<Self, Result<HostAnswer, NoAnswer>> {
        let client = |token: &str| Self {
            outgoing,
            target,
            token: token.to_owned(),
        };
        let (app_id, installation, key) = match credentials {
            Credentials::Token(token) => return Ok(client(token)),
            Credentials::App {
                app_id,
                installation_id,
                private_key,
            } => (app_id, installation_id, private_key),
        };
        let own = app_token(app_id, key, real_now())
            .map_err(|why| Err(NoAnswer::Failed(format!("the App's key {why}"))))?;
        let asked = HostRequest {
            method: bakeoff_domain::ci::commit_status::Method::Post,
            path: format!("/app/installations/{installation}/access_tokens"),
            body: json!({}),
        };
        let answer = client(&own).send(&asked).await.map_err(Err)?;
        let given: Option<Value> = serde_json::from_str(&answer.body).ok();
        let given = given.and_then(|given| Some(given.get("token")?.as_str()?.to_owned()));
        match given {
            Some(token) if answer.status == 201 && is_header(&token) => Ok(client(&token)),
            // It broke off, or somebody stands between.
            _ if (200..300).contains(&answer.status) => {
                let why = "GitHub has answered without a token for the App".to_owned();
                Err(Err(NoAnswer::Failed(why)))
            }
            _ => Err(Ok(answer)),
        }
    }

    /// Asks once.
    pub async fn send(&self, asked: &HostRequest) -> Result<HostAnswer, NoAnswer> {
        let mut headers = HeaderMap::new();
        let accept = match self.target.host {
            CodeHost::Github => {
                let version = HeaderValue::from_static("2022-11-28");
                headers.insert(HeaderName::from_static("x-github-api-version"), version);
                HeaderValue::from_static("application/vnd.github+json")
            }
            CodeHost::Gitlab => HeaderValue::from_static("application/json"),
        };
        headers.insert(ACCEPT, accept);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Both take it so: GitLab's tokens of persons, projects and groups too.
        let mut token = HeaderValue::from_str(&format!("Bearer {}", self.token))
            .map_err(|_| NoAnswer::Failed("the token has characters that no token has".into()))?;
        token.set_sensitive(true);
        headers.insert(AUTHORIZATION, token);
        let method = Method::from_bytes(asked.method.as_str().as_bytes())
            .map_err(|error| NoAnswer::Failed(error.to_string()))?;
        let body = if asked.body.is_null() {
            String::new()
        } else {
            asked.body.to_string()
        };
        let request = Request {
            method,
            address: format!("{}{}", self.target.api_url, asked.path),
            headers,
            body,
            answer_max: ANSWER_MAX,
        };
        self.outgoing
            .send(request)
            .await
            .map(|answer| heard(&answer))
    }
}

/// What counts of an answer. GitHub says with `x-ratelimit-remaining: 0` that it was asked too often, and with
/// `x-ratelimit-reset` until when.
fn heard(answer: &Answer) -> HostAnswer {
    let is_rate_limit = answer.number("x-ratelimit-remaining") == Some(0);
    let until = answer
        .number("x-ratelimit-reset")
        .filter(|_| is_rate_limit)
        .map(|until| until.saturating_sub(u64::try_from(real_now().timestamp()).unwrap_or(0)));
    HostAnswer {
        status: answer.status,
        retry_after_seconds: answer.number("retry-after").or(until),
        is_rate_limit,
        body: answer.body.clone(),
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

    use super::*;

    const KEY: &str = include_str!("../../../../tests/keys/github_app.pem");

    #[test]
    fn an_app_signs_as_github_asks() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let token = app_token("Iv23abc", KEY, now).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let pair = key_pair(KEY).unwrap();
        let public = pair.public().as_ref().to_vec();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public);
        public.verify(signed.as_bytes(), &signature).unwrap();
        let claims = URL_SAFE_NO_PAD
            .decode(signed.split_once('.').unwrap().1)
            .unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!(
            claims,
            json!({"iss": "Iv23abc", "iat": 1_799_999_940, "exp": 1_800_000_480})
        );
    }

    #[test]
    fn bad_credentials_are_known_at_once() {
        let app = |private_key: &str| Credentials::App {
            app_id: "1".to_owned(),
            installation_id: 2,
            private_key: private_key.to_owned(),
        };
        assert_eq!(app(KEY).problem(), None);
        assert!(app("no key").problem().is_some());
        assert!(Credentials::Token("a b".to_owned()).problem().is_some());
        assert!(Credentials::Token(String::new()).problem().is_some());
        assert_eq!(
            Credentials::Token("github_pat_1".to_owned()).problem(),
            None
        );
        assert!(!format!("{:?}", app(KEY)).contains("BEGIN"));
    }
}
