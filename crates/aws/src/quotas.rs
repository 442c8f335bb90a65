//! The account's quotas on aws-sdk-servicequotas.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_servicequotas::Client;
use bakeoff_domain::ports::{Page, Quotas};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::quota::Quota;

use crate::error::classify;

const SERVICE: &str = "sagemaker";
const PAGE_SIZE: i32 = 100;

/// Service Quotas in one region.
#[derive(Debug, Clone)]
pub struct ServiceQuotas {
    client: Client,
}

impl ServiceQuotas {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

#[async_trait]
impl Quotas for ServiceQuotas {
    async fn instances(&self, token: Option<String>) -> Result<Page<Quota>, AwsError> {
        let call = self
            .client
            .list_service_quotas()
            .service_code(SERVICE)
            .max_results(PAGE_SIZE);
        let page = call.set_next_token(token).send().await.map_err(classify)?;
        let named = page
            .quotas()
            .iter()
            .filter_map(|quota| Quota::parse(quota.quota_name()?, quota.value()?));
        Ok(Page {
            items: named.collect(),
            next: page.next_token().map(str::to_owned),
        })
    }
}
