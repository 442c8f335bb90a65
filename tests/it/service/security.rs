//! What a stranger, a viewer or an editor must not be able to do: to the money, to the service's
//! time, and to its connections.

use bakeoff_api::catalog::PriceView;
use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_api::findings::LintView;
use bakeoff_api::runs::RunView;
use bakeoff_service::auth::keys::Role;
use bakeoff_service::tasks::{finalizer, ingester, repricer, scheduler, warm_pools};
use base64::Engine;
use chrono::TimeDelta;
use rcgen::{KeyPair, SigningKey};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{SNS_TOPIC, TestApp, problem, spec};

async fn put_price(test: &TestApp, key: &str, change: &Value) -> (StatusCode, Value) {
    let mut body = json!({"region": "us-east-1", "usd_per_hour": 60, "source": "contract"});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    test.send(
        test.request(Method::PUT, "/v1/prices/ml.p5.48xlarge", key)
            .json(&body),
    )
    .await
}

#[sqlx::test(migrations = false)]
async fn prices_belong_to_the_admin_and_have_a_floor(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let editor = test.key(test.project, Role::Editor).await;
    assert_eq!(
        put_price(&test, &editor, &json!({})).await.0,
        StatusCode::FORBIDDEN
    );
    let refresh = test.request(Method::POST, "/v1/prices/refresh", &editor);
    assert_eq!(test.send(refresh).await.0, StatusCode::FORBIDDEN);

    for (change, pointer, says) in [
        (json!({"usd_per_hour": 0.0001}), "/usd_per_hour", "30 %"),
        (
            json!({"effective_from": "2026-11-19T00:00:00Z"}),
            "/reason",
            "past",
        ),
        (
            json!({"effective_from": "2026-11-19T00:00:00Z", "reason": ""}),
            "/reason",
            "500",
        ),
        (
            json!({"effective_from": "2016-12-31T00:00:00Z", "reason": "x"}),
            "/effective_from",
            "2017",
        ),
        (
            json!({"effective_from": "+262142-01-01T00:00:00Z"}),
            "/effective_from",
            "2017",
        ),
        (
            json!({"region": "us-east-1\n\u{1b}[31m"}),
            "/region",
            "region",
        ),
    ] {
        let (status, answer) = put_price(&test, &test.admin, &change).await;
        assert_eq!(
            status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{change}: {answer}"
        );
        let error = problem(answer).errors.remove(0);
        assert_eq!(
            (error.rule.as_str(), error.pointer.as_str()),
            ("price", pointer),
            "{error:?}"
        );
        assert!(error.detail.contains(says), "{error:?}");
        assert!(!error.fix.is_empty(), "{error:?}");
    }
    let late = json!({"effective_from": "2026-11-19T00:00:00Z", "reason": "the contract came late", "note": "signed"});
    let (status, answer) = put_price(&test, &test.admin, &late).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let price: PriceView = serde_json::from_value(answer).unwrap();
    assert_eq!(price.note, "signed; back-dated: the contract came late");
    // A rate that was negotiated low does not lower the floor, and a listed one elsewhere does not
    // raise it.
    assert_eq!(
        put_price(&test, &test.admin, &json!({"usd_per_hour": 19}))
            .await
            .0,
        StatusCode::OK
    );
    assert_eq!(
        put_price(&test, &test.admin, &json!({"usd_per_hour": 18}))
            .await
            .0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let unknown = json!({"region": "af-south-1", "usd_per_hour": 1});
    assert_eq!(
        put_price(&test, &test.admin, &unknown).await.0,
        StatusCode::OK,
        "nothing is known to hold it against"
    );
}

/// The body of somebody who may not do it is not even read.
#[sqlx::test(migrations = false)]
async fn the_role_comes_before_the_body(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let trial = test.trials(&id).await[0].id;
    let viewer = test.key(test.project, Role::Viewer).await;
    let editor = test.key(test.project, Role::Editor).await;
    let trial_metrics = format!("/v1/trials/{trial}/metrics");
    let editors = [
        (Method::POST, "/v1/experiments"),
        (Method::POST, "/v1/runs"),
        (
            Method::POST,
            "/v1/runs/run_00000000000000000000000000000000/end",
        ),
        (Method::POST, "/v1/workloads"),
        (Method::POST, "/v1/instance-profiles"),
        (Method::POST, trial_metrics.as_str()),
    ];
    let admins = [
        (Method::POST, "/v1/ci-templates"),
        (Method::PUT, "/v1/prices/ml.p5.48xlarge"),
        (Method::PUT, "/v1/projects/current/budget"),
        (Method::PUT, "/v1/projects/current/limits"),
    ];
    let all = editors
        .map(|one| (one, &viewer))
        .into_iter()
        .chain(admins.map(|one| (one, &editor)));
    for ((method, path), key) in all {
        let (status, problem) = test
            .send(test.request(method, path, key).body("{ no JSON"))
            .await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}: {problem}");
    }
}

