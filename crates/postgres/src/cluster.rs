//! One cluster in one data directory: initialise, start or adopt, restart, stop.
//!
//! The server runs in its own process group, so that Ctrl-C reaches only the parent, which then
//! stops the server in order. If the parent is killed, the next start adopts the server through
//! `postmaster.pid`; if nothing adopts it, the [`crate::reaper`] shuts it down.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::binaries::{Binaries, NotFound};
use crate::child;
use crate::owner::Owner;
use crate::reaper;
use crate::role::{self, Script};

/// Recovery after a kill can be slow on a busy machine; a dead server is noticed at once.
const START_SECONDS_MAX: u64 = 300;
const STOP_SECONDS_MAX: u64 = 120;
/// The initial superuser of the cluster; not for the service.
const SUPERUSER: &str = "postgres";
/// The first version that has `scram_iterations`.
const SCRAM_ITERATIONS_SINCE: u32 = 16;
/// Marker file in the cluster's directory: the service's role exists.
const HAS_ROLE: &str = "bakeoff-role";

/// Location and durability of a cluster.
#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    /// `false` turns fsync off and allows many connections: for disposable test clusters.
    pub durable: bool,
}

/// Why the cluster is not running.
#[derive(Debug)]
pub enum Error {
    NotFound(NotFound),
    Io {
        what: String,
        source: std::io::Error,
    },
    Failed {
        what: String,
        log: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(error) => error.fmt(f),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Failed { what, log } => write!(f, "{what}\n{log}"),
        }
    }
}

impl std::error::Error for Error {}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// A running server. Dropping it does not stop it: call [`Cluster::stop`].
#[derive(Debug)]
pub struct Cluster {
    config: Config,
    binaries: Binaries,
    owner: Owner,
    pgdata: PathBuf,
    password: String,
    service_password: String,
    port: u16,
    pid: i32,
    child: Option<Child>,
    /// Held while we use the cluster: see [`crate::reaper`].
    _in_use: File,
}

impl Cluster {
    /// Initialises the data directory if it is new, then adopts the server running in it or starts
    /// one.
    ///
    /// # Errors
    /// No server binaries, a directory that cannot be written, or a server that does not come up
    /// (with its log).
    pub fn start(config: &Config) -> Result<Self, Error> {
        let mut cluster = Self::prepare(config)?;
        cluster.restart()?;
        Ok(cluster)
    }

    /// Finds the binaries and initialises the data directory if it is new; starts nothing.
    fn prepare(config: &Config) -> Result<Self, Error> {
        let binaries = Binaries::find().map_err(Error::NotFound)?;
        let owner = Owner::current();
        make_private(&config.data_dir, owner).map_err(io(config.data_dir.display().to_string()))?;
        let data_dir = fs::canonicalize(&config.data_dir).map_err(io("data directory"))?;
        let in_use = wait_for_lock(&data_dir).map_err(io("postgres-lock"))?;
        let config = Config {
            data_dir,
            durable: config.durable,
        };
        let pgdata = owner.reachable(&config.data_dir.join("postgres"));
        let password = password(&config.data_dir.join("postgres-password"))?;
        let service_password = self::password(&config.data_dir.join("bakeoff-password"))?;
        let cluster = Self {
            config,
            binaries,
            owner,
            pgdata,
            password,
            service_password,
            port: 0,
            pid: 0,
            child: None,
            _in_use: in_use,
        };
        if !cluster.pgdata.join("PG_VERSION").exists() {
            cluster.initdb()?;
        } else if !cluster.pgdata.join(HAS_ROLE).exists() {
            cluster.give_a_role()?;
        }
        Ok(cluster)
    }

