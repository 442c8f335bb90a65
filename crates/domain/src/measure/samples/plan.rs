//! The records of a body, and what its columns are: decided once for all of them.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

use super::cell::{Cell, Record};
use super::clock::{self, Moment};
use super::columns::{Counter, Kind, Role, of_panel};
use super::epochs::Epochs;
use super::values::Value;

/// Letters of a name or of a cell that are shown.
const SHOWN_MAX: usize = 60;
/// An interval that is longer or shorter by this factor is none of the usual ones.
const USUAL: f64 = 1.5;
/// Columns, and names of values, that are told apart: far more than are read.
pub(super) const COLUMNS_MAX: usize = 20_000;
/// Names that an error lists.
const LISTED_MAX: usize = 12;

/// The cells of one record, by column.
pub(super) type Cells<'a> = Vec<(usize, Cell<'a>)>;

/// All records of a body.
#[derive(Debug, Default)]
pub(super) struct Rows<'a> {
    pub(super) names: Vec<String>,
    columns: HashMap<String, usize>,
    /// With the line that each stands on, counted from 1.
    pub(super) records: Vec<(usize, Result<Cells<'a>, String>)>,
}

impl<'a> Rows<'a> {
    pub(super) fn push(&mut self, line: usize, record: Result<Record<'a>, String>) {
        let cells = record.and_then(|record| {
            let cells = record.cells.into_iter();
            let cells: Cells<'a> = cells
                .map(|(name, cell)| {
                    let cell = step_of_total(&name, &cell).unwrap_or(cell);
                    (self.column(name), cell)
                })
                .collect();
            if self.names.len() > COLUMNS_MAX {
                return Err(too_many_columns());
            }
            Ok(cells)
        });
        self.records.push((line, cells));
    }

    /// The column of a name, also of one that has no cell.
    pub(super) fn column(&mut self, name: Cow<'_, str>) -> usize {
        if let Some(column) = self.columns.get(name.as_ref()) {
            return *column;
        }
        self.names.push(name.clone().into_owned());
        self.columns.insert(name.into_owned(), self.names.len() - 1);
        self.names.len() - 1
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.names.iter().map(String::as_str)
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = &Cells<'a>> {
        self.records
            .iter()
            .filter_map(|(_, cells)| cells.as_ref().ok())
    }

    /// For each column, how its numbers go on, in one pass over all cells; `is_clock`: whether a column may be one.
    fn courses(&self, is_clock: impl Fn(usize) -> bool) -> Vec<Course> {
        let mut courses = vec![Course::default(); self.names.len()];
        for (column, cell) in self.cells().flatten() {
            if let (Some(course), Cell::Number(number)) = (courses.get_mut(*column), cell) {
                course.pass(*number);
                course.has_clock |= is_clock(*column) && is_moment(*number);
            }
        }
        courses
    }

    /// The numbers of a column, in order.
    pub(super) fn numbers(&self, column: usize) -> impl Iterator<Item = f64> {
        let of_row = move |cells: &Cells<'a>| {
            cells.iter().find_map(|(at, cell)| match cell {
                Cell::Number(value) if *at == column => Some(*value),
                _ => None,
            })
        };
        self.cells().filter_map(of_row)
    }
}

pub(super) fn too_many_columns() -> String {
    format!("it has more than {COLUMNS_MAX} columns, or names of values: send fewer")
}

/// The numbers of a column.
#[derive(Debug, Clone, Default)]
struct Course {
    first: Option<f64>,
    last: Option<f64>,
    count: u64,
    changes: bool,
    falls: bool,
    /// Some number is a moment of ours.
    has_clock: bool,
}

impl Course {
    fn pass(&mut self, number: f64) {
        self.count += 1;
        self.first.get_or_insert(number);
        self.changes |= self.first != Some(number);
        let order = |last: f64| last.partial_cmp(&number);
        self.falls |= self
            .last
            .is_some_and(|last| order(last).is_none_or(Ordering::is_gt));
        self.last = Some(number);
    }

    fn grows(&self) -> bool {
        !self.falls && self.first < self.last
    }
}

fn is_moment(number: f64) -> bool {
    let at = clock::moment(&Cell::Number(number));
    at.is_some_and(|Moment { at, .. }| clock::is_plausible(at))
}

