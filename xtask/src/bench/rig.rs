//! The setup of a measurement: release builds of the region and the service, their own Postgres,
//! and a client.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bakeoff_postgres::{Cluster, Config};
use serde_json::{Value, json};

use super::spec::spec;
use crate::process::{Scratch, interrupt, release, scratch, wait_gone};
use bakeoff_demo::stack::{kill, now_seconds, ready, rfc3339, simulated_aws};

const SECRET_KEY: &str = "5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed";
const TRIALS_OF_EXPERIMENT: u32 = 200;

/// The conditions of a measurement.
pub(super) struct Setting {
    /// Virtual seconds per real second.
    pub(super) factor: u32,
    pub(super) push: bool,
    /// 0: read once, after the end.
    pub(super) metrics_interval_seconds: u32,
    pub(super) region: Vec<String>,
}

pub(super) struct Rig {
    cluster: Cluster,
    region: Child,
    region_url: String,
    service: Child,
    url: String,
    key: String,
    agent: ureq::Agent,
    bare: Option<(Child, String)>,
    // Last, so that the folder is removed after everything in it has ended.
    scratch: Scratch,
}

impl Rig {
    pub(super) fn set(setting: &Setting) -> Result<Self, String> {
        let scratch = scratch("bench")?;
        let folder = scratch.0.clone();
        fs::create_dir_all(folder.join("s3/bench/train")).map_err(|error| error.to_string())?;
        fs::write(folder.join("s3/bench/train/part-0"), "x").map_err(|error| error.to_string())?;
        let cluster = Cluster::start(&Config {
            data_dir: folder.join("data"),
            durable: false,
        });
        let cluster = cluster.map_err(|error| error.to_string())?;
        let database = cluster.url("postgres");
        host(&["migrate"], &database)?;
        let key = host(
            &[
                "keys",
                "create",
                "--project",
                "bench",
                "--role",
                "admin",
                "--budget-usd",
                "1000000000",
            ],
            &database,
        )?;
        let events = host(&["keys", "events"], &database)?;
        let clock = format!(
            "2026-11-20T00:00:00Z,{},{}",
            rfc3339(now_seconds()),
            setting.factor
        );
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = port.map_err(|error| error.to_string())?.to_string();
        let mut region = start_region(&folder, setting, &clock, &address, &events)?;
        let addresses: Value = ready(
            &folder.join("region.json"),
            &mut region,
            &folder.join("region.log"),
        )
        .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()))?;
        let text = |key: &str| addresses[key].as_str().unwrap_or_default().to_owned();
        let mut service = start_service(
            &folder,
            setting,
            &ServiceSetup {
                clock: &clock,
                address: &address,
                database: &database,
                region: &text("api"),
                s3: &text("s3"),
            },
        )?;
        let url = ready(
            &folder.join("service.url"),
            &mut service,
            &folder.join("service.log"),
        )?;
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_mins(1)))
            .build()
            .new_agent();
        Ok(Self {
            cluster,
            region,
            region_url: text("api"),
            service,
            url,
            key,
            agent,
            bare: None,
            scratch,
        })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, String> {
        let url = format!("{}{path}", self.url);
        let request = self
            .agent
            .get(&url)
            .header("authorization", &format!("Bearer {}", self.key));
        let mut answer = request
            .call()
            .map_err(|error| format!("GET {url}: {error}"))?;
        answer
            .body_mut()
            .with_config()
            .limit(256 << 20)
            .read_json()
            .map_err(|error| format!("GET {url}: {error}"))
    }

    /// Creates a key with another role.
    pub(super) fn new_key(&self, role: &str) -> Result<String, String> {
        host(
            &["keys", "create", "--project", "bench", "--role", role],
            &self.cluster.url("postgres"),
        )
    }

    /// Host and port of the service.
    pub(super) fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Checks that the service is alive, on a new connection.
    pub(super) fn livez(&self) -> Result<(), String> {
        let request = self
            .agent
            .get(format!("{}/livez", self.url))
            .header("connection", "close");
        request
            .call()
            .map(drop)
            .map_err(|error| format!("GET /livez: {error}"))
    }

    /// Sends a body and ignores the answer.
    pub(super) fn post_as(&self, key: &str, path: &str, body: &str) {
        let request = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("authorization", &format!("Bearer {key}"));
        drop(
            request
                .send(body)
                .map(|mut answer| answer.body_mut().read_to_vec()),
        );
    }

    /// Starts the bare server beside the service, on the same database.
    pub(super) fn start_bare(&mut self) -> Result<(), String> {
        let program = bench_program("bare")?;
        let file = self.scratch.0.join("bare.url");
        let mut child = Command::new(program)
            .arg(&file)
            .env("DATABASE_URL", self.cluster.url("postgres"))
            .stdout(Stdio::null())
            .stderr(log(&self.scratch.0.join("bare.log"))?)
            .spawn()
            .map_err(|error| error.to_string())?;
        let url = ready(&file, &mut child, &self.scratch.0.join("bare.log"))?;
        self.bare = Some((child, url));
        Ok(())
    }

    fn bare_url(&self) -> &str {
        self.bare.as_ref().map_or("", |(_, url)| url)
    }

    pub(super) fn post(&self, path: &str, body: &str) -> Result<Value, String> {
        let url = format!("{}{path}", self.url);
        let request = self
            .agent
            .post(&url)
            .header("authorization", &format!("Bearer {}", self.key));
        let request = request.config().http_status_as_error(false).build();
        let mut answer = request
            .send(body)
            .map_err(|error| format!("POST {url}: {error}"))?;
        let is_refused = !answer.status().is_success();
        let value: Value = answer
            .body_mut()
            .read_json()
            .map_err(|error| format!("POST {url}: {error}"))?;
        if is_refused {
            Err(format!("POST {url}: {value}"))
        } else {
            Ok(value)
        }
    }

    pub(super) fn post_bare(&self, path: &str, body: &str) -> Result<(), String> {
        let url = format!("{}{path}", self.bare_url());
        let answer = self
            .agent
            .post(&url)
            .send(body)
            .and_then(|mut answer| answer.body_mut().read_to_vec());
        answer
            .map(drop)
            .map_err(|error| format!("POST {url}: {error}"))
    }

    /// A response body, read whole.
    pub(super) fn bytes(&self, path: &str) -> Result<Vec<u8>, String> {
        let url = format!("{}{path}", self.url);
        let request = self
            .agent
            .get(&url)
            .header("authorization", &format!("Bearer {}", self.key));
        let mut answer = request
            .call()
            .map_err(|error| format!("GET {url}: {error}"))?;
        answer
            .body_mut()
            .with_config()
            .limit(256 << 20)
            .read_to_vec()
            .map_err(|error| format!("GET {url}: {error}"))
    }

    pub(super) fn bytes_bare(&self, path: &str) -> Result<Vec<u8>, String> {
        let url = format!("{}{path}", self.bare_url());
        let mut answer = self
            .agent
            .get(&url)
            .call()
            .map_err(|error| format!("GET {url}: {error}"))?;
        answer
            .body_mut()
            .with_config()
            .limit(256 << 20)
            .read_to_vec()
            .map_err(|error| format!("GET {url}: {error}"))
    }

    pub(super) fn get_bare(&self, path: &str) -> Result<Value, String> {
        serde_json::from_slice(&self.bytes_bare(path)?).map_err(|error| error.to_string())
    }

    /// Creates an external run; returns its id.
    pub(super) fn new_run(&self) -> Result<String, String> {
        let spec = json!({"name": "bench", "hardware": "none", "accelerator_count": 1});
        let run = self.post("/v1/runs", &spec.to_string())?;
        run["id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| run.to_string())
    }

    pub(super) fn end_runs(&self) -> Result<(), String> {
        let runs = self.get("/v1/runs?page_size=500")?;
        for run in runs["items"].as_array().into_iter().flatten() {
            let path = format!("/v1/runs/{}/end", run["id"].as_str().unwrap_or_default());
            self.post(&path, &json!({"state": "completed"}).to_string())?;
        }
        Ok(())
    }

    /// The ids of some trials.
    pub(super) fn trial_ids(&self, count: usize) -> Result<Vec<String>, String> {
        let experiments = self.get("/v1/experiments?page_size=500")?;
        let mut ids = Vec::new();
        for experiment in experiments["items"].as_array().into_iter().flatten() {
            if ids.len() >= count {
                break;
            }
            let path = format!(
                "/v1/experiments/{}/trials",
                experiment["id"].as_str().unwrap_or_default()
            );
            let trials = self.get(&path)?;
            let trials = trials["items"].as_array().into_iter().flatten();
            ids.extend(trials.filter_map(|trial| Some(trial["id"].as_str()?.to_owned())));
        }
        Ok(ids)
    }

    /// Creates one experiment with this many trials; returns its id.
    pub(super) fn new_experiment(&self, trials: u32, tokens: u64) -> Result<String, String> {
        let created = self.post(
            "/v1/experiments",
            &spec(999_999, trials, tokens, 7200).to_string(),
        )?;
        created["id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| created.to_string())
    }

    /// CPU seconds of a server (ours, or the bare one) plus those of Postgres.
    pub(super) fn cpu_of(&self, is_ours: bool) -> f64 {
        let server = match (&self.bare, is_ours) {
            (Some((bare, _)), false) => bare.id(),
            _ => self.service.id(),
        };
        let postmaster = u32::try_from(self.cluster.pid()).unwrap_or_default();
        // Postgres's children; `ended_cpu` covers those that have ended and been waited for.
        let children = fs::read_dir("/proc").into_iter().flatten().flatten();
        let children = children.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let own = children.filter(|pid| {
            stat(*pid)
                .get(1)
                .is_some_and(|parent| (parent - f64::from(postmaster)).abs() < 0.5)
        });
        let postgres: f64 = own.map(cpu).sum::<f64>() + cpu(postmaster) + ended_cpu(postmaster);
        cpu(server) + postgres
    }

    /// The region's own record.
    pub(super) fn record(&self) -> Result<Value, String> {
        let url = format!("{}/_sim/record", self.region_url);
        let mut answer = self
            .agent
            .get(&url)
            .call()
            .map_err(|error| format!("GET {url}: {error}"))?;
        answer
            .body_mut()
            .with_config()
            .limit(256 << 20)
            .read_json()
            .map_err(|error| format!("GET {url}: {error}"))
    }

    /// Submits this many trials; returns their ids.
    pub(super) fn submit(
        &self,
        trials: u32,
        tokens: u64,
        runtime_seconds: u32,
    ) -> Result<Vec<String>, String> {
        let mut ids = Vec::new();
        for number in 0..trials.div_ceil(TRIALS_OF_EXPERIMENT) {
            let own = TRIALS_OF_EXPERIMENT.min(trials - number * TRIALS_OF_EXPERIMENT);
            let url = format!("{}/v1/experiments", self.url);
            let request = self
                .agent
                .post(&url)
                .header("authorization", &format!("Bearer {}", self.key));
            let mut answer = request
                .send_json(spec(number, own, tokens, runtime_seconds))
                .map_err(|error| format!("POST {url}: {error}"))?;
            let created: Value = answer
                .body_mut()
                .with_config()
                .limit(64 << 20)
                .read_json()
                .map_err(|error| error.to_string())?;
            let trials = created["trials"].as_array().into_iter().flatten();
            ids.extend(trials.filter_map(|trial| Some(trial["id"].as_str()?.to_owned())));
        }
        Ok(ids)
    }

    /// The number of trials in a state, from the service's own metrics.
    pub(super) fn trials_in(&self, state: &str) -> Result<u64, String> {
        let url = format!("{}/metrics", self.url);
        let request = self
            .agent
            .get(&url)
            .header("authorization", &format!("Bearer {}", self.key));
        let text = request
            .call()
            .and_then(|mut answer| answer.body_mut().read_to_string());
        let text = text.map_err(|error| format!("GET {url}: {error}"))?;
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("bakeoff_trials{{state=\"{state}\"}}")));
        Ok(line
            .and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or(0))
    }

    /// CPU seconds that the service has used.
    pub(super) fn cpu_seconds(&self) -> f64 {
        cpu(self.service.id())
    }

    pub(super) fn rss_mb(&self) -> f64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.service.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok())
            .unwrap_or(0.0)
            / 1024.0
    }

    /// Waits until a condition holds.
    pub(super) fn wait(
        &self,
        patience: Duration,
        what: &str,
        is_so: impl Fn(&Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if is_so(self)? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        Err(format!("after {} s: {what}", patience.as_secs()))
    }

    pub(super) fn strike(mut self) -> Result<(), String> {
        if let Some((bare, _)) = &mut self.bare {
            kill(bare);
        }
        interrupt(&self.service);
        if !wait_gone(&mut self.service, Duration::from_secs(20)) {
            kill(&mut self.service);
        }
        kill(&mut self.region);
        self.cluster.stop().map_err(|error| error.to_string())
    }
}

