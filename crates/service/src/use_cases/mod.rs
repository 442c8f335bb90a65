//! What the service does when somebody asks, whichever door they came through: load, think, write.

pub mod doctor;
pub mod endpoints;
pub mod full_run;
pub mod intake;
pub mod model_packages;
pub mod pipelines;
pub mod refresh;
