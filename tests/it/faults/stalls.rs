//! What holds when something does not answer: a frozen replica, a listing that failed, a clock that
//! was set back, no capacity.

use std::sync::Arc;
use std::time::Duration;

use bakeoff_domain::clock::Timescale;
use bakeoff_domain::ids::JobId;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::sagemaker::request::TrainingJobRequest;
use bakeoff_planner::render::request;
use bakeoff_process::clock::{Clock, real_now, real_sleep};
use bakeoff_process::ids;
use bakeoff_service::app::Settings;
use bakeoff_service::aws::Aws;
use bakeoff_service::replica::leader::Leader;
use bakeoff_service::tasks;
use bakeoff_service::tasks::{scheduler, watcher};
use bakeoff_store::Store;
use chrono::{DateTime, TimeDelta};
use serde_json::{Value, json};
use sqlx::{PgPool, Postgres, Transaction};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::fault_proxy::Line;
use crate::support::{REGION, TestApp, create_job, number, on_p5, production_store};

/// The price of a p5.
pub(crate) const P5_USD_PER_HOUR: f64 = 63.296;
/// The same for two days and more.
pub(crate) fn long() -> Value {
    let mut spec = on_p5(1);
    spec["workload"]["total_tokens"] = json!(1_000_000_000_000_u64);
    spec["workload"]["trial_tokens"] = json!(10_000_000_000_u64);
    spec["max_runtime_seconds"] = json!(400_000);
    spec
}
/// Real time in which a healthy replica must have got over a frozen one; and after which it gives
/// up one try, as a loop does.
const PATIENCE: Duration = Duration::from_secs(20);
const TRY: Duration = Duration::from_secs(4);

async fn comes_true(mut attempt: impl AsyncFnMut() -> bool) -> bool {
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE {
        if tokio::time::timeout(TRY, attempt()).await == Ok(true) {
            return true;
        }
        real_sleep(Duration::from_millis(200)).await;
    }
    false
}

/// A replica that stands still within a transaction: it has begun one, taken a lock, and says
/// nothing more.
struct Frozen {
    store: Store,
    transaction: Transaction<'static, Postgres>,
}

