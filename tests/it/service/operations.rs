//! What operators see of a running program: how its tasks fare, one line for each request, and how
//! long requests take.

use std::time::Duration;

use bakeoff_api::operations::{Health, TaskHealth};
use bakeoff_process::clock::real_sleep;
use serde_json::Value;
use sqlx::PgPool;

use crate::service::program::Service;
use crate::support::TestApp;

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The example of the W3C recommendation.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const TASKS: [&str; 10] = [
    "call_stats",
    "compactor",
    "checkpoints",
    "finalizer",
    "fence",
    "ingester",
    "warm_pools",
    "repricer",
    "scheduler",
    "watcher",
];

/// A program whose tasks have all run.
async fn running(pool: &PgPool, test: &TestApp) -> (Service, Health) {
    let service = Service::logged(pool, &test.region).await;
    loop {
        // It may still answer with a problem.
        let answer = get(test, &format!("{}/readyz?verbose=true", service.url)).await;
        if let Ok(health) = serde_json::from_value::<Health>(answer)
            && TASKS.iter().all(|task| has_run(&health, task))
        {
            return (service, health);
        }
        real_sleep(LOOK_EVERY).await;
    }
}

fn has_run(health: &Health, task: &str) -> bool {
    of(health, task).is_some_and(|own| own.last_success_at.is_some())
}

fn of<'a>(health: &'a Health, task: &str) -> Option<&'a TaskHealth> {
    health.tasks.iter().find(|own| own.task == task)
}

async fn get(test: &TestApp, url: &str) -> Value {
    test.client
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap()
}

#[sqlx::test(migrations = false)]
async fn readyz_says_how_each_task_fares(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (service, health) = running(&pool, &test).await;
    for task in TASKS {
        let own = of(&health, task).unwrap();
        assert!(own.runs >= 1, "{own:?}");
        assert!(!own.failing, "{own:?}");
        let has_queue = ["scheduler", "warm_pools", "checkpoints", "ingester"].contains(&task);
        assert_eq!(own.lag_seconds.is_some(), has_queue, "{own:?}");
    }
    let brief = get(&test, &format!("{}/readyz", service.url)).await;
    let fields: Vec<&String> = brief.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["status", "version"]);
    for wrong in ["verbose=perhaps", "loud=true"] {
        let answer = test
            .client
            .get(format!("{}/readyz?{wrong}", service.url))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status().as_u16(), 400, "{wrong}");
    }
    service.stop().await;
}

#[sqlx::test(migrations = false)]
async fn each_request_is_one_line_with_its_key_and_its_trace(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (service, _) = running(&pool, &test).await;
    let ask = async |path: &str| {
        let request = test.client.get(format!("{}{path}", service.url));
        let request = request
            .bearer_auth(&test.admin)
            .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
        request.send().await.unwrap()
    };
    assert_eq!(ask("/v1/experiments?page_size=3").await.status(), 200);
    assert_eq!(ask("/of/my/own/choice").await.status(), 404);
    let metrics = ask("/metrics").await.text().await.unwrap();
    let answered = |path: &str| -> Vec<Value> {
        let lines = service.log().into_iter();
        let own =
            |line: &Value| line["fields"]["message"] == "answered" && line["span"]["path"] == path;
        lines.filter(own).collect()
    };
    let known = answered("/v1/experiments");
    let [line] = known.as_slice() else {
        panic!("not one line: {known:?}")
    };
    assert_eq!(line["fields"]["status"], 200, "{line}");
    assert_eq!(line["fields"]["route"], "/v1/experiments", "{line}");
    assert!(
        line["fields"]["milliseconds"].as_f64() > Some(0.0),
        "{line}"
    );
    assert_eq!(line["span"]["trace_id"], TRACE, "{line}");
    let key = line["span"]["key_id"].as_str().unwrap_or_default();
    assert!(key.starts_with("key_"), "{line}");
    let unknown = answered("/of/my/own/choice");
    assert_eq!(unknown[0]["fields"]["route"], "none", "{unknown:?}");
    let secret = test.admin.rsplit('_').next().unwrap();
    assert!(
        service
            .log()
            .iter()
            .all(|line| !line.to_string().contains(secret)),
        "no secret of a key is logged"
    );
    for figure in [
        "bakeoff_http_request_duration_seconds_count{method=\"GET\",route=\"/v1/experiments\",status=\"200\"} 1",
        "bakeoff_http_request_duration_seconds_count{method=\"GET\",route=\"none\",status=\"404\"} 1",
        "bakeoff_task_lag_seconds{task=\"scheduler\",region=\"us-east-1\"}",
        "bakeoff_task_failing{task=\"watcher\",region=\"us-east-1\"} 0",
        "bakeoff_http_request_duration_seconds_bucket{method=\"GET\",route=\"none\",status=\"404\",le=\"30\"} 1",
        "bakeoff_task_runs_total{task=\"watcher\",region=\"us-east-1\"}",
        "bakeoff_tick_seconds_count{task=\"ingester\"}",
    ] {
        assert!(metrics.contains(figure), "{figure} is not in {metrics}");
    }
    service.stop().await;
}
