//! The API as its users meet it: keys, roles, tenants, errors with their places, idempotency,
//! pages, formats, streams.

use bakeoff_api::events::EventView;
use bakeoff_api::experiments::{CreatedExperiment, ExperimentSummary};
use bakeoff_api::page::Page;
use bakeoff_api::plans::PreviewView;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::price::PriceStatus;
use bakeoff_http::Problem;
use bakeoff_service::auth::keys::Role;
use chrono::TimeDelta;
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, problem, spec};

fn pointers(problem: &Problem) -> Vec<&str> {
    let errors = problem.errors.iter();
    errors.map(|error| error.pointer.as_str()).collect()
}

fn created(body: &Value) -> CreatedExperiment {
    serde_json::from_value(body.clone()).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// The newest fifty.
async fn experiments(test: &TestApp) -> Vec<ExperimentSummary> {
    test.read::<Page<ExperimentSummary>>("/v1/experiments")
        .await
        .items
}

#[sqlx::test(migrations = false)]
async fn without_a_good_key_there_is_nothing_to_see(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let wrong = test.admin.replace('a', "b");
    for key in ["", "bk_1_2", "nonsense", wrong.as_str()] {
        let (status, answer) = test
            .send(test.request(Method::GET, "/v1/experiments", key))
            .await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert_eq!(problem(answer).code, "unauthenticated");
    }
    let bare = reqwest::get(format!("{}/v1/experiments", test.url))
        .await
        .unwrap();
    assert_eq!(bare.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(bare.headers()["content-type"], "application/problem+json");
    assert!(bare.headers().contains_key("x-request-id"));
}

#[sqlx::test(migrations = false)]
async fn another_projects_rows_do_not_exist(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let stranger = test.key(test.other_project().await, Role::Admin).await;
    for path in [
        "",
        "/trials",
        "/comparison",
        "/recommendation",
        "/ledger",
        "/events",
    ] {
        let path = format!("/v1/experiments/{id}{path}");
        let (status, _) = test.send(test.request(Method::GET, &path, &stranger)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    let cancel = test.request(
        Method::POST,
        &format!("/v1/experiments/{id}/cancel"),
        &stranger,
    );
    assert_eq!(test.send(cancel).await.0, StatusCode::NOT_FOUND);
    let trial = test.trials(&id).await[0].id;
    let (status, _) = test
        .send(test.request(Method::GET, &format!("/v1/trials/{trial}"), &stranger))
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (_, page) = test
        .send(test.request(Method::GET, "/v1/experiments", &stranger))
        .await;
    let page: Page<ExperimentSummary> = serde_json::from_value(page).unwrap();
    assert!(page.items.is_empty(), "{page:?}");
}

#[sqlx::test(migrations = false)]
async fn a_viewer_reads_and_does_not_spend(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let viewer = test.key(test.project, Role::Viewer).await;
    let (status, answer) = test
        .send(
            test.request(Method::POST, "/v1/experiments", &viewer)
                .json(&spec()),
        )
        .await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::FORBIDDEN, "forbidden")
    );
    let (status, _) = test
        .send(test.request(Method::GET, "/v1/experiments", &viewer))
        .await;
    assert_eq!(status, StatusCode::OK);
}

#[sqlx::test(migrations = false)]
async fn all_mistakes_come_back_at_once_with_their_places(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut wrong = spec();
    wrong["budget_us"] = json!(10);
    wrong["budget_usd"] = json!(-5);
    wrong["max_wait_seconds"] = json!(100);
    wrong["candidates"][0]["purchase_options"] = json!(["spot"]);
    wrong["candidates"][1]["instance_type"] = json!("ml.p5.48xlrge");
    let (status, answer) = test.post("/v1/experiments", &wrong).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let problem = problem(answer);
    let expected = [
        "/budget_us",
        "/budget_usd",
        "/max_wait_seconds",
        "/checkpoint",
        "/candidates/1/instance_type",
    ];
    assert_eq!(pointers(&problem), expected);
    assert!(problem.errors[0].fix.contains("budget_usd"));
    assert!(problem.errors[4].fix.contains("ml.p5.48xlarge"));
    assert!(experiments(&test).await.is_empty(), "nothing was written");
}

#[sqlx::test(migrations = false)]
async fn a_wrong_type_names_its_place(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut wrong = spec();
    wrong["candidates"][1]["profile"]["micro_batch_per_gpu"] = json!("four");
    let (status, answer) = test.post("/v1/experiments", &wrong).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        pointers(&problem(answer)),
        ["/candidates/1/profile/micro_batch_per_gpu"]
    );
    let broken = test
        .request(Method::POST, "/v1/experiments", &test.admin)
        .body("{");
    assert_eq!(test.send(broken).await.0, StatusCode::BAD_REQUEST);
}

#[sqlx::test(migrations = false)]
async fn what_the_database_could_not_keep_is_refused_before_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let refused = |change: fn(&mut Value)| {
        let mut spec = spec();
        change(&mut spec);
        spec
    };
    for (body, status) in [
        (
            refused(|spec| spec["workload"]["name"] = json!("")),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            refused(|spec| spec["candidates"][0]["name"] = json!("x".repeat(500))),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            refused(|spec| spec["budget_usd"] = json!(1e27)),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            refused(|spec| spec["notes"] = json!(["a\u{0}b"])),
            StatusCode::BAD_REQUEST,
        ),
    ] {
        let (got, problem) = test.post("/v1/experiments", &body).await;
        assert_eq!(got, status, "{problem}");
    }
    let (status, _) = test
        .send(test.request(
            Method::GET,
            "/v1/experiments?name_contains=%00",
            &test.admin,
        ))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[sqlx::test(migrations = false)]
async fn an_unknown_parameter_is_refused(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for path in [
        "/v1/experiments?sate=running",
        "/v1/experiments?page_size=0",
        "/v1/experiments?sort=name",
        "/v1/prices?regon=x",
        // Of paths that take none.
        "/v1/projects/current?at=2026",
        "/v1/experiments/exp_00000000000000000000000000000000/recommendation?at=2026",
        "/livez?verbose=true",
    ] {
        let (status, problem) = test
            .send(test.request(Method::GET, path, &test.admin))
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {problem}");
    }
}

#[sqlx::test(migrations = false)]
async fn the_same_idempotency_key_counts_once(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let send = |body: Value| {
        test.send(
            test.request(Method::POST, "/v1/experiments", &test.admin)
                .header("idempotency-key", "k-1")
                .json(&body),
        )
    };
    // At the same time, and once more later.
    let (first, second) = tokio::join!(send(spec()), send(spec()));
    let third = send(spec()).await;
    assert_eq!(
        (first.0, second.0, third.0),
        (
            StatusCode::CREATED,
            StatusCode::CREATED,
            StatusCode::CREATED
        )
    );
    assert_eq!(created(&first.1).id, created(&second.1).id);
    assert_eq!(first.1, third.1);
    assert_eq!(experiments(&test).await.len(), 1);
    let mut other = spec();
    other["budget_usd"] = json!(11);
    let (status, answer) = send(other).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reused")
    );
}

