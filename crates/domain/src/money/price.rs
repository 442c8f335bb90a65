//! Prices: effective-dated, with source and status. A missing price is unknown and never guessed;
//! an EC2 price times an uplift is allowed only if marked `estimated`. Spot has no price: its
//! savings are observed.

use std::sync::LazyLock;

use chrono::{DateTime, NaiveDate, Utc};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::embedded;
use crate::ids::PriceId;
use crate::money::Usd;
use crate::sagemaker::kind::JobKind;

/// How far a price can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PriceStatus {
    /// Read from AWS's list for exactly this component.
    Listed,
    /// Agreed with AWS or set by the user.
    Negotiated,
    /// Read from AWS's list for another component that has the same price wherever both are known.
    AssumedSameAs,
    /// Found in a single, unconfirmed source.
    Unverified,
    /// EC2's price times the measured uplift.
    Estimated,
}

impl PriceStatus {
    pub const ALL: [Self; 5] = [
        Self::Listed,
        Self::Negotiated,
        Self::AssumedSameAs,
        Self::Unverified,
        Self::Estimated,
    ];

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

/// What a price applies to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// USD per instance-hour; a warm pool costs the same (bill of December 2023: ml.m5.xlarge,
    /// ml.g4dn.xlarge).
    #[default]
    Training,
    /// USD per instance-hour of a processing job. Where AWS's list has been read; elsewhere the rate of
    /// training stands for it: ml.m5.xlarge costs $0.23 as both (us-east-1, Price List, 2026).
    Processing,
    /// USD per instance-hour of a batch transform job; as for processing.
    Transform,
    /// USD per instance-hour of an endpoint; as for processing: ml.m5.large costs $0.115 as both (us-east-1, Price
    /// List, 2026).
    Hosting,
    /// USD per GB-month of the volume, on types without local NVMe.
    Storage,
    /// CloudWatch GetMetricData: USD per 1,000 metrics requested.
    Cloudwatch,
}

impl Component {
    pub const ALL: [Self; 6] = [
        Self::Training,
        Self::Processing,
        Self::Transform,
        Self::Hosting,
        Self::Storage,
        Self::Cloudwatch,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Processing => "processing",
            Self::Transform => "transform",
            Self::Hosting => "hosting",
            Self::Storage => "storage",
            Self::Cloudwatch => "cloudwatch",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|component| component.as_str() == text)
    }

    /// Whether it is the price of an instance-hour.
    pub fn is_of_instances(self) -> bool {
        match self {
            Self::Training | Self::Processing | Self::Transform | Self::Hosting => true,
            Self::Storage | Self::Cloudwatch => false,
        }
    }
}

/// USD per instance-hour of SageMaker training, in one region, effective from one date.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Price {
    pub id: PriceId,
    pub instance_type: String,
    pub region: String,
    pub usd_per_hour: Usd,
    /// Upper bound of the price where `usd_per_hour` is an estimate; it bounds reservations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_hour_max: Option<Usd>,
    pub effective_from: DateTime<Utc>,
    pub source: String,
    pub status: PriceStatus,
    pub note: String,
    /// When its source last confirmed it; the effective date when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed_at: Option<DateTime<Utc>>,
}

/// A rate that does not depend on an instance type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    pub id: PriceId,
    pub component: Component,
    /// `*` means every region.
    pub region: String,
    /// Per GB-month of storage, or per 1,000 metrics requested.
    pub usd: Usd,
    /// Upper bound where `usd` is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_max: Option<Usd>,
    pub effective_from: DateTime<Utc>,
    pub confirmed_at: DateTime<Utc>,
    pub source: String,
    pub status: PriceStatus,
}

impl Rate {
    /// The rate that a reservation must assume.
    pub fn ceiling(&self) -> Usd {
        self.usd_max.map_or(self.usd, |max| max.max(self.usd))
    }
}

