//! The `bakeoff` program: parses the command line and hands over to `bakeoff::cli`.

use std::process::ExitCode;

use bakeoff::cli::Cli;
use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    bakeoff_postgres::reaper::stand_by();
    bakeoff_domain::read_embedded();
    bakeoff_planner::read_embedded();
    match Cli::parse().run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
