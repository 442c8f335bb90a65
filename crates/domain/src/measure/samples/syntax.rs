//! How a body is written, told by how it begins: JSON lines, a JSON document, a table, or the log of a program.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::LineError;
use super::cell::{Cell, Record};
use super::formats;
use super::log;
use super::plan::Rows;
use super::report::Report;
use super::trainer_state::{self, TrainerState};

/// Nests of MLflow's answers: `run.data.metrics`.
const NESTED_MAX: usize = 4;
/// Lines of a table that are looked at to find its delimiter.
const DELIMITERS: [u8; 3] = [b',', b';', b'\t'];

/// The records of a body.
pub(super) fn rows<'a>(
    body: &'a [u8],
    clean: &'a mut Cow<'a, [u8]>,
    report: &mut Report,
) -> Result<Rows<'a>, Vec<LineError>> {
    let body = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body);
    let body = body.trim_ascii();
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    let rows = match first {
        None => Rows::default(),
        Some(b'[') if is_json_list(body) => {
            *clean = quoted_numbers(body);
            list(clean)?
        }
        Some(b'{') if !is_python(body) => {
            if is_lines(body) {
                lines(body)
            } else {
                *clean = quoted_numbers(body);
                document(clean, report)?
            }
        }
        _ => text(body, report)?,
    };
    if report.format.is_none() {
        report.format = formats::of_columns(rows.names()).map(str::to_owned);
    }
    Ok(rows)
}

fn one_error(line: usize, detail: impl Into<String>) -> Vec<LineError> {
    vec![LineError {
        line,
        detail: detail.into(),
    }]
}

fn of_json(error: &serde_json::Error) -> Vec<LineError> {
    one_error(error.line(), error.to_string())
}

/// `[{…}]` and `[[…]]`, but not `[2025-11-20 00:01:36] iteration`.
fn is_json_list(body: &[u8]) -> bool {
    let inner = body.get(1..).unwrap_or_default().trim_ascii_start();
    matches!(inner.first(), Some(b'{' | b'[' | b']'))
}

/// `{'loss': 2.5}` is how Python prints a dictionary.
fn is_python(body: &[u8]) -> bool {
    let inner = body.get(1..).unwrap_or_default().trim_ascii_start();
    inner.first() == Some(&b'\'')
}

/// Whether the first of several lines is a whole object: then each line is one.
fn is_lines(body: &[u8]) -> bool {
    let mut lines = body.splitn(2, |byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default().trim_ascii();
    if lines.next().is_none() {
        return false;
    }
    first.ends_with(b"}") && serde_json::from_slice::<&RawValue>(&quoted_numbers(first)).is_ok()
}

pub(super) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

fn lines(body: &[u8]) -> Rows<'_> {
    let lines = body
        .split(|byte| *byte == b'\n')
        .zip(1..)
        .filter(|(line, _)| !line.trim_ascii().is_empty());
    let mut rows = Rows::default();
    for (bytes, at) in lines {
        let parsed = serde_json::from_slice::<Record<'_>>(bytes);
        // Python writes NaN and Infinity, which JSON lacks: only then is a line parsed twice.
        let record = match parsed {
            Ok(record) => Ok(record),
            Err(_) => serde_json::from_slice::<Record<'_>>(&quoted_numbers(bytes))
                .map(Record::into_owned)
                .map_err(|error| error.to_string()),
        };
        rows.push(at, record);
    }
    rows
}

