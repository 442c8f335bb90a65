//! What every task and handler holds: store, clock, ports, settings. Put together in one place, `cli::serve`.

use std::sync::Arc;
use std::time::Duration;

use bakeoff_domain::decide::Policy;
use bakeoff_domain::ports::{JobMetrics, TrainingJobs};
use chrono::TimeDelta;
use tokio::sync::{Notify, watch};

use crate::clock::Clock;
use crate::store::Store;

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
    /// Between two reads of a job's metrics, on the domain clock.
    pub metrics_interval: TimeDelta,
    /// Key of the secrets that are derived and not stored (CI webhooks).
    pub secret_key: [u8; 32],
}

/// The ports to AWS.
#[derive(Clone)]
pub struct Ports {
    pub jobs: Arc<dyn TrainingJobs>,
    pub metrics: Arc<dyn JobMetrics>,
}

/// Shared by tasks and handlers; cloning it is cheap.
#[derive(Clone)]
pub struct App {
    pub store: Store,
    pub clock: Clock,
    pub ports: Ports,
    pub settings: Arc<Settings>,
    /// Wakes the scheduler; carries nothing.
    pub wake: Arc<Notify>,
    /// Changes whenever an event was written anywhere; readers re-read.
    pub events: watch::Sender<u64>,
}
