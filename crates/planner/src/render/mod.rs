//! Renders a spec into what is sent: the request, its JSON, and the SDK's and DeepSpeed's view of
//! it.

pub mod attempt;
pub mod body;
pub mod deepspeed;
pub mod estimator;
pub mod request;
pub mod sdk;
