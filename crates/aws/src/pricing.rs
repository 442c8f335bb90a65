//! AWS's price list on aws-sdk-pricing. What its products say is [`bakeoff_domain::price_list`]'s business.

use async_trait::async_trait;
use aws_config::{Region, SdkConfig};
use aws_sdk_pricing::Client;
use aws_sdk_pricing::types::{Filter, FilterType};
use bakeoff_domain::ports::{AwsError, PriceList};
use bakeoff_domain::price_list::SERVICE_CODE;

use crate::error::classify;

/// The list is served from a few regions, whichever region it is asked about.
const HOME: &str = "us-east-1";
/// SageMaker lists some thousands of products in a region.
const PAGES_MAX: usize = 200;

/// The price list.
#[derive(Debug, Clone)]
pub struct Pricing {
    client: Client,
}

impl Pricing {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self { client: Client::new(&config.clone().into_builder().region(Region::new(HOME)).build()) }
    }

    async fn pages(&self, filters: &[(&str, &str)]) -> Result<Vec<String>, AwsError> {
        let filters: Vec<Filter> = filters
            .iter()
            .filter_map(|(field, value)| {
                Filter::builder().r#type(FilterType::TermMatch).field(*field).value(*value).build().ok()
            })
            .collect();
        let mut products = Vec::new();
        let mut token = None;
        for _ in 0..PAGES_MAX {
            let call = self.client.get_products().service_code(SERVICE_CODE).set_filters(Some(filters.clone()));
            let page = call.set_next_token(token).send().await.map_err(classify)?;
            products.extend(page.price_list().iter().cloned());
            token = page.next_token().map(str::to_owned);
            if token.is_none() {
                return Ok(products);
            }
        }
        Err(AwsError::Unknown(format!("the price list has more than {PAGES_MAX} pages")))
    }
}

#[async_trait]
impl PriceList for Pricing {
    async fn products(&self, region: &str) -> Result<Vec<String>, AwsError> {
        // Instances, and apart from them the volumes, which are of another product family.
        let instances = [("regionCode", region), ("productFamily", "ML Instance"), ("platoinstancetype", "Training")];
        let mut products = self.pages(&instances).await?;
        products.extend(self.pages(&[("regionCode", region), ("operation", "CreateVolume-Gp2")]).await?);
        Ok(products)
    }
}
