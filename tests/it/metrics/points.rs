//! Metrics from every source: pushed, imported, read from CloudWatch; stored once, read in every
//! format.

use bakeoff_api::comparison::{ComparisonTable, RowKind};
use bakeoff_api::pushed::Pushed;
use bakeoff_api::runs::RunView;
use bakeoff_api::series::MetricSeries;
use bakeoff_domain::measure::metric::Source;
use bakeoff_domain::money::Usd;
use bakeoff_domain::spec::expectation::Verdict;
use chrono::TimeDelta;
use reqwest::Method;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, problem, spec};

/// The run of document 003, as it would be recorded.
fn hyperbolic() -> Value {
    json!({
        "name": "1B on 8x H100", "hardware": "8x H100 SXM, Hyperbolic", "like_instance_type": "ml.p5.48xlarge",
        "accelerator_count": 8, "usd_per_hour": 7.92, "price_source": "Hyperbolic, as the document says",
        "global_batch": 512, "planned_steps": 49_209, "started_at": "2026-11-19T00:00:00Z", "epoch_tokens": 51_600_000_000_u64,
        "model": {"layers": 24, "hidden": 1536, "heads": 24, "vocabulary": 50_000, "tied_embeddings": true,
                  "sequence_length": 2048},
        "expectations": [{"column": "gpu_utilization_percent", "at_least": 85, "note": "document 003"},
                         {"column": "mfu_percent", "at_least": 40, "note": "2000 steps an hour"}],
    })
}

pub(crate) const START: i64 = 1_795_046_400;

/// One line a minute: 350 steps an hour of 1,048,576 tokens.
pub(crate) fn lines(minutes: std::ops::Range<i32>) -> String {
    let line = |minute: i32| {
        let step = minute * 350 / 60;
        json!({
            "timestamp": START + i64::from(minute) * 60, "step": step, "loss": 10.8 - 0.001 * f64::from(step),
            "tokens_per_second": 350.0 * 1_048_576.0 / 3600.0, "learning_rate": 3e-4,
            "gpus": [{"utilization": 70, "temperature": 60}, {"utilization": 80, "temperature": 66}],
        })
        .to_string()
    };
    minutes.map(line).collect::<Vec<_>>().join("\n") + "\n"
}

pub(crate) async fn push(test: &TestApp, path: &str, body: String) -> (u16, Value) {
    let request = test.request(Method::POST, path, &test.admin).body(body);
    let (status, reply) = test
        .send(request.header("content-type", "application/x-ndjson"))
        .await;
    (status.as_u16(), reply)
}

/// What became of a body that is accepted.
pub(crate) async fn taken(test: &TestApp, path: &str, body: String) -> Pushed {
    let (status, reply) = push(test, path, body).await;
    assert_eq!(status, 200, "{reply}");
    serde_json::from_value(reply).unwrap()
}

pub(crate) async fn run(test: &TestApp) -> String {
    let (status, run) = test.post("/v1/runs", &hyperbolic()).await;
    assert_eq!(status, 201, "{run}");
    let run: RunView = serde_json::from_value(run).unwrap();
    run.id.to_string()
}

