//! What holds when something fails: replicas, AWS, the database, the clock, a row.

pub(crate) mod account;
pub(crate) mod fence;
pub(crate) mod listings;
pub(crate) mod locks;
pub(crate) mod money;
pub(crate) mod replicas;
pub(crate) mod reservations;
pub(crate) mod stalls;
pub(crate) mod unreadable;
pub(crate) mod upgrade;
