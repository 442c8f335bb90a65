//! Experiments: what is planned, changed, raced, answered and bought.

pub(crate) mod additions;
pub(crate) mod changes;
pub(crate) mod full_run;
pub(crate) mod imports;
pub(crate) mod looks;
pub(crate) mod preview;
pub(crate) mod purchase;
pub(crate) mod race;
pub(crate) mod recommendations;
pub(crate) mod snapshots;
pub(crate) mod specs;
pub(crate) mod states;
pub(crate) mod target_loss;
pub(crate) mod teaches_nothing;
