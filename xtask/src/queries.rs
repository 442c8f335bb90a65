//! `cargo xtask sqlx`: compiles the service against a real database with the migrations applied,
//! which writes one file per query; `--check` compares them with the committed ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bakeoff_postgres::{Cluster, Config};

use crate::process::{cargo, compile, root, scratch};

pub(crate) fn run(flags: &[&str]) -> Result<(), String> {
    let scratch = scratch("sqlx")?;
    let config = Config {
        data_dir: scratch.0.join("data"),
        durable: false,
    };
    Cluster::load_offline(&config, &migrations()?).map_err(|error| error.to_string())?;
    let cluster = Cluster::start(&config).map_err(|error| error.to_string())?;
    let fresh = scratch.0.join("queries");
    let written = compile_against(&cluster.url("postgres"), &fresh);
    cluster.stop().map_err(|error| error.to_string())?;
    written?;
    let committed = root().join(".sqlx");
    if flags.contains(&"--check") {
        compare(&committed, &fresh)
    } else {
        replace(&committed, &fresh)
    }
}

fn migrations() -> Result<Vec<PathBuf>, String> {
    let entries =
        fs::read_dir(root().join("migrations")).map_err(|error| format!("migrations: {error}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

/// The query macros run only when the crate is recompiled; touching its root file ensures that.
fn compile_against(url: &str, out: &Path) -> Result<(), String> {
    fs::create_dir_all(out).map_err(|error| error.to_string())?;
    let lib = root().join("crates/store/src/lib.rs");
    // Changes only the time: another build of this checkout may be reading the file.
    let touched = fs::File::options()
        .append(true)
        .open(&lib)
        .and_then(|file| file.set_modified(SystemTime::now()));
    touched.map_err(|error| format!("{}: {error}", lib.display()))?;
    let mut command = cargo();
    command.args(["build", "--workspace", "--all-targets"]);
    compile(
        command
            .env("SQLX_OFFLINE", "false")
            .env("SQLX_OFFLINE_DIR", out)
            .env("DATABASE_URL", url),
    )
}

fn contents(dir: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some((name, fs::read_to_string(entry.path()).ok()?))
    });
    named
        .filter(|(name, _)| name.starts_with("query-"))
        .collect()
}

fn compare(committed: &Path, fresh: &Path) -> Result<(), String> {
    let (old, new) = (contents(committed), contents(fresh));
    if new.is_empty() {
        return Err("no query was seen: the check would prove nothing".to_owned());
    }
    if old == new {
        println!(".sqlx is up to date: {} queries", new.len());
        return Ok(());
    }
    let differing = new
        .iter()
        .filter(|(name, text)| old.get(*name) != Some(text))
        .count();
    let stale = old.keys().filter(|name| !new.contains_key(*name)).count();
    Err(format!(
        ".sqlx has drifted: {differing} missing or different, {stale} stale\n  to fix it: cargo xtask sqlx"
    ))
}

fn replace(committed: &Path, fresh: &Path) -> Result<(), String> {
    drop(fs::remove_dir_all(committed));
    fs::create_dir_all(committed).map_err(|error| error.to_string())?;
    let queries = contents(fresh);
    for (name, text) in &queries {
        fs::write(committed.join(name), text).map_err(|error| error.to_string())?;
    }
    println!(".sqlx written: {} queries", queries.len());
    Ok(())
}