#[sqlx::test(migrations = false)]
async fn pages_neither_miss_nor_repeat(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(test.start(&spec()).await);
    }
    let mut seen = Vec::new();
    let mut path = "/v1/experiments?page_size=2".to_owned();
    loop {
        let page: Page<ExperimentSummary> = test.read(&path).await;
        seen.extend(page.items.iter().map(|item| item.id.to_string()));
        let Some(token) = page.next_page_token else {
            break;
        };
        path = format!("/v1/experiments?page_size=2&page_token={token}");
    }
    made.reverse();
    assert_eq!(seen, made, "newest first");
    let oldest: Page<ExperimentSummary> = test
        .read("/v1/experiments?sort=created_at&page_size=1")
        .await;
    assert_eq!(oldest.items[0].id.to_string(), made[4]);
    let token = oldest.next_page_token.unwrap();
    let path = format!("/v1/experiments?page_size=1&page_token={token}");
    let (status, _) = test
        .send(test.request(Method::GET, &path, &test.admin))
        .await;
    assert_eq!(
        status,
        StatusCode::BAD_REQUEST,
        "a token belongs to its own list"
    );
    let none: Page<ExperimentSummary> = test
        .read("/v1/experiments?state=completed&state=cancelled")
        .await;
    assert!(none.items.is_empty(), "{none:?}");
}

