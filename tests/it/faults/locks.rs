//! Rows are locked in one order, whoever locks them: each pair of statements that met the wrong way
//! round is made to meet here, and then all of them at once.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::ids::{EndpointId, ExperimentId, JobId, TrialId};
use bakeoff_domain::lifecycle::watch::Change;
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::observed::JobStatus;
use bakeoff_process::clock::real_sleep;
use bakeoff_service::app::{App, Settings};
use bakeoff_service::tasks::{ingester, scheduler, watcher};
use bakeoff_store::StoreError;
use bakeoff_store::endpoints::WhichEndpoints;
use bakeoff_store::experiments::lifecycle::ExperimentCommand;
use bakeoff_store::jobs::attempts::Due;
use bakeoff_store::series::Samples;
use bakeoff_store::series::metrics::Progress;
use chrono::TimeDelta;
use reqwest::Method;
use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;

use crate::endpoints::lives::{body, created, until};
use crate::support::reads::RegionJob;
use crate::support::{REGION, TestApp, holder, number, on_p5};

fn uuid_of(id: &str) -> Uuid {
    Uuid::try_parse(id.rsplit_once('_').unwrap().1).unwrap()
}

/// Until so many sessions wait for a lock, or there is nothing to wait for.
async fn waiting(pool: &PgPool, count: i64, is_done: &Cell<bool>) {
    let query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..500 {
        if is_done.get() || number(pool, query).await >= count {
            return;
        }
        real_sleep(Duration::from_millis(20)).await;
    }
    panic!("{count} sessions never waited for a lock: the two did not meet");
}

/// `first` runs into a lock that is held; then `second` begins, and runs into one of the two or
/// through; then the lock is given back.
async fn meet<A, B>(
    pool: &PgPool,
    lock: String,
    first: impl Future<Output = Result<A, StoreError>>,
    second: impl Future<Output = Result<B, StoreError>>,
) -> Vec<String> {
    let mut held = pool.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *held)
        .await
        .unwrap();
    let is_done = Cell::new(false);
    let second = async {
        waiting(pool, 1, &is_done).await;
        let second = second.await;
        is_done.set(true);
        second
    };
    let release = async {
        waiting(pool, 2, &is_done).await;
        held.rollback().await.unwrap();
    };
    let (first, second, ()) = tokio::join!(first, second, release);
    [first.err(), second.err()]
        .into_iter()
        .flatten()
        .map(|error| error.to_string())
        .collect()
}

/// So many trials whose jobs run; the trials and their attempts, in the order of their rows.
async fn running(pool: &PgPool, count: u32) -> (TestApp, ExperimentId, Vec<(Uuid, Uuid)>) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(count)).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    test.advance(TimeDelta::minutes(20)).await;
    let rows =
        sqlx::query_as("SELECT trial_id, id FROM jobs WHERE state = 'running' ORDER BY ctid");
    let rows = rows.fetch_all(pool).await.unwrap();
    assert_eq!(rows.len(), usize::try_from(count).unwrap());
    (test, ExperimentId(uuid_of(&id)), rows)
}

fn change((trial, attempt): (Uuid, Uuid)) -> Change {
    Change {
        attempt: JobId(attempt),
        trial: TrialId(trial),
        status: JobStatus::InProgress,
        secondary_status: "Training".to_owned(),
        modified_at: None,
    }
}

#[sqlx::test(migrations = false)]
async fn a_cancel_and_an_event_of_the_same_trial_do_not_wait_for_each_other(pool: PgPool) {
    let (test, id, rows) = running(&pool, 1).await;
    let (store, now) = (&test.app.store, test.app.clock.now());
    let change = change(rows[0]);
    let failed = meet(
        &pool,
        format!(
            "SELECT pg_advisory_xact_lock(hashtextextended('{}', 1))",
            test.project.0
        ),
        store.notice_event(Some(&change), None, &[], now),
        store.command(test.project, id, ExperimentCommand::Cancel, now),
    );
    assert_eq!(Box::pin(failed).await, Vec::<String>::new());
}

