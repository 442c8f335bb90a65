//! Ends children together with their parent, whatever ends the parent: even `kill -9`, which no
//! process can catch.
//!
//! A second process of the same program holds the reading end of a pipe, and receives over it the
//! processes that were started. The kernel closes the writing end when the parent dies, so at end
//! of file the reaper terminates them all. (Linux' "parent death signal" is bound to the thread
//! that started the child, and a runtime's threads come and go.)
//!
//! A cluster may have been adopted meanwhile: a killed service restarts at once and adopts its
//! Postgres. Every user of a cluster holds a shared lock on a file in its data directory, which the
//! kernel releases with the process. The reaper waits a little, and stops the cluster only under an
//! exclusive lock: either a service has adopted it and it lives on, or it is stopped first, and a
//! service that arrives then waits for the lock and starts it again.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// The only argument of the second process.
const ARGUMENT: &str = "reap-orphans";
/// Time within which a killed service is expected back to adopt its Postgres.
const ADOPTED_WITHIN: Duration = Duration::from_secs(3);
/// A process that was asked to end is killed after this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer, because a cluster writes a checkpoint before it ends.
const CLUSTER_PATIENCE: Duration = Duration::from_mins(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether this program's `main` has called [`stand_by`]: if not, a second process of it would not
/// act as a reaper.
static STANDS_BY: AtomicBool = AtomicBool::new(false);
static PIPE: Mutex<Option<ChildStdin>> = Mutex::new(None);

/// Must be called first in `main`. In the second process it does not return.
pub fn stand_by() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == ARGUMENT) && arguments.next().is_none() {
        reap(std::io::stdin().lock());
        std::process::exit(0);
    }
    STANDS_BY.store(true, Ordering::SeqCst);
}

/// Has the child asked to end when this process has ended, and killed if it does not.
pub fn guard(child: &Child) {
    let pid = Pid::from_child(child).as_raw_nonzero().get();
    tell(pid, Path::new(""));
}

/// Has the cluster shut down when this process has ended and no other has adopted it.
pub(crate) fn guard_cluster(pid: i32, data_dir: &Path) {
    tell(pid, data_dir);
}

/// Writes a line to the pipe: process id, its start time, and the data directory of a cluster.
fn tell(pid: i32, data_dir: &Path) {
    let Some(began) = began(pid).filter(|_| STANDS_BY.load(Ordering::SeqCst)) else {
        return;
    };
    let mut line = format!("{pid} {began} ").into_bytes();
    line.extend_from_slice(data_dir.as_os_str().as_bytes());
    line.push(b'\n');
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    if pipe.is_none() {
        *pipe = start();
    }
    // A reaper that was killed is replaced at the next child.
    if pipe
        .as_mut()
        .is_some_and(|pipe| pipe.write_all(&line).is_err())
    {
        *pipe = None;
    }
}

fn start() -> Option<ChildStdin> {
    // Works even if a newer build has replaced the file since.
    let own = if cfg!(target_os = "linux") {
        Some("/proc/self/exe".into())
    } else {
        std::env::current_exe().ok()
    };
    // Its own process group, since Ctrl-C is not meant for it; and no output, because a reader
    // might wait for it to be closed.
    let mut command = Command::new(own?);
    command
        .arg(ARGUMENT)
        .env_clear()
        .current_dir("/")
        .process_group(0);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?
        .stdin
        .take()
}

struct Orphan {
    pid: i32,
    began: String,
    /// Empty unless this is a cluster.
    data_dir: PathBuf,
}

impl Orphan {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(3, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (pid, began) = (text()?.parse().ok()?, text()?.to_owned());
        Some(Self {
            pid,
            began,
            data_dir: PathBuf::from(std::ffi::OsStr::from_bytes(fields.next()?)),
        })
    }

    /// Whether the same process still lives, rather than one that reuses its id.
    fn lives(&self) -> bool {
        began(self.pid).is_some_and(|began| began == self.began)
    }

    fn is_cluster(&self) -> bool {
        !self.data_dir.as_os_str().is_empty()
    }

    fn send(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.lives()) {
            // An error means that the process is already gone.
            kill_process(pid, signal).ok();
        }
    }

    fn is_gone_within(&self, patience: Duration) -> bool {
        let since = Instant::now();
        while self.lives() {
            if since.elapsed() > patience {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// Fast shutdown, unless the cluster is in use.
    fn shut_down(&self) {
        // If the data directory is gone, nothing will adopt the server that ran in it.
        let file = lock_file(&self.data_dir).ok();
        if file.as_ref().is_none_or(|file| file.try_lock().is_ok()) {
            self.send(Signal::INT);
            self.is_gone_within(CLUSTER_PATIENCE);
        }
    }
}

fn reap(pipe: impl BufRead) {
    let told = pipe
        .split(b'\n')
        .map_while(Result::ok)
        .filter_map(|line| Orphan::parse(&line));
    let mut orphans: Vec<Orphan> = told.collect();
    orphans.retain(Orphan::lives);
    let (clusters, others): (Vec<Orphan>, Vec<Orphan>) =
        orphans.into_iter().partition(Orphan::is_cluster);
    for orphan in &others {
        orphan.send(Signal::TERM);
        // A stopped process does not handle the signal until it is continued.
        orphan.send(Signal::CONT);
    }
    let asked = Instant::now();
    if !clusters.is_empty() {
        std::thread::sleep(ADOPTED_WITHIN);
    }
    for cluster in &clusters {
        cluster.shut_down();
    }
    for orphan in &others {
        if !orphan.is_gone_within(PATIENCE.saturating_sub(asked.elapsed())) {
            orphan.send(Signal::KILL);
        }
    }
}

/// The lock file that every user of the cluster in a data directory holds.
pub(crate) fn lock_file(data_dir: &Path) -> std::io::Result<File> {
    let path = data_dir.join("postgres-lock");
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// When a process started, in ticks since boot; together with its id, this identifies it for good.
/// `None` if there is no such process, or only a zombie. Without /proc, the id must suffice.
pub(crate) fn began(pid: i32) -> Option<String> {
    let raw = Pid::from_raw(pid)?;
    if !Path::new("/proc/self/stat").exists() {
        return test_kill_process(raw).is_ok().then(|| "-".to_owned());
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_dead = matches!(fields.next()?, "Z" | "X");
    let began = fields.nth(18)?.to_owned();
    (!is_dead).then_some(began)
}
