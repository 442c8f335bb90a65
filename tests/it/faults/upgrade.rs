//! A database of an earlier version: what its rows are after the migrations, that jobs which an
//! earlier version made are still known, and that its experiments go on to their ends.

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_domain::ids::{ExperimentId, ProjectId};
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_process::ids;
use bakeoff_service::auth::keys::Role;
use bakeoff_store::{MIGRATOR, Store};
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgPool};
use uuid::Uuid;

use crate::jobs::fleet::repeats;
use crate::support::fault_proxy::{Act, Between};
use crate::support::{TestApp, number};

/// The last version in which ranges of numbers said what a ledger row was for, nothing had a region,
/// and orphaned jobs were strays.
const BEFORE_COLUMNS: i64 = 13;

/// Three experiments in two regions with a trial and an attempt each, without what they refer to.
/// The first attempt has an ARN.
const ATTEMPTS: &str = r#"
    INSERT INTO experiments (id, project_id, name, workload_id, spec, findings, state, budget_usd, reserved_usd, settled_usd,
                             created_at)
    SELECT id, id, 'e', id, jsonb_build_object('region', region), '[]', 'running', 9, 0, 0, now()
    FROM (VALUES ('00000000-0000-7000-8000-000000000001'::uuid, 'eu-west-1'),
                 ('00000000-0000-7000-8000-000000000002'::uuid, 'us-east-1'),
                 ('00000000-0000-7000-8000-000000000003'::uuid, 'us-east-1')) e(id, region);
    INSERT INTO trials (id, project_id, experiment_id, ordinal, candidate, instance_type, instance_count, purchase_option, plan,
                        worst_case_training_usd, worst_case_metrics_usd, price_id, state, due_at, created_at)
    SELECT id, id, id, 0, 'p5', 'ml.p5.48xlarge', 1, 'on_demand', '{"request": {"volume_size_gb": 7}}', 1, 1, id, 'running',
           now(), now()
    FROM experiments;
    INSERT INTO attempts (id, project_id, experiment_id, trial_id, number, job_name, state, price_id, usd_per_hour,
                          reserved_training_usd, reserved_metrics_usd, planned_at, job_arn)
    SELECT id, id, id, id, 1, 'bakeoff-' || id, 'running', id, 1, 1, 1, now(),
           'arn:aws:sagemaker:eu-west-1:123456789012:training-job/bakeoff-1'
    FROM trials ORDER BY id;
    UPDATE attempts SET job_arn = NULL WHERE job_name NOT LIKE '%1';"#;

/// Kind, component, resource, settlement, line and dollars.
type Row = (String, String, String, i32, i32, i64);

/// Kind, component and number of a row before, and its resource, settlement and line after.
const ROWS: [(&str, &str, i32, &str, i32, i32); 21] = [
    ("reserved", "training", 0, "job", 0, 0),
    ("reserved", "cloudwatch", 0, "job", 0, 0),
    ("reserved", "warm_pool", 0, "warm_pool", 0, 0),
    ("released", "warm_pool", 0, "warm_pool", 0, 0),
    ("settled", "training", 0, "job", 0, 0),
    ("settled", "training", 1, "job", 0, 1),
    ("settled", "cloudwatch", 0, "job", 0, 0),
    ("settled", "warm_pool", 0, "warm_pool", 0, 0),
    ("settled", "storage", 0, "job", 0, 0),
    ("settled", "storage", 100, "warm_pool", 0, 0),
    ("settled", "storage", 101, "warm_pool", 0, 1),
    ("settled", "storage", 200, "orphaned_job", 0, 0),
    ("settled", "storage", 301, "orphaned_job", 1, 1),
    ("settled", "orphaned_job", 0, "orphaned_job", 0, 0),
    ("settled", "orphaned_job", 100, "orphaned_job", 1, 0),
    ("adjusted", "training", 0, "job", 0, 0),
    ("adjusted", "training", 1, "job", 1, 0),
    ("adjusted", "warm_pool", 1, "warm_pool", 1, 0),
    ("adjusted", "storage", 0, "job", 0, 0),
    ("adjusted", "storage", 1, "job", 1, 0),
    ("adjusted", "orphaned_job", 1, "orphaned_job", 1, 0),
];

