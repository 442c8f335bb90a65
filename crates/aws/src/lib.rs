//! The ports of [`bakeoff_domain::ports`] on the real AWS SDKs. The only crate that names an SDK type.
//!
//! It translates and classifies, and decides nothing: what an error means for a trial is the domain's business. The
//! simulated region is reached through this same crate, by `AWS_ENDPOINT_URL`.

mod cloudwatch;
mod convert;
mod error;
mod sagemaker;

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sagemaker::config::{Credentials, SharedCredentialsProvider};

pub use cloudwatch::CloudWatch;
pub use sagemaker::SageMaker;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that a call to AWS can take, retries of the SDK included.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(25);

/// Clients for one region: credentials from the usual chain, timeouts on everything (the SDK sets none by itself).
///
/// `sdk_retries` is off in simulation: there our own backoff runs on the domain clock, and the SDK's would run on the real one.
pub async fn connect(region: String, sdk_retries: bool) -> (SageMaker, CloudWatch) {
    let config = load(region, sdk_retries).await;
    (SageMaker::new(&config), CloudWatch::new(&config))
}

/// Clients for a simulated region, wherever it listens: dummy credentials, and nothing of this machine's AWS configuration.
pub async fn connect_to(endpoint: &str, region: &str) -> (SageMaker, CloudWatch) {
    let credentials = Credentials::new("simulated", "simulated", None, None, "simulation");
    let config = load(region.to_owned(), false).await.into_builder();
    let config =
        config.endpoint_url(endpoint).credentials_provider(SharedCredentialsProvider::new(credentials)).build();
    (SageMaker::new(&config), CloudWatch::new(&config))
}

async fn load(region: String, sdk_retries: bool) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(OPERATION_TIMEOUT)
        .build();
    let retries = if sdk_retries { RetryConfig::standard() } else { RetryConfig::disabled() };
    aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(region))
        .timeout_config(timeouts)
        .retry_config(retries)
        .load()
        .await
}