/// A list of objects, or TensorBoard's `[[wall time, step, value], …]`.
fn list(clean: &[u8]) -> Result<Rows<'_>, Vec<LineError>> {
    let inner = clean.get(1..).unwrap_or_default().trim_ascii_start();
    let mut rows = Rows::default();
    if inner.first() == Some(&b'[') {
        let scalars: Vec<(f64, f64, Cell<'_>)> =
            serde_json::from_slice(clean).map_err(|error| of_json(&error))?;
        for ((time, step, value), at) in scalars.into_iter().zip(1..) {
            let mut record = Record::default();
            record.put(Cow::Borrowed("Wall time"), Cell::Number(time));
            record.put(Cow::Borrowed("Step"), Cell::Number(step));
            record.put(Cow::Borrowed("Value"), value);
            rows.push(at, Ok(record));
        }
        return Ok(rows);
    }
    let records: Vec<Record<'_>> =
        serde_json::from_slice(clean).map_err(|error| of_json(&error))?;
    for (record, at) in records.into_iter().zip(1..) {
        rows.push(at, Ok(record));
    }
    Ok(rows)
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
}

/// One JSON document: `trainer_state.json`, MLflow's answers, a table by columns, or a single record.
fn document<'a>(clean: &'a [u8], report: &mut Report) -> Result<Rows<'a>, Vec<LineError>> {
    let mut at = clean;
    for _ in 0..NESTED_MAX {
        let nested: Nested<'a> = serde_json::from_slice(at).map_err(|error| of_json(&error))?;
        if nested.log_history.is_some() {
            let state: TrainerState<'a> =
                serde_json::from_slice(at).map_err(|error| of_json(&error))?;
            return trainer_state::rows(state, report);
        }
        if let Some(metrics) = nested
            .metrics
            .filter(|metrics| metrics.get().starts_with('['))
        {
            return list(metrics.get().as_bytes());
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
    let record = serde_json::from_slice(clean).map_err(|error| of_json(&error))?;
    let mut rows = Rows::default();
    rows.push(1, Ok(record));
    Ok(rows)
}

/// `{"columns": […], "data": [[…], …]}`, as pandas splits a table.
fn split<'a>(columns: &'a RawValue, data: &'a RawValue) -> Result<Rows<'a>, Vec<LineError>> {
    let names: Vec<String> =
        serde_json::from_str(columns.get()).map_err(|error| of_json(&error))?;
    let records: Vec<Vec<Cell<'a>>> =
        serde_json::from_str(data.get()).map_err(|error| of_json(&error))?;
    let mut rows = Rows::default();
    for (cells, at) in records.into_iter().zip(1..) {
        let mut record = Record::default();
        for (name, cell) in names.iter().zip(cells) {
            record.put(Cow::Owned(name.clone()), cell);
        }
        rows.push(at, Ok(record));
    }
    Ok(rows)
}

/// `{"step": [1, 2], "loss": [2.5, 2.4]}`: lists of one length, at least two values each.
fn by_column(clean: &[u8]) -> Option<Rows<'_>> {
    let columns: std::collections::BTreeMap<String, Vec<Cell<'_>>> =
        serde_json::from_slice(clean).ok()?;
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
    let mut rows = Rows::default();
    for (record, at) in records.into_iter().zip(1..) {
        rows.push(at, Ok(record));
    }
    Some(rows)
}

/// The log of a known program, a table with a header, or MLflow's file of one metric.
fn text<'a>(body: &'a [u8], report: &mut Report) -> Result<Rows<'a>, Vec<LineError>> {
    let whole = String::from_utf8_lossy(body);
    if let Some(rows) = log::rows(&whole, report) {
        return Ok(rows);
    }
    let first = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if let Some(delimiter) = delimiter(first) {
        return table(body, delimiter);
    }
    of_three_numbers(&whole, report).ok_or_else(|| {
        one_error(
            1,
            format!(
                "nothing in it is recognised. Send JSON lines, a table with a header line, or the log of one of: {}",
                formats::logs().collect::<Vec<_>>().join(", ")
            ),
        )
    })
}

/// The delimiter of a header line: at least two names, none of them a number or a sentence.
fn delimiter(first: &[u8]) -> Option<u8> {
    let first = std::str::from_utf8(first).ok()?;
    DELIMITERS.into_iter().find(|delimiter| {
        let names: Vec<&str> = first.split(char::from(*delimiter)).map(str::trim).collect();
        let is_name = |name: &&str| {
            super::cell::number(name).is_none() && name.len() < 120 && !name.contains(": ")
        };
        names.len() > 1 && names.iter().all(is_name)
    })
}

