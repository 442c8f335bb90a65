//! The schema of the databases that tests and storms use.

use std::path::Path;
use std::process::{Command, Stdio};

use bakeoff_postgres::Cluster;

use crate::process::run;

/// Applies the schema to template1 once; each test's own database is a copy of it. `bakeoff`: the program that does.
pub(crate) fn migrate(cluster: &Cluster, bakeoff: &Path) -> Result<(), String> {
    let mut command = Command::new(bakeoff);
    command
        .arg("migrate")
        .env("DATABASE_URL", cluster.url("template1"))
        .env("BAKEOFF_LOG", "warn")
        .stdout(Stdio::null());
    run(&mut command)
}
