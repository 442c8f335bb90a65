//! AWS as tests call it.

use std::sync::Arc;

use bakeoff_service::aws::Ports;

use super::REGION;

/// AWS at an address.
pub(crate) async fn ports_of(api: &str, s3: &str) -> Ports {
    let region = bakeoff_aws::connect_to(api, s3, REGION).await;
    Ports {
        tuning: Arc::new(region.tuning),
        transform: Arc::new(region.transform),
        endpoints: Arc::new(region.endpoints),
        processing: Arc::new(region.processing),
        jobs: Arc::new(region.jobs),
        metrics: Arc::new(region.metrics),
        quotas: Arc::new(region.quotas),
        objects: Arc::new(region.objects),
        prices: Arc::new(region.prices),
        iterations: Arc::new(region.iterations),
        logs: Arc::new(region.logs),
        identity: Arc::new(region.identity),
        permissions: Arc::new(region.permissions),
        images: Arc::new(region.images),
        registry: Arc::new(region.registry),
        schedules: Arc::new(region.schedules),
    }
}
