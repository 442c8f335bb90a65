//! Processes and folders of a run: each ends with it, however it ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bakeoff_postgres::{Cluster, reaper};
use rustix::io::Errno;
pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, test_kill_process};

/// A program of ours: it lies beside this one.
pub fn beside(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let path = own.with_file_name(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!(
            "{} is not there: it belongs to the same installation",
            path.display()
        ))
    }
}

/// A folder for this run, removed when dropped; folders of killed runs are removed by the next run.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn below(folder: &Path, purpose: &str) -> Result<Self, String> {
        for left in std::fs::read_dir(folder).into_iter().flatten().flatten() {
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
pub fn spawn(command: &mut Command) -> Result<Child, String> {
    let child = command
        .spawn()
        .map_err(|error| format!("{command:?} could not be run: {error}"))?;
    reaper::guard(&child);
    Ok(child)
}

/// Asks a process to end (SIGTERM); one that is already gone is fine.
pub fn interrupt(child: &Child) {
    signal(i32::try_from(child.id()).unwrap_or_default(), Signal::TERM);
}

/// Sends a signal; returns false when there is no such process. Needs no `kill` program, which a
/// slim Debian lacks.
pub fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Waits for a child to end; returns whether it did so in time.
pub fn wait_gone(child: &mut Child, patience: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < patience {
        if matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    false
}