#[sqlx::test(migrations = false)]
async fn the_documents_run_is_beside_a_trial_with_what_is_left_of_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let experiment = test.start(&spec()).await;
    test.run_to_end(&experiment, 12).await;
    let run = run(&test).await;
    let now = test.app.clock.now();
    assert!(now.timestamp() > START + 240 * 60, "{now}");
    let minutes = i32::try_from((now.timestamp() - START) / 60).unwrap();
    let path = format!("/v1/runs/{run}/metrics");
    let pushed = taken(&test, &path, lines(0..minutes)).await;
    assert_eq!(pushed.duplicates, 0, "{pushed:?}");

    let beside = format!("/v1/comparison?experiment_id={experiment}&run_id={run}");
    let table: ComparisonTable = test.read(&beside).await;
    let of_kind = |kind: RowKind| table.rows.iter().filter(move |row| row.kind == kind);
    assert_eq!(of_kind(RowKind::Trial).count(), 2);
    let row = of_kind(RowKind::Run).next().unwrap();
    assert!((row.tokens_per_second.unwrap() - 101_944.9).abs() < 1.0);
    // requirements-checked: 350 steps an hour are 7 % of the peak.
    assert!((row.mfu_percent.unwrap() - 7.0).abs() < 0.6, "{row:?}");
    assert!(
        (row.gpu_utilization_percent.unwrap() - 75.0).abs() < 1e-6
            && row.tokens_per_second_source == Some(Source::Pushed)
    );
    let steps_left = 49_209.0 - f64::from(i32::try_from(row.step.unwrap()).unwrap());
    let hours_left = row.remaining_hours.unwrap();
    assert!(
        (hours_left - steps_left / 350.0).abs() < 0.02 * steps_left / 350.0,
        "{row:?}"
    );
    assert!((row.remaining_usd.unwrap().as_f64() - hours_left * 7.92).abs() < 0.01);
    assert!(row.remaining_hours_low.unwrap() <= hours_left);
    assert!(
        row.pace_has_changed == Some(false) && row.pace_change_percent.unwrap().abs() < 1.25,
        "{row:?}"
    );
    let cost = f64::from(minutes - 1) / 60.0 * 7.92;
    assert!(
        (row.cost_usd.unwrap().as_f64() - cost).abs() < 0.01,
        "{row:?}"
    );
    // 51.6 B tokens at 367 M an hour and $7.92.
    assert!(
        (row.usd_per_epoch.unwrap().as_f64() - 1113.5).abs() < 1.5,
        "{row:?}"
    );
    let verdicts: Vec<Verdict> = table.expectations.iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [Verdict::NotMet, Verdict::NotMet]);

    // Two hours of silence later nothing is promised any more.
    test.advance(TimeDelta::hours(2)).await;
    let shown: RunView = test.read(&format!("/v1/runs/{run}")).await;
    let figures = shown.figures.as_ref().unwrap();
    assert!(
        figures.remaining_hours.is_none() && figures.stalled_since.is_some(),
        "{shown:?}"
    );
    let end = json!({"state": "completed", "ended_at": "2026-11-19T12:00:00Z"});
    let (status, ended) = test.post(&format!("/v1/runs/{run}/end"), &end).await;
    assert_eq!(status, 200, "{ended}");
    let ended: RunView = serde_json::from_value(ended).unwrap();
    let cost = ended.figures.unwrap().cost_usd;
    assert_eq!(cost, Some(Usd(Decimal::new(9504, 2))));
}

#[sqlx::test(migrations = false)]
async fn what_is_sent_twice_late_or_mixed_is_stored_once(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    let points =
        |range: std::ops::Range<i32>| u64::try_from((range.end - range.start) * 5).unwrap();
    assert_eq!(
        taken(&test, &path, lines(0..100)).await.stored,
        points(0..100)
    );
    assert_eq!(
        taken(&test, &path, lines(100..200)).await.stored,
        points(100..200),
        "in order"
    );
    let again = taken(&test, &path, lines(150..250)).await;
    assert_eq!(
        (again.stored, again.duplicates),
        (points(200..250), points(150..200))
    );
    let mut mixed: Vec<String> = lines(250..400).lines().map(str::to_owned).collect();
    mixed.reverse();
    mixed.extend(lines(300..330).lines().map(str::to_owned));
    let mixed = taken(&test, &path, mixed.join("\n")).await;
    // Of the two metrics of devices a batch holds means, and so each moment once.
    assert_eq!((mixed.stored, mixed.duplicates), (points(250..400), 30 * 3));

    let series: MetricSeries = test
        .read(&format!("{path}?metric=loss&resolution=raw"))
        .await;
    assert_eq!(
        (series.metric.as_str(), series.stored_points),
        ("train_loss", 400)
    );
    assert_eq!(series.points.unwrap().value.len(), 400);
    let series: MetricSeries = test
        .read(&format!("{path}?metric=train_loss&resolution=buckets"))
        .await;
    let in_buckets: u32 = series.buckets.iter().map(|bucket| bucket.points).sum();
    assert_eq!((series.buckets.len(), in_buckets), (80, 400));
    // Rollups are those of the points, whatever way they came.
    let wrong: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM rollups r JOIN LATERAL (
             SELECT count(*) n, avg(value) mean, min(value) low, max(value) high FROM samples s
             WHERE s.series_id = r.series_id AND s.sampled_at >= r.start_at
               AND s.sampled_at < r.start_at + interval '5 minutes') p ON true
         WHERE p.n <> r.points OR abs(p.mean - r.sum / r.points) > 1e-9 OR p.low <> r.min OR p.high <> r.max",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(wrong, 0);
}

