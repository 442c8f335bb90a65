//! Two databases of one installation: a copy acts on nothing while its original lives, and takes
//! over when it does not.

use std::sync::Arc;
use std::time::Duration;

use bakeoff_api::money::CorrectionView;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_service::app::App;
use bakeoff_service::replica::fence::{Fence, FenceStanding};
use bakeoff_service::replica::leader::Leader;
use bakeoff_service::tasks::{fence, ingester, scheduler, watcher};
use bakeoff_store::Store;
use chrono::TimeDelta;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::faults::replicas::copy_of;
use crate::pipelines::steps::{pipeline, prepare, started};
use crate::support::reads::RegionJob;
use crate::support::{REGION, TestApp, number, spec};

const FENCE: &str = "s3://tests/fence.json";

/// A service on a database, with what its loops remember.
struct Replica {
    app: App,
    fence: fence::Memory,
    watcher: watcher::Memory,
}

impl Replica {
    fn on(test: &TestApp, store: Store, owner: &str) -> Self {
        let mut app = test.replica(owner);
        app.store = store;
        app.place.watcher = Arc::new(Leader::new(
            "watcher",
            REGION,
            owner,
            Duration::from_mins(1),
        ));
        app.renewer = Arc::new(Leader::new("fence", "", owner, Duration::from_mins(1)));
        app.fence = Arc::new(Fence::new(Some(FENCE.to_owned()), false));
        Self {
            app,
            fence: fence::Memory::default(),
            watcher: watcher::Memory::default(),
        }
    }

    /// Half a minute of its loops, without the clock.
    async fn live(&mut self) {
        watcher::tick(&self.app, &mut self.watcher).await.unwrap();
        fence::tick(&self.app, &mut self.fence).await.unwrap();
        while scheduler::tick(&self.app).await.unwrap() > 0 {}
    }

    fn standing(&self) -> FenceStanding {
        self.app.fence.standing(self.app.clock.now())
    }
}
async fn minutes(test: &TestApp, replicas: &mut [&mut Replica], count: u32) {
    for _ in 0..count * 2 {
        test.advance(TimeDelta::seconds(30)).await;
        for replica in replicas.iter_mut() {
            replica.live().await;
        }
    }
}

fn long_spec() -> Value {
    let mut spec = spec();
    spec["budget_usd"] = json!(100_000);
    spec["max_runtime_seconds"] = json!(400_000);
    spec["workload"]["total_tokens"] = json!(1_000_000_000_000_u64);
    spec["workload"]["trial_tokens"] = json!(10_000_000_000_u64);
    spec
}

/// Two databases: the original, in which two jobs wait to be created, and a copy of it of before
/// they were.
async fn original_and_copy(
    test: &TestApp,
    pool: &PgPool,
) -> (Replica, Replica, (PgPool, PgPool, String)) {
    let mut original = Replica::on(test, test.app.store.clone(), "original");
    minutes(test, &mut [&mut original], 3).await;
    assert_eq!(original.standing(), FenceStanding::Ours);
    test.start(&long_spec()).await;
    let copied = copy_of(pool).await;
    // The lease of the original's watcher was copied as well, and would run out by itself.
    sqlx::query("DELETE FROM leases")
        .execute(&copied.0)
        .await
        .unwrap();
    let copy = Replica::on(test, Store::new(copied.0.clone()), "copy");
    (original, copy, copied)
}

async fn drop_copy((copied, admin, name): (PgPool, PgPool, String)) {
    copied.close().await;
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "DROP DATABASE {name:?} WITH (FORCE)"
    )))
    .execute(&admin)
    .await
    .unwrap();
    admin.close().await;
}

