//! JSON: lines, lists of records, tables by columns, and what frameworks and AWS's command line wrap around them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::LineError;
use super::aws;
use super::cell::{Cell, Record};
use super::object::{quoted_numbers, record};
use super::plan::{Rows, listed};
use super::report::Report;
use super::trainer_state::{self, TrainerState};

/// Nests of MLflow's answers: `run.data.metrics`.
const NESTED_MAX: usize = 4;

/// An error of one line.
pub(super) fn one_error(line: usize, detail: impl Into<String>) -> Vec<LineError> {
    vec![LineError {
        line,
        detail: detail.into(),
    }]
}

fn of_json(error: &serde_json::Error) -> Vec<LineError> {
    one_error(error.line(), error.to_string())
}

fn rows_of<'a>(records: impl IntoIterator<Item = Record<'a>>) -> Rows<'a> {
    let mut rows = Rows::default();
    for (record, at) in records.into_iter().zip(1..) {
        rows.push(at, Ok(record));
    }
    rows
}

/// `[{…}]` and `[[…]]`, but not `[2025-11-20 00:01:36] iteration`.
pub(super) fn is_list(body: &[u8]) -> bool {
    let inner = body.get(1..).unwrap_or_default().trim_ascii_start();
    matches!(inner.first(), Some(b'{' | b'[' | b']'))
}

/// Whether the first of several lines is a whole object: then each line is one.
pub(super) fn is_lines(body: &[u8]) -> bool {
    let mut lines = body.splitn(2, |byte| *byte == b'\n');
    let first = without_comma(lines.next().unwrap_or_default());
    if lines.next().is_none() {
        return false;
    }
    first.ends_with(b"}") && serde_json::from_slice::<&RawValue>(&quoted_numbers(first)).is_ok()
}

/// A line of a list that lost its brackets ends with a comma.
fn without_comma(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii();
    line.strip_suffix(b",").unwrap_or(line)
}

/// One object a line.
pub(super) fn lines(body: &[u8]) -> Rows<'_> {
    let lines = body
        .split(|byte| *byte == b'\n')
        .zip(1..)
        .filter(|(line, _)| !line.trim_ascii().is_empty());
    let mut rows = Rows::default();
    for (bytes, at) in lines {
        rows.push(at, record(without_comma(bytes)));
    }
    rows
}

/// A list of objects, or TensorBoard's `[[wall time, step, value], …]`.
pub(super) fn list<'a>(clean: &'a [u8], report: &mut Report) -> Result<Rows<'a>, Vec<LineError>> {
    let inner = clean.get(1..).unwrap_or_default().trim_ascii_start();
    if inner.first() == Some(&b'[') {
        let scalars: Vec<(f64, f64, Cell<'_>)> =
            serde_json::from_slice(clean).map_err(|error| of_json(&error))?;
        return Ok(rows_of(scalars.into_iter().map(|(time, step, value)| {
            let mut record = Record::default();
            record.put(Cow::Borrowed("Wall time"), Cell::Number(time));
            record.put(Cow::Borrowed("Step"), Cell::Number(step));
            record.put(Cow::Borrowed("Value"), value);
            record
        })));
    }
    let records: Vec<Record<'_>> =
        serde_json::from_slice(clean).map_err(|error| of_json(&error))?;
    Ok(aws::log_events(&records, report).unwrap_or_else(|| rows_of(records)))
}

/// The members of a document that hold the records.
#[derive(Debug, Default, Deserialize)]
struct Nested<'a> {
    #[serde(borrow, default)]
    log_history: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metrics: Option<&'a RawValue>,
    #[serde(borrow, default)]
    run: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    columns: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "MetricDataResults")]
    metric_data_results: Option<&'a RawValue>,
}