#[sqlx::test(migrations = false)]
async fn nan_is_kept_and_in_no_mean_and_unknown_metrics_are_kept_too(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    let line = |i: i64| {
        let value = if i % 4 == 0 { "NaN" } else { "2.5" };
        format!(
            "{{\"timestamp\": {}, \"grad/custom\": {value}, \"eval_loss\": Infinity}}",
            START + i * 60
        )
    };
    let body = (0..20).map(line).collect::<Vec<_>>().join("\n");
    assert_eq!(taken(&test, &path, body).await.stored, 40);
    let series: MetricSeries = test.read(&format!("{path}?metric=grad/custom")).await;
    assert_eq!((series.stored_points, series.non_finite_points), (20, 5));
    let series: MetricSeries = test
        .read(&format!("{path}?metric=grad/custom&resolution=buckets"))
        .await;
    assert!(
        !series.buckets.is_empty()
            && series
                .buckets
                .iter()
                .all(|bucket| (bucket.mean - 2.5).abs() < f64::EPSILON),
        "{series:?}"
    );
    let infinite: MetricSeries = test
        .read(&format!("{path}?metric=validation_loss&resolution=buckets"))
        .await;
    assert_eq!(
        (infinite.buckets.len(), infinite.non_finite_points),
        (0, 20)
    );
    let (status, answer) = test
        .send(test.request(Method::GET, &format!("{path}?metric=lost"), &test.admin))
        .await;
    assert_eq!(status, 404);
    let said = problem(answer).detail;
    assert!(
        said.contains("available: grad/custom, validation_loss"),
        "{said}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_bad_line_refuses_the_batch_and_says_which(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    let body = format!(
        "{}{}",
        lines(0..2),
        "{\"step\": 3, \"loss\": 1}\n{\"timestamp\": 1795046520, \"lo"
    );
    let (status, answer) = push(&test, &path, body.clone()).await;
    assert_eq!(status, 422);
    let errors = problem(answer).errors;
    let pointers: Vec<&str> = errors.iter().map(|one| one.pointer.as_str()).collect();
    assert_eq!(pointers, ["/3", "/4"]);
    let taken = taken(&test, &format!("{path}?skip_bad_lines=true"), body).await;
    assert_eq!((taken.stored, taken.skipped.len()), (10, 2));
    let other = test.other_project().await;
    let stranger = test
        .key(other, bakeoff_service::auth::keys::Role::Editor)
        .await;
    let (status, _) = test
        .send(
            test.request(Method::POST, &path, &stranger)
                .body(lines(2..3)),
        )
        .await;
    assert_eq!(status, 404, "another project's run is no run");
}

