//! The region's own bill: integer micro-dollars and its own rate card. Deliberately separate from
//! the product's arithmetic, because the ledger is judged against it.

use std::collections::BTreeMap;

use bakeoff_domain::embedded;
use chrono::{DateTime, Datelike, Months, NaiveDate, NaiveTime, Utc};

/// Price of training volumes, micro-dollars per GB-month.
pub(crate) const MICRO_USD_PER_GB_MONTH: i64 = 140_000;

/// A rate that applies from a moment on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) effective_from: DateTime<Utc>,
    pub(crate) micro_usd: i64,
}

/// What this account pays per instance-hour of each type, with its history.
#[derive(Debug)]
pub(crate) struct RateCard {
    by_type: BTreeMap<String, Vec<Rate>>,
}

/// A span of billed time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) from: DateTime<Utc>,
    pub(crate) until: DateTime<Utc>,
}

impl Span {
    /// As whoever reads the API counts them: times are told in milliseconds, and what is told is billed.
    pub(crate) fn seconds(self) -> i64 {
        let milliseconds = self.until.timestamp_millis() - self.from.timestamp_millis();
        (milliseconds / 1000).max(0)
    }
}

impl RateCard {
    pub(crate) fn new() -> Self {
        let long_ago = NaiveDate::from_ymd_opt(2020, 1, 1)
            .unwrap_or_default()
            .and_time(NaiveTime::MIN)
            .and_utc();
        let rows: Vec<(String, i64)> =
            embedded::csv("rate-card.csv", include_str!("../../data/rate-card.csv"));
        let rates = rows.into_iter().map(|(name, micro_usd)| {
            (
                name,
                vec![Rate {
                    effective_from: long_ago,
                    micro_usd,
                }],
            )
        });
        Self {
            by_type: rates.collect(),
        }
    }

    /// Changes a price as AWS would, perhaps retroactively.
    pub(crate) fn change(&mut self, instance_type: &str, rate: Rate) {
        let rates = self.by_type.entry(instance_type.to_owned()).or_default();
        rates.push(rate);
        rates.sort_by_key(|rate| rate.effective_from);
    }

    /// The rate at a moment; of two rates from the same moment, the one added later. `None` for a
    /// type without a rate in this account.
    pub(crate) fn at(&self, instance_type: &str, moment: DateTime<Utc>) -> Option<Rate> {
        self.by_type
            .get(instance_type)?
            .iter()
            .rfind(|rate| rate.effective_from <= moment)
            .copied()
    }

    /// The newest rate in dollars; for comparison, not for bills.
    pub(crate) fn usd_per_hour(&self, instance_type: &str) -> Option<f64> {
        let rate = self.by_type.get(instance_type)?.last()?;
        Some(f64::from(u32::try_from(rate.micro_usd).ok()?) / 1e6)
    }

    pub(crate) fn types(&self) -> impl Iterator<Item = &String> {
        self.by_type.keys()
    }

    /// Micro-dollars for some spans on `count` instances, of which `billed_percent` is billed. The
    /// part at each rate is rounded half up.
    pub(crate) fn bill(
        &self,
        instance_type: &str,
        count: i64,
        spans: &[Span],
        billed_percent: i64,
    ) -> Option<i64> {
        let changes = self.by_type.get(instance_type)?;
        // Seconds at each rate, in time order.
        let mut parts: Vec<(i64, i64)> = Vec::new();
        for span in spans {
            let cuts = changes.iter().map(|rate| rate.effective_from);
            let mut edges: Vec<DateTime<Utc>> = cuts
                .filter(|cut| span.from < *cut && *cut < span.until)
                .collect();
            edges.push(span.until);
            let (mut from, mut before) = (span.from, 0);
            for edge in edges {
                let rate = self.at(instance_type, from)?.micro_usd;
                // Divide the whole seconds of the span, so that a cut within a second loses
                // nothing.
                let until_here = Span {
                    from: span.from,
                    until: edge,
                }
                .seconds();
                let seconds = until_here - before;
                before = until_here;
                match parts.last_mut().filter(|(last, _)| *last == rate) {
                    Some((_, sum)) => *sum += seconds,
                    None => parts.push((rate, seconds)),
                }
                from = edge;
            }
        }
        let (mut passed, mut counted, mut total) = (0, 0, 0);
        for (rate, seconds) in parts {
            passed += seconds;
            let billed = passed * billed_percent / 100;
            total += ((billed - counted) * count * rate * 2 + 3600) / 7200;
            counted = billed;
        }
        Some(total)
    }
}

/// Micro-dollars for volumes of `gb` on `count` instances; calendar months differ in length.
pub(crate) fn volumes(gb: i64, count: i64, spans: &[Span]) -> i64 {
    let month = |at: DateTime<Utc>| at.date_naive().with_day(1).unwrap_or_default();
    let start = |month: NaiveDate| month.and_time(NaiveTime::MIN).and_utc();
    let mut seconds: BTreeMap<NaiveDate, i64> = BTreeMap::new();
    for span in spans {
        let mut from = span.from;
        while from < span.until {
            let next = start(month(from) + Months::new(1));
            let until = next.min(span.until);
            *seconds.entry(month(from)).or_default() += Span { from, until }.seconds();
            from = until;
        }
    }
    let of_month = |(month, seconds): (NaiveDate, i64)| {
        let length = Span {
            from: start(month),
            until: start(month + Months::new(1)),
        }
        .seconds();
        (2 * gb * count * seconds * MICRO_USD_PER_GB_MONTH + length) / (2 * length)
    };
    seconds.into_iter().map(of_month).sum()
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    fn hour(from: &str) -> Span {
        let from = from.parse().unwrap();
        Span {
            from,
            until: from + TimeDelta::hours(1),
        }
    }

    #[test]
    fn an_hour_is_the_hourly_rate() {
        let mut card = RateCard::new();
        let span = hour("2026-01-01T00:00:00Z");
        assert_eq!(
            card.bill("ml.g5.12xlarge", 2, &[span], 100),
            Some(14_180_000)
        );
        assert_eq!(card.bill("ml.unheard.of", 1, &[span], 100), None);
        let middle = "2026-01-01T00:30:00Z".parse().unwrap();
        card.change(
            "ml.g5.12xlarge",
            Rate {
                effective_from: middle,
                micro_usd: 5_090_000,
            },
        );
        assert_eq!(
            card.bill("ml.g5.12xlarge", 2, &[span], 100),
            Some(12_180_000)
        );
        assert_eq!(card.bill("ml.g5.12xlarge", 2, &[span], 50), Some(6_090_000));
        let mut cut = RateCard::new();
        let within_a_second = "2026-01-01T00:30:00.5Z".parse().unwrap();
        cut.change(
            "ml.g5.12xlarge",
            Rate {
                effective_from: within_a_second,
                micro_usd: 7_090_000,
            },
        );
        assert_eq!(
            cut.bill("ml.g5.12xlarge", 2, &[span], 100),
            Some(14_180_000),
            "no second is lost at a cut"
        );
    }

    #[test]
    fn a_month_of_a_gigabyte_is_its_rate_however_long_the_month() {
        let month = |from: &str, until: &str| Span {
            from: from.parse().unwrap(),
            until: until.parse().unwrap(),
        };
        let spans = [
            month("2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"),
            month("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"),
        ];
        assert_eq!(volumes(10, 3, &spans), 2 * 30 * MICRO_USD_PER_GB_MONTH);
    }
}