/// A deletion that is asked for while the deployer claims the endpoint is not lost.
#[sqlx::test(migrations = false)]
async fn an_endpoint_is_deleted_though_the_deployer_claims_it_meanwhile(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(15)).await;
    let (store, now) = (&test.app.store, test.app.clock.now());
    let which = WhichEndpoints::One(EndpointId(uuid_of(&id)));
    let found = store.endpoints(test.project, which, 1).await;
    let endpoint = found.unwrap().remove(0);
    let failed = meet(
        &pool,
        "SELECT 1 FROM experiments FOR UPDATE".to_owned(),
        store.delete_endpoint(&endpoint, "by hand", now),
        store.claim_due_endpoint(REGION, now, TimeDelta::zero()),
    );
    assert_eq!(Box::pin(failed).await, Vec::<String>::new());
    let asked = "SELECT count(*) FROM trials WHERE stop_requested_at IS NOT NULL";
    assert_eq!(number(&pool, asked).await, 1);
}

#[sqlx::test(migrations = false)]
async fn a_listing_and_a_read_of_metrics_of_the_same_trials_do_not_wait_for_each_other(
    pool: PgPool,
) {
    let (test, _, _) = running(&pool, 3).await;
    let (store, now) = (&test.app.store, test.app.clock.now());
    let term = store
        .acquire_lease("watcher", REGION, "x", Duration::from_mins(1))
        .await
        .unwrap()
        .unwrap();
    sqlx::query("UPDATE jobs SET metrics_due_at = $1")
        .bind(now)
        .execute(&pool)
        .await
        .unwrap();
    let due = store
        .claim_due_metrics(REGION, now, TimeDelta::minutes(10), 100)
        .await
        .unwrap();
    let rows: Vec<(Uuid, Uuid)> = sqlx::query_as("SELECT trial_id, id FROM jobs ORDER BY ctid")
        .fetch_all(&pool)
        .await
        .unwrap();
    let step = |(_, attempt): &(Uuid, Uuid)| {
        let due = due
            .iter()
            .find(|due| due.account.job_id.0 == *attempt)
            .unwrap()
            .clone();
        Progress {
            due,
            cursor: now,
            next_at: Some(now),
        }
    };
    let backwards: Vec<Progress> = rows.iter().rev().map(step).collect();
    let (changed, none): (Vec<Change>, _) = (
        rows.iter().map(|row| change(*row)).collect(),
        Samples::default(),
    );
    let failed = meet(
        &pool,
        format!("SELECT 1 FROM jobs WHERE id = '{}' FOR UPDATE", rows[1].1),
        store.notice(&term, &changed, &[], now),
        store.record_metrics(&none, &backwards, now),
    );
    assert_eq!(Box::pin(failed).await, Vec::<String>::new());
}

#[sqlx::test(migrations = false)]
async fn a_look_and_a_listing_of_the_same_trial_do_not_wait_for_each_other(pool: PgPool) {
    let (test, _, mut rows) = running(&pool, 2).await;
    rows.sort_unstable();
    let (store, now) = (&test.app.store, test.app.clock.now());
    let term = store
        .acquire_lease("watcher", REGION, "x", Duration::from_mins(1))
        .await
        .unwrap()
        .unwrap();
    let due = "UPDATE trials SET due_at = $1 WHERE id = $2";
    sqlx::query(due)
        .bind(now)
        .bind(rows[1].0)
        .execute(&pool)
        .await
        .unwrap();
    let claimed = store
        .claim_due_trials(holder("x", Duration::from_mins(1)), now, 10)
        .await
        .unwrap();
    let trial = claimed.first().unwrap();
    let attempt = trial.attempt.as_ref().unwrap();
    let (changed, look) = ([change(rows[1])], [TrialId(rows[0].0), TrialId(rows[1].0)]);
    let failed = meet(
        &pool,
        format!("SELECT 1 FROM trials WHERE id = '{}' FOR UPDATE", rows[0].0),
        store.notice(&term, &changed, &look, now - TimeDelta::minutes(1)),
        store.record_look(trial, attempt, None, 0, now, now),
    );
    assert_eq!(Box::pin(failed).await, Vec::<String>::new());
}

