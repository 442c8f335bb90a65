//! AWS as tests call it.

use std::sync::Arc;

use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::request::TrainingJobRequest;
use bakeoff_service::aws::Ports;
use serde_json::Value;
use sqlx::PgPool;

use super::REGION;

/// AWS at an address.
pub(crate) async fn ports_of(api: &str, s3: &str) -> Ports {
    let region = bakeoff_aws::connect_to(api, s3, REGION).await;
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

/// The request of a trial of the database, of whichever if there are several.
pub(crate) async fn request_of(pool: &PgPool) -> TrainingJobRequest {
    let plan: Value = sqlx::query_scalar("SELECT plan FROM trials LIMIT 1")
        .fetch_one(pool)
        .await
        .unwrap();
    serde_json::from_value(plan["job"]["training"].clone()).unwrap()
}

/// Creates a training job at AWS, as somebody else may.
pub(crate) async fn create_job(
    ports: &Ports,
    request: &TrainingJobRequest,
) -> Result<(), AwsError> {
    let job = Job::Training(Box::new(request.clone()));
    ports.jobs.create(&job, Arc::new(|| true)).await
}