#[sqlx::test(migrations = false)]
async fn the_comparison_is_a_table_in_csv_too(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let path = format!("/v1/experiments/{id}/comparison?format=csv");
    let text = test
        .request(Method::GET, &path, &test.admin)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headers = reader.headers().unwrap().clone();
    for column in [
        "candidate",
        "instance_type",
        "tokens_per_second",
        "billable_seconds",
        "cost_usd",
        "price_source",
    ] {
        assert!(
            headers.iter().any(|header| header == column),
            "{column} in {headers:?}"
        );
    }
    assert_eq!(reader.records().count(), 2);
}

#[sqlx::test(migrations = false)]
async fn incomparable_profiles_share_the_table_and_not_the_rank(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut document = spec();
    let mut odd = document["candidates"][1].clone();
    odd["name"] = json!("p5-48");
    odd["profile"]["micro_batch_per_gpu"] = json!(6);
    document["candidates"].as_array_mut().unwrap().push(odd);
    let id = test.start(&document).await;
    test.run_to_end(&id, 12).await;
    let verdict = test.recommendation(&id).await.recommendation;
    assert_eq!(verdict.ranked.len(), 2);
    let odd = &verdict.not_ranked[0];
    assert!(
        odd.reason.contains("48 sequences per step, the others 64"),
        "{}",
        odd.reason
    );
    assert!(odd.fix.as_ref().unwrap().contains("8 × 1"));
}

