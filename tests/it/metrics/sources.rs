//! Metrics in every format and from every source: tables, SageMaker's own series, files, curves,
//! jobs.

use std::sync::Arc;

use bakeoff_api::comparison::{Convergence, CurvePoint};
use bakeoff_api::pushed::Pushed;
use bakeoff_api::runs::RunView;
use bakeoff_api::series::MetricSeries;
use bakeoff_domain::measure::metric::Source;
use bakeoff_domain::measure::speed::SpeedBasis;
use bakeoff_service::app::Settings;
use chrono::TimeDelta;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::metrics::points::{START, lines, push, run, taken};
use crate::support::{TestApp, on_p5, problem, spec};

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
    let row = test.comparison(&id).await.rows.remove(0);
    assert_eq!(row.tokens_per_second_source, Some(Source::SagemakerMetrics));
    let trial = row.trial_id.unwrap();
    let series: MetricSeries = test
        .read(&format!(
            "/v1/trials/{trial}/metrics?metric=tps&resolution=raw"
        ))
        .await;
    let steps = series.points.unwrap().step;
    assert!(
        steps
            .windows(2)
            .all(|pair| pair[0].unwrap() < pair[1].unwrap()),
        "{steps:?}"
    );
    assert_eq!(
        test.calls("BatchGetMetrics").await,
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
        let taken = taken(&test, &path, body).await;
        assert!(
            taken.skipped.is_empty() && taken.stored >= least,
            "{taken:?}"
        );
    }
    let export = "_step,_timestamp,loss,eval/loss,system.gpu.0.temp\n1500,1795048200.5,2.7,2.9,66\n1550,1795048260.5,2.6,,67\n";
    let request = test
        .request(Method::POST, &path, &test.admin)
        .header("content-type", "text/csv")
        .body(export);
    let (status, answer) = test.send(request).await;
    assert_eq!(status, 200, "{answer}");
    let export: Pushed = serde_json::from_value(answer).unwrap();
    assert_eq!(export.stored, 5, "{export:?}");
    let shown: RunView = test.read(&format!("/v1/runs/{run}")).await;
    let row = shown.figures.unwrap();
    assert_eq!(
        (row.tokens_per_second, row.tokens_per_second_source),
        (Some(734_000.0), Some(Source::Imported))
    );
    assert_eq!(
        (row.train_loss, row.validation_loss, row.step),
        (Some(2.6), Some(2.9), Some(1550))
    );
    let (_, all) = test
        .send(test.request(
            Method::GET,
            &format!("/v1/runs/{run}/metrics?metric=none"),
            &test.admin,
        ))
        .await;
    assert_eq!(row.gpu_memory_utilization_percent, Some(71.0), "{all}");
    for metric in [
        "learning_rate",
        "gpu_temperature_celsius",
        "cpu_utilization_percent",
        "memory_utilization_percent",
        "disk_utilization_percent",
        "grad_norm",
    ] {
        let series: MetricSeries = test
            .read(&format!("/v1/runs/{run}/metrics?metric={metric}"))
            .await;
        assert!(series.stored_points >= 30, "{series:?}");
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
    let curves: Convergence = test
        .read(&format!(
            "/v1/convergence?experiment_id={experiment}&run_id={run}&target=3.0"
        ))
        .await;
    let rows = curves.rows.iter();
    let p5: Vec<&CurvePoint> = rows.filter(|row| row.candidate == "p5").collect();
    assert!(p5.len() > 3, "{curves:?}");
    assert!(
        p5.windows(2)
            .all(|pair| pair[0].hours < pair[1].hours && pair[0].usd < pair[1].usd),
        "{p5:?}"
    );
    // CloudWatch gives no steps: they are those that the step metric reports at the time.
    assert!(
        p5.windows(2)
            .all(|pair| pair[0].step.unwrap() < pair[1].step.unwrap()),
        "{p5:?}"
    );
    let last = p5.last().unwrap();
    let (step, tokens) = (last.step.unwrap(), last.tokens.unwrap());
    assert!((700..=763).contains(&step), "{step} of 763 steps");
    assert!((tokens / 131_072.0 - f64::from(i32::try_from(step).unwrap())).abs() < 1e-6);
    let rate = last.usd.unwrap().as_f64() / last.hours;
    assert!((rate - 63.296).abs() < 0.001, "{rate}");
    let rows = curves.rows.iter();
    let own: Vec<&CurvePoint> = rows.filter(|row| row.run_id.is_some()).collect();
    assert!(
        !own.is_empty() && own.iter().all(|row| row.step.is_some()),
        "{own:?}"
    );
    assert_eq!(curves.reached.len(), 3);
    let reached = curves.reached.iter().find(|one| one.candidate == "p5");
    assert!(reached.unwrap().is_reached, "{reached:?}");
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
    let store = bakeoff_store::Store::new(alone.clone());
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
        let jobs = test.jobs().await;
        let ended = jobs.iter().filter(|job| job.ended_at.is_some()).count();
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
    let mut found = Vec::new();
    for job in test.jobs().await {
        let url = format!("{}/_sim/requests/{}", test.region.url, job.name);
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
    let (status, answer) = push(first, token).await;
    assert_eq!(status, 200, "{answer}");
    let pushed: Pushed = serde_json::from_value(answer).unwrap();
    assert_eq!(pushed.stored, 1, "{pushed:?}");
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
    let (status, answer) = push(first, token).await;
    assert_eq!(
        (status.as_u16(), problem(answer).title.as_str()),
        (403, "Not permitted for this key's role")
    );
}

/// A script that reports samples, or no more than how many steps are done, has a speed in tokens
/// and is ranked by it; also when its series are closed, and their points packed.
#[sqlx::test(migrations = false)]
async fn a_speed_follows_from_samples_or_from_steps(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut measured = Vec::new();
    for (basis, metric) in [
        (
            SpeedBasis::TokensPerSecond,
            json!({"name": "tps", "regex": "tokens_per_second=([0-9.]+)", "meaning": "tokens_per_second"}),
        ),
        (
            SpeedBasis::SamplesPerSecond,
            json!({"name": "sps", "regex": "samples_per_second=([0-9.]+)", "meaning": "samples_per_second"}),
        ),
        (
            SpeedBasis::Steps,
            json!({"name": "step", "regex": "step=([0-9]+)", "meaning": "step"}),
        ),
    ] {
        let mut spec = on_p5(1);
        spec["workload"]["metrics"] = json!([metric]);
        spec["workload"]["name"] = json!(basis.as_str());
        let id = test.start(&spec).await;
        test.run_to_end(&id, 12).await;
        let row = test.comparison(&id).await.rows.remove(0);
        assert_eq!(row.tokens_per_second_basis, Some(basis));
        assert_eq!(row.tokens_per_second_source, Some(Source::Cloudwatch));
        let ranked = test
            .recommendation(&id)
            .await
            .recommendation
            .ranked
            .remove(0);
        let speed = row.tokens_per_second.unwrap();
        assert!((ranked.tokens_per_second / speed - 1.0).abs() < 1e-9);
        measured.push((id, speed));
    }
    let reported = measured[0].1;
    for (id, speed) in &measured {
        assert!((speed / reported - 1.0).abs() < 0.03, "{id}: {measured:?}");
    }
    test.advance(TimeDelta::hours(3)).await;
    while bakeoff_service::tasks::compactor::tick(&test.app)
        .await
        .unwrap()
        > 0
    {}
    let open: i64 = sqlx::query_scalar("SELECT count(*) FROM samples")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(open, 0, "all points are packed");
    for (id, speed) in &measured {
        let row = test.comparison(id).await.rows.remove(0);
        let packed = row.tokens_per_second.unwrap();
        assert!((packed / speed - 1.0).abs() < 1e-9, "{id}: {packed}");
    }
}

/// The same of an external run whose points carry their steps, while it runs and when it is closed.
#[sqlx::test(migrations = false)]
async fn a_run_that_reports_losses_and_steps_has_a_speed(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (spoken, silent) = (run(&test).await, run(&test).await);
    let all = lines(0..1200);
    let bare: Vec<String> = all
        .lines()
        .map(|line| {
            let mut point: Value = serde_json::from_str(line).unwrap();
            point.as_object_mut().unwrap().remove("tokens_per_second");
            point.to_string()
        })
        .collect();
    push(&test, &format!("/v1/runs/{spoken}/metrics"), all).await;
    push(
        &test,
        &format!("/v1/runs/{silent}/metrics"),
        bare.join("\n"),
    )
    .await;
    let speed = async |run: &String| {
        let shown: RunView = test.read(&format!("/v1/runs/{run}")).await;
        let row = shown.figures.unwrap();
        (
            row.tokens_per_second_basis.unwrap(),
            row.tokens_per_second.unwrap(),
        )
    };
    let reported = speed(&spoken).await;
    let derived = speed(&silent).await;
    assert_eq!(reported.0, SpeedBasis::TokensPerSecond);
    assert_eq!(derived.0, SpeedBasis::Steps);
    assert!(
        (derived.1 / reported.1 - 1.0).abs() < 0.03,
        "{derived:?} {reported:?}"
    );
    test.post(
        &format!("/v1/runs/{silent}/end"),
        &json!({"state": "completed", "ended_at": "2026-11-19T20:00:00Z"}),
    )
    .await;
    test.advance(TimeDelta::hours(3)).await;
    while bakeoff_service::tasks::compactor::tick(&test.app)
        .await
        .unwrap()
        > 0
    {}
    let closed = speed(&silent).await;
    assert!((closed.1 / derived.1 - 1.0).abs() < 1e-9, "{closed:?}");
}
