//! The processes of one seed: a region, replicas of the service, and a proxy to their database.
//! None of them can reach AWS.

mod faults;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::database::Database;
use super::plan::{Pace, Plan};
use super::proxy::Proxy;
use super::upgrade::Upgraded;
use crate::process::{Signal, signal, spawn};
use bakeoff_demo::stack::{SCHEDULER_ROLE, kill, ready, rfc3339, simulated_aws};

/// The fence object, which tells two databases of one installation apart.
const FENCE: &str = "s3://storm/fence.json";

pub(super) const LEASE_SECONDS: u32 = 1;
pub(super) const KEEP_ALIVE_SECONDS: u32 = 5400;
const SECRET_KEY: &str = "5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed";

const SETUP_TRIES: u32 = 240;
/// The account of the region's jobs, and one that belongs to someone else.
pub(super) const ACCOUNT: &str = "111122223333";
const FOREIGN_ACCOUNT: &str = "999988887777";
/// Prefix of the names of other people's jobs.
pub(super) const STRANGERS: &str = "nightly-";
/// How long the credentials belong to another account.
const FOREIGN_FOR: Duration = Duration::from_secs(4);

/// Work on a silent connection is given up after this time.
pub(super) const SILENT_MAX: Duration = Duration::from_secs(30);

/// Suffix of the name of a seed's second database.
pub(super) const COPY: &str = "_copy";

/// A replica and what is planned for it.
pub(super) struct Replica {
    pub(super) child: Option<Child>,
    pub(super) port: u16,
    /// When to start it again.
    restart_at: Option<Instant>,
    /// When to continue it, while it is stopped.
    pub(super) continue_at: Option<Instant>,
    /// Whether it is stopped for good.
    pub(super) is_lost: bool,
    clock_shift: i64,
    /// The fault it is armed with.
    armed: Option<String>,
}

/// How a replica came to leave what it held to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Killed,
    /// Within a transaction, or for good.
    Frozen,
}

/// A replica that died or froze.
pub(super) struct Death {
    pub(super) pid: u32,
    pub(super) at: SystemTime,
    pub(super) end: End,
}

/// A stopped replica, with its start and end.
pub(super) struct Freeze {
    pub(super) pid: u32,
    pub(super) from: SystemTime,
    pub(super) to: SystemTime,
}

/// Where a seed is played, and with which programs.
pub(super) struct Place {
    pub(super) folder: PathBuf,
    /// Where our programs are, by name.
    pub(super) program: fn(&str) -> PathBuf,
}

/// Everything that runs for one seed.
pub(super) struct Stage {
    folder: PathBuf,
    program: fn(&str) -> PathBuf,
    /// The URL through the proxy.
    database: String,
    proxy: Proxy,
    region: Child,
    pub(super) region_url: String,
    s3_url: String,
    pub(super) replicas: Vec<Replica>,
    real_origin: i64,
    pub(super) pace: Pace,
    armed: Vec<String>,
    push: bool,
    pub(super) api_key: String,
    /// Of another project.
    pub(super) neighbour_key: String,
    /// Replicas whose work others take over.
    pub(super) deaths: Vec<Death>,
    pub(super) freezes: Vec<Freeze>,
    /// Replicas that exited by themselves.
    ended: u64,
    /// When connections fell silent.
    pub(super) silences: Vec<SystemTime>,
    /// When the credentials switched to another account.
    pub(super) foreign_from: Vec<SystemTime>,
    /// When the credentials switch back.
    foreign_until: Option<Instant>,
    /// The seed's database, without the proxy.
    pub(super) direct: Database,
    /// Whether the replicas have a fence.
    is_fenced: bool,
    pub(super) upgraded: Option<Upgraded>,
    /// When all replicas were gone: from when the schema was newer than the program, or from a kill of all of them, until
    /// they were back.
    pub(super) upgrades: Vec<(SystemTime, SystemTime)>,
    loses_what_freezes: bool,
    /// Replicas that had not noticed a newer schema in time.
    pub(super) unnoticed: u32,
    /// Times replicas came up under a newer schema.
    pub(super) came_up: u32,
    /// Faults injected into the processes, by kind.
    pub(super) injected: BTreeMap<&'static str, u64>,
}

fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    Ok(listener
        .local_addr()
        .map_err(|error| error.to_string())?
        .port())
}