#[sqlx::test(migrations = false)]
async fn a_stream_resumes_where_it_was_left(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    let all = test.events(&id).await;
    let ids: Vec<i64> = all.iter().map(|event| event.id).collect();
    assert!(ids.len() >= 3, "created, planned, submitted: {all:?}");
    let stream = test
        .request(
            Method::GET,
            &format!("/v1/experiments/{id}/events"),
            &test.admin,
        )
        .header("accept", "text/event-stream")
        .header("last-event-id", ids[0].to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut chunks = stream.bytes_stream();
    let mut text = String::new();
    while text.matches("\ndata:").count() < ids.len() - 1 {
        text.push_str(std::str::from_utf8(&chunks.next().await.unwrap().unwrap()).unwrap());
    }
    assert!(
        !text.contains(&format!("id: {}\n", ids[0])) && text.contains(&format!("id: {}\n", ids[1])),
        "{text}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_negotiated_price_is_used_and_a_second_of_its_day_is_a_conflict(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut p5e = spec();
    p5e["candidates"][1]["instance_type"] = json!("ml.p5e.48xlarge");
    let (_, body) = test.post("/v1/experiments", &p5e).await;
    assert!(
        created(&body).trials[1].plan.refused,
        "no list has its price"
    );
    let put = |usd: f64| {
        let body = json!({"region": "us-east-1", "usd_per_hour": usd, "source": "contract 7",
            "effective_from": "2026-11-01T00:00:00Z", "reason": "signed late"});
        test.send(
            test.request(Method::PUT, "/v1/prices/ml.p5e.48xlarge", &test.admin)
                .json(&body),
        )
    };
    assert_eq!(put(68.5).await.0, StatusCode::OK);
    assert_eq!(put(70.0).await.0, StatusCode::CONFLICT);
    assert_eq!(put(-1.0).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let (_, body) = test.post("/v1/experiments", &p5e).await;
    let price = created(&body).trials.remove(1).plan.price.unwrap();
    assert_eq!(
        (price.usd_per_hour.as_f64(), price.status),
        (68.5, PriceStatus::Negotiated)
    );
}

/// Of what all candidates share, too: the plan says no, and nothing is started.
#[sqlx::test(migrations = false)]
async fn what_is_refused_does_not_run(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut compiled = spec();
    compiled["workload"]["techniques"] = json!({"training_compiler": true});
    let (_, preview) = test.post("/v1/plans", &compiled).await;
    let preview: PreviewView = serde_json::from_value(preview).unwrap();
    assert!(!preview.would_start, "{preview:#?}");
    assert!(preview.candidates[0].plan.refused);
    let (status, answer) = test.post("/v1/experiments", &compiled).await;
    assert_eq!(
        (status, problem(answer).errors[0].rule.as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "compiler-ended")
    );
}

#[sqlx::test(migrations = false)]
async fn an_experiment_all_of_whose_trials_failed_has_failed(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--algorithm-error", "1.0"]).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let ended = test.experiment(&id).await;
    assert_eq!(ended.state, ExperimentState::Failed, "{ended:#?}");
    let events = test.events(&id).await.into_iter();
    let of_kind = events.filter(|event| event.kind == "trial.status");
    let told: Vec<EventView> = of_kind.collect();
    let names_its_trial =
        |event: &EventView| event.candidate.is_some() && event.message.contains(" on_demand: ");
    assert!(
        !told.is_empty() && told.iter().all(names_its_trial),
        "{told:#?}"
    );
}

#[sqlx::test(migrations = false)]
async fn unknown_paths_and_methods_are_problems_too(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (status, answer) = test
        .send(test.request(Method::GET, "/v1/nothing", &test.admin))
        .await;
    assert_eq!(
        (status, problem(answer).instance.as_str()),
        (StatusCode::NOT_FOUND, "/v1/nothing")
    );
    let (status, _) = test
        .send(test.request(Method::DELETE, "/v1/experiments", &test.admin))
        .await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    let (status, page) = test.send(test.request(Method::GET, "/docs/api/", "")).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        page.as_str().unwrap().contains("swagger-ui"),
        "served by ourselves"
    );
}

/// All at once: whoever is second finds the key taken in the transaction of the first.
#[sqlx::test(migrations = false)]
async fn concurrent_requests_with_one_key_are_one_experiment(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let one = || {
        let request = test.request(reqwest::Method::POST, "/v1/experiments", &test.admin);
        test.send(request.header("idempotency-key", "again").json(&spec()))
    };
    let answers = futures::future::join_all((0..16).map(|_| one())).await;
    let first = created(&answers[0].1).id;
    assert!(
        answers
            .iter()
            .all(|(status, body)| *status == 201 && created(body).id == first),
        "{answers:#?}"
    );
    assert_eq!(experiments(&test).await.len(), 1);
}

#[sqlx::test(migrations = false)]
async fn what_the_client_has_already_is_not_sent_again(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let path = format!("/v1/experiments/{id}/comparison");
    let ask = async |tag: Option<String>| {
        let request = test.request(Method::GET, &path, &test.admin);
        tag.into_iter()
            .fold(request, |request, tag| request.header("if-none-match", tag))
            .send()
            .await
            .unwrap()
    };
    let first = ask(None).await;
    let tag = first.headers()["etag"].to_str().unwrap().to_owned();
    test.advance(TimeDelta::minutes(1)).await;
    let again = ask(Some(tag.clone())).await;
    assert_eq!(
        (
            again.status().as_u16(),
            again.headers()["etag"].to_str().unwrap()
        ),
        (304, tag.as_str())
    );
    assert!(again.bytes().await.unwrap().is_empty());
    test.run_to_end(&id, 12).await;
    let changed = ask(Some(tag.clone())).await;
    assert!(
        changed.status() == StatusCode::OK && changed.headers()["etag"].to_str().unwrap() != tag
    );
}

/// Values of enums are documented as they are sent: a client that is made from the document must understand the service.
#[test]
fn the_document_names_values_as_they_are_sent() {
    let document: Value =
        serde_json::from_str(include_str!("../../../openapi/bakeoff.json")).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let values = |schema: &Value| schema["enum"].as_array().cloned().unwrap_or_default();
    let mut found = 0;
    for (name, schema) in schemas {
        for value in values(schema).iter().filter_map(Value::as_str) {
            found += 1;
            assert!(!value.starts_with(char::is_uppercase), "{name}: {value}");
        }
    }
    assert!(found > 100, "{found}");
    let states: Vec<&str> = TrialState::ALL.iter().map(|one| one.as_str()).collect();
    assert_eq!(json!(states), schemas["TrialState"]["enum"]);
}
