//! `cargo xtask mutants [NAME…]`: proof that the tests catch real mistakes. Each patch in
//! `tests/mutants/` puts one classic mistake into a copy of the sources below `target/`, and the
//! test named here must fail on it. `--check` only verifies that the patches still apply and that
//! the tests exist. `--storm` runs the storm instead of the test, and reports which mutants it finds
//! within some seeds.

mod by_storm;
mod ci;
mod money;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use bakeoff_postgres::{Cluster, Config};

use self::by_storm::{BY_STORM, STORM_SEEDS};
use crate::process::{build, cargo, program, root, run as run_program, scratch, target};

/// A mistake, and the test that must catch it.
struct Mutant {
    /// Name of the patch.
    name: &'static str,
    suite: Suite,
    test: &'static str,
}

#[derive(Clone, Copy)]
enum Suite {
    /// `crates/domain`.
    Domain,
    /// `tests/it`.
    Integration,
}

const fn it(name: &'static str, test: &'static str) -> Mutant {
    Mutant {
        name,
        suite: Suite::Integration,
        test,
    }
}

const fn domain(name: &'static str, test: &'static str) -> Mutant {
    Mutant {
        name,
        suite: Suite::Domain,
        test,
    }
}

const MUTANTS: [Mutant; 34] = [
    it(
        "a-pipelines-claim-is-not-checked",
        "pipelines::steps::two_conductors_start_each_step_once",
    ),
    it(
        "a-step-under-way-holds-no-money",
        "pipelines::funds::the_budget_is_one_over_all_steps",
    ),
    domain(
        "others-stop-for-a-prediction",
        "ranking::race::tests::nothing_is_given_up_for_what_has_not_been_measured",
    ),
    domain(
        "a-probe-ends-before-its-checkpoint",
        "ranking::race::tests::a_probe_ends_with_its_figure_and_its_checkpoint",
    ),
    it(
        "new-name-on-retry",
        "jobs::scheduler::a_create_whose_reply_is_lost_is_adopted_and_not_repeated",
    ),
    it(
        "renewal-by-name-only",
        "jobs::fleet::a_lease_is_renewed_only_by_its_owner_in_its_term",
    ),
    domain(
        "unknown-read-as-failed",
        "lifecycle::decide::tests::an_unreadable_or_unheard_of_status_is_never_a_failure",
    ),
    it(
        "rescue-by-elapsed-time",
        "jobs::scheduler::a_writer_that_lost_its_lease_changes_nothing",
    ),
    it(
        "stop-at-an-empty-page",
        "jobs::fleet_events::an_empty_page_is_not_the_end_of_a_listing",
    ),
    it(
        "idempotency-fails-open",
        "service::api::concurrent_requests_with_one_key_are_one_experiment",
    ),
    it(
        "adopt-without-the-marker",
        "jobs::scheduler::a_job_made_by_hand_with_our_name_is_left_alone",
    ),
    it(
        "reserve-without-volumes",
        "house::mutant_killers::a_reservation_holds_what_the_volume_may_cost",
    ),
    it(
        "release-a-reservation-twice",
        "house::mutant_killers::a_last_read_that_comes_twice_releases_once",
    ),
    it(
        "stop-orphans-without-the-marker",
        "house::mutant_killers::a_strangers_job_of_our_name_is_neither_stopped_nor_billed",
    ),
    it(
        "settle-with-training-seconds",
        "money::ledger::the_ledger_agrees_with_the_regions_bill_to_the_cent",
    ),
    it(
        "give-back-a-lease-without-the-token",
        "house::mutant_killers::a_lease_is_given_back_only_by_its_holder",
    ),
    it(
        "a-quarantined-trial-keeps-a-pool",
        "house::mutant_killers::a_pool_is_not_kept_for_a_trial_in_quarantine",
    ),
    it(
        "pool-kept-for-the-cancelled-and-the-paused",
        "house::mutant_killers::a_pool_is_not_kept_for_a_paused_experiment",
    ),
    it(
        "access-denied-is-never-created",
        "jobs::scheduler::a_definite_no_after_a_lost_reply_does_not_abandon_the_job",
    ),
    it(
        "throttled-page-ends-a-listing-as-complete",
        "house::mutant_killers::a_listing_that_was_throttled_says_nothing_of_what_it_did_not_reach",
    ),
    it(
        "quarantine-half-as-long",
        "house::mutant_killers::a_quarantine_outlasts_the_lease_and_two_calls",
    ),
    it(
        "an-old-event-overrides-a-newer-status",
        "house::mutant_killers::an_event_older_than_what_is_known_changes_nothing",
    ),
    domain(
        "one-denial-and-the-job-has-vanished",
        "lifecycle::decide::tests::an_unreadable_or_unheard_of_status_is_never_a_failure",
    ),
    domain(
        "an-endpoint-that-ran-on-is-billed-as-reserved",
        "lifecycle::decide::tests::bills::an_estimate_never_exceeds_the_longest_life_of_the_job",
    ),
    domain(
        "an-endpoint-outlives-its-reservation",
        "endpoint::decide::tests::what_is_reserved_is_enough_even_if_nobody_could_look",
    ),
    it(
        "a-deletion-gives-way-to-a-claim",
        "faults::locks::an_endpoint_is_deleted_though_the_deployer_claims_it_meanwhile",
    ),
    it(
        "a-cancel-during-a-claim-is-forgotten",
        "house::mutant_killers::a_cancel_while_the_create_is_under_way_takes_effect_at_once",
    ),
    it(
        "budget-cap-ignored",
        "money::ledger::concurrent_reservations_never_pass_the_cap",
    ),
    it(
        "cancel-sends-no-stop",
        "jobs::scheduler::a_cancel_stops_what_runs_and_settles_it",
    ),
    it(
        "sessions-without-timeouts",
        "faults::stalls::a_replica_frozen_in_an_admission_does_not_keep_others_from_admitting",
    ),
    it(
        "a-sweep-that-was-cut-off-counts",
        "faults::listings::a_sweep_that_was_cut_off_is_made_again_at_once",
    ),
    it(
        "sdk-retries-on",
        "faults::replicas::a_create_that_was_answered_with_an_error_is_not_sent_again_behind_our_back",
    ),
    it(
        "limiter-waits-for-the-old-time",
        "faults::listings::after_the_clock_was_set_back_a_call_is_free_within_seconds",
    ),
    it(
        "events-without-the-feed-lock",
        "service::events::an_event_waits_for_those_before_it_in_the_feed",
    ),
];

