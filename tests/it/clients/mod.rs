//! Other people's programs and files: boto3, pandas, the SageMaker SDK, real requests, random ones.

pub(crate) mod command_line;
pub(crate) mod documents;
pub(crate) mod foreign;
pub(crate) mod fuzz;
pub(crate) mod sdk_pipelines;
pub(crate) mod sdk_requests;
