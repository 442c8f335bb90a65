//! The program itself, as an operator starts it: what is decided before `main` has put anything
//! together, signals, and what is left behind. Everything else is tested in this process, with a
//! clock that stands still.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use bakeoff_api::operations::Health;
use bakeoff_process::clock::{real_now, real_sleep};
use reqwest::{Method, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{ConnectOptions, PgPool};

use crate::support::fault_proxy::Line;
use crate::support::{Region, TestApp, number, on_p5, scratch, usual};

const LOOK_EVERY: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(30);

/// `bakeoff serve` against a region; it is killed with the test.
pub(crate) struct Service {
    child: Child,
    folder: PathBuf,
    pub(crate) url: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

impl Service {
    /// On the database of a test; ready when this returns. Its clock begins where tests begin.
    pub(crate) async fn on(pool: &PgPool, region: &Region, arguments: &[&str]) -> Self {
        let mut command = command(region);
        command
            .env(
                "DATABASE_URL",
                pool.connect_options().to_url_lossy().as_str(),
            )
            .args(arguments);
        Self::spawn(command).ready().await
    }

    /// With a Postgres of its own.
    pub(crate) async fn embedded(region: &Region, data_dir: &Path) -> Self {
        Self::starting(region, data_dir).ready().await
    }

    /// The same, not waited for.
    pub(crate) fn starting(region: &Region, data_dir: &Path) -> Self {
        let mut command = command(region);
        command.arg("--embedded").arg("--data-dir").arg(data_dir);
        Self::spawn(command)
    }

    /// On the database of a test, and what it logs is kept.
    pub(crate) async fn logged(pool: &PgPool, region: &Region) -> Self {
        let folder = scratch("serve");
        let mut command = command(region);
        command
            .env(
                "DATABASE_URL",
                pool.connect_options().to_url_lossy().as_str(),
            )
            .stderr(std::fs::File::create(folder.join("log")).unwrap());
        Self::spawn_in(folder, command).ready().await
    }

    /// Lines that it has logged, as JSON.
    pub(crate) fn log(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.folder.join("log")).unwrap();
        let whole = text.lines().map(serde_json::from_str);
        whole.filter_map(Result::ok).collect()
    }

    fn spawn(command: Command) -> Self {
        Self::spawn_in(scratch("serve"), command)
    }

    fn spawn_in(folder: PathBuf, mut command: Command) -> Self {
        let child = command
            .arg("--ready-file")
            .arg(folder.join("url"))
            .spawn()
            .expect("bakeoff");
        Self {
            child,
            folder,
            url: String::new(),
        }
    }

    async fn ready(mut self) -> Self {
        while self.url.is_empty() {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "it ended before it was ready"
            );
            self.url = std::fs::read_to_string(self.folder.join("url")).unwrap_or_default();
            real_sleep(LOOK_EVERY).await;
        }
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM; how it ended.
    pub(crate) async fn asked_to_stop(&mut self) -> ExitStatus {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).expect("it runs");
        self.ended().await
    }

    /// It ends by itself.
    async fn ended(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            real_sleep(LOOK_EVERY).await;
        }
    }

    pub(crate) async fn stop(mut self) {
        assert!(self.asked_to_stop().await.success());
    }
}

/// `bakeoff serve`, a thousand times as fast as real time.
fn command(region: &Region) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bakeoff"));
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", std::env::var_os("HOME").unwrap_or_default())
        .env(
            "BAKEOFF_CLOCK",
            format!("{},{},1000", usual().to_rfc3339(), real_now().to_rfc3339()),
        )
        .env("BAKEOFF_SECRET_KEY", "07".repeat(32))
        .env("AWS_ENDPOINT_URL", &region.url)
        .env("AWS_ENDPOINT_URL_S3", &region.s3_url)
        .env("AWS_ACCESS_KEY_ID", "simulated")
        .env("AWS_SECRET_ACCESS_KEY", "simulated")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// A replica of the last version, while the next one migrates the database.
#[sqlx::test(migrations = false)]
async fn a_replica_whose_database_was_migrated_under_it_stops(pool: PgPool) {
    let region = Region::start(&[], usual());
    bakeoff_store::Store::new(pool.clone())
        .migrate()
        .await
        .unwrap();
    let mut service = Service::on(&pool, &region, &["--lease-seconds", "1"]).await;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'of the next version', true, '', 0)",
    )
    .execute(&pool)
    .await
    .unwrap();
    assert_eq!(service.ended().await.code(), Some(1));
}

