//! The command line's HTTP client: retries what is safe to repeat, and prints problems in readable
//! form.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use super::profiles::{self, Resolved};
use bakeoff_api::page::Page;
use bakeoff_http::Problem;
use bakeoff_process::clock::real_sleep;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to keep retrying while the service restarts.
const PATIENCE: Duration = Duration::from_secs(90);
const RETRY_EVERY: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Args)]
pub(super) struct Target {
    /// Where the service listens; when absent, what BAKEOFF_URL says, the profile, or http://127.0.0.1:8080.
    #[arg(long)]
    pub(super) url: Option<String>,
    /// API key; when absent, what BAKEOFF_API_KEY says, or the profile's.
    #[arg(long)]
    pub(super) api_key: Option<String>,
    /// A service that `bakeoff login` has kept; when absent, what BAKEOFF_PROFILE says, or the default one.
    #[arg(long)]
    pub(super) profile: Option<String>,
}

pub(super) struct Client {
    http: reqwest::Client,
    target: Resolved,
    /// Whether it was said that the service is away.
    has_said: AtomicBool,
}

impl Client {
    pub(super) fn new(target: &Target) -> anyhow::Result<Self> {
        Self::patient(target, REQUEST_TIMEOUT)
    }

    /// For requests that take longer than most.
    pub(super) fn patient(target: &Target, timeout: Duration) -> anyhow::Result<Self> {
        let http = bakeoff_process::tls::http_client()
            .timeout(timeout)
            .build()?;
        Ok(Self {
            http,
            target: profiles::resolve(target)?,
            has_said: AtomicBool::new(false),
        })
    }

    /// Where requests go, without a slash at the end.
    pub(super) fn url(&self) -> &str {
        &self.target.url
    }

    /// A document as the service sends it, such as CSV.
    pub(super) async fn text(&self, path: &str) -> anyhow::Result<String> {
        Ok(self
            .sent(Method::GET, path, None, None)
            .await?
            .text()
            .await?)
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(Method::GET, path, None, None).await
    }

    /// The items of all pages; `path` ends with `?` or `&`.
    pub(super) async fn all<T: DeserializeOwned + ToSchema>(
        &self,
        path: &str,
    ) -> anyhow::Result<Vec<T>> {
        let (mut items, mut token) = (Vec::new(), String::new());
        loop {
            let page: Page<T> = self.get(&format!("{path}page_size=500{token}")).await?;
            items.extend(page.items);
            let Some(next) = page.next_page_token else {
                return Ok(items);
            };
            token = format!("&page_token={next}");
        }
    }

    /// Safe to repeat: the idempotency key makes it count once.
    pub(super) async fn post_once<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &[u8],
        key: &str,
    ) -> anyhow::Result<T> {
        self.send(Method::POST, path, Some(body), Some(key)).await
    }

    /// Once, whatever the answer.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &[u8],
    ) -> anyhow::Result<T> {
        match self.try_once(Method::POST, path, Some(body), None).await {
            Ok(answer) => Ok(answer.json().await?),
            Err(Failure::Final(error) | Failure::Passing(error)) => Err(error),
        }
    }

    /// Safe to repeat: it says how things are to be.
    pub(super) async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &[u8],
    ) -> anyhow::Result<T> {
        self.send(Method::PATCH, path, Some(body), None).await
    }

    /// Safe to repeat: what is gone stays so.
    pub(super) async fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(Method::DELETE, path, None, None).await
    }

    /// A POST that is safe to repeat by itself.
    pub(super) async fn post_again<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &[u8],
    ) -> anyhow::Result<T> {
        self.send(Method::POST, path, Some(body), None).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&[u8]>,
        key: Option<&str>,
    ) -> anyhow::Result<T> {
        let answer = self.sent(method.clone(), path, body, key).await?;
        answer
            .json()
            .await
            .with_context(|| format!("{method} {path}"))
    }

    /// The answer to a request that is safe to repeat.
    async fn sent(
        &self,
        method: Method,
        path: &str,
        body: Option<&[u8]>,
        key: Option<&str>,
    ) -> anyhow::Result<reqwest::Response> {
        let started = Instant::now();
        loop {
            match self.try_once(method.clone(), path, body, key).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error)) if started.elapsed() > PATIENCE => return Err(error),
                Err(Failure::Passing(error)) => {
                    self.say_once(&error);
                    real_sleep(RETRY_EVERY).await;
                }
            }
        }
    }

    /// Says once why the command is waiting: retries can take a minute and a half.
    fn say_once(&self, error: &anyhow::Error) {
        if !self.has_said.swap(true, Ordering::Relaxed) {
            eprintln!(
                "{}: {}; trying again for {} s",
                self.target.url,
                error.root_cause(),
                PATIENCE.as_secs()
            );
        }
    }

    async fn try_once(
        &self,
        method: Method,
        path: &str,
        body: Option<&[u8]>,
        key: Option<&str>,
    ) -> Result<reqwest::Response, Failure> {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.target.url));
        if let Some(api_key) = &self.target.api_key {
            request = request.bearer_auth(api_key);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_vec());
        }
        let answer = request.send().await.map_err(Failure::of)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let text = answer.text().await.unwrap_or_default();
        let mut shown = show(status, &text);
        if status == StatusCode::UNAUTHORIZED && self.target.api_key.is_none() {
            shown.push_str("\n  to fix it: bakeoff login, or set BAKEOFF_API_KEY");
        }
        let shown = anyhow::anyhow!(shown);
        let may_pass = status.is_server_error() && status != StatusCode::INTERNAL_SERVER_ERROR;
        Err(if may_pass {
            Failure::Passing(shown)
        } else {
            Failure::Final(shown)
        })
    }
}

/// An error unless the service at this address is ready.
pub(super) async fn ready(url: &str) -> anyhow::Result<()> {
    let http = bakeoff_process::tls::http_client()
        .timeout(REQUEST_TIMEOUT)
        .build()?;
    let url = url.trim_end_matches('/');
    let answer = http.get(format!("{url}/readyz")).send().await?;
    if !answer.status().is_success() {
        let (status, why) = (answer.status(), answer.text().await?);
        bail!("not ready: {status}: {why}");
    }
    Ok(())
}

enum Failure {
    /// The service is away or busy: the same request may succeed later.
    Passing(anyhow::Error),
    Final(anyhow::Error),
}

impl Failure {
    fn of(error: reqwest::Error) -> Self {
        // An address or a key that no request can be made of stays wrong.
        if error.is_builder() {
            Self::Final(error.into())
        } else {
            Self::Passing(error.into())
        }
    }
}

/// Formats a problem, with one line for each error.
fn show(status: StatusCode, text: &str) -> String {
    let Ok(problem) = serde_json::from_str::<Problem>(text) else {
        return format!("{status}: {text}");
    };
    let mut lines = vec![format!(
        "{}: {} ({})",
        problem.title, problem.detail, problem.status
    )];
    for error in &problem.errors {
        lines.push(format!("  {}  {}", error.pointer, error.detail));
        if !error.fix.is_empty() {
            lines.push(format!("      to fix it: {}", error.fix));
        }
    }
    lines.join("\n")
}
