//! Whether this process may act on AWS: the fence task's last result, which expires when it is not
//! confirmed. The rules are in [`bakeoff_domain::lifecycle::fence`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bakeoff_domain::lifecycle::fence::{SILENCE, TRUSTED};
use chrono::{DateTime, Utc};

/// Where a process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No fence was configured: nothing tells this database from a copy of it.
    Unfenced,
    /// Not found out yet, or not confirmed for too long.
    Unsure,
    /// The fence is this database's.
    Ours,
    /// Another database holds the fence: this one is a copy, or was restored.
    Stranger,
}

/// The fence, as this process believes it to stand.
#[derive(Debug)]
pub struct Fence {
    /// `s3://bucket/key`.
    pub uri: Option<String>,
    /// The operator asserts that no copy exists: jobs without a row are stopped even without a
    /// fence.
    stop_unknown_jobs: bool,
    last: Mutex<(Standing, Option<DateTime<Utc>>)>,
    /// Since when it is a stranger without a break.
    stranger_since: Mutex<Option<DateTime<Utc>>>,
    /// This process has seen that the fence is its database's.
    was_ours: AtomicBool,
}

impl Fence {
    pub fn new(uri: Option<String>, stop_unknown_jobs: bool) -> Self {
        Self {
            uri,
            stop_unknown_jobs,
            last: Mutex::new((Standing::Unsure, None)),
            stranger_since: Mutex::default(),
            was_ours: AtomicBool::new(false),
        }
    }

    /// Takes down what was found out.
    pub fn set(&self, standing: Standing, now: DateTime<Utc>) {
        self.was_ours
            .fetch_or(standing == Standing::Ours, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (standing, Some(now));
        let mut since = self
            .stranger_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *since = (standing == Standing::Stranger).then(|| since.unwrap_or(now));
    }

    /// It has been a stranger for longer than a restored backup, or a server that has moved, waits
    /// before it takes over: that does not come right by itself. Whoever only waits must not be
    /// restarted for it.
    pub fn is_shut_out(&self, now: DateTime<Utc>) -> bool {
        let since = *self
            .stranger_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| now - since > SILENCE * 2)
    }

    pub fn standing(&self, now: DateTime<Utc>) -> Standing {
        if self.uri.is_none() {
            return Standing::Unfenced;
        }
        let (standing, at) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = at.is_some_and(|at| (now - at).abs() <= TRUSTED);
        if is_fresh || standing == Standing::Stranger {
            standing
        } else {
            Standing::Unsure
        }
    }

    /// Whether a person's stop may be sent, a pool that nobody wants ended, and metrics read: an
    /// owner that has lost sight of its fence still may, and a database that never was seen to be
    /// the owner may not.
    pub fn may_stop(&self, now: DateTime<Utc>) -> bool {
        match self.standing(now) {
            Standing::Unfenced | Standing::Ours => true,
            Standing::Unsure => self.was_ours.load(Ordering::Relaxed),
            Standing::Stranger => false,
        }
    }

    /// Whether jobs may be created, and orphaned jobs and pools ended.
    pub fn may_act(&self, now: DateTime<Utc>) -> bool {
        matches!(self.standing(now), Standing::Unfenced | Standing::Ours)
    }

    /// Whether a job with our marker that no row stands for may be stopped: it might be the work of
    /// another database of this installation.
    pub fn may_stop_unknown(&self, now: DateTime<Utc>) -> bool {
        match self.standing(now) {
            Standing::Ours => true,
            Standing::Unfenced => self.stop_unknown_jobs,
            Standing::Unsure | Standing::Stranger => false,
        }
    }
}
