//! `cargo xtask dashboard`: builds the dashboard into `dashboard/dist`, which the service embeds. Nothing is done where
//! nothing has changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::process::{root, run as run_program};

/// Of what the files in `dist` were built.
const STAMP: &str = "dist/.stamp";
/// What the packages were installed for.
const INSTALLED: &str = "node_modules/.stamp";

/// Builds it, and with `--check` type-checks and tests it too.
pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    build()?;
    if flags.contains(&"--check") {
        run_program(npx().args(["tsc", "--noEmit"]))?;
        run_program(npx().args(["vitest", "run", "--dir", "src"]))?;
    }
    Ok(())
}

fn folder() -> PathBuf {
    root().join("dashboard")
}

fn npx() -> Command {
    let mut command = Command::new("npx");
    command.arg("--no-install").current_dir(folder());
    command
}

/// Installs its packages, makes its types of the OpenAPI document, and bundles it.
pub(crate) fn build() -> Result<(), String> {
    let sources = digest(&sources()?)?;
    let stamp = folder().join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|built| built == sources) {
        return Ok(());
    }
    install()?;
    let types = [
        "openapi-typescript",
        "../openapi/bakeoff.json",
        "-o",
        "src/api/schema.ts",
    ];
    quietly(npx().args(types))?;
    quietly(npx().args(["vite", "build", "--logLevel", "warn"]))?;
    fs::write(&stamp, sources).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Installs exactly what the lock file names; no package's script is run.
fn install() -> Result<(), String> {
    let wanted = digest(&[folder().join("package-lock.json")])?;
    let stamp = folder().join(INSTALLED);
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
    quietly(npm.current_dir(folder()))?;
    fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))
}

/// Runs a command whose output matters only when it fails.
fn quietly(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|error| {
        format!("{shown} could not be run: {error}; the dashboard needs Node 20 with npm")
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!(
        "{shown} failed:\n{}",
        String::from_utf8_lossy(&said)
    ))
}

/// Everything that the bundle is made of.
fn sources() -> Result<Vec<PathBuf>, String> {
    let mut found = vec![root().join("openapi/bakeoff.json")];
    let mut folders = vec![folder().join("src"), folder().join("public")];
    for file in [
        "index.html",
        "package.json",
        "package-lock.json",
        "tsconfig.json",
        "vite.config.ts",
    ] {
        found.push(folder().join(file));
    }
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("api/schema.ts") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn digest(files: &[PathBuf]) -> Result<String, String> {
    let mut hash = Sha256::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap_or(Path::new(""));
        let content = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        hash.update(name.to_string_lossy().as_bytes());
        hash.update([0]);
        hash.update(Sha256::digest(&content));
    }
    Ok(hex::encode(hash.finalize()))
}
