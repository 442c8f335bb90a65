//! From records to points: which column is what is decided for the whole body, then each record is read. What is not
//! read is counted and named.

use std::borrow::Cow;
use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};

use super::cell::Cell;
use super::clock;
use super::column_outcomes::Fate;
use super::columns::{Counter, Role, normalised};
use super::devices::Devices;
use super::plan::{Cells, Plan, Rows, listed, shown};
use super::report::Report;
use super::values::{Value, is_total_at_end};
use super::{Batch, LineError, NAMES_MAX, POINTS_MAX, Point, ReadOptions};

/// Maximum errors reported.
const ERRORS_MAX: usize = 20;
pub(super) const NAME_LENGTH_MAX: usize = 255;
/// Letters of a time that is shown.
const LENGTH_SHOWN: usize = 40;

/// Reads all records.
pub(super) fn batch(
    rows: Rows<'_>,
    reading: ReadOptions<'_>,
    mut report: Report,
) -> Result<Batch, Vec<LineError>> {
    let plan = Plan::of(&rows);
    if plan.runs.len() > 1 {
        let runs = listed(plan.runs.iter().map(String::as_str));
        return Err(vec![LineError {
            line: 1,
            detail: format!("it holds several runs ({runs}): send the records of each to its own"),
        }]);
    }
    report.step = plan.counter.and_then(|counter| {
        let best = rows
            .names()
            .enumerate()
            .filter_map(|(column, name)| match plan.role(column) {
                Role::Step(own, order) if own == counter => Some((order, name)),
                _ => None,
            });
        best.min().map(|(_, name)| name.to_owned())
    });
    super::notes::of_steps(&rows_steps(&rows, &plan), plan.counter, &mut report);
    let mut gathering = Gathering {
        reading,
        fates: vec![Fate::default(); rows.names.len()],
        devices: Devices::default(),
        batch: Batch::default(),
        index: HashMap::new(),
        elapsed: 0.0,
        is_in_blocks: plan.is_in_blocks(&rows),
        clocks: HashMap::new(),
        anew: 0,
        step_before: 0.0,
        interval: 0.0,
        resumed: 0,
        has_zone: true,
        is_evaluation: false,
        used_clock: None,
        timeless: 0,
        plan,
        names: rows.names,
    };
    let mut errors = Vec::new();
    let mut errors_in_all = 0;
    let count = rows.records.len();
    for (line, cells) in rows.records {
        if let Err(detail) = cells.and_then(|cells| gathering.take(&cells)) {
            errors_in_all += 1;
            if errors.len() < ERRORS_MAX {
                errors.push(LineError { line, detail });
            }
        }
        if gathering.batch.points.len() + gathering.devices.len() > POINTS_MAX {
            let detail = format!("a batch may have {POINTS_MAX} points: send the rest in another");
            return Err(vec![LineError { line, detail }]);
        }
    }
    // One sentence says it for all of them.
    if gathering.timeless == count {
        errors.truncate(1);
    }
    if !errors.is_empty() && !reading.skip_bad_lines {
        return Err(errors);
    }
    gathering.batch.skipped = errors;
    gathering.batch.skipped_in_all = errors_in_all;
    Ok(gathering.finish(report))
}

/// The numbers of each column that counts steps, with its name.
fn rows_steps(rows: &Rows<'_>, plan: &Plan) -> Vec<(String, Counter, Option<f64>)> {
    let of_column = |(column, name): (usize, &str)| match plan.role(column) {
        Role::Step(counter, _) => Some((name.to_owned(), counter, plan.last(column))),
        _ => None,
    };
    rows.names().enumerate().filter_map(of_column).collect()
}

/// A clock that counts from the start.
#[derive(Debug, Default)]
struct SeriesClock {
    /// Seconds of the sessions before this one.
    over: f64,
    last_told: f64,
}

struct Gathering<'r> {
    reading: ReadOptions<'r>,
    plan: Plan,
    names: Vec<String>,
    fates: Vec<Fate>,
    devices: Devices,
    batch: Batch,
    /// Index of each name in the batch.
    index: HashMap<String, usize>,
    /// Where only the time of each step or interval is known, their sum, and the step that it reaches.
    elapsed: f64,
    step_before: f64,
    /// Whether each series counts its time from the same start.
    is_in_blocks: bool,
    /// Of each of them, or else of all.
    clocks: HashMap<String, SeriesClock>,
    /// How often such a clock began anew.
    anew: u32,
    /// Steps between the last two records, and how often steps came again.
    interval: f64,
    resumed: u32,
    /// Whether all times say in which zone they are.
    has_zone: bool,
    /// The record that is being read is of an evaluation.
    is_evaluation: bool,
    used_clock: Option<usize>,
    /// Records without any time.
    timeless: usize,
}

