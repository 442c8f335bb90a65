//! Models and endpoint configurations: what an endpoint is made of.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::account::epoch::epoch;
use crate::account::refusal::{Refusal, invalid};
use crate::jobs::model_packages::Call;

/// A model, or an endpoint configuration.
#[derive(Debug)]
pub(super) struct ServingPart {
    pub(super) arn: String,
    pub(super) request: Value,
    pub(super) created_at: DateTime<Utc>,
    /// When others see it.
    pub(super) visible_at: DateTime<Utc>,
}

pub(super) fn key(call: Call<'_>, field: &str) -> (String, String) {
    let name = call.body[field].as_str().unwrap_or_default();
    (call.account.to_owned(), name.to_owned())
}

/// What a part is called in errors, its ARN, and the member that tells it.
#[derive(Debug)]
pub(super) struct Kind<'a> {
    pub(super) what: &'a str,
    pub(super) arn: String,
    pub(super) member: &'a str,
}

pub(super) fn create_part(
    all: &mut BTreeMap<(String, String), ServingPart>,
    call: Call<'_>,
    field: &str,
    kind: Kind<'_>,
    visible_at: DateTime<Utc>,
) -> Result<Value, Refusal> {
    let Kind { what, arn, member } = kind;
    let key = key(call, field);
    if all.contains_key(&key) {
        return Err(invalid(format!(
            "Cannot create already existing {what} \"{arn}\"."
        )));
    }
    let part = ServingPart {
        arn: arn.clone(),
        request: call.body.clone(),
        created_at: call.now,
        visible_at,
    };
    all.insert(key, part);
    Ok(json!({ member: arn }))
}

pub(super) fn missing(name: &str, call: Call<'_>, what: &str) -> Refusal {
    let kind = if what == "model" {
        "model"
    } else {
        "endpoint-config"
    };
    let arn = call.arn(kind, &name.to_lowercase());
    invalid(format!("Could not find {what} \"{arn}\"."))
}

pub(super) fn describe_part(
    all: &BTreeMap<(String, String), ServingPart>,
    call: Call<'_>,
    field: &str,
    what: &str,
) -> Result<Value, Refusal> {
    let key = key(call, field);
    let part = all.get(&key).ok_or_else(|| missing(&key.1, call, what))?;
    let mut told = part.request.clone();
    let member = if what == "model" {
        "ModelArn"
    } else {
        "EndpointConfigArn"
    };
    told[member] = json!(part.arn);
    told["CreationTime"] = json!(epoch(part.created_at));
    Ok(told)
}

pub(super) fn delete_part(
    all: &mut BTreeMap<(String, String), ServingPart>,
    call: Call<'_>,
    field: &str,
    what: &str,
) -> Result<Value, Refusal> {
    let key = key(call, field);
    let removed = all.remove(&key);
    removed.map_or_else(|| Err(missing(&key.1, call, what)), |_| Ok(json!({})))
}
