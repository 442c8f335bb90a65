//! A database of an earlier version: what its rows are after the migrations, and that jobs which an
//! earlier version made are still known.

use bakeoff::ids;
use bakeoff::store::{MIGRATOR, Store};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};

use crate::between::{Act, Between};
use crate::fleet::repeats;
use crate::support::TestApp;

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

/// An empty database that checks no references: those of tests may be copies of one that is up to date.
async fn empty(beside: &PgPool) -> PgPool {
    let name = format!("old_{}", ids::fresh().as_simple());
    // Its rows may refer to what is not there.
    for statement in [
        format!("CREATE DATABASE {name} TEMPLATE template0"),
        format!("ALTER DATABASE {name} SET session_replication_role = replica"),
    ] {
        let done = sqlx::query(AssertSqlSafe(statement)).execute(beside).await;
        done.unwrap();
    }
    let options = (*beside.connect_options()).clone().database(&name);
    PgPool::connect_with(options).await.unwrap()
}

async fn drop_database(pool: PgPool, beside: &PgPool) {
    let name = pool.connect_options().get_database().unwrap().to_owned();
    pool.close().await;
    let gone = format!("DROP DATABASE {name}");
    sqlx::query(AssertSqlSafe(gone))
        .execute(beside)
        .await
        .unwrap();
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