/// W&B counts calls of `log` in `_step`: the optimiser's step stands beside it. What is read as what is said, and a
/// second value for one moment is a conflict, in one body and against what is stored.
#[sqlx::test(migrations = false)]
async fn a_file_is_read_as_it_was_written_and_what_became_of_it_is_said(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics?source=imported");
    let history: Vec<Value> = (1..=120_i32)
        .map(|call| {
            json!({"_step": call, "_timestamp": START + i64::from(call) * 60, "train/loss": 3.0 - 0.01 * f64::from(call),
                   "train/global_step": call * 10, "note": "warm"})
        })
        .collect();
    let taken_first = taken(&test, &path, json!(history).to_string()).await;
    let report = &taken_first.report;
    assert_eq!(
        (
            taken_first.stored,
            report.format.as_deref(),
            report.step.as_deref()
        ),
        (
            120,
            Some("W&B's history of the Hugging Face Trainer"),
            Some("train/global_step")
        )
    );
    let not_read: Vec<(&str, u64)> = report
        .not_read
        .iter()
        .map(|one| (one.column.as_str(), one.cells))
        .collect();
    assert_eq!(not_read, [("_step", 120), ("note", 120)]);
    let shown: RunView = test.read(&format!("/v1/runs/{run}")).await;
    assert_eq!(shown.figures.unwrap().step, Some(1200));

    let other = json!({"timestamp": START + 60, "step": 10, "train/loss": 9.0});
    let again = taken(&test, &path, format!("{other}\n{other}\n")).await;
    assert_eq!((again.stored, again.duplicates), (0, 1));
    assert_eq!(again.report.conflicts_in_all, 1);
    let conflict = &again.report.conflicts[0];
    assert_eq!(
        (
            conflict.metric.as_str(),
            conflict.step,
            conflict.kept,
            conflict.ignored
        ),
        ("train/loss", Some(10), Some(2.99), Some(9.0))
    );
    let (status, answer) = push(&test, &path, "Hello\nWorld\n".to_owned()).await;
    let said = problem(answer).errors.remove(0).detail;
    assert!(status == 422 && said.contains("Megatron-LM"), "{said}");
}

/// CloudWatch and the script both report the speed: it is one metric, and the script is believed.
#[sqlx::test(migrations = false)]
async fn two_sources_of_one_metric_are_one_and_never_added_up(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let row = test.comparison(&id).await.rows.remove(0);
    assert_eq!(row.tokens_per_second_source, Some(Source::Cloudwatch));
    let path = format!("/v1/trials/{}/metrics", row.trial_id.unwrap());
    let at = test.app.clock.now().timestamp() - 7200;
    let line = |i: i64| json!({"timestamp": at + i * 60, "tokens/s": 12345}).to_string();
    let body = (0..60).map(line).collect::<Vec<_>>().join("\n");
    assert_eq!(taken(&test, &path, body).await.stored, 60);
    let row = test.comparison(&id).await.rows.remove(0);
    assert_eq!(
        (row.tokens_per_second, row.tokens_per_second_source),
        (Some(12_345.0), Some(Source::Pushed))
    );
}

