//! Points as they are sent or as files have them: JSON lines, lists and documents, tables, logs, each of the program that
//! wrote it. Parsing is pure and knows no series.

mod aws;
mod cell;
mod clock;
mod column_outcomes;
mod columns;
mod devices;
mod dmon;
mod encoding;
mod epochs;
pub mod figures;
mod formats;
mod gather;
mod json;
mod log;
mod notes;
mod object;
mod plan;
mod report;
mod syntax;
mod trainer_state;
mod values;

use std::borrow::Cow;

use chrono::{DateTime, Utc};

pub use self::formats::read_embedded;
pub use self::report::{Conflict, NotRead, Note, ReadColumn, Report};

/// Maximum points in one batch.
pub const POINTS_MAX: usize = 200_000;
/// Maximum distinct names in one batch.
pub const NAMES_MAX: usize = 500;

/// One point; `name` is an index into [`Batch::names`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub name: usize,
    pub step: Option<i32>,
    pub at: DateTime<Utc>,
    /// NaN and infinities are values too.
    pub value: f64,
}

/// A batch of parsed points.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    pub names: Vec<String>,
    pub points: Vec<Point>,
    /// Lines that were skipped, if requested: the first of them.
    pub skipped: Vec<LineError>,
    pub skipped_in_all: u64,
    /// What was recognised, and what was not read.
    pub report: Report,
}

/// Why a line is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineError {
    /// Counted from 1.
    pub line: usize,
    pub detail: String,
}

/// Options for reading a body.
#[derive(Debug, Clone, Copy)]
pub struct ReadOptions<'a> {
    /// The latest time allowed for a point: slightly after now.
    pub latest: DateTime<Utc>,
    /// Skip bad lines instead of rejecting the whole body.
    pub skip_bad_lines: bool,
    /// Start of the run, for what counts time from there (`trainer_state.json`, `elapsed_time`).
    pub started_at: Option<DateTime<Utc>>,
    /// The name of the metric, for files that say none: TensorBoard's table of one scalar.
    pub metric: Option<&'a str>,
}

/// Reads what a training wrote, told apart by how it begins and by its columns.
///
/// Lines without a time, or with an impossible one, are errors; every other cell that is not stored is in the report.
pub fn read(body: &[u8], reading: ReadOptions<'_>) -> Result<Batch, Vec<LineError>> {
    let body = encoding::utf8(body).map_err(|why| {
        vec![LineError {
            line: 1,
            detail: why.to_owned(),
        }]
    })?;
    let mut clean = Cow::Borrowed(&[][..]);
    let mut report = Report::default();
    let rows = syntax::rows(&body, &mut clean, &mut report)?;
    gather::batch(rows, reading, report)
}

#[cfg(test)]
mod tests;
