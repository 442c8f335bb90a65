//! What operators and AWS ask for: health, checks of a set-up, calls counted, events of the region.

pub(crate) mod aws_events;
pub(crate) mod doctor;
pub(crate) mod health;
pub(crate) mod usage;
