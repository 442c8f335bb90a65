//! What a stranger, a viewer or an editor must not be able to do: to the money, to the service's
//! time, and to its connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use bakeoff::auth::keys::Role;
use bakeoff::aws::sns::{Opened, Sns, SnsError};
use bakeoff::http::{self, Limits};
use bakeoff::tasks::{concluder, ingester, pools, repricer, scheduler};
use base64::Engine;
use chrono::TimeDelta;
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256, RsaKeySize, SigningKey};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{SNS_TOPIC, TestApp, spec};

/// A test waits this long for what must happen at once.
const PATIENCE: Duration = Duration::from_secs(30);

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
        let (status, problem) = put_price(&test, &test.admin, &change).await;
        assert_eq!(
            status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{change}: {problem}"
        );
        let error = &problem["errors"][0];
        assert_eq!(
            (&error["rule"], &error["pointer"]),
            (&json!("price"), &json!(pointer)),
            "{problem}"
        );
        assert!(
            error["detail"].as_str().unwrap().contains(says),
            "{problem}"
        );
        assert!(!error["fix"].as_str().unwrap().is_empty(), "{problem}");
    }
    let late = json!({"effective_from": "2026-11-19T00:00:00Z", "reason": "the contract came late", "note": "signed"});
    let (status, price) = put_price(&test, &test.admin, &late).await;
    assert_eq!(
        (status, &price["note"]),
        (
            StatusCode::OK,
            &json!("signed; back-dated: the contract came late")
        )
    );
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
    let trials = test.get(&format!("/v1/experiments/{id}/trials")).await;
    let trial = trials["items"][0]["id"].as_str().unwrap().to_owned();
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
    let (status, problem) = test.post("/v1/runs", &Value::Object(fields)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let unknown: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|error| error["rule"] == "unknown-field")
        .map(|error| error["detail"].as_str().unwrap())
        .collect();
    assert_eq!(unknown.len(), 21, "{problem}");
    assert!(unknown[20].contains("980 more"), "{}", unknown[20]);

    let mut run = json!({"name": "x", "hardware": "none", "accelerator_count": 1});
    let hardware: Vec<Value> = (0..1000)
        .map(|number| json!({"instance_type": format!("ml.p{number}.48xlrge")}))
        .collect();
    run["claims"] = json!({"hardware": hardware});
    let (status, lint) = test.post("/v1/lint?kind=run", &run).await;
    let findings = lint["findings"].as_array().unwrap();
    assert_eq!((status, findings.len()), (StatusCode::OK, 200));
    assert!(
        findings[199]["message"].as_str().unwrap().contains("more"),
        "{}",
        findings[199]
    );
    assert_eq!(lint["passed"], false, "what was left out counts");
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
        let (_, lint) = test.post("/v1/lint", &document).await;
        let found = lint["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|found| found["rule"] == "metric-regex");
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
    let theirs = test.send(theirs).await.1["id"].as_str().unwrap().to_owned();
    let cancel = test.request(
        Method::POST,
        &format!("/v1/experiments/{theirs}/cancel"),
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
    .bind(bakeoff::ids::fresh())
    .bind(test.project.0)
    .bind(test.app.clock.now() - TimeDelta::days(1))
    .execute(&pool)
    .await
    .unwrap();
    assert_eq!(
        concluder::tick(&test.app).await.unwrap(),
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
        .bind(bakeoff::ids::fresh())
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
            while pools::tick(&test.app).await.unwrap() > 0 {}
            while ingester::tick(&test.app).await.unwrap() > 0 {}
            if concluder::tick(&test.app).await.unwrap() > 0 {
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
    assert!(!test.get(&format!("/v1/experiments/{mine}")).await["ended_at"].is_null());
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
    let body =
        "{\n\"log_history\":[{\"step\":-1,\"loss\":1},{\"step\":2,\"train_runtime\":1}],\"global_step\":-5}".to_owned();
    for started_at in [
        "-262143-01-01T00:00:00Z",
        "%2B262142-12-31T23:59:59Z",
        "1999-12-31T00:00:00Z",
    ] {
        let path = format!(
            "/v1/runs/{}/metrics?started_at={started_at}",
            run["id"].as_str().unwrap()
        );
        let (status, problem) = test
            .send(
                test.request(Method::POST, &path, &test.admin)
                    .body(body.clone()),
            )
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{started_at}: {problem}");
        assert!(
            problem["detail"]
                .as_str()
                .unwrap()
                .starts_with("started_at"),
            "{problem}"
        );
    }
}

#[sqlx::test(migrations = false)]
async fn a_conflict_speaks_of_what_is_there_and_not_of_constraints(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let day = json!({"effective_from": "2026-11-20T00:00:00Z"});
    assert_eq!(put_price(&test, &test.admin, &day).await.0, StatusCode::OK);
    let (status, problem) = put_price(&test, &test.admin, &day).await;
    let detail = problem["detail"].as_str().unwrap();
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        !problem.to_string().contains("_key") && detail.contains("price"),
        "{problem}"
    );
}

/// An origin that answers as it is told to.
#[derive(Clone, Default)]
struct Origin {
    url: String,
    replies: Arc<Mutex<HashMap<String, String>>>,
    requests: Arc<Mutex<Vec<String>>>,
    was_asked: Arc<Notify>,
}

/// A reply that never comes.
const NEVER: &str = "never";

impl Origin {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            ..Self::default()
        };
        let answer = async |State(origin): State<Self>, uri: Uri| {
            origin.requests.lock().unwrap().push(uri.to_string());
            origin.was_asked.notify_one();
            let reply = origin
                .replies
                .lock()
                .unwrap()
                .get(&uri.to_string())
                .cloned()
                .unwrap_or_default();
            if reply == NEVER {
                std::future::pending::<()>().await;
            }
            reply
        };
        let router = axum::Router::new()
            .fallback(answer)
            .with_state(origin.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        origin
    }

    fn reply(&self, path: &str, body: String) {
        self.replies.lock().unwrap().insert(path.to_owned(), body);
    }

    fn asked(&self, path: &str) -> usize {
        self.requests
            .lock()
            .unwrap()
            .iter()
            .filter(|asked| *asked == path)
            .count()
    }
}

fn certificate(key: &KeyPair, name: &str, years: (i32, i32)) -> String {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
    params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
    params.self_signed(key).unwrap().pem()
}

fn signed(key: &KeyPair, change: &Value) -> Vec<u8> {
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

fn of_sns(number: u8) -> String {
    format!(
        "/SimpleNotificationService-{}.pem",
        format!("{number:02x}").repeat(16)
    )
}

#[tokio::test]
async fn a_certificate_is_believed_only_as_sns_publishes_it() {
    let origin = Origin::start().await;
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let sns = Sns::at(SNS_TOPIC, format!("{}/", origin.url));
    let open = async |path: &str| {
        let message = signed(
            &key,
            &json!({"SigningCertURL": format!("{}{path}", origin.url)}),
        );
        sns.open(&message).await
    };
    let good = certificate(&key, "sns.amazonaws.com", (2020, 2100));
    let echoed = format!("<Attributes><Token>{good}</Token></Attributes>");
    for (path, body, what) in [
        (
            "/?Action=GetEndpointAttributes".to_owned(),
            echoed.clone(),
            "the query API",
        ),
        (format!("{}?x=1", of_sns(0)), good.clone(), "a query"),
        (
            "/SimpleNotificationService-xyz.pem".to_owned(),
            good.clone(),
            "another name",
        ),
        (of_sns(1), echoed, "a certificate inside of something else"),
        (of_sns(2), format!("{good}{good}"), "two of them"),
        (
            of_sns(3),
            certificate(&key, "sns.amazonaws.com", (2020, 2021)),
            "one that has expired",
        ),
        (
            of_sns(4),
            certificate(&key, "sns.amazonaws.com", (2099, 2100)),
            "one that is not valid yet",
        ),
        (
            of_sns(5),
            certificate(&key, "evil.example", (2020, 2100)),
            "somebody else's",
        ),
    ] {
        origin.reply(&path, body);
        assert!(open(&path).await.is_err(), "{what} was believed");
    }
    origin.reply(&of_sns(6), good);
    assert_eq!(
        open(&of_sns(6)).await.unwrap(),
        Opened::Notification("hello".to_owned())
    );
    assert_eq!(
        open(&of_sns(6)).await.unwrap(),
        Opened::Notification("hello".to_owned())
    );
    assert_eq!(origin.asked(&of_sns(6)), 1, "it is kept");
    drop(open(&of_sns(5)).await);
    assert_eq!(
        (
            origin.asked(&of_sns(5)),
            origin.asked("/?Action=GetEndpointAttributes")
        ),
        (1, 0)
    );
}

/// Whoever can put a file at SNS's own address still has no certificate of Amazon's.
#[tokio::test]
async fn a_certificate_of_another_issuer_is_not_believed_where_issuers_are_named() {
    let origin = Origin::start().await;
    let (key, amazons) = (
        KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap(),
        KeyPair::generate().unwrap(),
    );
    let authority = || {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "Amazon RSA 2048 M01");
        params
    };
    let authoritys = authority().self_signed(&amazons).unwrap();
    let issuer = rcgen::Issuer::new(authority(), &amazons);
    let leaf = CertificateParams::new(vec!["sns.amazonaws.com".to_owned()]).unwrap();
    origin.reply(&of_sns(1), leaf.signed_by(&key, &issuer).unwrap().pem());
    origin.reply(
        &of_sns(2),
        certificate(&key, "sns.amazonaws.com", (2020, 2100)),
    );
    // By its name it is the same authority.
    let strangers = KeyPair::generate().unwrap();
    let stranger = rcgen::Issuer::new(authority(), &strangers);
    let forged = CertificateParams::new(vec!["sns.amazonaws.com".to_owned()]).unwrap();
    origin.reply(&of_sns(3), forged.signed_by(&key, &stranger).unwrap().pem());
    let open = async |sns: &Sns, path: &str| {
        let message = signed(
            &key,
            &json!({"SigningCertURL": format!("{}{path}", origin.url)}),
        );
        sns.open(&message).await.is_ok()
    };
    let anybody = Sns::at(SNS_TOPIC, format!("{}/", origin.url));
    let amazon = Sns::at(SNS_TOPIC, format!("{}/", origin.url))
        .trusting(&[authoritys.der().clone()])
        .unwrap();
    let mut believed = Vec::new();
    for path in [of_sns(1), of_sns(2), of_sns(3)] {
        believed.push((open(&anybody, &path).await, open(&amazon, &path).await));
    }
    assert_eq!(believed, [(true, true), (true, false), (true, false)]);
}

#[tokio::test]
async fn a_bogus_message_does_not_delay_a_genuine_one() {
    let origin = Origin::start().await;
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let sns = Sns::at(SNS_TOPIC, format!("{}/", origin.url));
    let message = |path: &str| {
        signed(
            &key,
            &json!({"SigningCertURL": format!("{}{path}", origin.url)}),
        )
    };
    origin.reply(&of_sns(1), NEVER.to_owned());
    origin.reply(
        &of_sns(2),
        certificate(&key, "sns.amazonaws.com", (2020, 2100)),
    );
    let (bogus, genuine) = (message(&of_sns(1)), message(&of_sns(2)));
    let after = async {
        origin.was_asked.notified().await;
        sns.open(&genuine).await
    };
    tokio::select! {
        bogus = sns.open(&bogus) => panic!("the bogus one was over first: {bogus:?}"),
        genuine = after => assert_eq!(genuine.unwrap(), Opened::Notification("hello".to_owned())),
    }
}

#[tokio::test]
async fn only_our_own_subscription_is_confirmed() {
    let origin = Origin::start().await;
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    origin.reply(
        &of_sns(1),
        certificate(&key, "sns.amazonaws.com", (2020, 2100)),
    );
    let sns = Sns::at(SNS_TOPIC, format!("{}/", origin.url));
    let confirm = async |query: &str| {
        let change = json!({
            "Type": "SubscriptionConfirmation", "Token": "t", "SubscribeURL": format!("{}/{query}", origin.url),
            "SigningCertURL": format!("{}{}", origin.url, of_sns(1)),
        });
        sns.open(&signed(&key, &change)).await
    };
    let other = "?Action=ConfirmSubscription&TopicArn=arn:aws:sns:us-east-1:1:evil&Token=t";
    let deletes = format!("?Action=DeleteTopic&TopicArn={SNS_TOPIC}&Token=t");
    for query in [other, &deletes, "?Action=ConfirmSubscription&Token=t"] {
        assert!(
            matches!(confirm(query).await, Err(SnsError::Address(_))),
            "{query}"
        );
        assert_eq!(origin.asked(&format!("/{query}")), 0);
    }
    let own = format!("?Action=ConfirmSubscription&TopicArn={SNS_TOPIC}&Token=t");
    assert_eq!(confirm(&own).await.unwrap(), Opened::Subscribed);
    assert_eq!(origin.asked(&format!("/{own}")), 1);
}

#[sqlx::test(migrations = false)]
async fn a_stream_ends_with_its_key_and_a_key_has_so_many(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    let path = format!("/v1/experiments/{id}/events");
    let viewer = test.key(test.project, Role::Viewer).await;
    let stream = async |key: &str| {
        let request = test
            .request(Method::GET, &path, key)
            .header("accept", "text/event-stream");
        request.send().await.unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..50 {
        let answer = stream(&viewer).await;
        assert_eq!(answer.status(), StatusCode::OK);
        streams.push(answer);
    }
    let refused = stream(&viewer).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        refused.json::<Value>().await.unwrap()["code"],
        "too_many_streams"
    );
    assert_eq!(
        stream(&test.admin).await.status(),
        StatusCode::OK,
        "they are counted by key"
    );

    let mut last = streams.pop().unwrap();
    sqlx::query("UPDATE api_keys SET revoked_at = now() WHERE role = 'viewer'")
        .execute(&pool)
        .await
        .unwrap();
    let ended = async {
        loop {
            wake(&test, &id);
            match tokio::time::timeout(Duration::from_millis(100), last.chunk()).await {
                Ok(Ok(Some(_))) | Err(_) => {}
                Ok(Ok(None) | Err(_)) => break,
            }
        }
    };
    tokio::time::timeout(PATIENCE, ended)
        .await
        .expect("the stream goes on without its key");
}

fn wake(test: &TestApp, id: &str) {
    test.app.events.wake(id.parse().unwrap());
}

/// The service behind the server that `bakeoff serve` uses, with little patience.
async fn served(test: &TestApp, limits: Limits) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let server = http::serve(
        listener,
        http::router(test.app.clone()),
        limits,
        stop.clone(),
    );
    (address, stop, tokio::spawn(server))
}