#[sqlx::test(migrations = false)]
async fn a_copy_beside_its_original_acts_on_nothing_however_long_the_original_pauses(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (mut original, mut copy, copied) = original_and_copy(&test, &pool).await;
    minutes(&test, &mut [&mut original, &mut copy], 10).await;
    assert_eq!(
        (original.standing(), copy.standing()),
        (FenceStanding::Ours, FenceStanding::Stranger)
    );
    // A failover, a deploy: the original is away for long, and comes back.
    minutes(&test, &mut [&mut copy], 10).await;
    assert_eq!(copy.standing(), FenceStanding::Stranger);
    minutes(&test, &mut [&mut original, &mut copy], 3).await;
    assert_eq!(original.standing(), FenceStanding::Ours);
    let jobs = test.jobs().await;
    assert!(
        jobs.len() == 2 && jobs.iter().all(RegionJob::is_running),
        "the original's two, untouched: {jobs:?}"
    );
    // The original is gone for good, and a person says so.
    copy.app.store.forget_fence().await.unwrap();
    minutes(&test, &mut [&mut copy], 8).await;
    assert_eq!(copy.standing(), FenceStanding::Ours);
    drop_copy(copied).await;
}

/// A failover, a deploy: for minutes nobody renews, and just then somebody starts a copy that knows
/// the last token.
#[sqlx::test(migrations = false)]
async fn a_copy_that_starts_while_its_original_pauses_acts_on_nothing(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (mut original, mut copy, copied) = original_and_copy(&test, &pool).await;
    test.advance(TimeDelta::minutes(2)).await;
    minutes(&test, &mut [&mut copy], 3).await;
    assert_eq!(
        (copy.standing(), test.jobs().await.len()),
        (FenceStanding::Stranger, 0)
    );
    minutes(&test, &mut [&mut original, &mut copy], 10).await;
    assert_eq!(
        (original.standing(), copy.standing()),
        (FenceStanding::Ours, FenceStanding::Stranger)
    );
    assert_eq!(test.in_progress().await, 2, "the original's two");
    drop_copy(copied).await;
}

/// Whoever restarts without naming the fence again must not act without one.
#[sqlx::test(migrations = false)]
async fn a_fence_that_is_forgotten_stays_where_it_is_until_another_is_named(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let store = &test.app.store;
    let named = async |given: Option<&str>| store.fence_uri(given).await.unwrap();
    assert_eq!(named(Some(FENCE)).await.as_deref(), Some(FENCE));
    let mut owner = Replica::on(&test, store.clone(), "owner");
    minutes(&test, &mut [&mut owner], 3).await;
    assert_eq!(
        named(Some("s3://tests/other.json")).await.as_deref(),
        Some(FENCE),
        "it is in use"
    );
    store.forget_fence().await.unwrap();
    assert_eq!(named(None).await.as_deref(), Some(FENCE));
    // What it finds there is its own no more: silence, a sweep, and only then does it act.
    owner.app.place.watcher.resign(store).await;
    owner.app.renewer.resign(store).await;
    let mut again = Replica::on(&test, store.clone(), "again");
    minutes(&test, &mut [&mut again], 3).await;
    assert_eq!(again.standing(), FenceStanding::Stranger);
    minutes(&test, &mut [&mut again], 3).await;
    assert_eq!(again.standing(), FenceStanding::Ours);
    store.forget_fence().await.unwrap();
    assert_eq!(
        named(Some("s3://tests/other.json")).await.as_deref(),
        Some("s3://tests/other.json")
    );
}

/// A staging system that was given a name of its own, and started with production's settings while
/// production is away.
#[sqlx::test(migrations = false)]
async fn the_fence_of_another_installation_is_never_taken_over(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (mut original, mut staging, copied) = original_and_copy(&test, &pool).await;
    staging
        .app
        .store
        .make_new_installation("0badcafe", test.app.clock.now())
        .await
        .unwrap();
    let settings = bakeoff_service::app::Settings {
        installation: "0badcafe".into(),
        ..(*staging.app.settings).clone()
    };
    staging.app.settings = Arc::new(settings);
    minutes(&test, &mut [&mut staging], 10).await;
    assert_eq!(staging.standing(), FenceStanding::Unsure);
    minutes(&test, &mut [&mut original], 3).await;
    assert_eq!(original.standing(), FenceStanding::Ours);
    drop_copy(copied).await;
}

