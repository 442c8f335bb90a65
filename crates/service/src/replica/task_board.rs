//! The status of this process's background tasks: when each last ran, with what result, and since
//! when it has been failing. For `/readyz` and `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use bakeoff_process::clock::{Stopwatch, real_now};

/// The status of one task (real time).
#[derive(Debug, Clone, Default)]
pub struct TaskStatus {
    /// Number of completed ticks.
    pub runs: u64,
    pub last_started_at: Option<DateTime<Utc>>,
    pub last_ended_at: Option<DateTime<Utc>>,
    pub last_success_at: Option<DateTime<Utc>>,
    /// Set at the first failure after the last success.
    failing_since: Option<Stopwatch>,
}

impl TaskStatus {
    /// Whether the last tick failed or got no answer.
    pub fn is_failing(&self) -> bool {
        self.failing_since.is_some()
    }
}

/// The status of all tasks of this process.
#[derive(Debug, Default)]
pub struct TaskBoard(Mutex<BTreeMap<&'static str, TaskStatus>>);

impl TaskBoard {
    fn change(&self, task: &'static str, change: impl FnOnce(&mut TaskStatus)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(task).or_default());
    }

    /// Records the start of a tick.
    pub fn started(&self, task: &'static str) {
        self.change(task, |status| status.last_started_at = Some(real_now()));
    }

    pub fn succeeded(&self, task: &'static str) {
        let now = real_now();
        self.change(task, |status| {
            status.runs += 1;
            (status.last_ended_at, status.last_success_at) = (Some(now), Some(now));
            status.failing_since = None;
        });
    }

    pub fn failed(&self, task: &'static str) {
        let now = real_now();
        self.change(task, |status| {
            status.runs += 1;
            status.last_ended_at = Some(now);
            status.failing_since.get_or_insert_with(Stopwatch::start);
        });
    }

    /// Every task that has run, by name.
    pub fn statuses(&self) -> BTreeMap<&'static str, TaskStatus> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Tasks that have failed without interruption for longer than the given time.
    pub fn failing_for(&self, longer_than: Duration) -> Vec<String> {
        let statuses = self.statuses();
        let failing = statuses.iter().filter_map(|(task, status)| {
            let since = status.failing_since.as_ref()?.elapsed();
            (since > longer_than).then(|| {
                // The error is only in the log, because the endpoint needs no key.
                format!("the {task} has been failing for {} s", since.as_secs())
            })
        });
        failing.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_failing_from_its_first_failure_to_its_next_success() {
        let board = TaskBoard::default();
        board.failed("watcher");
        board.failed("watcher");
        assert_eq!(board.failing_for(Duration::ZERO).len(), 1);
        assert!(board.failing_for(Duration::from_mins(1)).is_empty());
        board.succeeded("watcher");
        assert!(board.failing_for(Duration::ZERO).is_empty());
    }

    #[test]
    fn the_last_success_stays_when_a_tick_fails() {
        let board = TaskBoard::default();
        board.started("ingester");
        board.succeeded("ingester");
        let before = board.statuses()["ingester"].clone();
        board.failed("ingester");
        let after = board.statuses()["ingester"].clone();
        assert_eq!((before.runs, after.runs), (1, 2));
        assert_eq!(after.last_success_at, before.last_success_at);
        assert!(after.is_failing() && !before.is_failing());
    }
}