/// A failover while it starts: a statement was sent, and its answer will never come.
#[sqlx::test(migrations = false)]
async fn a_start_whose_database_never_answers_ends(pool: PgPool) {
    let region = Region::start(&[], usual());
    bakeoff_store::Store::new(pool.clone())
        .migrate()
        .await
        .unwrap();
    // The schema is read on a connection of its own; whose jobs there are, on one of the pool.
    for statement in ["_sqlx_migrations", "AND region <> ALL($1)"] {
        let line = Line::start(&pool).await;
        line.lose(statement);
        let mut command = command(&region);
        command
            .env("DATABASE_URL", &line.url)
            .args(["--aws-timeout-seconds", "0.1"]);
        let mut service = Service::spawn(command);
        let ended = tokio::time::timeout(2 * PATIENCE, service.ended()).await;
        assert_eq!(
            ended.map(|status| status.code()),
            Ok(Some(1)),
            "{statement}"
        );
        assert!(line.has_lost(), "{statement}");
    }
}

/// Every region has its own scheduler and listings; what concerns no region runs once.
#[sqlx::test(migrations = false)]
async fn a_service_of_two_regions_watches_both(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let regions = ["--region", "us-east-1, us-west-2"];
    let service = Service::on(&pool, &test.region, &regions).await;
    let listed = "SELECT count(*) FROM leases WHERE name = 'watcher' AND listed_at IS NOT NULL";
    while number(&pool, listed).await < 2 {
        real_sleep(LOOK_EVERY).await;
    }
    let health: Health = test
        .client
        .get(format!("{}/readyz?verbose=true", service.url))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let of = |name: &str| {
        let tasks = health.tasks.iter().filter(|task| task.task == name);
        tasks.map(|task| task.region.clone()).collect::<Vec<_>>()
    };
    for name in ["watcher", "scheduler"] {
        assert_eq!(of(name), ["us-east-1", "us-west-2"], "{name}");
    }
    assert_eq!(of("fence"), ["us-east-1"]);
    service.stop().await;
}

/// Requests that wait for the database may take every connection of the API: tasks have their own.
#[sqlx::test(migrations = false)]
async fn tasks_go_on_while_every_connection_of_the_api_is_taken(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    // A statement of the service waits for a lock for a sixth of its lease: longer than anything
    // here takes.
    let service = Service::on(
        &pool,
        &test.region,
        &["--database-connections", "8", "--lease-seconds", "600"],
    )
    .await;
    let listed = async || test.app.store.last_listed().await.unwrap();
    while listed().await.is_none() {
        real_sleep(LOOK_EVERY).await;
    }
    let mut held = pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *held)
        .await
        .unwrap();
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let request = test
            .client
            .get(format!("{}/v1/experiments", service.url))
            .bearer_auth(&test.admin);
        requests.spawn(request.send());
    }
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE relation = 'api_keys'::regclass AND NOT granted
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while number(&pool, waiting).await < 4 {
        assert!(
            requests.try_join_next().is_none(),
            "the API did not get four connections for itself"
        );
        real_sleep(LOOK_EVERY).await;
    }
    let before = listed().await;
    while listed().await == before {
        assert!(
            requests.try_join_next().is_none(),
            "no listing for as long as a request waited for its connection"
        );
        real_sleep(LOOK_EVERY).await;
    }
    assert!(
        number(&pool, waiting).await >= 4,
        "all connections of the API are still taken"
    );
    held.rollback().await.unwrap();
    while let Some(answer) = requests.join_next().await {
        assert_eq!(answer.unwrap().unwrap().status(), reqwest::StatusCode::OK);
    }
    service.stop().await;
}

