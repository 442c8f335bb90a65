//! Use cases, shared by the API, the pipelines and CI: load, think, write.

pub mod additions;
pub mod doctor;
pub mod endpoints;
pub mod full_run;
pub mod intake;
pub mod model_packages;
pub mod pipelines;
pub mod refresh;
