//! CI: triggers, runs, their gate, and what commits are told.

pub(crate) mod commit_status;
pub(crate) mod forgeries;
pub(crate) mod gate;
pub(crate) mod images;
pub(crate) mod one_bill;
pub(crate) mod superseding;
pub(crate) mod triggers;
pub(crate) mod waits;
