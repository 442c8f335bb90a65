//! API views of a price refresh.

use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::Component;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The result of a price refresh.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Refreshed {
    pub region: String,
    /// Products in AWS's list for the region.
    pub read: usize,
    /// Products that are training rates.
    pub listed: usize,
    /// Training rates that were new. Dependent experiments are recomputed within a minute.
    pub new: Vec<PriceChange>,
    /// Products that could not be interpreted; at most 100.
    pub skipped: Vec<SkippedProduct>,
    pub as_of: DateTime<Utc>,
}

/// A new price.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PriceChange {
    pub component: Component,
    /// Only for training.
    pub instance_type: Option<String>,
    /// USD per instance-hour of training, or per GB-month of storage.
    pub usd: Usd,
    /// The price in force at the time of the refresh.
    pub usd_before: Option<Usd>,
    pub effective_from: DateTime<Utc>,
}

/// A product in AWS's list that could not be used, and why.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SkippedProduct {
    pub sku: String,
    pub reason: String,
}
