//! API keys over the API: made, listed, replaced and revoked by admins; and links that log in once.

use std::process::Command;

use bakeoff_api::keys::{CreatedKey, KeyView, Whoami};
use bakeoff_api::sessions::LoginLink;
use bakeoff_service::auth::keys::Role;
use reqwest::header::{CACHE_CONTROL, COOKIE, SET_COOKIE};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, problem};

async fn made(test: &TestApp, name: &str, role: &str) -> CreatedKey {
    let (status, answer) = test
        .post("/v1/keys", &json!({"name": name, "role": role}))
        .await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    serde_json::from_value(answer).unwrap()
}

/// The key that is made in place of another one.
async fn successor(test: &TestApp, path: &str, how: &Value) -> CreatedKey {
    let (status, answer) = test.post(path, how).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    serde_json::from_value(answer).unwrap()
}

async fn keys(test: &TestApp) -> Vec<KeyView> {
    test.page("/v1/keys").await
}

/// What the API says to a key that asks who it is. Keys are remembered for a second.
async fn status_of(test: &TestApp, key: &str) -> StatusCode {
    let mut status = StatusCode::OK;
    for _ in 0..20 {
        status = test
            .send(test.request(Method::GET, "/v1/whoami", key))
            .await
            .0;
        if status != StatusCode::OK {
            break;
        }
        bakeoff_process::clock::real_sleep(std::time::Duration::from_millis(100)).await;
    }
    status
}

#[sqlx::test(migrations = false)]
async fn an_admin_makes_keys_that_are_shown_once(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let new = made(&test, " notebook of Ada ", "editor").await;
    assert_eq!(
        (new.key.name.as_str(), new.key.role.as_str()),
        ("notebook of Ada", "editor")
    );
    let who: Whoami = {
        let asked = test.request(Method::GET, "/v1/whoami", &new.api_key);
        serde_json::from_value(test.send(asked).await.1).unwrap()
    };
    assert_eq!((who.key.id, who.project_id), (new.key.id, test.project));
    let listed = test.get("/v1/keys").await.to_string();
    let secret = new.api_key.rsplit('_').next().unwrap();
    assert!(
        listed.contains("notebook of Ada") && !listed.contains(secret),
        "{listed}"
    );
    let refused = test
        .post(
            "/v1/keys",
            &json!({"name": "", "role": "viewer", "expires_in_days": 0}),
        )
        .await;
    assert_eq!(refused.0, StatusCode::UNPROCESSABLE_ENTITY);
    let errors = problem(refused.1).errors.into_iter();
    let pointers: Vec<String> = errors.map(|one| one.pointer).collect();
    assert_eq!(pointers, ["/name", "/expires_in_days"]);
}

#[sqlx::test(migrations = false)]
async fn only_admins_see_and_make_keys_and_only_of_their_project(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let editor = test.key(test.project, Role::Editor).await;
    for (method, path) in [
        (Method::GET, "/v1/keys".to_owned()),
        (Method::POST, "/v1/keys".to_owned()),
        (
            Method::DELETE,
            format!("/v1/keys/{}", keys(&test).await[0].id),
        ),
    ] {
        let asked = test
            .request(method, &path, &editor)
            .json(&json!({"name": "x", "role": "admin"}));
        assert_eq!(test.send(asked).await.0, StatusCode::FORBIDDEN, "{path}");
    }
    let stranger = test.key(test.other_project().await, Role::Admin).await;
    let own = keys(&test).await[0].id;
    let asked = test.request(Method::DELETE, &format!("/v1/keys/{own}"), &stranger);
    assert_eq!(test.send(asked).await.0, StatusCode::NOT_FOUND);
}

