//! Refreshes prices from AWS's list: fetch, parse, write what is new. The repricer handles the
//! effects of a new price.

use std::collections::BTreeMap;

use bakeoff_domain::catalog;
use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{self, Component, NewPrice, PriceStatus};
use bakeoff_domain::money::price_list::{self, ListedRate, Skipped};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use chrono::{DateTime, Utc};
use thiserror::Error;

use crate::app::App;
use bakeoff_api::prices::{PriceChange, Refreshed, SkippedProduct};
use bakeoff_process::ids;
use bakeoff_store::StoreError;
use bakeoff_store::money::prices::PricesOf;

/// Source of listed prices.
const SOURCE: &str = "AWS Price List API";
/// Maximum number of skipped products reported.
const SKIPPED_MAX: usize = 100;

/// Why prices could not be refreshed.
#[derive(Debug, Error)]
pub enum RefreshError {
    #[error(transparent)]
    Aws(#[from] AwsError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The list was fetched but contains no training rate, so no conclusion is drawn from it.
    #[error("AWS's price list has {0} products for this region, but no training rate")]
    Empty(usize),
}

/// A region's price list, as read at some time.
struct PriceList {
    products: usize,
    listed: Vec<ListedRate>,
    skipped: Vec<Skipped>,
    as_of: DateTime<Utc>,
}

async fn read(app: &App, region: &str) -> Result<PriceList, RefreshError> {
    // The list is at least as new as this; of two reads at once, the later one counts.
    let as_of = app.clock.now();
    let products = app.place.aws.list_prices(region).await?;
    let (listed, skipped) = listed(&products, region);
    if listed.is_empty() {
        return Err(RefreshError::Empty(products.len()));
    }
    Ok(PriceList {
        products: products.len(),
        listed,
        skipped,
        as_of,
    })
}

/// Reads a region's price list and writes the new prices; returns how many there are.
pub async fn refresh_quietly(app: &App, region: &str) -> Result<usize, RefreshError> {
    let PriceList { listed, as_of, .. } = read(app, region).await?;
    let rows: Vec<NewPrice> = listed.iter().map(|rate| row(rate, as_of)).collect();
    Ok(app.store.put_prices(&rows, ids::fresh, as_of).await?.len())
}

/// Reads a region's price list, writes the new prices, and says what they were before to a project.
pub async fn refresh(
    app: &App,
    project: ProjectId,
    region: &str,
) -> Result<Refreshed, RefreshError> {
    let PriceList {
        products,
        listed,
        skipped,
        as_of: now,
    } = read(app, region).await?;
    let types: Vec<String> = listed
        .iter()
        .filter_map(|rate| rate.instance_type.clone())
        .collect();
    let of = |kind| PricesOf {
        kind,
        region,
        instance_types: &types,
    };
    let known = app.store.tariffs(project, of(JobKind::Training)).await?;
    let mut others = Vec::new();
    for kind in [JobKind::Processing, JobKind::Transform, JobKind::Endpoint] {
        others.push((
            kind.component(),
            app.store.tariffs(project, of(kind)).await?,
        ));
    }
    let rows: Vec<NewPrice> = listed.iter().map(|rate| row(rate, now)).collect();
    let new = app.store.put_prices(&rows, ids::fresh, now).await?;
    let change = |row: &NewPrice| {
        let before = match &row.instance_type {
            Some(kind) => {
                let own = others
                    .iter()
                    .find(|(component, _)| *component == row.component);
                let of_kind = own.map_or(&known, |(_, tariffs)| tariffs);
                price::in_force(&of_kind.prices, kind, region, now).map(|price| price.usd_per_hour)
            }
            None => {
                price::rate_in_force(&known.rates, row.component, region, now).map(|rate| rate.usd)
            }
        };
        PriceChange {
            component: row.component,
            instance_type: row.instance_type.clone(),
            usd: Usd(row.usd),
            usd_before: before,
            effective_from: row.effective_from,
        }
    };
    let odd = skipped
        .into_iter()
        .filter(|one| !one.is_expected)
        .take(SKIPPED_MAX);
    Ok(Refreshed {
        region: region.to_owned(),
        read: products,
        listed: rows.len(),
        new: new
            .iter()
            .filter_map(|place| rows.get(*place))
            .map(change)
            .collect(),
        skipped: odd
            .map(|Skipped { sku, reason, .. }| SkippedProduct { sku, reason })
            .collect(),
        as_of: now,
    })
}

/// Each rate once: of two products for the same item and day, the dearer one, because it bounds
/// what may be spent.
fn listed(products: &[String], region: &str) -> (Vec<ListedRate>, Vec<Skipped>) {
    let mut rates: BTreeMap<(&str, Option<String>, DateTime<Utc>), ListedRate> = BTreeMap::new();
    let mut skipped = Vec::new();
    for product in products {
        match price_list::read(product, region) {
            Ok(rate)
                if rate
                    .instance_type
                    .as_deref()
                    .is_some_and(|kind| catalog::find(kind).is_none()) =>
            {
                let kind = rate.instance_type.as_deref().unwrap_or_default();
                let reason = format!("{kind} is not in the instance type catalog");
                skipped.push(Skipped {
                    sku: rate.sku,
                    reason,
                    is_expected: false,
                });
            }
            Ok(rate) => {
                let key = (
                    rate.component.as_str(),
                    rate.instance_type.clone(),
                    rate.effective_from,
                );
                match rates.get(&key) {
                    Some(other) if other.usd >= rate.usd => {}
                    _ => {
                        rates.insert(key, rate);
                    }
                }
            }
            Err(other) => skipped.push(other),
        }
    }
    (rates.into_values().collect(), skipped)
}

fn row(rate: &ListedRate, now: DateTime<Utc>) -> NewPrice {
    NewPrice {
        component: rate.component,
        instance_type: rate.instance_type.clone(),
        region: rate.region.clone(),
        usd: rate.usd,
        usd_max: None,
        effective_from: rate.effective_from,
        confirmed_at: now,
        source: SOURCE.to_owned(),
        status: PriceStatus::Listed,
        note: match rate.component {
            Component::Storage => format!("SKU {}; training job volumes", rate.sku),
            Component::Processing => format!("SKU {}; Processing component", rate.sku),
            Component::Transform => format!("SKU {}; batch transform", rate.sku),
            Component::Hosting => format!("SKU {}; Hosting component", rate.sku),
            _ => format!("SKU {}; Training component", rate.sku),
        },
    }
}