/// One JSON document, or several after each other: `trainer_state.json`, MLflow's answers, a table by columns, a list in
/// a member, or a single record.
pub(super) fn document<'a>(
    clean: &'a [u8],
    report: &mut Report,
) -> Result<Rows<'a>, Vec<LineError>> {
    if is_several(clean) {
        let documents = serde_json::Deserializer::from_slice(clean).into_iter::<Record<'a>>();
        let records: Result<Vec<_>, _> = documents.collect();
        return Ok(rows_of(records.map_err(|error| of_json(&error))?));
    }
    let mut at = clean;
    for _ in 0..NESTED_MAX {
        let nested: Nested<'a> = serde_json::from_slice(at).map_err(|error| of_json(&error))?;
        if nested.log_history.is_some() {
            let state: TrainerState<'a> =
                serde_json::from_slice(at).map_err(|error| of_json(&error))?;
            return trainer_state::rows(state, report);
        }
        if let Some(results) = nested.metric_data_results {
            return aws::metric_data(results.get(), report).map_err(|error| of_json(&error));
        }
        if let Some(metrics) = nested
            .metrics
            .filter(|metrics| metrics.get().starts_with('['))
        {
            return list(metrics.get().as_bytes(), report);
        }
        if let Some((columns, data)) = nested.columns.zip(nested.data) {
            return split(columns, data);
        }
        let inner = [nested.run, nested.data].into_iter().flatten();
        let Some(inner) = inner.map(RawValue::get).find(|text| text.starts_with('{')) else {
            break;
        };
        at = inner.as_bytes();
    }
    if let Some(rows) = by_column(clean) {
        return Ok(rows);
    }
    if let Some(member) = only_list(clean, report) {
        return list(member.get().as_bytes(), report);
    }
    let record = serde_json::from_slice(clean).map_err(|error| of_json(&error))?;
    Ok(rows_of([record]))
}

/// Whether objects stand after each other, each over several lines, as `jq` prints them.
fn is_several(clean: &[u8]) -> bool {
    let mut documents = serde_json::Deserializer::from_slice(clean).into_iter::<&RawValue>();
    documents.next().is_some_and(|first| first.is_ok())
        && matches!(documents.next(), Some(Ok(next)) if next.get().starts_with('{'))
}

/// The one member that is a list of objects: `history` of `{"run": …, "history": [{…}]}`.
fn only_list<'a>(clean: &'a [u8], report: &mut Report) -> Option<&'a RawValue> {
    let members: BTreeMap<Cow<'a, str>, &'a RawValue> = serde_json::from_slice(clean).ok()?;
    let is_records = |value: &&RawValue| {
        let text = value.get().as_bytes();
        text.first() == Some(&b'[')
            && text.get(1..).unwrap_or_default().trim_ascii_start().first() == Some(&b'{')
    };
    let mut lists = members.iter().filter(|(_, value)| is_records(value));
    let (name, found) = lists.next()?;
    if lists.next().is_some() {
        return None;
    }
    let others = members.keys().filter(|other| *other != name);
    if members.len() > 1 {
        let others = listed(others.map(Cow::as_ref));
        report.note(
            "members-not-read",
            format!("`{name}` was read; beside it stand {others}, which were not"),
        );
    }
    Some(*found)
}

/// `{"columns": […], "data": [[…], …]}`, as pandas splits a table.
fn split<'a>(columns: &'a RawValue, data: &'a RawValue) -> Result<Rows<'a>, Vec<LineError>> {
    let names: Vec<String> =
        serde_json::from_str(columns.get()).map_err(|error| of_json(&error))?;
    let records: Vec<Vec<Cell<'a>>> =
        serde_json::from_str(data.get()).map_err(|error| of_json(&error))?;
    Ok(rows_of(records.into_iter().map(|cells| {
        let mut record = Record::default();
        for (name, cell) in names.iter().zip(cells) {
            record.put(Cow::Owned(name.clone()), cell);
        }
        record
    })))
}

/// `{"step": [1, 2], "loss": [2.5, 2.4]}`: lists of one length, at least two values each.
fn by_column(clean: &[u8]) -> Option<Rows<'_>> {
    let columns: BTreeMap<String, Vec<Cell<'_>>> = serde_json::from_slice(clean).ok()?;
    let length = columns.values().next()?.len();
    if length < 2 || columns.len() < 2 || columns.values().any(|cells| cells.len() != length) {
        return None;
    }
    let mut records: Vec<Record<'_>> = (0..length).map(|_| Record::default()).collect();
    for (name, cells) in columns {
        for (record, cell) in records.iter_mut().zip(cells) {
            record.put(Cow::Owned(name.clone()), cell);
        }
    }
    Some(rows_of(records))
}

/// Repairs two common deviations from JSON: bare `NaN` and `Infinity`, and a comma before the last bracket.
pub(super) fn clean(body: &[u8]) -> Cow<'_, [u8]> {
    let inner = body.strip_suffix(b"]").map(<[u8]>::trim_ascii_end);
    match inner.and_then(|inner| inner.strip_suffix(b",")) {
        Some(inner) => Cow::Owned([&quoted_numbers(inner), &b"]"[..]].concat()),
        None => quoted_numbers(body),
    }
}
