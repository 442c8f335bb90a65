//! What strangers send over the wire: certificates, event streams, connections that stall.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use bakeoff_http::Limits;
use bakeoff_service::auth::keys::Role;
use bakeoff_service::aws::sns::{Opened, Sns, SnsError};
use bakeoff_service::replica::event_board::Topic;
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::service::security::signed;
use crate::support::{SNS_TOPIC, TestApp, spec};

/// A test waits this long for what must happen at once.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// The key that signs in these tests; `ring` makes none itself.
fn rsa_key() -> KeyPair {
    let pem = include_str!("../../../crates/sim/data/published-rsa-key.pem");
    KeyPair::from_pkcs8_pem_and_sign_algo(pem, &PKCS_RSA_SHA256).unwrap()
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
    let key = rsa_key();
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
    let (key, amazons) = (rsa_key(), KeyPair::generate().unwrap());
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
    let key = rsa_key();
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
    let key = rsa_key();
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
    ended(&test, &id, &mut last).await;
}

/// Wakes an experiment's stream until it ends.
pub(crate) async fn ended(test: &TestApp, id: &str, stream: &mut reqwest::Response) {
    let ended = async {
        loop {
            wake(test, id);
            match tokio::time::timeout(Duration::from_millis(100), stream.chunk()).await {
                Ok(Ok(Some(_))) | Err(_) => {}
                Ok(Ok(None) | Err(_)) => break,
            }
        }
    };
    tokio::time::timeout(PATIENCE, ended)
        .await
        .expect("the stream goes on without its key or session");
}

fn wake(test: &TestApp, id: &str) {
    test.app.events.wake(Topic::Experiment(id.parse().unwrap()));
}

/// The service behind the server that `bakeoff serve` uses, with little patience.
async fn served(test: &TestApp, limits: Limits) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let server = bakeoff_http::serve(
        listener,
        bakeoff_http::router(test.app.clone()),
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
