//! `cargo xtask test`: everything that CI checks except clippy, in the order that fails fastest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bakeoff_postgres::{Cluster, Config};

use crate::process::{build, cargo, compile, lock, program, run as run_program, scratch};
use crate::{
    browser, client, dashboard, deploy, docs, mutants, openapi, python, queries, shapes, storm,
};

pub(crate) fn run() -> Result<(), String> {
    // A second run would replace programs that the first is about to start.
    let _alone = lock("test")?;
    let started = Instant::now();
    step("formatting");
    run_program(cargo().args(["fmt", "--all", "--check"]))?;
    step("dashboard");
    dashboard::run(&["--check"])?;
    step("build");
    build(&["--all-targets"])?;
    step("committed OpenAPI document");
    openapi::run(&["--check"])?;
    openapi::lint()?;
    step("committed shapes of AWS's requests");
    shapes::run(&["--check"])?;
    step("committed pages of the reference");
    docs::run(&["--check"])?;
    let scratch = scratch("test")?;
    let cluster = Cluster::start(&Config {
        data_dir: scratch.0.join("data"),
        durable: false,
    });
    let cluster = cluster.map_err(|error| error.to_string())?;
    let tested = with_database(&cluster);
    cluster.stop().map_err(|error| error.to_string())?;
    tested?;
    step("checked queries");
    queries::run(&["--check"])?;
    step("mutants still apply");
    mutants::check()?;
    step("storm: 10 seeds");
    storm::run(&["--seeds", "10"])?;
    step("dashboard in a browser");
    browser::run(&["--built"])?;
    step("the Python client, and the example notebook");
    client::run(&["--built"])?;
    step("docker/ and deploy/");
    deploy::run()?;
    println!("\nAll checks passed in {} s.", started.elapsed().as_secs());
    Ok(())
}

/// `cargo xtask check`: what can be said of a change within a minute, once everything is built.
pub(crate) fn check() -> Result<(), String> {
    let started = Instant::now();
    step("formatting");
    run_program(cargo().args(["fmt", "--all", "--check"]))?;
    step("clippy");
    compile(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    step("unit tests");
    run_program(cargo().args(["test", "--quiet", "--workspace", "--lib", "--bins"]))?;
    println!(
        "\nFormatting, clippy and unit tests passed in {} s; `cargo xtask test` runs everything.",
        started.elapsed().as_secs()
    );
    Ok(())
}

/// Independent clients, pinned, that the tests run against the region and the service.
pub(crate) const CLIENTS: [&str; 8] = [
    "boto3==1.44.5",
    "botocore==1.44.8",
    "moto==5.2.5",
    "flask==3.1.3",
    "flask-cors==6.0.5",
    "pandas==3.1.1",
    "pyarrow==26.0.1",
    "duckdb==2.0.0",
];

fn with_database(cluster: &Cluster) -> Result<(), String> {
    crate::database::migrate(cluster, &program("bakeoff"))?;
    step("the tests, with boto3, moto, pandas and DuckDB beside them");
    let modules = python::packages(&CLIENTS, "clients")?;
    run_program(
        cargo()
            .args(["test", "--workspace", "--no-fail-fast"])
            .env("DATABASE_URL", cluster.url("postgres"))
            .env("BAKEOFF_TEST_PYTHONPATH", modules),
    )
}

/// `cargo xtask postgres`: starts only the tests' cluster, to run `cargo test` manually.
pub(crate) fn postgres() -> Result<(), String> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::SeqCst))
        .map_err(|error| error.to_string())?;
    build(&["--all-targets"])?;
    let scratch = scratch("postgres")?;
    let cluster = Cluster::start(&Config {
        data_dir: scratch.0.join("data"),
        durable: false,
    });
    let cluster = cluster.map_err(|error| error.to_string())?;
    crate::database::migrate(&cluster, &program("bakeoff"))?;
    println!("export DATABASE_URL={}", cluster.url("postgres"));
    println!("cargo test --workspace    # in another terminal; Ctrl-C here stops PostgreSQL");
    while !interrupted.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.stop().map_err(|error| error.to_string())
}

/// Says what comes now, and after how long: where the minutes go is seen by reading on.
fn step(name: &str) {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    println!("\n— {name} (after {} s)", BEGAN.elapsed().as_secs());
}
