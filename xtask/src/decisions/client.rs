//! Requests to the service and to the region, which are both up: the first error ends the run.

use serde_json::Value;

fn authorized(key: &str) -> String {
    format!("Bearer {key}")
}

pub(super) fn get(url: &str, key: &str) -> Result<Value, String> {
    let mut answer = ureq::get(url)
        .header("authorization", &authorized(key))
        .call()
        .map_err(|error| format!("GET {url}: {error}"))?;
    let body = answer.body_mut().with_config().limit(256 << 20).read_json();
    body.map_err(|error| format!("GET {url}: {error}"))
}

pub(super) fn pages(url: &str, key: &str) -> Result<Vec<Value>, String> {
    let (mut items, mut token) = (Vec::new(), String::new());
    loop {
        let page = get(&format!("{url}?page_size=200{token}"), key)?;
        items.extend(page["items"].as_array().cloned().unwrap_or_default());
        match page["next_page_token"].as_str() {
            Some(next) => token = format!("&page_token={next}"),
            None => return Ok(items),
        }
    }
}

pub(super) fn post(url: &str, key: &str, body: &Value) -> Result<Value, String> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build();
    let mut answer = config
        .new_agent()
        .post(url)
        .header("authorization", &authorized(key))
        .send_json(body)
        .map_err(|error| format!("POST {url}: {error}"))?;
    let status = answer.status();
    let told: Value = answer
        .body_mut()
        .read_json()
        .map_err(|error| format!("POST {url}: {error}"))?;
    if status.is_success() {
        Ok(told)
    } else {
        Err(format!("POST {url}: {status}: {told}"))
    }
}