async fn freeze(pool: &PgPool, locks: &[&'static str]) -> Frozen {
    let store = production_store(pool);
    let mut transaction = store.pool().begin().await.unwrap();
    for lock in locks {
        sqlx::query(*lock).execute(&mut *transaction).await.unwrap();
    }
    Frozen { store, transaction }
}

/// The test's database is dropped: nobody may be in it.
async fn leave(test: TestApp, frozen: Frozen) {
    drop(frozen.transaction);
    frozen.store.pool().close().await;
    test.app.store.pool().close().await;
}

async fn healthy(pool: &PgPool) -> TestApp {
    TestApp::new(production_store(pool).pool().clone()).await
}

/// A trial whose job is over in the region, and not settled.
async fn with_a_job_that_is_over(pool: &PgPool) -> (TestApp, String) {
    let test = healthy(pool).await;
    let id = test.start(&on_p5(1)).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    test.advance(TimeDelta::hours(6)).await;
    sqlx::query("UPDATE trials SET due_at = $1")
        .bind(test.app.clock.now())
        .execute(pool)
        .await
        .unwrap();
    (test, id)
}

#[sqlx::test(migrations = false)]
async fn a_replica_frozen_in_an_admission_does_not_keep_others_from_admitting(pool: PgPool) {
    let test = healthy(&pool).await;
    test.start(&on_p5(1)).await;
    let frozen = freeze(&pool, &["SELECT pg_advisory_xact_lock(108170553131009)"]).await;
    let admitted = comes_true(async || {
        scheduler::tick(&test.app).await.ok();
        !test.jobs().await.is_empty()
    });
    assert!(
        admitted.await,
        "nothing is admitted {PATIENCE:?} after a replica froze in its admission"
    );
    leave(test, frozen).await;
}

#[sqlx::test(migrations = false)]
async fn a_replica_frozen_on_an_experiments_row_keeps_nobody_from_cancelling_and_settling(
    pool: PgPool,
) {
    let (test, id) = with_a_job_that_is_over(&pool).await;
    let other = test.start(&on_p5(1)).await;
    let rows = [
        "SELECT 1 FROM experiments FOR UPDATE",
        "SELECT 1 FROM projects FOR UPDATE",
    ];
    let frozen = freeze(&pool, &rows).await;
    let path = format!("/v1/experiments/{other}/cancel");
    let cancelled = comes_true(async || test.post(&path, &json!({})).await.0 == 202).await;
    let settled = comes_true(async || {
        scheduler::tick(&test.app).await.ok();
        number(
            &pool,
            "SELECT count(*) FROM jobs WHERE settled_at IS NOT NULL",
        )
        .await
            > 0
    });
    let settled = settled.await;
    assert_eq!(
        (cancelled, settled),
        (true, true),
        "cancel and settlement of {id}, {PATIENCE:?} after a replica froze"
    );
    leave(test, frozen).await;
}

#[sqlx::test(migrations = false)]
async fn a_replica_frozen_on_the_watchers_lease_does_not_end_all_watching(pool: PgPool) {
    let test = healthy(&pool).await;
    test.start(&on_p5(1)).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    test.app
        .store
        .acquire_lease("watcher", REGION, "frozen", Duration::ZERO)
        .await
        .unwrap();
    let frozen = freeze(&pool, &["SELECT 1 FROM leases FOR UPDATE"]).await;
    let mut memory = watcher::Memory::default();
    let listed = comes_true(async || {
        watcher::tick(&test.app, &mut memory).await.ok();
        test.calls("ListTrainingJobs").await > 0
    });
    assert!(
        listed.await,
        "no listing {PATIENCE:?} after the watcher froze in a transaction, its lease long over"
    );
    leave(test, frozen).await;
}

#[sqlx::test(migrations = false)]
async fn a_replica_frozen_while_it_writes_points_keeps_no_trial_from_settling(pool: PgPool) {
    let (test, id) = with_a_job_that_is_over(&pool).await;
    let held = "SELECT pg_advisory_xact_lock(hashtext('make_samples_partition'))";
    let frozen = freeze(&pool, &[held]).await;
    let settled = comes_true(async || {
        scheduler::tick(&test.app).await.ok();
        number(
            &pool,
            "SELECT count(*) FROM jobs WHERE settled_at IS NOT NULL",
        )
        .await
            > 0
    });
    let settled = settled.await;
    let reserved = test.experiment(&id).await.reserved_usd;
    assert!(
        settled,
        "{reserved} stay reserved {PATIENCE:?} after a replica froze writing points"
    );
    leave(test, frozen).await;
}

/// Ends the sessions of a line.
const HANG_UP: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                       WHERE datname = current_database() AND application_name = 'behind the line'";

/// After a failover: the scheduler's claim was sent, and its answer will never come. Other
/// connections can be made.
#[sqlx::test(migrations = false)]
async fn a_statement_whose_answer_never_comes_does_not_end_the_schedulers_loop(pool: PgPool) {
    let test = TestApp::starting(pool.clone(), real_now()).await;
    let line = Line::start(&pool).await;
    let mut app = test.replica("silent");
    app.store = line.store();
    app.clock = Clock::Running(Timescale::REAL);
    app.place.aws = Arc::new(Aws::new(test.ports.clone(), app.clock.clone(), 100.0));
    let lease = Duration::from_secs(2);
    app.settings = Arc::new(Settings {
        lease,
        ..(*app.settings).clone()
    });
    app.place.watcher = Arc::new(Leader::new("watcher", REGION, "silent", lease));
    app.places = Arc::new([(REGION.to_owned(), app.place.clone())].into());
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    tasks::spawn(&app, &tracker, &stop);
    let id = test.start(&long()).await;
    let runs = comes_true(async || {
        number(&pool, "SELECT count(*) FROM jobs WHERE state = 'running'").await > 0
    });
    assert!(runs.await, "it runs");
    // New connections prepare their statements anew.
    line.lose("lease_owner FROM trials");
    assert!(number(&pool, HANG_UP).await > 0);
    let is_lost = comes_true(async || {
        app.wake_schedulers();
        line.has_lost()
    });
    assert!(is_lost.await, "the scheduler's claim is under way");
    assert_eq!(
        test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
            .await
            .0,
        202
    );
    let mut stopped = false;
    for _ in 0..3 {
        stopped = stopped || comes_true(async || !test.jobs().await[0].is_running()).await;
    }
    stop.cancel();
    assert!(
        stopped,
        "cancelled, and not stopped a minute later: ${P5_USD_PER_HOUR:.2} an hour until the process ends"
    );
    // The lost one never hears of it.
    drop(tokio::time::timeout(Duration::from_secs(2), app.store.pool().close()).await);
    number(&pool, HANG_UP).await;
}

/// Committed, and not sent: what a scheduler has in its hands when it freezes before its create.
async fn planned(test: &TestApp) -> TrainingJobRequest {
    let claimed = test.admit("frozen", Duration::ZERO).await;
    let trial = claimed.first().unwrap();
    let attempt = JobId(ids::fresh());
    let name = bakeoff_planner::render::attempt::job_name(
        bakeoff_domain::sagemaker::kind::JobKind::Training,
        &test.app.settings.installation,
        attempt.0,
    );
    let plan = trial.plan.as_ref().unwrap();
    let (price, now) = (plan.price.clone().unwrap(), test.app.clock.now());
    test.app
        .store
        .plan_attempt(trial, attempt, &name, plan, &price, now)
        .await
        .unwrap();
    request::for_attempt(
        plan.training().unwrap(),
        &name,
        &attempt.to_string(),
        &trial.id.to_string(),
    )
}

/// A create that is carried out when its experiment is long over, and nothing else runs.
#[sqlx::test(migrations = false)]
async fn a_job_that_appears_after_its_experiment_is_stopped_within_one_listing(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&long()).await;
    let late = planned(&test).await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    let mut memory = watcher::Memory::default();
    // Its quarantine, and six looks that find nothing.
    for _ in 0..10 {
        test.watch_as_production(&mut memory, TimeDelta::minutes(5))
            .await;
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
    }
    test.tick().await;
    assert_eq!(test.experiment(&id).await.state, ExperimentState::Cancelled);
    create_job(&test.ports, &late).await.unwrap();
    for _ in 0..7 * 12 {
        test.watch_as_production(&mut memory, TimeDelta::minutes(5))
            .await;
        if test.jobs().await[0].status == "Stopped" {
            break;
        }
    }
    let (longest, grace) = (test.app.settings.listing.1, TimeDelta::minutes(4));
    let most = (longest + grace).as_seconds_f64() / 3600.0 * P5_USD_PER_HOUR;
    let billed = test.billed_usd().await;
    println!("a late create: ${billed:.2} billed, at most ${most:.2}");
    assert!(
        billed <= most,
        "${billed:.2} were billed for a job of a cancelled experiment, at most ${most:.2}"
    );
    assert_eq!(test.jobs().await[0].status, "Stopped");
}

pub(crate) fn start() -> DateTime<chrono::Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}
