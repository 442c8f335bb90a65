//! From a spec to what is sent: the request, its JSON, what the SDK and DeepSpeed would make of it.

pub mod body;
pub mod deepspeed;
pub mod estimator;
pub mod request;
pub mod sdk;
