//! SageMaker in our own words: what is asked of it, what it tells, and the ports that reach it.

pub mod error;
pub mod limiter;
pub mod observed;
pub mod ports;
pub mod quota;
pub mod request;
pub mod requested;
