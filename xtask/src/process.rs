//! Running programs and finding our own folders.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Runs to the end, output shown.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown} ended with {status}")),
        Err(error) => Err(format!("{shown} could not be run: {error}")),
    }
}

/// The cargo that runs us, in the root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Where everything is built.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |given| root().join(given))
}

/// One of our programs, as the workspace build makes it: running it through cargo would resolve features anew and build twice.
pub(crate) fn program(name: &str) -> PathBuf {
    target().join("debug").join(name)
}

/// The same, as a release build makes it.
pub(crate) fn release(name: &str) -> PathBuf {
    let debug = program(name);
    let target = debug.parent().and_then(Path::parent).unwrap_or(Path::new("target"));
    target.join("release").join(name)
}

/// A folder below the system's temporary one, removed when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(purpose: &str) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("bakeoff-{purpose}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Asks a process to end (SIGTERM). One that is gone already is fine.
pub(crate) fn interrupt(child: &Child) {
    signal(i32::try_from(child.id()).unwrap_or_default(), Signal::TERM);
}

/// Sends a signal; false when there is no such process. No `kill` program is needed, which a slim Debian lacks.
pub(crate) fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Whether it has ended within the time.
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
