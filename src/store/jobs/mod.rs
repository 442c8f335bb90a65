//! Jobs and what runs them: attempts, the queue they wait in, listings, checkpoints, warm pools,
//! and orphaned jobs.

pub mod attempts;
pub mod checkpoints;
pub mod orphans;
pub mod queue;
pub mod warm_pools;
pub mod watch;