/// All of them.
fn mutants() -> impl Iterator<Item = &'static Mutant> {
    MUTANTS.iter().chain(&ci::MUTANTS).chain(&money::MUTANTS)
}

fn patch(name: &str) -> PathBuf {
    root().join("tests/mutants").join(format!("{name}.patch"))
}

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    if flags.contains(&"--check") {
        return check();
    }
    let by_storm = flags.contains(&"--storm");
    let flags: Vec<&str> = flags
        .iter()
        .copied()
        .filter(|flag| *flag != "--storm")
        .collect();
    if let Some(unknown) = flags
        .iter()
        .find(|flag| !mutants().any(|mutant| mutant.name == **flag))
    {
        return Err(format!("there is no mutant {unknown}"));
    }
    check()?;
    // The schema comes from the unpatched program.
    build(&["--bins"])?;
    let copy = Copied::new()?;
    let scratch = scratch("mutants")?;
    let cluster = Cluster::start(&Config {
        data_dir: scratch.0.join("data"),
        durable: false,
    });
    let cluster = cluster.map_err(|error| error.to_string())?;
    let chosen = mutants().filter(|mutant| flags.is_empty() || flags.contains(&mutant.name));
    let outcome = crate::database::migrate(&cluster, &program("bakeoff")).and_then(|()| {
        if by_storm {
            all_by_storm(&flags, &copy, &cluster)
        } else {
            all(chosen, &copy, &cluster)
        }
    });
    cluster.stop().map_err(|error| error.to_string())?;
    outcome
}

/// Whether the file that a test's path names, or the one with the tests at its end, has it: a wrong path would run none.
fn exists(suite: Suite, test: &str) -> bool {
    let folder = match suite {
        Suite::Domain => "crates/domain/src",
        Suite::Integration => "tests/it",
    };
    let Some((modules, function)) = test.rsplit_once("::") else {
        return false;
    };
    let own = format!("fn {function}(");
    let has = |modules: &str| {
        let file = root().join(folder).join(modules.replace("::", "/"));
        fs::read_to_string(file.with_extension("rs")).is_ok_and(|source| source.contains(&own))
    };
    has(modules) || modules.strip_suffix("::tests").is_some_and(has)
}

/// Checks that every patch applies to the current sources, and that each has a test.
pub(crate) fn check() -> Result<(), String> {
    for Mutant { name, suite, test } in mutants() {
        if !exists(*suite, test) {
            return Err(format!(
                "{test}, which must catch {name}, does not exist: was it moved?"
            ));
        }
        let applies = Command::new("git")
            .args(["apply", "--check"])
            .arg(patch(name))
            .current_dir(root())
            .output();
        let applies = applies.map_err(|error| format!("git: {error}"))?;
        if !applies.status.success() {
            return Err(format!(
                "{name} no longer applies: {}",
                String::from_utf8_lossy(&applies.stderr)
            ));
        }
    }
    let entries = fs::read_dir(root().join("tests/mutants"))
        .map_err(|error| format!("tests/mutants: {error}"))?;
    let count = entries.flatten().count();
    if count != mutants().count() {
        return Err(format!(
            "{count} patches in tests/mutants, and {} of them have a test",
            mutants().count()
        ));
    }
    println!("{count} mutants apply");
    Ok(())
}

