//! Whether this process may act on AWS for its installation: what the fence task has found out last. What that rests on is
//! [`bakeoff_domain::fence`]'s business.
//!
//! It is believed, not known: like a lease it runs out when it has not been confirmed for a while.

use std::sync::{Mutex, PoisonError};

use bakeoff_domain::fence::TRUSTED;
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
    /// The operator says that there is no copy: jobs without a row are stopped although nothing proves it.
    stop_unknown_jobs: bool,
    last: Mutex<(Standing, Option<DateTime<Utc>>)>,
}

impl Fence {
    pub fn new(uri: Option<String>, stop_unknown_jobs: bool) -> Self {
        Self { uri, stop_unknown_jobs, last: Mutex::new((Standing::Unsure, None)) }
    }

    /// Takes down what was found out.
    pub fn set(&self, standing: Standing, now: DateTime<Utc>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (standing, Some(now));
    }

    pub fn standing(&self, now: DateTime<Utc>) -> Standing {
        if self.uri.is_none() {
            return Standing::Unfenced;
        }
        let (standing, at) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = at.is_some_and(|at| (now - at).abs() <= TRUSTED);
        if is_fresh || standing == Standing::Stranger { standing } else { Standing::Unsure }
    }

    /// Whether jobs may be created and, where no person asked for it, ended.
    pub fn may_act(&self, now: DateTime<Utc>) -> bool {
        matches!(self.standing(now), Standing::Unfenced | Standing::Ours)
    }

    /// Whether a job with our marker that no row stands for may be stopped: it might be the work of another database of this
    /// installation.
    pub fn may_stop_unknown(&self, now: DateTime<Utc>) -> bool {
        match self.standing(now) {
            Standing::Ours => true,
            Standing::Unfenced => self.stop_unknown_jobs,
            Standing::Unsure | Standing::Stranger => false,
        }
    }
}
