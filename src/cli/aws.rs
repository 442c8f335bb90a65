//! The way to AWS: the ports of a region on the real SDKs. The one file that names the crate that holds
//! them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use bakeoff_domain::clock::Timescale;
use bakeoff_domain::sagemaker::error::AwsError;
use serde_json::Value;

use bakeoff_service::aws::Ports;

/// The longest that a call to AWS may take.
pub(super) const TIMEOUT: Duration = bakeoff_aws::OPERATION_TIMEOUT;

/// The ports of a region, with the credentials of this process.
pub(super) async fn connect(region: &str, timeout: Duration) -> Ports {
    ports(bakeoff_aws::connect(region.to_owned(), timeout).await)
}

/// What DescribeTrainingJob answers of a job of the caller's own account.
pub(super) async fn description(region: &str, job_name: &str) -> Result<Value, AwsError> {
    bakeoff_aws::description(region.to_owned(), job_name).await
}

fn ports(region: bakeoff_aws::Region) -> Ports {
    let sagemaker = Arc::new(region.sagemaker);
    Ports {
        jobs: sagemaker.clone(),
        endpoints: sagemaker.clone(),
        registry: sagemaker,
        metrics: Arc::new(region.metrics),
        quotas: Arc::new(region.quotas),
        objects: Arc::new(region.objects),
        prices: Arc::new(region.prices),
        iterations: Arc::new(region.iterations),
        logs: Arc::new(region.logs),
        identity: Arc::new(region.identity),
        permissions: Arc::new(region.permissions),
        images: Arc::new(region.images),
        schedules: Arc::new(region.schedules),
    }
}

/// Accepts only the ARN of a role.
pub(super) fn role_arn(text: &str) -> Result<String, String> {
    let is_role = text.starts_with("arn:") && text.contains(":role/");
    if is_role {
        Ok(text.to_owned())
    } else {
        let usual = "arn:aws:iam::111122223333:role/bakeoff-scheduler";
        Err(format!("expected the ARN of a role such as {usual}"))
    }
}

/// Refuses simulated time against real AWS, where jobs would be billed in real time.
pub(super) fn refuse_to_simulate(clock: Timescale) -> anyhow::Result<()> {
    if clock.is_real() && clock == Timescale::REAL {
        return Ok(());
    }
    let is_loopback = |url: &str| {
        ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"]
            .iter()
            .any(|p| url.starts_with(p))
    };
    let endpoint = |name: &str| {
        std::env::var(name)
            .or_else(|_| std::env::var("AWS_ENDPOINT_URL"))
            .unwrap_or_default()
    };
    for name in [
        "AWS_ENDPOINT_URL_SAGEMAKER",
        "AWS_ENDPOINT_URL_CLOUDWATCH",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL_SERVICE_QUOTAS",
        "AWS_ENDPOINT_URL_STS",
        "AWS_ENDPOINT_URL_PRICING",
        "AWS_ENDPOINT_URL_IAM",
        "AWS_ENDPOINT_URL_ECR",
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME",
        "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS",
        "AWS_ENDPOINT_URL_SCHEDULER",
    ] {
        ensure!(
            is_loopback(&endpoint(name)),
            "BAKEOFF_CLOCK is for simulation only: {name} (or AWS_ENDPOINT_URL) must be a loopback address"
        );
    }
    Ok(())
}
