//! How a body is written, told by how it begins: JSON lines, a JSON document, a table, or the log of a program.

use std::borrow::Cow;
use std::collections::HashMap;

use super::LineError;
use super::cell::{Cell, Record};
use super::dmon;
use super::formats;
use super::json::{self, one_error};
use super::log;
use super::plan::{COLUMNS_MAX, Rows, too_many_columns};
use super::report::{NAMED_MAX, Report};

/// Lines of a table that are looked at to find its delimiter.
const DELIMITERS: [u8; 3] = [b',', b';', b'\t'];

/// The records of a body.
pub(super) fn rows<'a>(
    body: &'a [u8],
    clean: &'a mut Cow<'a, [u8]>,
    report: &mut Report,
) -> Result<Rows<'a>, Vec<LineError>> {
    let body = body.trim_ascii();
    let rows = match body.first() {
        None => return Err(one_error(1, "it is empty: nothing was written to it")),
        Some(b'[') if json::is_list(body) => {
            *clean = json::clean(body);
            json::list(clean, report)?
        }
        Some(b'{') if !is_python(body) => {
            if json::is_lines(body) {
                json::lines(body)
            } else {
                *clean = json::clean(body);
                json::document(clean, report)?
            }
        }
        _ => text(body, report)?,
    };
    if report.format.is_none() {
        report.format = formats::of_columns(rows.names()).map(str::to_owned);
    }
    Ok(rows)
}

/// `{'loss': 2.5}` is how Python prints a dictionary.
fn is_python(body: &[u8]) -> bool {
    let inner = body.get(1..).unwrap_or_default().trim_ascii_start();
    inner.first() == Some(&b'\'')
}

/// The log of a known program, a table with a header, or MLflow's file of one metric.
fn text<'a>(body: &'a [u8], report: &mut Report) -> Result<Rows<'a>, Vec<LineError>> {
    let whole = String::from_utf8_lossy(body);
    if let Some(rows) = log::rows(&whole, report) {
        return Ok(rows);
    }
    if let Some(rows) = dmon::rows(&whole, report) {
        return rows;
    }
    let first = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if let Some(delimiter) = delimiter(first) {
        return table(body, delimiter, report);
    }
    if let Some(rows) = of_three_numbers(&whole, report).or_else(|| log::objects(&whole, report)) {
        return Ok(rows);
    }
    let known: Vec<&str> = formats::logs().collect();
    Err(one_error(
        1,
        format!(
            "nothing in it is recognised. Send JSON lines, a table with a header line, or the log of one of: {}",
            known.join(", ")
        ),
    ))
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

fn table<'a>(
    body: &'a [u8],
    delimiter: u8,
    report: &mut Report,
) -> Result<Rows<'a>, Vec<LineError>> {
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .delimiter(delimiter)
        .from_reader(body);
    let header = reader
        .headers()
        .map_err(|error| one_error(1, error.to_string()))?
        .clone();
    if header.len() > COLUMNS_MAX {
        return Err(one_error(1, too_many_columns()));
    }
    let records: Vec<Result<csv::StringRecord, csv::Error>> = reader.into_records().collect();
    let commas = decimal_commas(&records, header.len());
    let names = distinct(&header, report);
    let mut rows = Rows::default();
    for name in &names {
        rows.column(Cow::Borrowed(name));
    }
    let mut short = 0_u64;
    for (record, at) in records.into_iter().zip(2..) {
        // A program that was started again writes its header again.
        if record.as_ref().is_ok_and(|record| *record == header) {
            continue;
        }
        let record = record.map_err(|error| error.to_string()).and_then(|cells| {
            short += u64::from(cells.len() < header.len());
            if cells.iter().skip(header.len()).any(|cell| !cell.trim().is_empty()) {
                return Err(format!(
                    "it has {} cells, and the header has {} names: put numbers with a comma in quotes",
                    cells.len(),
                    header.len()
                ));
            }
            let mut record = Record::default();
            for ((name, cell), is_decimal) in names.iter().zip(&cells).zip(&commas) {
                let cell = cell.trim();
                let cell = if *is_decimal && super::cell::is_decimal_comma(cell) {
                    cell.replace(',', ".")
                } else {
                    cell.to_owned()
                };
                record.put(Cow::Owned(name.clone()), Cell::of_text(Cow::Owned(cell)));
            }
            Ok(record)
        });
        rows.push(at, record);
    }
    if short > 0 {
        report.note(
            "short-lines",
            format!("{short} lines have fewer cells than the header has names: the last ones were taken as empty"),
        );
    }
    Ok(rows)
}

/// The names of a header; one that comes again is told apart by a number, so that neither column is lost.
fn distinct(header: &csv::StringRecord, report: &mut Report) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(header.len());
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut told = 0;
    for name in header.iter().map(str::trim) {
        let times = seen.entry(name).or_default();
        *times += 1;
        if *times == 1 || name.is_empty() {
            names.push(name.to_owned());
            continue;
        }
        let own = format!("{name} ({times})");
        if told < NAMED_MAX {
            report.note(
                "column-twice",
                format!(
                    "`{name}` heads several columns: the first is read as it, this one as `{own}`"
                ),
            );
        }
        told += 1;
        names.push(own);
    }
    names
}

/// The columns in which a comma is a decimal point: some cell has one that cannot separate thousands, such as `2,99` or
/// `0,989`. In a column that has none of these, `2,995` is two thousand, unless others of the file have such a cell and
/// none has a point: one program writes all its numbers alike.
fn decimal_commas(records: &[Result<csv::StringRecord, csv::Error>], columns: usize) -> Vec<bool> {
    let mut commas = vec![false; columns];
    for record in records.iter().flatten() {
        for (is_decimal, cell) in commas.iter_mut().zip(record) {
            let cell = cell.trim();
            *is_decimal |=
                super::cell::is_decimal_comma(cell) && super::cell::number(cell).is_none();
        }
    }
    let has_point = |cell: &str| cell.contains('.') && super::cell::number(cell).is_some();
    let mut cells = records.iter().flatten().flatten();
    if commas.contains(&true) && !cells.any(has_point) {
        commas.fill(true);
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