    /// Creates the service's role in a cluster that predates it.
    fn give_a_role(&self) -> Result<(), Error> {
        let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
        while let Some((pid, _)) = running(&self.pgdata) {
            if Instant::now() > deadline {
                return Err(self.failed("the PostgreSQL of an earlier version did not stop"));
            }
            if let Some(pid) = Pid::from_raw(pid) {
                kill_process(pid, Signal::INT).ok();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let scripts = role::of_an_old_cluster(&self.service_password);
        self.run_scripts(&self.pgdata, &scripts)
    }

    fn run_scripts(&self, pgdata: &Path, scripts: &[Script]) -> Result<(), Error> {
        for script in scripts {
            let sql = script.statements.join(";\n\n");
            let ran = self.single_user(pgdata, script.database, &format!("{sql};"));
            ran.map_err(|log| Error::Failed {
                what: "the role of the service".to_owned(),
                log,
            })?;
        }
        fs::write(pgdata.join(HAS_ROLE), role::NAME).map_err(io(HAS_ROLE))
    }

    /// `-j`: a command ends at a semicolon followed by an empty line, so a whole file is one
    /// command.
    fn single_user(&self, pgdata: &Path, database: &str, sql: &str) -> Result<(), String> {
        let mut command = child::server(self.binaries.dir.join("postgres"));
        command
            .args(["--single", "-j", "-D"])
            .arg(pgdata)
            .arg(database);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        self.owner.apply(&mut command);
        let mut child = child::spawn(&mut command).map_err(|error| error.to_string())?;
        if let Some(mut stdin) = child.stdin.take() {
            write!(stdin, "{sql}\n\n").map_err(|error| error.to_string())?;
        }
        let output = child
            .wait_with_output()
            .map_err(|error| error.to_string())?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() && !log.contains("ERROR:") {
            Ok(())
        } else {
            Err(log)
        }
    }

    /// Loads SQL files into a data directory whose server is not running (single-user mode): a
    /// schema without any client.
    ///
    /// # Errors
    /// A directory that cannot be initialised, or the first error that the server reports.
    pub fn load_offline(config: &Config, files: &[PathBuf]) -> Result<(), Error> {
        let cluster = Self::prepare(config)?;
        for file in files {
            let sql = fs::read_to_string(file).map_err(io(file.display().to_string()))?;
            cluster
                .single_user(&cluster.pgdata, "postgres", &sql)
                .map_err(|log| Error::Failed {
                    what: file.display().to_string(),
                    log,
                })?;
        }
        Ok(())
    }

    /// A connection URL for `database` as the superuser, for tests, which create databases.
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://{SUPERUSER}:{}@127.0.0.1:{}/{database}",
            self.password, self.port
        )
    }

    /// The URL of the service's own database, owned by its own role, which is not a superuser.
    pub fn service_url(&self) -> String {
        format!(
            "postgres://{0}:{1}@127.0.0.1:{2}/{0}",
            role::NAME,
            self.service_password,
            self.port
        )
    }

    /// The server's process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The `psql` that came with the server, if any: npm's package has none.
    pub fn psql(&self) -> Option<PathBuf> {
        Some(self.binaries.dir.join("psql")).filter(|path| path.is_file())
    }

