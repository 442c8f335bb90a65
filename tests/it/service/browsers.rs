//! What browsers need of HTTP: compressed answers, pages of other origins only where that is allowed, and the version.

use std::sync::Arc;

use bakeoff_api::operations::Version;
use bakeoff_service::app::{App, Settings};
use flate2::read::GzDecoder;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, ORIGIN, VARY};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, listening, spec};

const PORTAL: &str = "https://portal.example.com";

#[sqlx::test(migrations = false)]
async fn answers_are_compressed_for_whoever_can_read_them(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let path = format!("/v1/experiments/{id}/trials");
    let plain = test
        .request(Method::GET, &path, &test.admin)
        .send()
        .await
        .unwrap();
    assert!(!plain.headers().contains_key(CONTENT_ENCODING));
    let size = plain.bytes().await.unwrap().len();
    for coding in ["gzip", "br"] {
        let asked = test
            .request(Method::GET, &path, &test.admin)
            .header(ACCEPT_ENCODING, coding);
        let answer = asked.send().await.unwrap();
        assert_eq!(answer.headers()[CONTENT_ENCODING], coding);
        assert!(answer.headers().contains_key(VARY) && answer.headers().contains_key("etag"));
        let sent = answer.bytes().await.unwrap().len();
        assert!(sent * 3 < size, "{coding}: {sent} of {size} bytes");
    }
    // An error, which is completed on its way out, is whole, too.
    let asked = test.request(
        Method::GET,
        "/v1/experiments?sate=x&page_size=0",
        &test.admin,
    );
    let refused = asked.header(ACCEPT_ENCODING, "gzip").send().await.unwrap();
    assert_eq!(refused.headers()[CONTENT_ENCODING], "gzip");
    let sent = refused.bytes().await.unwrap();
    let problem: Value = serde_json::from_reader(GzDecoder::new(&*sent)).unwrap();
    assert!(problem["request_id"].is_string(), "{problem}");
    // A stream is sent as it comes.
    let asked = test
        .request(Method::GET, "/v1/events", &test.admin)
        .header(ACCEPT_ENCODING, "gzip");
    let stream = asked
        .header("accept", "text/event-stream")
        .send()
        .await
        .unwrap();
    assert!(!stream.headers().contains_key(CONTENT_ENCODING));
}

#[sqlx::test(migrations = false)]
async fn pages_of_other_origins_are_let_in_by_name_only(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let settings = Settings {
        web_origins: vec![PORTAL.to_owned()],
        ..(*test.app.settings).clone()
    };
    let open = App {
        settings: Arc::new(settings),
        ..test.app.clone()
    };
    let open = listening(&open).await;
    let ask = |url: &str, origin: &str| {
        let url = format!("{url}/v1/projects/current");
        test.client
            .get(url)
            .bearer_auth(&test.admin)
            .header(ORIGIN, origin)
            .send()
    };
    let allowed = "access-control-allow-origin";
    assert_eq!(ask(&open, PORTAL).await.unwrap().headers()[allowed], PORTAL);
    for (url, origin) in [(&open, "https://evil.example.com"), (&test.url, PORTAL)] {
        let answer = ask(url, origin).await.unwrap();
        assert!(!answer.headers().contains_key(allowed), "{origin}");
    }
    let preflight = test
        .client
        .request(Method::OPTIONS, format!("{open}/v1/experiments"))
        .header(ORIGIN, PORTAL)
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,idempotency-key",
        );
    let preflight = preflight.send().await.unwrap();
    assert_eq!(preflight.status(), StatusCode::OK);
    assert!(
        !preflight
            .headers()
            .contains_key("access-control-allow-credentials")
    );
    // What changes something is refused from a page that is not named.
    let post = |origin: &str| {
        let url = format!("{open}/v1/lint");
        let asked = test.client.post(url).bearer_auth(&test.admin);
        asked
            .header("sec-fetch-site", "cross-site")
            .header(ORIGIN, origin)
            .json(&json!({}))
            .send()
    };
    assert_eq!(
        post("https://evil.example.com").await.unwrap().status(),
        StatusCode::FORBIDDEN
    );
    assert_ne!(post(PORTAL).await.unwrap().status(), StatusCode::FORBIDDEN);
}

#[sqlx::test(migrations = false)]
async fn the_version_says_which_time_it_is_for_the_service(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let answer = test
        .client
        .get(format!("{}/v1/version", test.url))
        .send()
        .await
        .unwrap();
    let version: Version = answer.json().await.unwrap();
    assert_eq!(version.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(version.now, test.app.clock.now());
    assert_eq!(version.regions, ["us-east-1"]);
}
