//! Requests to services that may be dead, frozen or cut off: each has a timeout, and an error tells
//! what was answered.

use std::time::Duration;

use serde_json::Value;

/// Timeout of a request. The service may be stopped and must be continued on time, so nothing may
/// wait longer for its answer.
const ANSWER_MAX: Duration = Duration::from_secs(4);

/// The same for an answer that takes long to write, of a service that nobody stops.
const LARGE_ANSWER_MAX: Duration = Duration::from_mins(2);

pub fn get(url: &str, key: &str) -> Result<Value, String> {
    found(url, key)?.ok_or_else(|| format!("GET {url}: not found"))
}

/// Gets an answer of any size.
pub fn get_large(url: &str, key: &str) -> Result<Value, String> {
    let found = found_within(LARGE_ANSWER_MAX, url, key)?;
    found.ok_or_else(|| format!("GET {url}: not found"))
}

/// `None` means a 404 and nothing else: a database that is down says nothing about its contents.
pub fn found(url: &str, key: &str) -> Result<Option<Value>, String> {
    found_within(ANSWER_MAX, url, key)
}

fn found_within(most: Duration, url: &str, key: &str) -> Result<Option<Value>, String> {
    let mut request = agent_within(most).get(url);
    if !key.is_empty() {
        request = request.header("authorization", &format!("Bearer {key}"));
    }
    let failed = |error| format!("GET {url}: {error}");
    let mut answer = request.call().map_err(failed)?;
    if answer.status() == 404 {
        return Ok(None);
    }
    if !answer.status().is_success() {
        return Err(format!("GET {url}: {}", answer.status()));
    }
    let body = answer.body_mut().with_config().limit(256 << 20).read_json();
    body.map(Some).map_err(failed)
}

/// The items of all pages.
pub fn pages(url: &str, key: &str) -> Result<Vec<Value>, String> {
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

pub fn post(url: &str, key: &str, body: &Value) -> Result<Value, String> {
    send(agent().post(url), key, None, body)
}

pub fn send(
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
    // Callers sign `body.to_string()`, so send exactly those bytes: `send_json` would indent them.
    let mut answer = request
        .header("content-type", "application/json")
        .send(body.to_string())
        .map_err(|error| format!("{what}: {error}"))?;
    let status = answer.status();
    let text = answer
        .body_mut()
        .read_to_string()
        .map_err(|error| format!("{what}: {error}"))?;
    if !status.is_success() {
        return Err(format!("{what}: {status}: {text}"));
    }
    Ok(serde_json::from_str(&text).unwrap_or(Value::Null))
}

pub fn delete(url: &str, key: &str) -> Result<(), String> {
    let request = agent()
        .delete(url)
        .header("authorization", &format!("Bearer {key}"));
    let answer = request
        .call()
        .map_err(|error| format!("DELETE {url}: {error}"))?;
    let status = answer.status();
    status
        .is_success()
        .then_some(())
        .ok_or_else(|| format!("DELETE {url}: {status}"))
}

/// Makes requests to be sent with [`send`].
pub fn agent() -> ureq::Agent {
    agent_within(ANSWER_MAX)
}

/// The same with a timeout of its own.
pub fn agent_within(most: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(most))
        .http_status_as_error(false)
        .build()
        .new_agent()
}
