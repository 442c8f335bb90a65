//! The two clocks. The domain clock (virtual in simulation, stepped by hand in tests) times jobs,
//! polls and prices; real time is for HTTP and SSE. Leases use the database's clock and are not
//! here.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bakeoff_domain::clock::Timescale;
use chrono::{DateTime, TimeDelta, Utc};

use crate::crash;

/// The domain clock.
#[derive(Debug, Clone)]
pub enum Clock {
    Running(Timescale),
    /// Stands still until a test steps it.
    Manual(Arc<Mutex<DateTime<Utc>>>),
}

impl Clock {
    pub fn manual(start: DateTime<Utc>) -> Self {
        Self::Manual(Arc::new(Mutex::new(start)))
    }

    /// The moment on the domain clock, to the microsecond.
    pub fn now(&self) -> DateTime<Utc> {
        match self {
            Self::Running(scale) => scale.at(real_now()) - crash::set_back(),
            Self::Manual(moment) => *moment.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Steps a manual clock; a running one cannot be moved.
    pub fn advance(&self, by: TimeDelta) {
        if let Self::Manual(moment) = self {
            *moment.lock().unwrap_or_else(PoisonError::into_inner) += by;
        }
    }

    /// Waits for a duration of the domain clock to pass.
    #[expect(clippy::disallowed_methods, reason = "the one place that waits")]
    pub async fn sleep(&self, duration: TimeDelta) {
        let real = match self {
            Self::Running(scale) => scale.real_duration(duration),
            Self::Manual(_) => Duration::from_millis(1),
        };
        tokio::time::sleep(real).await;
    }

    /// False in simulation.
    pub fn is_real(&self) -> bool {
        matches!(self, Self::Running(scale) if scale.is_real())
    }
}

/// The newest moment that was seen of the domain clock: one that shows much less was stepped back.
#[derive(Debug, Default)]
pub struct HighWater(Mutex<Option<DateTime<Utc>>>);

/// Less is the jitter of a clock that is slewed.
const STEP_BACK: TimeDelta = TimeDelta::seconds(5);

impl HighWater {
    /// How far the clock was stepped back, if it was: until what follows from that is done.
    pub fn step_back(&self, now: DateTime<Utc>) -> Option<TimeDelta> {
        let newest = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(newest - now).filter(|back| *back > STEP_BACK)
    }

    /// Some moment was seen.
    pub fn is_known(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    pub fn reached(&self, now: DateTime<Utc>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
}

/// Real time that has passed, also while this machine slept (CLOCK_BOOTTIME where there is one):
/// what a lease has left is not what a monotonic clock says that stands still with a suspended
/// machine.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Duration);

impl Stopwatch {
    pub fn start() -> Self {
        Self(since_boot())
    }

    pub fn elapsed(&self) -> Duration {
        since_boot().saturating_sub(self.0)
    }
}

fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    // It goes on while the machine sleeps there.
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let at = rustix::time::clock_gettime(clock);
    let nanoseconds = u32::try_from(at.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(at.tv_sec).unwrap_or_default(), nanoseconds)
}

/// Real time, to the microsecond that Postgres keeps: key expiry, logs.
#[expect(clippy::disallowed_methods, reason = "the one look at real time")]
pub fn real_now() -> DateTime<Utc> {
    let now = Utc::now();
    DateTime::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now)
}

/// Waits in real time: retries of a connection, polling by the command line.
#[expect(clippy::disallowed_methods, reason = "the other place that waits")]
pub async fn real_sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}
