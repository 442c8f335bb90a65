//! Detects stalled work: long work beats a pulse at each step, and patience counts beats instead of
//! seconds.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bakeoff_process::clock::real_sleep;

/// Patience is consumed in this many parts, so a process that was stopped for a while loses one
/// part, not all.
const PARTS: u32 = 8;

/// A counter that long work advances at each step.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Does some work, and gives it up if it makes no progress for the given time: a database or
    /// AWS that never answers must not block a loop forever. Work can be given up at any point, as
    /// if the process had died there.
    pub async fn patiently<T>(
        &self,
        patience: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        let mut left = PARTS;
        let mut seen = self.0.load(Ordering::Relaxed);
        while left > 0 {
            tokio::select! {
                done = &mut work => return Some(done),
                () = real_sleep(patience / PARTS) => {
                    let beats = self.0.load(Ordering::Relaxed);
                    left = if beats == seen { left - 1 } else { PARTS };
                    seen = beats;
                }
            }
        }
        // Before the work is dropped and its connection returns to the pool.
        bakeoff_store::given_up();
        None
    }
}

/// Does some work and, concurrently, a periodic action. An action that has begun is finished: no
/// statement is dropped half-way.
pub async fn meanwhile<T, A>(
    every: Duration,
    work: impl Future<Output = T>,
    act: impl Fn() -> A,
) -> T
where
    A: Future<Output = ()>,
{
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = real_sleep(every) => {}
        }
        let mut acting = pin!(act());
        tokio::select! {
            () = &mut acting => {}
            done = &mut work => {
                acting.await;
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn work_that_takes_no_step_is_given_up_and_work_that_does_is_not() {
        let pulse = Pulse::default();
        assert_eq!(
            pulse
                .patiently(PATIENCE, std::future::pending::<()>())
                .await,
            None
        );
        let steps = async {
            for _ in 0..20 {
                real_sleep(PATIENCE / 3).await;
                pulse.beat();
            }
        };
        assert_eq!(pulse.patiently(PATIENCE, steps).await, Some(()));
    }

    /// After SIGSTOP, a suspended machine, or a host without processors, replies that arrived
    /// meanwhile still have to be read.
    #[tokio::test]
    async fn work_is_not_given_up_because_the_process_stood_still() {
        let stood_still = async {
            real_sleep(PATIENCE / 3).await;
            std::thread::sleep(PATIENCE * 3);
            real_sleep(PATIENCE / 3).await;
        };
        assert_eq!(
            Pulse::default().patiently(PATIENCE, stood_still).await,
            Some(())
        );
    }
}