#[sqlx::test(migrations = false)]
async fn a_revoked_key_is_refused_and_the_last_admins_is_kept(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let new = made(&test, "gone soon", "viewer").await;
    let (status, revoked) = test.delete(&format!("/v1/keys/{}", new.key.id)).await;
    assert_eq!(status, StatusCode::OK);
    let revoked: KeyView = serde_json::from_value(revoked).unwrap();
    assert!(revoked.revoked_at.is_some());
    assert_eq!(
        status_of(&test, &new.api_key).await,
        StatusCode::UNAUTHORIZED
    );
    let own = keys(&test)
        .await
        .into_iter()
        .find(|key| key.role == "admin")
        .unwrap()
        .id;
    let (status, answer) = test.delete(&format!("/v1/keys/{own}")).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "last_admin_key")
    );
    // One that is being replaced is no admin to be left with.
    let rotated = made(&test, "third", "admin").await;
    let path = format!("/v1/keys/{}/rotate", rotated.key.id);
    let fresh = successor(&test, &path, &json!({"overlap_hours": 1})).await;
    test.delete(&format!("/v1/keys/{}", fresh.key.id)).await;
    let (status, _) = test.delete(&format!("/v1/keys/{own}")).await;
    assert_eq!(status, StatusCode::CONFLICT);
    test.delete(&format!("/v1/keys/{}", rotated.key.id)).await;
    // Two admins who revoke each other's key at once leave one.
    let second = made(&test, "second", "admin").await;
    let (first_path, path) = (
        format!("/v1/keys/{}", second.key.id),
        format!("/v1/keys/{own}"),
    );
    let one = test.delete(&first_path);
    let other = test.send(test.request(Method::DELETE, &path, &second.api_key));
    tokio::join!(one, other);
    let living = keys(&test)
        .await
        .into_iter()
        .filter(|key| key.role == "admin" && key.revoked_at.is_none());
    assert_eq!(living.count(), 1);
}

#[sqlx::test(migrations = false)]
async fn a_key_is_replaced_by_one_of_its_name_and_role(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let old = made(&test, "ci", "editor").await;
    let path = format!("/v1/keys/{}/rotate", old.key.id);
    let newer = successor(&test, &path, &json!({"overlap_hours": 2})).await;
    assert_eq!(
        (newer.key.name.as_str(), newer.key.role.as_str()),
        ("ci", "editor")
    );
    let both_live = test
        .send(test.request(Method::GET, "/v1/whoami", &old.api_key))
        .await;
    assert_eq!(both_live.0, StatusCode::OK);
    let who: Whoami = serde_json::from_value(both_live.1).unwrap();
    assert!(who.key.expires_at.is_some());
    // It is replaced once: whoever has lost the new one replaces that one.
    let (status, answer) = test.post(&path, &json!({})).await;
    let refused = problem(answer);
    assert_eq!(
        (status, refused.code.as_str()),
        (StatusCode::CONFLICT, "key_is_replaced")
    );
    let id = newer.key.id.to_string();
    assert!(refused.detail.contains(&id), "{refused:?}");
    let newest = successor(&test, &format!("/v1/keys/{id}/rotate"), &json!({})).await;
    assert!(
        newest.key.expires_at.is_none(),
        "its life is not the overlap's: {newest:?}"
    );
    let lost = status_of(&test, &newer.api_key).await;
    assert_eq!(lost, StatusCode::UNAUTHORIZED);
    test.delete(&format!("/v1/keys/{}", old.key.id)).await;
    let (status, answer) = test.post(&path, &json!({})).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "key_is_over")
    );
}

/// Of two that replace a key at once, one has its successor, and there is no third key that nobody knows.
#[sqlx::test(migrations = false)]
async fn a_key_that_is_replaced_twice_at_once_has_one_successor(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let old = made(&test, "ci", "editor").await;
    let path = format!("/v1/keys/{}/rotate", old.key.id);
    let how = json!({});
    let (one, other) = tokio::join!(test.post(&path, &how), test.post(&path, &how));
    let mut outcomes = [one.0, other.0];
    outcomes.sort();
    assert_eq!(outcomes, [StatusCode::CREATED, StatusCode::CONFLICT]);
    let all = keys(&test).await;
    let living = all
        .iter()
        .filter(|key| key.name == "ci" && key.revoked_at.is_none());
    assert_eq!(living.count(), 1);
}

