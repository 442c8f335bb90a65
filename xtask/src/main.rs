//! `cargo xtask`: the project's own commands. It starts in seconds, before the long build, so it depends on little and
//! never on the service: what it needs of the service it runs as a program.

mod process;
mod sqlx;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  demo [--once] [--json]   the main comparison on an embedded Postgres and a simulated AWS region, to a recommendation
  test                     everything CI checks
  sqlx [--check]           write (or check) the compile-time checked queries in .sqlx
  openapi [--check]        write (or check) openapi/bakeoff.json
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("sqlx") => sqlx::run_sqlx(&flags),
        _ => {
            print!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nerror: {message}");
            ExitCode::FAILURE
        }
    }
}
