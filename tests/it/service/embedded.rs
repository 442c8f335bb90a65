//! `bakeoff serve --embedded`: what its Postgres gets to see, who the service is there, and what is
//! left of both however they end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bakeoff_domain::ids::ProjectId;
use bakeoff_postgres::{Cluster, Config, saved_url};
use bakeoff_process::clock::real_sleep;
use bakeoff_process::ids;
use bakeoff_store::Store;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, PgConnection};

use crate::service::program::Service;
use crate::support::{Region, scratch, usual};

/// A data directory, gone with the test.
struct DataDir(PathBuf);

impl DataDir {
    fn new() -> Self {
        Self(scratch("embedded").join("data"))
    }

    /// Where the server keeps its files.
    fn postmaster(&self) -> Option<i32> {
        let text = std::fs::read_to_string(self.0.join("postgres/postmaster.pid")).ok()?;
        text.lines()
            .next()?
            .trim()
            .parse()
            .ok()
            .filter(|pid| lives(*pid))
    }

    async fn connect(&self) -> PgConnection {
        let url = saved_url(&self.0).expect("a URL of a running cluster");
        PgConnection::connect(&url).await.expect("a connection")
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // A test that failed half-way leaves nothing either.
        if let Some(pid) = self.postmaster().and_then(Pid::from_raw) {
            kill_process(pid, Signal::QUIT).ok();
        }
        Cluster::discard(&self.0);
        drop(self.0.parent().map(std::fs::remove_dir_all));
    }
}

/// Not even as a zombie.
fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn kill_9(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        real_sleep(Duration::from_millis(20)).await;
    }
}

/// The second process of a service, which outlives it for a moment.
fn reaper_of(service: u32) -> Option<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut children = pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(&service.to_string()))
    });
    children.find(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .unwrap_or_default()
            .contains("reap-orphans")
    })
}

#[tokio::test]
async fn postgres_sees_no_secret_and_the_service_is_no_superuser_there() {
    let (region, data) = (Region::start(&[], usual()), DataDir::new());
    let service = Service::embedded(&region, &data.0).await;
    let environment =
        std::fs::read(format!("/proc/{}/environ", data.postmaster().unwrap())).unwrap();
    let names: Vec<String> = environment
        .split(|byte| *byte == 0)
        .filter_map(|entry| {
            String::from_utf8_lossy(entry)
                .split('=')
                .next()
                .map(str::to_owned)
        })
        .filter(|name| !name.is_empty())
        .collect();
    assert!(names.contains(&"PATH".to_owned()), "{names:?}");
    let secret = |name: &&String| {
        ["AWS_", "BAKEOFF_", "DATABASE_URL"]
            .iter()
            .any(|secret| name.starts_with(secret))
    };
    assert_eq!(names.iter().find(secret), None, "{names:?}");
    let mut service_role = data.connect().await;
    let (name, may): (String, bool) = sqlx::query_as(
        "SELECT current_user::text, rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls
         FROM pg_roles WHERE rolname = current_user",
    )
    .fetch_one(&mut service_role)
    .await
    .unwrap();
    assert_eq!((name.as_str(), may), ("bakeoff", false));
    sqlx::query("CREATE TABLE stolen (line text)")
        .execute(&mut service_role)
        .await
        .unwrap();
    let shell = sqlx::query("COPY stolen FROM PROGRAM 'env'")
        .execute(&mut service_role)
        .await
        .unwrap_err();
    assert!(shell.to_string().contains("permission denied"), "{shell}");
    // What it needs, it may: partitions come and go.
    for call in [
        "make_samples_partition('2031-05-01')",
        "drop_empty_samples_partitions('2032-01-01')",
    ] {
        let call = sqlx::AssertSqlSafe(format!("SELECT {call}"));
        sqlx::query(call).execute(&mut service_role).await.unwrap();
    }
    assert_private(&data.0);
    service.stop().await;
    assert_eq!(data.postmaster(), None);
}

/// Nobody else reads what lies there, whoever may pass through.
fn assert_private(data_dir: &Path) {
    use std::os::unix::fs::MetadataExt;
    for name in [
        "",
        "postgres.log",
        "postgres-password",
        "bakeoff-password",
        "postgres-url",
        "postgres-lock",
    ] {
        let mode = std::fs::metadata(data_dir.join(name)).unwrap().mode();
        assert_eq!(mode & 0o066, 0, "{name}: {mode:o}");
    }
}

