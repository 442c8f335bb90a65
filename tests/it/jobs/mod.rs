//! Jobs: one for each attempt, over replicas, quotas, pools and regions.

pub(crate) mod fleet;
pub(crate) mod fleet_events;
pub(crate) mod orphans;
pub(crate) mod regions;
pub(crate) mod scheduler;
