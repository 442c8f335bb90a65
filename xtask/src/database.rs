//! The schema of the databases that tests and storms use.

use std::process::{Command, Stdio};

use bakeoff_postgres::Cluster;

use crate::process::{program, run};

/// Applies the schema to template1 once; each test's own database is a copy of it.
pub(crate) fn migrate(cluster: &Cluster) -> Result<(), String> {
    let mut command = Command::new(program("bakeoff"));
    command
        .arg("migrate")
        .env("DATABASE_URL", cluster.url("template1"))
        .env("BAKEOFF_LOG", "warn")
        .stdout(Stdio::null());
    run(&mut command)
}
