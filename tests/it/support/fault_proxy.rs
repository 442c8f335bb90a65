//! What stands between the service and its region, or its database. A proxy that remembers what was
//! sent, and does to a call what a region cannot be asked to do; a line that falls silent.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bakeoff_store::Store;
use serde_json::Value;
use sqlx::{ConnectOptions, PgPool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What becomes of one call.
pub(crate) enum Act {
    Pass,
    /// Not carried out, and answered with this.
    Answer(u16, Value),
    /// Carried out, and each such text in the answer is another one.
    Replace(&'static [u8], &'static [u8]),
    /// Carried out and answered when somebody gives the word.
    Wait(Arc<Notify>),
    /// Carried out at once, and answered when somebody gives the word.
    AnswerLate(Arc<Notify>),
    /// Never answered; carried out when [`Between::deliver`] is called.
    Keep,
}

/// An operation and its body, as JSON or null.
type Rule = Box<dyn FnMut(&str, &Value) -> Act + Send>;

#[derive(Clone)]
struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// The proxy.
#[derive(Clone)]
pub(crate) struct Between {
    pub(crate) url: String,
    target: String,
    client: reqwest::Client,
    rule: Arc<Mutex<Rule>>,
    seen: Arc<Mutex<Vec<String>>>,
    kept: Arc<Mutex<Vec<Call>>>,
}

impl Between {
    pub(crate) async fn start(
        target: &str,
        rule: impl FnMut(&str, &Value) -> Act + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let between = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            target: target.to_owned(),
            client: bakeoff_process::tls::http_client().build().unwrap(),
            rule: Arc::new(Mutex::new(Box::new(rule))),
            seen: Arc::default(),
            kept: Arc::default(),
        };
        let router = Router::new().fallback(through).with_state(between.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        between
    }

    /// How often an operation was called.
    pub(crate) fn count(&self, operation: &str) -> usize {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .filter(|seen| *seen == operation)
            .count()
    }

    /// From now on another rule holds.
    pub(crate) fn follow(&self, rule: impl FnMut(&str, &Value) -> Act + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    /// Carries out what was kept; returns how many calls that were.
    pub(crate) async fn deliver(&self) -> usize {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap());
        let count = kept.len();
        for call in kept {
            self.forward(call).await;
        }
        count
    }

    async fn forward(&self, call: Call) -> (StatusCode, HeaderMap, Bytes) {
        let mut headers = call.headers;
        headers.remove(header::HOST);
        headers.remove(header::CONTENT_LENGTH);
        let request = self
            .client
            .request(call.method, format!("{}{}", self.target, call.path));
        let answer = request
            .headers(headers)
            .body(call.body)
            .send()
            .await
            .unwrap();
        let (status, mut headers) = (answer.status(), answer.headers().clone());
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::TRANSFER_ENCODING);
        (status, headers, answer.bytes().await.unwrap_or_default())
    }
}

/// The operation's name is in a header, or at the end of the path.
fn operation(headers: &HeaderMap, path: &str) -> String {
    let target = headers
        .get("x-amz-target")
        .and_then(|value| value.to_str().ok());
    let name = target
        .and_then(|target| target.rsplit('.').next())
        .or_else(|| path.rsplit('/').next());
    name.unwrap_or_default().to_owned()
}

async fn through(
    State(between): State<Between>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri
        .path_and_query()
        .map(ToString::to_string)
        .unwrap_or_default();
    let name = operation(&headers, uri.path());
    let json: Value = serde_json::from_slice(&body).unwrap_or_default();
    between.seen.lock().unwrap().push(name.clone());
    let act = (*between.rule.lock().unwrap())(&name, &json);
    let call = Call {
        method,
        path,
        headers,
        body,
    };
    match act {
        Act::Pass => between.forward(call).await.into_response(),
        Act::Answer(status, answer) => {
            let kind = [(header::CONTENT_TYPE, "application/x-amz-json-1.1")];
            let body = if answer.is_null() {
                String::new()
            } else {
                answer.to_string()
            };
            (StatusCode::from_u16(status).unwrap(), kind, body).into_response()
        }
        Act::Wait(word) => {
            word.notified().await;
            between.forward(call).await.into_response()
        }
        Act::AnswerLate(word) => {
            let answer = between.forward(call).await;
            word.notified().await;
            answer.into_response()
        }
        Act::Replace(from, to) => {
            let (status, headers, body) = between.forward(call).await;
            (status, headers, replaced(&body, from, to)).into_response()
        }
        Act::Keep => {
            between.kept.lock().unwrap().push(call);
            std::future::pending().await
        }
    }
}

fn replaced(body: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut written = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        written.extend_from_slice(&rest[..at]);
        written.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    written.extend_from_slice(rest);
    written
}

/// A line to the database, on which one statement gets lost with its connection: both stay open,
/// and nothing more is carried.
pub(crate) struct Line {
    lost: Arc<Mutex<Option<&'static str>>>,
    pub(crate) url: String,
}

impl Line {
    pub(crate) async fn start(pool: &PgPool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut url = pool.connect_options().to_url_lossy();
        let target = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
        url.set_port(Some(listener.local_addr().unwrap().port()))
            .unwrap();
        url.query_pairs_mut()
            .append_pair("application_name", "behind the line");
        let line = Self {
            lost: Arc::default(),
            url: url.to_string(),
        };
        let lost = line.lost.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(carry(from_client, to_server, lost.clone()));
                tokio::spawn(carry(from_server, to_client, Arc::default()));
            }
        });
        line
    }

    pub(crate) fn store(&self) -> Store {
        Store::connect_lazy(&self.url, 8, Some(Duration::from_secs(5))).unwrap()
    }

    /// The next statement with such a text that is prepared gets lost.
    pub(crate) fn lose(&self, text: &'static str) {
        *self.lost.lock().unwrap() = Some(text);
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.lost.lock().unwrap().is_none()
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    lost: Arc<Mutex<Option<&'static str>>>,
) {
    let mut buffer = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let is_lost = {
            let mut lost = lost.lock().unwrap();
            let has = |text: &&str| {
                buffer[..count]
                    .windows(text.len())
                    .any(|window| window == text.as_bytes())
            };
            lost.as_ref().is_some_and(has) && lost.take().is_some()
        };
        if is_lost {
            return std::future::pending().await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
