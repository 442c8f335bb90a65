//! Named points at which a simulation may kill or freeze this process, or set its clock back.
//! Disarmed everywhere else: `cli::serve` arms one only if the clock, and therefore AWS, is
//! simulated. Points named `in_…` lie within a transaction, before its commit.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use chrono::TimeDelta;
use rustix::process::{Signal, getpid, kill_process};

static ARMED: OnceLock<Armed> = OnceLock::new();
static PASSED: AtomicU32 = AtomicU32::new(0);
static IS_SET_BACK: AtomicBool = AtomicBool::new(false);

/// How far the domain clock is set back: longer than any wait, even in simulation.
const SET_BACK: TimeDelta = TimeDelta::hours(12);

/// `kill@after_create:3` acts at the third passage of a point. `freeze` stops the process until it
/// is continued from outside; `set-back` sets its domain clock back by twelve hours, permanently.
#[derive(Debug, Clone)]
pub struct Armed {
    what: Blow,
    point: String,
    nth: u32,
}

#[derive(Debug, Clone, Copy)]
enum Blow {
    Kill,
    Freeze,
    SetBack,
}

impl FromStr for Armed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (what, place) = text.split_once('@')?;
            let (point, nth) = place.split_once(':')?;
            let what = match what {
                "kill" => Blow::Kill,
                "freeze" => Blow::Freeze,
                "set-back" => Blow::SetBack,
                _ => return None,
            };
            Some(Self {
                what,
                point: point.to_owned(),
                nth: nth.parse().ok()?,
            })
        };
        parse().ok_or_else(|| {
            format!("`{text}` is not kill@POINT:N, freeze@POINT:N or set-back@POINT:N")
        })
    }
}

/// Arms one point for the life of this process.
pub fn arm(armed: Armed) {
    drop(ARMED.set(armed));
}

/// Marks a point in the code at which an armed fault may strike.
pub fn point(name: &str) {
    let Some(armed) = ARMED.get().filter(|armed| armed.point == name) else {
        return;
    };
    if PASSED.fetch_add(1, Ordering::SeqCst) + 1 == armed.nth {
        // Ignore errors: nothing is left to handle them.
        match armed.what {
            Blow::Kill => _ = kill_process(getpid(), Signal::KILL),
            Blow::Freeze => {
                tracing::warn!("frozen, as asked");
                _ = kill_process(getpid(), Signal::STOP);
            }
            Blow::SetBack => {
                IS_SET_BACK.store(true, Ordering::SeqCst);
                tracing::warn!("the clock is set back, as asked");
            }
        }
    }
}

/// How far the domain clock has been set back.
pub fn set_back() -> TimeDelta {
    if IS_SET_BACK.load(Ordering::Relaxed) {
        SET_BACK
    } else {
        TimeDelta::zero()
    }
}
