//! Named points at which a simulation may kill or freeze this process. Disarmed everywhere else: `cli::serve` arms one only
//! when the clock is simulated, and so AWS is too.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};

static ARMED: OnceLock<Armed> = OnceLock::new();
static PASSED: AtomicU32 = AtomicU32::new(0);

/// `kill@after_create:3`: at the third passage of a point. `freeze` stops the process until it is continued from outside.
#[derive(Debug, Clone)]
pub struct Armed {
    signal: Signal,
    point: String,
    nth: u32,
}

impl FromStr for Armed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (what, place) = text.split_once('@')?;
            let (point, nth) = place.split_once(':')?;
            let signal = match what {
                "kill" => Signal::KILL,
                "freeze" => Signal::STOP,
                _ => return None,
            };
            Some(Self { signal, point: point.to_owned(), nth: nth.parse().ok()? })
        };
        parse().ok_or_else(|| format!("`{text}` is not kill@POINT:N or freeze@POINT:N"))
    }
}

/// Arms one point for the life of this process.
pub fn arm(armed: Armed) {
    drop(ARMED.set(armed));
}

/// A point that work passes.
pub fn point(name: &str) {
    let Some(armed) = ARMED.get().filter(|armed| armed.point == name) else { return };
    if PASSED.fetch_add(1, Ordering::SeqCst) + 1 == armed.nth {
        // Nobody is left to hear of an error.
        kill_process(getpid(), armed.signal).unwrap_or_default();
    }
}