#[sqlx::test(migrations = false)]
async fn what_is_unknown_or_wrong_is_reported_up_to_a_number(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut fields: serde_json::Map<String, Value> = (0..1000)
        .map(|number| (format!("field_{number:04}"), json!(1)))
        .collect();
    fields.insert("name".to_owned(), json!("x"));
    let (status, answer) = test.post("/v1/runs", &Value::Object(fields)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let problem = problem(answer);
    let unknown: Vec<&str> = problem
        .errors
        .iter()
        .filter(|error| error.rule == "unknown-field")
        .map(|error| error.detail.as_str())
        .collect();
    assert_eq!(unknown.len(), 21, "{problem:?}");
    assert!(unknown[20].contains("980 more"), "{}", unknown[20]);

    let mut run = json!({"name": "x", "hardware": "none", "accelerator_count": 1});
    let hardware: Vec<Value> = (0..1000)
        .map(|number| json!({"instance_type": format!("ml.p{number}.48xlrge")}))
        .collect();
    run["claims"] = json!({"hardware": hardware});
    let (status, answer) = test.post("/v1/lint?kind=run", &run).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let lint: LintView = serde_json::from_value(answer).unwrap();
    assert_eq!(lint.findings.len(), 200);
    let last = &lint.findings[199];
    assert!(last.message.contains("more"), "{last:?}");
    assert!(!lint.passed, "what was left out counts");
}

#[sqlx::test(migrations = false)]
async fn a_regular_expression_that_would_be_huge_is_refused(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for (regex, is_good) in [
        (r"((\w{50}){8})", false),
        (r"(\w{120})", false),
        (r"tokens_per_second=([0-9.]+)", true),
        (
            r"(?i)\btrain[_/ ](?:loss|perplexity)\s*[:=]\s*([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)",
            true,
        ),
        (r"'eval_loss': ([0-9\.]+(e-[0-9]+)?),?", true),
    ] {
        let mut document = spec();
        document["workload"]["metrics"][1]["regex"] = json!(regex);
        let (_, answer) = test.post("/v1/lint", &document).await;
        let lint: LintView = serde_json::from_value(answer).unwrap();
        let mut findings = lint.findings.iter();
        let found = findings.find(|found| found.rule == "metric-regex");
        assert_eq!(found.is_none(), is_good, "{regex}: {found:?}");
    }
}

/// Nor do any number of experiments that wait for a price of their own keep another project's from
/// ending.
#[sqlx::test(migrations = false)]
async fn experiments_that_wait_for_a_price_keep_no_others_from_ending(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let other = test.other_project().await;
    let others_key = test.key(other, Role::Admin).await;
    for _ in 0..21 {
        let id = test.start(&spec()).await;
        test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
            .await;
    }
    let theirs = test
        .request(Method::POST, "/v1/experiments", &others_key)
        .json(&spec());
    let (_, theirs) = test.send(theirs).await;
    let theirs: CreatedExperiment = serde_json::from_value(theirs).unwrap();
    let cancel = test.request(
        Method::POST,
        &format!("/v1/experiments/{}/cancel", theirs.id),
        &others_key,
    );
    test.send(cancel.json(&json!({}))).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    repricer::tick(&test.app).await.unwrap();
    sqlx::query(
        "INSERT INTO prices (id, project_id, component, region, instance_type, usd, effective_from, confirmed_at,
                             source, status, note, created_at)
         VALUES ($1, $2, 'training', 'us-east-1', 'ml.p5.48xlarge', 60, $3, $3, 'test', 'negotiated', '', $3)",
    )
    .bind(bakeoff_process::ids::fresh())
    .bind(test.project.0)
    .bind(test.app.clock.now() - TimeDelta::days(1))
    .execute(&pool)
    .await
    .unwrap();
    assert_eq!(
        finalizer::tick(&test.app).await.unwrap(),
        1,
        "the other project's has ended"
    );
}

