//! The processes of one seed: a region, replicas of the service, a proxy to their database. Nothing of it can reach AWS.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::plan::Plan;
use super::proxy::Proxy;
use crate::process::{Signal, program, signal, spawn};
use crate::stack::{kill, ready, rfc3339, simulated_aws};

/// Virtual seconds in a real one.
pub(super) const FACTOR: i64 = 300;
pub(super) const LEASE_SECONDS: u32 = 1;
/// Between two listings, virtual seconds.
pub(super) const POLL_SECONDS: u32 = 600;
pub(super) const KEEP_ALIVE_SECONDS: u32 = 5400;
const SECRET_KEY: &str = "5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed";

const VIRTUAL_ORIGIN: &str = "2026-11-20T00:00:00Z";
const SETUP_TRIES: u32 = 240;

/// A replica and what becomes of it.
pub(super) struct Replica {
    child: Option<Child>,
    port: u16,
    /// It is to be started again then.
    restart_at: Option<Instant>,
    /// It is stopped, to be continued then.
    continue_at: Option<Instant>,
    clock_shift: i64,
}

/// Everything that runs for one seed.
pub(super) struct Stage {
    folder: PathBuf,
    database: String,
    proxy: Proxy,
    region: Child,
    pub(super) region_url: String,
    s3_url: String,
    pub(super) replicas: Vec<Replica>,
    real_origin: i64,
    armed: Vec<String>,
    push: bool,
    pub(super) api_key: String,
    /// Who died (process id), and when.
    pub(super) deaths: Vec<(u32, SystemTime)>,
    /// From when to when a replica was stopped.
    pub(super) freezes: Vec<(SystemTime, SystemTime)>,
    /// What was done to the processes, by kind.
    pub(super) blows: BTreeMap<&'static str, u64>,
}

fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    Ok(listener.local_addr().map_err(|error| error.to_string())?.port())
}

/// Runs a command of the host's until it succeeds: Postgres may just be dead.
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

impl Stage {
    /// `database_url` is a function of the port, so that replicas go through the proxy.
    pub(super) fn set(
        folder: PathBuf,
        plan: &Plan,
        cluster_url: &str,
        cluster_port: u16,
        seed: u64,
    ) -> Result<Self, String> {
        fs::create_dir_all(folder.join("s3/storm/train")).map_err(|error| error.to_string())?;
        fs::write(folder.join("s3/storm/train/part-0"), "x").map_err(|error| error.to_string())?;
        let direct = cluster_url.to_owned();
        output(Command::new(program("bakeoff")).args(["migrate", "--create"]).env("DATABASE_URL", &direct))?;
        let api_key = output(
            Command::new(program("bakeoff"))
                .args(["keys", "create", "--project", "storm", "--role", "admin"])
                .env("DATABASE_URL", &direct),
        )?;
        let events =
            output(Command::new(program("bakeoff")).args(["keys", "events"]).env("BAKEOFF_SECRET_KEY", SECRET_KEY))?;
        let proxy = Proxy::start(cluster_port).map_err(|error| error.to_string())?;
        let ports: Vec<u16> = (0..plan.replicas).map(|_| free_port()).collect::<Result<_, _>>()?;
        let real_origin = crate::stack::now_seconds();
        let mut region = start_region(&folder, plan, &events, ports.first().copied().unwrap_or(0), real_origin, seed)?;
        let addresses = match ready(&folder.join("region.json"), &mut region, &folder.join("region.log")) {
            Ok(text) => text,
            Err(error) => {
                kill(&mut region);
                return Err(error);
            }
        };
        let addresses: Value = serde_json::from_str(&addresses).map_err(|error| error.to_string())?;
        let database = direct.replace(&format!(":{cluster_port}/"), &format!(":{}/", proxy.port));
        let replica =
            |port| Replica { child: None, port, restart_at: Some(Instant::now()), continue_at: None, clock_shift: 0 };
        Ok(Self {
            database,
            proxy,
            region,
            region_url: addresses["api"].as_str().unwrap_or_default().to_owned(),
            s3_url: addresses["s3"].as_str().unwrap_or_default().to_owned(),
            replicas: ports.into_iter().map(replica).collect(),
            real_origin,
            armed: plan.armed.iter().rev().cloned().collect(),
            push: plan.push,
            api_key,
            deaths: Vec::new(),
            freezes: Vec::new(),
            blows: BTreeMap::new(),
            folder,
        })
    }

    /// Starts what is due to start, continues what is due to go on, and notices who died or froze. True when somebody froze
    /// at a named point.
    pub(super) fn tend(&mut self, freeze: Duration) -> Result<bool, String> {
        let mut froze = false;
        for index in 0..self.replicas.len() {
            let due = self.replicas.get(index).is_some_and(|one| one.restart_at.is_some_and(|at| at <= Instant::now()));
            if due {
                let child = self.start(index)?;
                if let Some(replica) = self.replicas.get_mut(index) {
                    (replica.child, replica.restart_at) = (Some(child), None);
                }
            }
            let Some(replica) = self.replicas.get_mut(index) else { continue };
            let Some(child) = &mut replica.child else { continue };
            if matches!(child.try_wait(), Ok(Some(_))) {
                self.deaths.push((child.id(), SystemTime::now()));
                *self.blows.entry("kill_at_point").or_default() += 1;
                (replica.child, replica.restart_at) = (None, Some(Instant::now() + Duration::from_millis(300)));
                continue;
            }
            let pid = child.id();
            match replica.continue_at {
                Some(at) if at <= Instant::now() => {
                    signal(i32::try_from(pid).unwrap_or_default(), Signal::CONT);
                    replica.continue_at = None;
                }
                None if is_stopped(pid) => {
                    replica.continue_at = Some(Instant::now() + freeze);
                    self.freezes.push((SystemTime::now(), SystemTime::now() + freeze));
                    *self.blows.entry("freeze_at_point").or_default() += 1;
                    froze = true;
                }
                _ => {}
            }
        }
        Ok(froze)
    }