/// `bakeoff keys` as it is used away from the service's host.
async fn keys_command(test: &TestApp, arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bakeoff"));
    command
        .arg("keys")
        .args(arguments)
        .args(["--url", &test.url, "--api-key", &test.admin]);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let [said, told] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), said, told)
}

#[sqlx::test(migrations = false)]
async fn an_admin_grants_and_takes_access_without_the_host(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (done, key, told) =
        keys_command(&test, &["create", "--role", "editor", "--name", "ci"]).await;
    assert!(done && told.contains("shown only once"), "{told}");
    let key = key.trim();
    let asked = test.request(Method::GET, "/v1/whoami", key);
    let who: Whoami = serde_json::from_value(test.send(asked).await.1).unwrap();
    assert_eq!(
        (who.key.name.as_str(), who.key.role.as_str()),
        ("ci", "editor")
    );
    let id = who.key.id.to_string();

    let (done, fresh, told) = keys_command(&test, &["rotate", &id]).await;
    assert!(
        done && told.contains(&format!("replaces {id}, which is revoked")),
        "{told}"
    );
    assert_eq!(status_of(&test, key).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status_of(&test, fresh.trim()).await, StatusCode::OK);

    let (_, listed, _) = keys_command(&test, &["list", "--output", "csv"]).await;
    let own = listed.lines().find(|line| line.starts_with(&id)).unwrap();
    assert!(own.contains("ci") && own.contains("revoked"), "{listed}");
    assert!(listed.starts_with("id,role,name,created,state"), "{listed}");
    let (done, told, _) = keys_command(&test, &["revoke", &id]).await;
    assert!(done && told.contains("was revoked at"), "{told}");
    // The last admin's key stays, and what is for the host is said.
    let own = keys(&test)
        .await
        .into_iter()
        .find(|key| key.role == "admin")
        .unwrap();
    let (done, _, told) = keys_command(&test, &["revoke", &own.id.to_string()]).await;
    assert!(!done && told.contains("last valid key"), "{told}");
    let (done, _, told) = keys_command(&test, &["create", "--project", "other"]).await;
    assert!(
        !done && told.contains("the project of your own key"),
        "{told}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_login_link_logs_in_once(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let viewer = test.key(test.project, Role::Viewer).await;
    let asked = test
        .request(Method::POST, "/v1/login-links", &viewer)
        .send()
        .await
        .unwrap();
    assert_eq!(asked.headers()[CACHE_CONTROL], "no-store");
    let link: LoginLink = asked.json().await.unwrap();
    let token = link.path.strip_prefix("/#login=").unwrap().to_owned();
    let log_in = || {
        let url = format!("{}/v1/sessions", test.url);
        test.client
            .post(url)
            .json(&json!({"login_token": token}))
            .send()
    };
    let first = log_in().await.unwrap();
    assert_eq!(first.status(), StatusCode::CREATED);
    let cookie = first.headers()[SET_COOKIE]
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let who = test
        .client
        .get(format!("{}/v1/whoami", test.url))
        .header(COOKIE, &cookie);
    let who: Whoami = who.send().await.unwrap().json().await.unwrap();
    assert_eq!(who.key.role, "viewer");
    // A session makes no other one: it would outlive its seven days.
    let again = test.client.post(format!("{}/v1/login-links", test.url));
    let again = again.header(COOKIE, &cookie).send().await.unwrap();
    assert_eq!(again.status(), StatusCode::FORBIDDEN);
    assert_eq!(log_in().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    // One that is too old, too.
    let asked = test
        .request(Method::POST, "/v1/login-links", &viewer)
        .send()
        .await
        .unwrap();
    let old: LoginLink = asked.json().await.unwrap();
    sqlx::query("UPDATE login_links SET ends_at = now() - interval '1 minute'")
        .execute(&pool)
        .await
        .unwrap();
    let token = old.path.strip_prefix("/#login=").unwrap();
    let url = format!("{}/v1/sessions", test.url);
    let late = test
        .client
        .post(url)
        .json(&json!({"login_token": token}))
        .send()
        .await
        .unwrap();
    assert_eq!(late.status(), StatusCode::UNAUTHORIZED);
}
