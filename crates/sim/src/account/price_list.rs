//! The AWS Price List: GetProducts over this region's rate card, plus the noise of the real list:
//! products of other components, free products, locations of other regions, and attributes that
//! read N/A.

use bakeoff_domain::catalog::processing;
use bakeoff_domain::catalog::serving::Serving;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::account::billing::{MICRO_USD_PER_GB_MONTH, RateCard};
use crate::account::refusal::{Refusal, invalid};

const REGION: &str = "us-east-1";
const PAGE_SIZE: usize = 100;

/// One page in the API's format: each product is JSON text inside the JSON.
pub(crate) fn get_products(
    card: &RateCard,
    body: &Value,
    now: DateTime<Utc>,
) -> Result<Value, Refusal> {
    if body["ServiceCode"] != "AmazonSageMaker" {
        return Err(invalid(format!(
            "this list has no service {}",
            body["ServiceCode"]
        )));
    }
    let filters: Vec<(&str, &str)> = body["Filters"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|filter| Some((filter["Field"].as_str()?, filter["Value"].as_str()?)))
        .collect();
    let matches = |product: &&Value| {
        let product = &product["product"];
        filters.iter().all(|(field, value)| {
            product["attributes"][*field] == *value || product[*field] == *value
        })
    };
    let all = products(card, now);
    let found: Vec<&Value> = all.iter().filter(matches).collect();
    let offset: usize = body["NextToken"]
        .as_str()
        .and_then(|token| token.parse().ok())
        .unwrap_or(0);
    let page: Vec<String> = found
        .iter()
        .skip(offset)
        .take(PAGE_SIZE)
        .map(ToString::to_string)
        .collect();
    let mut answer = json!({ "FormatVersion": "aws_v1", "PriceList": page });
    if offset + PAGE_SIZE < found.len() {
        answer["NextToken"] = json!((offset + PAGE_SIZE).to_string());
    }
    Ok(answer)
}

fn products(card: &RateCard, now: DateTime<Utc>) -> Vec<Value> {
    let mut all = Vec::new();
    for kind in card.types() {
        let Some(rate) = card.at(kind, now) else {
            continue;
        };
        let usd = rate.micro_usd;
        for (component, usage, usd) in [
            ("Training", "Train", usd),
            ("Processing", "Processing", usd),
            ("Hosting", "Host", usd),
            ("BatchTransform", "Tsform", usd),
            ("SpotTraining", "TrainSpot", 0),
            ("Training", "Train-Free", 0),
        ] {
            let is_offered = match component {
                "Processing" => processing::types().contains(kind),
                "Hosting" => Serving::Endpoint.offers(kind),
                "BatchTransform" => Serving::Transform.offers(kind),
                _ => true,
            };
            if !is_offered {
                continue;
            }
            let attributes = json!({
                "servicecode": "AmazonSageMaker", "instanceName": kind, "instanceType": format!("{kind}-{component}"),
                "component": component, "platoinstancetype": component, "regionCode": REGION, "operation": "RunInstance",
                "location": "US East (N. Virginia)", "locationType": "AWS Region", "gpu": "N/A", "gpuMemory": "N/A",
                "usagetype": format!("USE1-{usage}:{kind}"),
            });
            all.push(item(
                "ML Instance",
                &attributes,
                usd,
                "Hrs",
                rate.effective_from,
            ));
        }
    }
    let volume = |usage: &str| {
        json!({
            "servicecode": "AmazonSageMaker", "regionCode": REGION, "location": "US East (N. Virginia)",
            "locationType": "AWS Region", "operation": "CreateVolume-Gp2", "usagetype": format!("USE1-{usage}:VolumeUsage.gp2"),
        })
    };
    for usage in ["Train", "Host", "TrainWarmPool"] {
        let since = DateTime::from_timestamp(1_577_836_800, 0).unwrap_or_default();
        all.push(item(
            "ML Storage",
            &volume(usage),
            MICRO_USD_PER_GB_MONTH,
            "GB-Mo",
            since,
        ));
    }
    all
}

fn item(
    family: &str,
    attributes: &Value,
    micro_usd: i64,
    unit: &str,
    effective_from: DateTime<Utc>,
) -> Value {
    let sku: String = attributes["usagetype"]
        .as_str()
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    let sku = sku.to_uppercase();
    let (term, rate) = (
        format!("{sku}.JRTCKXETXF"),
        format!("{sku}.JRTCKXETXF.6YS6EN2CT7"),
    );
    let usd = format!("{}.{:06}0000", micro_usd / 1_000_000, micro_usd % 1_000_000);
    json!({
        "serviceCode": "AmazonSageMaker",
        "product": { "productFamily": family, "attributes": attributes, "sku": sku },
        "terms": { "OnDemand": { term: {
            "sku": sku, "offerTermCode": "JRTCKXETXF", "effectiveDate": effective_from, "termAttributes": {},
            "priceDimensions": { rate.clone(): {
                "rateCode": rate, "unit": unit, "beginRange": "0", "endRange": "Inf", "appliesTo": [],
                "description": format!("${usd} per {unit}"), "pricePerUnit": { "USD": usd },
            } },
        } } },
        "version": "20261101000000", "publicationDate": effective_from,
    })
}
