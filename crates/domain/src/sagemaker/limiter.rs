//! Limits how fast one AWS operation is called. AWS does not publish most of its request quotas, so
//! the limiter learns them: it grows exponentially until the first throttle, then follows the cubic
//! curve of TCP CUBIC (Ha, Rhee, Xu 2008; RFC 9438), counted in calls: back off by a tenth, return
//! quickly to just below the last throttled rate, stay there, and only then probe.
//!
//! Pure: it reads no clock. It runs on the domain clock, like AWS's quotas.

use chrono::{DateTime, TimeDelta, Utc};

use crate::clock::seconds;

/// Share of the rate kept after a throttle.
const KEPT: f64 = 0.9;
/// Calls after a throttle until the throttled rate is reached again.
const RECOVERY_CALLS: f64 = 400.0;
/// Growth per successful call before the first throttle.
const START_GROWTH: f64 = 0.05;
/// Tolerance: tenths of a second do not add up to exactly one token.
const ROUNDING: f64 = 1e-6;
const RATE_MAX: f64 = 10_000.0;
const RATE_MIN: f64 = 0.05;

/// A token bucket whose rate is learnt.
#[derive(Debug, Clone)]
pub struct Limiter {
    /// Calls per second.
    rate: f64,
    /// Upper limit of the learnt rate, calls per second.
    most: f64,
    tokens: f64,
    refilled_at: Option<DateTime<Utc>>,
    /// The rate at the last throttle, and calls since; `None` before the first.
    throttled: Option<(f64, f64)>,
    /// Throttles until then belong to calls already in flight, and are ignored.
    deaf_until: Option<DateTime<Utc>>,
}

impl Limiter {
    /// Starts at `rate` calls per second and learns.
    pub fn learning(rate: f64) -> Self {
        Self {
            rate,
            most: RATE_MAX,
            tokens: rate.max(1.0),
            refilled_at: None,
            throttled: None,
            deaf_until: None,
        }
    }

    /// Never faster than `rate` calls per second: for a quota that is known.
    pub fn at_most(rate: f64) -> Self {
        Self {
            most: rate,
            ..Self::learning(rate)
        }
    }

    /// Calls per second, as learnt so far.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The bucket holds one second of calls: larger bursts get throttled.
    fn depth(&self) -> f64 {
        self.rate.max(1.0)
    }

    fn refill(&mut self, now: DateTime<Utc>) {
        let last = *self.refilled_at.get_or_insert(now);
        let elapsed = (now - last).as_seconds_f64().max(0.0);
        self.tokens = (self.tokens + elapsed * self.rate).min(self.depth());
        // Continue from the new time even if the clock was stepped back: the old time may be an
        // hour away.
        self.refilled_at = Some(now);
    }

    /// Number of calls that may be sent now.
    pub fn available(&mut self, now: DateTime<Utc>) -> usize {
        self.refill(now);
        #[expect(
            clippy::as_conversions,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 10,000"
        )]
        let whole = (self.tokens + ROUNDING).max(0.0) as usize;
        whole
    }

    /// How long until a call may be sent.
    pub fn wait(&mut self, now: DateTime<Utc>) -> TimeDelta {
        self.refill(now);
        seconds((1.0 - self.tokens).max(0.0) / self.rate)
    }

    /// Takes one call from the bucket, or returns how long to wait for one.
    pub fn take(&mut self, now: DateTime<Utc>) -> Result<(), TimeDelta> {
        self.refill(now);
        if self.tokens >= 1.0 - ROUNDING {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(seconds((1.0 - self.tokens) / self.rate).max(TimeDelta::milliseconds(1)))
    }

    /// Learns from a reply.
    pub fn heard(&mut self, was_throttled: bool, now: DateTime<Utc>) {
        if was_throttled {
            let deaf = seconds(2.0 / self.rate);
            // A moment further ahead than it is ever set dates from before the clock was stepped
            // back.
            if self
                .deaf_until
                .is_some_and(|until| now < until && until - now <= deaf * 2)
            {
                return;
            }
            self.throttled = Some((self.rate, 0.0));
            self.rate = (self.rate * KEPT).max(RATE_MIN);
            self.tokens = self.tokens.min(0.0);
            self.deaf_until = Some(now + seconds(2.0 / self.rate));
            return;
        }
        match &mut self.throttled {
            None => self.rate *= 1.0 + START_GROWTH,
            Some((peak, calls)) => {
                *calls += 1.0;
                let missing = ((RECOVERY_CALLS - *calls) / RECOVERY_CALLS).powi(3);
                self.rate = *peak * (1.0 - (1.0 - KEPT) * missing);
            }
        }
        self.rate = self.rate.clamp(RATE_MIN, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region with a token bucket of its own: `quota` calls per second, bursts of five.
    fn against(quota: f64, calls: u32) -> (f64, f64) {
        let mut limiter = Limiter::learning(1.0);
        let start = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let (mut now, mut theirs, mut allowed, mut throttled) = (start, 5.0_f64, 0u32, 0u32);
        while allowed < calls {
            if let Err(wait) = limiter.take(now) {
                now += wait;
                theirs = (theirs + wait.as_seconds_f64() * quota).min(5.0);
                continue;
            }
            let ok = theirs >= 1.0;
            if ok {
                theirs -= 1.0;
                allowed += 1;
            } else {
                throttled += 1;
            }
            limiter.heard(!ok, now);
        }
        let used = f64::from(allowed) / ((now - start).as_seconds_f64() * quota);
        (used, f64::from(throttled) / f64::from(allowed + throttled))
    }

    #[test]
    fn it_finds_an_unknown_quota_and_stays_just_below_it() {
        for quota in [1.0, 5.0, 25.0] {
            let (used, throttled) = against(quota, 10_000);
            assert!(used >= 0.95, "at {quota}/s it uses only {used}");
            assert!(
                throttled <= 0.01,
                "at {quota}/s {throttled} of the calls are throttled"
            );
        }
    }

    #[test]
    fn a_known_quota_is_never_passed() {
        let mut limiter = Limiter::at_most(1.0);
        let start = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let mut sent = 0;
        for tenth in 0..1000 {
            let now = start + TimeDelta::milliseconds(tenth * 100);
            while limiter.take(now).is_ok() {
                limiter.heard(false, now);
                sent += 1;
            }
        }
        assert!(
            (99..=102).contains(&sent),
            "{sent} calls in 100 seconds at one a second"
        );
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_for_the_step_and_goes_on_from_the_new_time() {
        let mut limiter = Limiter::at_most(1.0);
        let start = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert!(limiter.take(start).is_ok());
        let stepped = start - TimeDelta::hours(1);
        assert!(limiter.take(stepped).is_err());
        assert!(
            limiter.take(stepped + TimeDelta::seconds(1)).is_ok(),
            "an hour later than the new time"
        );
    }

    #[test]
    fn a_throttle_after_a_step_back_is_heard() {
        let mut limiter = Limiter::learning(10.0);
        let start = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        limiter.heard(true, start);
        let before = limiter.rate();
        limiter.heard(true, start - TimeDelta::hours(1));
        assert!(limiter.rate() < before);
    }
}
