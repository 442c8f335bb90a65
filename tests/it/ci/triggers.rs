//! CI: templates with places for the commit, and webhooks as CI, GitHub and GitLab send them: signed, counted once,
//! checked before anything is stored.

use bakeoff_api::ci::{CiSecret, CiStarted, CiTemplate};
use bakeoff_api::experiments::ExperimentSummary;
use bakeoff_api::page::Page;
use bakeoff_process::clock::real_now;
use bakeoff_service::auth::keys::Role;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::TimeDelta;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sha2::Sha256;
use sqlx::PgPool;

use crate::support::{TestApp, problem, spec};

const COMMIT: &str = "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60";
pub(crate) const REPOSITORY: &str = "111122223333.dkr.ecr.us-east-1.amazonaws.com/legal-lora";

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).unwrap();
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

fn sign(secret: &str, body: &str) -> String {
    format!(
        "sha256={}",
        hex::encode(hmac(secret.as_bytes(), body.as_bytes()))
    )
}

/// One whose image is the commit's.
fn template() -> Value {
    let mut spec = spec();
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    json!({"name": "nightly", "spec": spec, "settings": {"branches": ["main", "master", "release/*"], "pull_requests": true}})
}

pub(crate) async fn created(test: &TestApp, template: &Value) -> CiSecret {
    let (status, made) = test.post("/v1/ci-templates", template).await;
    assert_eq!(status, StatusCode::CREATED, "{made:#}");
    serde_json::from_value(made).unwrap()
}

