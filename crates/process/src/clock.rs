//! The two clocks. The domain clock (virtual in simulation, stepped manually in tests) times jobs,
//! polls and prices; real time is for HTTP and SSE. Leases use the database's clock, which is not
//! defined here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

    /// The current time on the domain clock, to the microsecond.
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

    /// Domain seconds in a real second: 1 but in simulation, 0 where a test steps the clock.
    pub fn factor(&self) -> f64 {
        match self {
            Self::Running(scale) => scale.factor,
            Self::Manual(_) => 0.0,
        }
    }

    /// False in simulation.
    pub fn is_real(&self) -> bool {
        matches!(self, Self::Running(scale) if scale.is_real())
    }
}

/// The newest time seen on the domain clock; a much earlier reading means the clock was stepped
/// back.
#[derive(Debug, Default)]
pub struct HighWater(Mutex<ClockReadings>);

#[derive(Debug, Default)]
struct ClockReadings {
    newest: Option<DateTime<Utc>>,
    /// The last step back, as long as work that had begun before it may go on.
    step: Option<Step>,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    noticed: Stopwatch,
    handled: Stopwatch,
}

/// Smaller steps are the jitter of a slewed clock.
const STEP_BACK: TimeDelta = TimeDelta::seconds(5);

impl HighWater {
    /// How far the clock was stepped back, if it was; stays set until the consequences have been
    /// handled.
    pub fn step_back(&self, now: DateTime<Utc>) -> Option<TimeDelta> {
        Some(self.seen().newest? - now).filter(|back| *back > STEP_BACK)
    }

    /// Whether the clock was stepped back, and the consequences were last handled at least this
    /// long ago: work that had begun before the step may have written times of the old clock since.
    pub fn is_to_be_handled_again(&self, every: Duration) -> bool {
        let step = self.seen().step;
        step.is_some_and(|step| step.handled.elapsed() >= every)
    }

    /// Such work goes on for at most this long after the step.
    pub fn has_been_handled_again(&self, at_most: Duration) {
        let mut seen = self.seen();
        seen.step = seen
            .step
            .filter(|step| step.noticed.elapsed() < at_most)
            .map(|step| Step {
                handled: Stopwatch::start(),
                ..step
            });
    }

    fn seen(&self) -> MutexGuard<'_, ClockReadings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any time has been seen yet.
    pub fn is_known(&self) -> bool {
        self.seen().newest.is_some()
    }

    /// Call once the consequences of a step back have been handled.
    pub fn reached(&self, now: DateTime<Utc>) {
        if self.step_back(now).is_some() {
            let (noticed, handled) = (Stopwatch::start(), Stopwatch::start());
            self.seen().step = Some(Step { noticed, handled });
        }
        self.seen().newest = Some(now);
    }
}

/// Elapsed real time, including time the machine was suspended (CLOCK_BOOTTIME where available). A
/// plain monotonic clock stops while the machine is suspended, so it cannot tell what is left of a
/// lease.
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
    // On this platform the monotonic clock continues while the machine sleeps.
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let at = rustix::time::clock_gettime(clock);
    // Since the start of the machine: never negative.
    Duration::try_from(at).unwrap_or(Duration::ZERO)
}

/// Real time, to the microsecond that Postgres keeps: key expiry, logs.
#[expect(clippy::disallowed_methods, reason = "the one look at real time")]
pub fn real_now() -> DateTime<Utc> {
    let now = Utc::now();
    DateTime::from_timestamp_micros(now.timestamp_micros()).unwrap_or(now)
}

/// Sleeps in real time, for example between connection retries or polls of the command line.
#[expect(clippy::disallowed_methods, reason = "the other place that waits")]
pub async fn real_sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}
