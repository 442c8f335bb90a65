//! Jobs and what runs them: attempts, the queue they wait in, listings, checkpoints, warm pools,
//! orphaned jobs, and post-mortems.

pub mod attempts;
pub mod checkpoints;
pub mod orphans;
pub mod post_mortems;
pub mod queue;
pub mod readings;
pub mod settling;
pub mod warm_pools;
pub mod watch;