fn all<'a>(
    mutants: impl Iterator<Item = &'a Mutant>,
    copy: &Copied,
    cluster: &Cluster,
) -> Result<(), String> {
    let mut survived = Vec::new();
    for Mutant { name, suite, test } in mutants {
        copy.apply(&patch(name), &[])?;
        let is_caught = copy.is_caught(*suite, test, cluster);
        copy.apply(&patch(name), &["--reverse"])?;
        let outcome = match &is_caught {
            Ok(true) => "caught by",
            Ok(false) => "NOT caught by",
            // The others are still worth their minutes.
            Err(why) => {
                println!("{name}: {why}");
                "could not be put to"
            }
        };
        println!("{name:<44} {outcome} {test}");
        if !matches!(is_caught, Ok(true)) {
            survived.push(*name);
        }
    }
    if survived.is_empty() {
        Ok(())
    } else {
        Err(format!("not caught: {}", survived.join(", ")))
    }
}

/// Reports which mutants the storm finds. It must first find nothing in the unpatched sources, or
/// its findings would prove nothing.
fn all_by_storm(chosen: &[&str], copy: &Copied, cluster: &Cluster) -> Result<(), String> {
    if let Some(unknown) = chosen
        .iter()
        .find(|name| !BY_STORM.iter().any(|(known, _)| known == *name))
    {
        return Err(format!("the storm is not asked for {unknown}"));
    }
    if let Some(why) = copy.is_found_by_storm(cluster)? {
        return Err(format!(
            "the storm finds something without any mutant: {why}"
        ));
    }
    let mut wrong = Vec::new();
    for (name, unseen) in BY_STORM
        .iter()
        .filter(|(name, _)| chosen.is_empty() || chosen.contains(name))
    {
        copy.apply(&patch(name), &[])?;
        let found = copy.is_found_by_storm(cluster);
        copy.apply(&patch(name), &["--reverse"])?;
        match (found?, unseen) {
            (Some(why), _) => println!("{name:<44} found: {why}"),
            (None, Some(reason)) => println!("{name:<44} not found: {reason}"),
            (None, None) => {
                println!("{name:<44} NOT found");
                wrong.push(*name);
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("the storm should have found {}", wrong.join(", ")))
    }
}

/// A copy of the sources with its own target folder, kept between runs, so that no working tree is
/// ever patched.
struct Copied {
    tree: PathBuf,
    target: PathBuf,
}

impl Copied {
    fn new() -> Result<Self, String> {
        let home = target().join("mutants");
        let copy = Self {
            tree: home.join("tree"),
            target: home.join("target"),
        };
        copy.bring_up_to_date()?;
        copy.seed()?;
        Ok(copy)
    }

    /// Copies the files that git tracks or would add, as they are now, so that later edits do not
    /// affect this run. Unchanged files stay untouched, so that cargo does not rebuild them.
    fn bring_up_to_date(&self) -> Result<(), String> {
        let listed = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root())
            .output()
            .map_err(|error| format!("git: {error}"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let wanted: BTreeSet<&Path> = listed
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(Path::new)
            .filter(|name| root().join(name).is_file())
            .collect();
        for name in &wanted {
            let (from, to) = (root().join(name), self.tree.join(name));
            let text = fs::read(&from).map_err(|error| format!("{}: {error}", from.display()))?;
            if fs::read(&to).is_ok_and(|old| old == text) {
                continue;
            }
            let folder = to.parent().unwrap_or(&self.tree);
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(&to, text))
                .map_err(|error| error.to_string())?;
        }
        remove_others(&self.tree, &self.tree, &wanted).map_err(|error| error.to_string())
    }

    /// Copies cargo's builds of third-party crates, which do not depend on where the workspace is.
    /// Doing so once saves minutes.
    fn seed(&self) -> Result<(), String> {
        if self.target.exists() {
            return Ok(());
        }
        println!("Copying what is built already; once …");
        let debug = target().join("debug");
        let fresh = self.target.with_extension("new");
        drop(fs::remove_dir_all(&fresh));
        for part in ["deps", "build", ".fingerprint"] {
            copy_folder(&debug.join(part), &fresh.join("debug").join(part))
                .map_err(|error| error.to_string())?;
        }
        fs::rename(&fresh, &self.target).map_err(|error| error.to_string())
    }

    /// The copy lies inside a repository that ignores it, where git would apply nothing by default.
    fn apply(&self, patch: &Path, how: &[&str]) -> Result<(), String> {
        let above = self.tree.parent().unwrap_or(&self.tree);
        run_program(
            Command::new("git")
                .arg("apply")
                .args(how)
                .arg(patch)
                .current_dir(&self.tree)
                .env("GIT_CEILING_DIRECTORIES", above),
        )
    }

    /// What the storm reports when it runs the copy's programs; `None` when it finds nothing.
    fn is_found_by_storm(&self, cluster: &Cluster) -> Result<Option<String>, String> {
        run_program(&mut self.cargo(&["build", "--bins"], cluster, "template1"))?;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut storm = Command::new(own);
        storm.args([
            "storm",
            "--built",
            "--until-failure",
            "--jobs",
            "6",
            "--seeds",
            &STORM_SEEDS.to_string(),
        ]);
        let output = storm
            .env("CARGO_TARGET_DIR", &self.target)
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(None);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // `seed 7: …`, or `seed 7, late: …` for a seed that was late again when replayed alone.
        let is_verdict = |line: &&str| {
            let number = line
                .strip_prefix("seed ")
                .and_then(|rest| rest.split_once(": "));
            let number = number.map(|(number, _)| number.trim_end_matches(", late"));
            number.is_some_and(|number| number.parse::<u64>().is_ok())
        };
        Ok(said
            .lines()
            .find(is_verdict)
            .map(|line| line.chars().take(200).collect()))
    }

    /// Runs cargo on the copy. Selecting anything but the whole workspace would resolve features
    /// again and rebuild the SDKs.
    fn cargo(&self, run: &[&str], cluster: &Cluster, database: &str) -> Command {
        let mut command = cargo();
        command
            .args(run)
            .args(["--quiet", "--workspace"])
            .current_dir(&self.tree);
        command.env("CARGO_TARGET_DIR", &self.target);
        // A patch may change a query, so queries are checked against the database itself.
        command
            .env("SQLX_OFFLINE", "false")
            .env("DATABASE_URL", cluster.url(database));
        command
    }

    /// True when the copy compiles and the test fails.
    fn is_caught(&self, suite: Suite, test: &str, cluster: &Cluster) -> Result<bool, String> {
        let mut tested = match suite {
            Suite::Domain => self.domain_tests(),
            Suite::Integration => self.integration_tests(cluster)?,
        };
        let output = tested
            .args(["--", "--exact", test])
            .output()
            .map_err(|error| error.to_string())?;
        let shown = String::from_utf8_lossy(&output.stdout);
        Ok(!output.status.success() && shown.contains("1 failed"))
    }

    /// The domain is pure, and its tests need no other crate: alone, and in a target folder of its own because its
    /// features are others then, they are built in seconds. What does not compile prints no "1 failed".
    fn domain_tests(&self) -> Command {
        let mut command = cargo();
        command
            .args(["test", "--quiet", "--package", "bakeoff-domain", "--lib"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", self.target.with_extension("domain"));
        command
    }

    /// The tests run the programs that are already built. The schema is in the template from which each test's
    /// database is copied.
    fn integration_tests(&self, cluster: &Cluster) -> Result<Command, String> {
        run_program(&mut self.cargo(&["build", "--bins"], cluster, "template1"))?;
        run_program(&mut self.cargo(&["test", "--no-run", "--test=it"], cluster, "template1"))?;
        Ok(self.cargo(&["test", "--test=it"], cluster, "postgres"))
    }
}

/// Removes files that were deleted or renamed since.
fn remove_others(tree: &Path, folder: &Path, wanted: &BTreeSet<&Path>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove_others(tree, &path, wanted)?;
        } else if path
            .strip_prefix(tree)
            .is_ok_and(|name| !wanted.contains(name))
        {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Our own crates, which must be rebuilt because their sources differ.
fn is_ours(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy();
    ["bakeoff", "libbakeoff", "xtask", "it-", "bare-"]
        .iter()
        .any(|ours| name.starts_with(ours))
}

/// Copies a folder, including the files' times, which cargo compares.
fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?
        .flatten()
        .filter(|entry| !is_ours(&entry.file_name()))
    {
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
            continue;
        }
        let modified = entry
            .metadata()?
            .modified()
            .unwrap_or(SystemTime::UNIX_EPOCH);
        fs::copy(entry.path(), &target)?;
        fs::OpenOptions::new()
            .write(true)
            .open(&target)?
            .set_modified(modified)?;
    }
    Ok(())
}
