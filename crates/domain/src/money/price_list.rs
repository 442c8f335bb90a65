//! Reads SageMaker's rates of training and processing from items of the AWS Price List API. Pure: the items have
//! already been fetched. What a rate means for experiments is decided elsewhere.
//!
//! Rates are keyed on `instanceName` and `regionCode`: `instanceType` carries a suffix, the prefix
//! of `usagetype` is not a region code, hardware attributes differ between SKUs, and descriptions
//! follow no pattern (vantage-sh/ec2instances.info reads them the same way).

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::Value;

use crate::money::price::Component;

/// The service code used in queries.
pub const SERVICE_CODE: &str = "AmazonSageMaker";
/// Offer term code of on-demand prices.
const ON_DEMAND: &str = "JRTCKXETXF";

/// A rate as AWS lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedRate {
    pub sku: String,
    pub component: Component,
    /// Set for training and processing, empty for storage.
    pub instance_type: Option<String>,
    pub region: String,
    /// USD per instance-hour, or per GB-month of storage.
    pub usd: Decimal,
    pub effective_from: DateTime<Utc>,
}

/// A product that is no such rate or cannot be read, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub sku: String,
    pub reason: String,
    /// Skipped by design: another kind of product, not worth reporting.
    pub is_expected: bool,
}

#[derive(Deserialize)]
struct Item {
    product: Product,
    #[serde(default)]
    terms: Terms,
}