#[sqlx::test(migrations = false)]
async fn the_example_is_a_template(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let example: Value =
        serde_json::from_str(include_str!("../../../examples/ci/legal-g5.json")).unwrap();
    let own = created(&test, &example).await;
    let (status, answer) =
        trigger(&test, &own, &json!({"delivery_id": "1", "commit": COMMIT})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
}

/// The pointers of what is wrong with a template.
async fn wrong(test: &TestApp, template: &Value) -> Vec<String> {
    let (status, answer) = test.post("/v1/ci-templates", template).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    pointers(answer)
}

/// Where a refused request is wrong.
pub(crate) fn pointers(answer: Value) -> Vec<String> {
    let errors = problem(answer).errors.into_iter();
    errors.map(|one| one.pointer).collect()
}

/// The answer to a delivery.
pub(crate) fn led_to(answer: &Value) -> CiStarted {
    serde_json::from_value(answer.clone()).unwrap_or_else(|error| panic!("{error}: {answer:#}"))
}

/// The run that a delivery has started or joined.
pub(crate) fn run_of(answer: &Value) -> String {
    led_to(answer).run_id.unwrap().to_string()
}

/// Sends a body with headers, without a key.
pub(crate) async fn send(
    test: &TestApp,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (StatusCode, Value) {
    let client = bakeoff_process::tls::http_client().build().unwrap();
    let request = client
        .post(format!("{}{path}", test.url))
        .body(body.to_owned());
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    test.send(request).await
}

async fn deliver(
    test: &TestApp,
    template: &str,
    signature: &str,
    body: &str,
) -> (StatusCode, Value) {
    let headers = [
        ("x-bakeoff-template", template),
        ("x-bakeoff-signature-256", signature),
    ];
    send(test, "/v1/webhooks/ci", &headers, body).await
}

/// A trigger in our own form, signed.
pub(crate) async fn trigger(test: &TestApp, own: &CiSecret, body: &Value) -> (StatusCode, Value) {
    let body = body.to_string();
    deliver(test, &own.id.to_string(), &sign(&own.secret, &body), &body).await
}

pub(crate) async fn from_github(
    test: &TestApp,
    own: &CiSecret,
    event: &str,
    body: &str,
) -> (StatusCode, Value) {
    let signature = sign(&own.secret, body);
    let headers = [
        ("x-github-event", event),
        ("x-hub-signature-256", &signature),
        ("content-type", "application/json"),
    ];
    send(test, &own.github_path, &headers, body).await
}

async fn experiments(test: &TestApp) -> Vec<ExperimentSummary> {
    test.page("/v1/experiments").await
}

#[sqlx::test(migrations = false)]
async fn a_delivery_starts_one_experiment_however_often_it_comes(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let id = own.id.to_string();
    let body = json!({"delivery_id": "d-1", "commit": COMMIT, "branch": "main"}).to_string();
    let signature = sign(&own.secret, &body);
    let (one, two) = tokio::join!(
        deliver(&test, &id, &signature, &body),
        deliver(&test, &id, &signature, &body)
    );
    let three = deliver(&test, &id, &signature, &body).await;
    let statuses = [one.0, two.0, three.0];
    assert_eq!(statuses, [StatusCode::ACCEPTED; 3], "{one:?}");
    let [one, two, three] = [&one.1, &two.1, &three.1].map(led_to);
    assert_eq!(
        (one.experiment_id.unwrap(), three.duplicate),
        (two.experiment_id.unwrap(), true)
    );
    let all = experiments(&test).await;
    assert_eq!(all.len(), 1);
    let started = test.experiment(&all[0].id.to_string()).await;
    assert_eq!(started.spec.workload.unwrap().code_version, COMMIT);
    let next = body.replace("d-1", "d-2");
    assert_eq!(
        deliver(&test, &id, &signature, &next).await.0,
        StatusCode::UNAUTHORIZED,
        "the id is under the signature"
    );
    // Under another id it is another delivery of the same commit, which has its run.
    let (_, next) = deliver(&test, &id, &sign(&own.secret, &next), &next).await;
    let next = led_to(&next);
    assert_eq!(
        (next.duplicate, next.run_id.unwrap()),
        (true, one.run_id.unwrap())
    );
}

#[sqlx::test(migrations = false)]
async fn what_a_template_does_not_open_stays_closed(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let closed = json!({"delivery_id": "1", "commit": COMMIT, "image": format!("{REPOSITORY}@sha256:{}", "ab".repeat(32)),
        "source_s3_uri": "s3://b/s.tar.gz", "hyperparameters": {"learning_rate": "1"}});
    let (status, answer) = trigger(&test, &own, &closed).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        pointers(answer),
        ["/image", "/source_s3_uri", "/hyperparameters/learning_rate"]
    );
    // What may be of another commit, or comes to a shell, is refused.
    let mut open = template();
    open["name"] = json!("open");
    open["spec"]["workload"]["image"] = json!("${ci.image}");
    open["spec"]["workload"]["hyperparameters"] = json!({"branch": "${ci.branch}"});
    let own = created(&test, &open).await;
    let odd = json!({"delivery_id": "1", "commit": "main", "branch": "$(rm -rf /)", "image": format!("{REPOSITORY}:latest")});
    let (_, answer) = trigger(&test, &own, &odd).await;
    assert_eq!(pointers(answer), ["/commit", "/branch", "/image"]);
    let without = json!({"delivery_id": "1", "commit": COMMIT, "branch": "main"});
    let (_, answer) = trigger(&test, &own, &without).await;
    assert_eq!(pointers(answer), ["/image"]);
    let unknown =
        json!({"delivery_id": "1", "commit": COMMIT, "role_arn": "arn:aws:iam::1:role/admin"});
    let (status, answer) = trigger(&test, &own, &unknown).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(pointers(answer), ["/role_arn"]);
    assert_eq!(experiments(&test).await.len(), 0);
}

#[sqlx::test(migrations = false)]
async fn a_body_that_was_changed_or_is_unsigned_starts_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let id = own.id.to_string();
    let signature = sign(&own.secret, r#"{"commit": "a"}"#);
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
    assert_eq!(experiments(&test).await.len(), 0);
}

#[sqlx::test(migrations = false)]
async fn a_template_that_could_not_run_or_runs_the_same_code_is_not_stored(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let with = |pointer: &str, value: Value| {
        let mut changed = template();
        *changed.pointer_mut(pointer).unwrap() = value;
        changed
    };
    assert_eq!(
        wrong(&test, &with("/spec/budget_usd", json!(0))).await,
        ["/spec/budget_usd"]
    );
    // The commit in a name alone is a label.
    let mut label = with("/spec/workload/image", json!(format!("{REPOSITORY}:1.0")));
    label["spec"]["name"] = json!("of ${ci.commit}");
    label["spec"]["workload"]["hyperparameters"] = json!({"branch": "${ci.branch}"});
    assert_eq!(wrong(&test, &label).await, ["/spec/workload/image"]);
    // In one candidate of two, the other runs what it always did.
    let mut half = with("/spec/workload/image", json!(format!("{REPOSITORY}:1.0")));
    half["spec"]["candidates"][0]["profile"]["environment"] = json!({"SHA": "${ci.commit}"});
    assert_eq!(wrong(&test, &half).await, ["/spec/workload/image"]);
    let unused = with("/settings", json!({"hyperparameters": {"lr": "1"}}));
    assert_eq!(
        wrong(&test, &unused).await,
        ["/settings/hyperparameters/lr"]
    );
    let role = with(
        "/spec/workload/role_arn",
        json!("arn:aws:iam::111122223333:role/${ci.branch}"),
    );
    assert_eq!(wrong(&test, &role).await, ["/spec/workload/role_arn"]);
    let unknown = with(
        "/spec/workload/image",
        json!(format!("{REPOSITORY}:${{ci.comit}}")),
    );
    let pointers = wrong(&test, &unknown).await;
    assert_eq!(pointers, ["/spec/workload/image", "/spec/workload/image"]);
    let editor = test.key(test.project, Role::Editor).await;
    let request = test
        .request(Method::POST, "/v1/ci-templates", &editor)
        .json(&template());
    assert_eq!(test.send(request).await.0, StatusCode::FORBIDDEN);
}

/// Deliveries as published, and what each leads to.
fn published(text: &str) -> Vec<(String, Value)> {
    let all: Vec<Value> = serde_json::from_str(text).unwrap();
    let one = |one: Value| {
        (
            one["event"].as_str().unwrap().to_owned(),
            one["body"].clone(),
        )
    };
    all.into_iter().map(one).collect()
}

/// What an answer says: the commit that it started, or why nothing.
async fn outcome(test: &TestApp, (status, answer): (StatusCode, Value)) -> String {
    let said = led_to(&answer);
    if let Some(why) = said.ignored {
        assert_eq!(status, StatusCode::OK);
        return why;
    }
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    let id = said.experiment_id.unwrap().to_string();
    let image = test.experiment(&id).await.spec.workload.unwrap().image;
    image.rsplit_once(':').unwrap().1.to_owned()
}

#[sqlx::test(migrations = false)]
async fn deliveries_of_github_are_taken_as_published(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    assert_eq!(own.github_path, format!("/v1/webhooks/github/{}", own.id));
    let mut outcomes = Vec::new();
    for (event, body) in published(include_str!("../../ci/github.json")) {
        let answer = from_github(&test, &own, &event, &body.to_string()).await;
        let action = body["action"]
            .as_str()
            .or(body["ref"].as_str())
            .unwrap_or_default();
        outcomes.push(format!(
            "{event} {action}: {}",
            outcome(&test, answer).await
        ));
    }
    insta::assert_snapshot!(outcomes.join("\n"), @r"
    ping : ping: the webhook works
    push refs/tags/simple-tag: this template does not take refs/tags/simple-tag
    push refs/tags/simple-tag: refs/tags/simple-tag was deleted
    push refs/heads/master: 6113728f27ae82c7b1a177c8d03f9e96e0adf246
    pull_request opened: ec26c3e57ca3a959ca5aad62de7213c562f8c821
    pull_request closed: closed changes no code
    pull_request labeled: labeled changes no code
    pull_request ready_for_review: ec26c3e57ca3a959ca5aad62de7213c562f8c821
    pull_request reopened: ec26c3e57ca3a959ca5aad62de7213c562f8c821
    pull_request synchronize: ec26c3e57ca3a959ca5aad62de7213c562f8c821
    issues edited: issues starts nothing: push and pull_request do
    ");
    // A fork's, also when the fork is gone.
    let pull = published(include_str!("../../ci/github.json"))
        .into_iter()
        .find(|(event, _)| event == "pull_request");
    let mut fork = pull.unwrap().1;
    for repository in [json!({"id": 1}), Value::Null] {
        fork["pull_request"]["head"]["repo"] = repository;
        let answer = from_github(&test, &own, "pull_request", &fork.to_string()).await;
        assert!(outcome(&test, answer).await.contains("from a fork"));
    }
    // As a form, and again under another delivery id: one experiment.
    let before = experiments(&test).await.len();
    let push =
        json!({"ref": "refs/heads/release/1", "after": COMMIT, "deleted": false}).to_string();
    let form: String = form_urlencoded::Serializer::new(String::new())
        .append_pair("payload", &push)
        .finish();
    let signature = sign(&own.secret, &form);
    for (delivery, is_again) in [("a", false), ("b", true)] {
        let headers = [
            ("x-github-event", "push"),
            ("x-hub-signature-256", signature.as_str()),
            ("x-github-delivery", delivery),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        let (status, answer) = send(&test, &own.github_path, &headers, &form).await;
        assert_eq!(
            (status, led_to(&answer).duplicate),
            (StatusCode::ACCEPTED, is_again)
        );
    }
    assert_eq!(experiments(&test).await.len(), before + 1);
    // The same commit of the same branch, told of by its pull request: it was started before.
    let mut same = fork.clone();
    same["pull_request"]["head"]["repo"] = same["pull_request"]["base"]["repo"].clone();
    same["pull_request"]["head"]["ref"] = json!("release/1");
    same["pull_request"]["head"]["sha"] = json!(COMMIT);
    same["pull_request"]["body"] = json!("the text \\u0000 keeps nothing away");
    let (_, answer) = from_github(&test, &own, "pull_request", &same.to_string()).await;
    assert!(led_to(&answer).duplicate, "{answer:#}");
    // A name that no template takes in may be as it likes; what an event does not say is told.
    let odd = push
        .replace("release/1", "release/größe#1")
        .replace(COMMIT, &COMMIT.replace('4', "5"));
    assert_eq!(
        from_github(&test, &own, "push", &odd).await.0,
        StatusCode::ACCEPTED
    );
    let mut numbered = template();
    numbered["name"] = json!("numbered");
    numbered["spec"]["workload"]["hyperparameters"] = json!({"number": "${ci.pull_request}"});
    let numbered = created(&test, &numbered).await;
    let answer = from_github(&test, &numbered, "push", &push).await;
    assert!(outcome(&test, answer).await.contains("${ci.pull_request}"));
    // Branches that the template does not take, and bodies that are none of GitHub's.
    let other = push.replace("release/1", "topic");
    let answer = from_github(&test, &own, "push", &other).await;
    assert_eq!(
        outcome(&test, answer).await,
        "this template does not take topic"
    );
    assert_eq!(
        from_github(&test, &own, "push", "{}").await.0,
        StatusCode::BAD_REQUEST
    );
}

#[sqlx::test(migrations = false)]
async fn deliveries_of_gitlab_are_taken_as_documented(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    assert_eq!(own.gitlab_path, format!("/v1/webhooks/gitlab/{}", own.id));
    let mut outcomes = Vec::new();
    for (index, (event, body)) in published(include_str!("../../ci/gitlab.json"))
        .iter()
        .enumerate()
    {
        let key = format!("key-{index}");
        let headers = [
            ("x-gitlab-token", own.secret.as_str()),
            ("x-gitlab-event", event),
            ("idempotency-key", &key),
        ];
        let answer = send(&test, &own.gitlab_path, &headers, &body.to_string()).await;
        outcomes.push(format!("{event}: {}", outcome(&test, answer).await));
    }
    insta::assert_snapshot!(outcomes.join("\n"), @r"
    Push Hook: da1560886d4f094c3e6c9ef40349f7d38b5d27d7
    Push Hook: refs/heads/master was deleted
    Tag Push Hook: this template does not take refs/tags/v1.0.0
    Merge Request Hook: da1560886d4f094c3e6c9ef40349f7d38b5d27d7
    Merge Request Hook: update of !1 changes no code
    Merge Request Hook: da1560886d4f094c3e6c9ef40349f7d38b5d27d7
    Merge Request Hook: merge of !1 changes no code
    Merge Request Hook: !1 is from a fork: it starts nothing that is paid; bakeoff gate can measure it
    Pipeline Hook: pipeline starts nothing: pushes and merge requests do
    ");
    // With the signing token: id, moment and body are under the signature.
    let before = experiments(&test).await.len();
    let body = published(include_str!("../../ci/gitlab.json"))[0]
        .1
        .to_string()
        .replace("da1560886d4f094c3e6c9ef40349f7d38b5d27d7", COMMIT);
    let key = STANDARD
        .decode(own.signing_token.strip_prefix("whsec_").unwrap())
        .unwrap();
    let signed = |id: &str, sent: &str| {
        let message = format!("{id}.{sent}.{body}");
        format!(
            "v1,bm90aGluZw== v1,{}",
            STANDARD.encode(hmac(&key, message.as_bytes()))
        )
    };
    let (now, old) = (
        real_now().timestamp().to_string(),
        (real_now().timestamp() - 400).to_string(),
    );
    for (id, sent, signature, expected) in [
        ("msg_1", &now, signed("msg_1", &now), StatusCode::ACCEPTED),
        ("msg_1", &now, signed("msg_1", &now), StatusCode::ACCEPTED),
        (
            "msg_2",
            &now,
            signed("msg_1", &now),
            StatusCode::UNAUTHORIZED,
        ),
        (
            "msg_1",
            &old,
            signed("msg_1", &old),
            StatusCode::UNAUTHORIZED,
        ),
    ] {
        // The token beside it is not what counts.
        let headers = [
            ("webhook-id", id),
            ("webhook-timestamp", sent),
            ("webhook-signature", &signature),
            ("x-gitlab-token", &own.secret),
        ];
        let (status, answer) = send(&test, &own.gitlab_path, &headers, &body).await;
        assert_eq!(status, expected, "{answer:#}");
    }
    assert_eq!(experiments(&test).await.len(), before + 1);
    // One guess, or fifteen thousand in a header.
    let many = "v1, ".repeat(15_000);
    let (id, large) = (("webhook-id", "1"), "x".repeat(900_000));
    for (headers, body) in [
        (vec![("x-gitlab-token", "guess")], &body),
        (
            vec![
                id,
                ("webhook-timestamp", &now),
                ("webhook-signature", &many),
            ],
            &large,
        ),
    ] {
        let (status, _) = send(&test, &own.gitlab_path, &headers, body).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
}

#[sqlx::test(migrations = false)]
async fn a_secret_is_rotated_with_an_overlap(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let first = created(&test, &template()).await;
    let path = format!("/v1/ci-templates/{}/rotate-secret", first.id);
    let rotated = |body: Value| {
        let (test, path) = (&test, &path);
        async move {
            let (status, shown) = test.post(path, &body).await;
            assert_eq!(status, StatusCode::OK, "{shown:#}");
            serde_json::from_value::<CiSecret>(shown).unwrap()
        }
    };
    let status = |own: CiSecret, number: u32| {
        let test = &test;
        async move {
            let body = json!({"delivery_id": format!("{}-{number}", own.secret_version), "commit": COMMIT});
            trigger(test, &own, &body).await.0
        }
    };
    let second = rotated(json!({"overlap_hours": 2})).await;
    assert_ne!(first.secret, second.secret);
    assert_eq!(status(first.clone(), 1).await, StatusCode::ACCEPTED);
    assert_eq!(status(second.clone(), 1).await, StatusCode::ACCEPTED);
    test.advance(TimeDelta::hours(3)).await;
    assert_eq!(status(first.clone(), 2).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(second.clone(), 2).await, StatusCode::ACCEPTED);
    // Leaked: it ceases to count at once.
    let third = rotated(json!({"overlap_hours": 0})).await;
    assert_eq!(status(second, 3).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(third, 1).await, StatusCode::ACCEPTED);
    let (refused, _) = test.post(&path, &json!({"overlap_hours": 721})).await;
    assert_eq!(refused, StatusCode::UNPROCESSABLE_ENTITY);
}

#[sqlx::test(migrations = false)]
async fn templates_are_listed_changed_and_deleted(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let path = format!("/v1/ci-templates/{}", own.id);
    let mut changed = template();
    changed["spec"]["workload"]["image"] = json!(format!("{REPOSITORY}:v2-${{ci.commit}}"));
    let put = |body: Value| test.send(test.request(Method::PUT, &path, &test.admin).json(&body));
    let (status, answer) = put(changed).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let changed: CiTemplate = serde_json::from_value(answer).unwrap();
    assert_eq!(changed.version, 2);
    let (status, _) = put(json!({"name": "nightly", "spec": spec()})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let first: CiTemplate = test.read(&format!("{path}?version=1")).await;
    assert_eq!(
        first.spec.workload.unwrap().image,
        format!("{REPOSITORY}:${{ci.commit}}")
    );
    let all = test.get("/v1/ci-templates").await;
    assert!(
        !all.to_string().contains(&own.secret),
        "secrets are shown once"
    );
    let listed: Page<CiTemplate> = serde_json::from_value(all).unwrap();
    assert_eq!(listed.items[0].version, 2);
    let (_, answer) = trigger(&test, &own, &json!({"delivery_id": "1", "commit": COMMIT})).await;
    let started = outcome(&test, (StatusCode::ACCEPTED, answer)).await;
    assert_eq!(started, format!("v2-{COMMIT}"));
    // A name is used once, until its template is deleted.
    let (status, _) = test.post("/v1/ci-templates", &template()).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let (status, _) = test.delete(&path).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (status, _) = trigger(&test, &own, &json!({"delivery_id": "2", "commit": COMMIT})).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    created(&test, &template()).await;
    for path in [
        path.as_str(),
        "/v1/ci-templates/tpl_00000000000000000000000000000000",
    ] {
        let (status, _) = test
            .send(test.request(Method::GET, path, &test.admin))
            .await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
}

/// A push of thousands of commits is a body of megabytes; nobody else's is taken for it.
#[sqlx::test(migrations = false)]
async fn a_large_push_is_taken(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let commits = vec![json!({"id": COMMIT, "message": "x".repeat(1000)}); 3000];
    let body =
        json!({"ref": "refs/heads/main", "after": COMMIT, "deleted": false, "commits": commits});
    let body = body.to_string();
    assert!(body.len() > 3_000_000);
    let (status, answer) = from_github(&test, &own, "push", &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    let mut other = own.clone();
    other.secret = "0".repeat(64);
    let (status, _) = from_github(&test, &other, "push", &body).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}
