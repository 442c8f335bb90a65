//! Metrics from every source: pushed, imported, read from CloudWatch; stored once, read in every
//! format.

use std::sync::Arc;

use bakeoff::api::ComparisonRow;
use bakeoff::app::Settings;
use chrono::TimeDelta;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, jobs, on_p5, spec};

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

const START: i64 = 1_795_046_400;

/// One line a minute: 350 steps an hour of 1,048,576 tokens.
fn lines(minutes: std::ops::Range<i32>) -> String {
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

async fn push(test: &TestApp, path: &str, body: String) -> (u16, Value) {
    let request = test.request(Method::POST, path, &test.admin).body(body);
    let (status, reply) = test
        .send(request.header("content-type", "application/x-ndjson"))
        .await;
    (status.as_u16(), reply)
}

async fn run(test: &TestApp) -> String {
    let (status, run) = test.post("/v1/runs", &hyperbolic()).await;
    assert_eq!(status, 201, "{run}");
    run["id"].as_str().unwrap().to_owned()
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
    let (status, pushed) = push(&test, &format!("/v1/runs/{run}/metrics"), lines(0..minutes)).await;
    assert_eq!(
        (status, &pushed["duplicates"]),
        (200, &json!(0)),
        "{pushed}"
    );

    let table = test
        .get(&format!(
            "/v1/comparison?experiment_id={experiment}&run_id={run}"
        ))
        .await;
    let rows = table["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["kind"] == "run").unwrap();
    let number = |column: &str| {
        row[column]
            .as_f64()
            .unwrap_or_else(|| panic!("{column}: {row}"))
    };
    assert_eq!(rows.iter().filter(|row| row["kind"] == "trial").count(), 2);
    assert!((number("tokens_per_second") - 101_944.9).abs() < 1.0);
    // requirements-checked: 350 steps an hour are 7 % of the peak.
    assert!((number("mfu_percent") - 7.0).abs() < 0.6, "{row}");
    assert!(
        (number("gpu_utilization_percent") - 75.0).abs() < 1e-6
            && row["tokens_per_second_source"] == "pushed"
    );
    let left = 49_209.0 - number("step");
    assert!(
        (number("remaining_hours") - left / 350.0).abs() < 0.02 * left / 350.0,
        "{row}"
    );
    assert!((number("remaining_usd") - number("remaining_hours") * 7.92).abs() < 0.01);
    assert!(number("remaining_hours_low") <= number("remaining_hours"));
    let hours = f64::from(minutes - 1) / 60.0;
    assert!((number("cost_usd") - hours * 7.92).abs() < 0.01, "{row}");
    // 51.6 B tokens at 367 M an hour and $7.92.
    assert!((number("usd_per_epoch") - 1113.5).abs() < 1.5, "{row}");
    let verdicts: Vec<&Value> = table["expectations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["verdict"])
        .collect();
    assert_eq!(verdicts, ["not_met", "not_met"]);

    // Two hours of silence later nothing is promised any more.
    test.advance(TimeDelta::hours(2)).await;
    let shown = test.get(&format!("/v1/runs/{run}")).await;
    let figures: ComparisonRow = serde_json::from_value(shown["figures"].clone()).unwrap();
    assert!(
        figures.remaining_hours.is_none() && figures.stalled_since.is_some(),
        "{shown}"
    );
    let end = json!({"state": "completed", "ended_at": "2026-11-19T12:00:00Z"});
    let (status, ended) = test.post(&format!("/v1/runs/{run}/end"), &end).await;
    assert_eq!(
        (status.as_u16(), &ended["figures"]["cost_usd"]),
        (200, &json!(95.04)),
        "{ended}"
    );
}

#[sqlx::test(migrations = false)]
async fn what_is_sent_twice_late_or_mixed_is_stored_once(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    let points =
        |range: std::ops::Range<i32>| u64::try_from((range.end - range.start) * 5).unwrap();
    assert_eq!(
        push(&test, &path, lines(0..100)).await.1["stored"],
        points(0..100)
    );
    assert_eq!(
        push(&test, &path, lines(100..200)).await.1["stored"],
        points(100..200),
        "in order"
    );
    let (_, again) = push(&test, &path, lines(150..250)).await;
    assert_eq!(
        (&again["stored"], &again["duplicates"]),
        (&json!(points(200..250)), &json!(points(150..200)))
    );
    let mut mixed: Vec<String> = lines(250..400).lines().map(str::to_owned).collect();
    mixed.reverse();
    mixed.extend(lines(300..330).lines().map(str::to_owned));
    let (_, mixed) = push(&test, &path, mixed.join("\n")).await;
    // Of the two metrics of devices a batch holds means, and so each moment once.
    assert_eq!(
        (&mixed["stored"], &mixed["duplicates"]),
        (&json!(points(250..400)), &json!(30 * 3))
    );

    let series = test
        .get(&format!("{path}?metric=loss&resolution=raw"))
        .await;
    assert_eq!(
        (&series["metric"], &series["stored_points"]),
        (&json!("train_loss"), &json!(400))
    );
    assert_eq!(series["points"]["value"].as_array().unwrap().len(), 400);
    let buckets = test
        .get(&format!("{path}?metric=train_loss&resolution=buckets"))
        .await["buckets"]
        .clone();
    let buckets = buckets.as_array().unwrap();
    assert_eq!(
        (
            buckets.len(),
            buckets
                .iter()
                .map(|one| one["points"].as_u64().unwrap())
                .sum::<u64>()
        ),
        (80, 400)
    );
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
    assert_eq!(push(&test, &path, body).await.1["stored"], 40);
    let series = test.get(&format!("{path}?metric=grad/custom")).await;
    assert_eq!(
        (&series["stored_points"], &series["non_finite_points"]),
        (&json!(20), &json!(5))
    );
    let buckets = test
        .get(&format!("{path}?metric=grad/custom&resolution=buckets"))
        .await;
    assert!(
        buckets["buckets"]
            .as_array()
            .unwrap()
            .iter()
            .all(|bucket| bucket["mean"] == 2.5),
        "{buckets}"
    );
    let infinite = test
        .get(&format!("{path}?metric=validation_loss&resolution=buckets"))
        .await;
    assert_eq!(
        (&infinite["buckets"], &infinite["non_finite_points"]),
        (&json!([]), &json!(20))
    );
    let (status, problem) = test
        .send(test.request(Method::GET, &format!("{path}?metric=lost"), &test.admin))
        .await;
    assert_eq!(status, 404);
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("there is: grad/custom, validation_loss"),
        "{problem}"
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
    let (status, problem) = push(&test, &path, body.clone()).await;
    assert_eq!(status, 422);
    let pointers: Vec<&Value> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| &error["pointer"])
        .collect();
    assert_eq!(pointers, ["/3", "/4"]);
    let (status, taken) = push(&test, &format!("{path}?skip_bad_lines=true"), body).await;
    assert_eq!(
        (
            status,
            taken["stored"].as_u64(),
            taken["skipped"].as_array().unwrap().len()
        ),
        (200, Some(10), 2)
    );
    let other = test.other_project().await;
    let stranger = test.key(other, bakeoff::auth::keys::Role::Editor).await;
    let (status, _) = test
        .send(
            test.request(Method::POST, &path, &stranger)
                .body(lines(2..3)),
        )
        .await;
    assert_eq!(status, 404, "another project's run is no run");
}

/// CloudWatch and the script both report the speed: it is one metric, and the script is believed.
#[sqlx::test(migrations = false)]
async fn two_sources_of_one_metric_are_one_and_never_added_up(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let table = test.get(&format!("/v1/experiments/{id}/comparison")).await;
    let row = &table["rows"][0];
    assert_eq!(row["tokens_per_second_source"], "cloudwatch");
    let trial = row["trial_id"].as_str().unwrap();
    let at = test.app.clock.now().timestamp() - 7200;
    let line = |i: i64| json!({"timestamp": at + i * 60, "tokens/s": 12345}).to_string();
    let body = (0..60).map(line).collect::<Vec<_>>().join("\n");
    assert_eq!(
        push(&test, &format!("/v1/trials/{trial}/metrics"), body)
            .await
            .1["stored"],
        60
    );
    let table = test.get(&format!("/v1/experiments/{id}/comparison")).await;
    let row = &table["rows"][0];
    assert_eq!(
        (&row["tokens_per_second"], &row["tokens_per_second_source"]),
        (&json!(12345.0), &json!("pushed"))
    );
}

#[sqlx::test(migrations = false)]
async fn a_closed_run_is_compacted_and_a_late_point_still_counts_once(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics");
    push(&test, &path, lines(0..1200)).await;
    let before = test
        .get(&format!("{path}?metric=loss&resolution=raw"))
        .await;
    let figures = test.get(&format!("/v1/runs/{run}")).await["figures"].clone();
    test.post(
        &format!("/v1/runs/{run}/end"),
        &json!({"state": "completed", "ended_at": "2026-11-19T20:00:00Z"}),
    )
    .await;
    test.advance(TimeDelta::hours(3)).await;
    while bakeoff::tasks::archivist::tick(&test.app).await.unwrap() > 0 {}
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
    assert_eq!(
        test.get(&format!("{path}?metric=loss&resolution=raw"))
            .await["points"],
        before["points"]
    );
    let after = test.get(&format!("/v1/runs/{run}")).await["figures"].clone();
    assert_eq!(after["tokens_per_second"], figures["tokens_per_second"]);
    assert_eq!(after["mfu_percent"], figures["mfu_percent"]);

    // Its month's partition goes when it is long over, and comes back for a late point.
    let months = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'samples'::regclass";
    assert_eq!(count(months).await, 1);
    test.app
        .store
        .drop_empty_months("2027-03-01T00:00:00Z".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(count(months).await, 0);
    let (_, late) = push(&test, &path, lines(1190..1210)).await;
    assert_eq!(
        (&late["stored"], &late["duplicates"]),
        (&json!(50), &json!(50))
    );
    assert_eq!(count("SELECT count(*) FROM samples").await, 6050);
    assert_eq!(count("SELECT count(*) FROM sample_chunks").await, 0);
}

#[sqlx::test(migrations = false)]
async fn every_format_has_the_same_columns(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let path = format!("/v1/experiments/{id}/comparison");
    let text = async |format: &str| {
        let reply = test
            .request(Method::GET, &format!("{path}?format={format}"), &test.admin)
            .send()
            .await
            .unwrap();
        assert_eq!(reply.status(), 200);
        reply.bytes().await.unwrap().to_vec()
    };
    let json = test.get(&path).await["rows"].clone();
    let lines = String::from_utf8(text("ndjson").await).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(json, Value::from(lines));
    let csv = String::from_utf8(text("csv").await).unwrap();
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let mut names: Vec<&String> = json[0].as_object().unwrap().keys().collect();
    names.sort_unstable_by_key(|name| header.iter().position(|column| column == name));
    assert_eq!(names, header);
    assert!(text("parquet").await.starts_with(b"PAR1"));
}

/// SageMaker's own series and the last values that it keeps: read once, each a source of its own,
/// and believed before CloudWatch.
#[sqlx::test(migrations = false)]
async fn sagemakers_own_series_and_last_values_are_sources_too(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let settings = Settings {
        sagemaker_metrics: true,
        ..(*test.app.settings).clone()
    };
    test.app.settings = std::sync::Arc::new(settings);
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let sources: Vec<(String, i64, i64)> = sqlx::query_as(
        "SELECT source, count(*), sum(points)::bigint FROM series WHERE metric IN ('tokens_per_second', 'step')
         GROUP BY source ORDER BY source",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let [cloudwatch, last, own] = sources.as_slice() else {
        panic!("{sources:?}")
    };
    assert_eq!((cloudwatch.0.as_str(), cloudwatch.1), ("cloudwatch", 4));
    assert_eq!((last.0.as_str(), last.1, last.2), ("final", 4, 4));
    assert_eq!((own.0.as_str(), own.1), ("sagemaker_metrics", 4));
    assert!(own.2 > 60, "{sources:?}");
    let row = test.get(&format!("/v1/experiments/{id}/comparison")).await["rows"][0].clone();
    assert_eq!(row["tokens_per_second_source"], "sagemaker_metrics");
    let trial = row["trial_id"].as_str().unwrap();
    let series = test
        .get(&format!(
            "/v1/trials/{trial}/metrics?metric=tps&resolution=raw"
        ))
        .await;
    let steps = series["points"]["step"].as_array().unwrap();
    assert!(
        steps
            .windows(2)
            .all(|pair| pair[0].as_i64().unwrap() < pair[1].as_i64().unwrap()),
        "{steps:?}"
    );
    assert_eq!(
        test.record().await["calls"]["BatchGetMetrics"],
        2,
        "one for all series of a job"
    );
}

/// Document 003's three files and a W&B export, as they are: one run, standard names, nothing lost.
#[sqlx::test(migrations = false)]
async fn the_documents_files_are_taken_as_they_are(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let run = run(&test).await;
    let path = format!("/v1/runs/{run}/metrics?source=imported");
    let at = |i: i64| START + i * 60;
    let lines = |line: &dyn Fn(i64) -> Value| {
        (0..30)
            .map(|i| line(i).to_string())
            .collect::<Vec<_>>()
            .join("\n")
    };
    let training = lines(&|i| {
        json!({"timestamp": at(i), "step": i * 50, "loss": 3.0 - 0.01 * f64::from(i32::try_from(i).unwrap()), "learning_rate": 0.0006,
               "steps_per_second": 0.7, "grad_norm": 1.1})
    });
    let performance = lines(&|i| {
        json!({"timestamp": at(i), "step": i * 50, "tokens_per_second": 734_000.0, "samples_per_second": 358.0,
               "cpu_percent": 12.0, "memory_percent": 31.0, "disk_percent": 9.0})
    });
    let gpu = lines(&|i| {
        json!({"timestamp": at(i), "gpus": (0..8).map(|gpu| json!({
            "index": gpu, "utilization": 90 + gpu % 3, "memory_utilization": 71, "temperature": 60 + gpu})).collect::<Vec<_>>()})
    });
    for (body, least) in [(training, 120), (performance, 150), (gpu, 90)] {
        let (status, taken) = push(&test, &path, body).await;
        assert_eq!(
            (status, taken["skipped"].as_array().unwrap().len()),
            (200, 0)
        );
        assert!(taken["stored"].as_u64().unwrap() >= least, "{taken}");
    }
    let export = "_step,_timestamp,loss,eval/loss,system.gpu.0.temp\n1500,1795048200.5,2.7,2.9,66\n1550,1795048260.5,2.6,,67\n";
    let request = test
        .request(Method::POST, &path, &test.admin)
        .header("content-type", "text/csv")
        .body(export);
    let (status, taken) = test.send(request).await;
    assert_eq!(
        (status.as_u16(), &taken["stored"]),
        (200, &json!(5)),
        "{taken}"
    );
    let row = test.get(&format!("/v1/runs/{run}")).await["figures"].clone();
    assert_eq!(
        (&row["tokens_per_second"], &row["tokens_per_second_source"]),
        (&json!(734_000.0), &json!("imported"))
    );
    assert_eq!(
        (&row["train_loss"], &row["validation_loss"], &row["step"]),
        (&json!(2.6), &json!(2.9), &json!(1550))
    );
    let (_, all) = test
        .send(test.request(
            Method::GET,
            &format!("/v1/runs/{run}/metrics?metric=none"),
            &test.admin,
        ))
        .await;
    assert_eq!(row["gpu_memory_utilization_percent"], 71.0, "{all}");
    for metric in [
        "learning_rate",
        "gpu_temperature_celsius",
        "cpu_utilization_percent",
        "memory_utilization_percent",
        "disk_utilization_percent",
        "grad_norm",
    ] {
        let series = test
            .get(&format!("/v1/runs/{run}/metrics?metric={metric}"))
            .await;
        assert!(series["stored_points"].as_i64().unwrap() >= 30, "{series}");
    }
}

/// A loss against steps, hours and dollars, of a trial and of a run that SageMaker never saw.
#[sqlx::test(migrations = false)]
async fn curves_are_against_steps_hours_and_dollars(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut losses = spec();
    losses["workload"]["metrics"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "loss", "regex": " loss=([0-9.]+)", "meaning": "train_loss"}));
    let experiment = test.start(&losses).await;
    test.run_to_end(&experiment, 12).await;
    let run = run(&test).await;
    push(&test, &format!("/v1/runs/{run}/metrics"), lines(0..200)).await;
    let curves = test
        .get(&format!(
            "/v1/convergence?experiment_id={experiment}&run_id={run}&target=3.0"
        ))
        .await;
    let rows = curves["rows"].as_array().unwrap();
    let of = |name: &str| {
        rows.iter()
            .filter(|row| row["candidate"] == name)
            .cloned()
            .collect::<Vec<_>>()
    };
    let p5 = of("p5");
    assert!(p5.len() > 3, "{curves}");
    let rising = |rows: &[Value], key: &str| {
        rows.windows(2)
            .all(|pair| pair[0][key].as_f64() < pair[1][key].as_f64())
    };
    assert!(rising(&p5, "hours") && rising(&p5, "usd"));
    let last = p5.last().unwrap();
    let rate = last["usd"].as_f64().unwrap() / last["hours"].as_f64().unwrap();
    assert!((rate - 63.296).abs() < 0.001, "{rate}");
    let own: Vec<&Value> = rows.iter().filter(|row| !row["run_id"].is_null()).collect();
    assert!(
        !own.is_empty() && own.iter().all(|row| row["step"].is_i64()),
        "{own:?}"
    );
    assert_eq!(curves["reached"].as_array().unwrap().len(), 3);
    let reached = curves["reached"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["candidate"] == "p5")
        .unwrap();
    assert_eq!(reached["is_reached"], true, "{reached}");
    let csv = test.request(
        Method::GET,
        &format!("/v1/convergence?run_id={run}&format=csv"),
        &test.admin,
    );
    assert!(
        csv.send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
            .starts_with("candidate,at,step,tokens,hours,usd,value")
    );
}

/// A client that hangs up in the middle of a long series leaves no answers behind for the next
/// statement on its connection.
#[sqlx::test(migrations = false)]
async fn a_client_that_hangs_up_spoils_no_connection(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let run = run(&test).await;
    push(&test, &format!("/v1/runs/{run}/metrics"), lines(0..10)).await;
    sqlx::query(
        "INSERT INTO samples (series_id, step, sampled_at, value)
         SELECT s.id, i, s.first_at + i * interval '1 ms', i FROM series s, generate_series(1, 200000) i WHERE s.name = 'loss'",
    )
    .execute(&pool)
    .await
    .unwrap();
    let subject = uuid::Uuid::try_parse(run.rsplit_once('_').unwrap().1).unwrap();
    let alone = sqlx::postgres::PgPoolOptions::new().max_connections(1);
    let alone = alone
        .connect_with((*pool.connect_options()).clone())
        .await
        .unwrap();
    let store = bakeoff::store::Store::new(alone.clone());
    let series = store
        .series_of(&[subject], Some(&["train_loss".to_owned()]))
        .await
        .unwrap()
        .pop()
        .unwrap();
    let mut broken_off = 0;
    for polls in [1, 3, 10, 30, 100, 300, 1000] {
        {
            let mut reading = Box::pin(store.points(&series));
            let mut is_over = false;
            for _ in 0..polls {
                is_over = is_over || futures::poll!(&mut reading).is_ready();
                tokio::task::yield_now().await;
            }
            broken_off += u32::from(!is_over);
        }
        for number in 0..3 {
            let found: i64 = sqlx::query_scalar("SELECT $1::bigint")
                .bind(number)
                .fetch_one(&alone)
                .await
                .unwrap();
            assert_eq!(found, number, "after {polls} polls");
        }
        let mut transaction = alone.begin().await.unwrap();
        sqlx::query("SELECT 1")
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
    }
    assert!(broken_off >= 4, "{broken_off}");
    assert_eq!(
        store
            .points(&series)
            .await
            .unwrap()
            .columns()
            .unwrap()
            .value
            .len(),
        200_010
    );
}

/// A read falls where a bucket has just become whole: every read completes one, and none finds half
/// of one.
#[sqlx::test(migrations = false)]
async fn each_read_completes_a_bucket(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let slot = |text: &str| {
        test.app
            .settings
            .metrics_slot(text.parse().unwrap())
            .to_rfc3339()
    };
    assert_eq!(slot("2026-11-20T00:00:00Z"), "2026-11-20T00:01:30+00:00");
    assert_eq!(slot("2026-11-20T00:01:30Z"), "2026-11-20T00:06:30+00:00");
    test.start(&spec()).await;
    let mut seen = 0;
    for _ in 0..120 {
        test.advance(TimeDelta::seconds(30)).await;
        test.tick().await;
        let (whole, all): (i64, i64) = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE r.points = 5), count(*) FROM rollups r JOIN series s ON s.id = r.series_id
             WHERE s.metric = 'tokens_per_second'",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        let record = test.record().await;
        let jobs = record["jobs"].as_array().unwrap();
        let ended = jobs.iter().filter(|job| !job["ended_at"].is_null()).count();
        // Each job begins and ends in the middle of one, and its last value, as Describe has it, is
        // a series of its own.
        assert!(
            all - whole <= i64::try_from(jobs.len() + 2 * ended).unwrap(),
            "{whole} of {all}"
        );
        seen = whole;
    }
    assert!(seen > 8, "{seen}");
}

