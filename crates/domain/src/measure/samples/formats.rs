//! The programs whose files and logs are known (`data/metric_formats.json`): each by its marks, with a sample and what
//! is read of it. A new one is a row there.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;

use super::columns::normalised;
use crate::embedded;

/// A number in a log, in any way of writing it: `2.5E+00`, `10,050`, `nan`.
const NUMBER: &str = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan(?:\.0)?|NaN|inf(?:\.0)?)";

/// One program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Format {
    /// As an answer names it: `W&B's history`.
    pub(super) label: String,
    /// Where its form was seen, or is documented.
    #[expect(dead_code, reason = "for whoever changes the row")]
    source: String,
    /// Columns that all must be there; `*` at the end stands for anything.
    #[serde(default)]
    columns: Vec<String>,
    #[serde(default)]
    pub(super) log: Option<Log>,
    /// What it writes.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by a test"))]
    sample: String,
    /// Metrics that are read of the sample, and the first value of each.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by a test"))]
    reads: BTreeMap<String, f64>,
    /// The last step that is read of it.
    #[serde(default)]
    #[cfg_attr(not(test), expect(dead_code, reason = "read by a test"))]
    last_step: Option<i32>,
}

/// How a log is read, line by line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    /// A line that has metrics.
    #[serde(deserialize_with = "pattern")]
    pub(super) line: Regex,
    /// A name and its number, as two groups; `{number}` stands for a number.
    #[serde(deserialize_with = "pattern")]
    pub(super) pairs: Regex,
    /// The step.
    #[serde(default, deserialize_with = "optional_pattern")]
    pub(super) step: Option<Regex>,
    /// The time since the start.
    #[serde(default, deserialize_with = "optional_pattern")]
    pub(super) elapsed: Option<Regex>,
    /// Seconds in the unit of the time since the start.
    #[serde(default)]
    pub(super) elapsed_unit: Option<f64>,
    /// The time is that of this record alone: all are added up.
    #[serde(default)]
    pub(super) elapsed_of_each: bool,
    /// How much is done, and of how much: before all of it is, the line says nothing that lasts.
    #[serde(default, deserialize_with = "optional_pattern")]
    done: Option<Regex>,
    /// The total of a progress bar: evaluations have bars of their own.
    #[serde(default, deserialize_with = "optional_pattern")]
    pub(super) total: Option<Regex>,
    /// Step and time since the start may stand on a line before: in a progress bar.
    #[serde(default)]
    pub(super) carries: bool,
    /// A line that begins a record of several lines.
    #[serde(default, deserialize_with = "optional_pattern")]
    pub(super) block: Option<Regex>,
    /// What names mean here and nowhere else. An empty name is left out.
    #[serde(default)]
    pub(super) names: BTreeMap<String, String>,
}

impl Log {
    /// Whether a line is a progress bar on its way.
    pub(super) fn is_under_way(&self, line: &str) -> bool {
        let done = self.done.as_ref().and_then(|done| done.captures(line));
        done.is_some_and(|done| done.get(1).map(|m| m.as_str()) != done.get(2).map(|m| m.as_str()))
    }
}

fn compiled<E: serde::de::Error>(pattern: &str) -> Result<Regex, E> {
    Regex::new(&pattern.replace("{number}", NUMBER)).map_err(E::custom)
}

fn pattern<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Regex, D::Error> {
    compiled(&String::deserialize(from)?)
}

fn optional_pattern<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Regex>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| compiled(&text)).transpose()
}

static FORMATS: LazyLock<Vec<Format>> = LazyLock::new(|| {
    embedded::json(
        "metric_formats.json",
        include_str!("../../../data/metric_formats.json"),
    )
});

/// All of them, the more particular first.
pub(super) fn all() -> &'static [Format] {
    &FORMATS
}

/// Compiles every pattern, so that a mistake ends the program before it does anything.
pub fn read_embedded() {
    all();
}

/// The programs whose logs can be read.
pub(super) fn logs() -> impl Iterator<Item = &'static str> {
    let logs = all().iter().filter(|format| format.log.is_some());
    logs.map(|format| format.label.as_str())
}

/// Who wrote records with these columns.
pub(super) fn of_columns<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'static str> {
    let names: Vec<String> = names.map(normalised).collect();
    let has = |mark: &String| match mark.strip_suffix('*') {
        Some(begin) => names.iter().any(|name| name.starts_with(begin)),
        None => names.contains(mark),
    };
    let mut known = all().iter().filter(|format| !format.columns.is_empty());
    let found = known.find(|format| format.columns.iter().all(has));
    found.map(|format| format.label.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::{ReadOptions, read};
    use super::*;

    #[test]
    fn every_sample_is_recognised_and_read() {
        for format in all() {
            let label = &format.label;
            let reading = ReadOptions {
                latest: "2026-11-21T00:00:00Z".parse().unwrap(),
                skip_bad_lines: false,
                started_at: Some("2025-11-20T00:00:00Z".parse().unwrap()),
                metric: None,
            };
            let batch = read(format.sample.as_bytes(), reading)
                .unwrap_or_else(|errors| panic!("{label}: {errors:?}"));
            assert_eq!(batch.report.format.as_ref(), Some(label));
            for (metric, value) in &format.reads {
                let first = batch.points.iter().find(|point| {
                    let name = &batch.names[point.name];
                    name == metric
                        || crate::measure::metric::standard(name)
                            .is_some_and(|standard| standard.name == metric)
                });
                let first = first.unwrap_or_else(|| panic!("{label}: no {metric} in {batch:?}"));
                assert!(
                    (first.value - value).abs() <= 1e-9 * value.abs()
                        || (first.value.is_nan() && value.is_nan()),
                    "{label}: {metric} is {}",
                    first.value
                );
            }
            let last = batch.points.iter().filter_map(|point| point.step).max();
            assert_eq!(last, format.last_step, "{label}: {batch:?}");
        }
    }
}
