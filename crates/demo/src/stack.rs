//! A complete Bakeoff on this machine: the simulated region, the service with its embedded
//! Postgres, an API key, and the objects that the examples read. It cannot reach AWS: every
//! endpoint is loopback, and the credentials are dummies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, SecondsFormat};

use crate::process::{Scratch, Signal, beside, interrupt, signal, spawn, wait_gone};

/// For a process that is alive but slow; one that ends is noticed at once.
const START_TIMEOUT: Duration = Duration::from_mins(15);

/// Objects that the examples' channels point to.
const INPUTS: [&str; 5] = [
    "hebrew/train",
    "legal/train",
    "legal/validation",
    "hebrew/raw",
    "legal/raw",
];
/// The role under which the region's schedules act.
pub const SCHEDULER_ROLE: &str = "arn:aws:iam::111122223333:role/bakeoff-scheduler";
/// Scripts that the pipelines among them run, with their names.
const SCRIPTS: [(&str, &str); 2] = [
    (
        "prepare.py",
        include_str!("../../../examples/processing/prepare.py"),
    ),
    (
        "evaluate.py",
        include_str!("../../../examples/processing/evaluate.py"),
    ),
];

/// How a stack is started.
pub struct Setup {
    /// Where its folder is made, and removed at the end.
    pub folder: PathBuf,
    /// Virtual seconds per real second.
    pub factor: u32,
    /// What the region is told besides.
    pub region: Vec<String>,
}

impl Setup {
    /// A day in a minute and a half, by a region that throttles now and then.
    pub fn below(folder: PathBuf) -> Self {
        Self {
            folder,
            factor: 1000,
            region: vec!["--throttle=0.01".to_owned()],
        }
    }
}

pub struct Stack {
    scratch: Scratch,
    clock: String,
    region: Child,
    pub region_url: String,
    s3_url: String,
    service: Child,
    pub url: String,
    pub api_key: String,
}

impl Stack {
    /// Starts everything; leaves nothing running on an error.
    pub fn start(setup: &Setup) -> Result<Self, String> {
        let scratch = Scratch::below(&setup.folder, "demo")?;
        for input in INPUTS {
            let folder = scratch.0.join("s3/bakeoff-example").join(input);
            fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
            fs::write(folder.join("part-00000"), "example\n").map_err(|error| error.to_string())?;
        }
        let code = scratch.0.join("s3/bakeoff-example/code");
        fs::create_dir_all(&code).map_err(|error| error.to_string())?;
        for (name, script) in SCRIPTS {
            fs::write(code.join(name), script).map_err(|error| error.to_string())?;
        }
        let clock = format!(
            "2026-11-20T00:00:00Z,{},{}",
            rfc3339(now_seconds()),
            setup.factor
        );
        let mut region = start_region(&scratch.0, &clock, &setup.region)?;
        let addresses = match ready(
            &scratch.0.join("region.json"),
            &mut region,
            &scratch.0.join("region.log"),
        ) {
            Ok(text) => text,
            Err(error) => {
                kill(&mut region);
                return Err(error);
            }
        };
        let addresses: serde_json::Value =
            serde_json::from_str(&addresses).map_err(|error| error.to_string())?;
        let region_url = addresses["api"].as_str().unwrap_or_default().to_owned();
        let s3_url = addresses["s3"].as_str().unwrap_or_default().to_owned();
        let service = start_service(&scratch.0, &clock, &region_url, &s3_url, "127.0.0.1:0");
        let service = match service {
            Ok(service) => service,
            Err(error) => {
                kill(&mut region);
                return Err(error);
            }
        };
        let mut stack = Self {
            scratch,
            clock,
            region,
            region_url,
            s3_url,
            service,
            url: String::new(),
            api_key: String::new(),
        };
        match stack.finish_start() {
            Ok(()) => Ok(stack),
            Err(error) => {
                drop(stack.stop());
                Err(error)
            }
        }
    }

    fn finish_start(&mut self) -> Result<(), String> {
        self.url = self.wait_ready()?;
        self.api_key = self.another_key()?;
        Ok(())
    }

