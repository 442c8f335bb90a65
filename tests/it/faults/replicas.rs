//! What holds between replicas, copies and AWS: a create is sent once, rows are locked in one
//! order, a copy of the database does no harm, and what AWS has not said is not taken for said.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bakeoff_api::runs::RunView;
use bakeoff_domain::event::EventSeverity;
use bakeoff_domain::lifecycle::orphan::Sighting;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_process::clock::{real_now, real_sleep};
use bakeoff_service::app::{App, Settings};
use bakeoff_service::replica::leader::Leader;
use bakeoff_service::tasks::{compactor, ingester, scheduler, warm_pools, watcher};
use bakeoff_store::Store;
use chrono::TimeDelta;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, PgPool};
use tokio::sync::Notify;

use crate::faults::money::with_a_pool;
use crate::support::fault_proxy::{Act, Between};
use crate::support::{REGION, TestApp, create_job, holder, number, on_p5, ports_of, request_of};

/// The program as it is run in production: real time, the SDK as it is set up there, AWS at an
/// address of ours.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Service {
    fn start(pool: &PgPool, api: &str, s3: &str) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_bakeoff"))
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--lease-seconds",
                "5",
                "--aws-timeout-seconds",
                "2",
            ])
            .env(
                "DATABASE_URL",
                pool.connect_options().to_url_lossy().as_str(),
            )
            .env("BAKEOFF_SECRET_KEY", "07".repeat(32))
            .env("AWS_ENDPOINT_URL", api)
            .env("AWS_ENDPOINT_URL_S3", s3)
            .env("AWS_ACCESS_KEY_ID", "simulated")
            .env("AWS_SECRET_ACCESS_KEY", "simulated")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

/// In real time: for what another program does.
async fn until(pool: &PgPool, query: &'static str, what: &str) {
    for _ in 0..600 {
        if number(pool, query).await > 0 {
            return;
        }
        real_sleep(Duration::from_millis(100)).await;
    }
    panic!("{what} has not come true within a minute");
}

const TRIED: &str = "SELECT count(*) FROM jobs WHERE state <> 'planned' OR postponed > 0";
const REFUSED: &str = "SELECT count(*) FROM jobs WHERE state IN ('never_created', 'quarantined')";
const RUNNING: &str = "SELECT count(*) FROM jobs WHERE state = 'running'";

#[sqlx::test(migrations = false)]
async fn a_create_that_was_answered_with_an_error_is_not_sent_again_behind_our_back(pool: PgPool) {
    let test = TestApp::starting(pool.clone(), real_now()).await;
    let failure = json!({"__type": "InternalFailure", "message": "An internal failure occurred"});
    let sent = AtomicUsize::new(0);
    let rule = move |operation: &str, _: &Value| match operation {
        "CreateTrainingJob" if sent.fetch_add(1, Ordering::Relaxed) == 0 => {
            Act::Answer(500, failure.clone())
        }
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, rule).await;
    let service = Service::start(&pool, &between.url, &test.region.s3_url);
    test.start(&on_p5(1)).await;
    until(&pool, TRIED, "a create").await;
    let sent = between.count("CreateTrainingJob");
    drop(service);
    assert_eq!(
        sent, 1,
        "CreateTrainingJob was sent {sent} times in one try, and counted once"
    );
}

