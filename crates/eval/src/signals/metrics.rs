//! Metric files: is the speed that follows from each the true one, and is every value either stored or named?

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::measure::derived::TrainingShape;
use bakeoff_domain::measure::samples::{self, Batch, LineError, Note, ReadOptions, figures};
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Value, json};

/// What every file tells unless the index says otherwise: a step of 64 sequences of 2,048 tokens each two seconds, on
/// eight H100.
const TOKENS_PER_SECOND: f64 = 65_536.0;
const SEQUENCES: u64 = 64;
const SEQUENCE: u32 = 2_048;
const ACCELERATORS: u32 = 8;
const PLANNED_STEPS: i64 = 2_000;
const STARTED_AT: &str = "2025-11-20T00:00:00Z";
const LATEST: &str = "2026-11-28T00:00:00Z";
/// A figure that is off by more than this share is wrong.
const TOLERANCE: f64 = 0.01;
/// Notes that say that a figure may not be what it seems.
const DOUBTS: [&str; 6] = [
    "rates-contradict-steps",
    "step-is-a-guess",
    "time-spread",
    "step-beyond-plan",
    "speed-beyond-peak",
    "micro-steps",
];

/// What is known of a file (`index.json`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// `null` where no speed follows from it.
    #[serde(default = "usual_speed")]
    tokens_per_second: Option<f64>,
    #[serde(default)]
    last_step: Option<i64>,
    /// The producer that must be named.
    #[serde(default)]
    format: Option<String>,
    /// A standard metric that must be read, with its mean.
    #[serde(default)]
    means: BTreeMap<String, f64>,
    /// No time can be known: it must be refused with these words.
    #[serde(default)]
    refused: Option<String>,
    /// A note that must be made.
    #[serde(default)]
    note: Option<String>,
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "serde's default has the field's type"
)]
fn usual_speed() -> Option<f64> {
    Some(TOKENS_PER_SECOND)
}

pub(crate) fn judge(folder: &Path) -> Result<Option<Value>, String> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let index = folder.join("index.json");
    let wanted: BTreeMap<String, Wanted> = if index.is_file() {
        let text = fs::read_to_string(&index).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", index.display()))?
    } else {
        BTreeMap::new()
    };
    let mut files: Vec<_> = fs::read_dir(folder)
        .map_err(|error| error.to_string())?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name != "index.json"))
        .collect();
    files.sort();
    let mut counts: BTreeMap<&str, u64> = ["right", "doubted", "refused", "wrong", "silent_losses"]
        .into_iter()
        .map(|verdict| (verdict, 0))
        .collect();
    let mut cases = Vec::new();
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let body = fs::read(&path).map_err(|error| error.to_string())?;
        let own = wanted.get(name.as_ref());
        let (verdict, said) = one(&body, own);
        *counts.entry(verdict).or_default() += 1;
        cases.push(json!({ "file": name, "verdict": verdict, "said": said }));
    }
    let mut found = json!(counts);
    found["rows"] = json!(cases.len());
    found["cases"] = json!(cases);
    Ok(Some(found))
}

fn at(text: &str) -> Option<DateTime<Utc>> {
    text.parse().ok()
}

fn one(body: &[u8], wanted: Option<&Wanted>) -> (&'static str, Value) {
    let usual = Wanted {
        tokens_per_second: usual_speed(),
        ..Wanted::default()
    };
    let own = wanted.unwrap_or(&usual);
    let reading = ReadOptions {
        latest: at(LATEST).unwrap_or_default(),
        skip_bad_lines: false,
        started_at: at(STARTED_AT),
        metric: None,
    };
    let batch = match samples::read(body, reading) {
        Ok(batch) => batch,
        Err(errors) => return refused(&errors, wanted),
    };
    let model = ModelShape {
        sequence_length: SEQUENCE,
        ..ModelShape::default()
    };
    let shape = shape(&model);
    let speed = figures::speed(&batch, &shape);
    let tokens = speed.as_ref().map(|speed| speed.steady.mean);
    let last = figures::last_step(&batch);
    let mut notes = batch.report.notes.clone();
    notes.extend(figures::check(&batch, &shape));
    let said = said(&batch, &shape, &notes);
    let is_off = |figure: f64, truth: f64| (figure / truth - 1.0).abs() > TOLERANCE;
    let mut wrong = match (tokens, own.tokens_per_second) {
        (Some(tokens), Some(truth)) => is_off(tokens, truth),
        (Some(_), None) => true,
        (None, _) => wanted.is_some() && own.tokens_per_second.is_some(),
    };
    wrong |= own.last_step.is_some() && own.last_step != last;
    wrong |= own.format.is_some() && own.format != batch.report.format;
    wrong |= own.refused.is_some();
    for (metric, truth) in &own.means {
        wrong |= mean(&batch, metric).is_none_or(|mean| is_off(mean, *truth));
    }
    let is_noted = |rule: &str| notes.iter().any(|note| note.rule == rule);
    wrong |= own.note.as_ref().is_some_and(|rule| !is_noted(rule));
    let verdict = if wrong && wanted.is_none() && DOUBTS.into_iter().any(is_noted) {
        "doubted"
    } else if wrong {
        "wrong"
    } else if let Some(lost) = lost(body, &batch) {
        return ("silent_losses", json!({ "lost": lost, "said": said }));
    } else {
        "right"
    };
    (verdict, said)
}