/// Runs a setup command until it succeeds, because Postgres may be down just now.
fn output(command: &mut Command) -> Result<String, String> {
    let mut why = String::new();
    for _ in 0..SETUP_TRIES {
        let output = command.output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        why = String::from_utf8_lossy(&output.stderr).into_owned();
        std::thread::sleep(Duration::from_millis(500));
    }
    Err(format!("the stage could not be set: {why}"))
}

/// Migrates the database, and makes the keys of both projects and of AWS's events.
fn keys(program: &Path, database: &str) -> Result<[String; 3], String> {
    let bakeoff = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("DATABASE_URL", database)
            .env("BAKEOFF_SECRET_KEY", SECRET_KEY);
        output(&mut command)
    };
    let key_of = |project: &str| {
        let key = ["keys", "create", "--role", "admin"];
        let budget = ["--budget-usd", "1000000000", "--project", project];
        bakeoff(&[key, budget].concat())
    };
    bakeoff(&["migrate", "--create"])?;
    Ok([
        key_of("storm")?,
        key_of("neighbour")?,
        bakeoff(&["keys", "events"])?,
    ])
}

impl Replica {
    /// A replica that is due to start.
    fn new(port: u16) -> Self {
        Self {
            child: None,
            port,
            restart_at: Some(Instant::now()),
            continue_at: None,
            is_lost: false,
            clock_shift: 0,
            armed: None,
        }
    }
}

