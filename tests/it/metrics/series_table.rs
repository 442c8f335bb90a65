//! Series of many trials in one answer, as charts need them.

use bakeoff_api::series::{MetricSeries, SeriesTable};
use reqwest::{Method, StatusCode};
use sqlx::PgPool;

use crate::support::{TestApp, spec};

async fn table(test: &TestApp, query: &str) -> SeriesTable {
    test.read(&format!("/v1/series?{query}")).await
}

#[sqlx::test(migrations = false)]
async fn metrics_of_all_trials_come_in_one_answer(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 24).await;
    let trials = test.trials(&id).await;
    let query = format!(
        "experiment_id={id}&metric=gpu_utilization_percent&metric=tokens_per_second&points=50"
    );
    let all = table(&test, &query).await;
    let lines: Vec<_> = all
        .series
        .iter()
        .map(|line| (line.trial_id, line.metric.as_str()))
        .collect();
    let wanted: Vec<_> = trials
        .iter()
        .flat_map(|trial| {
            ["gpu_utilization_percent", "tokens_per_second"].map(|metric| (Some(trial.id), metric))
        })
        .collect();
    assert_eq!(lines, wanted);
    for line in &all.series {
        let count = line.points.value.len();
        assert!(
            (2..=50).contains(&count),
            "{} points of {}",
            count,
            line.metric
        );
        assert!(line.points.at_seconds.is_sorted());
    }
    let names: Vec<&str> = all.metrics.iter().map(|one| one.metric.as_str()).collect();
    assert!(
        names.contains(&"gpu_memory_utilization_percent"),
        "{names:?}"
    );
    assert!(all.metrics.iter().all(|one| one.subjects <= 2));
    // The points are those of the single series.
    let trial = trials[0].id;
    let whole: MetricSeries = test
        .read(&format!(
            "/v1/trials/{trial}/metrics?metric=tokens_per_second&resolution=raw"
        ))
        .await;
    let many = table(
        &test,
        &format!("trial_id={trial}&metric=tokens_per_second&points=2000"),
    )
    .await;
    assert!(!many.series[0].are_means);
    assert_eq!(many.series[0].points.value, whole.points.unwrap().value);
    // Without a metric, only names are told.
    let bare = table(&test, &format!("trial_id={trial}")).await;
    assert!(bare.series.is_empty() && !bare.metrics.is_empty());
}

#[sqlx::test(migrations = false)]
async fn a_series_with_too_many_points_is_shown_by_its_means(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 24).await;
    let trial = test.trials(&id).await[0].id;
    let few = table(
        &test,
        &format!("trial_id={trial}&metric=tokens_per_second&points=10"),
    )
    .await;
    let line = &few.series[0];
    assert!(line.stored_points > 20, "{line:?}");
    assert!(line.are_means && line.points.value.len() <= 10, "{line:?}");
}

#[sqlx::test(migrations = false)]
async fn what_is_not_there_or_too_much_is_refused_by_name(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let stranger = "trl_00000000000000000000000000000001";
    for (query, status, said) in [
        (String::new(), StatusCode::BAD_REQUEST, "name at least one"),
        (
            format!("trial_id={stranger}"),
            StatusCode::NOT_FOUND,
            stranger,
        ),
        (
            format!("experiment_id={id}&points=9"),
            StatusCode::BAD_REQUEST,
            "10 to 2000",
        ),
        (
            format!("experiment_id={id}{}", "&metric=a".repeat(17)),
            StatusCode::BAD_REQUEST,
            "at most 16",
        ),
    ] {
        let asked = test.request(Method::GET, &format!("/v1/series?{query}"), &test.admin);
        let (got, problem) = test.send(asked).await;
        assert_eq!(got, status, "{query}: {problem}");
        assert!(problem.to_string().contains(said), "{problem}");
    }
}
