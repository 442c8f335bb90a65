//! What every task and handler holds: store, clock, ports, settings. Put together in one place,
//! `cli::serve`.

use std::sync::Arc;
use std::time::Duration;

use bakeoff_domain::lifecycle::policy::Policy;
use chrono::{DateTime, TimeDelta, Utc};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Notify;

use crate::aws::Aws;
use crate::aws::sns::Sns;
use crate::clock::{Clock, HighWater};
use crate::event_board::EventBoard;
use crate::fence::Fence;
use crate::leader::Leader;
use crate::pulse::Pulse;
use crate::store::Store;
use crate::store::leases::Holder;
use crate::task_board::TaskBoard;

/// CloudWatch shows a minute about a minute after it has ended.
const VISIBLE_AFTER_SECONDS: i64 = 90;
/// Two calls to AWS that never answer, at the least.
const PATIENCE_LEAST: Duration = Duration::from_secs(20);

/// Limits and intervals of this process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The one region that experiments may run in.
    pub region: String,
    /// Unique to this process: a lease names its holder.
    pub owner: String,
    /// Part of every job name.
    pub installation: String,
    pub policy: Policy,
    /// Real time.
    pub lease: Duration,
    /// Between two listings of all jobs, on the domain clock: while they fit on one page, and at
    /// most.
    pub listing: (TimeDelta, TimeDelta),
    /// Between two reads of a running job's metrics, on the domain clock; `None`: once, after its
    /// end.
    pub metrics_interval: Option<TimeDelta>,
    /// SageMaker's own series are read, once, when a job is over. What that costs is published
    /// nowhere.
    pub sagemaker_metrics: bool,
    /// How long points of what is over are kept; rollups and figures stay. `None`: for good.
    pub points_kept: Option<TimeDelta>,
    /// Key of the secrets that are derived and not stored (CI webhooks, push tokens).
    pub secret_key: [u8; 32],
    /// Where training jobs reach this service; `None`: they are not told.
    pub public_url: Option<String>,
}

impl Settings {
    /// The next moment on the grid on which metrics are read: reads that fall together share a
    /// call, and each falls where the last bucket of five minutes has just become whole. That is as
    /// fine as any decision needs: they rest on whole buckets, and a read in between would be paid
    /// for and change nothing.
    pub fn metrics_slot(&self, after: DateTime<Utc>) -> DateTime<Utc> {
        let step = self
            .metrics_interval
            .map_or(300, |interval| interval.num_seconds().max(60));
        let grid = (after.timestamp() - VISIBLE_AFTER_SECONDS).div_euclid(step) + 1;
        DateTime::from_timestamp(grid * step + VISIBLE_AFTER_SECONDS, 0).unwrap_or(after)
    }

    /// Whoever takes leases on trials and pools here.
    pub fn holder(&self) -> Holder<'_> {
        Holder {
            owner: &self.owner,
            lease: self.lease,
        }
    }

    /// A tick that has not taken a step for so long is given up (real time).
    pub fn patience(&self) -> Duration {
        (self.lease * 2).max(PATIENCE_LEAST)
    }

    /// What the metrics of an attempt are bounded by: reads apart by this.
    pub fn metrics_spacing(&self) -> TimeDelta {
        self.metrics_interval.unwrap_or(TimeDelta::days(28))
    }
}

/// Shared by tasks and handlers; cloning it is cheap.
#[derive(Clone)]
pub struct App {
    pub store: Store,
    pub clock: Clock,
    pub aws: Arc<Aws>,
    /// Of watching: listings, strays, quotas.
    pub watcher: Arc<Leader>,
    /// Whether this process may act on AWS for its installation.
    pub fence: Arc<Fence>,
    /// Of the domain clock, as the scheduler has seen it.
    pub newest: Arc<HighWater>,
    /// How the tasks fare.
    pub tasks: Arc<TaskBoard>,
    /// Of the task that holds this clone.
    pub pulse: Pulse,
    pub settings: Arc<Settings>,
    /// Opens what SNS sends; none when no topic was named.
    pub sns: Option<Arc<Sns>>,
    /// Where this process's metrics are; none in tests, which share a process.
    pub metrics: Option<PrometheusHandle>,
    /// Wakes the scheduler; carries nothing.
    pub wake: Arc<Notify>,
    /// Wakes those who wait for events of an experiment; they read again.
    pub events: EventBoard,
}
