//! What SageMaker runs and keeps: a module for each kind of job, for warm pools and for the Model Registry.

pub(crate) mod endpoints;
pub(crate) mod job;
pub(crate) mod model_packages;
pub(crate) mod pools;
pub(crate) mod processing;
pub(crate) mod transform;
pub(crate) mod tuning;