impl Price {
    /// A listed price, for tests.
    #[cfg(test)]
    pub(crate) fn listed(
        id: PriceId,
        kind: &str,
        region: &str,
        usd_per_hour: Usd,
        from: DateTime<Utc>,
    ) -> Self {
        Self {
            id,
            instance_type: kind.into(),
            region: region.into(),
            usd_per_hour,
            usd_per_hour_max: None,
            effective_from: from,
            source: "test".into(),
            status: PriceStatus::Listed,
            note: String::new(),
            confirmed_at: None,
        }
    }

    /// The price that a reservation must assume.
    pub fn ceiling(&self) -> Usd {
        self.usd_per_hour_max
            .map_or(self.usd_per_hour, |max| max.max(self.usd_per_hour))
    }

    /// `AWS Price List API 2026-09-24 (assumed_same_as)`: source, date and status in one cell.
    pub fn label(&self) -> String {
        format!(
            "{} {} ({})",
            self.source,
            self.effective_from.format("%Y-%m-%d"),
            self.status.as_str()
        )
    }
}

/// A price or rate from the shipped catalog or AWS's list, before it has an id.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPrice {
    pub component: Component,
    /// Set for training only.
    pub instance_type: Option<String>,
    pub region: String,
    pub usd: Decimal,
    pub usd_max: Option<Decimal>,
    pub effective_from: DateTime<Utc>,
    pub confirmed_at: DateTime<Utc>,
    pub source: String,
    pub status: PriceStatus,
    pub note: String,
}

#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    component: Component,
    instance_type: Option<String>,
    region: String,
    #[serde(alias = "usd_per_hour")]
    usd: Decimal,
    #[serde(alias = "usd_per_hour_max")]
    usd_max: Option<Decimal>,
    effective_from: NaiveDate,
    source: String,
    status: PriceStatus,
    #[serde(default)]
    note: String,
}

impl From<Row> for NewPrice {
    fn from(row: Row) -> Self {
        let effective_from = row
            .effective_from
            .and_time(chrono::NaiveTime::MIN)
            .and_utc();
        Self {
            component: row.component,
            instance_type: row.instance_type,
            region: row.region,
            usd: row.usd,
            usd_max: row.usd_max,
            effective_from,
            confirmed_at: effective_from,
            source: row.source,
            status: row.status,
            note: row.note,
        }
    }
}

static CATALOG: LazyLock<Vec<NewPrice>> = LazyLock::new(|| {
    let mut rows: Vec<Row> = embedded::csv("prices.csv", include_str!("../../data/prices.csv"));
    rows.extend(embedded::csv::<Row>(
        "rates.csv",
        include_str!("../../data/rates.csv"),
    ));
    rows.into_iter().map(NewPrice::from).collect()
});

/// The prices and rates shipped with the product.
pub fn catalog() -> &'static [NewPrice] {
    &CATALOG
}

/// The shipped prices and rates as a database without any others would hold them; their ids are
/// nil.
pub fn shipped() -> (Vec<Price>, Vec<Rate>) {
    let id = PriceId(uuid::Uuid::nil());
    let price = |row: &NewPrice| {
        Some(Price {
            id,
            instance_type: row.instance_type.clone()?,
            region: row.region.clone(),
            usd_per_hour: Usd(row.usd),
            usd_per_hour_max: row.usd_max.map(Usd),
            effective_from: row.effective_from,
            source: row.source.clone(),
            status: row.status,
            note: row.note.clone(),
            confirmed_at: None,
        })
    };
    let rate = |row: &NewPrice| {
        row.instance_type.is_none().then(|| Rate {
            id,
            component: row.component,
            region: row.region.clone(),
            usd: Usd(row.usd),
            usd_max: row.usd_max.map(Usd),
            effective_from: row.effective_from,
            confirmed_at: row.confirmed_at,
            source: row.source.clone(),
            status: row.status,
        })
    };
    (
        catalog().iter().filter_map(price).collect(),
        catalog().iter().filter_map(rate).collect(),
    )
}

