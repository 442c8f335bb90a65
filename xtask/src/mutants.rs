//! `cargo xtask mutants`: proof that the tests bite. Each patch in `tests/mutants/` puts one classic mistake into a copy of the
//! sources; the test named here has to fail on it. `--check` only looks whether the patches still apply.

use std::path::Path;
use std::process::Command;

use bakeoff_postgres::{Cluster, Config};

use crate::process::{Scratch, cargo, root, run as run_program};

/// Patch, package, and the test that must catch it.
const MUTANTS: [(&str, &str, &str); 7] = [
    ("new-name-on-retry", "it", "scheduler::a_create_whose_reply_is_lost_is_adopted_and_not_repeated"),
    ("renewal-by-name-only", "it", "fleet::a_lease_is_renewed_only_by_its_owner_in_its_term"),
    ("unknown-read-as-failed", "domain", "decide::tests::an_unreadable_or_unheard_of_status_is_never_a_failure"),
    ("rescue-by-elapsed-time", "it", "scheduler::a_writer_that_lost_its_lease_changes_nothing"),
    ("stop-at-an-empty-page", "it", "fleet::an_empty_page_is_not_the_end_of_a_listing"),
    ("idempotency-fails-open", "it", "api::concurrent_requests_with_one_key_are_one_experiment"),
    ("adopt-without-the-marker", "it", "scheduler::a_job_made_by_hand_with_our_name_is_left_alone"),
];

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    if flags.contains(&"--check") {
        return check();
    }
    check()?;
    // The tests run the region's program as it lies there.
    run_program(cargo().args(["build", "--quiet", "--workspace", "--bins"]))?;
    let scratch = Scratch::new("mutants")?;
    let cluster = Cluster::start(&Config { data_dir: scratch.0.join("data"), durable: false });
    let cluster = cluster.map_err(|error| error.to_string())?;
    let outcome = crate::test::migrate(&cluster).and_then(|()| all(&scratch.0, &cluster));
    cluster.stop().map_err(|error| error.to_string())?;
    outcome
}

/// Every patch applies to the sources as they are.
pub(crate) fn check() -> Result<(), String> {
    for (name, ..) in MUTANTS {
        let patch = format!("tests/mutants/{name}.patch");
        let applies = Command::new("git").args(["apply", "--check", &patch]).current_dir(root()).output();
        let applies = applies.map_err(|error| format!("git: {error}"))?;
        if !applies.status.success() {
            return Err(format!("{patch} no longer applies: {}", String::from_utf8_lossy(&applies.stderr)));
        }
    }
    println!("{} mutants apply", MUTANTS.len());
    Ok(())
}

/// A patched source is put back by whatever ends this.
struct Patched(String);

impl Drop for Patched {
    fn drop(&mut self) {
        let back = Command::new("git").args(["apply", "--reverse", &self.0]).current_dir(root()).status();
        if !back.is_ok_and(|status| status.success()) {
            eprintln!("{} could not be taken back: git checkout -- src crates", self.0);
        }
    }
}

fn all(scratch: &Path, cluster: &Cluster) -> Result<(), String> {
    let mut survived = Vec::new();
    for (name, suite, test) in MUTANTS {
        let patch = format!("tests/mutants/{name}.patch");
        run_program(Command::new("git").args(["apply", &patch]).current_dir(root()))?;
        let guard = Patched(patch);
        let is_caught = is_caught(suite, test, cluster, &scratch.join(format!("{name}.log")))?;
        drop(guard);
        println!("{name:<28} {} {test}", if is_caught { "caught by" } else { "NOT caught by" });
        if !is_caught {
            survived.push(name);
        }
    }
    // The tests' programs are built from patched sources now.
    run_program(cargo().args(["build", "--quiet", "--workspace", "--all-targets"]))?;
    if survived.is_empty() { Ok(()) } else { Err(format!("not caught: {}", survived.join(", "))) }
}

/// It compiles, and the test fails.
fn is_caught(suite: &str, test: &str, cluster: &Cluster, log: &Path) -> Result<bool, String> {
    // Another selection than the workspace would resolve features anew and build the SDKs again.
    let target = if suite == "domain" { "--lib" } else { "--test=it" };
    let arguments = |run: &[&str], name: &str| {
        let mut command = cargo();
        // A patch may change a query: it is checked against the database itself.
        command.args(["test", "--quiet", "--workspace", target]).args(run).env("SQLX_OFFLINE", "false");
        command.env("DATABASE_URL", cluster.url(name));
        command
    };
    // The schema is in the template, of which each test's database is a copy.
    run_program(&mut arguments(&["--no-run"], "template1"))?;
    let output = arguments(&["--", "--exact", test], "postgres").output();
    let output = output.map_err(|error| error.to_string())?;
    std::fs::write(log, &output.stdout).map_err(|error| error.to_string())?;
    let shown = String::from_utf8_lossy(&output.stdout);
    Ok(!output.status.success() && shown.contains("1 failed"))
}
