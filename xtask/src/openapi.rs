//! `cargo xtask openapi`: the committed OpenAPI document, written by the program itself; `--check`
//! compares the two.

use std::fs;
use std::process::Command;

use crate::process::{build, printed, program, root};

const REDOCLY: &str = "@redocly/cli@2.77.0";

/// Lints the document with redocly's recommended rules; a warning is allowed, an error is not.
pub(crate) fn lint() -> Result<(), String> {
    let output = Command::new("npx")
        .args(["--yes", REDOCLY, "lint", "openapi/bakeoff.json"])
        .current_dir(root())
        .output()
        .map_err(|error| {
            format!("npx could not be run ({error}); install Node 20 or newer with npm")
        })?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        println!("openapi/bakeoff.json: redocly finds no error");
        return Ok(());
    }
    Err(text)
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    build(&["--all-targets"])?;
    let document = printed(Command::new(program("bakeoff")).arg("openapi"))?;
    let path = root().join("openapi/bakeoff.json");
    if flags.contains(&"--check") {
        let committed = fs::read(&path).unwrap_or_default();
        if committed != document {
            return Err(
                "openapi/bakeoff.json has drifted\n  to fix it: cargo xtask openapi".to_owned(),
            );
        }
        println!("openapi/bakeoff.json is up to date");
        return Ok(());
    }
    fs::create_dir_all(root().join("openapi")).map_err(|error| error.to_string())?;
    fs::write(&path, &document).map_err(|error| error.to_string())?;
    println!("openapi/bakeoff.json written");
    Ok(())
}
