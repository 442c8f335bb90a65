//! The queries of ticks, of writing points and of reading tables, at a hundred thousand finished
//! trials and a million points: what they read must not grow with history. `--nocapture` prints the
//! plans.

use sqlx::{AssertSqlSafe, PgPool};

use crate::support::{TestApp, spec};

/// What grows with history. Lists of a project's experiments may read many when a filter leaves
/// few.
const GROWING: [&str; 10] = [
    "trials",
    "jobs",
    "ledger",
    "samples",
    "rollups",
    "series",
    "sample_chunks",
    "pipelines",
    "pipeline_steps",
    "endpoints",
];

/// Part of a query's text, and what it is for.
const TICK: [(&str, &str); 16] = [
    ("WITH stops AS (", "scheduler: claim what is due"),
    (
        "SELECT (SELECT due_at FROM trials",
        "scheduler: when is the next due",
    ),
    (
        "SELECT min(due_at) FROM trials WHERE state = 'queued'",
        "scheduler: when is the next waiting",
    ),
    ("WITH heads AS (", "queue: heads of every quota pool"),
    (
        "SELECT region = $1 AS \"is_here!\"",
        "queue: what is in use",
    ),
    (
        "started_at IS NOT NULL AS \"has_started!\"",
        "watcher: what runs",
    ),
    (
        "SELECT least((SELECT min(planned_at) FROM jobs",
        "watcher: how far back to list",
    ),
    (
        "SELECT id FROM jobs WHERE metrics_due_at <= $1",
        "ingester: claim what is due",
    ),
    (
        "SELECT id FROM jobs WHERE checkpoint_due_at <= $1",
        "checkpoints: claim what is due",
    ),
    ("SELECT job_id FROM warm_pools", "pools: claim what is due"),
    (
        "SELECT e.project_id, e.id, e.kind = 'step' AS",
        "finalizer: what is over",
    ),
    (
        "SELECT id FROM pipelines WHERE due_at <= $1",
        "conductor: claim what is due",
    ),
    (
        "FROM pipeline_steps s LEFT JOIN experiments e",
        "conductor: steps and their money",
    ),
    (
        "UPDATE pipelines p SET due_at = least(due_at, $2)",
        "conductor: a work has ended",
    ),
    ("WHERE s.fingerprint = $1", "conductor: what was run before"),
    (
        "SELECT id FROM endpoints WHERE due_at <= $1",
        "deployer: claim what is due",
    ),
];

/// The same of writing points and of what people read.
const TABLES: [(&str, &str); 18] = [
    ("WITH appended AS (", "points: append in order"),
    (
        "ON CONFLICT DO NOTHING RETURNING series_id, step, sampled_at, value",
        "points: merge",
    ),
    ("FROM series WHERE subject_id = ANY($1)", "tables: series"),
    (
        "FROM rollups WHERE series_id = ANY($1) ORDER BY series_id, start_at",
        "tables: rollups",
    ),
    ("(plan - 'request' - 'job')::text", "tables: trials"),
    (
        "FROM jobs WHERE experiment_id = ANY($1)",
        "tables: attempts",
    ),
    ("FROM ledger WHERE experiment_id = ANY($1)", "tables: costs"),
    (
        "FROM trials t JOIN jobs j ON j.trial_id = t.id",
        "GET trial",
    ),
    (
        "CROSS JOIN LATERAL (SELECT id, spec FROM experiments",
        "plans: where it was measured before",
    ),
    (
        "SELECT id, experiment_id, candidate, state, purchase_option FROM trials",
        "plans: by which trials",
    ),
    ("ORDER BY id DESC LIMIT $7", "experiments: newest first"),
    ("ORDER BY id LIMIT $7", "experiments: oldest first"),
    (
        "CROSS JOIN LATERAL generate_series(date_trunc('day', greatest(l.used_from, $3), 'UTC')",
        "spending",
    ),
    (
        "date_trunc('day', j.ended_at, 'UTC') END AS day",
        "spending: saved by spot",
    ),
    (
        "step, value FROM sample_chunks WHERE series_id = $1",
        "points: of a closed series",
    ),
    (
        "FROM series s LEFT JOIN trials t ON t.id = s.trial_id LEFT JOIN runs r",
        "compactor: what may be packed",
    ),
    (
        "FROM series WHERE NOT is_settled",
        "compactor: what is to be settled",
    ),
    (
        "UPDATE prices p SET applied_at = $1",
        "repricer: what nothing depends on",
    ),
];

