//! A database of an earlier version: what its rows are after the migrations, and that jobs which an
//! earlier version made are still known.

use bakeoff::ids;
use bakeoff::store::MIGRATOR;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};

use crate::between::{Act, Between};
use crate::fleet::repeats;
use crate::support::TestApp;

/// The last version in which ranges of numbers said what a ledger row was for.
const BEFORE_RESOURCES: i64 = 21;

/// One trial with one attempt, without what they refer to.
const ATTEMPT: &str = "
    INSERT INTO trials (id, project_id, experiment_id, ordinal, candidate, instance_type, instance_count, purchase_option, plan,
                        worst_case_training_usd, worst_case_metrics_usd, price_id, state, due_at, created_at, region, volume_gb)
    SELECT id, id, id, 0, 'p5', 'ml.p5.48xlarge', 1, 'on_demand', '{}', 1, 1, id, 'running', now(), now(), 'eu-west-1', 0
    FROM (SELECT '00000000-0000-7000-8000-000000000001'::uuid AS id) one;
    INSERT INTO attempts (id, project_id, experiment_id, trial_id, number, job_name, state, price_id, usd_per_hour,
                          reserved_training_usd, reserved_metrics_usd, planned_at, job_arn)
    SELECT id, id, id, id, 1, 'bakeoff-1', 'running', id, 1, 1, 1, now(),
           'arn:aws:sagemaker:eu-west-1:123456789012:training-job/bakeoff-1'
    FROM trials;";

/// Kind, component, resource, settlement, line and dollars.
type Row = (String, String, String, i32, i32, i64);

/// Kind, component and number of a row before, and its resource, settlement and line after.
const ROWS: [(&str, &str, i32, &str, i32, i32); 20] = [
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

#[sqlx::test(migrations = false)]
async fn an_attempt_becomes_a_job_and_its_rows_in_the_ledger_say_what_ran(beside: PgPool) {
    let pool = empty(&beside).await;
    MIGRATOR.run_to(BEFORE_RESOURCES, &pool).await.unwrap();
    let statement = |(usd, (kind, component, part, ..)): (i64, (&str, &str, i32, _, _, _))| {
        format!(
            "INSERT INTO ledger (project_id, experiment_id, trial_id, attempt_id, kind, component, usd, quantity, unit,
                                 estimated, recorded_at, part)
             SELECT project_id, experiment_id, trial_id, id, '{kind}', '{component}', {usd}, 1, 'worst_case', false, now(),
                    {part} FROM attempts;"
        )
    };
    let ledger: Vec<String> = (1..).zip(ROWS).map(statement).collect();
    sqlx::raw_sql(AssertSqlSafe(format!("{ATTEMPT} {}", ledger.join("\n"))))
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
    let job: (String, String, String) = sqlx::query_as("SELECT kind, region, account FROM jobs")
        .fetch_one(&pool)
        .await
        .unwrap();
    let (kind, region, account) = ("training", "eu-west-1", "123456789012");
    assert_eq!(job, (kind.into(), region.into(), account.into()));
    let name = pool.connect_options().get_database().unwrap().to_owned();
    pool.close().await;
    let gone = format!("DROP DATABASE {name}");
    sqlx::query(AssertSqlSafe(gone))
        .execute(&beside)
        .await
        .unwrap();
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