/// A database without anything: those of tests may be copies of one that is up to date.
async fn created(beside: &PgPool) -> PgPool {
    let name = format!("old_{}", ids::fresh().as_simple());
    execute(beside, format!("CREATE DATABASE {name} TEMPLATE template0")).await;
    let options = (*beside.connect_options()).clone().database(&name);
    PgPool::connect_with(options).await.unwrap()
}

/// The same, and it checks no references: its rows may refer to what is not there.
async fn empty(beside: &PgPool) -> PgPool {
    let pool = created(beside).await;
    let name = pool.connect_options().get_database().unwrap().to_owned();
    execute(
        beside,
        format!("ALTER DATABASE {name} SET session_replication_role = replica"),
    )
    .await;
    let options = (*pool.connect_options()).clone();
    pool.close().await;
    PgPool::connect_with(options).await.unwrap()
}

async fn execute(pool: &PgPool, statement: String) {
    sqlx::query(AssertSqlSafe(statement))
        .execute(pool)
        .await
        .unwrap();
}

async fn drop_database(pool: PgPool, beside: &PgPool) {
    let name = pool.connect_options().get_database().unwrap().to_owned();
    pool.close().await;
    execute(beside, format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

#[sqlx::test(migrations = false)]
async fn an_attempt_becomes_a_job_and_its_rows_in_the_ledger_say_what_ran(beside: PgPool) {
    let pool = empty(&beside).await;
    MIGRATOR.run_to(BEFORE_COLUMNS, &pool).await.unwrap();
    let statement = |(usd, (kind, component, part, ..)): (i64, (&str, &str, i32, _, _, _))| {
        let component = component.replace("orphaned_job", "stray");
        format!(
            "INSERT INTO ledger (project_id, experiment_id, trial_id, attempt_id, kind, component, usd, quantity, unit,
                                 estimated, recorded_at, part)
             SELECT project_id, experiment_id, trial_id, id, '{kind}', '{component}', {usd}, 1, 'worst_case', false, now(),
                    {part} FROM attempts WHERE job_name LIKE '%1';"
        )
    };
    let ledger: Vec<String> = (1..).zip(ROWS).map(statement).collect();
    sqlx::raw_sql(AssertSqlSafe(format!("{ATTEMPTS} {}", ledger.join("\n"))))
        .execute(&pool)
        .await
        .unwrap();
    MIGRATOR.run(&pool).await.unwrap();
    let found: Vec<Row> = sqlx::query_as(
        "SELECT kind, component, resource, settlement, line, usd::bigint FROM ledger ORDER BY usd",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let expected: Vec<Row> = (1..)
        .zip(ROWS)
        .map(|(usd, (kind, component, _, resource, settlement, line))| {
            let (kind, component) = (kind.to_owned(), component.to_owned());
            (kind, component, resource.to_owned(), settlement, line, usd)
        })
        .collect();
    assert_eq!(found, expected);
    let places: Vec<(String, String, i32)> = sqlx::query_as(
        "SELECT j.region, j.account, t.volume_gb FROM jobs j JOIN trials t ON t.id = j.trial_id AND t.region = j.region
         WHERE j.kind = 'training' ORDER BY j.id",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let expected = ["eu-west-1", "us-east-1", "us-east-1"]
        .map(|region| (region.to_owned(), "123456789012".to_owned(), 7));
    assert_eq!(places, expected);
    drop_database(pool, &beside).await;
}

/// Each would wait for the other's index if it waited for its turn in a statement.
#[sqlx::test(migrations = false)]
async fn programs_that_migrate_at_once_take_turns(beside: PgPool) {
    let pool = empty(&beside).await;
    let (one, other) = (Store::new(pool.clone()), Store::new(pool.clone()));
    let (first, second) = tokio::join!(one.migrate(), other.migrate());
    first.unwrap();
    second.unwrap();
    let (applied, known) = one.schema_versions().await.unwrap();
    assert_eq!(applied, known);
    drop_database(pool, &beside).await;
}

/// A migration that was interrupted while it built an index is repeated: the session may have been
/// cut off, or have gone on without its client until the index was whole.
#[sqlx::test(migrations = false)]
async fn an_index_that_an_interrupted_migration_left_does_not_stop_the_next(beside: PgPool) {
    let pool = empty(&beside).await;
    MIGRATOR.run_to(24, &pool).await.unwrap();
    for left in [
        "CREATE INDEX events_by_project ON events (project_id, id)",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'events_by_project'::regclass",
        "CREATE INDEX alarms_by_project ON events (project_id, id) WHERE severity = 'alarm'",
    ] {
        sqlx::query(left).execute(&pool).await.unwrap();
    }
    Store::new(pool.clone()).migrate().await.unwrap();
    let is_valid: bool = sqlx::query_scalar(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = 'events_by_project'::regclass",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert!(is_valid, "it is as it was left");
    drop_database(pool, &beside).await;
}

/// Its marker has the prefix of the first versions.
#[sqlx::test(migrations = false)]
async fn a_job_of_an_earlier_version_is_adopted(pool: PgPool) {
    let mut test = TestApp::with_faults(pool, &["--lost-reply", "1"]).await;
    let old = |operation: &str, _: &Value| match operation {
        "DescribeTrainingJob" => Act::Replace(b"\"job_", b"\"att_"),
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, old).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    let id = test.start(&repeats(1)).await;
    // It is created, and nobody hears of it.
    test.tick().await;
    test.region_post("/_sim/faults", &json!({})).await;
    test.run_until_ended(&id, 60).await;
    let trial = test.trials(&id).await.remove(0);
    assert_eq!((trial.attempts.len(), test.jobs().await.len()), (1, 1));
    let described = between.count("DescribeTrainingJob");
    assert!(described > 0, "its marker was never read");
}

/// What the service of version 13 asked of the region until it was killed and `tests/upgrade/dump.sql`
/// taken: its calls were recorded on the way. Asked the same at the same times, another region has the
/// same jobs.
#[derive(Deserialize)]
struct Past {
    calls: Vec<Call>,
    ended_at: DateTime<Utc>,
    /// A job that was created after its trial had been cancelled.
    orphaned_job: String,
}

#[derive(Deserialize)]
struct Call {
    at: DateTime<Utc>,
    operation: String,
    body: Value,
}

impl Past {
    /// Repeats the calls, and goes on to the moment at which the service was killed.
    async fn repeat(&self, test: &TestApp) {
        for call in &self.calls {
            test.advance(call.at - test.app.clock.now()).await;
            let request = test.client.post(&test.region.url).json(&call.body);
            let target = format!("SageMaker.{}", call.operation);
            let answer = request.header("x-amz-target", target).send().await.unwrap();
            assert!(answer.status().is_success(), "{}", call.operation);
        }
        test.advance(self.ended_at - test.app.clock.now()).await;
    }
}

/// A database as the version at `BEFORE_COLUMNS` left it when it was killed.
async fn restored(beside: &PgPool) -> PgPool {
    let pool = created(beside).await;
    // The dump changes settings of its session.
    let mut session = pool.connect_options().connect().await.unwrap();
    sqlx::raw_sql(include_str!("../../upgrade/dump.sql"))
        .execute(&mut session)
        .await
        .unwrap();
    session.close().await.unwrap();
    pool
}

/// What the dump must have in it, in the tables of its version, for its end to prove anything.
const LIVING: [(&str, &str); 8] = [
    (
        "running trials",
        "SELECT count(*) FROM trials WHERE state = 'running'",
    ),
    (
        "waiting trials",
        "SELECT count(*) FROM trials WHERE state = 'queued'",
    ),
    (
        "stopping trials",
        "SELECT count(*) FROM trials WHERE state = 'stopping'",
    ),
    (
        "spot trials",
        "SELECT count(*) FROM trials WHERE state = 'running' AND purchase_option = 'spot'",
    ),
    (
        "warm pools",
        "SELECT count(*) FROM warm_pools WHERE state <> 'settled'",
    ),
    (
        "orphaned jobs",
        "SELECT count(*) FROM stray_jobs WHERE settled_at IS NULL",
    ),
    (
        "metrics half read",
        "SELECT count(*) FROM attempts WHERE metrics_due_at IS NOT NULL",
    ),
    (
        "reserved money",
        "SELECT count(*) FROM projects WHERE reserved_usd > 0",
    ),
];

/// Dollars booked for each job, by name.
async fn booked(pool: &PgPool) -> BTreeMap<String, f64> {
    let rows: Vec<(String, f64)> = sqlx::query_as(
        "SELECT j.job_name, sum(l.usd)::float8 FROM ledger l JOIN jobs j ON j.id = l.job_id
         WHERE l.kind IN ('settled', 'adjusted') AND l.component <> 'cloudwatch' GROUP BY j.job_name",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    rows.into_iter().collect()
}

/// Runs until every experiment has ended, and then a little longer, in which the orphaned job and the
/// last pools are settled.
async fn run_out(test: &TestApp, pool: &PgPool) {
    let living = "SELECT count(*) FROM experiments WHERE ended_at IS NULL";
    let (mut rounds, mut after) = (0, 0);
    while after < 24 {
        assert!(rounds < 600, "it does not end");
        test.tick().await;
        test.advance(TimeDelta::minutes(5)).await;
        rounds += 1;
        after += i32::from(number(pool, living).await == 0);
    }
}

/// The ledger of each job is its bill, nothing runs any more, and no trial has two jobs.
async fn assert_bills(test: &TestApp, pool: &PgPool, orphaned_job: &str) {
    let (jobs, booked) = (test.jobs().await, booked(pool).await);
    for job in &jobs {
        let billed = job.usd_of_all();
        let own = booked.get(&job.name).copied().unwrap_or(0.0);
        assert!(
            (billed - own).abs() < 0.005,
            "billed {billed}, booked {own}: {job:?}"
        );
        assert!(!job.is_running() && !job.idle_pool, "{job:?}");
    }
    // SageMaker restarts interrupted spot jobs itself, and no create succeeded twice.
    let trials: BTreeSet<_> = jobs.iter().map(|job| &job.trial).collect();
    assert_eq!(trials.len(), jobs.len(), "a trial has two jobs: {jobs:?}");
    let orphan = jobs.iter().find(|job| job.name == orphaned_job).unwrap();
    assert!(orphan.stop_asked_at.is_some(), "{orphan:?}");
}

/// Every experiment has ended as it should, and all events are told, in order.
async fn assert_ends(test: &TestApp, pool: &PgPool) {
    let ids: Vec<Uuid> = sqlx::query_scalar("SELECT id FROM experiments")
        .fetch_all(pool)
        .await
        .unwrap();
    let mut told = 0;
    for id in ids {
        let id = ExperimentId(id).to_string();
        let ended = test.experiment(&id).await;
        let state = match ended.name.as_str() {
            "cancelled" | "late" => ExperimentState::Cancelled,
            _ => ExperimentState::Completed,
        };
        assert_eq!(ended.state, state, "{ended:?}");
        let events = test.events(&id).await;
        assert!(events.is_sorted_by_key(|event| event.id));
        // Times are taken before a commit: they are in order within a trial.
        let mut last = BTreeMap::new();
        for event in &events {
            let before = last.insert(event.trial_id, event.recorded_at);
            assert!(before.is_none_or(|at| at <= event.recorded_at), "{event:?}");
        }
        told += i64::try_from(events.len()).unwrap();
    }
    assert_eq!(told, number(pool, "SELECT count(*) FROM events").await);
}

#[sqlx::test(migrations = false)]
async fn experiments_of_an_earlier_version_go_on_to_their_ends(beside: PgPool) {
    let pool = restored(&beside).await;
    for (what, query) in LIVING {
        assert!(number(&pool, query).await > 0, "the dump has no {what}");
    }
    let settled = "SELECT count(*) FROM ledger WHERE kind = 'settled'";
    let settled_before = number(&pool, settled).await;

    let mut test = TestApp::with_faults(pool.clone(), &["--quota-of", "ml.p5.48xlarge=1"]).await;
    let past: Past = serde_json::from_str(include_str!("../../upgrade/calls.json")).unwrap();
    past.repeat(&test).await;
    let project = sqlx::query_scalar("SELECT id FROM projects WHERE name = 'research'");
    test.project = ProjectId(project.fetch_one(&pool).await.unwrap());
    test.admin = test.key(test.project, Role::Admin).await;
    run_out(&test, &pool).await;

    assert!(number(&pool, settled).await > settled_before);
    test.assert_nothing_leaks(&[]).await;
    assert_bills(&test, &pool, &past.orphaned_job).await;
    assert_ends(&test, &pool).await;
    drop(test);
    drop_database(pool, &beside).await;
}
