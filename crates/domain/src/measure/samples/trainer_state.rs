//! Hugging Face's `trainer_state.json`: steps without clocks. When each was done follows from the best that its
//! entries say.

use std::borrow::Cow;

use serde::Deserialize;

use super::LineError;
use super::cell::{Cell, Record};
use super::plan::Rows;
use super::report::Report;

/// The column that the seconds since the start are put into.
const ELAPSED: &str = "elapsed_seconds";

/// The parts of the file that are read.
#[derive(Debug, Deserialize)]
pub(super) struct TrainerState<'a> {
    #[serde(borrow, default)]
    log_history: Vec<Record<'a>>,
    #[serde(default)]
    global_step: f64,
}

/// What an entry says of time.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    step: Option<f64>,
    runtime: Option<f64>,
    tokens: Option<f64>,
    tokens_per_second: Option<f64>,
    /// It has a loss of its own, and so is no summary of the run.
    has_loss: bool,
}

impl Entry {
    fn of(record: &Record<'_>) -> Self {
        let mut entry = Self::default();
        for (name, cell) in &record.cells {
            let Cell::Number(number) = cell else { continue };
            let positive = Some(*number).filter(|number| number.is_finite() && *number > 0.0);
            match name.as_ref() {
                "step" => entry.step = Some(*number),
                "train_runtime" => entry.runtime = positive,
                "num_input_tokens_seen" => entry.tokens = positive,
                "train_tokens_per_second" => entry.tokens_per_second = positive,
                "loss" | "eval_loss" => entry.has_loss = true,
                _ => {}
            }
        }
        entry
    }
}

/// Seconds since the start for each entry, and how they are known.
struct Times {
    seconds: Vec<f64>,
    rule: &'static str,
    detail: String,
}

/// Reads the entries, each at its time.
pub(super) fn rows<'a>(
    state: TrainerState<'a>,
    report: &mut Report,
) -> Result<Rows<'a>, Vec<LineError>> {
    report.format = Some("Hugging Face's trainer_state.json".to_owned());
    let entries: Vec<Entry> = state.log_history.iter().map(Entry::of).collect();
    let times = of_own_runtimes(&entries)
        .or_else(|| of_tokens(&entries))
        .or_else(|| spread(&entries, state.global_step));
    let Some(times) = times else {
        let detail = "its entries have no times: it has no train_runtime, which is written when the training has ended, \
                      and no num_input_tokens_seen, which `include_num_input_tokens_seen` adds";
        return Err(vec![LineError {
            line: 1,
            detail: detail.to_owned(),
        }]);
    };
    report.note(times.rule, times.detail);
    let mut rows = Rows::default();
    let entries = state.log_history.into_iter().zip(times.seconds);
    for ((mut record, seconds), at) in entries.zip(1..) {
        record
            .cells
            .insert(0, (Cow::Borrowed(ELAPSED), Cell::Number(seconds)));
        rows.push(at, Ok(record));
    }
    Ok(rows)
}

/// Newer versions write the runtime into each entry. It begins anew where a run is resumed: what lies between is not
/// known, and left out.
fn of_own_runtimes(entries: &[Entry]) -> Option<Times> {
    let own = |entry: &Entry| entry.runtime.filter(|_| entry.has_loss);
    entries.iter().find_map(own)?;
    let (mut before, mut last, mut resumed) = (0.0, 0.0, 0);
    let mut seconds = Vec::with_capacity(entries.len());
    for entry in entries {
        if let Some(runtime) = own(entry) {
            if before + runtime < last {
                before = last;
                resumed += 1;
            }
            last = before + runtime;
        }
        seconds.push(last);
    }
    let again = match resumed {
        0 => String::new(),
        count => format!("; it was resumed {count} times, and the time in between is left out"),
    };
    Some(Times {
        seconds,
        rule: "time-of-entries",
        detail: format!("times are those of each entry's own train_runtime{again}"),
    })
}

/// Tokens seen and tokens a second give the time, also of a run that has not ended.
fn of_tokens(entries: &[Entry]) -> Option<Times> {
    let told: Vec<(usize, f64, f64)> = entries
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| Some((at, entry.tokens?, entry.tokens_per_second?)))
        .collect();
    if told.len() < 2 {
        return None;
    }
    // The rate is a mean since the start; where that gives no growing times, it is that of the last interval.
    let since_start: Vec<f64> = told.iter().map(|(_, tokens, rate)| tokens / rate).collect();
    let known = if since_start.is_sorted_by(|one, next| one < next) {
        since_start
    } else {
        let mut at = (0.0, 0.0);
        let grown = told.iter().map(|(_, tokens, rate)| {
            at = (at.0 + (tokens - at.1).max(0.0) / rate, *tokens);
            at.0
        });
        grown.collect()
    };
    let mut seconds = Vec::with_capacity(entries.len());
    let mut known = told.iter().map(|(at, ..)| *at).zip(known).peekable();
    let mut last = 0.0;
    for at in 0..entries.len() {
        if let Some((_, time)) = known.next_if(|(own, _)| *own == at) {
            last = time;
        }
        seconds.push(last);
    }
    let told_by_end = entries.iter().rev().find_map(|entry| entry.runtime);
    let again = told_by_end
        .filter(|runtime| (runtime / last - 1.0).abs() > 0.05)
        .map_or_else(String::new, |runtime| {
            format!(
                "; its train_runtime of {runtime:.0} s is that of another session than the first, since this adds up \
                 to {last:.0} s: the run was resumed"
            )
        });
    Some(Times {
        seconds,
        rule: "time-of-tokens",
        detail: format!("times are num_input_tokens_seen / train_tokens_per_second{again}"),
    })
}

/// The whole runtime, spread evenly over the steps of its session.
fn spread(entries: &[Entry], global_step: f64) -> Option<Times> {
    entries.iter().find_map(|entry| entry.runtime)?;
    let last_step = entries.iter().filter_map(|entry| entry.step);
    let last_step = last_step.fold(global_step, f64::max).max(1.0);
    let mut seconds = vec![0.0; entries.len()];
    let (mut from, mut step_before, mut first, mut sessions) = (0.0, 0.0, 0, 0);
    for (at, entry) in entries.iter().enumerate() {
        let Some(runtime) = entry.runtime else {
            continue;
        };
        let end = entry.step.unwrap_or(last_step).max(step_before + 1.0);
        for own in first..=at {
            let step = entries.get(own).and_then(|entry| entry.step);
            let share = (step.unwrap_or(step_before) - step_before) / (end - step_before);
            if let Some(time) = seconds.get_mut(own) {
                *time = from + runtime * share.max(0.0);
            }
        }
        (from, step_before, first) = (from + runtime, end, at + 1);
        sessions += 1;
    }
    // Entries after the last summary are of a session whose time is not known yet.
    for time in seconds.iter_mut().skip(first) {
        *time = from;
    }
    let detail = if sessions == 1 {
        "it has no times: its steps are spread evenly over train_runtime. Where the run was resumed, train_runtime is \
         that of the last session alone, and every speed from it is too high"
            .to_owned()
    } else {
        format!(
            "it has no times: its steps are spread evenly over each of the {sessions} sessions' train_runtime"
        )
    };
    Some(Times {
        seconds,
        rule: "time-spread",
        detail,
    })
}
