//! Implements the ports of [`bakeoff_domain::ports`] on the real AWS SDKs. This is the
//! only crate that names an SDK type.
//!
//! It translates and classifies, and decides nothing: what an error means for a trial is up to the
//! domain. The simulated region is reached through this same crate, via `AWS_ENDPOINT_URL`.

mod cloudwatch;
mod convert;
mod description;
mod ecr;
mod endpoints;
mod error;
mod iam;
mod iterations;
mod logs;
mod model_packages;
mod pricing;
mod processing;
mod quotas;
mod s3;
mod sagemaker;
mod scheduler;
mod sts;
mod training;
mod transform;
mod tuning;

use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_sagemaker::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;

pub use cloudwatch::CloudWatch;
pub use description::description;
pub use ecr::Ecr;
pub use iam::Iam;
pub use iterations::SageMakerMetrics;
pub use logs::CloudWatchLogs;
pub use pricing::Pricing;
pub use quotas::ServiceQuotas;
pub use s3::S3;
pub use sagemaker::SageMaker;
pub use scheduler::Scheduler;
pub use sts::Sts;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest that a call to AWS may take.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// The ports of one region.
#[derive(Debug, Clone)]
pub struct Region {
    /// Jobs, endpoints and the model registry.
    pub sagemaker: SageMaker,
    pub metrics: CloudWatch,
    pub quotas: ServiceQuotas,
    pub objects: S3,
    pub prices: Pricing,
    pub iterations: SageMakerMetrics,
    pub logs: CloudWatchLogs,
    pub identity: Sts,
    pub permissions: Iam,
    pub images: Ecr,
    pub schedules: Scheduler,
}

/// Builds clients for one region: credentials from the usual chain, timeouts on everything (the SDK
/// sets none by default).
///
/// The SDK's own retries are always off. A create that the SDK repeats is one that we did not
/// count: the first may be carried out after the second was refused, and then a job runs that we
/// believe never existed. We repeat calls worth repeating ourselves, where retries are paced,
/// counted and decided.
pub async fn connect(region: String, operation_timeout: Duration) -> Region {
    ports(&load(region, operation_timeout).await)
}

/// Builds clients for a simulated region at any endpoint: dummy credentials, and none of this
/// machine's AWS configuration.
pub async fn connect_to(endpoint: &str, s3_endpoint: &str, region: &str) -> Region {
    let credentials = Credentials::new("simulated", "simulated", None, None, "simulation");
    let config = load(region.to_owned(), OPERATION_TIMEOUT)
        .await
        .into_builder();
    let config = config
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(endpoint)
        .build();
    let s3 = S3::new(
        &config
            .clone()
            .into_builder()
            .endpoint_url(s3_endpoint)
            .build(),
    );
    Region {
        objects: s3,
        ..ports(&config)
    }
}

fn ports(config: &SdkConfig) -> Region {
    Region {
        sagemaker: SageMaker::new(config),
        metrics: CloudWatch::new(config),
        quotas: ServiceQuotas::new(config),
        objects: S3::new(config),
        prices: Pricing::new(config),
        iterations: SageMakerMetrics::new(config),
        logs: CloudWatchLogs::new(config),
        identity: Sts::new(config),
        permissions: Iam::new(config),
        images: Ecr::new(config),
        schedules: Scheduler::new(config),
    }
}

async fn load(region: String, operation_timeout: Duration) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_timeout(operation_timeout)
        .build();
    let client = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .build_https();
    aws_config::defaults(BehaviorVersion::latest())
        .http_client(client)
        .region(aws_config::Region::new(region))
        .timeout_config(timeouts)
        .retry_config(RetryConfig::disabled())
        .load()
        .await
}
