//! What became of the cells of each column: read, left out, or no numbers.

use std::collections::BTreeMap;

use super::gather::NAME_LENGTH_MAX;
use super::report::{NAMED_MAX, NotRead, ReadColumn, Report};
use super::values::Value;

/// What became of a column's cells.
#[derive(Debug, Clone, Default)]
pub(super) struct Fate {
    pub(super) value: Option<Value>,
    pub(super) points: u64,
    /// Cells that are no numbers, and the first of them.
    pub(super) unreadable: u64,
    pub(super) example: String,
    /// Why other cells were left out.
    pub(super) left_out: BTreeMap<&'static str, u64>,
}

impl Fate {
    /// Says what became of the column.
    pub(super) fn tell(self, column: &str, report: &mut Report) {
        let column: String = column.chars().take(NAME_LENGTH_MAX).collect();
        if self.points > 0 && report.columns.len() < NAMED_MAX {
            let value = self.value.as_ref();
            report.columns.push(ReadColumn {
                column: column.clone(),
                metric: value.and_then(Value::standard).map(str::to_owned),
                points: self.points,
                converted: value.and_then(Value::converted).map(str::to_owned),
            });
        }
        let left_out = self
            .left_out
            .into_iter()
            .map(|(why, cells)| (why.to_owned(), cells));
        let unreadable = (self.unreadable > 0)
            .then(|| (format!("no number: {:?}", self.example), self.unreadable));
        for (why, cells) in left_out.chain(unreadable) {
            if report.not_read.len() < NAMED_MAX {
                report.not_read.push(NotRead {
                    column: column.clone(),
                    why,
                    cells,
                });
            }
        }
    }
}