/// Three that wait: the last one's claim finds no money, and puts all off; and somebody cancels
/// them.
#[sqlx::test(migrations = false)]
async fn a_cancel_and_a_wait_for_money_do_not_wait_for_each_other(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = ExperimentId(uuid_of(&test.start(&on_p5(3)).await));
    let (store, now) = (&test.app.store, test.app.clock.now());
    let mut claimed = test.admit("x", Duration::from_mins(1)).await;
    claimed.sort_by_key(|trial| trial.id.0);
    let last = claimed.pop().unwrap();
    let back = "UPDATE trials SET state = 'queued', lease_owner = NULL, lease_expires_at = NULL WHERE id <> $1";
    sqlx::query(back)
        .bind(last.id.0)
        .execute(&pool)
        .await
        .unwrap();
    let failed = meet(
        &pool,
        format!(
            "SELECT 1 FROM trials WHERE id = '{}' FOR UPDATE",
            claimed[1].id.0
        ),
        store.command(test.project, id, ExperimentCommand::Cancel, now),
        store.requeue(
            &last,
            Due::because(now + TimeDelta::minutes(1), "no money"),
            Usd::ZERO,
            now,
        ),
    );
    assert_eq!(Box::pin(failed).await, Vec::<String>::new());
}

/// SQLSTATE of a deadlock's victim.
const DEADLOCK: &str = "40P01";

fn is_deadlock(error: &StoreError) -> bool {
    format!("{error:?}").contains(DEADLOCK)
}

async fn push(test: &TestApp, job: &RegionJob, status: &str, secondary: &str) -> Option<String> {
    let key = bakeoff_service::auth::secrets::events_key(&[7; 32]);
    let now = test.app.clock.now();
    let body = json!({
        "version": "0", "id": "1", "detail-type": "SageMaker Training Job State Change", "source": "aws.sagemaker",
        "account": "111122223333", "region": "us-east-1", "time": now, "resources": [],
        "detail": {"TrainingJobName": job.name, "TrainingJobStatus": status, "SecondaryStatus": secondary,
                   "LastModifiedTime": now.timestamp_millis(),
                   "Environment": {"BAKEOFF_ATTEMPT_ID": job.attempt}},
    });
    let (status, answer) = test
        .send(
            test.request(Method::POST, "/v1/aws-events", &key)
                .json(&body),
        )
        .await;
    (status != 202).then(|| format!("an event was answered {status}: {answer}"))
}

async fn deadlocks(pool: &PgPool) -> i64 {
    number(
        pool,
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
    )
    .await
}

/// Cancels, settlements, listings, pushed events and metrics, all of the same trials at the same
/// time.
#[sqlx::test(migrations = false)]
async fn cancels_settlements_and_notices_of_the_same_trials_never_deadlock(pool: PgPool) {
    // A pool of its own, whose end makes its sessions tell what they counted.
    let own = PgPoolOptions::new()
        .max_connections(16)
        .connect_lazy_with((*pool.connect_options()).clone());
    let mut test = TestApp::with_faults(own, &["--quota", "1000"]).await;
    let settings = Settings {
        lease: Duration::from_secs(2),
        ..(*test.app.settings).clone()
    };
    test.app.settings = Arc::new(settings);
    let mut failed = Vec::new();
    for round in 0..ROUNDS {
        let mut ids = Vec::new();
        for _ in 0..EXPERIMENTS {
            ids.push(test.start(&on_p5(12)).await);
        }
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
        test.advance(TimeDelta::minutes(12)).await;
        test.watch().await;
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
        if round % 2 == 0 {
            test.advance(TimeDelta::hours(3)).await;
        }
        failed.extend(Box::pin(one_storm(&test, &ids)).await);
        test.advance(TimeDelta::minutes(30)).await;
        test.tick().await;
    }
    test.app.store.pool().close().await;
    let counted = deadlocks(&pool).await;
    println!("{counted} deadlocks, {} calls failed", failed.len());
    assert_eq!(
        (counted, failed),
        (0, Vec::new()),
        "deadlocks, and what failed"
    );
}