/// A server that moved while nobody ran waits for minutes: whoever checks its health must not
/// restart it for that, for ever.
#[sqlx::test(migrations = false)]
async fn only_a_database_that_stays_a_stranger_is_not_ready(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (mut original, mut copy, copied) = original_and_copy(&test, &pool).await;
    let is_ready = async |replica: &Replica| {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/readyz", listener.local_addr().unwrap());
        let served = tokio::spawn(
            axum::serve(listener, bakeoff_http::router(replica.app.clone())).into_future(),
        );
        let status = test.client.get(url).send().await.unwrap().status();
        served.abort();
        status.is_success()
    };
    minutes(&test, &mut [&mut original, &mut copy], 5).await;
    assert!(copy.standing() == FenceStanding::Stranger && is_ready(&copy).await);
    minutes(&test, &mut [&mut original, &mut copy], 6).await;
    assert!(is_ready(&original).await && !is_ready(&copy).await);
    drop_copy(copied).await;
}

/// CloudWatch bills each metric that is read.
#[sqlx::test(migrations = false)]
async fn a_copy_reads_no_metrics_beside_its_original(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut original = Replica::on(&test, test.app.store.clone(), "original");
    minutes(&test, &mut [&mut original], 3).await;
    test.start(&long_spec()).await;
    minutes(&test, &mut [&mut original], 30).await;
    let copied = copy_of(&pool).await;
    sqlx::query("DELETE FROM leases")
        .execute(&copied.0)
        .await
        .unwrap();
    let mut copy = Replica::on(&test, Store::new(copied.0.clone()), "copy");
    minutes(&test, &mut [&mut original, &mut copy], 5).await;
    let due: i64 = sqlx::query_scalar("SELECT count(*) FROM jobs WHERE metrics_due_at < $1")
        .bind(test.app.clock.now())
        .fetch_one(&copied.0)
        .await
        .unwrap();
    assert_eq!((copy.standing(), due), (FenceStanding::Stranger, 2));
    assert_eq!(ingester::tick(&copy.app).await.unwrap(), 0);
    assert!(ingester::tick(&original.app).await.unwrap() > 0);
    drop_copy(copied).await;
}

#[sqlx::test(migrations = false)]
async fn a_restored_backup_takes_over_and_sweeps_before_it_submits(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (mut original, mut backup, copied) = original_and_copy(&test, &pool).await;
    minutes(&test, &mut [&mut original], 15).await;
    assert_eq!(test.in_progress().await, 2);
    // The original is lost. What it had created since the backup is stopped before anything is
    // submitted.
    minutes(&test, &mut [&mut backup], 3).await;
    assert_eq!(
        (backup.standing(), test.in_progress().await),
        (FenceStanding::Stranger, 2)
    );
    minutes(&test, &mut [&mut backup], 7).await;
    assert_eq!(backup.standing(), FenceStanding::Ours);
    let jobs = test.jobs().await;
    let stopped = jobs.iter().take(2).filter(|job| !job.is_running()).count();
    assert_eq!(
        (stopped, jobs.len()),
        (2, 4),
        "the old two stopped, and the backup's own two: {jobs:?}"
    );
    // What ran without a row is booked to the trials that it names.
    minutes(&test, &mut [&mut backup], 10).await;
    let jobs = test.jobs().await;
    let billed: f64 = jobs.iter().take(2).map(RegionJob::usd).sum();
    let booked: f64 = sqlx::query_scalar(
        "SELECT sum(usd)::float8 FROM ledger WHERE component = 'orphaned_job' AND kind = 'settled'",
    )
    .fetch_one(&copied.0)
    .await
    .unwrap();
    println!("a restore: ${billed:.2} billed for jobs without a row, ${booked:.2} booked");
    assert!(
        billed > 1.0 && (billed - booked).abs() < 0.02 * billed,
        "${billed} billed, ${booked} booked"
    );
    drop_copy(copied).await;
}

