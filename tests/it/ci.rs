//! The CI webhook: signed, counted once, checked before it is stored.

use bakeoff::auth::keys::Role;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::Sha256;
use sqlx::PgPool;

use crate::support::{TestApp, spec};

fn sign(secret: &str, body: &str) -> String {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    format!("sha256={}", hex::encode(mac.finalize().into_bytes()))
}

async fn template(test: &TestApp) -> (String, String) {
    let (status, made) = test
        .post(
            "/v1/ci-templates",
            &json!({"name": "nightly", "spec": spec()}),
        )
        .await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    (
        made["id"].as_str().unwrap().to_owned(),
        made["secret"].as_str().unwrap().to_owned(),
    )
}

async fn deliver(
    test: &TestApp,
    template: &str,
    signature: &str,
    body: &str,
) -> (StatusCode, Value) {
    let request = bakeoff::tls::http_client()
        .build()
        .unwrap()
        .post(format!("{}/v1/webhooks/ci", test.url))
        .header("x-bakeoff-template", template)
        .header("x-bakeoff-signature-256", signature)
        .body(body.to_owned());
    test.send(request).await
}

#[sqlx::test(migrations = false)]
async fn a_delivery_starts_one_experiment_however_often_it_comes(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (id, secret) = template(&test).await;
    let body = r#"{"delivery_id": "d-1", "commit": "4f2a9c1d7e55", "branch": "main"}"#;
    let signature = sign(&secret, body);
    let (one, two) = tokio::join!(
        deliver(&test, &id, &signature, body),
        deliver(&test, &id, &signature, body)
    );
    let three = deliver(&test, &id, &signature, body).await;
    assert_eq!(
        (one.0, two.0, three.0),
        (
            StatusCode::ACCEPTED,
            StatusCode::ACCEPTED,
            StatusCode::ACCEPTED
        )
    );
    assert_eq!(
        (&one.1["experiment_id"], &three.1["duplicate"]),
        (&two.1["experiment_id"], &json!(true))
    );
    let all = test.get("/v1/experiments").await;
    assert_eq!(all["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        all["items"][0]["spec"]["workload"]["code_version"],
        "4f2a9c1d7e55"
    );
    let next = body.replace("d-1", "d-2");
    assert_eq!(
        deliver(&test, &id, &signature, &next).await.0,
        StatusCode::UNAUTHORIZED,
        "the id is under the signature"
    );
    assert_eq!(
        deliver(&test, &id, &sign(&secret, &next), &next).await.1["duplicate"],
        false
    );
}

#[sqlx::test(migrations = false)]
async fn a_body_that_was_changed_or_is_unsigned_starts_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (id, secret) = template(&test).await;
    let signature = sign(&secret, r#"{"commit": "a"}"#);
    for (template, signature, body) in [
        (id.as_str(), signature.as_str(), r#"{"commit": "b"}"#),
        (id.as_str(), "sha256=00", r#"{"commit": "a"}"#),
        (id.as_str(), "", r#"{"commit": "a"}"#),
        (
            "tpl_00000000000000000000000000000000",
            signature.as_str(),
            r#"{"commit": "a"}"#,
        ),
    ] {
        let (status, _) = deliver(&test, template, signature, body).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(test.get("/v1/experiments").await["items"], json!([]));
}

#[sqlx::test(migrations = false)]
async fn a_template_that_could_not_run_is_not_stored(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut broken = spec();
    broken["budget_usd"] = json!(0);
    let (status, problem) = test
        .post(
            "/v1/ci-templates",
            &json!({"name": "nightly", "spec": broken}),
        )
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["errors"][0]["pointer"], "/spec/budget_usd");
    let editor = test.key(test.project, Role::Editor).await;
    let request = test
        .request(Method::POST, "/v1/ci-templates", &editor)
        .json(&json!({"name": "n", "spec": spec()}));
    assert_eq!(test.send(request).await.0, StatusCode::FORBIDDEN);
}
