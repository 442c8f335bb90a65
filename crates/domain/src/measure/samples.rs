//! Parses points in common formats: JSON lines from a training script, W&B exports, Hugging Face's
//! `trainer_state.json`. It returns one batch, or the errors by line. It stores nothing and knows
//! no series.

mod line;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};

use self::line::{Cell, Line};
use crate::measure::metric::without_device;

/// Maximum points in one batch.
pub const POINTS_MAX: usize = 200_000;
/// Maximum distinct names in one batch.
pub const NAMES_MAX: usize = 500;
/// Maximum errors reported.
const ERRORS_MAX: usize = 20;
/// Maximum entries read from a nested list: devices of a host.
const DEVICES_MAX: usize = 64;
const NAME_LENGTH_MAX: usize = 255;
/// 2010-01-01: earlier times are clock or unit mistakes.
const EARLIEST: i64 = 1_262_304_000;
/// Numbers above this are milliseconds (seconds reach it in the year 5138).
const MILLISECONDS_FROM: f64 = 1e11;

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
    /// Lines that were skipped, if requested.
    pub skipped: Vec<LineError>,
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
pub struct Reading {
    /// The latest time allowed for a point: slightly after now.
    pub latest: DateTime<Utc>,
    /// Skip bad lines instead of rejecting the whole body.
    pub skip_bad_lines: bool,
    /// Start of the run, for logs without times (`trainer_state.json`).
    pub started_at: Option<DateTime<Utc>>,
}

/// Reads JSON lines, a JSON list of the same objects, or `trainer_state.json`, distinguished by how
/// the body begins.
pub fn read_json(body: &[u8], reading: Reading) -> Result<Batch, Vec<LineError>> {
    let body = body.trim_ascii();
    let is_one_document = body.starts_with(b"[") || is_trainer_state(body);
    if !is_one_document {
        return read_lines(body, reading);
    }
    let clean = quoted_numbers(body);
    let error = |error: serde_json::Error| {
        vec![LineError {
            line: error.line(),
            detail: error.to_string(),
        }]
    };
    if body.starts_with(b"[") {
        let lines: Vec<Line<'_>> = serde_json::from_slice(&clean).map_err(error)?;
        return Gathering::new(reading)
            .take_all(lines.into_iter().zip(1..).map(|(line, at)| (at, Ok(line))));
    }
    let state: TrainerState<'_> = serde_json::from_slice(&clean).map_err(error)?;
    read_trainer_state(state, reading)
}

/// Reads a CSV table with a header; columns are named as in JSON lines.
pub fn read_csv(body: &[u8], reading: Reading) -> Result<Batch, Vec<LineError>> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(body);
    let header = reader
        .headers()
        .map_err(|error| {
            vec![LineError {
                line: 1,
                detail: error.to_string(),
            }]
        })?
        .clone();
    let lines = reader.into_records().zip(2..).map(|(record, at)| {
        let line = record.map_err(|error| error.to_string()).map(|record| {
            let mut line = Line::default();
            for (name, cell) in header.iter().zip(&record) {
                let cell = cell.trim();
                let cell = if cell.is_empty() {
                    Cell::Nothing
                } else {
                    Cell::of_text(Cow::Owned(cell.to_owned()), true)
                };
                line.put(Cow::Owned(name.trim().to_owned()), cell);
            }
            line
        });
        (at, line)
    });
    Gathering::new(reading).take_all(lines)
}

fn read_lines(body: &[u8], reading: Reading) -> Result<Batch, Vec<LineError>> {
    let lines = body
        .split(|byte| *byte == b'\n')
        .zip(1..)
        .filter(|(line, _)| !line.trim_ascii().is_empty());
    let mut gathering = Gathering::new(reading);
    for (bytes, at) in lines {
        let parsed = serde_json::from_slice::<Line<'_>>(bytes);
        // Python writes NaN and Infinity, which JSON lacks: only then is a line parsed twice.
        if parsed.is_err() {
            let clean = quoted_numbers(bytes);
            gathering.take(
                at,
                serde_json::from_slice(&clean).map_err(|error| error.to_string()),
            )?;
        } else {
            gathering.take(at, parsed.map_err(|error| error.to_string()))?;
        }
    }
    gathering.finish()
}

