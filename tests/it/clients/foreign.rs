//! Independent clients, unmodified: boto3 against the region, pandas and DuckDB against the
//! service; and moto, an independent imitation of AWS, in the region's place. The programs are in
//! `tests/clients`, and say what they check.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bakeoff_api::logs::LogPartView;
use bakeoff_api::model_packages::ModelPackageView;
use bakeoff_api::page::Page;
use bakeoff_api::pushed::Pushed;
use bakeoff_api::runs::RunView;
use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::model_package::{Approval, RegistryState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::PipelineState;
use bakeoff_domain::ports::PageRequest;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_service::aws::{Aws, Ports};
use bakeoff_service::tasks::registrar;
use chrono::TimeDelta;
use serde_json::json;
use sqlx::PgPool;

use crate::pipelines::model_packages::{asked, trained};
use crate::pipelines::steps::{pipeline, prepare, run_pipeline, started, with_data};
use crate::support::{ACCOUNT, Region, TestApp, listening, on_p5, ports_of, spec};

/// moto's server, until it is dropped.
struct Moto {
    server: Child,
    url: String,
}

impl Moto {
    /// With the log of a job; `None` where moto is not installed.
    fn start(job: &str) -> Option<Self> {
        let Ok(modules) = std::env::var("BAKEOFF_TEST_PYTHONPATH") else {
            println!(
                "skipped: BAKEOFF_TEST_PYTHONPATH names no packages (`cargo xtask test` installs them)"
            );
            return None;
        };
        let server = Command::new("python3")
            .args(["tests/clients/second_region.py", job])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("PYTHONPATH", modules)
            .env("MOTO_ACCOUNT_ID", ACCOUNT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut moto = Self {
            server: server.unwrap(),
            url: String::new(),
        };
        let said = moto.server.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut moto.url).unwrap();
        moto.url.truncate(moto.url.trim_end().len());
        if moto.url.starts_with("skipped") {
            println!("{}", moto.url);
            return None;
        }
        assert!(moto.url.starts_with("http"), "{}", moto.url);
        Some(moto)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

/// Runs a program with the Python packages of `cargo xtask test`; `None` when there are none.
pub(crate) fn python(program: &str, arguments: &[&str]) -> Option<String> {
    let Ok(modules) = std::env::var("BAKEOFF_TEST_PYTHONPATH") else {
        println!(
            "skipped: BAKEOFF_TEST_PYTHONPATH names no packages (`cargo xtask test` installs them)"
        );
        return None;
    };
    let output = Command::new("python3")
        .arg(Path::new("tests/clients").join(program))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PYTHONPATH", modules)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    Some(text)
}

#[test]
fn boto3_meets_the_real_services_rules() {
    let region = Region::start(&[], crate::support::usual());
    let Some(text) = python("region.py", &[&region.url, &region.s3_url]) else {
        return;
    };
    assert!(text.contains("boto3: 57 checks held"), "{text}");
}

#[sqlx::test(migrations = false)]
async fn pandas_and_duckdb_read_the_same_totals_from_every_format(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let experiment = test.start(&spec()).await;
    test.run_to_end(&experiment, 12).await;
    let new = json!({"name": "elsewhere", "hardware": "8x H100", "accelerator_count": 8, "usd_per_hour": 7.92});
    let (_, run) = test.post("/v1/runs", &new).await;
    let run: RunView = serde_json::from_value(run).unwrap();
    let run = run.id.to_string();
    let line = |i: i32| {
        json!({"timestamp": 1_795_046_400 + i * 7, "step": i, "loss": 3.0 + f64::from(i).sin()})
            .to_string()
    };
    let lines = (0..1000).map(line).collect::<Vec<_>>().join("\n");
    let request = test
        .request(
            reqwest::Method::POST,
            &format!("/v1/runs/{run}/metrics"),
            &test.admin,
        )
        .body(lines);
    let (_, answer) = test.send(request).await;
    let pushed: Pushed = serde_json::from_value(answer).unwrap();
    assert_eq!(pushed.stored, 1000);
    let arguments = [test.url.clone(), test.admin.clone(), experiment, run];
    let checked = tokio::task::spawn_blocking(move || {
        python(
            "tables.py",
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    });
    let Some(text) = checked.await.unwrap() else {
        return;
    };
    assert!(text.contains("tables: 39 checks held"), "{text}");
}

/// The service reads from moto what boto3 reads there: pages of 10,000 lines, hosts, a restart, and
/// nothing of a job whose name begins alike.
#[sqlx::test(migrations = false)]
async fn a_log_in_moto_is_read_as_boto3_reads_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let experiment = test.start(&on_p5(1)).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(30)).await;
    test.tick().await;
    let trial = test.trials(&experiment).await[0].id;
    let job = test.jobs().await[0].name.clone();
    let Some(moto) = Moto::start(&job) else {
        return;
    };

    let mut app = test.app.clone();
    let logs = ports_of(&moto.url, &moto.url).await.logs;
    let ports = Ports {
        logs,
        ..test.ports.clone()
    };
    let aws = Arc::new(Aws::new(ports, app.clock.clone(), 100_000.0));
    app.place.aws = aws;
    app.places = Arc::new([(app.place.region.clone(), app.place.clone())].into());
    let url = listening(&app).await;
    let (mut ours, mut page) = (Vec::new(), String::new());
    loop {
        let path = format!("{url}/v1/trials/{trial}/logs?page_size=2000{page}");
        let answer = test.client.get(path).bearer_auth(&test.admin).send().await;
        let part: LogPartView = answer.unwrap().json().await.unwrap();
        ours.extend(part.lines.into_iter().map(|line| line.message));
        if part.is_at_end {
            break;
        }
        page = format!("&page_token={}", part.next_page_token.unwrap());
    }
    let read = tokio::task::spawn_blocking(move || {
        let text = python("logs.py", &[&moto.url, &job]);
        drop(moto);
        text
    });
    let theirs = read.await.unwrap().unwrap();
    let theirs: Vec<&str> = theirs.lines().collect();
    assert_eq!(ours.len(), 23_705);
    assert!(
        ours == theirs,
        "{:?}",
        ours.iter().zip(&theirs).find(|(own, other)| own != other)
    );
}

/// The registrar's road in moto, which counts no client tokens: what a dead process has created is found by
/// its marker.
#[sqlx::test(migrations = false)]
async fn models_are_registered_in_moto_as_in_the_region(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 2).await;
    let Some(moto) = Moto::start("none") else {
        return;
    };
    let registry = ports_of(&moto.url, &moto.url).await.registry;
    let ports = Ports {
        registry: registry.clone(),
        ..test.ports.clone()
    };
    let mut app = test.app.clone();
    app.place.aws = Arc::new(Aws::new(ports, app.clock.clone(), 100_000.0));
    app.place.aws.expect_account(ACCOUNT);
    for trial in &trials {
        let (status, answer) = test.post("/v1/model-packages", &asked(trial)).await;
        assert_eq!(status, reqwest::StatusCode::CREATED, "{answer}");
    }
    let region = app.place.region.clone();
    let hold = TimeDelta::minutes(5);
    let first = app
        .store
        .claim_due_model_package(&region, app.clock.now(), hold)
        .await
        .unwrap()
        .unwrap();
    registry.create_group("legal-de").await.unwrap();
    let created = registry.create(&first.request).await.unwrap();
    test.advance(TimeDelta::minutes(6)).await;
    while registrar::tick(&app).await.unwrap() > 0 {}
    let project = test.project;
    let note = Some("the second reader agrees");
    let now = app.clock.now();
    app.store
        .want_approval(project, first.id, Approval::Approved, note, now)
        .await
        .unwrap();
    while registrar::tick(&app).await.unwrap() > 0 {}
    let page: Page<ModelPackageView> = test.read("/v1/model-packages").await;
    let versions: Vec<_> = page
        .items
        .iter()
        .map(|one| (one.state, one.version))
        .collect();
    assert_eq!(
        versions,
        [
            (RegistryState::Registered, Some(2)),
            (RegistryState::Registered, Some(1))
        ],
        "{page:#?}"
    );
    assert_eq!(page.items[1].arn.as_ref(), Some(&created));
    let seen = registry.describe(&created).await.unwrap();
    assert_eq!(seen.approval, Approval::Approved);
}

/// Processing jobs in moto, which completes them at once and tells neither start nor message.
#[sqlx::test(migrations = false)]
async fn a_step_runs_in_moto_as_in_the_region(pool: PgPool) {
    let mut test = with_data(pool.clone(), &[]).await;
    let Some(moto) = Moto::start("none") else {
        return;
    };
    let jobs = ports_of(&moto.url, &moto.url).await.jobs;
    let ports = Ports {
        jobs: jobs.clone(),
        ..test.ports.clone()
    };
    test.app.place.aws = Arc::new(Aws::new(ports, test.app.clock.clone(), 100_000.0));
    test.app.place.aws.expect_account(ACCOUNT);
    let mut body = pipeline(&json!([prepare("one"), prepare("two")]));
    body["steps"][1]["processing"]["reuse_if_unchanged"] = json!(false);
    let id = started(&test, &body).await;
    let view = run_pipeline(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    let names: Vec<String> = sqlx::query_scalar("SELECT job_name FROM jobs ORDER BY 1")
        .fetch_all(&pool)
        .await
        .unwrap();
    let request = PageRequest {
        fragment: "bakeoff-".to_owned(),
        created_after: chrono::DateTime::UNIX_EPOCH,
        token: None,
    };
    let mut there: Vec<String> = jobs
        .list(JobKind::Processing, &request)
        .await
        .unwrap()
        .jobs
        .into_iter()
        .map(|job| job.job_name)
        .collect();
    there.sort();
    assert_eq!((there.len(), &there), (2, &names));
    assert_eq!(
        view.settled_usd,
        Usd::ZERO,
        "what never started costs nothing"
    );
}

/// An endpoint in moto, which serves and is deleted at once, and forgets when.
#[sqlx::test(migrations = false)]
async fn an_endpoint_serves_in_moto_as_in_the_region(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let Some(moto) = Moto::start("none") else {
        return;
    };
    let theirs = ports_of(&moto.url, &moto.url).await;
    let ports = Ports {
        endpoints: theirs.endpoints.clone(),
        jobs: theirs.jobs.clone(),
        ..test.ports.clone()
    };
    test.app.place.aws = Arc::new(Aws::new(ports, test.app.clock.clone(), 100_000.0));
    test.app.place.aws.expect_account(ACCOUNT);
    let mut body = crate::endpoints::lives::body("one");
    // Its list of types is an old one.
    body["endpoint"]["instance_type"] = json!("ml.m5.xlarge");
    body["endpoint"]["smoke_test"]["expect"] = json!("body");
    let id = crate::endpoints::lives::created(&test, &body).await;
    crate::endpoints::lives::until(&test, &id, EndpointState::InService).await;
    crate::endpoints::lives::until(&test, &id, EndpointState::Deleted).await;
    let request = PageRequest {
        fragment: "bakeoff-".to_owned(),
        created_after: chrono::DateTime::UNIX_EPOCH,
        token: None,
    };
    let left = theirs.jobs.list(JobKind::Endpoint, &request);
    let left = left.await.unwrap();
    assert!(left.jobs.is_empty(), "{left:#?}");
}
