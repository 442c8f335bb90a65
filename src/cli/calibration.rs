//! `bakeoff calibration`: how good the predictions of a project's experiments were.

use clap::Args;

use super::client::{Client, Target};
use super::report;
use bakeoff_api::calibration::Calibration;

#[derive(Debug, Args)]
pub(super) struct CalibrationOptions {
    #[command(flatten)]
    target: Target,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(options: CalibrationOptions) -> anyhow::Result<()> {
    let found: Calibration = Client::new(&options.target)?.get("/v1/calibration").await?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        report::calibration(&found);
    }
    Ok(())
}
