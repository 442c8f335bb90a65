//! Running programs and finding our own folders.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bakeoff_postgres::{Cluster, reaper};
use rustix::io::Errno;
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, kill_process, test_kill_process};

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

/// A folder for this run, removed when dropped; folders of killed runs are removed by the next run.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(purpose: &str) -> Result<Self, String> {
        let folder = scratch_dir()?;
        for left in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = left.file_name();
            let pid = name
                .to_str()
                .and_then(|name| name.rsplit_once('-')?.1.parse().ok());
            if pid
                .and_then(Pid::from_raw)
                .is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
            {
                discard(&left.path());
            }
        }
        let path = folder.join(format!("{purpose}-{}", std::process::id()));
        discard(&path);
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        discard(&self.0);
    }
}

/// Also removes a cluster's files from elsewhere, where they are when the server's user had no
/// access here.
fn discard(folder: &Path) {
    Cluster::discard(&folder.join("data"));
    drop(std::fs::remove_dir_all(folder));
}

/// Starts a child that ends with us, however we end.
pub(crate) fn spawn(command: &mut Command) -> Result<Child, String> {
    let child = command
        .spawn()
        .map_err(|error| format!("{command:?} could not be run: {error}"))?;
    reaper::guard(&child);
    Ok(child)
}

/// Asks a process to end (SIGTERM); one that is already gone is fine.
pub(crate) fn interrupt(child: &Child) {
    signal(i32::try_from(child.id()).unwrap_or_default(), Signal::TERM);
}

/// Sends a signal; returns false when there is no such process. Needs no `kill` program, which a
/// slim Debian lacks.
pub(crate) fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Waits for a child to end; returns whether it did so in time.
pub(crate) fn wait_gone(child: &mut Child, patience: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < patience {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    false
}