/// A superuser has owned everything, in the database `postgres`.
#[tokio::test]
async fn a_cluster_of_an_earlier_version_is_handed_over_to_the_role() {
    let data = DataDir::new();
    let config = Config {
        data_dir: data.0.clone(),
        durable: false,
    };
    let start = config.clone();
    let cluster = tokio::task::spawn_blocking(move || Cluster::start(&start).unwrap())
        .await
        .unwrap();
    let store = Store::connect_lazy(&cluster.url("postgres"), 2, None).unwrap();
    store.migrate().await.unwrap();
    store
        .ensure_project(ProjectId(ids::fresh()), "old", None, usual())
        .await
        .unwrap();
    for statement in [
        "SELECT make_samples_partition('2031-05-01')",
        "DROP DATABASE bakeoff",
        "DROP ROLE bakeoff",
    ] {
        sqlx::query(statement).execute(store.pool()).await.unwrap();
    }
    store.pool().close().await;
    // Such a one was left running by a service that was killed.
    for file in ["bakeoff-role", "../bakeoff-password"] {
        std::fs::remove_file(data.0.join("postgres").join(file)).unwrap();
    }
    drop(cluster);
    let region = Region::start(&[], usual());
    let service = Service::embedded(&region, &data.0).await;
    let mut role = data.connect().await;
    let projects: Vec<String> = sqlx::query_scalar("SELECT name FROM projects")
        .fetch_all(&mut role)
        .await
        .unwrap();
    assert_eq!(projects, ["old"]);
    let foreign: Vec<String> = sqlx::query_scalar(
        "SELECT c.relname::text FROM pg_class c WHERE relnamespace = 'public'::regnamespace
           AND relowner <> (SELECT oid FROM pg_roles WHERE rolname = current_user)
         UNION ALL
         SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace
           AND proowner <> (SELECT oid FROM pg_roles WHERE rolname = current_user)",
    )
    .fetch_all(&mut role)
    .await
    .unwrap();
    assert_eq!(foreign, Vec::<String>::new(), "all of it is the role's");
    sqlx::query("SELECT drop_empty_samples_partitions('2032-01-01')")
        .execute(&mut role)
        .await
        .unwrap();
    service.stop().await;
}

#[tokio::test]
async fn a_killed_service_takes_its_postgres_with_it() {
    let (region, data) = (Region::start(&[], usual()), DataDir::new());
    let service = Service::embedded(&region, &data.0).await;
    let postmaster = data.postmaster().unwrap();
    kill_9(service.pid());
    until(|| !lives(postmaster)).await;
    let log = std::fs::read_to_string(data.0.join("postgres.log")).unwrap();
    assert!(
        log.trim_end().ends_with("database system is shut down"),
        "in order: {log}"
    );
}

#[tokio::test]
async fn a_service_that_comes_back_keeps_the_postgres_of_the_killed_one() {
    let (region, data) = (Region::start(&[], usual()), DataDir::new());
    let killed = Service::embedded(&region, &data.0).await;
    let (postmaster, reaper) = (data.postmaster().unwrap(), reaper_of(killed.pid()).unwrap());
    kill_9(killed.pid());
    let back = Service::embedded(&region, &data.0).await;
    until(|| !lives(reaper)).await;
    assert_eq!(
        data.postmaster(),
        Some(postmaster),
        "adopted, and left alone by the other's reaper"
    );
    // Now it is the second one's.
    kill_9(back.pid());
    until(|| !lives(postmaster)).await;
}

/// Whether a process has a handler for SIGTERM; see proc_pid_status(5).
fn catches_sigterm(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 14) != 0
}

/// From the first instruction to readiness: it ends as asked, and Postgres with it.
#[tokio::test]
async fn a_stop_at_any_moment_of_the_start_leaves_nothing_running() {
    let (region, data) = (Region::start(&[], usual()), DataDir::new());
    Service::embedded(&region, &data.0).await.stop().await;
    for delay_ms in [0, 20, 60, 150, 300, 500, 800] {
        let mut service = Service::starting(&region, &data.0);
        real_sleep(Duration::from_millis(delay_ms)).await;
        let has_begun = data.postmaster().is_some();
        let is_heard = catches_sigterm(service.pid());
        assert!(is_heard || !has_begun, "deaf after {delay_ms} ms");
        let status = service.asked_to_stop().await;
        // Before `main` has begun there is nobody to hear the signal.
        let is_ended_by_it = std::os::unix::process::ExitStatusExt::signal(&status) == Some(15);
        assert!(
            status.success() || (!is_heard && is_ended_by_it),
            "after {delay_ms} ms: {status}"
        );
        assert_eq!(data.postmaster(), None, "after {delay_ms} ms");
    }
    // The moment of readiness itself.
    for _ in 0..3 {
        let mut service = Service::embedded(&region, &data.0).await;
        assert!(service.asked_to_stop().await.success());
        assert_eq!(data.postmaster(), None);
    }
}
