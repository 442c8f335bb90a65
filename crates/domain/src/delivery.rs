//! Deliveries of webhooks and commit statuses: when one is tried again, and when its receiver is given up.

use chrono::{DateTime, TimeDelta, Utc};

/// Seconds from one try to the next; they add up to a day (Standard Webhooks 1.0.0 has about the same).
const WAITS: [i64; 9] = [5, 300, 1800, 7200, 10_800, 14_400, 16_200, 18_000, 17_700];
/// Longest Retry-After that is followed, seconds.
const RETRY_AFTER_MAX: u64 = 14_400;
/// Nothing has arrived for so long: the endpoint is disabled.
const GIVEN_UP_AFTER: TimeDelta = TimeDelta::days(3);
/// Its owner wants no more of them (Standard Webhooks).
const GONE: u16 = 410;

named! {
    /// What has become of a delivery.
    DeliveryState {
        /// It is tried, or tried again.
        Pending = "pending",
        Delivered = "delivered",
        /// It was tried for a day.
        Failed = "failed",
    }
}

/// What comes after a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextTry {
    Delivered,
    Again { at: DateTime<Utc> },
    Failed,
}

/// What came of a try: the status of the answer, if there was one, and its Retry-After.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TryOutcome {
    pub status: Option<u16>,
    pub retry_after_seconds: Option<u64>,
}

/// From 0 to 1, the same for each try of a delivery, by its id: deliveries that failed together are not tried again
/// together.
pub fn luck(id: &[u8]) -> f64 {
    let sum = id
        .iter()
        .fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
    f64::from(sum) / 255.0
}

/// What comes after the try of that number, from 1. `luck`, 0 to 1, spreads the retries of many deliveries.
pub fn next(tried: TryOutcome, number: u32, luck: f64, now: DateTime<Utc>) -> NextTry {
    match tried.status {
        Some(200..=299) => return NextTry::Delivered,
        Some(GONE) => return NextTry::Failed,
        _ => {}
    }
    let index = usize::try_from(number)
        .unwrap_or(usize::MAX)
        .saturating_sub(1);
    let Some(wait) = WAITS.get(index) else {
        return NextTry::Failed;
    };
    let asked = tried.retry_after_seconds.unwrap_or(0).min(RETRY_AFTER_MAX);
    let asked = TimeDelta::seconds(i64::try_from(asked).unwrap_or(0));
    let spread = TimeDelta::milliseconds(wait * 1000 / 10).as_seconds_f64() * luck.clamp(0.0, 1.0);
    let spread = TimeDelta::try_milliseconds(crate::number::whole(spread * 1000.0).unwrap_or(0));
    let wait = TimeDelta::seconds(*wait) + spread.unwrap_or_default();
    NextTry::Again {
        at: now + wait.max(asked),
    }
}

/// Why an endpoint is called no more; `None` if it goes on. One failure after a quiet time is no reason: a delivery must
/// have been tried to its end.
pub fn given_up(
    tried: TryOutcome,
    next: NextTry,
    failing_since: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Option<String> {
    if tried.status == Some(GONE) {
        return Some("it answered 410 Gone: its owner wants no more".to_owned());
    }
    let since = failing_since.filter(|since| now - *since >= GIVEN_UP_AFTER)?;
    (next == NextTry::Failed).then(|| {
        format!(
            "nothing has arrived since {}",
            since.format("%Y-%m-%d %H:%M UTC")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    fn tried(status: u16) -> TryOutcome {
        TryOutcome {
            status: Some(status),
            retry_after_seconds: None,
        }
    }

    #[test]
    fn a_delivery_is_tried_for_a_day_and_then_given_up() {
        let (mut at, mut number) = (now(), 1);
        while let NextTry::Again { at: next_at } = next(tried(500), number, 0.0, at) {
            assert!(next_at > at);
            (at, number) = (next_at, number + 1);
        }
        assert_eq!(number, 10);
        assert!(
            (at - now() - TimeDelta::days(1)).abs() < TimeDelta::minutes(10),
            "{}",
            at - now()
        );
    }

    #[test]
    fn only_a_2xx_has_arrived() {
        for status in [200, 202, 204, 299] {
            assert_eq!(next(tried(status), 1, 0.5, now()), NextTry::Delivered);
        }
        for status in [100, 301, 307, 400, 401, 404, 429, 500, 503] {
            assert!(
                matches!(next(tried(status), 1, 0.5, now()), NextTry::Again { .. }),
                "{status}"
            );
        }
        assert_eq!(next(tried(410), 1, 0.5, now()), NextTry::Failed);
        let asked = TryOutcome {
            status: Some(429),
            retry_after_seconds: Some(3600),
        };
        assert_eq!(
            next(asked, 1, 0.0, now()),
            NextTry::Again {
                at: now() + TimeDelta::hours(1)
            }
        );
        let for_ever = TryOutcome {
            status: Some(429),
            retry_after_seconds: Some(u64::MAX),
        };
        assert_eq!(
            next(for_ever, 1, 0.0, now()),
            NextTry::Again {
                at: now() + TimeDelta::hours(4)
            }
        );
    }

    #[test]
    fn an_endpoint_where_nothing_arrives_is_given_up() {
        let after = |status, next, days: Option<i64>| {
            let since = days.map(|days| now() - TimeDelta::days(days));
            given_up(tried(status), next, since, now())
        };
        assert_eq!(after(500, NextTry::Failed, None), None);
        assert_eq!(after(500, NextTry::Failed, Some(2)), None);
        assert_eq!(after(500, NextTry::Again { at: now() }, Some(3)), None);
        assert!(after(500, NextTry::Failed, Some(3)).is_some());
        assert!(after(410, NextTry::Failed, None).is_some());
    }
}
