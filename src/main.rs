//! The `bakeoff` program: parses the command line and hands over to `bakeoff::cli`.

use std::process::ExitCode;

use bakeoff::cli::Cli;
use clap::Parser;

/// EX_USAGE of sysexits.h: 1 and 2 are verdicts of `bakeoff gate`.
const WRONG_USAGE: u8 = 64;

#[tokio::main]
async fn main() -> ExitCode {
    bakeoff_postgres::reaper::stand_by();
    bakeoff_domain::read_embedded();
    bakeoff_planner::read_embedded();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            drop(error.print());
            // Help and the version are no mistakes.
            return ExitCode::from(if error.use_stderr() { WRONG_USAGE } else { 0 });
        }
    };
    match cli.run().await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
