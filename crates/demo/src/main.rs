//! `bakeoff-demo`: the demo as it is installed, which `bakeoff demo` starts.

use std::process::ExitCode;

use bakeoff_demo::demo::{self, Flags};
use bakeoff_demo::process;

fn main() -> ExitCode {
    bakeoff_postgres::reaper::stand_by();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome =
        Flags::parse(&flags).and_then(|flags| demo::run(&flags, process::folder_of_this_user()?));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nerror: {message}");
            ExitCode::FAILURE
        }
    }
}
