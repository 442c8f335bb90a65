//! Endpoints: from their creation to an end that needs none of our processes.

pub(crate) mod extensions;
pub(crate) mod lives;
pub(crate) mod scheduled_end;
pub(crate) mod scheduled_end_faults;
