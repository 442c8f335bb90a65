//! Pipelines: their steps, jobs of other kinds, and models in the registry.

pub(crate) mod examples;
pub(crate) mod funds;
pub(crate) mod model_packages;
pub(crate) mod processing_jobs;
pub(crate) mod scripts;
pub(crate) mod steps;
pub(crate) mod tuning;
