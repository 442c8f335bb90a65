//! Whether this process may act on AWS: the fence task's last result, which expires unless it is
//! confirmed. The rules are in [`bakeoff_domain::lifecycle::fence`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bakeoff_domain::lifecycle::fence::{SILENCE, TRUSTED};
use chrono::{DateTime, Utc};

/// A process's standing towards the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceStanding {
    /// No fence is configured: nothing distinguishes this database from a copy of it.
    Unfenced,
    /// Not determined yet, or not confirmed for too long.
    Unsure,
    /// This database holds the fence.
    Ours,
    /// Another database holds the fence: this one is a copy, or was restored.
    Stranger,
}

/// The fence, as this process last saw it.
#[derive(Debug)]
pub struct Fence {
    /// `s3://bucket/key`.
    pub uri: Option<String>,
    /// The operator asserts that no copy exists: jobs without a row are stopped even without a
    /// fence.
    stop_unknown_jobs: bool,
    last: Mutex<(FenceStanding, Option<DateTime<Utc>>)>,
    /// Start of the current unbroken time as a stranger.
    stranger_since: Mutex<Option<DateTime<Utc>>>,
    /// Whether this process has ever seen its database hold the fence.
    was_ours: AtomicBool,
}

impl Fence {
    pub fn new(uri: Option<String>, stop_unknown_jobs: bool) -> Self {
        Self {
            uri,
            stop_unknown_jobs,
            last: Mutex::new((FenceStanding::Unsure, None)),
            stranger_since: Mutex::default(),
            was_ours: AtomicBool::new(false),
        }
    }

    /// Records the result of a check.
    pub fn set(&self, standing: FenceStanding, now: DateTime<Utc>) {
        self.was_ours
            .fetch_or(standing == FenceStanding::Ours, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (standing, Some(now));
        let mut since = self
            .stranger_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *since = (standing == FenceStanding::Stranger).then(|| since.unwrap_or(now));
    }

    /// Whether this database has been a stranger for longer than a restored backup, or a server
    /// that has moved, waits before it takes over; this does not resolve by itself. A process that
    /// is only waiting must not be restarted.
    pub fn is_shut_out(&self, now: DateTime<Utc>) -> bool {
        let since = *self
            .stranger_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| now - since > SILENCE * 2)
    }

    pub fn standing(&self, now: DateTime<Utc>) -> FenceStanding {
        if self.uri.is_none() {
            return FenceStanding::Unfenced;
        }
        let (standing, at) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = at.is_some_and(|at| (now - at).abs() <= TRUSTED);
        if is_fresh || standing == FenceStanding::Stranger {
            standing
        } else {
            FenceStanding::Unsure
        }
    }

    /// Whether it is allowed to send a user's stop, end an unwanted pool, and read metrics. An
    /// owner that has lost sight of its fence still may; a database never seen to be the owner may
    /// not.
    pub fn may_stop(&self, now: DateTime<Utc>) -> bool {
        match self.standing(now) {
            FenceStanding::Unfenced | FenceStanding::Ours => true,
            FenceStanding::Unsure => self.was_ours.load(Ordering::Relaxed),
            FenceStanding::Stranger => false,
        }
    }

    /// Whether it is allowed to create jobs, and to end orphaned jobs and pools.
    pub fn may_act(&self, now: DateTime<Utc>) -> bool {
        matches!(
            self.standing(now),
            FenceStanding::Unfenced | FenceStanding::Ours
        )
    }

    /// Whether it is allowed to stop a job with our marker but without a row: the job might belong
    /// to another database of this installation.
    pub fn may_stop_unknown(&self, now: DateTime<Utc>) -> bool {
        match self.standing(now) {
            FenceStanding::Ours => true,
            FenceStanding::Unfenced => self.stop_unknown_jobs,
            FenceStanding::Unsure | FenceStanding::Stranger => false,
        }
    }
}
