//! Webhooks as GitLab sends them (docs.gitlab.com, Webhook events): of which commit they speak.

use serde_json::Value;

use super::github::{pushed, text, time};
use super::{DeliveryContent, Event, Repository, Trigger};

/// What a delivery says; the body names its own kind. `Err`: what is missing.
pub fn heard(body: &Value) -> Result<DeliveryContent, String> {
    match text(body, "/object_kind")? {
        "push" | "tag_push" => push(body),
        "merge_request" => merge_request(body),
        other => Ok(DeliveryContent::Ignored(format!(
            "{other} starts nothing: pushes and merge requests do"
        ))),
    }
}

fn push(body: &Value) -> Result<DeliveryContent, String> {
    let reference = text(body, "/ref")?;
    // Of a deleted branch there is none.
    Ok(match body["checkout_sha"].as_str() {
        Some(commit) => DeliveryContent::Trigger(
            Event::Push,
            Trigger {
                previous: body["before"].as_str().map(str::to_owned),
                made_at: told_commit(body, commit).and_then(|one| time(one, "/timestamp")),
                repository: repository(body),
                ..pushed(reference, commit)
            },
        ),
        None => DeliveryContent::Ignored(format!("{reference} was deleted")),
    })
}

/// A commit of a push, which tells its newest, at most twenty.
fn told_commit<'a>(body: &'a Value, id: &str) -> Option<&'a Value> {
    body["commits"]
        .as_array()?
        .iter()
        .find(|one| one["id"] == id)
}

fn repository(body: &Value) -> Option<Repository> {
    Some(Repository {
        id: body.pointer("/project/id")?.as_i64()?,
        name: body
            .pointer("/project/path_with_namespace")?
            .as_str()?
            .to_owned(),
    })
}

fn merge_request(body: &Value) -> Result<DeliveryContent, String> {
    let attributes = body
        .get("object_attributes")
        .ok_or("/object_attributes is missing")?;
    let number = attributes["iid"]
        .as_u64()
        .ok_or("/object_attributes/iid is missing")?;
    let action = attributes["action"].as_str().unwrap_or("none");
    // An update without an earlier revision is one of the title, labels and so on.
    let has_code = matches!(action, "open" | "reopen")
        || action == "update" && attributes["oldrev"].is_string();
    if !has_code {
        return Ok(DeliveryContent::Ignored(format!(
            "{action} of !{number} changes no code"
        )));
    }
    let (source, target) = (
        &attributes["source_project_id"],
        &attributes["target_project_id"],
    );
    let is_fork = source.is_null() || source != target;
    let branch = text(attributes, "/source_branch")?;
    let commit = text(attributes, "/last_commit/id")?;
    let trigger = Trigger {
        pull_request: Some(number),
        previous: attributes["oldrev"].as_str().map(str::to_owned),
        made_at: time(attributes, "/last_commit/timestamp"),
        repository: repository(body),
        ..pushed(&format!("refs/heads/{branch}"), commit)
    };
    Ok(if is_fork {
        let why = format!("!{number} is from a fork: it starts nothing that is paid");
        DeliveryContent::Refused(Event::PullRequest, trigger, why)
    } else {
        DeliveryContent::Trigger(Event::PullRequest, trigger)
    })
}
