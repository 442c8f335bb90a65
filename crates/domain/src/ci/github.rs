//! Webhooks as GitHub sends them (docs.github.com, Webhook events and payloads): of which commit they speak.

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{DeliveryContent, Event, Repository, Trigger};

/// What a delivery says; `event`: the header `X-GitHub-Event`. `Err`: what is missing.
pub fn heard(event: &str, body: &Value) -> Result<DeliveryContent, String> {
    match event {
        "ping" => Ok(DeliveryContent::Ignored(
            "ping: the webhook works".to_owned(),
        )),
        "push" => push(body),
        "pull_request" => pull_request(body),
        other => Ok(DeliveryContent::Ignored(format!(
            "{other} starts nothing: push and pull_request do"
        ))),
    }
}

/// A member, which a payload always has.
pub(super) fn text<'a>(body: &'a Value, pointer: &str) -> Result<&'a str, String> {
    let found = body.pointer(pointer).and_then(Value::as_str);
    found.ok_or_else(|| format!("{pointer} is missing"))
}

fn push(body: &Value) -> Result<DeliveryContent, String> {
    let (reference, commit) = (text(body, "/ref")?, text(body, "/after")?);
    if body["deleted"] == true || commit.bytes().all(|digit| digit == b'0') {
        return Ok(DeliveryContent::Ignored(format!("{reference} was deleted")));
    }
    // Of an annotated tag, `after` is the tag's own object.
    let head = body.pointer("/head_commit/id").and_then(Value::as_str);
    let commit = head
        .filter(|_| reference.starts_with("refs/tags/"))
        .unwrap_or(commit);
    Ok(DeliveryContent::Trigger(
        Event::Push,
        Trigger {
            previous: body["before"].as_str().map(str::to_owned),
            made_at: time(body, "/head_commit/timestamp"),
            repository: repository(body),
            ..pushed(reference, commit)
        },
    ))
}

/// A time as hosts write it: that of a commit is in the committer's time zone.
pub(super) fn time(body: &Value, pointer: &str) -> Option<DateTime<Utc>> {
    let written = body.pointer(pointer)?.as_str()?;
    let time = DateTime::parse_from_rfc3339(written).ok()?;
    Some(time.to_utc())
}

fn repository(body: &Value) -> Option<Repository> {
    Some(Repository {
        id: body.pointer("/repository/id")?.as_i64()?,
        name: body.pointer("/repository/full_name")?.as_str()?.to_owned(),
    })
}

/// A commit that a branch or a tag has come to.
pub(super) fn pushed(reference: &str, commit: &str) -> Trigger {
    Trigger {
        commit: commit.to_owned(),
        branch: reference.strip_prefix("refs/heads/").map(str::to_owned),
        reference: Some(reference.to_owned()),
        ..Trigger::default()
    }
}

fn pull_request(body: &Value) -> Result<DeliveryContent, String> {
    let action = text(body, "/action")?;
    if !["opened", "reopened", "synchronize", "ready_for_review"].contains(&action) {
        return Ok(DeliveryContent::Ignored(format!(
            "{action} changes no code"
        )));
    }
    let number = body["number"].as_u64().ok_or("/number is missing")?;
    // The repository of a fork may be gone.
    let (head, base) = (
        body.pointer("/pull_request/head/repo/id"),
        body.pointer("/pull_request/base/repo/id"),
    );
    let is_fork = head.is_none_or(Value::is_null) || head != base;
    let branch = text(body, "/pull_request/head/ref")?;
    let commit = text(body, "/pull_request/head/sha")?;
    let trigger = Trigger {
        pull_request: Some(number),
        previous: body["before"].as_str().map(str::to_owned),
        // The commit's own time is not told: it was there when the request last changed.
        made_at: time(body, "/pull_request/updated_at"),
        repository: repository(body),
        ..pushed(&format!("refs/heads/{branch}"), commit)
    };
    Ok(if is_fork {
        let why = format!("#{number} is from a fork: it starts nothing that is paid");
        DeliveryContent::Refused(Event::PullRequest, trigger, why)
    } else {
        DeliveryContent::Trigger(Event::PullRequest, trigger)
    })
}
