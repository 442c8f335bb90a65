//! The domain clock's arithmetic: virtual time runs `factor` times as fast as real time from a
//! common origin. It never reads a clock: the caller passes real time in. Outside simulation the
//! factor is 1 and the two agree.

use std::str::FromStr;

use chrono::{DateTime, TimeDelta, Utc};
use thiserror::Error;

/// Virtual origin, real origin and factor. The service and the simulated region share the same
/// values, which persist across restarts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timescale {
    pub virtual_origin: DateTime<Utc>,
    pub real_origin: DateTime<Utc>,
    pub factor: f64,
}

/// The text is not `<virtual origin>,<real origin>,<factor>` with a factor of at least 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a clock: write `<virtual origin>,<real origin>,<factor>` (RFC 3339 twice, then a number from 1 to 100000)"
)]
pub struct InvalidTimescale(pub String);

impl Timescale {
    /// Virtual time is real time.
    pub const REAL: Self = Self {
        virtual_origin: DateTime::UNIX_EPOCH,
        real_origin: DateTime::UNIX_EPOCH,
        factor: 1.0,
    };

    /// Converts real time to virtual time, to the microsecond (the resolution of Postgres).
    pub fn at(&self, real: DateTime<Utc>) -> DateTime<Utc> {
        if self.factor <= 1.0 {
            let shift = self.virtual_origin - self.real_origin;
            return truncated(real + shift);
        }
        let elapsed = (real - self.real_origin).as_seconds_f64() * self.factor;
        truncated(self.virtual_origin + seconds(elapsed))
    }

    /// How long to wait in real time for a virtual duration to pass.
    pub fn real_duration(&self, virtual_duration: TimeDelta) -> std::time::Duration {
        let real = virtual_duration.as_seconds_f64().max(0.0) / self.factor;
        std::time::Duration::from_secs_f64(real)
    }

    /// How much virtual time passes in a real duration.
    pub fn virtual_duration(&self, real_duration: std::time::Duration) -> TimeDelta {
        seconds(real_duration.as_secs_f64() * self.factor.max(1.0))
    }

    pub fn is_real(&self) -> bool {
        self.factor <= 1.0
    }
}

impl FromStr for Timescale {
    type Err = InvalidTimescale;

    fn from_str(text: &str) -> Result<Self, InvalidTimescale> {
        let parse = || {
            let mut parts = text.splitn(3, ',');
            let virtual_origin = parts.next()?.trim().parse().ok()?;
            let real_origin = parts.next()?.trim().parse().ok()?;
            let factor: f64 = parts.next()?.trim().parse().ok()?;
            (1.0..=100_000.0).contains(&factor).then_some(Self {
                virtual_origin,
                real_origin,
                factor,
            })
        };
        parse().ok_or_else(|| InvalidTimescale(text.to_owned()))
    }
}

/// Converts seconds to a duration, to the microsecond; values out of range become zero.
pub fn seconds(seconds: f64) -> TimeDelta {
    let micros = (seconds * 1e6).round();
    if !micros.is_finite() || micros.abs() >= 9e18 {
        return TimeDelta::zero();
    }
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        reason = "range checked above"
    )]
    TimeDelta::microseconds(micros as i64)
}

fn truncated(moment: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(moment.timestamp_micros()).unwrap_or(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_stretches_from_the_common_origin() {
        let scale: Timescale = "2026-01-01T00:00:00Z,2026-11-20T12:00:00Z,1000"
            .parse()
            .unwrap();
        let real = "2026-11-20T12:00:03.6Z".parse().unwrap();
        assert_eq!(
            scale.at(real),
            "2026-01-01T01:00:00Z".parse::<DateTime<Utc>>().unwrap()
        );
        assert_eq!(scale.real_duration(TimeDelta::hours(1)).as_millis(), 3600);
    }

    #[test]
    fn a_clock_that_stands_still_or_runs_backwards_is_refused() {
        assert!(
            "2026-01-01T00:00:00Z,2026-11-20T12:00:00Z,0"
                .parse::<Timescale>()
                .is_err()
        );
        assert!(
            "2026-01-01T00:00:00Z,2026-11-20T12:00:00Z,-5"
                .parse::<Timescale>()
                .is_err()
        );
        assert!("2026-01-01T00:00:00Z,1000".parse::<Timescale>().is_err());
    }
}
