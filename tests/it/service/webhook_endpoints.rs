//! Webhooks that go out: signed, tried again, inspected, replayed, disabled; kept out of where they must not go; and
//! none is lost, however often the service dies.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use bakeoff_api::events::EventView;
use bakeoff_api::webhook_endpoints::{
    DeliveryView, DeliveryWithAttempts, EndpointOfWebhooks, SecretOfWebhooks, WebhookTest,
};
use bakeoff_process::clock::{real_now, real_sleep};
use bakeoff_service::auth::keys::Role;
use bakeoff_service::tasks::courier;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::TimeDelta;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use sqlx::{ConnectOptions, PgPool};

use crate::support::{TestApp, number, on_p5, problem};

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    id: String,
    sent: String,
    signatures: Vec<String>,
    body: String,
}

impl Received {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Whether one of its signatures is that of a secret, as Standard Webhooks says.
    fn is_signed_with(&self, secret: &str) -> bool {
        let key = STANDARD
            .decode(secret.strip_prefix("whsec_").unwrap())
            .unwrap();
        let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&key).unwrap();
        mac.update(format!("{}.{}.{}", self.id, self.sent, self.body).as_bytes());
        let own = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        self.signatures.contains(&own)
    }
}

/// A receiver that answers as it is told, and 204 afterwards.
#[derive(Clone, Default)]
pub(crate) struct Receiver {
    received: Arc<Mutex<Vec<Received>>>,
    answers: Arc<Mutex<Vec<u16>>>,
    /// Killed at the first request that it sends.
    sender: Arc<Mutex<Option<Child>>>,
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let is_signed = headers.contains_key("webhook-id");
    if is_signed {
        receiver.received.lock().unwrap().push(Received {
            id: header("webhook-id"),
            sent: header("webhook-timestamp"),
            signatures: header("webhook-signature")
                .split(' ')
                .map(str::to_owned)
                .collect(),
            body: String::from_utf8(body.to_vec()).unwrap(),
        });
    }
    if let Some(mut sender) = receiver.sender.lock().unwrap().take() {
        sender.kill().unwrap();
        sender.wait().unwrap();
    }
    let mut answers = receiver.answers.lock().unwrap();
    let status = if answers.is_empty() {
        204
    } else {
        answers.remove(0)
    };
    StatusCode::from_u16(status).unwrap()
}

impl Receiver {
    pub(crate) async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "http://{}/hooks?token=sesame",
            listener.local_addr().unwrap()
        );
        let router = Router::new().fallback(receive).with_state(self.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        url
    }

    pub(crate) fn answers(&self, statuses: &[u16]) {
        *self.answers.lock().unwrap() = statuses.to_vec();
    }

    pub(crate) fn taken(&self) -> Vec<Received> {
        std::mem::take(&mut self.received.lock().unwrap())
    }
}