/// Waits for the region, and returns the addresses it listens on.
fn addresses(folder: &Path, region: &mut Child) -> Result<Value, String> {
    let text = ready(
        &folder.join("region.json"),
        region,
        &folder.join("region.log"),
    )?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

impl Stage {
    /// Migrates the database and starts the proxy and the region; `tend` starts the replicas, which
    /// reach the database through the proxy.
    pub(super) fn set(
        place: Place,
        plan: &Plan,
        direct: Database,
        seed: u64,
    ) -> Result<Self, String> {
        let Place { folder, program } = &place;
        fs::create_dir_all(folder.join("s3/storm/train")).map_err(|error| error.to_string())?;
        fs::write(folder.join("s3/storm/train/part-0"), "x").map_err(|error| error.to_string())?;
        let [api_key, neighbour_key, events] = keys(&program("bakeoff"), &direct.url)?;
        let proxy = Proxy::start(direct.port).map_err(|error| error.to_string())?;
        let ports: Vec<u16> = (0..plan.replicas)
            .map(|_| free_port())
            .collect::<Result<_, _>>()?;
        let real_origin = bakeoff_demo::stack::now_seconds();
        let mut region = start_region(
            &place,
            plan,
            &events,
            ports.first().copied().unwrap_or(0),
            real_origin,
            seed,
        )?;
        let addresses = addresses(folder, &mut region).inspect_err(|_| kill(&mut region))?;
        let database = direct
            .url
            .replace(&format!(":{}/", direct.port), &format!(":{}/", proxy.port));
        Ok(Self {
            database,
            proxy,
            region,
            region_url: addresses["api"].as_str().unwrap_or_default().to_owned(),
            s3_url: addresses["s3"].as_str().unwrap_or_default().to_owned(),
            replicas: ports.into_iter().map(Replica::new).collect(),
            real_origin,
            pace: plan.pace,
            armed: plan.armed.iter().rev().cloned().collect(),
            push: plan.push,
            api_key,
            neighbour_key,
            deaths: Vec::new(),
            freezes: Vec::new(),
            ended: 0,
            silences: Vec::new(),
            foreign_from: Vec::new(),
            foreign_until: None,
            direct,
            is_fenced: plan.twin.is_some(),
            upgraded: None,
            upgrades: Vec::new(),
            loses_what_freezes: plan.loses_what_freezes,
            unnoticed: 0,
            came_up: 0,
            injected: BTreeMap::new(),
            folder: place.folder,
            program: place.program,
        })
    }

    /// Starts and continues the replicas that are due, and records which ones died or froze.
    /// Returns true when one froze at a named point.
    pub(super) fn tend(&mut self, freeze: Duration) -> Result<bool, String> {
        if self.foreign_until.is_some_and(|at| at <= Instant::now()) {
            self.use_account(ACCOUNT)?;
            self.foreign_until = None;
        }
        self.follow_upgrade();
        let mut froze = false;
        for index in 0..self.replicas.len() {
            let due = self
                .replicas
                .get(index)
                .is_some_and(|one| one.restart_at.is_some_and(|at| at <= Instant::now()));
            if due {
                let child = self.start(index)?;
                if let Some(replica) = self.replicas.get_mut(index) {
                    (replica.child, replica.restart_at) = (Some(child), None);
                }
            }
            froze |= self.look_after(index, freeze);
        }
        Ok(froze)
    }

    /// Returns true when the replica has just frozen at a named point.
    fn look_after(&mut self, index: usize, freeze: Duration) -> bool {
        let now = SystemTime::now();
        let last_words = self.last_words(index);
        let has_lost = self.replicas.iter().any(|replica| replica.is_lost);
        let Some(replica) = self
            .replicas
            .get_mut(index)
            .filter(|replica| !replica.is_lost)
        else {
            return false;
        };
        let Some(child) = &mut replica.child else {
            return false;
        };
        let pid = child.id();
        if let Ok(Some(status)) = child.try_wait() {
            // A replica that exits by itself, because its credentials belong to another account,
            // holds nothing.
            if status.code().is_none() {
                self.deaths.push(Death {
                    pid,
                    at: now,
                    end: End::Killed,
                });
                *self
                    .injected
                    .entry(kind_of("kill", replica.armed.as_deref()))
                    .or_default() += 1;
            } else if self
                .upgraded
                .as_mut()
                .is_none_or(|upgraded| !upgraded.has_refused(pid))
            {
                self.ended += 1;
            }
            (replica.child, replica.restart_at) =
                (None, Some(Instant::now() + Duration::from_millis(300)));
            return false;
        }
        match replica.continue_at {
            Some(at) if at <= Instant::now() => {
                signal(i32::try_from(pid).unwrap_or_default(), Signal::CONT);
                replica.continue_at = None;
                // It may have been planned to end sooner.
                if let Some(freeze) = self.freezes.iter_mut().rfind(|freeze| freeze.pid == pid) {
                    freeze.to = freeze.to.max(now);
                }
                false
            }
            None if is_stopped(pid) => {
                let kind = kind_of("freeze", replica.armed.as_deref());
                *self.injected.entry(kind).or_default() += 1;
                if kind == "freeze_in_transaction" && self.loses_what_freezes && !has_lost {
                    return self.lose_replica(index);
                }
                replica.continue_at = Some(Instant::now() + freeze);
                self.freezes.push(Freeze {
                    pid,
                    from: last_words,
                    to: now + freeze,
                });
                if kind == "freeze_in_transaction" {
                    self.deaths.push(Death {
                        pid,
                        at: last_words,
                        end: End::Frozen,
                    });
                }
                true
            }
            _ => false,
        }
    }

    fn start(&mut self, index: usize) -> Result<Child, String> {
        let Some(replica) = self.replicas.get(index) else {
            return Err("there is no such replica".to_owned());
        };
        let mut command = self.serve(
            &index.to_string(),
            replica.port,
            replica.clock_shift,
            &self.database,
        )?;
        if self.push {
            command.arg("--aws-push");
        }
        let armed = self.armed.pop();
        if let Some(armed) = &armed {
            command.env("BAKEOFF_FAULT", armed);
        }
        let child = spawn(&mut command)?;
        if let Some(replica) = self.replicas.get_mut(index) {
            replica.armed = armed;
        }
        Ok(child)
    }

    /// A command that starts a replica.
    fn serve(
        &self,
        name: &str,
        port: u16,
        clock_shift: i64,
        database: &str,
    ) -> Result<Command, String> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_of(name));
        let log = log.map_err(|error| error.to_string())?;
        let origin = rfc3339(self.real_origin + clock_shift / i64::from(self.pace.factor));
        let mut command = Command::new((self.program)("bakeoff"));
        command
            .args(["serve", "--listen", &format!("127.0.0.1:{port}")])
            .args(["--poll-seconds", &self.pace.poll_seconds.to_string()])
            .args(["--lease-seconds", &LEASE_SECONDS.to_string()])
            .args([
                "--aws-timeout-seconds",
                "1.5",
                "--database-connections",
                "14",
                "--outgoing-allow",
                "127.0.0.1/32",
                "--scheduler-role-arn",
                SCHEDULER_ROLE,
            ])
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|error| error.to_string())?)
            .stderr(log)
            .env("DATABASE_URL", database)
            .env("BAKEOFF_SECRET_KEY", SECRET_KEY)
            .env(
                "BAKEOFF_CLOCK",
                format!("{},{origin},{}", self.pace.origin, self.pace.factor),
            );
        if self.is_fenced {
            command.args(["--fence", FENCE]);
        }
        simulated_aws(&mut command, &self.region_url, &self.s3_url);
        Ok(command)
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("service-{name}.log"))
    }

    /// When a replica last logged something; one that freezes at a point logs that.
    fn last_words(&self, index: usize) -> SystemTime {
        let said = fs::metadata(self.log_of(&index.to_string())).and_then(|log| log.modified());
        said.unwrap_or_else(|_| SystemTime::now())
    }

    /// Converts virtual to real time.
    pub(super) fn real(&self, at: DateTime<Utc>) -> DateTime<Utc> {
        let virtual_origin: DateTime<Utc> = self.pace.origin.parse().unwrap_or_default();
        let origin = DateTime::from_timestamp(self.real_origin, 0).unwrap_or_default();
        origin + (at - virtual_origin) / self.pace.factor
    }

    /// The process id of the only replica, if its clock is set back.
    pub(super) fn set_back_pid(&self) -> Option<u32> {
        let [replica] = self.replicas.as_slice() else {
            return None;
        };
        let is_set_back = replica
            .armed
            .as_ref()
            .is_some_and(|armed| armed.starts_with("set-back"));
        replica
            .child
            .as_ref()
            .filter(|_| is_set_back && !replica.is_lost)
            .map(Child::id)
    }

    /// Counts the lines of the replicas' logs that contain a text.
    pub(super) fn count_in_logs(&self, text: &str) -> u64 {
        let names = (0..self.replicas.len())
            .map(|index| index.to_string())
            .chain(["copy".to_owned()]);
        let logs = names.map(|name| self.log_of(&name));
        let lines = logs.filter_map(|log| fs::read(log).ok());
        let count = |log: Vec<u8>| {
            String::from_utf8_lossy(&log)
                .lines()
                .filter(|line| line.contains(text))
                .count()
        };
        lines
            .map(|log| u64::try_from(count(log)).unwrap_or_default())
            .sum()
    }

    /// The addresses of all replicas, whether they answer or not.
    pub(super) fn all_urls(&self) -> Vec<String> {
        self.replicas
            .iter()
            .map(|replica| format!("http://127.0.0.1:{}", replica.port))
            .collect()
    }

    /// The addresses of the replicas that are up. One that froze by itself is not, whether that has
    /// been noticed or not.
    pub(super) fn urls(&self) -> Vec<String> {
        let up = |replica: &&Replica| {
            let runs = |child: &Child| !is_stopped(child.id());
            replica.child.as_ref().is_some_and(runs)
                && replica.continue_at.is_none()
                && !replica.is_lost
        };
        let up = self.replicas.iter().filter(up);
        up.map(|replica| format!("http://127.0.0.1:{}", replica.port))
            .collect()
    }

    /// Kills everything; the last step of a seed.
    pub(super) fn strike(&mut self) {
        for replica in &mut self.replicas {
            if let Some(child) = &mut replica.child {
                kill(child);
            }
        }
        kill(&mut self.region);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.strike();
    }
}

