//! `cargo xtask eval`, `signals`, `fit` and the planner's benchmark. They run `bakeoff-eval`, a separate
//! program in the release profile that needs nothing but the domain.

use std::path::Path;

use serde_json::Value;

use crate::process::{cargo, run};

/// Where the reference tables are unless `--data` says otherwise.
const DATA: &str = "../shared/data";
/// The coefficients that ship with the product.
const COEFFICIENTS: &str = "crates/planner/data/coefficients.json";

pub(crate) fn eval(flags: &[&str]) -> Result<(), String> {
    program("eval", &with_data(flags))
}

/// Reads other people's files: logs, metric files, checkpoints and job documents.
pub(crate) fn signals(flags: &[&str]) -> Result<(), String> {
    let mut all: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    if !flags.contains(&"--data") {
        all.extend(["--data".to_owned(), format!("{DATA}/public_inputs")]);
    }
    program("signals", &all)
}

pub(crate) fn fit(flags: &[&str]) -> Result<(), String> {
    let mut all = with_data(flags);
    let data = all
        .iter()
        .position(|flag| flag == "--data")
        .and_then(|place| all.get(place + 1))
        .cloned();
    if let Some(folder) = data.filter(|folder| !Path::new(folder).is_dir()) {
        println!("skipped: no reference data at {folder}");
        return Ok(());
    }
    all.extend(["--out".to_owned(), COEFFICIENTS.to_owned()]);
    program("fit", &all)
}

/// Measures what a plan costs in CPU.
pub(crate) fn plans() -> Result<Value, String> {
    let mut command = cargo();
    command.args([
        "run",
        "--quiet",
        "--release",
        "-p",
        "bakeoff-eval",
        "--",
        "plans",
    ]);
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout).map_err(|error| format!("bakeoff-eval plans: {error}"))
}

fn with_data(flags: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    if !flags.contains(&"--data") {
        all.extend(["--data".to_owned(), DATA.to_owned()]);
    }
    all
}

fn program(command: &str, flags: &[String]) -> Result<(), String> {
    run(cargo()
        .args([
            "run",
            "--quiet",
            "--release",
            "-p",
            "bakeoff-eval",
            "--",
            command,
        ])
        .args(flags))
}
