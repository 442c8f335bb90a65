//! The lifecycle of trials and their jobs: admission, the next action, listings, warm pools and
//! orphaned jobs. All of it is pure: the caller polls AWS and carries out the decisions.

pub mod attempt_cost;
pub mod decide;
pub mod failure;
pub mod fence;
pub mod orphan;
pub mod policy;
pub mod pool;
pub mod queue;
pub mod spot;
pub mod state;
pub mod watch;