pub(crate) async fn created(test: &TestApp, body: &Value) -> SecretOfWebhooks {
    let (status, answer) = test.post("/v1/webhook-endpoints", body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    serde_json::from_value(answer).unwrap()
}

pub(crate) async fn deliveries(
    test: &TestApp,
    own: &SecretOfWebhooks,
    filter: &str,
) -> Vec<DeliveryView> {
    let path = format!("/v1/webhook-endpoints/{}/deliveries", own.id);
    test.page(&format!("{path}{filter}")).await
}

#[sqlx::test(migrations = false)]
async fn an_event_arrives_signed_and_is_tried_again_until_it_has(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let receiver = Receiver::default();
    let url = receiver.start().await;
    let own = created(&test, &json!({"url": url, "kinds": ["experiment.*"]})).await;
    receiver.answers(&[500, 302]);
    let id = test.start(&on_p5(1)).await;
    courier::tick(&test.app).await.unwrap();
    let first = receiver.taken();
    assert_eq!(first.len(), 1, "{first:?}");
    let told = first[0].json();
    assert_eq!(
        (&told["type"], &told["data"]["experiment_id"]),
        (&json!("experiment.created"), &json!(id))
    );
    assert_eq!(told["data"]["data"]["kind"], "experiment.created");
    assert!(first[0].is_signed_with(&own.secret), "{first:?}");
    assert!((real_now().timestamp() - first[0].sent.parse::<i64>().unwrap()).abs() < 60);
    // Not at once, then after seconds, and with the same id and body; a redirect is no arrival either.
    courier::tick(&test.app).await.unwrap();
    assert!(receiver.taken().is_empty());
    for wait in [TimeDelta::seconds(6), TimeDelta::minutes(6)] {
        test.advance(wait).await;
        courier::tick(&test.app).await.unwrap();
        let again = receiver.taken();
        assert_eq!(
            (&again[0].id, &again[0].body),
            (&first[0].id, &first[0].body)
        );
    }
    test.advance(TimeDelta::days(2)).await;
    courier::tick(&test.app).await.unwrap();
    assert!(receiver.taken().is_empty());
    let delivery = &deliveries(&test, &own, "?state=delivered").await[0];
    assert_eq!(
        (delivery.attempts, &delivery.id.to_string()),
        (3, &first[0].id)
    );
    let path = format!("/v1/webhook-deliveries/{}", first[0].id);
    let seen: DeliveryWithAttempts = test.read(&path).await;
    let statuses: Vec<_> = seen.tries.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [Some(500), Some(302), Some(204)]);
    // Replayed: once more, under its old id.
    let (status, answer) = test.post(&format!("{path}/replay"), &json!({})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    courier::tick(&test.app).await.unwrap();
    let again = receiver.taken();
    assert_eq!((again.len(), &again[0].id), (1, &first[0].id));
}

#[sqlx::test(migrations = false)]
async fn an_endpoint_is_rotated_tested_disabled_and_enabled(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let receiver = Receiver::default();
    let url = receiver.start().await;
    let own = created(&test, &json!({"url": url, "severities": ["info"]})).await;
    let path = format!("/v1/webhook-endpoints/{}", own.id);
    // For a day both secrets sign.
    let (_, next) = test
        .post(
            &format!("/v1/webhook-endpoints/{}/rotate-secret", own.id),
            &json!({}),
        )
        .await;
    let next: SecretOfWebhooks = serde_json::from_value(next).unwrap();
    let tested = async || {
        let (_, answer) = test
            .post(
                &format!("/v1/webhook-endpoints/{}/test", own.id),
                &json!({}),
            )
            .await;
        let answer: WebhookTest = serde_json::from_value(answer).unwrap();
        (answer, receiver.taken())
    };
    let (answer, received) = tested().await;
    assert_eq!(answer.status, Some(204), "{answer:?}");
    assert!(received[0].is_signed_with(&own.secret) && received[0].is_signed_with(&next.secret));
    test.advance(TimeDelta::hours(25)).await;
    let (_, received) = tested().await;
    assert!(!received[0].is_signed_with(&own.secret) && received[0].is_signed_with(&next.secret));
    // Its owner wants no more.
    // Four deliveries hear of it at once.
    receiver.answers(&[410; 8]);
    for _ in 0..6 {
        test.start(&on_p5(1)).await;
    }
    courier::tick(&test.app).await.unwrap();
    let seen: EndpointOfWebhooks = test.read(&path).await;
    assert!(seen.disabled_reason.is_some_and(|why| why.contains("410")));
    assert!(
        seen.url.ends_with("/…") && !seen.url.contains("sesame"),
        "{}",
        seen.url
    );
    let pending = "SELECT count(*) FROM webhook_deliveries WHERE state = 'pending'";
    assert_eq!(number(&pool, pending).await, 0);
    // Nobody is told there any more: that is told elsewhere, once.
    let alarms: Vec<EventView> = test.page("/v1/events?alarms_only=true").await;
    let silent = alarms.iter().filter(|one| one.kind == "webhook.disabled");
    let messages: Vec<&str> = silent.map(|one| one.message.as_str()).collect();
    assert!(
        messages.len() == 1
            && messages[0].contains(&own.id.to_string())
            && messages[0].contains("410"),
        "{messages:?}"
    );
    test.start(&on_p5(1)).await;
    assert_eq!(
        number(&pool, pending).await,
        0,
        "a disabled endpoint gets nothing new"
    );
    let failed = &deliveries(&test, &own, "?state=failed").await[0];
    let replay = format!("/v1/webhook-deliveries/{}/replay", failed.id);
    assert_eq!(test.post(&replay, &json!({})).await.0, StatusCode::CONFLICT);
    let (_, enabled) = test.patch(&path, &json!({"enabled": true})).await;
    let enabled: EndpointOfWebhooks = serde_json::from_value(enabled).unwrap();
    assert_eq!(enabled.disabled_at, None);
    assert_eq!(test.post(&replay, &json!({})).await.0, StatusCode::ACCEPTED);
    // Nothing arrives for days: not a single event, nor the next.
    receiver.answers(&[503; 100]);
    for hour in 0..100 {
        if hour % 24 == 0 {
            test.start(&on_p5(1)).await;
        }
        courier::tick(&test.app).await.unwrap();
        test.advance(TimeDelta::hours(1)).await;
    }
    let seen: EndpointOfWebhooks = test.read(&path).await;
    assert!(
        seen.disabled_reason
            .is_some_and(|why| why.starts_with("nothing has arrived since"))
    );
    // Deleted: nothing is left of it but its past.
    assert_eq!(test.delete(&path).await.0, StatusCode::NO_CONTENT);
    assert_eq!(test.delete(&path).await.0, StatusCode::NOT_FOUND);
}

#[sqlx::test(migrations = false)]
async fn bad_endpoints_are_refused_and_others_are_not_seen(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for (body, pointer) in [
        (json!({"url": "https://10.0.0.1/"}), "/url"),
        (
            json!({"url": "https://169.254.169.254/latest/meta-data/"}),
            "/url",
        ),
        (json!({"url": "https://user:secret@example.com/"}), "/url"),
        (json!({"url": "ftp://example.com/"}), "/url"),
        (json!({"url": "nonsense"}), "/url"),
        (
            json!({"url": "https://example.com/", "kinds": ["experiment.ended"]}),
            "/kinds/0",
        ),
        (
            json!({"url": "https://example.com/", "colour": "red"}),
            "/colour",
        ),
    ] {
        let (status, answer) = test.post("/v1/webhook-endpoints", &body).await;
        assert!(status.is_client_error(), "{body}: {answer:#}");
        let problem = problem(answer);
        assert_eq!(problem.errors[0].pointer, pointer, "{body}: {problem:#?}");
    }
    let slack = json!({"url": "https://hooks.slack.com/services/T0/B0/secret", "form": "slack", "kinds": ["ci.decided"]});
    let own = created(&test, &slack).await;
    let path = format!("/v1/webhook-endpoints/{}", own.id);
    let shown: EndpointOfWebhooks = test.read(&path).await;
    assert_eq!(shown.url, "https://hooks.slack.com/…");
    let listed: Vec<EndpointOfWebhooks> = test.page("/v1/webhook-endpoints").await;
    assert_eq!(listed.len(), 1);
    let other = test.other_project().await;
    let stranger = test.key(other, Role::Admin).await;
    let (status, _) = test.send(test.request(Method::GET, &path, &stranger)).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let reader = test.key(test.project, Role::Viewer).await;
    let asked = test
        .request(Method::POST, "/v1/webhook-endpoints", &reader)
        .json(&slack);
    assert_eq!(test.send(asked).await.0, StatusCode::FORBIDDEN);
}

/// The program as it is run in production, ten minutes a second.
fn service(pool: &PgPool, test: &TestApp) -> Child {
    let clock = format!(
        "{},{},600",
        test.app.clock.now().to_rfc3339(),
        real_now().to_rfc3339()
    );
    Command::new(env!("CARGO_BIN_EXE_bakeoff"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--outgoing-allow",
            "127.0.0.1/32",
            "--clock",
            &clock,
        ])
        .env(
            "DATABASE_URL",
            pool.connect_options().to_url_lossy().as_str(),
        )
        .env("BAKEOFF_SECRET_KEY", "07".repeat(32))
        .env("AWS_ENDPOINT_URL", &test.region.url)
        .env("AWS_ENDPOINT_URL_S3", &test.region.s3_url)
        .env("AWS_ACCESS_KEY_ID", "simulated")
        .env("AWS_SECRET_ACCESS_KEY", "simulated")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Killed twenty times with `kill -9`, each time while a receiver holds its request: all events arrive, and those that
/// come twice have one id.
#[sqlx::test(migrations = false)]
async fn no_event_is_lost_when_the_service_is_killed(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let receiver = Receiver::default();
    let url = receiver.start().await;
    created(&test, &json!({"url": url, "kinds": ["experiment.created"]})).await;
    for _ in 0..24 {
        test.start(&on_p5(1)).await;
    }
    for _ in 0..20 {
        *receiver.sender.lock().unwrap() = Some(service(&pool, &test));
        for _ in 0..1200 {
            if receiver.sender.lock().unwrap().is_none() {
                break;
            }
            real_sleep(Duration::from_millis(50)).await;
        }
        assert!(
            receiver.sender.lock().unwrap().is_none(),
            "nothing was sent for a minute"
        );
        test.start(&on_p5(1)).await;
    }
    let mut last = service(&pool, &test);
    let left = "SELECT count(*) FROM webhook_deliveries WHERE state <> 'delivered'";
    for _ in 0..1200 {
        if number(&pool, left).await == 0 {
            break;
        }
        real_sleep(Duration::from_millis(50)).await;
    }
    last.kill().unwrap();
    last.wait().unwrap();
    assert_eq!(number(&pool, left).await, 0);
    let mut ids: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    let received = receiver.taken();
    for one in &received {
        let event = one.json()["data"]["id"].as_i64().unwrap();
        ids.entry(event).or_default().insert(one.id.clone());
    }
    assert_eq!(ids.len(), 44, "{} requests", received.len());
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    assert!(
        received.len() > 44,
        "nothing came twice: nothing was killed in time"
    );
    assert_eq!(
        number(&pool, "SELECT count(*) FROM webhook_deliveries").await,
        44
    );
}
