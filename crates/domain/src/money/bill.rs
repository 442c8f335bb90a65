//! Computes a job's bill: its seconds at the price in force while they ran, and its volume on types
//! without local NVMe. Each line names its price. Upper bounds are in [`crate::money::cost`];
//! nothing is written here.

use chrono::{DateTime, Datelike, Months, NaiveDate, NaiveTime, TimeDelta, Utc};
use rust_decimal::Decimal;

use crate::catalog;
use crate::ids::PriceId;
use crate::money::price::{Component, Price, PriceStatus, Rate, in_force, rate_in_force};
use crate::money::{Usd, cost};
use crate::sagemaker::kind::JobKind;
use crate::sagemaker::observed::{ran, seconds_between};

/// Usage to bill: instances of one type over a period.
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    /// The kind of job that used them.
    pub kind: JobKind,
    pub instance_type: String,
    pub region: String,
    pub count: u32,
    pub from: DateTime<Utc>,
    pub until: DateTime<Utc>,
    /// Periods without instances, while spot waits for capacity.
    pub waits: Vec<(DateTime<Utc>, DateTime<Utc>)>,
    /// Per instance. With managed spot, less than the time it ran.
    pub billed_seconds: u64,
    /// Per instance: how long its volume existed.
    pub run_seconds: u64,
    /// As requested; see [`billed_gb`].
    pub volume_gb: u32,
}

/// The price agreed on at planning time, used when no price is known any more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreed {
    pub price_id: PriceId,
    pub usd_per_hour: Usd,
    pub estimated: bool,
}

/// One line of a bill.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub component: Component,
    pub usd: Usd,
    /// Instance-seconds, or GB-seconds for storage.
    pub quantity: u64,
    pub price_id: PriceId,
    /// The price is an estimate.
    pub estimated: bool,
    pub from: DateTime<Utc>,
    pub until: DateTime<Utc>,
}

/// Billed GB of a volume: none on types whose local NVMe replaces it. A bill of December 2023
/// confirms this: 48.2 hours of types without NVMe and 17.7 hours of types with it, at 30 GB, were
/// billed as 1.942 GB-months (aws-samples/sagemaker-ssh-helper, Sample_Costs.md).
pub fn billed_gb(instance_type: &str, volume_gb: u32) -> u32 {
    let has_nvme = catalog::find(instance_type).is_some_and(|found| found.nvme_gb > 0);
    if has_nvme { 0 } else { volume_gb }
}

/// The bill for some usage: instances by price in chronological order, then storage.
pub fn lines(usage: &Usage, prices: &[Price], rates: &[Rate], agreed: Agreed) -> Vec<Line> {
    let mut lines = instances(usage, prices, agreed);
    lines.extend(storage(usage, rates));
    lines
}

fn instances(usage: &Usage, prices: &[Price], agreed: Agreed) -> Vec<Line> {
    let own =
        |price: &&Price| price.instance_type == usage.instance_type && price.region == usage.region;
    let cuts = prices
        .iter()
        .filter(own)
        .map(|price| price.effective_from)
        .collect();
    let mut lines: Vec<Line> = Vec::new();
    for piece in pieces(usage, cuts, usage.billed_seconds) {
        let price = in_force(prices, &usage.instance_type, &usage.region, piece.from);
        let rate = price.map_or(agreed, |price| Agreed {
            price_id: price.id,
            usd_per_hour: price.usd_per_hour,
            estimated: price.status == PriceStatus::Estimated,
        });
        match lines
            .last_mut()
            .filter(|last| last.price_id == rate.price_id)
        {
            // The price does not change at this cut: extend the line.
            Some(last) => {
                last.quantity += piece.seconds * u64::from(usage.count);
                last.usd = cost::training(last.quantity, 1, rate.usd_per_hour);
                last.until = piece.until;
            }
            None => lines.push(Line {
                component: usage.kind.component(),
                usd: cost::training(piece.seconds, usage.count, rate.usd_per_hour),
                quantity: piece.seconds * u64::from(usage.count),
                price_id: rate.price_id,
                estimated: rate.estimated,
                from: piece.from,
                until: piece.until,
            }),
        }
    }
    lines
}