/// The price in force at a moment, among those already effective. Negotiated prices take
/// precedence, the latest effective one first. Otherwise, the price whose source was seen last
/// wins: a price that AWS lists today holds from the date it names, over whatever was assumed for
/// that date before.
pub fn in_force(
    prices: &[Price],
    instance_type: &str,
    region: &str,
    at: DateTime<Utc>,
) -> Option<Price> {
    let standing = |price: &&Price| match price.status {
        PriceStatus::Negotiated => (true, price.effective_from, price.confirmed_at),
        _ => (
            false,
            price.confirmed_at.unwrap_or(price.effective_from),
            Some(price.effective_from),
        ),
    };
    prices
        .iter()
        .filter(|price| price.instance_type == instance_type && price.region == region)
        .filter(|price| price.effective_from <= at)
        .max_by_key(standing)
        .cloned()
}

/// The prices in force in a region, one per instance type.
pub fn all_in_force(prices: &[Price], region: &str, at: DateTime<Utc>) -> Vec<Price> {
    let mut types: Vec<&str> = prices
        .iter()
        .map(|price| price.instance_type.as_str())
        .collect();
    types.sort_unstable();
    types.dedup();
    types
        .into_iter()
        .filter_map(|kind| in_force(prices, kind, region, at))
        .collect()
}

/// The highest non-negotiated price of a type in force at a moment or at any later one.
pub fn highest_list_price(
    prices: &[Price],
    instance_type: &str,
    region: &str,
    from: DateTime<Utc>,
) -> Option<Usd> {
    let lists: Vec<Price> = prices
        .iter()
        .filter(|price| price.instance_type == instance_type && price.region == region)
        .filter(|price| price.status != PriceStatus::Negotiated)
        .cloned()
        .collect();
    let current = in_force(&lists, instance_type, region, from);
    let later = lists.iter().filter(|price| price.effective_from > from);
    later.chain(&current).map(|price| price.usd_per_hour).max()
}

/// The rate in force at a moment: among those already effective, the one whose source was seen
/// last.
pub fn rate_in_force<'a>(
    rates: &'a [Rate],
    component: Component,
    region: &str,
    at: DateTime<Utc>,
) -> Option<&'a Rate> {
    rates
        .iter()
        .filter(|rate| rate.component == component && [region, "*"].contains(&rate.region.as_str()))
        .filter(|rate| rate.effective_from <= at)
        .max_by_key(|rate| (rate.confirmed_at, rate.effective_from))
}

/// The rate per GB-month that a reservation must assume: the highest known for the region, else the
/// highest known anywhere.
pub fn storage_ceiling(rates: &[Rate], region: &str) -> Usd {
    let storage = || {
        rates
            .iter()
            .filter(|rate| rate.component == Component::Storage)
    };
    let own = storage()
        .filter(|rate| rate.region == region)
        .map(Rate::ceiling)
        .max();
    own.or_else(|| storage().map(Rate::ceiling).max())
        .unwrap_or(Usd::ZERO)
}

/// The highest ceiling in force at any moment of a run: the price at its start and every change
/// that takes effect before its end.
pub fn ceiling_over(
    prices: &[Price],
    current: &Price,
    from: DateTime<Utc>,
    until: DateTime<Utc>,
) -> Usd {
    prices
        .iter()
        .filter(|price| {
            price.instance_type == current.instance_type && price.region == current.region
        })
        .filter(|price| price.effective_from > from && price.effective_from <= until)
        .map(Price::ceiling)
        .fold(current.ceiling(), Ord::max)
}

