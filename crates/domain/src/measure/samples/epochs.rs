//! Steps that begin anew in each epoch: the steps of the epochs before are added.

use std::collections::BTreeMap;

use super::cell::Cell;
use super::columns::normalised;
use super::plan::{Cells, Rows};
use super::report::Report;
use crate::number::{real, whole};

/// Names of a column that says in which epoch a record is.
const EPOCH: [&str; 3] = ["epoch", "current_epoch", "epoch_num"];

/// The steps that were done before each epoch began.
#[derive(Debug)]
pub(super) struct Epochs {
    column: usize,
    before: BTreeMap<i64, i64>,
}

/// The first and the last step of one epoch.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: i64,
    last: i64,
}

impl Span {
    /// Whether a step of the next epoch shows that steps begin anew. Where each epoch has one record, all have the same.
    fn is_left_for(&self, step: i64) -> bool {
        let is_one_record = self.first == self.last && self.last > 0;
        step < self.last || is_one_record && step == self.last
    }
}

impl Epochs {
    /// `None` unless steps fall wherever the epoch grows, and nowhere else: a resumed run falls back within an epoch.
    pub(super) fn of(rows: &Rows<'_>, step_of: impl Fn(&Cells<'_>) -> Option<f64>) -> Option<Self> {
        let is_epoch = |name: &str| {
            let normal = normalised(name);
            EPOCH.contains(&normal.rsplit(['/', '.']).next().unwrap_or(&normal))
        };
        let column = rows.names().position(is_epoch)?;
        // Hugging Face's Trainer counts epochs in fractions, and its steps over all of them.
        if rows.numbers(column).any(|epoch| epoch.fract() != 0.0) {
            return None;
        }
        let mut spans: BTreeMap<i64, Span> = BTreeMap::new();
        let (mut current, mut interval) = (None, i64::MAX);
        for cells in rows.cells() {
            let step = step_of(cells).and_then(whole);
            let Some((step, epoch)) = step.zip(epoch_of(cells, column)) else {
                continue;
            };
            if current.is_some_and(|before| epoch < before) {
                return None;
            }
            match spans.get_mut(&epoch) {
                Some(span) if step < span.last => return None,
                Some(span) => {
                    if step > span.last {
                        interval = interval.min(step - span.last);
                    }
                    span.last = step;
                }
                None => {
                    let before = current.and_then(|before| spans.get(&before));
                    if before.is_some_and(|before| !before.is_left_for(step)) {
                        return None;
                    }
                    let (first, last) = (step, step);
                    spans.insert(epoch, Span { first, last });
                }
            }
            current = Some(epoch);
        }
        let is_from_zero = spans.values().any(|span| span.first == 0);
        if spans.len() < 2 || is_from_zero && interval == i64::MAX {
            return None;
        }
        // Steps that begin at 0 are one interval short at the end of their epoch.
        let after = if is_from_zero { interval } else { 0 };
        Some(Self {
            column,
            before: added_up(&spans, after),
        })
    }

    /// Steps before the epoch of a record; 0 for one that says no epoch.
    pub(super) fn before(&self, cells: &Cells<'_>) -> f64 {
        let before = epoch_of(cells, self.column).and_then(|epoch| self.before.get(&epoch));
        before.map_or(0.0, |before| real(before.unsigned_abs()))
    }

    pub(super) fn tell(&self, report: &mut Report) {
        report.note(
            "steps-of-epochs",
            format!(
                "steps begin anew in each of {} epochs: the last steps of those before were added, which is right to the \
                 interval at which they are written",
                self.before.len()
            ),
        );
    }
}

/// The steps before each epoch, of which each has `after` more than its last record says.
fn added_up(spans: &BTreeMap<i64, Span>, after: i64) -> BTreeMap<i64, i64> {
    let mut sum: i64 = 0;
    let before = spans.iter().map(|(epoch, span)| {
        let own = sum;
        sum = sum.saturating_add(span.last).saturating_add(after);
        (*epoch, own)
    });
    before.collect()
}

fn epoch_of(cells: &Cells<'_>, column: usize) -> Option<i64> {
    let cell = cells.iter().find(|(at, _)| *at == column);
    match cell {
        Some((_, Cell::Number(epoch))) => whole(*epoch),
        _ => None,
    }
}