/// A staging system from a dump of production: it gets a name of its own, and nothing that it was
/// copied with goes on in it.
#[sqlx::test(migrations = false)]
async fn a_copy_that_is_made_an_installation_of_its_own_leaves_the_original_alone(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&long_spec()).await;
    test.tick().await;
    started(&test, &pipeline(&json!([prepare("prepare")]))).await;
    let receiver = json!({"url": "https://hooks.example.com/alarms", "severities": ["info"]});
    let (status, _) = test.post("/v1/webhook-endpoints", &receiver).await;
    assert_eq!(status, StatusCode::CREATED);
    test.start(&long_spec()).await;
    let (copied, admin, name) = copy_of(&pool).await;
    let store = Store::new(copied.clone());
    store
        .make_new_installation("0badcafe", test.app.clock.now())
        .await
        .unwrap();
    let mut staging = Replica::on(&test, store.clone(), "staging");
    staging.app.fence = Arc::new(Fence::new(None, true));
    let settings = bakeoff_service::app::Settings {
        installation: "0badcafe".into(),
        ..(*test.app.settings).clone()
    };
    staging.app.settings = Arc::new(settings);
    minutes(&test, &mut [&mut staging], 20).await;
    assert_eq!(test.in_progress().await, 2);
    let reserved: rust_decimal::Decimal =
        sqlx::query_scalar("SELECT sum(reserved_usd) FROM projects")
            .fetch_one(&copied)
            .await
            .unwrap();
    assert!(reserved.is_zero());
    // Nothing of it starts or serves anything, and nobody is told of it, but by the original.
    let living = "SELECT (SELECT count(*) FROM pipelines WHERE ended_at IS NULL)
        + (SELECT count(*) FROM pipeline_steps WHERE ended_at IS NULL)
        + (SELECT count(*) FROM webhook_endpoints WHERE disabled_at IS NULL)
        + (SELECT count(*) FROM webhook_deliveries WHERE state = 'pending')
        + (SELECT count(*) FROM ci_status_targets)";
    assert_eq!(number(&copied, living).await, 0);
    assert!(
        number(&pool, living).await > 3,
        "the original had nothing to keep"
    );
    drop_copy((copied, admin, name)).await;
    assert_eq!(test.experiment(&id).await.state, ExperimentState::Running);
}

/// What a person knows of a bill takes the place of an estimate, in the ledger and in the budget.
#[sqlx::test(migrations = false)]
async fn an_estimate_is_corrected_by_hand_with_a_reason(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let before = test.experiment(&id).await.settled_usd.as_f64();
    let attempt = test.trials(&id).await.remove(0).attempts.remove(0);
    let rate = attempt.usd_per_hour.as_f64();
    let seconds = attempt.billable_seconds.unwrap();
    let path = format!("/v1/jobs/{}/corrections", attempt.id);
    let body = json!({"billable_seconds": seconds - 600, "reason": "the bill of November"});
    let editor = test
        .key(test.project, bakeoff_service::auth::keys::Role::Editor)
        .await;
    let (status, _) = test
        .send(
            test.request(reqwest::Method::POST, &path, &editor)
                .json(&body),
        )
        .await;
    assert_eq!(status, 403);
    for (round, adjusted) in [(1, -600.0 * rate / 3600.0), (2, 0.0)] {
        let (status, answer) = test.post(&path, &body).await;
        assert_eq!(status, 200, "{answer}");
        let correction: CorrectionView = serde_json::from_value(answer).unwrap();
        assert!(
            (correction.adjusted_usd.as_f64() - adjusted).abs() < 0.001,
            "round {round}: {correction:?}"
        );
    }
    let after = test.experiment(&id).await.settled_usd.as_f64();
    assert!(
        (before - after - 600.0 * rate / 3600.0).abs() < 0.001,
        "{before} before, {after} after"
    );
    let ledger: rust_decimal::Decimal =
        sqlx::query_scalar("SELECT sum(usd) FROM ledger WHERE kind IN ('settled', 'adjusted')")
            .fetch_one(&pool)
            .await
            .unwrap();
    let total: rust_decimal::Decimal = sqlx::query_scalar("SELECT sum(settled_usd) FROM projects")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(ledger, total, "the ledger adds up");
    let (status, _) = test
        .post(
            "/v1/jobs/job_00000000000000000000000000000000/corrections",
            &body,
        )
        .await;
    assert_eq!(status, 404);
}
