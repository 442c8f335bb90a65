//! SageMaker in domain terms: requests, observed jobs, and the ports that reach it.

pub mod error;
pub mod limiter;
pub mod observed;
pub mod phase;
pub mod ports;
pub mod quota;
pub mod request;
pub mod requested;
