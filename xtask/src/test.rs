//! `cargo xtask test`: everything that CI checks, in the order in which it fails fastest.

use std::time::Instant;

use bakeoff_postgres::{Cluster, Config};

use crate::process::{Scratch, cargo, run as run_program};
use crate::{deploy, openapi, python, queries};

pub(crate) fn run() -> Result<(), String> {
    let started = Instant::now();
    step("formatting");
    run_program(cargo().args(["fmt", "--all", "--check"]))?;
    step("build; the first time takes about four minutes");
    run_program(cargo().args(["build", "--quiet", "--workspace", "--all-targets"]))?;
    step("committed OpenAPI document");
    openapi::run(&["--check"])?;
    let scratch = Scratch::new("test")?;
    let cluster = Cluster::start(Config { data_dir: scratch.0.join("data"), durable: false });
    let cluster = cluster.map_err(|error| error.to_string())?;
    let tested = with_database(&cluster);
    cluster.stop().map_err(|error| error.to_string())?;
    tested?;
    step("checked queries");
    queries::run(&["--check"])?;
    step("docker/ and deploy/");
    deploy::run()?;
    println!("\nAll checks passed in {} s.", started.elapsed().as_secs());
    Ok(())
}

/// The schema goes into template1 once: each test's own database is a copy of it.
fn with_database(cluster: &Cluster) -> Result<(), String> {
    let template = cluster.url("template1");
    run_program(
        cargo().args(["run", "--quiet", "--package", "bakeoff", "--", "migrate"]).env("DATABASE_URL", template),
    )?;
    step("boto3 against the simulated region, and the tests");
    let modules = python::packages(&["boto3==1.44.5"], "boto3")?;
    run_program(
        cargo()
            .args(["test", "--workspace", "--no-fail-fast"])
            .env("DATABASE_URL", cluster.url("postgres"))
            .env("BAKEOFF_TEST_PYTHONPATH", modules),
    )
}

fn step(name: &str) {
    println!("\n— {name}");
}
