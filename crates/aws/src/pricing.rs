//! AWS's price list on aws-sdk-pricing. [`bakeoff_domain::money::price_list`] interprets its
//! products.

use async_trait::async_trait;
use aws_config::{Region, SdkConfig};
use aws_sdk_pricing::Client;
use aws_sdk_pricing::types::{Filter, FilterType};
use bakeoff_domain::money::price_list::SERVICE_CODE;
use bakeoff_domain::ports::{Page, PriceList, Products};
use bakeoff_domain::sagemaker::error::AwsError;

use crate::error::classify;

/// The price list is served from a few regions only, whichever region is queried.
const HOME: &str = "us-east-1";

/// The price list.
#[derive(Debug, Clone)]
pub struct Pricing {
    client: Client,
}

impl Pricing {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(
                &config
                    .clone()
                    .into_builder()
                    .region(Region::new(HOME))
                    .build(),
            ),
        }
    }
}

#[async_trait]
impl PriceList for Pricing {
    async fn products(
        &self,
        region: &str,
        kind: Products,
        token: Option<String>,
    ) -> Result<Page<String>, AwsError> {
        let instances = |component| {
            vec![
                ("regionCode", region),
                ("productFamily", "ML Instance"),
                ("platoinstancetype", component),
            ]
        };
        let filters = match kind {
            Products::TrainingInstances => instances("Training"),
            Products::ProcessingInstances => instances("Processing"),
            Products::HostingInstances => instances("Hosting"),
            // What the list calls it was not seen; its usage types were.
            Products::TransformInstances => instances("BatchTransform"),
            Products::Volumes => vec![("regionCode", region), ("operation", "CreateVolume-Gp2")],
        };
        let filters: Vec<Filter> = filters
            .into_iter()
            .filter_map(|(field, value)| {
                Filter::builder()
                    .r#type(FilterType::TermMatch)
                    .field(field)
                    .value(value)
                    .build()
                    .ok()
            })
            .collect();
        let call = self
            .client
            .get_products()
            .service_code(SERVICE_CODE)
            .set_filters(Some(filters));
        let page = call.set_next_token(token).send().await.map_err(classify)?;
        Ok(Page {
            items: page.price_list().to_vec(),
            next: page.next_token().map(str::to_owned),
        })
    }
}