#[derive(Deserialize)]
struct Product {
    sku: String,
    #[serde(default)]
    attributes: Attributes,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Attributes {
    instance_name: String,
    component: String,
    platoinstancetype: String,
    region_code: String,
    location_type: String,
    usagetype: String,
}

#[derive(Default, Deserialize)]
struct Terms {
    #[serde(rename = "OnDemand", default)]
    on_demand: std::collections::BTreeMap<String, Term>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Term {
    #[serde(default)]
    offer_term_code: String,
    effective_date: DateTime<Utc>,
    #[serde(default)]
    price_dimensions: std::collections::BTreeMap<String, Dimension>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dimension {
    unit: String,
    #[serde(default)]
    begin_range: String,
    price_per_unit: std::collections::BTreeMap<String, String>,
}

/// Reads one item of `PriceList` (a JSON document in itself) for one region.
pub fn read(text: &str, region: &str) -> Result<ListedRate, Skipped> {
    let Ok(item) = serde_json::from_str::<Item>(text) else {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let sku = value
            .pointer("/product/sku")
            .and_then(Value::as_str)
            .unwrap_or("?")
            .to_owned();
        return Err(Skipped {
            sku,
            reason: "not shaped like a product".to_owned(),
            is_expected: false,
        });
    };
    let Product { sku, attributes } = item.product;
    let skip = |reason: String, is_expected| Skipped {
        sku: sku.clone(),
        reason,
        is_expected,
    };
    if attributes.location_type != "AWS Region" || attributes.region_code != region {
        return Err(skip(
            format!(
                "belongs to {} ({})",
                attributes.region_code, attributes.location_type
            ),
            true,
        ));
    }
    let (component, instance_type, unit) = what(&attributes)
        .ok_or_else(|| skip(format!("no rate of jobs: {}", attributes.usagetype), true))?;
    let (rate, effective_from) =
        on_demand(&item.terms, unit).map_err(|reason| skip(reason, false))?;
    if rate.is_zero() {
        return Err(skip("free of charge".to_owned(), true));
    }
    if rate.is_sign_negative() {
        return Err(skip(format!("the rate is {rate}"), false));
    }
    Ok(ListedRate {
        sku,
        component,
        instance_type,
        region: attributes.region_code,
        usd: rate,
        effective_from,
    })
}

/// Component, instance type and unit of a product; `None` for other products.
fn what(attributes: &Attributes) -> Option<(Component, Option<String>, &'static str)> {
    let kind = if attributes.platoinstancetype.is_empty() {
        &attributes.component
    } else {
        &attributes.platoinstancetype
    };
    let of_instances = match kind.as_str() {
        "Training" => Some(Component::Training),
        "Processing" => Some(Component::Processing),
        "Hosting" => Some(Component::Hosting),
        // Its component was not seen; its usage types begin so.
        _ if attributes.usagetype.contains("Tsform:") => Some(Component::Transform),
        _ => None,
    };
    if let Some(component) = of_instances
        && attributes.instance_name.starts_with("ml.")
    {
        return Some((component, Some(attributes.instance_name.clone()), "Hrs"));
    }
    // `USE1-Train:VolumeUsage.gp2`, built like the service's other usage types; bills call it
    // Training Job ML storage.
    let is_storage = attributes.usagetype.contains("Train:VolumeUsage")
        && !attributes.usagetype.contains("Pool");
    is_storage.then_some((Component::Storage, None, "GB-Mo"))
}

/// The single on-demand rate, in USD per unit. Several rates, or tiers by quantity, cannot be used
/// for billing.
fn on_demand(terms: &Terms, unit: &str) -> Result<(Decimal, DateTime<Utc>), String> {
    let mut found = terms
        .on_demand
        .values()
        .filter(|term| term.offer_term_code == ON_DEMAND || term.offer_term_code.is_empty());
    let (Some(term), None) = (found.next(), found.next()) else {
        return Err("not exactly one on-demand term".to_owned());
    };
    let mut dimensions = term.price_dimensions.values();
    let (Some(dimension), None) = (dimensions.next(), dimensions.next()) else {
        return Err("not exactly one rate".to_owned());
    };
    if !dimension.unit.eq_ignore_ascii_case(unit) {
        return Err(format!("priced per {}, not per {unit}", dimension.unit));
    }
    if !matches!(dimension.begin_range.as_str(), "" | "0") {
        return Err("the rate applies only from a minimum quantity".to_owned());
    }
    let usd = dimension
        .price_per_unit
        .get("USD")
        .ok_or("no rate in USD")?;
    let rate: Decimal = usd.parse().map_err(|_| format!("the rate is `{usd}`"))?;
    Ok((rate.normalize(), term.effective_date))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item() -> Value {
        json!({
            "product": {
                "sku": "SKU1", "productFamily": "ML Instance",
                "attributes": {
                    "instanceName": "ml.p4d.24xlarge", "instanceType": "ml.p4d.24xlarge-Training", "component": "Training",
                    "platoinstancetype": "Training", "regionCode": "us-east-1", "locationType": "AWS Region",
                    "usagetype": "USE1-Train:ml.p4d.24xlarge", "gpu": "N/A",
                },
            },
            "terms": { "OnDemand": { "SKU1.JRTCKXETXF": {
                "offerTermCode": "JRTCKXETXF", "effectiveDate": "2025-06-01T00:00:00Z",
                "priceDimensions": { "SKU1.JRTCKXETXF.6YS6EN2CT7": {
                    "unit": "Hrs", "beginRange": "0", "endRange": "Inf", "pricePerUnit": { "USD": "25.2512883000" },
                    "description": "$25.25 per Training ml.p4d.24xlarge hour in US East (N. Virginia)",
                } },
            } } },
        })
    }

    fn with(change: impl Fn(&mut Value)) -> Result<ListedRate, Skipped> {
        let mut item = item();
        change(&mut item);
        read(&item.to_string(), "us-east-1")
    }

    fn dimension(item: &mut Value) -> &mut Value {
        &mut item["terms"]["OnDemand"]["SKU1.JRTCKXETXF"]["priceDimensions"]["SKU1.JRTCKXETXF.6YS6EN2CT7"]
    }

    #[test]
    fn a_training_rate_is_read_by_its_instance_name() {
        let rate = with(|_| {}).unwrap();
        assert_eq!(
            (rate.instance_type.as_deref(), rate.usd),
            (Some("ml.p4d.24xlarge"), Decimal::new(252_512_883, 7))
        );
        assert_eq!(rate.effective_from.to_string(), "2025-06-01 00:00:00 UTC");
    }

    #[test]
    fn storage_is_per_gigabyte_and_month() {
        let storage = |item: &mut Value| {
            item["product"]["attributes"] = json!({ "regionCode": "us-east-1", "locationType": "AWS Region", "usagetype": "USE1-Train:VolumeUsage.gp2" });
            dimension(item)["unit"] = json!("GB-Mo");
        };
        assert_eq!(with(storage).unwrap().component, Component::Storage);
        let per_hour = with(|item| {
            storage(item);
            dimension(item)["unit"] = json!("Hrs");
        });
        assert!(!per_hour.unwrap_err().is_expected);
    }

    #[test]
    fn other_products_are_passed_over_and_odd_ones_are_told_of() {
        let attribute = |name: &'static str, value: &'static str| {
            with(move |item| item["product"]["attributes"][name] = json!(value)).unwrap_err()
        };
        for other in ["Notebook", "SpotTraining", "Studio-JupyterLab", "Cluster"] {
            assert!(attribute("platoinstancetype", other).is_expected, "{other}");
        }
        assert!(attribute("locationType", "AWS Local Zone").is_expected);
        assert!(attribute("regionCode", "us-west-2").is_expected);
        assert!(
            with(|item| dimension(item)["pricePerUnit"]["USD"] = json!("0.0000000000"))
                .unwrap_err()
                .is_expected
        );
        let odd = [
            with(|item| dimension(item)["pricePerUnit"] = json!({ "CNY": "200" })),
            with(|item| dimension(item)["pricePerUnit"]["USD"] = json!("-3")),
            with(|item| dimension(item)["beginRange"] = json!("100")),
            with(|item| {
                item["terms"]["OnDemand"]["SKU1.JRTCKXETXF"]["priceDimensions"]["two"] =
                    dimension(&mut item.clone()).clone();
            }),
            with(|item| item["terms"] = json!({})),
            read("{\"product\": 7}", "us-east-1"),
            read("not json", "us-east-1"),
        ];
        for one in odd {
            assert!(!one.unwrap_err().is_expected);
        }
    }
}
