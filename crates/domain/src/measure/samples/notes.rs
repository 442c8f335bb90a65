//! What is odd in a body, said beside what was read of it.

use std::collections::HashMap;

use super::Batch;
use super::columns::Counter;
use super::report::{Report, is_same};

/// Says which counter of steps was believed, where that is not plain.
pub(super) fn of_steps(
    columns: &[(String, Counter, Option<f64>)],
    believed: Option<Counter>,
    report: &mut Report,
) {
    let Some(step) = report.step.clone() else {
        return;
    };
    if believed == Some(Counter::LogCalls) {
        report.note(
            "step-is-a-guess",
            format!(
                "steps were read from `{step}`, which counts calls of W&B's log: they are steps of the optimiser only \
                 where each call was given its step, or there is one a step"
            ),
        );
    }
    let last_of = |name: &str| {
        let found = columns.iter().find(|(known, ..)| known == name);
        found.and_then(|(.., last)| *last)
    };
    let Some(last) = last_of(&step).filter(|last| *last > 0.0) else {
        return;
    };
    for (name, counter, other) in columns {
        let Some(other) = other.filter(|other| *other > last) else {
            continue;
        };
        if Some(*counter) > believed && *counter != Counter::LogCalls {
            report.note(
                "micro-steps",
                format!(
                    "`{name}` counts {:.1} to each of `{step}`: micro-steps, which were not taken as steps",
                    other / last
                ),
            );
        }
    }
}

/// Names what two records say differently of one metric at one time and step; the first is kept.
pub(super) fn conflicts(batch: &mut Batch, report: &mut Report) {
    if batch.points.len() < 2 {
        return;
    }
    let mut first: HashMap<(usize, i64, Option<i32>), f64> =
        HashMap::with_capacity(batch.points.len());
    let names = &batch.names;
    batch.points.retain(|point| {
        let key = (point.name, point.at.timestamp_micros(), point.step);
        let Some(kept) = first.get(&key) else {
            first.insert(key, point.value);
            return true;
        };
        if is_same(*kept, point.value) {
            return true;
        }
        report.conflict(names.get(point.name), point, *kept);
        false
    });
}
