//! People in a browser: a key becomes a session, which ends by itself, with its key, and by logging out; other sites'
//! pages cannot use it; and the dashboard is served beside the API, not instead of it.

use bakeoff_api::sessions::SessionView;
use bakeoff_domain::ids::ApiKeyId;
use bakeoff_process::clock::real_now;
use bakeoff_service::auth::keys::Role;
use chrono::TimeDelta;
use reqwest::header::{ACCEPT, CONTENT_SECURITY_POLICY, COOKIE, ORIGIN, SET_COOKIE};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::json;
use sqlx::PgPool;

use crate::service::security_wire::ended;
use crate::support::{TestApp, spec};

/// Logs in; the cookie as a browser sends it back.
async fn log_in(test: &TestApp, key: &str) -> (SessionView, String) {
    let url = format!("{}/v1/sessions", test.url);
    let answer = test.client.post(url).json(&json!({"api_key": key})).send();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    let line = answer.headers()[SET_COOKIE].to_str().unwrap().to_owned();
    for part in [
        "__Host-bakeoff=",
        "; Path=/",
        "; Secure",
        "; HttpOnly",
        "; SameSite=Strict",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let cookie = line.split(';').next().unwrap().to_owned();
    (answer.json().await.unwrap(), cookie)
}

fn with(test: &TestApp, method: Method, path: &str, cookie: &str) -> RequestBuilder {
    test.client
        .request(method, format!("{}{path}", test.url))
        .header(COOKIE, format!("theme=dark; {cookie}"))
}

async fn status(request: RequestBuilder) -> StatusCode {
    request.send().await.unwrap().status()
}

async fn is_logged_in(test: &TestApp, cookie: &str) -> bool {
    status(with(test, Method::GET, "/v1/sessions/current", cookie)).await == StatusCode::OK
}

#[sqlx::test(migrations = false)]
async fn a_session_may_do_what_its_key_may_do(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let viewer = test.key(test.project, Role::Viewer).await;
    let (session, cookie) = log_in(&test, &viewer).await;
    assert_eq!(
        (session.role.as_str(), session.project_id),
        ("viewer", test.project)
    );
    assert!(session.ends_at - real_now() > TimeDelta::days(6));
    let seen = with(&test, Method::GET, "/v1/experiments", &cookie);
    assert_eq!(status(seen).await, StatusCode::OK);
    let change = with(&test, Method::PUT, "/v1/projects/current/budget", &cookie);
    let change = change.json(&json!({"budget_usd": 1}));
    assert_eq!(status(change).await, StatusCode::FORBIDDEN);
    // The database has neither the key's secret nor the cookie's.
    let stored: Vec<u8> = sqlx::query_scalar("SELECT token_sha256 FROM sessions")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert!(!cookie.contains(&hex::encode(stored)));
    for wrong in ["bk_1_2", "", &viewer.replace('1', "2")] {
        let (refused, problem) = test.post("/v1/sessions", &json!({"api_key": wrong})).await;
        assert_eq!(refused, StatusCode::UNAUTHORIZED, "{problem}");
    }
    // A key in the header takes precedence over a cookie.
    let both = with(&test, Method::GET, "/v1/experiments", &cookie).bearer_auth("bk_1_2");
    assert_eq!(status(both).await, StatusCode::UNAUTHORIZED);
}

#[sqlx::test(migrations = false)]
async fn a_session_ends_by_logging_out_by_its_key_and_by_time(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (_, left) = log_in(&test, &test.admin).await;
    let (_, other) = log_in(&test, &test.admin).await;
    let out = with(&test, Method::DELETE, "/v1/sessions/current", &left).send();
    let out = out.await.unwrap();
    assert_eq!(out.status(), StatusCode::NO_CONTENT);
    assert!(
        out.headers()[SET_COOKIE]
            .to_str()
            .unwrap()
            .contains("Max-Age=0")
    );
    assert!(!is_logged_in(&test, &left).await);
    assert!(is_logged_in(&test, &other).await);

    // Nobody has used it for longer than it lives unused; or it has lived for as long as it may.
    for ended in [
        "UPDATE sessions SET created_at = created_at - interval '13 h', last_seen_at = last_seen_at - interval '13 h'",
        "UPDATE sessions SET created_at = now() - interval '8 days', ends_at = now() - interval '1 s', last_seen_at = now()",
    ] {
        let (_, cookie) = log_in(&test, &test.admin).await;
        sqlx::query(ended).execute(&pool).await.unwrap();
        assert!(!is_logged_in(&test, &cookie).await, "{ended}");
        sqlx::query("DELETE FROM sessions")
            .execute(&pool)
            .await
            .unwrap();
    }

    let editor = test.key(test.project, Role::Editor).await;
    let (session, cookie) = log_in(&test, &editor).await;
    assert!(is_logged_in(&test, &cookie).await);
    let ApiKeyId(key) = session.key_id;
    sqlx::query("UPDATE api_keys SET revoked_at = now() WHERE id = $1")
        .bind(key)
        .execute(&pool)
        .await
        .unwrap();
    assert!(!is_logged_in(&test, &cookie).await);
}

/// After logging out on a shared machine, an open page receives no more events.
#[sqlx::test(migrations = false)]
async fn a_stream_ends_when_its_session_does(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let path = format!("/v1/experiments/{id}/events");
    let (_, cookie) = log_in(&test, &test.admin).await;
    let stream = with(&test, Method::GET, &path, &cookie).header(ACCEPT, "text/event-stream");
    let mut stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    let out = with(&test, Method::DELETE, "/v1/sessions/current", &cookie);
    assert_eq!(status(out).await, StatusCode::NO_CONTENT);
    ended(&test, &id, &mut stream).await;
}

#[sqlx::test(migrations = false)]
async fn one_key_has_so_many_sessions_and_old_ones_go(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (_, first) = log_in(&test, &test.admin).await;
    for _ in 0..50 {
        log_in(&test, &test.admin).await;
    }
    assert!(!is_logged_in(&test, &first).await);
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM sessions")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(count, 50);
}

#[sqlx::test(migrations = false)]
async fn a_page_of_another_site_can_do_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (_, cookie) = log_in(&test, &test.admin).await;
    let change = || {
        with(&test, Method::PUT, "/v1/projects/current/budget", &cookie)
            .json(&json!({"budget_usd": 1}))
    };
    let own = test.url.clone();
    for (header, value, wanted) in [
        ("sec-fetch-site", "cross-site", StatusCode::FORBIDDEN),
        ("sec-fetch-site", "same-site", StatusCode::FORBIDDEN),
        (
            ORIGIN.as_str(),
            "https://elsewhere.example",
            StatusCode::FORBIDDEN,
        ),
        (ORIGIN.as_str(), "null", StatusCode::FORBIDDEN),
        ("sec-fetch-site", "same-origin", StatusCode::OK),
        (ORIGIN.as_str(), own.as_str(), StatusCode::OK),
    ] {
        let got = status(change().header(header, value)).await;
        assert_eq!(got, wanted, "{header}: {value}");
    }
    // Programs send neither header.
    assert_eq!(status(change()).await, StatusCode::OK);
}

#[sqlx::test(migrations = false)]
async fn the_dashboard_is_beside_the_api_and_not_instead_of_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let ask = |path: &str, accept: &'static str| {
        let url = format!("{}{path}", test.url);
        test.client.get(url).header(ACCEPT, accept)
    };
    for page in ["/", "/experiments/exp_1?tab=race"] {
        let answer = ask(page, "text/html,*/*").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{page}");
        let kind = answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(kind.starts_with("text/html"), "{kind}");
        if let Some(policy) = answer.headers().get(CONTENT_SECURITY_POLICY) {
            let policy = policy.to_str().unwrap();
            assert!(
                policy.contains("default-src 'self'") && !policy.contains("unsafe"),
                "{policy}"
            );
        }
    }
    for (path, accept) in [
        ("/v1/nowhere", "text/html"),
        ("/assets/gone.js", "text/html"),
        ("/assets/../Cargo.toml", "*/*"),
        ("/experiments", "application/json"),
        ("/..%2f..%2fCargo.toml", "*/*"),
    ] {
        let answer = ask(path, accept).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        assert_eq!(
            answer.headers()["content-type"],
            "application/problem+json",
            "{path}"
        );
    }
}
