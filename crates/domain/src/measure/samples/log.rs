//! Logs of training programs as text. Each line that has metrics is a record; all others say nothing of them, and are
//! counted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use super::cell::{Cell, Record};
use super::formats::{self, Format, Log};
use super::plan::Rows;
use super::report::Report;

/// Lines that are tried against every format, to find whose log it is: a start-up may be long, and a table has none.
const TRIED_MAX: usize = 5_000;

/// A clock at the beginning of a line, or somewhere before its metrics: Python's logging, ISO 8601, Megatron's brackets.
static CLOCK: LazyLock<Regex> = LazyLock::new(|| {
    let clock = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?";
    Regex::new(clock).unwrap_or_else(|error| crate::embedded::unreadable(clock, &error))
});

/// Colours of a terminal, which some write between all fields.
static COLOUR: LazyLock<Regex> = LazyLock::new(|| {
    let colour = "\u{1b}\\[[0-9;]*[A-Za-z]";
    Regex::new(colour).unwrap_or_else(|error| crate::embedded::unreadable(colour, &error))
});

/// Lines as a terminal shows them: a progress bar returns to the beginning of its line.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.split('\n').zip(1..);
    numbered.flat_map(|(line, at)| line.split('\r').map(move |part| (at, part)))
}

/// The records of a log; `None` if no known program wrote it.
pub(super) fn rows(text: &str, report: &mut Report) -> Option<Rows<'static>> {
    let text = COLOUR.replace_all(text, "");
    let (format, log) = of(&text)?;
    report.format = Some(format.label.clone());
    let mut rows = Rows::default();
    let mut others = 0_u64;
    let mut seen = Seen {
        total: total(&text, log),
        ..Seen::default()
    };
    for (at, line) in lines(&text) {
        let begins = log.block.as_ref().is_some_and(|block| block.is_match(line));
        if begins {
            seen.flush(&mut rows);
        }
        seen.see(line, log);
        if begins {
            seen.begun_at = Some(at);
        } else if log.line.is_match(line) {
            seen.add(line, log);
            if log.block.is_none() {
                seen.begun_at = Some(at);
                seen.flush(&mut rows);
            }
        } else if !line.trim().is_empty() {
            others += 1;
        }
    }
    seen.flush(&mut rows);
    if others > 0 {
        report.note(
            "other-lines",
            format!("{others} lines have no metrics and were passed over"),
        );
    }
    Some(rows)
}

/// The program whose lines are the most.
fn of(text: &str) -> Option<(&'static Format, &'static Log)> {
    let known = formats::all()
        .iter()
        .filter_map(|format| Some((format, format.log.as_ref()?)));
    let count = |log: &Log| {
        let tried = lines(text).take(TRIED_MAX);
        tried.filter(|(_, line)| log.line.is_match(line)).count()
    };
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
        if let Some(total) = last.filter(|_| log.line.is_match(line) && !line.contains("eval_")) {
            *counts.entry(total).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map(|(total, _)| total.to_owned())
}

/// What was seen of the record that is being read.
#[derive(Debug, Default)]
struct Seen {
    step: Option<f64>,
    elapsed: Option<Cell<'static>>,
    /// The last clock, on any line.
    clock: Option<String>,
    /// The total of the training's progress bar.
    total: Option<String>,
    cells: Vec<(String, Cell<'static>)>,
    /// The line that the record begins on.
    begun_at: Option<usize>,
}

impl Seen {
    fn see(&mut self, line: &str, log: &Log) {
        if self.begun_at.is_none() && !log.carries {
            (self.step, self.elapsed) = (None, None);
        }
        let found = |pattern: &Option<Regex>| {
            let captures = pattern.as_ref()?.captures_iter(line).last()?;
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
            if name.is_empty() || self.cells.iter().any(|(known, _)| known == name) {
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
        if let Some(elapsed) = &self.elapsed {
            record.put(Cow::Borrowed("elapsed_seconds"), elapsed.clone());
        }
        if let Some(step) = self.step {
            record.put(Cow::Borrowed("step"), Cell::Number(step));
        }
        for (name, cell) in self.cells.drain(..) {
            record.put(Cow::Owned(name), cell);
        }
        rows.push(at, Ok(record));
    }
}