    fn start(&mut self, index: usize) -> Result<Child, String> {
        let Some(replica) = self.replicas.get(index) else { return Err("there is no such replica".to_owned()) };
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.folder.join(format!("service-{index}.log")));
        let log = log.map_err(|error| error.to_string())?;
        let origin = rfc3339(self.real_origin + replica.clock_shift / FACTOR);
        let mut command = Command::new(program("bakeoff"));
        command
            .args(["serve", "--listen", &format!("127.0.0.1:{}", replica.port)])
            .args(["--poll-seconds", &POLL_SECONDS.to_string(), "--lease-seconds", &LEASE_SECONDS.to_string()])
            .args(["--aws-timeout-seconds", "1.5", "--database-connections", "14"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|error| error.to_string())?)
            .stderr(log)
            .env("DATABASE_URL", &self.database)
            .env("BAKEOFF_SECRET_KEY", SECRET_KEY)
            .env("BAKEOFF_CLOCK", format!("{VIRTUAL_ORIGIN},{origin},{FACTOR}"));
        simulated_aws(&mut command, &self.region_url, &self.s3_url);
        if self.push {
            command.arg("--aws-push");
        }
        if let Some(armed) = self.armed.pop() {
            command.env("BAKEOFF_FAULT", armed);
        }
        spawn(&mut command)
    }

    /// The real moment of a virtual one.
    pub(super) fn real(&self, at: DateTime<Utc>) -> DateTime<Utc> {
        let virtual_origin: DateTime<Utc> = VIRTUAL_ORIGIN.parse().unwrap_or_default();
        let origin = DateTime::from_timestamp(self.real_origin, 0).unwrap_or_default();
        origin + (at - virtual_origin) / i32::try_from(FACTOR).unwrap_or(1)
    }

    /// `kill -9`, and a start soon after; with a clock that is off, if asked.
    pub(super) fn kill_replica(&mut self, index: usize, clock_shift: i64) {
        let Some(replica) = self.replicas.get_mut(index) else { return };
        if let Some(mut child) = replica.child.take() {
            self.deaths.push((child.id(), SystemTime::now()));
            kill(&mut child);
            let kind = if clock_shift == 0 { "kill" } else { "clock_jump" };
            *self.blows.entry(kind).or_default() += 1;
        }
        replica.continue_at = None;
        replica.clock_shift = clock_shift;
        replica.restart_at = Some(Instant::now() + Duration::from_millis(100));
    }

    /// SIGSTOP, to be continued later.
    pub(super) fn freeze_replica(&mut self, index: usize, freeze: Duration) {
        let Some(replica) = self.replicas.get_mut(index) else { return };
        if let Some(child) = &replica.child {
            signal(i32::try_from(child.id()).unwrap_or_default(), Signal::STOP);
            replica.continue_at = Some(Instant::now() + freeze);
            self.freezes.push((SystemTime::now(), SystemTime::now() + freeze));
            *self.blows.entry("freeze").or_default() += 1;
        }
    }

    pub(super) fn cut_connections(&mut self) {
        *self.blows.entry("cut_connections").or_default() += 1;
        self.proxy.cut();
    }

    /// No more faults are armed, clocks are right again, everybody goes on.
    pub(super) fn calm(&mut self) {
        self.armed.clear();
        for index in 0..self.replicas.len() {
            let Some(replica) = self.replicas.get_mut(index) else { continue };
            if let Some(child) = &replica.child {
                signal(i32::try_from(child.id()).unwrap_or_default(), Signal::CONT);
            }
            replica.continue_at = None;
            if replica.clock_shift != 0 {
                self.kill_replica(index, 0);
            }
        }
    }

    /// Where the service answers, if anywhere.
    pub(super) fn urls(&self) -> Vec<String> {
        let up = self.replicas.iter().filter(|replica| replica.child.is_some() && replica.continue_at.is_none());
        up.map(|replica| format!("http://127.0.0.1:{}", replica.port)).collect()
    }

    /// Ends everything: the last part of a seed.
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
    folder: &Path,
    plan: &Plan,
    events: &str,
    port: u16,
    real_origin: i64,
    seed: u64,
) -> Result<Child, String> {
    let log = fs::File::create(folder.join("region.log")).map_err(|error| error.to_string())?;
    let mut command = Command::new(program("bakeoff-sim"));
    command
        .arg("--s3-root")
        .arg(folder.join("s3"))
        .arg("--ready-file")
        .arg(folder.join("region.json"))
        .args(["--seed", &seed.to_string(), "--quota", "4", "--create-per-second", "2"])
        .args(["--clock", &format!("{VIRTUAL_ORIGIN},{},{FACTOR}", rfc3339(real_origin))])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    if plan.push {
        command.args(["--events-to", &format!("http://127.0.0.1:{port}/v1/aws-events")]);
        command.env("BAKEOFF_SIM_EVENTS_AUTHORIZATION", events);
    }
    for (fault, share) in plan.region.as_object().into_iter().flatten() {
        command.args([format!("--{}", fault.replace('_', "-")), share.to_string()]);
    }
    spawn(&mut command)
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}