/// `30/2000` is step 30 of 2,000.
fn step_of_total(name: &str, cell: &Cell<'_>) -> Option<Cell<'static>> {
    let Cell::Text(text) = cell else { return None };
    let (done, total) = text.split_once('/')?;
    let [done, total] = [done, total].map(|part| part.trim().parse::<u32>().ok());
    let (done, _) = done.zip(total)?;
    let is_step = matches!(Kind::default().role(name), Role::Step(..));
    is_step.then_some(Cell::Number(f64::from(done)))
}

/// What the columns are, for all records.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    roles: Vec<Role>,
    courses: Vec<Course>,
    /// The counter that is believed.
    pub(super) counter: Option<Counter>,
    /// Steps begin anew in each epoch.
    pub(super) epochs: Option<Epochs>,
    /// Some column says how long a step took.
    pub(super) has_step_times: bool,
    /// The elapsed column counts seconds since the previous record, not since the start.
    pub(super) counts_intervals: bool,
    /// Written by Hugging Face's Trainer.
    pub(super) is_hugging_face: bool,
    /// Which run the panel or the table is of, if it says so.
    pub(super) runs: BTreeSet<String>,
}

impl Plan {
    pub(super) fn of(rows: &Rows<'_>) -> Self {
        let kind = Kind::of(rows.names());
        let mut roles: Vec<Role> = rows.names().map(|name| kind.role(name)).collect();
        let is_clock = |column: usize| matches!(roles.get(column), Some(Role::Clock(_)));
        let courses = rows.courses(is_clock);
        for (role, course) in roles.iter_mut().zip(&courses) {
            if !matches!(role, Role::Clock(_)) || course.count == 0 || course.has_clock {
                continue;
            }
            // A "time" of 2.0 is no clock: it counts from the start, or it is how long a step took.
            *role = if course.grows() {
                Role::Elapsed(usize::MAX)
            } else {
                Role::Metric
            };
        }
        skip_constants(&courses, &mut roles);
        let counter = roles
            .iter()
            .zip(&courses)
            .filter_map(|(role, course)| match role {
                Role::Step(counter, _) if course.count > 0 => Some(*counter),
                _ => None,
            });
        let counter = counter.min();
        let runs = runs(rows, kind, &roles);
        let mut names = rows.names();
        let is_hugging_face = names.any(|name| {
            matches!(
                name.rsplit('/').next(),
                Some("train_runtime" | "num_input_tokens_seen")
            ) || name == "train/global_step"
        });
        let has_step_times = rows
            .names()
            .any(|name| Value::of(kind.meant(name)).conversion.is_some());
        let mut plan = Self {
            kind,
            roles,
            courses,
            counter,
            epochs: None,
            has_step_times,
            counts_intervals: false,
            is_hugging_face,
            runs,
        };
        plan.epochs = Epochs::of(rows, |cells| plan.step(cells));
        plan.counts_intervals = counts_intervals(rows, &plan);
        plan
    }

    /// The step of a record, by the counter that is believed.
    pub(super) fn step(&self, cells: &Cells<'_>) -> Option<f64> {
        let counted = cells
            .iter()
            .filter_map(|(column, cell)| match (self.role(*column), cell) {
                (Role::Step(counter, order), Cell::Number(step))
                    if Some(counter) == self.counter =>
                {
                    Some((order, *step))
                }
                _ => None,
            });
        let (_, step) = counted.min_by_key(|(order, _)| *order)?;
        let before = self.epochs.as_ref().map(|epochs| epochs.before(cells));
        Some(step + before.unwrap_or_default())
    }

    /// The last number of a column.
    pub(super) fn last(&self, column: usize) -> Option<f64> {
        self.courses.get(column).and_then(|course| course.last)
    }

    /// What tells a record's series from others of the body: its metric, where each record has one, and its device.
    pub(super) fn series_of(&self, cells: &Cells<'_>) -> String {
        let own = cells.iter().filter(|(column, _)| match self.role(*column) {
            Role::MetricName => self.kind.is_long,
            Role::Device => true,
            _ => false,
        });
        own.map(|(_, cell)| shown(cell))
            .collect::<Vec<_>>()
            .join("/")
    }