    /// Where the server binaries came from: `given`, `pip`, `npm` or `installed`.
    pub fn source(&self) -> &'static str {
        self.binaries.source
    }

    /// Whether the server process is alive. Reaps it if it has died.
    pub fn is_alive(&mut self) -> bool {
        if let Some(child) = &mut self.child {
            return matches!(child.try_wait(), Ok(None));
        }
        reaper::began(self.pid).is_some()
    }

    /// Brings the server up: adopts one that runs in the directory, or else starts one. A restart
    /// keeps the port, because clients keep using the old URL.
    ///
    /// # Errors
    /// If it is not up after five minutes; the error carries the end of its log.
    pub fn restart(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + Duration::from_secs(START_SECONDS_MAX);
        while Instant::now() < deadline {
            let found = running(&self.pgdata);
            if let Some((pid, port)) = found
                && answers(port)
            {
                // Adopted: a child of ours that lost the race for the directory is not the server.
                if self
                    .child
                    .as_ref()
                    .is_some_and(|child| i32::try_from(child.id()) != Ok(pid))
                {
                    self.child = None;
                }
                (self.pid, self.port) = (pid, port);
                reaper::guard_cluster(pid, &self.config.data_dir);
                return self.save_url();
            }
            // A server that runs but does not answer is still recovering. A killed one leaves
            // children that hold its shared memory for a moment, which makes the next server exit:
            // retry until they are gone.
            if found.is_none() && !self.is_alive() {
                self.spawn()?;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(self.failed("PostgreSQL did not start"))
    }

    /// Fast shutdown: open transactions are rolled back, everything committed is on disk.
    ///
    /// # Errors
    /// If the process is still alive after two minutes.
    pub fn stop(mut self) -> Result<(), Error> {
        if let Some(pid) = Pid::from_raw(self.pid) {
            // An error means that the process is already gone.
            kill_process(pid, Signal::INT).ok();
        }
        let deadline = Instant::now() + Duration::from_secs(STOP_SECONDS_MAX);
        while self.is_alive() {
            if Instant::now() > deadline {
                return Err(self.failed("PostgreSQL did not stop"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(fs::remove_file(self.config.data_dir.join(URL_FILE)));
        Ok(())
    }

    /// Removes data kept outside the data directory because the server's user could not reach it
    /// there. Call this before removing the data directory.
    pub fn discard(data_dir: &Path) {
        let Ok(data_dir) = fs::canonicalize(data_dir) else {
            return;
        };
        let pgdata = Owner::current().reachable(&data_dir.join("postgres"));
        if !pgdata.starts_with(&data_dir) {
            // It may not exist.
            drop(fs::remove_dir_all(pgdata));
        }
    }

    /// Initialises in a folder beside the target and renames it when complete: a kill part-way
    /// leaves nothing that looks like a cluster.
    fn initdb(&self) -> Result<(), Error> {
        let fresh = self.pgdata.with_extension("new");
        drop(fs::remove_dir_all(&fresh));
        fs::create_dir_all(&fresh).map_err(io(fresh.display().to_string()))?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o700)).map_err(io("chmod"))?;
        self.owner.own(&fresh).map_err(io("chown"))?;
        // Beside the cluster, where only its owner and we can write, and newly created, so that it
        // cannot be someone else's link.
        let pwfile = self.pgdata.with_extension("pw");
        drop(fs::remove_file(&pwfile));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&pwfile)
            .map_err(io("password"))?;
        file.write_all(self.password.as_bytes())
            .map_err(io("password"))?;
        self.owner.own(&pwfile).map_err(io("chown"))?;
        let mut command = child::server(self.binaries.dir.join("initdb"));
        command
            .arg("-D")
            .arg(&fresh)
            .args([
                "-U",
                SUPERUSER,
                "--auth=scram-sha-256",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .arg(format!("--pwfile={}", pwfile.display()));
        if self
            .binaries
            .major()
            .is_some_and(|major| major >= SCRAM_ITERATIONS_SINCE)
        {
            // Iterations slow down guessing of passwords that people choose. These passwords are
            // 192 random bits, and every connection would pay for 4,096 rounds: tens of
            // milliseconds in a debug build.
            command.args(["-c", "scram_iterations=1"]);
        }
        self.owner.apply(&mut command);
        let output = child::output(&mut command).map_err(io("initdb"));
        drop(fs::remove_file(&pwfile));
        let output = output?;
        if output.status.success() {
            self.run_scripts(&fresh, &role::of_a_new_cluster(&self.service_password))?;
            return fs::rename(&fresh, &self.pgdata).map_err(io("rename"));
        }
        Err(Error::Failed {
            what: format!("initdb failed ({})", output.status),
            log: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    fn spawn(&mut self) -> Result<(), Error> {
        if self.port == 0 {
            self.port = free_port()?;
        } else if TcpListener::bind(("127.0.0.1", self.port)).is_err() {
            // Clients use this port through the URL: wait for the port rather than move.
            return Ok(());
        }
        let log = self.open_log()?;
        let mut command = child::server(self.binaries.dir.join("postgres"));
        command
            .arg("-D")
            .arg(&self.pgdata)
            .args(["-p", &self.port.to_string()])
            .args([
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "unix_socket_directories=",
            ])
            .args(["-c", "jit=off", "-c", "max_connections=200"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(io("postgres.log"))?)
            .stderr(log)
            .process_group(0);
        if !self.config.durable {
            // Committed data still survives the death of every process, but not of the machine.
            command.args([
                "-c",
                "fsync=off",
                "-c",
                "full_page_writes=off",
                "-c",
                "max_connections=400",
            ]);
        }
        self.owner.apply(&mut command);
        let child = command.spawn().map_err(io("postgres"))?;
        self.pid = Pid::from_child(&child).as_raw_nonzero().get();
        reaper::guard_cluster(self.pid, &self.config.data_dir);
        self.child = Some(child);
        Ok(())
    }

    fn open_log(&self) -> Result<File, Error> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(self.log_path())
            .map_err(io("postgres.log"))?;
        // An older log may still be readable by others.
        log.set_permissions(Permissions::from_mode(0o600))
            .map_err(io("postgres.log"))?;
        Ok(log)
    }

    fn save_url(&self) -> Result<(), Error> {
        write_secret(&self.config.data_dir.join(URL_FILE), &self.service_url())
    }

    fn log_path(&self) -> PathBuf {
        self.config.data_dir.join("postgres.log")
    }

    fn failed(&self, what: &str) -> Error {
        let text = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(12).collect();
        let log = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
        Error::Failed {
            what: format!("{what}; the end of {}:", self.log_path().display()),
            log,
        }
    }
}

const URL_FILE: &str = "postgres-url";

/// The URL of the cluster that runs in `data_dir`, for a second process on the same machine
/// (`bakeoff keys create`).
pub fn saved_url(data_dir: &Path) -> Option<String> {
    fs::read_to_string(data_dir.join(URL_FILE)).ok()
}

/// Restricts a data directory to its owner. If the server's user is another one, it must be able to
/// pass through to its part.
fn make_private(data_dir: &Path, owner: Owner) -> std::io::Result<()> {
    let mode = if owner.is_another() { 0o711 } else { 0o700 };
    if let Some(parent) = data_dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(mode).create(data_dir) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        created => return created,
    }
    // An older directory may be open to others. A folder that also has other uses is left
    // unchanged.
    let meta = fs::metadata(data_dir)?;
    let is_new = fs::read_dir(data_dir)?.next().is_none();
    let is_ours = is_new || data_dir.join("postgres-password").exists();
    if is_ours && meta.uid() == geteuid().as_raw() && meta.mode() & 0o1000 == 0 {
        fs::set_permissions(data_dir, Permissions::from_mode(meta.mode() & mode))?;
    }
    Ok(())
}

/// Takes the lock shared with other users of the cluster; a reaper that shuts it down briefly holds
/// the lock exclusively.
fn wait_for_lock(data_dir: &Path) -> std::io::Result<File> {
    let file = reaper::lock_file(data_dir)?;
    file.lock_shared()?;
    Ok(file)
}

fn password(path: &Path) -> Result<String, Error> {
    if let Ok(saved) = fs::read_to_string(path) {
        return Ok(saved);
    }
    let mut bytes = [0u8; 24];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(io("/dev/urandom"))?;
    let fresh = bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    write_secret(path, &fresh)?;
    Ok(fresh)
}

/// Writes to a file beside it and renames that, so that a reader never sees a partial file.
fn write_secret(path: &Path, text: &str) -> Result<(), Error> {
    let name = path.display().to_string();
    let scratch = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&scratch)
        .map_err(io(name.clone()))?;
    file.write_all(text.as_bytes()).map_err(io(name.clone()))?;
    fs::rename(&scratch, path).map_err(io(name))
}

fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io("a free port"))?;
    Ok(listener.local_addr().map_err(io("a free port"))?.port())
}

/// Process id and port from `postmaster.pid` (lines 1 and 4), if that process exists.
fn running(pgdata: &Path) -> Option<(i32, u16)> {
    let text = fs::read_to_string(pgdata.join("postmaster.pid")).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    let port = lines.nth(2)?.trim().parse().ok()?;
    reaper::began(pid).is_some().then_some((pid, port))
}

/// Sends a start-up packet: a reply of `R` (an authentication request) means that the server
/// accepts connections.
fn answers(port: u16) -> bool {
    let body = b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0";
    let mut packet = u32::try_from(body.len() + 4)
        .unwrap_or_default()
        .to_be_bytes()
        .to_vec();
    packet.extend_from_slice(body);
    let ask = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(&packet)?;
        let mut first = [0u8; 1];
        stream.read_exact(&mut first)?;
        Ok(first[0])
    };
    matches!(ask(), Ok(b'R'))
}
