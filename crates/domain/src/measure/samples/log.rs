//! Logs of training programs as text. Each line that has metrics is a record; all others say nothing of them, and are
//! counted.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use regex::Regex;

use super::cell::{Cell, Record};
use super::columns::{Kind, Role};
use super::formats::{self, Format, Log};
use super::object;
use super::plan::Rows;
use super::report::Report;
use crate::embedded;

/// Lines that are tried against every format, to find whose log it is: a start-up may be long, and a table has none.
const TRIED_MAX: usize = 5_000;

/// A clock at the beginning of a line, or somewhere before its metrics: Python's logging, ISO 8601, Megatron's brackets.
static CLOCK: LazyLock<Regex> = LazyLock::new(|| embedded::pattern_within(TIME));
const TIME: &str = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?";

/// What stands before a line where a log was fetched or several ranks write one: a time, a stream of CloudWatch, MPI's
/// and torchrun's ranks.
static PREFIX: LazyLock<Regex> = LazyLock::new(|| {
    let (stream, mpi, torchrun) = (
        r"[\w./-]*algo-\d+[\w/-]* (?:\| )?",
        r"\[\d+,(?:mpirank:)?\d+(?:,[\w.-]+)?\]<std(?:out|err)>: ?",
        r"\[(?:rank|default):?\d+\]: ?",
    );
    embedded::pattern_within(&format!("^(?:{TIME} )?(?:{stream})?(?:{mpi}|{torchrun})?"))
});

/// Colours of a terminal, which some write between all fields.
static COLOUR: LazyLock<Regex> =
    LazyLock::new(|| embedded::pattern_within("\u{1b}\\[[0-9;]*[A-Za-z]"));

/// A line as its program wrote it.
fn bare(line: &str) -> &str {
    let prefix = PREFIX.find(line).map_or(0, |prefix| prefix.end());
    line.get(prefix..).unwrap_or(line)
}

/// Lines as a terminal shows them: a progress bar returns to the beginning of its line.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.split('\n').zip(1..);
    numbered.flat_map(|(line, at)| line.split('\r').map(move |part| (at, part)))
}

/// The records of a log; `None` if no known program wrote it.
pub(super) fn rows(text: &str, report: &mut Report) -> Option<Rows<'static>> {
    let text = COLOUR.replace_all(text, "");
    let tried: Vec<&str> = lines(&text)
        .take(TRIED_MAX)
        .map(|(_, line)| bare(line))
        .collect();
    let (format, log) = of(&tried)?;
    report.format = Some(format.label.clone());
    let mut rows = Rows::default();
    let mut others = 0_u64;
    let mut seen = OpenRecord {
        total: total(&text, log),
        elapsed_before: log.elapsed_of_each.then_some(0.0),
        ..OpenRecord::default()
    };
    for (at, whole) in lines(&text) {
        let line = bare(whole);
        if log.is_under_way(line) {
            continue;
        }
        let begins = log.block.as_ref().is_some_and(|block| block.is_match(line));
        if begins {
            seen.flush(&mut rows);
        }
        seen.see(whole, log);
        if begins {
            seen.begun_at = Some(at);
            seen.add(whole, log);
        } else if log.line.is_match(line) {
            seen.add(whole, log);
            if log.block.is_none() {
                seen.begun_at = Some(at);
                seen.flush(&mut rows);
            }
        } else if !line.trim().is_empty() {
            others += 1;
        }
    }
    seen.flush(&mut rows);
    note_others(others, report);
    note_other_programs(&tried, log, report);
    Some(rows)
}

/// The JSON objects that stand in a log, each at the time that its line says before it, unless it has one of its own;
/// `None` if there is none.
pub(super) fn objects(text: &str, report: &mut Report) -> Option<Rows<'static>> {
    let (mut rows, mut others) = (Rows::default(), 0);
    for (at, line) in lines(text).filter(|(_, line)| !line.trim().is_empty()) {
        let begin = line.find('{').unwrap_or(line.len());
        let (before, object) = line.split_at(begin);
        let Ok(record) = object::record(object.trim_end().as_bytes()) else {
            others += 1;
            continue;
        };
        let mut record = record.into_owned();
        let is_clock = |name: &str| matches!(Kind::default().role(name), Role::Clock(_));
        let has_clock = record.cells.iter().any(|(name, _)| is_clock(name));
        if let Some(clock) = CLOCK.find(before).filter(|_| !has_clock) {
            let clock = Cell::Text(Cow::Owned(clock.as_str().to_owned()));
            record.put(Cow::Borrowed("timestamp"), clock);
        }
        rows.push(at, Ok(record));
    }
    note_others(others, report);
    (!rows.records.is_empty()).then_some(rows)
}

/// Says how many lines were passed over.
fn note_others(lines: u64, report: &mut Report) {
    if lines > 0 {
        report.note(
            "other-lines",
            format!("{lines} lines have no metrics and were passed over"),
        );
    }
}

