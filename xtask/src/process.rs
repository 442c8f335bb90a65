//! Running programs and finding our own folders.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

pub(crate) use bakeoff_demo::process::{Scratch, Signal, interrupt, signal, spawn, wait_gone};

/// How often a long build reports that it is still running.
const SAY_EVERY: Duration = Duration::from_secs(15);

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Runs a command to its end and shows its output.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown} ended with {status}")),
        Err(error) => Err(format!("{shown} could not be run: {error}")),
    }
}

/// Runs a command to its end; what it printed, or else what it said of its failure.
pub(crate) fn printed(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?} could not be run: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Builds the part of the workspace that `what` selects.
pub(crate) fn build(what: &[&str]) -> Result<(), String> {
    compile(cargo().args(["build", "--workspace"]).args(what))
}

/// Runs cargo. On a terminal, cargo shows its own progress; elsewhere a line now and then reports
/// progress, because the first build takes minutes. Nothing goes to stdout.
pub(crate) fn compile(command: &mut Command) -> Result<(), String> {
    if std::io::stderr().is_terminal() {
        return run(command);
    }
    let started = Instant::now();
    let mut child = spawn(
        command
            .env("CARGO_TERM_COLOR", "never")
            .stderr(Stdio::piped()),
    )?;
    let pipe = child.stderr.take().ok_or("cargo has no stderr")?;
    let lines = lines_of(pipe);
    let (mut crates, mut said) = (0, Instant::now());
    eprintln!("  building …");
    loop {
        match lines.recv_timeout(SAY_EVERY.saturating_sub(said.elapsed())) {
            Ok(line) if is_step(&line) => crates += 1,
            Ok(line) if line.trim_start().starts_with("Finished ") => {}
            Ok(line) => eprintln!("{line}"),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if said.elapsed() >= SAY_EVERY {
            eprintln!(
                "  building: {crates} crates compiled in {} s",
                started.elapsed().as_secs()
            );
            said = Instant::now();
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command:?} ended with {status}"))
    }
}

/// Whether cargo says that it has begun another crate.
fn is_step(line: &str) -> bool {
    let line = line.trim_start();
    ["Compiling ", "Checking "]
        .iter()
        .any(|verb| line.starts_with(verb))
}

/// Reads on a thread of its own, so that one can wait for a line for a limited time.
fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(pipe)
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| send.send(line))
    });
    lines
}

/// The cargo that runs us, in the repository's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The target folder of all builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root().join("target"), |given| root().join(given))
}

/// One of our programs, as built by the workspace build: running it through cargo would resolve
/// features again and build twice.
pub(crate) fn program(name: &str) -> PathBuf {
    target().join("debug").join(name)
}

/// The same program, as built for release.
pub(crate) fn release(name: &str) -> PathBuf {
    let debug = program(name);
    let target = debug
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("target"));
    target.join("release").join(name)
}

/// A folder below the target folder for the needs of this checkout's runs, and no others.
pub(crate) fn scratch_dir() -> Result<PathBuf, String> {
    let folder = target().join("scratch");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// A folder for this run, removed when dropped.
pub(crate) fn scratch(purpose: &str) -> Result<Scratch, String> {
    Scratch::below(&scratch_dir()?, purpose)
}

/// Holds this checkout's lock of that name until it is dropped; waits for the current holder.
pub(crate) fn lock(name: &str) -> Result<File, String> {
    let path = scratch_dir()?.join(format!("{name}.lock"));
    let locked = File::create(&path).and_then(|file| {
        if file.try_lock().is_err() {
            eprintln!("Another `cargo xtask {name}` of this checkout is running; waiting for it …");
            file.lock()?;
        }
        Ok(file)
    });
    locked.map_err(|error| format!("{}: {error}", path.display()))
}