fn start_region(
    place: &Place,
    plan: &Plan,
    events: &str,
    port: u16,
    real_origin: i64,
    seed: u64,
) -> Result<Child, String> {
    let folder = &place.folder;
    let log = fs::File::create(folder.join("region.log")).map_err(|error| error.to_string())?;
    let mut command = Command::new((place.program)("bakeoff-sim"));
    command
        .arg("--s3-root")
        .arg(folder.join("s3"))
        .arg("--ready-file")
        .arg(folder.join("region.json"))
        .args([
            "--seed",
            &seed.to_string(),
            "--quota",
            "4",
            "--create-per-second",
            "2",
        ])
        .args([
            "--clock",
            &format!(
                "{},{},{}",
                plan.pace.origin,
                rfc3339(real_origin),
                plan.pace.factor
            ),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    if plan.push {
        command.args([
            "--events-to",
            &format!("http://127.0.0.1:{port}/v1/aws-events"),
        ]);
        command.env("BAKEOFF_SIM_EVENTS_AUTHORIZATION", events);
    }
    for (fault, share) in plan.region.as_object().into_iter().flatten() {
        command.args([format!("--{}", fault.replace('_', "-")), share.to_string()]);
    }
    spawn(&mut command)
}

/// The kind of fault that a process suffered, by where it was armed.
fn kind_of(what: &str, armed: Option<&str>) -> &'static str {
    match (what, armed.is_some_and(|armed| armed.contains("@in_"))) {
        ("kill", true) => "kill_in_transaction",
        ("kill", false) => "kill_at_point",
        (_, true) => "freeze_in_transaction",
        (_, false) => "freeze_at_point",
    }
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}