/// 500 experiments of 200 trials, all over, each with an attempt; 500 endpoints; and 20 000 pipelines of four steps.
const HISTORY: [&str; 12] = [
    "INSERT INTO experiments (id, project_id, name, workload_id, spec, state, budget_usd, created_at, ended_at, region)
     SELECT gen_random_uuid(), e.project_id, 'old', e.workload_id, '{}', 'completed', 1, now(), now(), e.region
     FROM (SELECT * FROM experiments LIMIT 1) e, generate_series(1, 500)",
    "INSERT INTO trials (id, project_id, experiment_id, ordinal, candidate, instance_type, instance_count, purchase_option,
                         plan, worst_case_training_usd, worst_case_metrics_usd, price_id, state, due_at, created_at, ended_at,
                         region, volume_gb)
     SELECT gen_random_uuid(), e.project_id, e.id, n, 'c', 'ml.p5.48xlarge', 1, 'on_demand', '{}', 1, 1,
            (SELECT id FROM prices LIMIT 1), 'completed', now(), now(), now(), e.region, 0
     FROM experiments e, generate_series(1, 200) n WHERE e.name = 'old'",
    "INSERT INTO jobs (id, kind, region, project_id, experiment_id, trial_id, number, job_name, state, price_id, usd_per_hour,
                       reserved_training_usd, reserved_metrics_usd, planned_at, settled_at)
     SELECT gen_random_uuid(), 'training', t.region, t.project_id, t.experiment_id, t.id, 1, 'old-' || t.id, 'completed', t.price_id, 1, 1, 1,
            now(), now()
     FROM trials t WHERE t.state = 'completed'",
    "INSERT INTO ledger (project_id, experiment_id, trial_id, job_id, kind, resource, component, settlement, line, usd,
                         quantity, unit, price_id, estimated, recorded_at, used_from, used_until)
     SELECT project_id, experiment_id, trial_id, id, 'settled', 'job', 'training', 0, 0, 1, 1, 'instance_seconds', price_id, false, now(),
            now() - random() * interval '900 days', now() FROM jobs WHERE state = 'completed'",
    "INSERT INTO series (trial_id, source, name, metric, points, first_at, last_at, is_settled)
     SELECT t.id, 'pushed', 'm' || n, 'm' || n, 100, '2026-11-01', '2026-11-02', true
     FROM (SELECT id FROM trials WHERE state = 'completed' LIMIT 1000) t, generate_series(1, 10) n",
    "SELECT make_samples_partition('2026-11-01')",
    "INSERT INTO samples (series_id, step, sampled_at, value)
     SELECT s.id, i, '2026-11-01'::timestamptz + i * interval '30 s', random() FROM series s, generate_series(1, 100) i",
    "INSERT INTO sample_chunks (series_id, number, first_at, last_at, sampled_at, value)
     SELECT s.id, 0, '2026-11-01', '2026-11-01', '{2026-11-01}', '{1}' FROM series s",
    "INSERT INTO rollups (series_id, start_at, points, sum, min, max, last_at, last_step, last)
     SELECT s.id, '2026-11-01'::timestamptz + i * interval '5 min', 10, 5, 0, 1, '2026-11-01', 1, 1
     FROM series s, generate_series(1, 10) i",
    "INSERT INTO pipelines (id, project_id, name, region, spec, state, budget_usd, created_at, ended_at)
     SELECT gen_random_uuid(), e.project_id, 'old', e.region, '{}', 'completed', 1, now(), now()
     FROM (SELECT * FROM experiments LIMIT 1) e, generate_series(1, 20000)",
    "INSERT INTO pipeline_steps (pipeline_id, place, name, kind, state, outputs, fingerprint, ended_at)
     SELECT id, n, 'step-' || n, 'processing', 'completed', '{}', sha256((id::text || n)::bytea), now()
     FROM pipelines, generate_series(0, 3) n",
    "INSERT INTO endpoints (id, project_id, experiment_id, trial_id, name, owner, region, spec, state, time_to_live_seconds, created_at, ended_at)
     SELECT gen_random_uuid(), project_id, experiment_id, id, 'old', 'a key', region, '{}', 'deleted', 3600, now(), now()
     FROM trials WHERE state = 'completed' AND ordinal = 1",
];

#[sqlx::test(migrations = false)]
async fn no_query_reads_more_when_history_has_grown(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&spec()).await;
    test.tick().await;
    for statement in HISTORY {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    sqlx::raw_sql("ANALYZE").execute(&pool).await.unwrap();
    for table in GROWING {
        let is_there: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
            .bind(table)
            .fetch_one(&pool)
            .await
            .unwrap();
        assert!(is_there, "{table} is no table");
    }
    let mut connection = pool.acquire().await.unwrap();
    sqlx::raw_sql("SET plan_cache_mode = force_generic_plan")
        .execute(&mut *connection)
        .await
        .unwrap();
    let mut full_reads = Vec::new();
    for (fragment, name) in TICK.into_iter().chain(TABLES) {
        let (query, parameters) = committed(fragment);
        sqlx::raw_sql(AssertSqlSafe(format!("PREPARE tick AS {query}")))
            .execute(&mut *connection)
            .await
            .unwrap();
        let nothing = vec!["NULL"; parameters].join(", ");
        let call = if parameters == 0 {
            "tick".to_owned()
        } else {
            format!("tick({nothing})")
        };
        let plan: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(format!("EXPLAIN (COSTS OFF) EXECUTE {call}")))
                .fetch_all(&mut *connection)
                .await
                .unwrap();
        sqlx::raw_sql("DEALLOCATE tick")
            .execute(&mut *connection)
            .await
            .unwrap();
        println!("\n{name}\n  {}", plan.join("\n  "));
        let of_history = |line: &&String| {
            GROWING
                .iter()
                .any(|table| line.contains(&format!("Seq Scan on {table}")))
        };
        full_reads.extend(
            plan.iter()
                .find(of_history)
                .map(|line| format!("{name}: {line}")),
        );
    }
    assert_eq!(full_reads, Vec::<String>::new());
}

/// A query as the compiler has checked it, and how many parameters it has.
fn committed(fragment: &str) -> (String, usize) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    let found = files.filter_map(|text| {
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let query = file["query"].as_str()?.to_owned();
        let parameters = file["describe"]["parameters"]["Left"]
            .as_array()
            .map_or(0, Vec::len);
        query.contains(fragment).then_some((query, parameters))
    });
    let mut found: Vec<(String, usize)> = found.collect();
    assert_eq!(found.len(), 1, "queries that contain `{fragment}`");
    found.remove(0)
}