#[sqlx::test(migrations = false)]
async fn a_closed_run_is_compacted_and_a_late_point_still_counts_once(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    push(&test, &path, lines(0..1200)).await;
    let points = async || {
        let series: MetricSeries = test
            .read(&format!("{path}?metric=loss&resolution=raw"))
            .await;
        let columns = series.points.unwrap();
        (columns.at_seconds, columns.step, columns.value)
    };
    let speed = async || {
        let shown: RunView = test.read(&format!("/v1/runs/{run}")).await;
        let figures = shown.figures.unwrap();
        (figures.tokens_per_second, figures.mfu_percent)
    };
    let before = (points().await, speed().await);
    test.post(
        &format!("/v1/runs/{run}/end"),
        &json!({"state": "completed", "ended_at": "2026-11-19T20:00:00Z"}),
    )
    .await;
    test.advance(TimeDelta::hours(3)).await;
    while bakeoff_service::tasks::compactor::tick(&test.app)
        .await
        .unwrap()
        > 0
    {}
    let count = async |query: &'static str| {
        sqlx::query_scalar::<_, i64>(query)
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM samples").await, 0);
    assert_eq!(
        count("SELECT sum(cardinality(value))::bigint FROM sample_chunks").await,
        6000
    );
    assert_eq!((points().await, speed().await), before);

    // Its month's partition goes when it is long over, and comes back for a late point.
    let months = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'samples'::regclass";
    assert_eq!(count(months).await, 1);
    test.app
        .store
        .drop_empty_months("2027-03-01T00:00:00Z".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(count(months).await, 0);
    let late = taken(&test, &path, lines(1190..1210)).await;
    assert_eq!((late.stored, late.duplicates), (50, 50));
    assert_eq!(count("SELECT count(*) FROM samples").await, 6050);
    assert_eq!(count("SELECT count(*) FROM sample_chunks").await, 0);
}

/// A quarter of an hour of minutes is a figure, and stays the same once it is settled and packed.
#[sqlx::test(migrations = false)]
async fn a_young_series_has_a_figure_by_the_minute(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    let series = async || {
        let series: MetricSeries = test.read(&format!("{path}?metric=tokens_per_second")).await;
        series.steady
    };
    push(&test, &path, lines(0..12)).await;
    assert!(series().await.is_none());
    push(&test, &path, lines(12..14)).await;
    let early = series().await.unwrap();
    assert_eq!((early.buckets, early.points), (13, 13));
    test.post(
        &format!("/v1/runs/{run}/end"),
        &json!({"state": "completed", "ended_at": "2026-11-19T00:15:00Z"}),
    )
    .await;
    test.advance(TimeDelta::hours(3)).await;
    while bakeoff_service::tasks::compactor::tick(&test.app)
        .await
        .unwrap()
        > 0
    {}
    assert_eq!(series().await.unwrap(), early);
    let shown: RunView = test.read(&format!("/v1/runs/{run}")).await;
    assert_eq!(shown.figures.unwrap().tokens_per_second, Some(early.mean));
    // One that reports losses and steps only has a speed by them, from the packed points as well.
    let (_, other) = test.post("/v1/runs", &hyperbolic()).await;
    let other = serde_json::from_value::<RunView>(other).unwrap().id;
    let losses = lines(0..16).replace("tokens_per_second", "somewhat");
    push(&test, &format!("/v1/runs/{other}/metrics"), losses).await;
    let speed = async || {
        let shown: RunView = test.read(&format!("/v1/runs/{other}")).await;
        shown.figures.unwrap().tokens_per_second
    };
    let by_steps = speed().await.unwrap();
    assert!((by_steps / early.mean - 1.0).abs() < 0.05, "{by_steps}");
    test.post(
        &format!("/v1/runs/{other}/end"),
        &json!({"state": "completed", "ended_at": "2026-11-19T00:16:00Z"}),
    )
    .await;
    test.advance(TimeDelta::hours(3)).await;
    while bakeoff_service::tasks::compactor::tick(&test.app)
        .await
        .unwrap()
        > 0
    {}
    let points = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM samples");
    assert_eq!(points.fetch_one(&pool).await.unwrap(), 0);
    assert_eq!(speed().await, Some(by_steps));

    // What no sum of squares can hold is left to the rollups.
    let huge = json!({"timestamp": START + 14 * 60, "tokens_per_second": 1e200});
    push(&test, &path, format!("{huge}\n")).await;
    assert_eq!(series().await, None);
}

/// Hours later, buckets of five minutes say it.
#[sqlx::test(migrations = false)]
async fn an_older_series_has_a_figure_by_its_rollups(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    push(&test, &path, lines(0..120)).await;
    let shown: MetricSeries = test.read(&format!("{path}?metric=tokens_per_second")).await;
    let late = shown.steady.unwrap();
    assert_eq!((late.buckets, late.points), (23, 115));
}

/// A script that makes a name of each step would fill the database: the row of a metric stays.
#[sqlx::test(migrations = false)]
async fn names_without_end_are_not_stored(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    let line = |name: &str, step: u32| {
        format!("{{\"timestamp\": {START}, \"step\": {step}, \"{name}\": 1}}\n")
    };
    taken(&test, &path, line("known", 1)).await;
    sqlx::query(
        "INSERT INTO series (run_id, source, name, metric)
         SELECT run_id, source, 'n' || n, 'n' || n FROM series, generate_series(1, 9998) n",
    )
    .execute(&pool)
    .await
    .unwrap();
    taken(&test, &path, line("last", 1)).await;
    // What is known goes on.
    let body = line("one_more", 1) + &line("known", 2) + &line("last", 1);
    let pushed = taken(&test, &path, body).await;
    assert_eq!((pushed.stored, pushed.duplicates), (1, 1), "{pushed:#?}");
    let [not_read] = pushed.report.not_read.as_slice() else {
        panic!("{pushed:#?}");
    };
    assert_eq!((not_read.column.as_str(), not_read.cells), ("one_more", 1));
}