fn table(body: &[u8], delimiter: u8) -> Result<Rows<'_>, Vec<LineError>> {
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .delimiter(delimiter)
        .from_reader(body);
    let header = reader
        .headers()
        .map_err(|error| one_error(1, error.to_string()))?
        .clone();
    let records: Vec<Result<csv::StringRecord, csv::Error>> = reader.into_records().collect();
    let commas = decimal_commas(&records, header.len());
    let mut rows = Rows::default();
    for name in &header {
        rows.column(Cow::Borrowed(name.trim()));
    }
    for (record, at) in records.into_iter().zip(2..) {
        // A program that was started again writes its header again.
        if record.as_ref().is_ok_and(|record| *record == header) {
            continue;
        }
        let record = record.map_err(|error| error.to_string()).map(|cells| {
            let mut record = Record::default();
            for ((name, cell), is_decimal) in header.iter().zip(&cells).zip(&commas) {
                let cell = cell.trim();
                let cell = if *is_decimal && super::cell::is_decimal_comma(cell) {
                    cell.replace(',', ".")
                } else {
                    cell.to_owned()
                };
                record.put(
                    Cow::Owned(name.trim().to_owned()),
                    Cell::of_text(Cow::Owned(cell)),
                );
            }
            record
        });
        rows.push(at, record);
    }
    Ok(rows)
}

/// The columns in which a comma is a decimal point: some cell has one that cannot separate thousands, such as `2,99` or
/// `0,989`. In a column that has none of these, `2,995` is two thousand.
fn decimal_commas(records: &[Result<csv::StringRecord, csv::Error>], columns: usize) -> Vec<bool> {
    let mut commas = vec![false; columns];
    for record in records.iter().flatten() {
        for (is_decimal, cell) in commas.iter_mut().zip(record) {
            let cell = cell.trim();
            *is_decimal |=
                super::cell::is_decimal_comma(cell) && super::cell::number(cell).is_none();
        }
    }
    commas
}

/// MLflow's file of one metric: `1763596820000 2.995 10` is time, value and step. It has no name for the metric.
fn of_three_numbers(text: &str, report: &mut Report) -> Option<Rows<'static>> {
    let mut rows = Rows::default();
    for (line, at) in text.lines().zip(1..) {
        let numbers: Option<Vec<f64>> = line.split_whitespace().map(super::cell::number).collect();
        let [time, value, step] = numbers?.try_into().ok()?;
        let mut record = Record::default();
        record.put(Cow::Borrowed("timestamp"), Cell::Number(time));
        record.put(Cow::Borrowed("value"), Cell::Number(value));
        record.put(Cow::Borrowed("step"), Cell::Number(step));
        rows.push(at, Ok(record));
    }
    report.format = Some("MLflow's file of one metric".to_owned());
    Some(rows)
}

/// Quotes bare `NaN`, `Infinity` and `-Infinity` outside strings.
fn quoted_numbers(body: &[u8]) -> Cow<'_, [u8]> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    if !WORDS.iter().any(|word| contains(body, word)) {
        return Cow::Borrowed(body);
    }
    let mut out = Vec::with_capacity(body.len() + 64);
    let (mut at, mut in_string) = (0, false);
    while let Some(byte) = body.get(at) {
        let rest = body.get(at..).unwrap_or_default();
        if in_string && *byte == b'\\' {
            out.extend_from_slice(rest.get(..2).unwrap_or(rest));
            at += 2;
            continue;
        }
        if *byte == b'"' {
            in_string = !in_string;
        }
        if let Some(word) = WORDS
            .iter()
            .find(|word| !in_string && rest.starts_with(word))
        {
            out.push(b'"');
            out.extend_from_slice(word);
            out.push(b'"');
            at += word.len();
            continue;
        }
        out.push(*byte);
        at += 1;
    }
    Cow::Owned(out)
}
