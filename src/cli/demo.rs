//! `bakeoff demo`: hands over to `bakeoff-demo`, which is installed beside this program.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

/// It, and the simulated region that it starts.
const PROGRAMS: [&str; 2] = ["bakeoff-demo", "bakeoff-sim"];

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bakeoff demo                  # stays up with a link to the dashboard, until Ctrl-C
  bakeoff demo --once --json | jq .verification")]
pub(super) struct DemoOptions {
    /// End when the answers are there.
    #[arg(long)]
    once: bool,
    /// Print the result as JSON.
    #[arg(long, requires = "once")]
    json: bool,
    /// How many times to kill the service and PostgreSQL during the demo.
    #[arg(long)]
    kills: Option<u32>,
}

pub(super) fn run(options: &DemoOptions) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("where this program is")?;
    for name in PROGRAMS {
        let path = own.with_file_name(name);
        if !path.is_file() {
            bail!(
                "{} is not there: the wheel and `cargo build --workspace` bring it, a copy of bakeoff alone does not",
                path.display()
            );
        }
    }
    let [demo, _] = PROGRAMS;
    let mut command = Command::new(own.with_file_name(demo));
    command
        .args(options.once.then_some("--once"))
        .args(options.json.then_some("--json"));
    if let Some(kills) = options.kills {
        command.args(["--kills", &kills.to_string()]);
    }
    // Only returns where it could not be started.
    Err(command.exec()).context(demo)
}
