//! `bakeoff-demo`: the demo as it is installed, which `bakeoff demo` starts.

use std::process::ExitCode;

use bakeoff_demo::demo::{self, Flags};

fn main() -> ExitCode {
    bakeoff_postgres::reaper::stand_by();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let folder = std::env::temp_dir().join("bakeoff-demo");
    let outcome = Flags::parse(&flags).and_then(|flags| {
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        demo::run(&flags, folder)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nerror: {message}");
            ExitCode::FAILURE
        }
    }
}
