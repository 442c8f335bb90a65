//! What holds when a stored row cannot be read, because a newer program or somebody's hand wrote it:
//! there is an alarm, what runs is still watched, stopped and billed, and nobody else waits.

use bakeoff_api::decisions::RecommendationView;
use bakeoff_api::page::Page;
use bakeoff_api::trials::TrialView;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_service::tasks::{ingester, scheduler};
use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{REGION, TestApp, number, on_p5, spot_spec};

async fn run(pool: &PgPool, statement: &'static str) {
    sqlx::query(statement).execute(pool).await.unwrap();
}

/// Two experiments whose jobs run, in one tick of everything; the first one's row can then not be
/// read.
async fn two_of_which_one_is_unreadable(
    test: &TestApp,
    pool: &PgPool,
    spec: &Value,
    change: &'static str,
) -> uuid::Uuid {
    test.start(spec).await;
    test.start(spec).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.watch().await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let broken: uuid::Uuid = sqlx::query_scalar("SELECT min(id::text)::uuid FROM trials")
        .fetch_one(pool)
        .await
        .unwrap();
    run(pool, change).await;
    test.advance(TimeDelta::hours(1)).await;
    broken
}

#[sqlx::test(migrations = false)]
async fn metrics_are_read_although_another_trials_cannot_be(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let nonsense = "UPDATE trials SET metrics = '\"nonsense\"' WHERE id = (SELECT min(id::text)::uuid FROM trials)";
    let broken = two_of_which_one_is_unreadable(&test, &pool, &on_p5(1), nonsense).await;
    let read = ingester::tick(&test.app).await;
    let behind: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM jobs WHERE trial_id <> $1 AND metrics_cursor IS NULL",
    )
    .bind(broken)
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(
        behind, 0,
        "attempts whose metrics were not read, because of one unreadable row: {read:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn checkpoints_are_looked_at_although_another_trials_cannot_be(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut spot = spot_spec();
    spot["candidates"][0]["purchase_options"] = json!(["spot"]);
    let nothing = "UPDATE trials SET checkpoint_s3_uri = NULL, checkpoint_local_path = NULL, checkpoint_interval_seconds = NULL
                   WHERE id = (SELECT min(id::text)::uuid FROM trials)";
    let broken = two_of_which_one_is_unreadable(&test, &pool, &spot, nothing).await;
    let now = test.app.clock.now();
    let due = test
        .app
        .store
        .claim_due_checkpoints(REGION, now, TimeDelta::minutes(10), 100)
        .await;
    let due: Result<Vec<uuid::Uuid>, _> =
        due.map(|due| due.into_iter().map(|due| due.trial_id.0).collect());
    let is_taken = due
        .as_ref()
        .is_ok_and(|due| !due.is_empty() && !due.contains(&broken));
    assert!(
        is_taken,
        "taken to be looked at, beside an unreadable one: {due:?}"
    );
}

/// The jobs of two experiments run; then the trial's plan of one, and the transitions of the
/// other's attempt, are nonsense.
async fn two_that_are_unreadable(test: &TestApp, pool: &PgPool) -> [String; 2] {
    let ids = [test.start(&on_p5(1)).await, test.start(&on_p5(1)).await];
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.watch().await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    run(
        pool,
        "UPDATE trials SET plan = '{\"v\": 2, \"candidate\": 7}' WHERE id = (SELECT min(id::text)::uuid FROM trials)",
    )
    .await;
    run(
        pool,
        "UPDATE jobs SET transitions = '\"nonsense\"' WHERE trial_id = (SELECT max(id::text)::uuid FROM trials)",
    )
    .await;
    ids
}

/// How often people were told, with an alarm.
async fn alarms(pool: &PgPool) -> i64 {
    number(
        pool,
        "SELECT count(*) FROM events WHERE kind = 'trial.unreadable' AND severity = 'alarm'",
    )
    .await
}

