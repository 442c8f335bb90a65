//! `signals`: other people's files, read by the product's own code: what it makes of them, against what is true.

mod checkpoints;
mod failures;
mod jobs;
mod metrics;

use std::path::Path;

use serde_json::{Map, Value, json};

/// Judges every part whose inputs are in the folder.
pub(crate) fn judge(data: &Path) -> Result<Value, String> {
    let found = [
        ("failures", failures::judge(&data.join("failures.json"))?),
        (
            "checkpoints",
            checkpoints::judge(&data.join("checkpoints.json"))?,
        ),
        ("metrics", metrics::judge(&data.join("metrics"))?),
        ("jobs", jobs::judge(&data.join("jobs"))?),
    ];
    let parts = found.map(|(part, found)| {
        let found = found.unwrap_or_else(|| json!(super::SKIPPED));
        (part.to_owned(), found)
    });
    Ok(Value::Object(Map::from_iter(parts)))
}
