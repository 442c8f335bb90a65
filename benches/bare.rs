//! The upper bound: a bare axum + sqlx server on the service's own tables, with no authentication,
//! validation or rollups. `cargo xtask bench` measures the service against it; it is not a product.

#![expect(
    clippy::expect_used,
    reason = "a bench that cannot go on says why and ends"
)]

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPoolCopyExt, PgPoolOptions};
use sqlx::{PgPool, Row};
use uuid::Uuid;

/// One line of a training script with ten metrics.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    step: i32,
    m0: f64,
    m1: f64,
    m2: f64,
    m3: f64,
    m4: f64,
    m5: f64,
    m6: f64,
    m7: f64,
    m8: f64,
    m9: f64,
}

impl Line {
    fn values(&self) -> [f64; 10] {
        [
            self.m0, self.m1, self.m2, self.m3, self.m4, self.m5, self.m6, self.m7, self.m8,
            self.m9,
        ]
    }

    #[expect(clippy::cast_possible_truncation, reason = "times of this century")]
    fn at(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros((self.timestamp * 1e6) as i64).unwrap_or_default()
    }
}

fn lines(body: &[u8]) -> Vec<Line> {
    let lines = body
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice(line).expect("a line"))
        .collect()
}

/// One UNNEST insert into the service's table; `first` is the series of `m0`.
async fn insert(State(pool): State<PgPool>, Path(first): Path<i32>, body: Bytes) -> Response {
    let lines = lines(&body);
    let count = lines.len() * 10;
    let (mut series, mut steps) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let (mut times, mut values) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for line in &lines {
        for (place, value) in (0..).zip(line.values()) {
            series.push(first + place);
            steps.push(line.step);
            times.push(line.at());
            values.push(value);
        }
    }
    let inserted = sqlx::query(
        "INSERT INTO samples (series_id, step, sampled_at, value)
         SELECT * FROM UNNEST($1::integer[], $2::integer[], $3::timestamptz[], $4::double precision[])
         ON CONFLICT DO NOTHING",
    )
    .bind(series)
    .bind(steps)
    .bind(times)
    .bind(values)
    .execute(&pool)
    .await
    .expect("an insert");
    axum::Json(inserted.rows_affected()).into_response()
}

/// The same insert with COPY.
async fn copy(State(pool): State<PgPool>, Path(first): Path<i32>, body: Bytes) -> Response {
    use std::fmt::Write;
    let mut text = String::new();
    for line in lines(&body) {
        let at = line.at().format("%Y-%m-%d %H:%M:%S%.6f+00");
        for (place, value) in (0..).zip(line.values()) {
            writeln!(text, "{}\t{}\t{at}\t{value}", first + place, line.step)
                .expect("a string takes all");
        }
    }
    let mut copy = pool
        .copy_in_raw("COPY samples (series_id, step, sampled_at, value) FROM STDIN")
        .await
        .expect("a copy");
    copy.send(text.as_bytes()).await.expect("its rows");
    axum::Json(copy.finish().await.expect("its end")).into_response()
}

/// A trial by its primary key, with its attempts.
async fn trial(State(pool): State<PgPool>, Path(id): Path<Uuid>) -> Response {
    let row = sqlx::query(
        "SELECT json_build_object('id', t.id, 'experiment_id', t.experiment_id, 'state', t.state, 'reason', t.reason,
                'plan', t.plan, 'created_at', t.created_at, 'ended_at', t.ended_at)::text
         FROM trials t WHERE t.id = $1",
    )
    .bind(id)
    .fetch_one(&pool)
    .await
    .expect("a trial");
    (
        [("content-type", "application/json")],
        row.get::<String, _>(0),
    )
        .into_response()
}

#[derive(Serialize)]
struct Point {
    at: DateTime<Utc>,
    step: i32,
    value: f64,
}

/// Every point of a series, as JSON.
async fn history(State(pool): State<PgPool>, Path(series): Path<i32>) -> Response {
    let rows =
        sqlx::query("SELECT sampled_at, step, value FROM samples WHERE series_id = $1 ORDER BY sampled_at, step")
            .bind(series)
            .fetch_all(&pool)
            .await
            .expect("points");
    let points: Vec<Point> = rows
        .iter()
        .map(|row| Point {
            at: row.get(0),
            step: row.get(1),
            value: row.get(2),
        })
        .collect();
    axum::Json(points).into_response()
}

/// The latest value and steady figure of every series of an experiment's trials.
async fn comparison(State(pool): State<PgPool>, Path(experiment): Path<Uuid>) -> Response {
    let rows = sqlx::query(
        "SELECT t.id, t.candidate, t.instance_type, t.state, s.metric, s.last_value, s.steady::text
         FROM trials t LEFT JOIN series s ON s.subject_id = t.id WHERE t.experiment_id = $1 ORDER BY t.ordinal",
    )
    .bind(experiment)
    .fetch_all(&pool)
    .await
    .expect("rows");
    let cells: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "trial_id": row.get::<Uuid, _>(0), "candidate": row.get::<String, _>(1),
                "instance_type": row.get::<String, _>(2), "state": row.get::<String, _>(3),
                "metric": row.get::<Option<String>, _>(4), "last": row.get::<Option<f64>, _>(5),
                "steady": row.get::<Option<String>, _>(6),
            })
        })
        .collect();
    axum::Json(cells).into_response()
}

/// Sizes in bytes of points, rollups and chunks, with counts of live and packed points.
async fn size(State(pool): State<PgPool>) -> Response {
    let row = sqlx::query(
        "SELECT (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint FROM pg_inherits WHERE inhparent = 'samples'::regclass),
                pg_total_relation_size('rollups'), pg_total_relation_size('sample_chunks'),
                (SELECT count(*) FROM samples), (SELECT coalesce(sum(cardinality(value)), 0)::bigint FROM sample_chunks)",
    )
    .fetch_one(&pool)
    .await
    .expect("sizes");
    let [samples, rollups, chunks, live, packed] =
        [0, 1, 2, 3, 4].map(|column| row.get::<i64, _>(column));
    let sizes = serde_json::json!({"samples": samples, "rollups": rollups, "chunks": chunks, "live": live, "packed": packed});
    axum::Json(sizes).into_response()
}

async fn series_of(
    State(pool): State<PgPool>,
    Path((subject, name)): Path<(Uuid, String)>,
) -> Response {
    let row = sqlx::query("SELECT id FROM series WHERE subject_id = $1 AND name = $2")
        .bind(subject)
        .bind(name);
    axum::Json(
        row.fetch_one(&pool)
            .await
            .expect("a series")
            .get::<i32, _>(0),
    )
    .into_response()
}

#[tokio::main]
async fn main() {
    let ready = std::env::args()
        .nth(1)
        .filter(|argument| !argument.starts_with("--"));
    // `cargo bench` runs this without an argument: there is nothing to serve.
    let Some(ready) = ready else { return };
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL");
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .connect(&url)
        .await
        .expect("a database");
    let router = Router::new()
        .route("/points/{first}", post(insert))
        .route("/copy/{first}", post(copy))
        .route("/trials/{id}", get(trial))
        .route("/history/{series}", get(history))
        .route("/comparison/{experiment}", get(comparison))
        .route("/size", get(size))
        .route("/series/{subject}/{name}", get(series_of))
        .layer(DefaultBodyLimit::max(16 << 20))
        .with_state(pool);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("its address"));
    std::fs::write(format!("{ready}.new"), address).expect("a ready file");
    std::fs::rename(format!("{ready}.new"), ready).expect("a ready file");
    axum::serve(listener, router).await.expect("a server");
}