/// What a script finds in its container is enough to send the metrics of its own trial, and good
/// for nothing else.
#[sqlx::test(migrations = false)]
async fn a_training_job_sends_metrics_of_its_own_trial_without_a_key(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let settings = Settings {
        public_url: Some("https://bakeoff.example.com".into()),
        ..(*test.app.settings).clone()
    };
    test.app.settings = Arc::new(settings);
    let id = test.start(&on_p5(2)).await;
    test.tick().await;
    let record = test.record().await;
    let mut found = Vec::new();
    for job in jobs(&record) {
        let url = format!(
            "{}/_sim/requests/{}",
            test.region.url,
            job["name"].as_str().unwrap()
        );
        let request: Value = test
            .client
            .get(url)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let of = |name: &str| {
            request["Environment"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(of("BAKEOFF_URL"), "https://bakeoff.example.com");
        found.push((of("BAKEOFF_TRIAL_ID"), of("BAKEOFF_PUSH_TOKEN")));
    }
    let [(first, token), (second, _)] = found.as_slice() else {
        panic!("two jobs")
    };
    let push = async |trial: &str, token: &str| {
        let path = format!("/v1/trials/{trial}/metrics");
        let line = json!({"timestamp": test.app.clock.now().timestamp(), "step": 1, "loss": 2.5})
            .to_string();
        test.send(test.request(reqwest::Method::POST, &path, token).body(line))
            .await
    };
    let (status, pushed) = push(first, token).await;
    assert_eq!(
        (status.as_u16(), &pushed["stored"]),
        (200, &json!(1)),
        "{pushed}"
    );
    assert_eq!(push(second, token).await.0, 401, "another trial's");
    assert_eq!(push(first, &format!("{token}0")).await.0, 401);
    for path in [
        format!("/v1/trials/{first}/metrics?metric=loss"),
        format!("/v1/experiments/{id}"),
    ] {
        let (status, _) = test
            .send(test.request(reqwest::Method::GET, &path, token))
            .await;
        assert_eq!(status, 401, "{path}");
    }
    let imported = format!("/v1/trials/{first}/metrics?source=imported");
    let (status, _) = test
        .send(
            test.request(reqwest::Method::POST, &imported, token)
                .body("{}"),
        )
        .await;
    assert_eq!(
        status, 403,
        "what is imported is believed before CloudWatch"
    );
    test.run_to_end(&id, 12).await;
    assert_eq!(
        push(first, token).await.0,
        200,
        "what is still under way may arrive"
    );
    test.advance(TimeDelta::hours(12)).await;
    let (status, refused) = push(first, token).await;
    assert_eq!(
        (status.as_u16(), &refused["title"]),
        (403, &json!("This key may not do that")),
        "{refused}"
    );
}