/// Prices that wait to be applied keep only those experiments from ending that they can change.
#[sqlx::test(migrations = false)]
async fn an_experiment_ends_whatever_prices_others_write(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mine = test.start(&spec()).await;
    let other = test.other_project().await;
    let waiting = async |project: Option<uuid::Uuid>, region: &str, kind: &str, day: i64| {
        sqlx::query(
            "INSERT INTO prices (id, project_id, component, region, instance_type, usd, effective_from, confirmed_at,
                                 source, status, note, created_at)
             VALUES ($1, $2, 'training', $3, $4, 60, $5, $5, 'test', $6, '', $5)",
        )
        .bind(bakeoff_process::ids::fresh())
        .bind(project)
        .bind(region)
        .bind(kind)
        .bind(test.app.clock.now() - TimeDelta::days(day))
        .bind(if project.is_some() { "negotiated" } else { "listed" })
        .execute(&pool)
        .await
        .unwrap();
    };
    let ended = async |hours: usize| {
        for _ in 0..hours * 12 {
            test.watch().await;
            while scheduler::tick(&test.app).await.unwrap() > 0 {}
            while warm_pools::tick(&test.app).await.unwrap() > 0 {}
            while ingester::tick(&test.app).await.unwrap() > 0 {}
            if finalizer::tick(&test.app).await.unwrap() > 0 {
                return true;
            }
            test.advance(TimeDelta::minutes(5)).await;
        }
        false
    };
    repricer::tick(&test.app).await.unwrap();
    waiting(Some(other.0), "us-east-1", "ml.p5.48xlarge", 1).await;
    waiting(Some(test.project.0), "eu-west-1", "ml.p5.48xlarge", 1).await;
    waiting(None, "us-east-1", "ml.g5.12xlarge", 1).await;
    assert!(ended(8).await, "prices of others are in its way");
    assert!(test.experiment(&mine).await.ended_at.is_some());
    let second = test.start(&spec()).await;
    waiting(Some(test.project.0), "us-east-1", "ml.p5.48xlarge", 2).await;
    assert!(
        !ended(4).await,
        "its own price has not been applied, and {second} has ended"
    );
    repricer::tick(&test.app).await.unwrap();
    assert!(ended(1).await);
}

#[sqlx::test(migrations = false)]
async fn times_at_the_end_of_the_calendar_are_a_mistake_of_the_sender(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (_, run) = test
        .post(
            "/v1/runs",
            &json!({"name": "x", "hardware": "none", "accelerator_count": 1}),
        )
        .await;
    let run: RunView = serde_json::from_value(run).unwrap();
    let body =
        "{\n\"log_history\":[{\"step\":-1,\"loss\":1},{\"step\":2,\"train_runtime\":1}],\"global_step\":-5}".to_owned();
    for started_at in [
        "-262143-01-01T00:00:00Z",
        "%2B262142-12-31T23:59:59Z",
        "1999-12-31T00:00:00Z",
    ] {
        let path = format!("/v1/runs/{}/metrics?started_at={started_at}", run.id);
        let (status, answer) = test
            .send(
                test.request(Method::POST, &path, &test.admin)
                    .body(body.clone()),
            )
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{started_at}: {answer}");
        let detail = problem(answer).detail;
        assert!(detail.starts_with("started_at"), "{detail}");
    }
}

#[sqlx::test(migrations = false)]
async fn a_conflict_speaks_of_what_is_there_and_not_of_constraints(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let day = json!({"effective_from": "2026-11-20T00:00:00Z"});
    assert_eq!(put_price(&test, &test.admin, &day).await.0, StatusCode::OK);
    let (status, answer) = put_price(&test, &test.admin, &day).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(!answer.to_string().contains("_key"), "{answer}");
    let detail = problem(answer).detail;
    assert!(detail.contains("price"), "{detail}");
}

pub(crate) fn signed(key: &KeyPair, change: &Value) -> Vec<u8> {
    let mut envelope = json!({
        "Type": "Notification", "MessageId": "1", "TopicArn": SNS_TOPIC, "Message": "hello",
        "Timestamp": "2026-11-20T00:00:00.000Z", "SignatureVersion": "2",
    });
    for (name, value) in change.as_object().unwrap() {
        envelope[name] = value.clone();
    }
    let fields = [
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ];
    let text: String = fields
        .iter()
        .filter_map(|name| Some(format!("{name}\n{}\n", envelope[*name].as_str()?)))
        .collect();
    envelope["Signature"] =
        json!(base64::engine::general_purpose::STANDARD.encode(key.sign(text.as_bytes()).unwrap()));
    envelope.to_string().into_bytes()
}