impl Gathering<'_> {
    fn take(&mut self, cells: &Cells<'_>) -> Result<(), String> {
        let step = self.plan.step(cells);
        let at = self.time(cells, step)?;
        let step = step.map(whole_step).transpose()?;
        let device = self.device(cells);
        self.is_evaluation = self.is_of_evaluation(cells);
        if self.plan.kind.is_long {
            return self.take_long(cells, at, step, device.as_deref());
        }
        let is_total =
            is_total_at_end(cells.iter().filter_map(|(column, _)| self.name_of(*column)));
        for (column, cell) in cells {
            if self.plan.is_hugging_face && self.is_mean_since_start(*column) {
                self.leave_out(
                    *column,
                    "a mean since the start: the speed follows from steps and times",
                );
                continue;
            }
            if is_total && self.plan.role(*column) == Role::Metric {
                self.leave_out(
                    *column,
                    "a total at the end of the run, no point of a series",
                );
                continue;
            }
            self.put(*column, cell, at, step, device.as_deref())?;
        }
        Ok(())
    }

    /// A record of one value, named in another column.
    fn take_long(
        &mut self,
        cells: &Cells<'_>,
        at: DateTime<Utc>,
        step: Option<i32>,
        device: Option<&str>,
    ) -> Result<(), String> {
        let mut name = None;
        for (column, cell) in cells {
            match (self.plan.role(*column), cell) {
                (Role::MetricName, Cell::Text(text)) if name.is_none() => {
                    name = Some(text.clone().into_owned());
                }
                (Role::Metric, _) => self.leave_out(*column, "beside `value`, which is read"),
                _ => {}
            }
        }
        let name = name.ok_or("it has a value and no name of a metric")?;
        let is_value = |(column, cell): &&(usize, Cell<'_>)| {
            self.plan.role(*column) == Role::Value && matches!(cell, Cell::Number(_))
        };
        let Some((column, Cell::Number(number))) = cells.iter().find(is_value) else {
            return Err(format!("it has no number as the value of `{name}`"));
        };
        let (column, number) = (*column, *number);
        self.add(column, &Value::of(&name), number, at, step, device)
    }

    /// Hugging Face's rates are means over the whole session, which are too high after a resume.
    fn is_mean_since_start(&self, column: usize) -> bool {
        let name = self.name_of(column).unwrap_or_default();
        let bare = name.rsplit(['/', '.']).next().unwrap_or(name);
        matches!(
            bare,
            "train_tokens_per_second"
                | "train_samples_per_second"
                | "train_steps_per_second"
                | "train_runtime"
        )
    }

    fn name_of(&self, column: usize) -> Option<&str> {
        self.names.get(column).map(String::as_str)
    }

    /// The record's time: from a clock, from the seconds since the start, or else from the time that each step took.
    fn time(&mut self, cells: &Cells<'_>, step: Option<f64>) -> Result<DateTime<Utc>, String> {
        let clock = cells.iter().filter_map(|(column, cell)| {
            let Role::Clock(order) = self.plan.role(*column) else {
                return None;
            };
            Some((order, *column, clock::moment(cell)?))
        });
        let at = if let Some((_, column, moment)) = clock.min_by_key(|(order, ..)| *order) {
            self.has_zone &= moment.has_zone;
            self.used_clock.get_or_insert(column);
            moment.at
        } else {
            let since = self.since_start(cells, step);
            let Some(at) = since.zip(self.reading.started_at).map(|(since, start)| {
                start.checked_add_signed(TimeDelta::microseconds(micros(since)))
            }) else {
                self.timeless += 1;
                return Err(self.no_time(cells, since.is_some()));
            };
            at.ok_or("its time lies beyond the calendar")?
        };
        if !clock::is_plausible(at) || at > self.reading.latest {
            return Err(format!(
                "its time {at} lies before 2010 or in the future: is it in seconds, and does its clock go right?"
            ));
        }
        Ok(at)
    }

    fn since_start(&mut self, cells: &Cells<'_>, step: Option<f64>) -> Option<f64> {
        if let Some((column, seconds)) = self.plan.elapsed(cells) {
            let own = if self.is_in_blocks {
                self.plan.series_of(cells)
            } else {
                String::new()
            };
            self.used_clock.get_or_insert(column);
            if self.plan.counts_intervals {
                // Records of one step are of one interval.
                let is_new = |step: f64| (step - self.step_before).abs() > 0.5;
                if step.is_none_or(is_new) {
                    self.elapsed += seconds;
                }
                self.step_before = step.unwrap_or(self.step_before);
                return Some(self.elapsed);
            }
            // A clock that begins anew is that of a resumed run, or of the next epoch's progress bar; one of another
            // metric's or device's records begins where theirs do.
            let clock = self.clocks.entry(own).or_default();
            if seconds < clock.last_told / 2.0 {
                clock.over += clock.last_told;
                self.anew += 1;
            }
            clock.last_told = seconds;
            return Some(clock.over + seconds);
        }
        let step = step?;
        let of_step = cells.iter().find_map(|(column, cell)| {
            let Cell::Number(number) = cell else {
                return None;
            };
            let name = self.plan.kind.meant(self.names.get(*column)?);
            Value::of(name).seconds_per_step(*number)
        });
        // A record that does not say how long its step took, as one of an evaluation, is of the time that is reached.
        if let Some(seconds) = of_step {
            self.elapsed += seconds * self.steps_until(step);
            self.step_before = step;
        } else if !self.plan.has_step_times {
            return None;
        }
        Some(self.elapsed)
    }

    /// Steps done since the record before. After a resume, steps come again: as many as were done before.
    fn steps_until(&mut self, step: f64) -> f64 {
        let steps = step - self.step_before;
        if steps >= 0.0 {
            self.interval = if steps > 0.0 { steps } else { self.interval };
            return steps;
        }
        self.resumed += 1;
        self.interval
    }

    /// A clock's text that could not be read.
    fn unread_clock<'c>(&self, cells: &'c Cells<'_>) -> Option<&'c str> {
        let text =
            cells
                .iter()
                .find_map(|(column, cell)| match (self.plan.role(*column), cell) {
                    (Role::Clock(_), Cell::Text(text)) => Some(text.as_ref()),
                    _ => None,
                })?;
        Some(text.get(..LENGTH_SHOWN).unwrap_or(text))
    }

    fn no_time(&self, cells: &Cells<'_>, is_relative: bool) -> String {
        if is_relative {
            return "it counts time from its start: say when that was, with `started_at` of the run or ?started_at="
                .to_owned();
        }
        if let Some(text) = self.unread_clock(cells) {
            return if clock::is_ambiguous(text) {
                format!(
                    "its time {text:?} does not say which number is the month or the day: write 2026-11-20"
                )
            } else {
                format!(
                    "its time {text:?} cannot be read: write 2026-11-20T08:00:00Z, or seconds since 1970"
                )
            };
        }
        let names = listed(self.names());
        let panel = if self.plan.kind.is_panel {
            "; export the panel with its x-axis set to wall time, or the run's history"
        } else {
            ""
        };
        format!(
            "it has no time: none of {names} is one. Give `timestamp`, as seconds since 1970 or as \
             2026-11-20T08:00:00Z{panel}"
        )
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Which device the record is of.
    fn device(&self, cells: &Cells<'_>) -> Option<String> {
        let of_device = cells
            .iter()
            .filter(|(column, _)| self.plan.role(*column) == Role::Device);
        let parts: Vec<String> = of_device.map(|(_, cell)| shown(cell)).collect();
        (!parts.is_empty()).then(|| parts.join("/"))
    }

    /// Whether the record says that it is of an evaluation.
    fn is_of_evaluation(&self, cells: &Cells<'_>) -> bool {
        cells.iter().any(|(column, cell)| {
            let Cell::Text(text) = cell else { return false };
            self.plan.role(*column) == Role::Split
                && matches!(
                    text.to_ascii_lowercase().as_str(),
                    "eval" | "evaluation" | "val" | "valid" | "validation" | "test" | "dev"
                )
        })
    }

    fn leave_out(&mut self, column: usize, why: &'static str) {
        if let Some(fate) = self.fates.get_mut(column) {
            *fate.left_out.entry(why).or_default() += 1;
        }
    }

    fn put(
        &mut self,
        column: usize,
        cell: &Cell<'_>,
        at: DateTime<Utc>,
        step: Option<i32>,
        device: Option<&str>,
    ) -> Result<(), String> {
        match self.plan.role(column) {
            Role::Skipped(why) => self.leave_out(column, why),
            Role::Clock(_) | Role::Elapsed(_) if Some(column) != self.used_clock => {
                self.leave_out(column, "a second clock");
            }
            Role::Step(counter, _) if Some(counter) != self.plan.counter => {
                self.leave_out(
                    column,
                    "not the optimiser's step, which another column gives",
                );
            }
            Role::Metric | Role::Value => {
                let Cell::Number(number) = cell else {
                    self.unreadable(column, cell);
                    return Ok(());
                };
                let known = self.fates.get(column).and_then(|fate| fate.value.clone());
                let value = match known {
                    Some(value) => value,
                    None => self.value_of(column),
                };
                return self.add(column, &value, *number, at, step, device);
            }
            _ => {}
        }
        Ok(())
    }

    /// What the numbers of a column are.
    fn value_of(&mut self, column: usize) -> Value {
        let name = self.names.get(column).map_or("", String::as_str);
        let name = if self.plan.role(column) == Role::Value {
            self.reading.metric.unwrap_or("value")
        } else {
            self.plan.kind.meant(name)
        };
        let name = if self.plan.kind.is_of_gpus {
            Cow::Owned(normalised(name))
        } else {
            Cow::Borrowed(name)
        };
        let value = Value::of(&name);
        if let Some(fate) = self.fates.get_mut(column) {
            fate.value = Some(value.clone());
        }
        value
    }

    fn unreadable(&mut self, column: usize, cell: &Cell<'_>) {
        if let Some(fate) = self.fates.get_mut(column) {
            if fate.unreadable == 0 {
                fate.example = shown(cell);
            }
            fate.unreadable += 1;
        }
    }

    fn add(
        &mut self,
        column: usize,
        value: &Value,
        number: f64,
        at: DateTime<Utc>,
        step: Option<i32>,
        device: Option<&str>,
    ) -> Result<(), String> {
        let name = if self.is_evaluation && !value.name.starts_with("eval") {
            self.place(&format!("eval/{}", value.name))?
        } else {
            self.place(&value.name)?
        };
        let number = value
            .conversion
            .map_or(number, |conversion| conversion.apply(number));
        if let Some(fate) = self.fates.get_mut(column) {
            fate.points += 1;
            fate.value.get_or_insert_with(|| value.clone());
        }
        let device = match (device, value.device.as_deref()) {
            (Some(of_record), Some(of_name)) => Some(format!("{of_record}/{of_name}")),
            (of_record, of_name) => of_record.or(of_name).map(str::to_owned),
        };
        let point = Point {
            name,
            step,
            at,
            value: number,
        };
        match device {
            Some(device) => self.devices.put(point, device),
            None => self.batch.points.push(point),
        }
        Ok(())
    }

    fn place(&mut self, name: &str) -> Result<usize, String> {
        if let Some(index) = self.index.get(name) {
            return Ok(*index);
        }
        if name.is_empty() || name.len() > NAME_LENGTH_MAX || name.contains('\0') {
            return Err(format!("a metric's name has 1 to {NAME_LENGTH_MAX} bytes"));
        }
        if self.batch.names.len() == NAMES_MAX {
            return Err(format!("a batch may have {NAMES_MAX} different metrics"));
        }
        self.batch.names.push(name.to_owned());
        let index = self.batch.names.len() - 1;
        self.index.insert(name.to_owned(), index);
        Ok(index)
    }

    /// Says where times or steps fall back.
    fn tell_resumes(&self, report: &mut Report) {
        if self.anew > 0 {
            report.note(
                "time-again",
                format!(
                    "its time falls back {} times, as where a run is resumed: what came before was added",
                    self.anew
                ),
            );
        }
        if self.resumed > 0 {
            report.note(
                "steps-again",
                format!(
                    "steps fall back {} times, as where a run is resumed: they were timed again, and the time in between \
                     is not known",
                    self.resumed
                ),
            );
        }
    }

    fn finish(mut self, mut report: Report) -> Batch {
        report.time = self
            .used_clock
            .and_then(|column| self.names.get(column).cloned());
        let is_guess = |column| self.plan.role(column) == Role::Elapsed(usize::MAX);
        if let Some(name) = report
            .time
            .as_ref()
            .filter(|_| self.used_clock.is_some_and(is_guess))
        {
            let detail =
                format!("`{name}` is no clock: it was taken as seconds since the run's start");
            report.note("time-since-start", detail);
        }
        if !self.has_zone {
            report.note(
                "time-without-zone",
                "its times say no zone: they were read as UTC".to_owned(),
            );
        }
        if self.used_clock.is_none() && self.elapsed > 0.0 {
            report.note(
                "time-from-steps",
                "it has no clock: times are the time that each step took, added up from the start"
                    .to_owned(),
            );
        }
        if self.plan.counts_intervals {
            report.note(
                "time-of-intervals",
                "its seconds are those since the record before: they were added up from the start"
                    .to_owned(),
            );
        }
        self.tell_resumes(&mut report);
        if let Some(epochs) = &self.plan.epochs {
            epochs.tell(&mut report);
        }
        self.devices.finish(&mut self.batch, &mut report);
        super::notes::conflicts(&mut self.batch, &mut report);
        if self.batch.points.is_empty() {
            report.note(
                "nothing-read",
                "no number in it became a point: see `not_read`".to_owned(),
            );
        }
        for (name, fate) in self.names.into_iter().zip(self.fates) {
            fate.tell(&name, &mut report);
        }
        self.batch.report = report;
        self.batch
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn whole_step(step: f64) -> Result<i32, String> {
    if (0.0..=f64::from(i32::MAX)).contains(&step) {
        return Ok(step as i32);
    }
    Err(format!("its step {step} is not a number of steps done"))
}

#[expect(clippy::cast_possible_truncation, reason = "a float saturates")]
fn micros(seconds: f64) -> i64 {
    (seconds * 1e6) as i64
}