/// The first create gets no answer and is carried out late; meanwhile the account's quota is used
/// up by others.
#[sqlx::test(migrations = false)]
async fn a_create_that_is_carried_out_late_never_makes_a_second_job_of_its_trial(pool: PgPool) {
    let test = TestApp::starting(pool.clone(), real_now()).await;
    let full = json!({"__type": "ResourceLimitExceeded", "message": "The account-level service limit is 1 Instances"});
    let sent = AtomicUsize::new(0);
    let rule = move |operation: &str, _: &Value| match operation {
        "CreateTrainingJob" if sent.fetch_add(1, Ordering::Relaxed) == 0 => Act::Keep,
        "CreateTrainingJob" => Act::Answer(400, full.clone()),
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, rule).await;
    let service = Service::start(&pool, &between.url, &test.region.s3_url);
    test.start(&on_p5(1)).await;
    until(&pool, REFUSED, "the refusal of a second create").await;
    between.follow(|_, _| Act::Pass);
    assert_eq!(between.deliver().await, 1);
    until(&pool, RUNNING, "a running trial").await;
    let (there, sent) = (test.in_progress().await, between.count("CreateTrainingJob"));
    drop(service);
    let rate = f64::from(u32::try_from(there).unwrap()) * 63.296;
    println!("late create: {there} jobs of one trial after {sent} creates, ${rate:.2} an hour");
    assert_eq!(
        there, 1,
        "jobs of one trial at a time, after {sent} creates"
    );
}

