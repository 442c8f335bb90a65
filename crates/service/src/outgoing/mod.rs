//! Requests to addresses that users name: webhook endpoints, code hosts. The service stands inside of a network that users do not,
//! so that each request goes only to addresses that are public, or that the operator has allowed
//! (`--outgoing-allow`). What is sent, when, and what becomes of it is in [`crate::tasks::courier`] and
//! [`crate::tasks::commit_statuses`].

pub mod address;
pub mod code_host;
pub mod message;
mod resolver;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use ipnet::IpNet;
use reqwest::dns::Resolve;
use reqwest::header::HeaderMap;
use reqwest::{Method, Url, redirect};
use thiserror::Error;
use url::Host;

use self::resolver::Guarded;
pub use self::resolver::System;
use bakeoff_process::clock::Stopwatch;

/// From the connection to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(15);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
pub const ANSWER_MAX: usize = 4096;
/// Characters of an address.
const URL_MAX: usize = 2000;
/// Ports that are taken of public addresses.
const PORTS: [u16; 2] = [443, 8443];

/// Why nothing is sent to an address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Forbidden {
    #[error("is not a URL of at most {URL_MAX} characters: {0}")]
    Malformed(String),
    #[error("is not https")]
    Scheme,
    #[error("has a user name or a password: put secrets elsewhere, every delivery is signed")]
    Credentials,
    #[error("has the port {0}: public addresses are called at 443 or 8443")]
    Port(u16),
    #[error("{0} is not a public address")]
    Private(String),
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NoAnswer {
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    #[error("{0}")]
    Failed(String),
}

/// What has come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    /// As much of it as was asked for.
    pub body: String,
    pub milliseconds: u64,
}

impl Answer {
    /// A header that is a whole number: Retry-After, seconds.
    pub fn number(&self, header: &str) -> Option<u64> {
        self.headers.get(header)?.to_str().ok()?.trim().parse().ok()
    }
}

/// What is to be sent. Its headers may be secret: it has no Debug.
#[expect(missing_debug_implementations, reason = "its headers may be secret")]
pub struct Request {
    pub method: Method,
    pub address: String,
    pub headers: HeaderMap,
    pub body: String,
    /// Bytes of the answer that are read.
    pub answer_max: usize,
}

/// Sends requests to addresses that users name.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// To public addresses, and to allowed ones.
    public: reqwest::Client,
    /// To allowed addresses only, of any scheme and port.
    allowed_only: reqwest::Client,
    allowed: Arc<[IpNet]>,
}

impl Outgoing {
    /// Networks that are allowed although they are not public; none outside of tests and companies' own networks.
    pub fn new(allowed: &[IpNet], resolver: &Arc<dyn Resolve>) -> reqwest::Result<Self> {
        let allowed: Arc<[IpNet]> = allowed.into();
        let client = |takes_public| {
            bakeoff_process::tls::http_client()
                .no_proxy()
                .redirect(redirect::Policy::none())
                .referer(false)
                .timeout(PATIENCE)
                .connect_timeout(CONNECT_PATIENCE)
                .pool_idle_timeout(Duration::from_secs(30))
                .user_agent(concat!("bakeoff/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(Guarded::new(
                    Arc::clone(resolver),
                    takes_public,
                    Arc::clone(&allowed),
                ))
                .build()
        };
        Ok(Self {
            public: client(true)?,
            allowed_only: client(false)?,
            allowed: Arc::clone(&allowed),
        })
    }

    /// Whether an address may be called, as far as that can be said without looking its name up.
    pub fn check(&self, address: &str) -> Result<Url, Forbidden> {
        self.route(address).map(|(url, _)| url)
    }

    /// The address, and the client that may call it.
    fn route(&self, address: &str) -> Result<(Url, &reqwest::Client), Forbidden> {
        let url = parsed(address)?;
        let port = url.port_or_known_default().unwrap_or_default();
        let is_usual = url.scheme() == "https" && PORTS.contains(&port);
        let literal: Option<IpAddr> = match url.host() {
            Some(Host::Ipv4(ip)) => Some(ip.into()),
            Some(Host::Ipv6(ip)) => Some(ip.into()),
            Some(Host::Domain(_)) => None,
            None => return Err(Forbidden::Malformed("no host".to_owned())),
        };
        let may_be_allowed = match literal {
            Some(ip) if address::is_in(&self.allowed, ip) => return Ok((url, &self.allowed_only)),
            Some(ip) if !address::is_public(ip) => return Err(Forbidden::Private(ip.to_string())),
            Some(_) => false,
            // A name may stand for an allowed address.
            None => !self.allowed.is_empty(),
        };
        match (is_usual, may_be_allowed) {
            (true, _) => Ok((url, &self.public)),
            (false, true) => Ok((url, &self.allowed_only)),
            (false, false) if url.scheme() == "https" => Err(Forbidden::Port(port)),
            (false, false) => Err(Forbidden::Scheme),
        }
    }

    /// Posts a body once, and reads the first 4 kB of the answer.
    pub async fn post(
        &self,
        address: &str,
        headers: HeaderMap,
        body: String,
    ) -> Result<Answer, NoAnswer> {
        let request = Request {
            method: Method::POST,
            address: address.to_owned(),
            headers,
            body,
            answer_max: ANSWER_MAX,
        };
        self.send(request).await
    }

    /// Sends a request once. A redirect is an answer like any other: it is not followed.
    pub async fn send(&self, request: Request) -> Result<Answer, NoAnswer> {
        let (url, client) = self.route(&request.address)?;
        let took = Stopwatch::start();
        let failed = |error: reqwest::Error| NoAnswer::Failed(chain(&error.without_url()));
        let sent = client
            .request(request.method, url)
            .headers(request.headers)
            .body(request.body)
            .send();
        let answer = sent.await.map_err(failed)?;
        let status = answer.status().as_u16();
        let headers = answer.headers().clone();
        let mut read = Vec::new();
        let mut chunks = answer.bytes_stream();
        // The status is what counts: an answer that breaks off is one.
        while let Some(Ok(chunk)) = chunks.next().await {
            read.extend_from_slice(&chunk);
            if read.len() >= request.answer_max {
                read.truncate(request.answer_max);
                break;
            }
        }
        Ok(Answer {
            status,
            headers,
            body: String::from_utf8_lossy(&read).replace('\0', "\u{fffd}"),
            milliseconds: u64::try_from(took.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// A URL that could be called at all.
fn parsed(address: &str) -> Result<Url, Forbidden> {
    if address.len() > URL_MAX {
        return Err(Forbidden::Malformed("too long".to_owned()));
    }
    let url = Url::parse(address).map_err(|error| Forbidden::Malformed(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Forbidden::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Forbidden::Credentials);
    }
    Ok(url)
}

/// An error with its causes, the deepest last.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