#[sqlx::test(migrations = false)]
async fn an_unreadable_trial_is_stopped_and_billed_and_raises_one_alarm(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let ids = two_that_are_unreadable(&test, &pool).await;
    for id in &ids {
        test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
            .await;
    }
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let jobs = test.jobs().await;
    let asked = jobs.iter().filter(|job| job.stop_asked_at.is_some());
    assert_eq!(asked.count(), 2, "stops that were sent: {jobs:?}");
    assert_eq!(alarms(&pool).await, 2, "one for each");
    for _ in 0..4 {
        test.advance(TimeDelta::minutes(10)).await;
        test.tick().await;
    }
    let settled: Vec<rust_decimal::Decimal> = sqlx::query_scalar(
        "SELECT sum(usd) FROM ledger WHERE kind = 'settled' AND component = 'training' GROUP BY job_id",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let jobs = test.jobs().await;
    let billed: i64 = jobs.iter().map(|job| job.micro_usd).sum();
    let booked: rust_decimal::Decimal = settled.iter().sum();
    assert_eq!(settled.len(), 2, "attempts with a bill");
    assert_eq!(
        booked,
        rust_decimal::Decimal::new(billed, 6),
        "and it is the region's: {jobs:?}"
    );
    assert_eq!(alarms(&pool).await, 2, "not told again");
}

/// Its experiment ends, with a table and a ranking from which it is left out, or which knows less
/// of it.
async fn is_shown_and_concluded(test: &TestApp, id: &str) {
    let experiment = test.experiment(id).await;
    assert_eq!(experiment.state, ExperimentState::Completed);
    let trials: Page<TrialView> = test.read(&format!("/v1/experiments/{id}/trials")).await;
    let table = test.comparison(id).await;
    let ranking: RecommendationView = test
        .read(&format!("/v1/experiments/{id}/recommendation"))
        .await;
    let (trial, row) = (&trials.items[0], &table.rows[0]);
    let alone: TrialView = test.read(&format!("/v1/trials/{}", trial.id)).await;
    assert_eq!(alone.attempts.len(), 1);
    assert_eq!(row.candidate, "p5", "by its column");
    assert!(row.total_usd.is_some_and(|usd| usd.0 > 0.into()), "{row:?}");
    let is_readable = trial.plan.is_some();
    assert_eq!(row.comparable, is_readable);
    let left_out: Vec<&str> = ranking
        .recommendation
        .not_ranked
        .iter()
        .map(|one| one.reason.as_str())
        .collect();
    assert_eq!(left_out.is_empty(), is_readable, "{left_out:?}");
    assert!(
        left_out
            .iter()
            .all(|why| why.contains("stored plan cannot be read")),
        "{left_out:?}"
    );
}

/// What runs by itself to its end is noticed and billed as well.
#[sqlx::test(migrations = false)]
async fn an_unreadable_trial_is_watched_to_its_end(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let ids = two_that_are_unreadable(&test, &pool).await;
    for _ in 0..12 {
        test.advance(TimeDelta::minutes(30)).await;
        test.tick().await;
    }
    let states: Vec<String> = sqlx::query_scalar("SELECT state FROM trials ORDER BY id")
        .fetch_all(&pool)
        .await
        .unwrap();
    assert_eq!(states, ["completed", "completed"]);
    for id in &ids {
        is_shown_and_concluded(&test, id).await;
    }
    let held = "SELECT count(*) FROM experiments WHERE reserved_usd <> 0";
    assert_eq!(number(&pool, held).await, 0, "nothing stays reserved");
}

/// It has not begun: nothing is started that nobody can read, and somebody is asked.
#[sqlx::test(migrations = false)]
async fn an_unreadable_trial_that_has_not_begun_is_parked(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    run(&pool, "UPDATE trials SET plan = '{\"v\": 99}'").await;
    test.tick().await;
    let (state, reason): (String, Option<String>) =
        sqlx::query_as("SELECT state, reason FROM trials")
            .fetch_one(&pool)
            .await
            .unwrap();
    assert_eq!(state, "parked");
    let reason = reason.unwrap_or_default();
    assert!(
        reason.contains("go back to the one that wrote it"),
        "{reason}"
    );
    assert_eq!(test.jobs().await.len(), 0);
}

/// A create gets no answer, then the plan cannot be read: whether there is a job is found out without
/// it, and no money stays reserved. What becomes of the trial, and of how many jobs.
async fn after_a_create_without_an_answer(pool: &PgPool, fault: &str) -> (String, usize) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    test.region_post("/_sim/faults", &json!({ fault: 1.0 }))
        .await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let planned = "SELECT count(*) FROM jobs WHERE state = 'planned'";
    assert_eq!(
        number(pool, planned).await,
        1,
        "its create may be under way"
    );
    test.region_post("/_sim/faults", &json!({})).await;
    run(pool, "UPDATE trials SET plan = '{\"v\": 99}'").await;
    for _ in 0..12 {
        test.advance(TimeDelta::minutes(30)).await;
        test.tick().await;
    }
    let held = "SELECT count(*) FROM experiments WHERE reserved_usd <> 0";
    assert_eq!(number(pool, held).await, 0, "nothing stays reserved");
    let state = sqlx::query_scalar("SELECT state FROM trials")
        .fetch_one(pool)
        .await
        .unwrap();
    (state, test.jobs().await.len())
}

#[sqlx::test(migrations = false)]
async fn an_unreadable_trial_whose_create_came_to_nothing_is_parked(pool: PgPool) {
    let outcome = after_a_create_without_an_answer(&pool, "hang_before").await;
    assert_eq!(outcome, ("parked".to_owned(), 0));
}

#[sqlx::test(migrations = false)]
async fn an_unreadable_trial_whose_create_was_carried_out_runs_to_its_end(pool: PgPool) {
    let outcome = after_a_create_without_an_answer(&pool, "lost_reply").await;
    assert_eq!(outcome, ("completed".to_owned(), 1));
}

/// As plans were written before checkpoints had an interval.
#[sqlx::test(migrations = false)]
async fn plans_of_every_age_are_carried_along_by_the_migration(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut spot = spot_spec();
    spot["candidates"][0]["purchase_options"] = json!(["spot"]);
    test.start(&spot).await;
    let columns = "SELECT count(*) FROM trials WHERE checkpoint_interval_seconds = 1800
                   AND checkpoint_local_path = '/opt/ml/checkpoints' AND volume_gb > 0 AND region = 'us-east-1'";
    let fill = std::fs::read_to_string("migrations/0020_columns_of_plans_filled.sql").unwrap();
    run(
        &pool,
        "UPDATE trials SET plan = plan || jsonb_build_object('request',
             (plan #> '{job,training}') #- '{checkpoint,interval_seconds}' #- '{checkpoint,local_path}')",
    )
    .await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(fill.as_str()))
        .execute(&pool)
        .await
        .unwrap();
    assert_eq!(
        number(&pool, columns).await,
        number(&pool, "SELECT count(*) FROM trials").await
    );
    run(
        &pool,
        "UPDATE trials SET plan = jsonb_set(plan, '{request}', 'null')",
    )
    .await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(fill.as_str()))
        .execute(&pool)
        .await
        .unwrap();
    let nothing = "SELECT count(*) FROM trials WHERE checkpoint_s3_uri IS NULL AND volume_gb = 0 AND metrics = '[]'";
    assert_eq!(
        number(&pool, nothing).await,
        number(&pool, "SELECT count(*) FROM trials").await
    );
}