/// Fields of /proc/<pid>/stat after the name: index 0 is the state (not a number), 1 the parent.
fn stat(pid: u32) -> Vec<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace();
    fields
        .map(|field| field.parse().unwrap_or(f64::NAN))
        .collect()
}

/// User and system time of a process in seconds; Linux has 100 clock ticks per second.
fn cpu(pid: u32) -> f64 {
    let fields = stat(pid);
    [11, 12]
        .iter()
        .filter_map(|index| fields.get(*index))
        .sum::<f64>()
        / 100.0
}

/// The same for its children that have ended.
fn ended_cpu(pid: u32) -> f64 {
    let fields = stat(pid);
    [13, 14]
        .iter()
        .filter_map(|index| fields.get(*index))
        .sum::<f64>()
        / 100.0
}

/// Builds a bench target for release; returns its path.
fn bench_program(name: &str) -> Result<String, String> {
    let output = crate::process::cargo()
        .args([
            "build",
            "--release",
            "--workspace",
            "--bench",
            name,
            "--message-format=json",
        ])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = messages
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| Some(message["executable"].as_str()?.to_owned()));
    program.ok_or_else(|| format!("cargo built no {name}"))
}

fn host(arguments: &[&str], database: &str) -> Result<String, String> {
    let mut command = Command::new(release("bakeoff"));
    command
        .args(arguments)
        .env("DATABASE_URL", database)
        .env("BAKEOFF_SECRET_KEY", SECRET_KEY);
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn log(path: &Path) -> Result<fs::File, String> {
    fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn start_region(
    folder: &Path,
    setting: &Setting,
    clock: &str,
    address: &str,
    events: &str,
) -> Result<Child, String> {
    let mut command = Command::new(release("bakeoff-sim"));
    command
        .arg("--s3-root")
        .arg(folder.join("s3"))
        .arg("--ready-file")
        .arg(folder.join("region.json"));
    command
        .args(["--clock", clock, "--quota", "1000000"])
        .args(&setting.region);
    if setting.push {
        command.args(["--events-to", &format!("http://{address}/v1/aws-events")]);
        command.env("BAKEOFF_SIM_EVENTS_AUTHORIZATION", events);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log(&folder.join("region.log"))?);
    command.spawn().map_err(|error| error.to_string())
}

/// What a service is started with.
struct ServiceSetup<'a> {
    clock: &'a str,
    /// The address it listens on.
    address: &'a str,
    database: &'a str,
    region: &'a str,
    s3: &'a str,
}

fn start_service(folder: &Path, setting: &Setting, at: &ServiceSetup<'_>) -> Result<Child, String> {
    let ServiceSetup {
        clock,
        address,
        database,
        region,
        s3,
    } = *at;
    let mut command = Command::new(release("bakeoff"));
    command
        .args(["serve", "--listen", address])
        .args([
            "--metrics-interval-seconds",
            &setting.metrics_interval_seconds.to_string(),
        ])
        .arg("--ready-file")
        .arg(folder.join("service.url"))
        .env("DATABASE_URL", database)
        .env("BAKEOFF_SECRET_KEY", SECRET_KEY)
        .env("BAKEOFF_CLOCK", clock);
    simulated_aws(&mut command, region, s3);
    if setting.push {
        command.arg("--aws-push");
    }
    let log = log(&folder.join("service.log"))?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|error| error.to_string())?)
        .stderr(log);
    command.spawn().map_err(|error| error.to_string())
}
