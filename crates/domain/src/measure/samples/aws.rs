//! What AWS's command line and SDKs print of a job's metrics and log: CloudWatch's metric data, and events of a log.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Deserialize;

use super::cell::{Cell, Record};
use super::plan::Rows;
use super::report::Report;
use super::{clock, log};

/// A line of a log and its time.
type Event = (DateTime<Utc>, String);

/// Lines of a log with the time of each, as `get-log-events` and `filter-log-events` return them; `None` if the records
/// are something else.
pub(super) fn log_events(records: &[Record<'_>], report: &mut Report) -> Option<Rows<'static>> {
    let events: Option<Vec<Event>> = records.iter().map(event).collect();
    let events = events.filter(|events| !events.is_empty())?;
    let timed: Vec<String> = events
        .iter()
        .map(|(at, message)| {
            let at = at.to_rfc3339_opts(SecondsFormat::Millis, true);
            format!("{at} {message}")
        })
        .collect();
    let text = timed.join("\n");
    log::rows(&text, report).or_else(|| log::objects(&text, report))
}

fn event(record: &Record<'_>) -> Option<Event> {
    let find = |name: &str| {
        let mut cells = record.cells.iter();
        cells.find(|(known, _)| known == name).map(|(_, cell)| cell)
    };
    let Cell::Text(message) = find("message")? else {
        return None;
    };
    Some((
        clock::moment(find("timestamp")?)?.at,
        message.trim().to_owned(),
    ))
}

/// A series of `get-metric-data`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Series {
    label: String,
    timestamps: Vec<String>,
    values: Vec<f64>,
}

/// The series of `get-metric-data`, one value a row.
pub(super) fn metric_data(
    results: &str,
    report: &mut Report,
) -> Result<Rows<'static>, serde_json::Error> {
    report.format = Some("CloudWatch's metric data".to_owned());
    let results: Vec<Series> = serde_json::from_str(results)?;
    let mut rows = Rows::default();
    let points = results.into_iter().flat_map(|series| {
        let label = series.label;
        let points = series.timestamps.into_iter().zip(series.values);
        points.map(move |(at, value)| (label.clone(), at, value))
    });
    for ((label, at, value), line) in points.zip(1..) {
        let mut record = Record::default();
        record.put(Cow::Borrowed("timestamp"), Cell::Text(Cow::Owned(at)));
        record.put(Cow::Borrowed("metric"), Cell::Text(Cow::Owned(label)));
        record.put(Cow::Borrowed("value"), Cell::Number(value));
        rows.push(line, Ok(record));
    }
    Ok(rows)
}
