//! `signals`: other people's files, read by the product's own code: what it makes of them, against what is true.

mod checkpoints;
mod failures;
mod metrics;

use std::path::Path;

use serde_json::{Map, Value, json};

/// Judges every part whose inputs are in the folder.
pub(crate) fn judge(data: &Path) -> Result<Value, String> {
    let mut parts = Map::new();
    let failures = failures::judge(&data.join("failures.json"))?;
    parts.insert(
        "failures".to_owned(),
        failures.unwrap_or_else(|| json!(super::SKIPPED)),
    );
    let checkpoints = checkpoints::judge(&data.join("checkpoints.json"))?;
    parts.insert(
        "checkpoints".to_owned(),
        checkpoints.unwrap_or_else(|| json!(super::SKIPPED)),
    );
    let metrics = metrics::judge(&data.join("metrics"))?;
    parts.insert(
        "metrics".to_owned(),
        metrics.unwrap_or_else(|| json!(super::SKIPPED)),
    );
    Ok(Value::Object(parts))
}