impl JobKind {
    /// What its instances are billed as.
    pub fn component(self) -> Component {
        match self {
            Self::Training | Self::Tuning => Component::Training,
            Self::Processing => Component::Processing,
            Self::Transform => Component::Transform,
            Self::Endpoint => Component::Hosting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(usd: i64, day: u32, status: PriceStatus) -> Price {
        let from = NaiveDate::from_ymd_opt(2026, 1, day)
            .unwrap()
            .and_time(chrono::NaiveTime::MIN)
            .and_utc();
        let id = PriceId(uuid::Uuid::from_u128(1));
        Price {
            status,
            ..Price::listed(
                id,
                "ml.p5.48xlarge",
                "us-east-1",
                Usd(Decimal::from(usd)),
                from,
            )
        }
    }

    #[test]
    fn the_highest_list_price_is_of_the_time_that_is_asked_for() {
        let prices = [
            price(100, 1, PriceStatus::Listed),
            price(60, 10, PriceStatus::Listed),
            price(70, 20, PriceStatus::AssumedSameAs),
            price(500, 2, PriceStatus::Negotiated),
        ];
        let highest = |from| {
            highest_list_price(&prices, "ml.p5.48xlarge", "us-east-1", from).map(|usd| usd.0)
        };
        assert_eq!(
            highest(day(5)),
            Some(Decimal::from(100)),
            "it holds on that day"
        );
        assert_eq!(
            highest(day(12)),
            Some(Decimal::from(70)),
            "a later one is higher"
        );
        assert_eq!(highest(day(25)), Some(Decimal::from(70)));
        assert_eq!(
            highest_list_price(&prices, "ml.p5.48xlarge", "eu-west-1", day(5)),
            None
        );
    }

    fn day(day: u32) -> DateTime<Utc> {
        price(0, day, PriceStatus::Listed).effective_from
    }

    #[test]
    fn every_row_of_the_data_file_is_read_and_names_a_legal_type() {
        let lines = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count() - 1;
        let rows = lines(include_str!("../../data/prices.csv"))
            + lines(include_str!("../../data/rates.csv"));
        assert_eq!(catalog().len(), rows);
        for row in catalog() {
            let is_known = row
                .instance_type
                .as_deref()
                .is_some_and(|kind| crate::catalog::find(kind).is_some());
            assert_eq!(is_known, row.component == Component::Training, "{row:?}");
            assert!(row.usd > Decimal::ZERO);
            assert_eq!(
                row.status == PriceStatus::Estimated,
                row.usd_max.is_some(),
                "{row:?}"
            );
        }
    }

    #[test]
    fn a_price_nobody_has_published_is_absent() {
        assert!(
            !catalog()
                .iter()
                .any(|row| row.instance_type.as_deref() == Some("ml.p5e.48xlarge"))
        );
    }

    #[test]
    fn the_price_in_force_is_the_latest_begun_and_negotiated_wins() {
        let prices = [
            price(90, 1, PriceStatus::Listed),
            price(60, 10, PriceStatus::Listed),
            price(50, 5, PriceStatus::Negotiated),
        ];
        let at =
            |d| in_force(&prices, "ml.p5.48xlarge", "us-east-1", day(d)).map(|p| p.usd_per_hour.0);
        assert_eq!(at(2), Some(Decimal::from(90)));
        assert_eq!(at(6), Some(Decimal::from(50)));
        assert_eq!(at(20), Some(Decimal::from(50)));
        assert!(in_force(&prices, "ml.p5.48xlarge", "eu-west-1", day(20)).is_none());
    }

    #[test]
    fn what_is_listed_today_goes_before_what_was_assumed_of_that_day() {
        let assumed = price(70, 20, PriceStatus::AssumedSameAs);
        let listed = Price {
            confirmed_at: Some(day(25)),
            ..price(60, 5, PriceStatus::Listed)
        };
        let older = Price {
            confirmed_at: Some(day(6)),
            ..price(90, 1, PriceStatus::Listed)
        };
        let prices = [assumed, listed, older];
        let at =
            |d| in_force(&prices, "ml.p5.48xlarge", "us-east-1", day(d)).map(|p| p.usd_per_hour.0);
        assert_eq!(
            [at(2), at(5), at(22)],
            [90, 60, 60].map(|usd| Some(Decimal::from(usd)))
        );
    }

    #[test]
    fn a_reservation_assumes_the_highest_price_over_the_run() {
        let prices = [
            price(60, 1, PriceStatus::Listed),
            price(75, 10, PriceStatus::Listed),
        ];
        assert_eq!(
            ceiling_over(&prices, &prices[0], day(2), day(9)),
            Usd(Decimal::from(60))
        );
        assert_eq!(
            ceiling_over(&prices, &prices[0], day(2), day(11)),
            Usd(Decimal::from(75))
        );
    }
}