/// Bills storage. A GB-month is as long as its calendar month.
fn storage(usage: &Usage, rates: &[Rate]) -> Vec<Line> {
    let gb = u64::from(billed_gb(&usage.instance_type, usage.volume_gb)) * u64::from(usage.count);
    if gb == 0 {
        return Vec::new();
    }
    let own = |rate: &&Rate| rate.component == Component::Storage && rate.region == usage.region;
    let mut cuts: Vec<DateTime<Utc>> = rates
        .iter()
        .filter(own)
        .map(|rate| rate.effective_from)
        .collect();
    let mut month = next_month(usage.from);
    while month < usage.until {
        cuts.push(month);
        month = next_month(month);
    }
    let mut lines: Vec<Line> = Vec::new();
    for piece in pieces(usage, cuts, usage.run_seconds) {
        // Without a rate the cost is unknown: omit the line rather than claim zero.
        let Some(rate) = rate_in_force(rates, Component::Storage, &usage.region, piece.from) else {
            continue;
        };
        let quantity = gb * piece.seconds;
        let share = Decimal::from(quantity) / Decimal::from(month_seconds(piece.from));
        lines.push(Line {
            component: Component::Storage,
            usd: (rate.usd * share).rounded(),
            quantity,
            price_id: rate.id,
            estimated: rate.status == PriceStatus::Estimated,
            from: piece.from,
            until: piece.until,
        });
    }
    lines
}

/// The most that volumes can cost over `seconds`: in the shortest month, at the highest rate.
pub fn worst_case_storage(gb: u32, count: u32, seconds: u64, ceiling: Usd) -> Usd {
    let share =
        Decimal::from(u64::from(gb) * u64::from(count) * seconds) / Decimal::from(28u64 * 86_400);
    (ceiling * share).rounded()
}

struct Piece {
    from: DateTime<Utc>,
    until: DateTime<Utc>,
    seconds: u64,
}

impl Usage {
    fn ran_until(&self, at: DateTime<Utc>) -> u64 {
        ran(self.from, at.min(self.until), &self.waits)
    }
}

/// Splits usage at the given moments. Its seconds are divided in proportion to the time with
/// instances, and add up to the total.
fn pieces(usage: &Usage, mut cuts: Vec<DateTime<Utc>>, seconds: u64) -> Vec<Piece> {
    let (from, until) = (usage.from, usage.until.max(usage.from));
    cuts.retain(|cut| from < *cut && *cut < until);
    cuts.push(until);
    cuts.sort_unstable();
    cuts.dedup();
    let span = u128::from(usage.ran_until(until));
    let mut pieces: Vec<Piece> = Vec::with_capacity(cuts.len());
    let (mut begun, mut counted) = (from, 0);
    for cut in cuts {
        let passed = u128::from(usage.ran_until(cut));
        let share = (u128::from(seconds) * passed).checked_div(span);
        let share = share
            .and_then(|share| u64::try_from(share).ok())
            .unwrap_or(seconds);
        pieces.push(Piece {
            from: begun,
            until: cut,
            seconds: share - counted,
        });
        (begun, counted) = (cut, share);
    }
    pieces
}

fn next_month(at: DateTime<Utc>) -> DateTime<Utc> {
    let first = at
        .date_naive()
        .with_day(1)
        .and_then(|first| first.checked_add_months(Months::new(1)));
    first
        .unwrap_or(NaiveDate::MAX)
        .and_time(NaiveTime::MIN)
        .and_utc()
}