fn hasty() -> Limits {
    let short = Duration::from_millis(200);
    Limits {
        connections: 8,
        head: short,
        stall: short,
        idle: PATIENCE * 10,
    }
}

async fn sent(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Everything until the server closes, or until the text has come.
async fn heard(stream: &mut TcpStream, until: &str) -> String {
    let mut all = Vec::new();
    let reading = async {
        while until.is_empty() || !String::from_utf8_lossy(&all).contains(until) {
            match stream.read_buf(&mut all).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("the server neither answers nor hangs up");
    String::from_utf8_lossy(&all).into_owned()
}

const LIVEZ: &str = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";

#[sqlx::test(migrations = false)]
async fn connections_that_say_nothing_more_make_room_for_others(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (address, _stop, _server) = served(&test, hasty()).await;
    let mut half_open = Vec::new();
    for head in ["", "GET /livez HTTP/1.1\r\nHost: x\r\nX-A: "]
        .into_iter()
        .cycle()
        .take(8)
    {
        half_open.push(sent(address, head).await);
    }
    // All places are taken; it is answered when one of them has run out of time.
    let mut ninth = sent(address, LIVEZ).await;
    assert!(heard(&mut ninth, "}").await.starts_with("HTTP/1.1 200"));
    for stream in &mut half_open {
        assert_eq!(heard(stream, "").await, "", "it is closed");
    }
}

#[sqlx::test(migrations = false)]
async fn a_body_that_does_not_go_on_is_given_up(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (address, _stop, _server) = served(&test, hasty()).await;
    let head = format!(
        "POST /v1/lint HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 100\r\n\r\n{{",
        test.admin
    );
    let mut stream = sent(address, &head).await;
    let answer = heard(&mut stream, "}").await;
    assert!(
        answer.starts_with("HTTP/1.1 408") && answer.contains("application/problem+json"),
        "{answer}"
    );
    assert!(answer.contains("urn:bakeoff:problem:timeout"), "{answer}");
}

#[sqlx::test(migrations = false)]
async fn a_connection_may_rest_between_two_requests_and_none_keeps_the_server_from_stopping(
    pool: PgPool,
) {
    let test = TestApp::new(pool).await;
    let (address, stop, server) = served(&test, hasty()).await;
    let mut resting = sent(address, LIVEZ).await;
    assert!(heard(&mut resting, "}").await.starts_with("HTTP/1.1 200"));
    // By then a head would have been late.
    let mut late = sent(address, "GET").await;
    assert_eq!(heard(&mut late, "").await, "");
    resting.write_all(LIVEZ.as_bytes()).await.unwrap();
    assert!(heard(&mut resting, "}").await.starts_with("HTTP/1.1 200"));
    stop.cancel();
    tokio::time::timeout(PATIENCE, server)
        .await
        .expect("it does not stop")
        .unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