/// It froze before its create, and its lease has passed on; another has given the attempt up. The
/// create goes through, and whoever sent it is the one that knows.
#[sqlx::test(migrations = false)]
async fn a_create_that_goes_through_after_its_lease_was_lost_is_known_at_once(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let word = Arc::new(Notify::new());
    let late = word.clone();
    let rule = move |operation: &str, _: &Value| match operation {
        "CreateTrainingJob" => Act::Wait(late.clone()),
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, rule).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    let id = test.start(&on_p5(1)).await;
    let app = test.app.clone();
    let frozen = tokio::spawn(async move { scheduler::tick(&app).await });
    while between.count("CreateTrainingJob") == 0 {
        real_sleep(Duration::from_millis(20)).await;
    }
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    for statement in [
        "UPDATE jobs SET state = 'never_created', settled_at = planned_at",
        "UPDATE trials SET state = 'stopped', ended_at = created_at, lease_token = lease_token + 1, lease_owner = NULL,
                           lease_expires_at = NULL",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    word.notify_one();
    frozen.await.unwrap().unwrap();
    let (there, orphans) = (
        test.in_progress().await,
        number(&pool, "SELECT count(*) FROM orphaned_jobs").await,
    );
    assert_eq!(
        (there, orphans),
        (1, 1),
        "jobs that run, and orphans that are known of"
    );
}

/// It froze right after its create; another adopted the job, saw it end, and settled it. Nothing ran after its attempt.
#[sqlx::test(migrations = false)]
async fn a_job_that_ended_while_its_creator_stood_still_is_no_orphan(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let another = test.app.clone();
    let word = Arc::new(Notify::new());
    let late = word.clone();
    let rule = move |operation: &str, _: &Value| match operation {
        "CreateTrainingJob" => Act::AnswerLate(late.clone()),
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, rule).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    let id = test.start(&on_p5(1)).await;
    let app = test.app.clone();
    let frozen = tokio::spawn(async move { scheduler::tick(&app).await });
    while test.in_progress().await == 0 {
        real_sleep(Duration::from_millis(20)).await;
    }
    // Its lease passes on, and its job comes to its end in other hands.
    let passed_on = "UPDATE trials SET lease_token = lease_token + 1, lease_owner = NULL, lease_expires_at = NULL";
    sqlx::query(passed_on).execute(&pool).await.unwrap();
    test.app = another;
    test.run_to_end(&id, 12).await;
    word.notify_one();
    frozen.await.unwrap().unwrap();
    let orphans = "SELECT count(*) FROM orphaned_jobs";
    assert_eq!(number(&pool, orphans).await, 0);
    let events = test.events(&id).await;
    let mut alarms = events
        .iter()
        .filter(|event| event.severity == EventSeverity::Alarm);
    assert!(alarms.next().is_none(), "an alarm of a job that is settled");
}

/// Slow work is not begun by others before it is done: all would be slow, and nobody would come to
/// an end.
#[sqlx::test(migrations = false)]
async fn work_that_outlasts_its_lease_keeps_it(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    test.tick().await;
    let word = Arc::new(Notify::new());
    let late = word.clone();
    let rule = move |operation: &str, _: &Value| match operation {
        "DescribeTrainingJob" => Act::Wait(late.clone()),
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, rule).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    test.advance(TimeDelta::hours(12)).await;
    let (now, lease) = (test.app.clock.now(), Duration::from_millis(1500));
    let settings = Settings {
        lease,
        ..(*test.app.settings).clone()
    };
    let app = App {
        settings: Arc::new(settings),
        ..test.app.clone()
    };
    let slow = tokio::spawn(async move { scheduler::tick(&app).await });
    while between.count("DescribeTrainingJob") == 0 {
        real_sleep(Duration::from_millis(20)).await;
    }
    let begun = std::time::Instant::now();
    let mut taken = 0;
    while begun.elapsed() < lease * 2 {
        taken += test
            .app
            .store
            .claim_due_trials(holder("another", lease), now, 10)
            .await
            .unwrap()
            .len();
        real_sleep(lease / 20).await;
    }
    assert_eq!(taken, 0, "claims of a trial that somebody works on");
    word.notify_one();
    assert_eq!(slow.await.unwrap().unwrap(), 1);
    let settled = "SELECT count(*) FROM jobs WHERE settled_at IS NOT NULL";
    assert_eq!(
        number(&pool, settled).await,
        1,
        "and it has come to its end"
    );
}

/// An earlier create arrived late, and its job is being stopped: the next one waits until it is
/// over.
#[sqlx::test(migrations = false)]
async fn a_trial_whose_earlier_job_turned_up_late_waits_until_that_is_over(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.tick().await;
    let now = test.app.clock.now();
    for statement in [
        "UPDATE jobs SET state = 'never_created', settled_at = planned_at, metrics_due_at = NULL",
        "UPDATE trials SET state = 'queued', due_at = created_at",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    let job = test.jobs().await.remove(0).name;
    assert!(
        test.app
            .store
            .record_orphan(REGION, JobKind::Training, &job, Sighting::Orphan, now)
            .await
            .unwrap()
    );
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let trial = test.trials(&id).await.remove(0);
    let reason = trial.reason.as_deref().unwrap_or_default();
    assert!(
        reason.contains("an earlier job of this trial"),
        "{trial:#?}"
    );
    assert_eq!(test.jobs().await.len(), 1, "jobs of one trial");
    for _ in 0..30 {
        test.advance(TimeDelta::minutes(2)).await;
        test.tick().await;
    }
    let all = test.jobs().await;
    let over = all[0].ended_at.unwrap();
    assert!(all.len() == 2 && all[1].created_at >= over, "{all:#?}");
}

/// On a database of its own, as a restore or a staging copy is.
pub(crate) async fn copy_of(pool: &PgPool) -> (PgPool, PgPool, String) {
    let options: PgConnectOptions = (*pool.connect_options()).clone();
    let origin = options.get_database().unwrap().to_owned();
    let name = format!("copy_{}", bakeoff_process::ids::fresh().as_simple());
    let admin = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(options.clone().database("postgres"))
        .await
        .unwrap();
    sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1")
        .bind(&origin)
        .execute(&admin)
        .await
        .unwrap();
    let create = format!("CREATE DATABASE {name:?} TEMPLATE {origin:?}");
    sqlx::query(AssertSqlSafe(create))
        .execute(&admin)
        .await
        .unwrap();
    let copy = PgPoolOptions::new()
        .max_connections(4)
        .connect_with(options.database(&name))
        .await
        .unwrap();
    (copy, admin, name)
}

fn app_on(test: &TestApp, pool: &PgPool, owner: &str) -> App {
    let mut app = test.replica(owner);
    app.store = Store::new(pool.clone());
    app.place.watcher = Arc::new(Leader::new(
        "watcher",
        REGION,
        owner,
        Duration::from_secs(30),
    ));
    app
}

#[sqlx::test(migrations = false)]
async fn a_copy_of_the_database_stops_no_job_of_the_original(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (copy, admin, name) = copy_of(&pool).await;
    let clone = app_on(&test, &copy, "staging");
    let mut three = on_p5(3);
    three["workload"]["total_tokens"] = json!(1_000_000_000_000_u64);
    three["workload"]["trial_tokens"] = json!(10_000_000_000_u64);
    three["max_runtime_seconds"] = json!(400_000);
    let id = test.start(&three).await;
    test.tick().await;
    let (mut own, mut others) = (watcher::Memory::default(), watcher::Memory::default());
    for _ in 0..30 {
        test.advance(TimeDelta::minutes(1)).await;
        watcher::tick(&test.app, &mut own).await.unwrap();
        watcher::tick(&clone, &mut others).await.unwrap();
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
    }
    let (going, lost) = (test.in_progress().await, test.billed_usd().await);
    let reason = test.trials(&id).await.remove(0).reason;
    println!(
        "a copy of the database: {going} of 3 jobs go on, ${lost:.2} spent; the first: {reason:?}"
    );
    copy.close().await;
    sqlx::query(AssertSqlSafe(format!(
        "DROP DATABASE {name:?} WITH (FORCE)"
    )))
    .execute(&admin)
    .await
    .unwrap();
    admin.close().await;
    assert_eq!(
        going, 3,
        "of three jobs go on beside a copy of the database; ${lost:.2} were spent in vain: {reason:?}"
    );
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
}

/// Without a fence as well: the pool of a job that was created after the copy was made is in no row
/// of it.
#[sqlx::test(migrations = false)]
async fn a_copy_of_the_database_ends_no_pool_of_the_original(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (copy, admin, name) = copy_of(&pool).await;
    let clone = app_on(&test, &copy, "staging");
    with_a_pool(&test, 14_400).await;
    let mut others = watcher::Memory::default();
    for _ in 0..5 {
        watcher::tick(&clone, &mut others).await.unwrap();
        test.advance(TimeDelta::minutes(1)).await;
    }
    let is_kept = test.jobs().await[0].idle_pool;
    copy.close().await;
    sqlx::query(AssertSqlSafe(format!(
        "DROP DATABASE {name:?} WITH (FORCE)"
    )))
    .execute(&admin)
    .await
    .unwrap();
    admin.close().await;
    assert!(is_kept);
    while warm_pools::tick(&test.app).await.unwrap() > 0 {}
}

/// A transaction that has merged points and is not over yet.
#[sqlx::test(migrations = false)]
async fn two_series_of_a_month_that_is_there_are_merged_at_the_same_time(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let run = json!({"name": "a run", "hardware": "8x H100", "like_instance_type": "ml.p5.48xlarge",
                     "accelerator_count": 8, "global_batch": 512, "started_at": "2026-11-19T00:00:00Z"});
    let (status, run) = test.post("/v1/runs", &run).await;
    assert_eq!(status, 201, "{run}");
    let run: RunView = serde_json::from_value(run).unwrap();
    let path = format!("/v1/runs/{}/metrics", run.id);
    let send = async |minute: i64| {
        let line = json!({"timestamp": 1_795_046_400 + minute * 60, "step": minute, "loss": 3.0})
            .to_string();
        test.send(test.request(Method::POST, &path, &test.admin).body(line))
            .await
            .0
    };
    assert_eq!(send(10).await, 200);
    let mut other = pool.begin().await.unwrap();
    sqlx::query("SELECT make_samples_partition('2026-11-01')")
        .execute(&mut *other)
        .await
        .unwrap();
    // Before what is there: it is merged.
    let merged = tokio::time::timeout(Duration::from_secs(3), send(5)).await;
    other.rollback().await.unwrap();
    assert!(
        merged.is_ok_and(|status| status == 200),
        "a merge waited for another series' transaction"
    );
}

#[sqlx::test(migrations = false)]
async fn old_points_are_forgotten_although_months_cannot_be_dropped_just_now(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let settings = Settings {
        points_kept: Some(TimeDelta::days(2)),
        ..(*test.app.settings).clone()
    };
    let id = test.start(&on_p5(1)).await;
    test.run_to_end(&id, 12).await;
    test.advance(TimeDelta::hours(3)).await;
    while compactor::tick(&test.app).await.unwrap() > 0 {}
    let chunks = "SELECT count(*) FROM sample_chunks";
    assert!(number(&pool, chunks).await > 0);
    test.app.settings = Arc::new(settings);
    test.advance(TimeDelta::days(3)).await;
    let mut other = pool.begin().await.unwrap();
    let busy = "SELECT pg_advisory_xact_lock(hashtext('make_samples_partition'))";
    sqlx::query(busy).execute(&mut *other).await.unwrap();
    let ticked = compactor::tick(&test.app)
        .await
        .map_err(|error| error.to_string());
    other.rollback().await.unwrap();
    assert_eq!(
        (ticked.err(), number(&pool, chunks).await),
        (None, 0),
        "the tick's error, and chunks that are left"
    );
}

/// PartialData: points are missing, and are to be asked for again.
#[sqlx::test(migrations = false)]
async fn an_answer_that_is_said_to_be_partial_moves_no_cursor(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    let between = Between::start(&test.region.url, |_, _| Act::Pass).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    test.tick().await;
    for _ in 0..5 {
        test.advance(TimeDelta::minutes(5)).await;
        test.tick().await;
    }
    let cursor = "SELECT extract(epoch FROM metrics_cursor)::bigint FROM jobs";
    let before = number(&pool, cursor).await;
    test.advance(TimeDelta::minutes(5)).await;
    // In CBOR a text begins with its length.
    between.follow(|_, _| Act::Replace(b"\x68Complete", b"\x6bPartialData"));
    let asked = between.count("GetMetricData");
    ingester::tick(&test.app).await.unwrap();
    let after = number(&pool, cursor).await;
    assert!(
        between.count("GetMetricData") > asked,
        "nothing was read: the test proves nothing"
    );
    assert_eq!(
        after - before,
        0,
        "seconds that the cursor moved on over points that were not sent"
    );
    between.follow(|_, _| Act::Pass);
    test.run_to_end(&id, 12).await;
}

/// A definite no needs to be known for one: everything else may have happened, or may go through
/// the next time.
#[sqlx::test(migrations = false)]
async fn only_refusals_that_are_known_are_definite(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    let request = request_of(&pool).await;
    let between = Between::start(&test.region.url, |_, _| Act::Pass).await;
    let ports = ports_of(&between.url, &test.region.s3_url).await;
    let mut wrong = Vec::new();
    for (status, code, expected) in [
        (400, "RequestTimeout", "unknown"),
        (400, "RequestTimeoutException", "unknown"),
        (400, "RequestExpired", "unknown"),
        (400, "SomethingNewException", "unknown"),
        (400, "RequestThrottled", "throttled"),
        (400, "RequestThrottledException", "throttled"),
        (429, "TooManyRequests", "throttled"),
        (429, "", "throttled"),
        (403, "", "unknown"),
        (404, "", "unknown"),
        (408, "", "unknown"),
        (400, "ValidationException", "rejected"),
        (400, "AccessDeniedException", "denied"),
        (400, "ExpiredTokenException", "expired"),
        (400, "ResourceLimitExceeded", "limit"),
        (400, "ResourceInUse", "exists"),
    ] {
        let body = if code.is_empty() {
            Value::Null
        } else {
            json!({"__type": code, "message": "no"})
        };
        between.follow(move |_, _| Act::Answer(status, body.clone()));
        let got = match create_job(&ports, &request).await {
            Ok(()) => "created",
            Err(AwsError::Unknown(_)) => "unknown",
            Err(AwsError::Throttled(_)) => "throttled",
            Err(AwsError::Rejected { .. }) => "rejected",
            Err(AwsError::Denied(_)) => "denied",
            Err(AwsError::Expired(_)) => "expired",
            Err(AwsError::LimitExceeded(_)) => "limit",
            Err(AwsError::AlreadyExists(_)) => "exists",
            Err(AwsError::NotFound(_)) => "not found",
        };
        if got != expected {
            wrong.push(format!(
                "{status} `{code}` is taken for {got} instead of {expected}"
            ));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}