fn is_trainer_state(body: &[u8]) -> bool {
    let head = body.get(..64 * 1024).unwrap_or(body);
    body.starts_with(b"{") && head.contains(&b'\n') && contains(body, b"\"log_history\"")
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
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

/// Where points of one reported name go.
#[derive(Debug, Clone, Copy)]
struct Place {
    name: usize,
    /// One of several devices of a host, which are averaged.
    is_device: bool,
}

struct Gathering {
    reading: Reading,
    batch: Batch,
    places: HashMap<String, Place>,
    /// Means over devices, as sum and count, keyed by the resulting point.
    devices: BTreeMap<(usize, i64, Option<i32>), (f64, f64)>,
    errors: Vec<LineError>,
}

impl Gathering {
    fn new(reading: Reading) -> Self {
        Self {
            reading,
            batch: Batch::default(),
            places: HashMap::new(),
            devices: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    fn take_all<'a>(
        mut self,
        lines: impl Iterator<Item = (usize, Result<Line<'a>, String>)>,
    ) -> Result<Batch, Vec<LineError>> {
        for (at, line) in lines {
            self.take(at, line)?;
        }
        self.finish()
    }

    /// Stops only when the batch is too large; other errors are collected.
    fn take(&mut self, at: usize, line: Result<Line<'_>, String>) -> Result<(), Vec<LineError>> {
        if let Err(detail) = line.and_then(|line| self.put(line))
            && self.errors.len() < ERRORS_MAX
        {
            self.errors.push(LineError { line: at, detail });
        }
        if self.batch.points.len() + self.devices.len() > POINTS_MAX {
            let detail = format!("a batch may have {POINTS_MAX} points: send the rest in another");
            return Err(vec![LineError { line: at, detail }]);
        }
        Ok(())
    }

    fn put(&mut self, mut line: Line<'_>) -> Result<(), String> {
        let at = self.moment(line.time.take())?;
        let step = line.step.map(whole_step).transpose()?;
        if let Some(metric) = line.metric.take() {
            let value = line
                .numbers
                .iter()
                .find(|(name, _)| name == "value")
                .map(|(_, value)| *value);
            line.numbers = vec![(metric, value.ok_or("it has a metric and no value")?)];
        }
        for (name, value) in line.numbers {
            let place = self.place(&name)?;
            if place.is_device || line.is_of_device {
                let sum = self
                    .devices
                    .entry((place.name, at.timestamp_micros(), step))
                    .or_default();
                *sum = (sum.0 + value, sum.1 + 1.0);
            } else {
                self.batch.points.push(Point {
                    name: place.name,
                    step,
                    at,
                    value,
                });
            }
        }
        Ok(())
    }

    fn place(&mut self, reported: &str) -> Result<Place, String> {
        if let Some(place) = self.places.get(reported) {
            return Ok(*place);
        }
        if reported.is_empty() || reported.len() > NAME_LENGTH_MAX || reported.contains('\0') {
            return Err(format!("a metric's name has 1 to {NAME_LENGTH_MAX} bytes"));
        }
        let shared = without_device(reported);
        let name = shared.as_deref().unwrap_or(reported);
        let index = self
            .batch
            .names
            .iter()
            .position(|known| known == name)
            .unwrap_or_else(|| {
                self.batch.names.push(name.to_owned());
                self.batch.names.len() - 1
            });
        if self.batch.names.len() > NAMES_MAX {
            return Err(format!("a batch may have {NAMES_MAX} different metrics"));
        }
        let place = Place {
            name: index,
            is_device: shared.is_some(),
        };
        self.places.insert(reported.to_owned(), place);
        Ok(place)
    }

    fn moment(&self, time: Option<Cell<'_>>) -> Result<DateTime<Utc>, String> {
        let at = match time {
            Some(Cell::Number(number)) => of_number(number),
            Some(Cell::Text(text)) => of_text(&text),
            None | Some(Cell::Nested(_) | Cell::Nothing) => None,
        };
        let at = at.ok_or(
            "it has no time: give `timestamp`, as seconds since 1970 or as 2026-11-20T08:00:00Z; \
             it makes sending a line twice harmless",
        )?;
        if at.timestamp() < EARLIEST || at > self.reading.latest {
            return Err(format!(
                "its time {at} lies before 2010 or in the future: are the seconds milliseconds?"
            ));
        }
        Ok(at)
    }

    fn finish(mut self) -> Result<Batch, Vec<LineError>> {
        if !self.errors.is_empty() && !self.reading.skip_bad_lines {
            return Err(self.errors);
        }
        self.batch.skipped = self.errors;
        for ((name, micros, step), (sum, count)) in self.devices {
            let Some(at) = DateTime::from_timestamp_micros(micros) else {
                continue;
            };
            self.batch.points.push(Point {
                name,
                step,
                at,
                value: sum / count,
            });
        }
        Ok(self.batch)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn whole_step(step: f64) -> Result<i32, String> {
    if (0.0..=f64::from(i32::MAX)).contains(&step) {
        return Ok(step as i32);
    }
    Err(format!("its step {step} is not a number of steps done"))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a float saturates; the range of times is checked"
)]
fn of_number(number: f64) -> Option<DateTime<Utc>> {
    let seconds = if number.abs() >= MILLISECONDS_FROM {
        number / 1e3
    } else {
        number
    };
    DateTime::from_timestamp_micros((seconds * 1e6).round() as i64)
}

/// Parses a number, or RFC 3339; a time without a zone is treated as UTC.
fn of_text(text: &str) -> Option<DateTime<Utc>> {
    if let Ok(number) = text.parse() {
        return of_number(number);
    }
    let with_zone = DateTime::parse_from_rfc3339(text)
        .ok()
        .map(|at| at.with_timezone(&Utc));
    with_zone.or_else(|| {
        let formats = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f"];
        formats
            .iter()
            .find_map(|format| Some(NaiveDateTime::parse_from_str(text, format).ok()?.and_utc()))
    })
}

/// The parts of Hugging Face's own log that are read.
#[derive(Debug, serde::Deserialize)]
struct TrainerState<'a> {
    #[serde(borrow, default)]
    log_history: Vec<Line<'a>>,
    #[serde(default)]
    global_step: f64,
}

impl TrainerState<'_> {
    /// Seconds that the training took; `None` until the log says so.
    fn runtime(&self) -> Option<f64> {
        self.log_history
            .iter()
            .flat_map(|line| &line.numbers)
            .find(|(name, _)| name == "train_runtime")
            .map(|(_, seconds)| *seconds)
            .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
    }

    /// At least 1: steps are divided by it.
    fn last_step(&self) -> f64 {
        self.log_history
            .iter()
            .filter_map(|line| line.step)
            .fold(self.global_step, f64::max)
            .max(1.0)
    }
}

/// The log has steps but no times: steps are spread evenly over `train_runtime`, which its last
/// entry contains.
fn read_trainer_state(state: TrainerState<'_>, reading: Reading) -> Result<Batch, Vec<LineError>> {
    let one = |detail: &str| {
        vec![LineError {
            line: 1,
            detail: detail.to_owned(),
        }]
    };
    let started_at = reading.started_at.ok_or_else(|| {
        one("trainer_state.json has no times: say when the run began, with `started_at` of the run or ?started_at=")
    })?;
    let runtime = state.runtime().ok_or_else(|| {
        one("trainer_state.json has no train_runtime yet: its times are known when the training has ended")
    })?;
    let last = state.last_step();
    let lines = state
        .log_history
        .into_iter()
        .zip(1..)
        .map(|(mut line, at)| {
            // The summary at the end: totals, not points.
            if line.numbers.iter().any(|(name, _)| name == "train_runtime") {
                line.numbers.clear();
            }
            let share = line.step.unwrap_or(0.0) / last;
            let since = TimeDelta::microseconds(whole_micros(runtime * share));
            // A step or runtime beyond the calendar leaves the line without a time, and it is
            // rejected as such.
            let time = started_at.checked_add_signed(since);
            line.time = time.map(|time| Cell::Text(Cow::Owned(time.to_rfc3339())));
            (at, Ok(line))
        });
    Gathering::new(reading).take_all(lines)
}

#[expect(clippy::cast_possible_truncation, reason = "a float saturates")]
fn whole_micros(seconds: f64) -> i64 {
    (seconds * 1e6) as i64
}

#[cfg(test)]
mod tests;