const ROUNDS: usize = 6;
const EXPERIMENTS: usize = 8;

/// What failed in it: cancels that were not taken, ticks that were a deadlock's victim.
async fn one_storm(test: &TestApp, ids: &[String]) -> Vec<String> {
    let now = test.app.clock.now();
    let all = "UPDATE trials SET due_at = $1 WHERE state IN ('running', 'stopping')";
    sqlx::query(all)
        .bind(now)
        .execute(test.app.store.pool())
        .await
        .unwrap();
    sqlx::query("UPDATE jobs SET metrics_due_at = $1 WHERE state = 'running'")
        .bind(now)
        .execute(test.app.store.pool())
        .await
        .unwrap();
    let (left, right) = (test.replica("left"), test.replica("right"));
    let of = async |result: Result<usize, StoreError>| {
        result
            .err()
            .filter(is_deadlock)
            .map(|error| error.to_string())
    };
    let settles = async |app: &App| {
        let mut victims = Vec::new();
        for _ in 0..4 {
            victims.extend(of(scheduler::tick(app).await).await);
        }
        victims
    };
    let living = test.jobs().await;
    let pushes = async |backwards: bool| {
        let mut order: Vec<&RegionJob> = living.iter().rev().take(96).collect();
        if backwards {
            order.reverse();
        }
        let mut refused = Vec::new();
        for secondary in ["Uploading", "Completed"] {
            let status = if secondary == "Completed" {
                "Completed"
            } else {
                "InProgress"
            };
            let answers = order.iter().map(|job| push(test, job, status, secondary));
            refused.extend(
                futures::future::join_all(answers)
                    .await
                    .into_iter()
                    .flatten(),
            );
        }
        refused
    };
    let cancels = futures::future::join_all(ids.iter().map(async |id| {
        let (status, body) = test
            .post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
            .await;
        (status != 202).then(|| format!("a cancel was answered {status}: {body}"))
    }));
    let watching = async {
        for _ in 0..4 {
            drop(watcher::tick(&test.app, &mut watcher::Memory::default()).await);
        }
    };
    let reading = async { of(ingester::tick(&right).await).await };
    let (one, two, cancelled, (), forth, back, read) = tokio::join!(
        settles(&left),
        settles(&right),
        cancels,
        watching,
        pushes(false),
        pushes(true),
        reading
    );
    let answers = cancelled.into_iter().flatten().chain(forth).chain(back);
    one.into_iter()
        .chain(two)
        .chain(answers)
        .chain(read)
        .collect()
}

/// Two first points of a month at the same time: one makes its partition, the other finds it made.
#[sqlx::test(migrations = false)]
async fn a_month_is_made_by_whoever_comes_first_and_the_others_go_on(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let make = "SELECT make_samples_partition('2027-03-01')";
    let mut first = pool.begin().await.unwrap();
    sqlx::query(make).execute(&mut *first).await.unwrap();
    let second = tokio::spawn({
        let pool = pool.clone();
        async move { sqlx::query(make).execute(&pool).await }
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while number(&pool, waiting).await == 0 {
        assert!(!second.is_finished(), "it waits for the first");
        real_sleep(Duration::from_millis(10)).await;
    }
    first.commit().await.unwrap();
    second.await.unwrap().expect("the month is there");
    drop(test);
}
