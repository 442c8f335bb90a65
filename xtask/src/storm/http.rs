//! Requests to services that may be dead, frozen or cut off; each has a timeout.

use std::time::Duration;

use serde_json::Value;

/// Timeout of a request. The service may be stopped and must be continued on time, so nothing may
/// wait longer for its answer.
const ANSWER_MAX: Duration = Duration::from_secs(4);

pub(super) fn get(url: &str, key: &str) -> Result<Value, String> {
    found(url, key)?.ok_or_else(|| format!("GET {url}: not found"))
}

/// `None` means a 404 and nothing else: a database that is down says nothing about its contents.
pub(super) fn found(url: &str, key: &str) -> Result<Option<Value>, String> {
    let mut request = agent().get(url);
    if !key.is_empty() {
        request = request.header("authorization", &format!("Bearer {key}"));
    }
    let mut answer = match request.call() {
        Err(ureq::Error::StatusCode(404)) => return Ok(None),
        answer => answer.map_err(|error| format!("GET {url}: {error}"))?,
    };
    let body = answer.body_mut().with_config().limit(64 << 20).read_json();
    body.map(Some)
        .map_err(|error| format!("GET {url}: {error}"))
}

/// The items of all pages.
pub(super) fn pages(url: &str, key: &str) -> Result<Vec<Value>, String> {
    let (mut items, mut token) = (Vec::new(), None::<String>);
    loop {
        let joint = if url.contains('?') { '&' } else { '?' };
        let page = match &token {
            None => get(url, key)?,
            Some(token) => get(&format!("{url}{joint}page_token={token}"), key)?,
        };
        items.extend(page["items"].as_array().cloned().unwrap_or_default());
        token = page["next_page_token"].as_str().map(str::to_owned);
        if token.is_none() {
            return Ok(items);
        }
    }
}

pub(super) fn post(url: &str, key: &str, body: &Value) -> Result<Value, String> {
    send(agent().post(url), key, None, body)
}

pub(super) fn send(
    request: ureq::RequestBuilder<ureq::typestate::WithBody>,
    key: &str,
    once: Option<&str>,
    body: &Value,
) -> Result<Value, String> {
    let what = format!("{:?} {:?}", request.method_ref(), request.uri_ref());
    let mut request = request;
    if !key.is_empty() {
        request = request.header("authorization", &format!("Bearer {key}"));
    }
    if let Some(once) = once {
        request = request.header("idempotency-key", once);
    }
    let mut answer = request
        .send_json(body)
        .map_err(|error| format!("{what}: {error}"))?;
    let text = answer
        .body_mut()
        .read_to_string()
        .map_err(|error| format!("{what}: {error}"))?;
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}

pub(super) fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(ANSWER_MAX))
        .build()
        .new_agent()
}
