//! Processes and folders of a run: each ends with it, however it ends.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bakeoff_postgres::{Cluster, reaper};
use rustix::io::Errno;
pub use rustix::process::Signal;
use rustix::process::{Pid, geteuid, kill_process, test_kill_process};

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

/// This user's own folder for temporary files, closed to other users.
pub fn folder_of_this_user() -> Result<PathBuf, String> {
    let own = geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("bakeoff-demo-{own}"));
    let shown = |error: std::io::Error| format!("{}: {error}", folder.display());
    match private(&folder) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made.map_err(shown)?,
    }
    let found = std::fs::symlink_metadata(&folder).map_err(shown)?;
    let is_ours = found.is_dir() && found.uid() == own && found.mode() & 0o777 == 0o700;
    if is_ours {
        return Ok(folder);
    }
    Err(format!(
        "{} is not this user's alone: remove it, or set TMPDIR to another folder",
        folder.display()
    ))
}

/// Makes a folder that only this user may enter; one that is there already is an error.
fn private(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(folder)
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
        private(&path).map_err(|error| format!("{}: {error}", path.display()))?;
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
    let data = folder.join("data");
    // A link would lead to another's files.
    if !data.is_symlink() {
        Cluster::discard(&data);
    }
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
