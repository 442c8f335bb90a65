//! `cargo xtask demo`: builds what the demo needs, and plays it.

use bakeoff_demo::demo::{self, Flags};

use crate::dashboard;
use crate::process::{build, scratch_dir};

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let flags = Flags::parse(flags)?;
    // Beside the long build: a debug program reads the dashboard's files when they are asked for.
    let dashboard = std::thread::spawn(dashboard::build);
    build(&["--bins"])?;
    let dashboard = dashboard
        .join()
        .unwrap_or_else(|_| Err("it panicked".to_owned()));
    if let Err(error) = &dashboard {
        eprintln!("The dashboard is missing: {error}");
    }
    demo::run(&flags, scratch_dir()?)
}
