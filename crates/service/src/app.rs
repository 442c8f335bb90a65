//! State shared by all tasks and handlers: store, clock, ports, settings. Built in one place,
//! `cli::serve`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bakeoff_domain::lifecycle::policy::Policy;
use chrono::{DateTime, TimeDelta, Utc};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Notify;

use crate::aws::Aws;
use crate::aws::sns::Sns;
use crate::live::copies::Copies;
use crate::outgoing::Outgoing;
use crate::replica::event_board::EventBoard;
use crate::replica::fence::Fence;
use crate::replica::leader::Leader;
use crate::replica::pulse::Pulse;
use crate::replica::task_board::TaskBoard;
use bakeoff_process::clock::{Clock, HighWater};
use bakeoff_store::Store;
use bakeoff_store::leases::Holder;

/// CloudWatch shows a minute's data about a minute after that minute ends.
const VISIBLE_AFTER_SECONDS: i64 = 90;
/// Lower bound of the patience: at least two calls to AWS that never answer.
const PATIENCE_LEAST: Duration = Duration::from_secs(20);

/// Limits and intervals of this process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The regions that experiments may run in. The first one is the usual one where none is named,
    /// and the one that reaches the fence and the price list.
    pub regions: Vec<String>,
    /// Unique to this process: a lease names its holder.
    pub owner: String,
    /// Part of every job name.
    pub installation: String,
    pub policy: Policy,
    /// Duration of a lease, in real time.
    pub lease: Duration,
    /// Interval between listings of all jobs, on the domain clock: while they fit on one page, and
    /// the longest.
    pub listing: (TimeDelta, TimeDelta),
    /// Interval between reads of a running job's metrics, on the domain clock; `None` reads them
    /// once, after the job ends.
    pub metrics_interval: Option<TimeDelta>,
    /// Whether to read SageMaker's own series, once, when a job is over. AWS publishes no price for
    /// it.
    pub sagemaker_metrics: bool,
    /// Interval between reads of AWS's price list, on the domain clock; `None` reads it only when
    /// asked.
    pub price_refresh: Option<TimeDelta>,
    /// How long to keep points of ended trials and runs; rollups and figures are always kept.
    /// `None` keeps points forever.
    pub points_kept: Option<TimeDelta>,
    /// Key for deriving the secrets that are not stored (CI webhooks, push tokens).
    pub secret_key: [u8; 32],
    /// Role under which EventBridge Scheduler ends what SageMaker never ends; with `None` no end is scheduled.
    pub scheduler_role_arn: Option<String>,
    /// Whether nothing is created that has no end at AWS.
    pub require_scheduled_end: bool,
    /// URL where training jobs reach this service; with `None` they get no URL or token.
    pub public_url: Option<String>,
    /// Origins (`https://portal.example.com`) whose pages may read answers; none by default.
    pub web_origins: Vec<String>,
}

impl Settings {
    /// The region that is meant where none is named.
    pub fn home(&self) -> &str {
        self.regions.first().map_or("", String::as_str)
    }

    /// The next slot of the grid on which metrics are read. A common grid lets reads share a call,
    /// and each slot falls just after a stored bucket has become complete.
    pub fn metrics_slot(&self, after: DateTime<Utc>) -> DateTime<Utc> {
        let step = self
            .metrics_interval
            .map_or(300, |interval| interval.num_seconds().max(60));
        let grid = (after.timestamp() - VISIBLE_AFTER_SECONDS).div_euclid(step) + 1;
        DateTime::from_timestamp(grid * step + VISIBLE_AFTER_SECONDS, 0).unwrap_or(after)
    }

    /// A tick that makes no progress for this long is given up (real time).
    pub fn patience(&self) -> Duration {
        (self.lease * 2).max(PATIENCE_LEAST)
    }

    /// Interval between metric reads that bounds the cost of an attempt's metrics.
    pub fn metrics_spacing(&self) -> TimeDelta {
        self.metrics_interval.unwrap_or(TimeDelta::days(28))
    }
}

/// A region that this process serves: its clients, and the work there. What concerns AWS runs once
/// for each region, and claims only what is in it.
#[derive(Clone)]
pub struct Place {
    pub region: String,
    pub aws: Arc<Aws>,
    /// Leadership over watching it: listings, orphans, quotas.
    pub watcher: Arc<Leader>,
    /// The status of its background tasks.
    pub tasks: Arc<TaskBoard>,
    /// Wakes its scheduler; carries nothing.
    pub wake: Arc<Notify>,
    /// The newest time on the domain clock that its scheduler has seen.
    pub newest: Arc<HighWater>,
}

impl Place {
    pub fn new(region: &str, aws: Aws, owner: &str, lease: Duration) -> Self {
        Self {
            region: region.to_owned(),
            aws: Arc::new(aws),
            watcher: Arc::new(Leader::new("watcher", region, owner, lease)),
            tasks: Arc::default(),
            wake: Arc::default(),
            newest: Arc::default(),
        }
    }
}

/// State shared by tasks and handlers; cloning it is cheap.
#[derive(Clone)]
pub struct App {
    pub store: Store,
    pub clock: Clock,
    /// The region whose work this clone does; outside of the tasks of a region, the first one.
    pub place: Place,
    /// Every region that this process serves, by name. All are in the account of the installation.
    pub places: Arc<BTreeMap<String, Place>>,
    /// Whether this process may act on AWS for its installation.
    pub fence: Arc<Fence>,
    /// Leadership over renewing the fence, of all regions together.
    pub renewer: Arc<Leader>,
    /// The pulse of the task that holds this clone.
    pub pulse: Pulse,
    pub settings: Arc<Settings>,
    /// Verifies messages from SNS; `None` if no topic was configured.
    pub sns: Option<Arc<Sns>>,
    /// Sends webhooks to addresses that users name.
    pub outgoing: Outgoing,
    /// This process's metrics; `None` in tests, which share a process.
    pub metrics: Option<PrometheusHandle>,
    /// Copies of checkpoints under way here.
    pub copies: Copies,
    /// Wakes waiters for an experiment's events, which then read again.
    pub events: EventBoard,
}

impl App {
    /// The holder of the leases on trials and pools that this process takes in this clone's region.
    pub fn holder(&self) -> Holder<'_> {
        Holder {
            region: &self.place.region,
            owner: &self.settings.owner,
            lease: self.settings.lease,
        }
    }

    /// Wakes the schedulers of all regions.
    pub fn wake_schedulers(&self) {
        for place in self.places.values() {
            place.wake.notify_one();
        }
    }
}
