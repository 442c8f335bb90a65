//! `bakeoff calibration`: how good the predictions of a project's experiments were.

use clap::Args;

use super::client::{Client, Target};
use super::output::Output;
use super::report;
use bakeoff_api::calibration::Calibration;

#[derive(Debug, Args)]
#[command(after_help = "Example: bakeoff calibration --output md")]
pub(super) struct CalibrationOptions {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(options: CalibrationOptions) -> anyhow::Result<()> {
    let found: Calibration = Client::new(&options.target)?.get("/v1/calibration").await?;
    let is_table = options.output.is_table();
    if is_table {
        println!(
            "predicted against measured, of the newest {} experiments",
            found.experiments
        );
        if found.rows.is_empty() {
            println!("no trial has both yet: run an experiment");
            return Ok(());
        }
    }
    options
        .output
        .print(&found, || report::calibration(&found))?;
    if is_table {
        println!("a bias above zero: the predictions are too high");
    }
    Ok(())
}
