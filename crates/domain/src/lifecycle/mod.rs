//! The life of a trial and of its jobs: whose turn it is, what is done next, what a listing tells,
//! what becomes of pools and stray jobs. All of it pure: the caller looks, and carries out.

pub mod decide;
pub mod fence;
pub mod policy;
pub mod pool;
pub mod queue;
pub mod spot;
pub mod state;
pub mod stray;
pub mod watch;
