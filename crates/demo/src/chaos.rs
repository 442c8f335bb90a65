//! Follows the demo and kills processes under it: the service and Postgres in turn, with `kill -9`,
//! spread over the run.

use std::io::Read;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::demo::is_over;
use crate::stack::Stack;

/// The kills are spread over this much of the demo, which takes about a minute and a half.
const SPREAD: Duration = Duration::from_mins(1);

/// Waits for `child`; returns its status, its output and what was killed.
pub(crate) fn follow(
    stack: &mut Stack,
    mut child: Child,
    kills: u32,
    interrupted: &AtomicBool,
) -> Result<(ExitStatus, String, Value), String> {
    // Read on another thread, so that a full pipe never blocks the child.
    let reader = child.stdout.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).map(|_| text)
        })
    });
    let (mut services, mut postgres) = (0u32, 0u32);
    let mut last = Instant::now();
    while !is_over(&mut child) {
        if interrupted.load(Ordering::SeqCst) {
            drop(child.kill());
        } else if services + postgres < kills && last.elapsed() > SPREAD / kills {
            if services <= postgres {
                stack.kill_service()?;
                services += 1;
            } else {
                stack.kill_postgres()?;
                postgres += 1;
            }
            last = Instant::now();
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let output = reader
        .and_then(|reader| reader.join().ok()?.ok())
        .unwrap_or_default();
    Ok((
        status,
        output,
        json!({ "asked": kills, "service": services, "postgres": postgres }),
    ))
}
