//! How the background tasks of this process fare: when each last ran, with what result, and since
//! when it fails. For `/readyz` and `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::clock::{Stopwatch, real_now};

/// How one task fares (real time).
#[derive(Debug, Clone, Default)]
pub struct TaskStatus {
    /// Ticks that have ended.
    pub runs: u64,
    pub last_started_at: Option<DateTime<Utc>>,
    pub last_ended_at: Option<DateTime<Utc>>,
    pub last_success_at: Option<DateTime<Utc>>,
    /// Since the first failure after the last success.
    failing_since: Option<Stopwatch>,
}

impl TaskStatus {
    /// Its last tick failed, or got no answer.
    pub fn is_failing(&self) -> bool {
        self.failing_since.is_some()
    }
}

/// How all tasks of this process fare.
#[derive(Debug, Default)]
pub struct TaskBoard(Mutex<BTreeMap<&'static str, TaskStatus>>);

impl TaskBoard {
    fn change(&self, task: &'static str, change: impl FnOnce(&mut TaskStatus)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(task).or_default());
    }

    /// A tick begins.
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

    /// Tasks that have done nothing but fail for longer than some time.
    pub fn failing_for(&self, longer_than: Duration) -> Vec<String> {
        let statuses = self.statuses();
        let failing = statuses.iter().filter_map(|(task, status)| {
            let since = status.failing_since.as_ref()?.elapsed();
            (since > longer_than).then(|| {
                // Why is in the log: whoever asks needs no key.
                format!("the {task} has failed for {} s", since.as_secs())
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