/// What a service says that must not start on a test's database.
fn why_it_does_not_start(pool: &PgPool, region: &Region) -> String {
    let mut command = command(region);
    command.env(
        "DATABASE_URL",
        pool.connect_options().to_url_lossy().as_str(),
    );
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Jobs of a region that is not served would seem to have vanished.
#[sqlx::test(migrations = false)]
async fn a_service_without_the_region_of_what_runs_does_not_start(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    sqlx::query("UPDATE experiments SET region = 'us-west-2'")
        .execute(&pool)
        .await
        .unwrap();
    let said = why_it_does_not_start(&pool, &test.region);
    assert!(said.contains("running outside us-east-1"), "{said}");
}

/// Its jobs are in one account, and somebody starts it with credentials of another.
#[sqlx::test(migrations = false)]
async fn credentials_of_another_account_are_refused_at_the_start(pool: PgPool) {
    let region = Region::start(&[], usual());
    let store = bakeoff_store::Store::new(pool.clone());
    store.migrate().await.unwrap();
    store.pin_account(Some("999988887777")).await.unwrap();
    let said = why_it_does_not_start(&pool, &region);
    assert!(
        said.contains("999988887777") && said.contains("111122223333"),
        "{said}"
    );
}

/// Each cause in one sentence, once, and no password in it.
#[sqlx::test(migrations = false)]
async fn a_database_that_lets_nobody_in_is_told_with_its_cause(pool: PgPool) {
    let said = |change: &dyn Fn(&mut reqwest::Url)| {
        let mut url = pool.connect_options().to_url_lossy();
        change(&mut url);
        let mut command = Command::new(env!("CARGO_BIN_EXE_bakeoff"));
        let done = command
            .args(["keys", "list"])
            .env("DATABASE_URL", url.as_str());
        let done = done.output().unwrap();
        assert!(!done.status.success());
        String::from_utf8(done.stderr).unwrap()
    };
    let refused = said(&|url| url.set_port(Some(1)).unwrap());
    assert!(
        refused.contains("cannot connect to PostgreSQL at 127.0.0.1:1: Connection refused"),
        "{refused}"
    );
    let missing = said(&|url| url.set_path("/nope"));
    assert_eq!(
        missing.matches("database \"nope\" does not exist").count(),
        1,
        "{missing}"
    );
    let other = said(&|url| {
        let text = url.as_str().replace("postgres://", "mysql://");
        *url = text.replace("postgresql://", "mysql://").parse().unwrap();
        url.set_password(Some("hush")).unwrap();
    });
    assert!(
        other.contains("has to begin with postgres://") && !other.contains("hush"),
        "{other}"
    );
}

/// What `bakeoff keys` prints, on the database of a test.
fn keys(pool: &PgPool, arguments: &[&str]) -> (bool, String) {
    let url = pool.connect_options().to_url_lossy();
    let output = Command::new(env!("CARGO_BIN_EXE_bakeoff"))
        .arg("keys")
        .args(arguments)
        .env_clear()
        .env("DATABASE_URL", url.as_str())
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), printed.concat())
}

#[sqlx::test(migrations = false)]
async fn a_revoked_key_opens_nothing_any_more(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let arguments = ["create", "--project", "first", "--name", "a notebook"];
    let (_, printed) = keys(&pool, &arguments);
    let key = printed
        .lines()
        .find(|line| line.starts_with("bk_"))
        .unwrap();
    let secret = key.rsplit('_').next().unwrap();
    let (id, _) = bakeoff_service::auth::keys::parse_key(key).unwrap();
    let id = id.to_string();
    let status = async || {
        let request = test.request(Method::GET, "/v1/experiments", key);
        test.send(request).await.0
    };
    assert_eq!(status().await, StatusCode::OK);

    let (_, listed) = keys(&pool, &["list"]);
    let own = listed.lines().find(|line| line.contains(&id)).unwrap();
    for text in ["first", "viewer", "a notebook", "valid"] {
        assert!(own.contains(text), "{listed}");
    }
    assert!(!listed.contains(secret), "{listed}");

    let (is_revoked, printed) = keys(&pool, &["revoke", &id]);
    assert!(
        is_revoked && printed.contains("was revoked at"),
        "{printed}"
    );
    let refused = async {
        while status().await != StatusCode::UNAUTHORIZED {
            real_sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(PATIENCE, refused)
        .await
        .expect("it is still accepted");
    let (_, listed) = keys(&pool, &["list"]);
    let own = listed.lines().find(|line| line.contains(&id)).unwrap();
    assert!(own.contains("revoked"), "{listed}");
    // Once more changes nothing, and another id is an error that says what to do.
    assert_eq!(keys(&pool, &["revoke", &id]).1, printed);
    let (is_revoked, printed) = keys(&pool, &["revoke", &format!("key_{}", "0".repeat(32))]);
    assert!(!is_revoked && printed.contains("keys list"), "{printed}");
}
