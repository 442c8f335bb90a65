//! Prices: effective-dated, with source and status. A price that is not known is unknown, never guessed; an EC2 price
//! times an uplift is allowed only marked `estimated`. Spot has no price: its savings are observed.

use std::sync::LazyLock;

use chrono::{DateTime, NaiveDate, Utc};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::PriceId;
use crate::money::Usd;

/// How far a price can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriceStatus {
    /// Read from AWS's list for just this component.
    Listed,
    /// Agreed with AWS or set by the user.
    Negotiated,
    /// Read from AWS's list for another component that has the same price wherever both are known.
    AssumedSameAs,
    /// Seen in one place that nobody has confirmed.
    Unverified,
    /// EC2's price times the measured uplift.
    Estimated,
}

impl PriceStatus {
    pub const ALL: [Self; 5] = [Self::Listed, Self::Negotiated, Self::AssumedSameAs, Self::Unverified, Self::Estimated];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Listed => "listed",
            Self::Negotiated => "negotiated",
            Self::AssumedSameAs => "assumed_same_as",
            Self::Unverified => "unverified",
            Self::Estimated => "estimated",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// USD per instance-hour of SageMaker training, in one region, from one day on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Price {
    pub id: PriceId,
    pub instance_type: String,
    pub region: String,
    pub usd_per_hour: Usd,
    /// The highest the price can be, where `usd_per_hour` is an estimate: it bounds reservations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_hour_max: Option<Usd>,
    pub effective_from: DateTime<Utc>,
    pub source: String,
    pub status: PriceStatus,
    pub note: String,
}

impl Price {
    /// What a reservation must assume.
    pub fn ceiling(&self) -> Usd {
        self.usd_per_hour_max.map_or(self.usd_per_hour, |max| max.max(self.usd_per_hour))
    }

    /// `AWS Price List API 2026-09-24 (assumed_same_as)`: source, date and status in one cell.
    pub fn label(&self) -> String {
        format!("{} {} ({})", self.source, self.effective_from.format("%Y-%m-%d"), self.status.as_str())
    }
}

/// A price of the shipped catalog, before it has an id.
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogPrice {
    pub instance_type: String,
    pub region: String,
    pub usd_per_hour: Decimal,
    pub usd_per_hour_max: Option<Decimal>,
    pub effective_from: DateTime<Utc>,
    pub source: String,
    pub status: PriceStatus,
    pub note: String,
}

#[derive(Deserialize)]
struct Row {
    instance_type: String,
    region: String,
    usd_per_hour: Decimal,
    usd_per_hour_max: Option<Decimal>,
    effective_from: NaiveDate,
    source: String,
    status: PriceStatus,
    note: String,
}

impl From<Row> for CatalogPrice {
    fn from(row: Row) -> Self {
        Self {
            instance_type: row.instance_type,
            region: row.region,
            usd_per_hour: row.usd_per_hour,
            usd_per_hour_max: row.usd_per_hour_max,
            effective_from: row.effective_from.and_time(chrono::NaiveTime::MIN).and_utc(),
            source: row.source,
            status: row.status,
            note: row.note,
        }
    }
}

static CATALOG: LazyLock<Vec<CatalogPrice>> = LazyLock::new(|| {
    let mut reader =
        csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(include_str!("../data/prices.csv").as_bytes());
    reader.deserialize::<Row>().filter_map(Result::ok).map(CatalogPrice::from).collect()
});

/// The prices the product ships.
pub fn catalog() -> &'static [CatalogPrice] {
    &CATALOG
}

/// The price in force at a moment: a negotiated one before any other, then the latest that has begun.
pub fn in_force(prices: &[Price], instance_type: &str, region: &str, at: DateTime<Utc>) -> Option<Price> {
    prices
        .iter()
        .filter(|price| price.instance_type == instance_type && price.region == region)
        .filter(|price| price.effective_from <= at)
        .max_by_key(|price| (price.status == PriceStatus::Negotiated, price.effective_from))
        .cloned()
}

/// The highest ceiling in force at any moment of a run: the price at its start and every change that begins before its end.
pub fn ceiling_over(prices: &[Price], current: &Price, from: DateTime<Utc>, until: DateTime<Utc>) -> Usd {
    prices
        .iter()
        .filter(|price| price.instance_type == current.instance_type && price.region == current.region)
        .filter(|price| price.effective_from > from && price.effective_from <= until)
        .map(Price::ceiling)
        .fold(current.ceiling(), Ord::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(usd: i64, day: u32, status: PriceStatus) -> Price {
        Price {
            id: PriceId(uuid::Uuid::from_u128(1)),
            instance_type: "ml.p5.48xlarge".into(),
            region: "us-east-1".into(),
            usd_per_hour: Usd(Decimal::from(usd)),
            usd_per_hour_max: None,
            effective_from: NaiveDate::from_ymd_opt(2026, 1, day).unwrap().and_time(chrono::NaiveTime::MIN).and_utc(),
            source: "test".into(),
            status,
            note: String::new(),
        }
    }

    fn day(day: u32) -> DateTime<Utc> {
        price(0, day, PriceStatus::Listed).effective_from
    }

    #[test]
    fn every_row_of_the_data_file_is_read_and_names_a_legal_type() {
        let rows = include_str!("../data/prices.csv").lines().filter(|line| line.starts_with("ml.")).count();
        assert_eq!(catalog().len(), rows);
        for row in catalog() {
            assert!(crate::catalog::find(&row.instance_type).is_some(), "{}", row.instance_type);
            assert!(row.usd_per_hour > Decimal::ZERO);
            assert_eq!(row.status == PriceStatus::Estimated, row.usd_per_hour_max.is_some(), "{}", row.instance_type);
        }
    }

    #[test]
    fn a_price_nobody_has_published_is_absent() {
        assert!(!catalog().iter().any(|row| row.instance_type == "ml.p5e.48xlarge"));
    }

    #[test]
    fn the_price_in_force_is_the_latest_begun_and_negotiated_wins() {
        let prices = [
            price(90, 1, PriceStatus::Listed),
            price(60, 10, PriceStatus::Listed),
            price(50, 5, PriceStatus::Negotiated),
        ];
        let at = |d| in_force(&prices, "ml.p5.48xlarge", "us-east-1", day(d)).map(|p| p.usd_per_hour.0);
        assert_eq!(at(2), Some(Decimal::from(90)));
        assert_eq!(at(6), Some(Decimal::from(50)));
        assert_eq!(at(20), Some(Decimal::from(50)));
        assert!(in_force(&prices, "ml.p5.48xlarge", "eu-west-1", day(20)).is_none());
    }

    #[test]
    fn a_reservation_assumes_the_highest_price_over_the_run() {
        let prices = [price(60, 1, PriceStatus::Listed), price(75, 10, PriceStatus::Listed)];
        assert_eq!(ceiling_over(&prices, &prices[0], day(2), day(9)), Usd(Decimal::from(60)));
        assert_eq!(ceiling_over(&prices, &prices[0], day(2), day(11)), Usd(Decimal::from(75)));
    }
}
