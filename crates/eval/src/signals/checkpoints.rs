//! Checkpoints: is each recognised as whole, at its step, and never called broken because it is not known?

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bakeoff_domain::checkpoint::{CheckpointFacts, Completeness, StoredObject, find};
use chrono::{DateTime, TimeDelta};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
struct Case {
    files: Vec<File>,
    want: Want,
}

#[derive(Debug, Deserialize)]
struct File {
    path: String,
    /// What a tracker says.
    #[serde(default)]
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Want {
    step: Option<u64>,
    /// Begins with `complete`, `incomplete` or `one file`.
    state: String,
}

pub(crate) fn judge(file: &Path) -> Result<Option<Value>, String> {
    if !file.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let cases: BTreeMap<String, Case> =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut counts: BTreeMap<&str, u64> = ["right", "unknown", "wrong", "falsely_incomplete"]
        .into_iter()
        .map(|verdict| (verdict, 0))
        .collect();
    let mut shown = Vec::new();
    for (name, case) in &cases {
        let (verdict, said) = one(case);
        *counts.entry(verdict).or_default() += 1;
        shown.push(json!({ "case": name, "verdict": verdict, "said": said }));
    }
    let mut found = json!(counts);
    found["rows"] = json!(cases.len());
    found["cases"] = json!(shown);
    Ok(Some(found))
}

fn one(case: &Case) -> (&'static str, Value) {
    let written_at = DateTime::UNIX_EPOCH;
    let objects: Vec<StoredObject> = case
        .files
        .iter()
        .map(|file| StoredObject {
            key: file.path.clone(),
            bytes: 1_000,
            written_at,
        })
        .collect();
    let trackers = case
        .files
        .iter()
        .filter_map(|file| Some((file.path.clone(), file.text.clone()?)));
    let known = CheckpointFacts {
        ranks: None,
        trackers: trackers.collect(),
    };
    let found = find(&objects, &known, written_at + TimeDelta::hours(1));
    let said = found
        .iter()
        .map(|one| json!([one.name, one.writer, one.step, one.wholeness]))
        .collect();
    let said = Value::Array(said);
    let [only] = found.as_slice() else {
        return ("wrong", said);
    };
    let is_step = only.step == case.want.step;
    let wants = |state: &str| case.want.state.starts_with(state);
    let verdict = match &only.wholeness {
        Completeness::Complete if wants("complete") && is_step => "right",
        Completeness::Incomplete { .. } if wants("incomplete") && is_step => "right",
        // A single file may be whole: nothing in it says so.
        Completeness::Unknown if wants("one file") && is_step => "right",
        Completeness::Incomplete { .. } if !wants("incomplete") => "falsely_incomplete",
        Completeness::Unknown => "unknown",
        _ => "wrong",
    };
    (verdict, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_of_our_own_is_told_rightly() {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/inputs/checkpoints.json");
        let found = judge(&file).unwrap().unwrap();
        let cases = found["cases"].as_array().unwrap();
        assert!(cases.len() >= 20);
        let wrong: Vec<&Value> = cases
            .iter()
            .filter(|case| case["verdict"] != "right")
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
