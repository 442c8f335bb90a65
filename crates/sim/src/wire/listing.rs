//! What the lists of all kinds have in common, and replies that are lost.

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::account::epoch::epoch;
use crate::account::refusal::{Refusal, invalid};
use crate::world::World;

/// MaxResults of a list.
pub(super) fn page_size(body: &Value) -> Result<usize, Refusal> {
    let size = body["MaxResults"].as_u64().unwrap_or(10);
    if !(1..=100).contains(&size) {
        return Err(invalid(format!(
            "1 validation error detected: Value '{size}' at 'maxResults' failed to satisfy constraint: Member must have value less than or equal to 100"
        )));
    }
    Ok(usize::try_from(size).unwrap_or(10))
}

/// Where the page of a list begins.
pub(super) fn offset_of(world: &mut World, body: &Value) -> Result<usize, Refusal> {
    match body["NextToken"].as_str() {
        None => Ok(0),
        Some(_) if world.happens(world.faults.expired_page, "expired_page") => {
            Err(invalid("The pagination token has expired"))
        }
        Some(token) => token
            .strip_prefix("page-")
            .and_then(|n| n.parse().ok())
            .ok_or_else(|| invalid("Invalid NextToken")),
    }
}

/// Whether something was created in the requested range.
pub(super) fn created_between(body: &Value, created_at: DateTime<Utc>) -> bool {
    let created = epoch(created_at);
    let (after, before) = (&body["CreationTimeAfter"], &body["CreationTimeBefore"]);
    after.as_f64().is_none_or(|after| created > after)
        && before.as_f64().is_none_or(|before| created < before)
}

/// Carried out, and answered with a 500.
pub(super) fn lost() -> Refusal {
    Refusal {
        code: "InternalFailure",
        message: "An internal failure occurred".to_owned(),
    }
}