/// Says which lines another program wrote: a file of two logs is read as the one that has the most lines.
fn note_other_programs(lines: &[&str], read: &Log, report: &mut Report) {
    let is_passed = |line: &&&str| !read.line.is_match(line);
    let passed: Vec<&&str> = lines.iter().filter(is_passed).collect();
    for format in formats::all() {
        let Some(log) = &format.log else { continue };
        let count = passed.iter().filter(|line| log.line.is_match(line)).count();
        if count > 0 {
            report.note(
                "lines-of-another-program",
                format!(
                    "{count} lines look like {} and were passed over: send them separately if they are wanted",
                    format.label
                ),
            );
        }
    }
}

/// The program whose lines are the most.
fn of(lines: &[&str]) -> Option<(&'static Format, &'static Log)> {
    let known = formats::all()
        .iter()
        .filter_map(|format| Some((format, format.log.as_ref()?)));
    let count = |log: &Log| lines.iter().filter(|line| log.line.is_match(line)).count();
    let mut best: Option<(usize, &Format, &Log)> = None;
    for (format, log) in known {
        let lines = count(log);
        if lines > 0 && best.is_none_or(|(most, ..)| lines > most) {
            best = Some((lines, format, log));
        }
    }
    best.map(|(_, format, log)| (format, log))
}

/// The total of the progress bar that the metrics of the training come after, most often.
fn total(text: &str, log: &Log) -> Option<String> {
    let pattern = log.total.as_ref()?;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    let mut last = None;
    for (_, line) in lines(text) {
        let found = pattern.captures_iter(line).last();
        last = found
            .and_then(|found| found.get(1))
            .map(|total| total.as_str())
            .or(last);
        if let Some(total) =
            last.filter(|_| log.line.is_match(bare(line)) && !line.contains("eval_"))
        {
            *counts.entry(total).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(total, _)| total.to_owned())
}

/// What was seen of the record that is being read.
#[derive(Debug, Default)]
struct OpenRecord {
    step: Option<f64>,
    elapsed: Option<Cell<'static>>,
    /// Seconds of the records before, if each tells its own.
    elapsed_before: Option<f64>,
    /// The last clock, on any line.
    clock: Option<String>,
    /// The total of the training's progress bar.
    total: Option<String>,
    cells: Vec<(String, Cell<'static>)>,
    /// Their names.
    names: HashSet<String>,
    /// The line that the record begins on.
    begun_at: Option<usize>,
}

impl OpenRecord {
    fn see(&mut self, line: &str, log: &Log) {
        if self.begun_at.is_none() && !log.carries {
            (self.step, self.elapsed) = (None, None);
        }
        let found = |pattern: &Option<Regex>| {
            let captures = pattern.as_ref()?.captures_iter(bare(line)).last()?;
            Some(captures.get(1)?.as_str().to_owned())
        };
        // A progress bar of another total is that of an evaluation.
        let total = log.total.as_ref().and_then(|total| {
            let found = total.captures_iter(line).last()?;
            Some(found.get(1)?.as_str().to_owned())
        });
        if total.is_some() && self.total.is_some() && total != self.total {
            return;
        }
        if let Some(step) = found(&log.step).and_then(|step| super::cell::number(&step)) {
            self.step = Some(step);
        }
        if let Some(elapsed) = found(&log.elapsed) {
            self.elapsed = Some(match Cell::of_text(Cow::Owned(elapsed)) {
                Cell::Number(number) => Cell::Number(number * log.elapsed_unit.unwrap_or(1.0)),
                text => text,
            });
        }
        if let Some(clock) = CLOCK.find(line) {
            self.clock = Some(clock.as_str().to_owned());
        }
    }

    fn add(&mut self, line: &str, log: &Log) {
        // `00:01:00` is neither a name nor a number.
        let line = CLOCK.replace_all(line, "");
        for captures in log.pairs.captures_iter(&line) {
            let (Some(name), Some(number)) = (captures.get(1), captures.get(2)) else {
                continue;
            };
            let name = name.as_str().trim();
            let name = log.names.get(name).map_or(name, String::as_str);
            if name.is_empty() || !self.names.insert(name.to_owned()) {
                continue;
            }
            let cell = Cell::of_text(Cow::Owned(number.as_str().to_owned()));
            self.cells.push((name.to_owned(), cell));
        }
    }

    /// Ends the record, and begins the next; a progress bar's step and time stand for it, too.
    fn flush(&mut self, rows: &mut Rows<'static>) {
        let Some(at) = self.begun_at.take() else {
            return;
        };
        let mut record = Record::default();
        if let Some(clock) = &self.clock {
            let clock = Cell::Text(Cow::Owned(clock.clone()));
            record.put(Cow::Borrowed("timestamp"), clock);
        }
        if let (Some(Cell::Number(elapsed)), Some(before)) =
            (&mut self.elapsed, &mut self.elapsed_before)
        {
            *before += *elapsed;
            *elapsed = *before;
        }
        if let Some(elapsed) = &self.elapsed {
            record.put(Cow::Borrowed("elapsed_seconds"), elapsed.clone());
        }
        if let Some(step) = self.step {
            record.put(Cow::Borrowed("step"), Cell::Number(step));
        }
        self.names.clear();
        for (name, cell) in self.cells.drain(..) {
            record.put(Cow::Owned(name), cell);
        }
        rows.push(at, Ok(record));
    }
}