fn month_seconds(at: DateTime<Utc>) -> u64 {
    let first = at
        .date_naive()
        .with_day(1)
        .unwrap_or_default()
        .and_time(NaiveTime::MIN)
        .and_utc();
    seconds_between(first, next_month(at))
        .max(u64::try_from(TimeDelta::days(28).num_seconds()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn price(id: u128, usd: i64, from: &str) -> Price {
        Price::listed(
            PriceId(Uuid::from_u128(id)),
            "ml.p3.2xlarge",
            "eu-west-1",
            Usd(Decimal::from(usd)),
            at(from),
        )
    }

    fn agreed() -> Agreed {
        Agreed {
            price_id: PriceId(Uuid::from_u128(99)),
            usd_per_hour: Usd(Decimal::from(7)),
            estimated: false,
        }
    }

    fn rate(usd: Decimal) -> Rate {
        Rate {
            id: PriceId(Uuid::from_u128(50)),
            component: Component::Storage,
            region: "eu-west-1".into(),
            usd: Usd(usd),
            usd_max: None,
            effective_from: at("2023-01-01T00:00:00Z"),
            confirmed_at: at("2023-01-01T00:00:00Z"),
            source: "test".into(),
            status: PriceStatus::Listed,
        }
    }

    fn usage(instance_type: &str, from: &str, hours: i64) -> Usage {
        let seconds = u64::try_from(hours * 3600).unwrap();
        Usage {
            kind: JobKind::Training,
            instance_type: instance_type.into(),
            region: "eu-west-1".into(),
            count: 1,
            from: at(from),
            until: at(from) + TimeDelta::hours(hours),
            waits: vec![],
            billed_seconds: seconds,
            run_seconds: seconds,
            volume_gb: 30,
        }
    }

    #[test]
    fn a_job_over_a_change_of_price_costs_each_part_at_its_own() {
        let prices = [
            price(1, 10, "2025-01-01T00:00:00Z"),
            price(2, 4, "2025-06-01T00:00:00Z"),
        ];
        let bill = instances(
            &usage("ml.p3.2xlarge", "2025-05-31T21:00:00Z", 8),
            &prices,
            agreed(),
        );
        let parts: Vec<_> = bill
            .iter()
            .map(|line| {
                (
                    line.price_id.0.as_u128(),
                    line.quantity,
                    line.usd.to_string(),
                )
            })
            .collect();
        assert_eq!(
            parts,
            [
                (1, 10_800, "$30.00".to_owned()),
                (2, 18_000, "$20.00".to_owned())
            ]
        );
    }

    /// One hour before the price change, twenty hours of waiting, one hour after.
    #[test]
    fn waiting_for_capacity_is_not_use() {
        let prices = [
            price(1, 10, "2025-01-01T00:00:00Z"),
            price(2, 4, "2025-06-01T00:00:00Z"),
        ];
        let mut spot = usage("ml.p3.2xlarge", "2025-05-31T23:00:00Z", 22);
        spot.waits = vec![(at("2025-06-01T00:00:00Z"), at("2025-06-01T20:00:00Z"))];
        spot.billed_seconds = 3600;
        let bill = instances(&spot, &prices, agreed());
        assert_eq!(
            bill.iter().map(|line| line.quantity).collect::<Vec<_>>(),
            [1800, 1800]
        );
        assert_eq!(spot.ran_until(at("2025-06-01T10:00:00Z")), 3600);
    }

    #[test]
    fn where_no_price_is_known_it_is_the_agreed_one() {
        let bill = instances(
            &usage("ml.p3.2xlarge", "2025-05-31T21:00:00Z", 2),
            &[],
            agreed(),
        );
        assert_eq!(
            (bill.len(), bill[0].usd.to_string()),
            (1, "$14.00".to_owned())
        );
    }

    /// Lines of a real bill of December 2023: 48.154 hours at 30 GB are 1.942 GB-months, $0.30;
    /// 167.301 hours are 6.746 GB-months, $1.04.
    #[test]
    fn storage_is_billed_as_on_a_real_bill() {
        for (seconds, gb_months, usd) in [(173_354, 1.942, "$0.30"), (602_284, 6.746, "$1.04")] {
            let mut used = usage("ml.m5.xlarge", "2023-12-01T00:00:00Z", 300);
            used.run_seconds = seconds;
            let bill = storage(&used, &[rate(Decimal::new(154, 3))]);
            let total: Usd = bill.iter().map(|line| line.usd).sum();
            assert_eq!(total.to_string(), usd);
            #[expect(clippy::cast_precision_loss, reason = "a test")]
            let months = bill[0].quantity as f64 / (31.0 * 86_400.0);
            assert!((months - gb_months).abs() < 0.001, "{months}");
        }
        // Local NVMe replaces the volume: nothing is billed.
        assert!(
            storage(
                &usage("ml.g5.xlarge", "2023-12-01T00:00:00Z", 300),
                &[rate(Decimal::ONE)]
            )
            .is_empty()
        );
    }

    proptest! {
        /// However usage is split, nothing is billed twice and nothing is lost.
        #[test]
        fn pieces_add_up(
            span in 0i64..2_000_000,
            cuts in prop::collection::vec(-500_000i64..2_500_000, 0..20),
            wait in (0i64..2_000_000, 0i64..2_000_000),
            seconds in 0u64..3_000_000,
        ) {
            let from = at("2025-05-31T21:00:00Z");
            let moment = |offset: i64| from + TimeDelta::seconds(offset);
            let cuts = cuts.into_iter().map(moment).collect();
            let waits = vec![(moment(wait.0), moment(wait.0 + wait.1))];
            let used = Usage { until: moment(span), waits, ..usage("ml.p3.2xlarge", "2025-05-31T21:00:00Z", 0) };
            let pieces = pieces(&used, cuts, seconds);
            prop_assert_eq!(pieces.iter().map(|piece| piece.seconds).sum::<u64>(), seconds);
            prop_assert!(pieces.windows(2).all(|pair| pair[0].until == pair[1].from));
            prop_assert_eq!((pieces[0].from, pieces[pieces.len() - 1].until), (from, from + TimeDelta::seconds(span)));
        }
    }
}
