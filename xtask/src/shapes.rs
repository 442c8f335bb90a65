//! `cargo xtask shapes [--check]`: writes the API's model of the requests that the linter reads, as
//! botocore has it.

use std::fs;
use std::process::Command;

use crate::python;
use crate::test::CLIENTS;

const SHAPES: &str = "crates/planner/data/api_shapes.json";

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let modules = python::packages(&CLIENTS, "clients")?;
    let output = Command::new("python3")
        .args(["-c", include_str!("api_shapes.py")])
        .env("PYTHONPATH", modules)
        .output()
        .map_err(|error| format!("python3: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let made = String::from_utf8_lossy(&output.stdout).into_owned();
    if !flags.contains(&"--check") {
        return fs::write(SHAPES, made).map_err(|error| format!("{SHAPES}: {error}"));
    }
    if fs::read_to_string(SHAPES).unwrap_or_default() == made {
        return Ok(());
    }
    Err(format!(
        "{SHAPES} is not what botocore has; `cargo xtask shapes` writes it"
    ))
}