    /// Another admin's key of the same project.
    pub fn another_key(&self) -> Result<String, String> {
        let output = Command::new(beside("bakeoff")?)
            .args(["keys", "create", "--project", "demo", "--role", "admin"])
            .args(["--budget-usd", "1000000", "--data-dir"])
            .arg(self.data_dir())
            .env_remove("DATABASE_URL")
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Sends JSON to the service with the admin's key; the answer, or the problem in words.
    pub fn post(&self, path: &str, body: &serde_json::Value) -> Result<serde_json::Value, String> {
        let url = format!("{}{path}", self.url);
        let sent = ureq::post(&url)
            .config()
            .http_status_as_error(false)
            .build()
            .header("authorization", &format!("Bearer {}", self.api_key))
            .send_json(body);
        let mut answer = sent.map_err(|error| format!("POST {url}: {error}"))?;
        let text = answer.body_mut().read_to_string();
        let text = text.map_err(|error| format!("POST {url}: {error}"))?;
        if !answer.status().is_success() {
            return Err(format!("POST {url}: {}: {text}", answer.status()));
        }
        serde_json::from_str(&text).map_err(|error| format!("POST {url}: {error}"))
    }

    fn wait_ready(&mut self) -> Result<String, String> {
        let log = self.log();
        ready(&self.scratch.0.join("service.url"), &mut self.service, &log)
    }

    pub fn data_dir(&self) -> PathBuf {
        self.scratch.0.join("data")
    }

    pub fn log(&self) -> PathBuf {
        self.scratch.0.join("service.log")
    }

    /// The command line client, configured for this stack.
    pub fn bakeoff(&self) -> Result<Command, String> {
        let mut command = Command::new(beside("bakeoff")?);
        command
            .env("BAKEOFF_URL", &self.url)
            .env("BAKEOFF_API_KEY", &self.api_key)
            .env_remove("BAKEOFF_PROFILE");
        Ok(command)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.scratch.0
    }

    /// Kills the service (`kill -9`) and starts a new one on the same port and clock.
    pub fn kill_service(&mut self) -> Result<(), String> {
        kill(&mut self.service);
        drop(fs::remove_file(self.scratch.0.join("service.url")));
        let address = self.url.trim_start_matches("http://").to_owned();
        self.service = start_service(
            &self.scratch.0,
            &self.clock,
            &self.region_url,
            &self.s3_url,
            &address,
        )?;
        self.wait_ready().map(drop)
    }

    /// Kills Postgres (`kill -9`); the service restarts it.
    pub fn kill_postgres(&self) -> Result<(), String> {
        let file = self.data_dir().join("postgres/postmaster.pid");
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let pid = text
            .lines()
            .next()
            .and_then(|line| line.trim().parse().ok())
            .unwrap_or_default();
        if signal(pid, Signal::KILL) {
            Ok(())
        } else {
            Err(format!("there is no process {pid} to kill"))
        }
    }

    /// Stops the service (which stops its Postgres), then the region; the folders are removed as
    /// well.
    pub fn stop(mut self) -> Result<(), String> {
        interrupt(&self.service);
        let is_gone = wait_gone(&mut self.service, Duration::from_mins(3));
        interrupt(&self.region);
        wait_gone(&mut self.region, Duration::from_secs(5));
        kill(&mut self.region);
        if !is_gone {
            kill(&mut self.service);
            return Err("the service did not stop by itself and was killed".to_owned());
        }
        Ok(())
    }
}

/// Kills a child (`kill -9`) and waits for it.
pub fn kill(child: &mut Child) {
    drop(child.kill());
    drop(child.wait());
}

fn log_file(path: &Path) -> Result<Stdio, String> {
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    file.map(Stdio::from)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Uses a process group of its own: Ctrl-C reaches only us, and we stop things in order.
fn detached(name: &str, log: &Path) -> Result<Command, String> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(beside(name)?);
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(log_file(log)?)
        .stderr(log_file(log)?);
    Ok(command)
}

fn start_region(scratch: &Path, clock: &str, flags: &[String]) -> Result<Child, String> {
    let mut command = detached("bakeoff-sim", &scratch.join("region.log"))?;
    command
        .arg("--s3-root")
        .arg(scratch.join("s3"))
        .args(["--clock", clock])
        .args(flags);
    command.arg("--ready-file").arg(scratch.join("region.json"));
    spawn(&mut command)
}

fn start_service(
    scratch: &Path,
    clock: &str,
    region: &str,
    s3: &str,
    listen: &str,
) -> Result<Child, String> {
    let mut command = detached("bakeoff", &scratch.join("service.log"))?;
    command
        .args([
            "serve",
            "--embedded",
            "--listen",
            listen,
            "--poll-seconds",
            "120",
            "--lease-seconds",
            "2",
            // Days pass in seconds here.
            "--price-refresh-hours",
            "0",
            "--scheduler-role-arn",
            SCHEDULER_ROLE,
        ])
        .arg("--data-dir")
        .arg(scratch.join("data"))
        .arg("--ready-file")
        .arg(scratch.join("service.url"))
        .env_remove("DATABASE_URL")
        .env("BAKEOFF_CLOCK", clock);
    simulated_aws(&mut command, region, s3);
    spawn(&mut command)
}

/// Waits for a ready file; if the process ends first, returns an error with the end of its log.
pub fn ready(file: &Path, child: &mut Child, log: &Path) -> Result<String, String> {
    let started = Instant::now();
    while started.elapsed() < START_TIMEOUT {
        if let Ok(text) = fs::read_to_string(file) {
            return Ok(text);
        }
        if let Ok(Some(status)) = child.try_wait() {
            let text = fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().rev().take(12).collect();
            let tail = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
            return Err(format!(
                "it ended with {status} before it was ready:\n{tail}"
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!(
        "it was not ready after {} seconds; its log is {}",
        START_TIMEOUT.as_secs(),
        log.display()
    ))
}

/// Formats seconds since 1970 as RFC 3339.
pub fn rfc3339(seconds: i64) -> String {
    DateTime::from_timestamp(seconds, 0)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The current time, in seconds since 1970.
pub fn now_seconds() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or_default()
}

/// Sets dummy credentials, an empty configuration and a loopback address for every service, so that
/// AWS cannot be reached.
pub fn simulated_aws(command: &mut Command, region: &str, s3: &str) {
    // Whatever this user has set for AWS would lead there.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ENDPOINT_URL", region)
        .env("AWS_ENDPOINT_URL_SAGEMAKER", region)
        .env("AWS_ENDPOINT_URL_CLOUDWATCH", region)
        .env("AWS_ENDPOINT_URL_SERVICE_QUOTAS", region)
        .env("AWS_ENDPOINT_URL_S3", s3)
        .env("AWS_ACCESS_KEY_ID", "simulated")
        .env("AWS_SECRET_ACCESS_KEY", "simulated")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
}