    /// Whether each series has its records in one block: none comes back after another has begun.
    pub(super) fn is_in_blocks(&self, rows: &Rows<'_>) -> bool {
        let (mut seen, mut current) = (BTreeSet::new(), None);
        for cells in rows.cells() {
            let own = Some(self.series_of(cells));
            if own != current && !seen.insert(own.clone()) {
                return false;
            }
            current = own;
        }
        true
    }

    /// The seconds that a record says have passed, and the column that says so.
    pub(super) fn elapsed(&self, cells: &Cells<'_>) -> Option<(usize, f64)> {
        let told = cells.iter().filter_map(|(column, cell)| {
            let Role::Elapsed(order) = self.role(*column) else {
                return None;
            };
            Some((order, *column, clock::elapsed(cell)?))
        });
        let (_, column, seconds) = told.min_by_key(|(order, ..)| *order)?;
        Some((column, seconds))
    }

    pub(super) fn role(&self, column: usize) -> Role {
        self.roles.get(column).copied().unwrap_or(Role::Metric)
    }
}

/// What does not change while another counts is a setting, such as the steps that are planned.
fn skip_constants(courses: &[Course], roles: &mut [Role]) {
    let is_step = |role: &Role| matches!(role, Role::Step(..));
    let mut steps = roles.iter().zip(courses);
    if !steps.any(|(role, course)| is_step(role) && course.changes) {
        return;
    }
    for (role, course) in roles.iter_mut().zip(courses) {
        if is_step(role) && course.count > 1 && !course.changes {
            *role = Role::Skipped("it does not change, so it counts nothing");
        }
    }
}

/// Whether seconds are those since the record before: as many for each step in almost every record, and often fewer than
/// in the record before, which a time since the start never is but where it begins anew.
fn counts_intervals(rows: &Rows<'_>, plan: &Plan) -> bool {
    let told = rows
        .cells()
        .filter_map(|cells| Some((plan.step(cells)?, plan.elapsed(cells)?.1)));
    let told: Vec<(f64, f64)> = told.collect();
    let (mut per_step, mut falls) = (Vec::new(), 0);
    for ((step_before, before), (step, seconds)) in told.iter().zip(told.iter().skip(1)) {
        if step > step_before {
            per_step.push(seconds / (step - step_before));
            falls += usize::from(seconds <= before);
        }
    }
    per_step.sort_by(f64::total_cmp);
    let Some(usual) = per_step
        .get(per_step.len() / 2)
        .filter(|usual| **usual > 0.0)
    else {
        return false;
    };
    let is_usual = |seconds: &&f64| (1.0 / USUAL..=USUAL).contains(&(*seconds / usual));
    let usual = per_step.iter().filter(is_usual).count();
    usual * 5 >= per_step.len() * 4 && falls * 4 >= per_step.len()
}

/// The runs that a body says its records are of.
fn runs(rows: &Rows<'_>, kind: Kind, roles: &[Role]) -> BTreeSet<String> {
    let mut runs = BTreeSet::new();
    if kind.is_panel {
        runs.extend(
            rows.names()
                .filter_map(|name| Some(of_panel(name)?.0.to_owned())),
        );
    }
    let is_run = |column: usize| matches!(roles.get(column), Some(Role::Run));
    for (column, cell) in rows.cells().flatten() {
        if is_run(*column) && runs.len() <= LISTED_MAX {
            runs.insert(shown(cell));
        }
    }
    runs
}

/// A cell as a person would write it.
pub(super) fn shown(cell: &Cell<'_>) -> String {
    match cell {
        Cell::Number(number) => number.to_string(),
        Cell::Text(text) => shortened(text),
        Cell::Nested(_) | Cell::Nothing => String::new(),
    }
}

/// A few names, for a message.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = names.collect();
    let first: Vec<String> = all
        .iter()
        .take(LISTED_MAX)
        .map(|name| format!("`{}`", shortened(name)))
        .collect();
    let more = all.len().saturating_sub(LISTED_MAX);
    let first = first.join(", ");
    if more == 0 {
        first
    } else {
        format!("{first} and {more} more")
    }
}

/// A name as it is shown: whoever sends one of a megabyte does not get it back.
fn shortened(name: &str) -> String {
    name.chars().take(SHOWN_MAX).collect()
}