/// A refusal is right where it is wanted, with its words.
fn refused(errors: &[LineError], wanted: Option<&Wanted>) -> (&'static str, Value) {
    let said = errors.first().map_or("", |error| error.detail.as_str());
    let words = wanted.and_then(|own| own.refused.as_deref());
    let is_right = words.is_some_and(|words| said.contains(words));
    (if is_right { "right" } else { "refused" }, json!(said))
}

/// The shape of the run that every file is of.
fn shape(model: &ModelShape) -> TrainingShape<'_> {
    TrainingShape {
        model: Some(model),
        global_batch: Some(SEQUENCES),
        accelerators: ACCELERATORS,
        peak_tflops: None,
        accelerator_gib: None,
        epoch_tokens: None,
        planned_steps: Some(PLANNED_STEPS),
        usd_per_hour: None,
        billed_share: None,
    }
}

/// What the product makes of a batch.
fn said(batch: &Batch, shape: &TrainingShape<'_>, notes: &[Note]) -> Value {
    let speed = figures::speed(batch, shape);
    let tokens = speed.as_ref().map(|speed| speed.steady.mean);
    let steps = tokens.zip(shape.tokens_per_step());
    json!({
        "format": batch.report.format,
        "time": batch.report.time,
        "step": batch.report.step,
        "tokens_per_second": tokens,
        "steps_per_second": steps.map(|(tokens, of_step)| tokens / of_step),
        "basis": speed.as_ref().map(|speed| speed.basis),
        "last_step": figures::last_step(batch),
        "columns": batch.report.columns,
        "not_read": batch.report.not_read,
        "conflicts": batch.report.conflicts_in_all,
        "notes": notes,
    })
}

fn mean(batch: &Batch, metric: &str) -> Option<f64> {
    let is_it = |name: &String| {
        bakeoff_domain::measure::metric::standard(name).map_or(name.as_str(), |one| one.name)
            == metric
    };
    let values: Vec<f64> = batch
        .points
        .iter()
        .filter(|point| batch.names.get(point.name).is_some_and(is_it))
        .map(|point| point.value)
        .collect();
    let count = values.len();
    (count > 0).then(|| values.iter().sum::<f64>() / count as f64)
}

/// The first column of which more cells are there than are accounted for, counted without the reader.
fn lost(body: &[u8], batch: &Batch) -> Option<String> {
    let report = &batch.report;
    let is_long = report
        .columns
        .iter()
        .any(|column| column.column == "value" || column.column == "Value");
    for (column, cells) in cells(body) {
        let is_axis = [&report.time, &report.step]
            .into_iter()
            .flatten()
            .any(|name| *name == column);
        let read = report.columns.iter().filter(|one| one.column == column);
        let read: u64 = read.map(|one| one.points).sum();
        let left = report.not_read.iter().filter(|one| one.column == column);
        let left: u64 = left.map(|one| one.cells).sum();
        if !is_axis && read + left < cells && !is_long {
            return Some(format!(
                "{column}: {cells} cells, {read} read, {left} named"
            ));
        }
    }
    None
}

/// Numbers of each column of JSON lines, a JSON list, or a table.
fn cells(body: &[u8]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let text = String::from_utf8_lossy(body);
    let list: Option<Vec<Value>> = serde_json::from_str(&text).ok();
    // The members of one document are no records.
    if serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object()) {
        return counts;
    }
    let records = list.unwrap_or_else(|| {
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    });
    for record in &records {
        count("", record, &mut counts);
    }
    // Which device a record is of is used, and not stored.
    counts.retain(|name, _| !["rank", "local_rank", "gpu_id", "index"].contains(&name.as_str()));
    counts
}

fn count(path: &str, value: &Value, counts: &mut BTreeMap<String, u64>) {
    match value {
        Value::Number(_) => *counts.entry(path.to_owned()).or_default() += 1,
        Value::Object(members) => {
            for (name, value) in members {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                count(&path, value, counts);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files in `tests/inputs` are in the shapes that their producers write today and wrote before.
    #[test]
    fn every_file_of_our_own_is_read_rightly() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/inputs/metrics");
        let found = judge(&folder).unwrap().unwrap();
        let cases = found["cases"].as_array().unwrap();
        assert!(cases.len() >= 60);
        let wrong: Vec<&Value> = cases
            .iter()
            .filter(|case| case["verdict"] != "right")
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
