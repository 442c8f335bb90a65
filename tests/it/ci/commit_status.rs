//! Commit statuses: what GitHub and GitLab are sent from a run's start to its verdict, what becomes of refusals, and
//! that nobody gets at the credentials.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use bakeoff_api::ci::CiSecret;
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::commit_status::CommitStatusTarget;
use bakeoff_domain::delivery::DeliveryState;
use bakeoff_service::auth::keys::Role;
use bakeoff_service::tasks;
use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::sync::Notify;

use crate::ci::triggers::{REPOSITORY, created, run_of, trigger};
use crate::support::{TestApp, number, on_p5, problem};

const COMMIT: &str = "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60";
const TOKEN: &str = "github_pat_sesame";
pub(crate) const KEY: &str = include_str!("../../keys/github_app.pem");

/// One request as a code host gets it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) what: String,
    authorization: String,
    pub(crate) body: Value,
}

/// A code host that answers as it is told, and as it does usually afterwards.
#[derive(Clone, Default)]
pub(crate) struct Host {
    asked: Arc<Mutex<Vec<Asked>>>,
    answers: Arc<Mutex<Vec<(u16, Value)>>>,
    /// Comments of a merge request.
    notes: Arc<Mutex<Vec<Value>>>,
    /// Answers with a token wait for it.
    pub(crate) tokens_wait: Arc<Mutex<Option<Arc<Notify>>>>,
    pub(crate) tokens_waiting: Arc<AtomicUsize>,
}

async fn answer(
    State(host): State<Host>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, HeaderMap, String) {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = uri.path().to_owned();
    let wait = host.tokens_wait.lock().unwrap().clone();
    if let Some(wait) = wait.filter(|_| path.ends_with("/access_tokens")) {
        host.tokens_waiting.fetch_add(1, Ordering::SeqCst);
        wait.notified().await;
    }
    host.asked.lock().unwrap().push(Asked {
        what: format!("{method} {path}"),
        authorization: headers["authorization"].to_str().unwrap().to_owned(),
        body: body.clone(),
    });
    let mut told = host.answers.lock().unwrap();
    let mut more = HeaderMap::new();
    let (status, answer) = if told.is_empty() {
        usual(&host, &method, &path, &body)
    } else {
        told.remove(0)
    };
    if status == 403 && answer["message"] == "rate" {
        more.insert("retry-after", "600".parse().unwrap());
    }
    (
        StatusCode::from_u16(status).unwrap(),
        more,
        answer.to_string(),
    )
}

fn usual(host: &Host, method: &Method, path: &str, body: &Value) -> (u16, Value) {
    if path.ends_with("/access_tokens") {
        return (201, json!({"token": "ghs_of_an_hour"}));
    }
    if !path.contains("/notes") {
        return (201, json!({"id": 42, "pipeline_id": 99}));
    }
    let mut notes = host.notes.lock().unwrap();
    if *method == Method::GET {
        return (200, json!(notes.clone()));
    }
    if *method == Method::POST {
        let id = notes.len() + 1;
        notes.push(json!({"id": id, "body": body["body"]}));
        return (201, json!({"id": id}));
    }
    (200, json!({}))
}

impl Host {
    pub(crate) async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/api", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        url
    }

    fn answers(&self, answers: &[(u16, Value)]) {
        *self.answers.lock().unwrap() = answers.to_vec();
    }

    pub(crate) fn taken(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

fn template() -> Value {
    let mut spec = on_p5(1);
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    json!({"name": "nightly", "spec": spec, "settings": {"branches": ["main"], "pull_requests": true}})
}

pub(crate) async fn set(test: &TestApp, own: &CiSecret, body: &Value) -> (StatusCode, Value) {
    test.put(&format!("/v1/ci-templates/{}/commit-status", own.id), body)
        .await
}

/// Starts a run of a commit; a merge request's with a number.
async fn started(test: &TestApp, own: &CiSecret, delivery: &str, number: Option<u64>) -> String {
    let mut body =
        json!({"delivery_id": delivery, "commit": COMMIT, "branch": "main", "repeat": true});
    if let Some(number) = number {
        body["pull_request"] = json!(number);
    }
    let (status, answer) = trigger(test, own, &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    run_of(&answer)
}

async fn read(test: &TestApp, run: &str) -> CiRunView {
    test.read(&format!("/v1/ci-runs/{run}")).await
}

/// Sends what is due, at this moment.
async fn sent(test: &TestApp) {
    while tasks::commit_statuses::tick(&test.app).await.unwrap() > 0 {}
}

/// Until there is a verdict, and it is told.
async fn judged(test: &TestApp, run: &str) -> CiRunView {
    for _ in 0..200 {
        test.tick().await;
        if read(test, run).await.verdict.is_some() {
            sent(test).await;
            return read(test, run).await;
        }
        test.advance(TimeDelta::minutes(10)).await;
    }
    panic!("no verdict");
}

#[sqlx::test(migrations = false)]
async fn github_is_told_from_the_start_to_the_verdict(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let host = Host::default();
    let url = host.start().await;
    let own = created(&test, &template()).await;
    let body =
        json!({"host": "github", "repository": "acme/legal", "api_url": url, "token": TOKEN});
    let (status, shown) = set(&test, &own, &body).await;
    assert_eq!(status, StatusCode::OK, "{shown:#}");
    let shown: CommitStatusTarget = serde_json::from_value(shown).unwrap();
    assert_eq!(shown.context, "bakeoff/nightly");
    let run = started(&test, &own, "1", None).await;
    sent(&test).await;
    let first = host.taken();
    assert_eq!(first.len(), 1, "{first:#?}");
    assert_eq!(
        first[0].what,
        format!("POST /api/repos/acme/legal/statuses/{COMMIT}")
    );
    assert_eq!(first[0].authorization, format!("Bearer {TOKEN}"));
    assert_eq!(first[0].body["state"], "pending");
    // It is told once: the next look finds nothing due.
    test.advance(TimeDelta::minutes(10)).await;
    sent(&test).await;
    assert_eq!(host.taken().len(), 0);
    let run = judged(&test, &run).await;
    let last = host.taken();
    assert_eq!(last.len(), 1, "{last:#?}");
    assert_eq!(
        (&last[0].body["state"], &last[0].body["description"]),
        (&json!("success"), &json!(run.summary))
    );
    let shown = run.commit_status.unwrap();
    assert_eq!(
        (shown.state, shown.problem),
        (DeliveryState::Delivered, None)
    );
    // Nobody gets at the token, by no way.
    let path = format!("/v1/ci-templates/{}/commit-status", own.id);
    assert!(!test.get(&path).await.to_string().contains("sesame"));
    let stored: Vec<u8> = sqlx::query_scalar("SELECT sealed_credentials FROM ci_status_targets")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert!(!stored.windows(6).any(|part| part == b"sesame"));
    let (status, _) = test.delete(&path).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let left = "SELECT count(*) FROM ci_status_targets";
    assert_eq!(number(&pool, left).await, 0);
    assert_eq!(test.delete(&path).await.0, StatusCode::NOT_FOUND);
}

/// An App has a token for each time, and one check run that is changed.
#[sqlx::test(migrations = false)]
async fn an_app_shows_a_check_run(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let host = Host::default();
    let url = host.start().await;
    let own = created(&test, &template()).await;
    let app = json!({"app_id": "Iv23abc", "installation_id": 77, "private_key": KEY});
    let body = json!({"host": "github", "repository": "acme/legal", "api_url": url, "app": app});
    let (status, answer) = set(&test, &own, &body).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let run = started(&test, &own, "1", None).await;
    sent(&test).await;
    judged(&test, &run).await;
    let asked = host.taken();
    let whats: Vec<&str> = asked.iter().map(|one| one.what.as_str()).collect();
    assert_eq!(
        whats,
        [
            "POST /api/app/installations/77/access_tokens",
            "POST /api/repos/acme/legal/check-runs",
            "POST /api/app/installations/77/access_tokens",
            "PATCH /api/repos/acme/legal/check-runs/42",
        ]
    );
    assert!(asked[0].authorization.starts_with("Bearer ey"));
    assert_eq!(asked[1].authorization, "Bearer ghs_of_an_hour");
    assert_eq!(asked[1].body["status"], "in_progress");
    let last = &asked[3].body;
    assert_eq!(asked[1].body["head_sha"], COMMIT);
    assert_eq!(
        (&last["conclusion"], &last["head_sha"]),
        (&json!("success"), &Value::Null)
    );
    let report = last["output"]["summary"].as_str().unwrap();
    assert!(report.starts_with("### ✅ passed"), "{report}");
    // Another repository: the check run of the first one is none of it.
    let moved = json!({"host": "github", "repository": "acme/new", "api_url": url});
    assert_eq!(set(&test, &own, &moved).await.0, StatusCode::OK);
    let path = format!("/v1/ci-runs/{run}/commit-status");
    test.post(&path, &json!({})).await;
    sent(&test).await;
    let asked = host.taken();
    assert_eq!(asked[1].what, "POST /api/repos/acme/new/check-runs");
    // Somebody between us and GitHub answers without a token: nothing is shown, and nothing said to be.
    host.answers(&[(200, json!("<html>"))]);
    test.post(&path, &json!({})).await;
    sent(&test).await;
    let shown = read(&test, &run).await.commit_status.unwrap();
    assert_eq!(shown.state, DeliveryState::Pending, "{shown:?}");
}

/// A merge request has one comment, however many runs it has.
#[sqlx::test(migrations = false)]
async fn gitlab_has_a_status_and_one_comment(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let host = Host::default();
    let url = host.start().await;
    let own = created(&test, &template()).await;
    let body = json!({"host": "gitlab", "repository": "acme/ml/legal", "api_url": url,
        "token": "glpat-sesame", "comments": true});
    let (status, answer) = set(&test, &own, &body).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    for delivery in ["1", "2"] {
        let run = started(&test, &own, delivery, Some(7)).await;
        sent(&test).await;
        judged(&test, &run).await;
    }
    let asked = host.taken();
    let whats: Vec<&str> = asked.iter().map(|one| one.what.as_str()).collect();
    let status = format!("POST /api/projects/acme%2Fml%2Flegal/statuses/{COMMIT}");
    let notes = "/api/projects/acme%2Fml%2Flegal/merge_requests/7/notes";
    let (look, new) = (format!("GET {notes}"), format!("POST {notes}"));
    let changed = format!("PUT {notes}/1");
    let (status, look) = (status.as_str(), look.as_str());
    assert_eq!(
        whats,
        [status, status, look, &new, status, status, look, &changed]
    );
    let states: Vec<&Value> = asked.iter().map(|one| &one.body["state"]).collect();
    assert_eq!(
        (states[0], states[1]),
        (&json!("running"), &json!("success"))
    );
    // The verdict goes into the pipeline that the first one came into.
    let pipelines: Vec<&Value> = asked.iter().map(|one| &one.body["pipeline_id"]).collect();
    assert_eq!((pipelines[0], pipelines[1]), (&Value::Null, &json!(99)));
}

/// A push starts the run, and its merge request is told of a little later: the comment comes all the same. One that
/// somebody else has written is left alone.
#[sqlx::test(migrations = false)]
async fn a_merge_request_that_comes_later_is_told(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let host = Host::default();
    let url = host.start().await;
    let own = created(&test, &template()).await;
    let body = json!({"host": "gitlab", "repository": "acme/ml/legal", "api_url": url,
        "token": "glpat-sesame", "comments": true});
    set(&test, &own, &body).await;
    let run = started(&test, &own, "1", None).await;
    let run = judged(&test, &run).await;
    assert!(!host.taken().iter().any(|one| one.what.contains("/notes")));
    let now = test.app.clock.now();
    test.app
        .store
        .note_pull_request(run.id, 7, now)
        .await
        .unwrap();
    sent(&test).await;
    let notes = |asked: &[Asked]| -> Vec<String> {
        let whats = asked.iter().map(|one| one.what.clone());
        whats.filter(|what| what.contains("/notes")).collect()
    };
    let path = "/api/projects/acme%2Fml%2Flegal/merge_requests/7/notes";
    assert_eq!(
        notes(&host.taken()),
        [format!("GET {path}"), format!("POST {path}")]
    );
    // The same again is told to nobody.
    test.app
        .store
        .note_pull_request(run.id, 7, now)
        .await
        .unwrap();
    sent(&test).await;
    assert_eq!(host.taken().len(), 0);
    let again = format!("/v1/ci-runs/{}/commit-status", run.id);
    test.post(&again, &json!({})).await;
    let note = host.notes.lock().unwrap()[0].clone();
    host.answers(&[
        (201, json!({"pipeline_id": 99})),
        (200, json!([note])),
        (403, json!({"message": "403 Forbidden"})),
    ]);
    sent(&test).await;
    assert_eq!(
        notes(&host.taken()),
        [
            format!("GET {path}"),
            format!("PUT {path}/1"),
            format!("POST {path}")
        ]
    );
    let shown = read(&test, &run.id.to_string()).await.commit_status;
    assert_eq!(shown.unwrap().state, DeliveryState::Delivered);
}

/// A template that is deleted tells of the runs under way, and then forgets its credentials.
#[sqlx::test(migrations = false)]
async fn a_deleted_template_tells_of_its_runs(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let host = Host::default();
    let url = host.start().await;
    let own = created(&test, &template()).await;
    let body =
        json!({"host": "github", "repository": "acme/legal", "api_url": url, "token": TOKEN});
    set(&test, &own, &body).await;
    let run = started(&test, &own, "1", None).await;
    let path = format!("/v1/ci-templates/{}", own.id);
    assert_eq!(test.delete(&path).await.0, StatusCode::NO_CONTENT);
    let targets = "SELECT count(*) FROM ci_status_targets";
    tasks::compactor::tick(&test.app).await.unwrap();
    assert_eq!(number(&pool, targets).await, 1);
    judged(&test, &run).await;
    let last = host.taken().pop().unwrap();
    assert_eq!(last.body["state"], "success");
    tasks::compactor::tick(&test.app).await.unwrap();
    assert_eq!(number(&pool, targets).await, 0);
}

/// A host that is slow or gone holds up its own template's statuses only.
#[sqlx::test(migrations = false)]
async fn one_template_takes_its_share(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let host = Host::default();
    let url = host.start().await;
    let mut owns = Vec::new();
    for name in ["one", "two"] {
        let mut body = template();
        body["name"] = json!(name);
        let own = created(&test, &body).await;
        let body = json!({"host": "github", "repository": format!("acme/{name}"), "api_url": url, "token": TOKEN});
        set(&test, &own, &body).await;
        owns.push(own);
    }
    for delivery in 0..5 {
        started(&test, &owns[0], &delivery.to_string(), None).await;
    }
    started(&test, &owns[1], "1", None).await;
    let (store, now) = (&test.app.store, test.app.clock.now());
    let hold = TimeDelta::minutes(3);
    let first = store.claim_statuses(now, hold, 8).await.unwrap();
    assert_eq!(first.len(), 3);
    // While its two are held, none more.
    assert_eq!(store.claim_statuses(now, hold, 8).await.unwrap().len(), 0);
}

/// What is refused for good is not sent again until somebody mends it; what is not taken now is sent again, as the run
/// is then.
#[sqlx::test(migrations = false)]
async fn a_refusal_waits_for_a_person_and_a_limit_for_its_time(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let host = Host::default();
    let url = host.start().await;
    let own = created(&test, &template()).await;
    let body =
        json!({"host": "github", "repository": "acme/legal", "api_url": url, "token": TOKEN});
    set(&test, &own, &body).await;
    host.answers(&[(401, json!({"message": "Bad credentials"}))]);
    let run = started(&test, &own, "1", None).await;
    sent(&test).await;
    let shown = read(&test, &run).await.commit_status.unwrap();
    assert_eq!(shown.state, DeliveryState::Failed);
    let problem = shown.problem.unwrap();
    assert!(problem.contains("Bad credentials: set"), "{problem}");
    host.taken();
    test.advance(TimeDelta::hours(2)).await;
    sent(&test).await;
    assert_eq!(host.taken().len(), 0);
    // Another token: it is sent again. Too often, for now: it waits as long as GitHub asks.
    host.answers(&[(403, json!({"message": "rate"})), (502, json!({}))]);
    let other =
        json!({"host": "github", "repository": "acme/legal", "api_url": url, "token": "ghp_two"});
    set(&test, &own, &other).await;
    sent(&test).await;
    let shown = read(&test, &run).await.commit_status.unwrap();
    assert_eq!(shown.state, DeliveryState::Pending);
    for (minutes, requests) in [(9, 1), (2, 2), (30, 3)] {
        test.advance(TimeDelta::minutes(minutes)).await;
        sent(&test).await;
        assert_eq!(host.asked.lock().unwrap().len(), requests, "{minutes}");
    }
    let asked = host.taken();
    assert_eq!(asked[2].authorization, "Bearer ghp_two");
    let shown = read(&test, &run).await.commit_status.unwrap();
    assert_eq!(
        (shown.state, shown.problem),
        (DeliveryState::Delivered, None)
    );
    // By hand once more.
    let path = format!("/v1/ci-runs/{run}/commit-status");
    let (status, answer) = test.post(&path, &json!({})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    sent(&test).await;
    assert_eq!(host.taken().len(), 1);
}

/// A process that dies between the request and its record sends again; one that was held up writes nothing.
#[sqlx::test(migrations = false)]
async fn a_status_is_told_again_after_a_crash_and_in_order(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let host = Host::default();
    let url = host.start().await;
    let own = created(&test, &template()).await;
    let body =
        json!({"host": "github", "repository": "acme/legal", "api_url": url, "token": TOKEN});
    set(&test, &own, &body).await;
    let run = started(&test, &own, "1", None).await;
    let store = &test.app.store;
    let (now, hold) = (test.app.clock.now(), TimeDelta::minutes(3));
    let dead = store.claim_statuses(now, hold, 8).await.unwrap();
    assert_eq!(dead.len(), 1);
    // A change while it is held waits for whoever holds it: nothing overtakes.
    let path = format!("/v1/ci-runs/{run}/commit-status");
    test.post(&path, &json!({})).await;
    sent(&test).await;
    assert_eq!(host.taken().len(), 0);
    test.advance(TimeDelta::minutes(4)).await;
    sent(&test).await;
    assert_eq!(host.taken().len(), 1);
    // The one that was held up comes back with a refusal.
    let late = bakeoff_domain::ci::commit_status::Outcome::Refused { why: "late".into() };
    let now = test.app.clock.now();
    store
        .record_status(&dead[0], &late, None, now)
        .await
        .unwrap();
    let shown = read(&test, &run).await.commit_status.unwrap();
    assert_eq!(
        (shown.state, shown.problem),
        (DeliveryState::Delivered, None)
    );
    // What changes while a request is on its way is told after it.
    test.post(&path, &json!({})).await;
    let now = test.app.clock.now();
    let held = store.claim_statuses(now, hold, 8).await.unwrap();
    test.post(&path, &json!({})).await;
    let taken = bakeoff_domain::ci::commit_status::Outcome::Taken;
    store
        .record_status(&held[0], &taken, None, now)
        .await
        .unwrap();
    sent(&test).await;
    assert_eq!(host.taken().len(), 1);
}

#[sqlx::test(migrations = false)]
async fn bad_targets_are_refused_and_a_token_stays_with_its_host(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let host = Host::default();
    let url = host.start().await;
    let own = created(&test, &template()).await;
    let good =
        json!({"host": "github", "repository": "acme/legal", "api_url": url, "token": TOKEN});
    let changed = |member: &str, value: Value| {
        let mut body = good.clone();
        body[member] = value;
        body
    };
    for (body, pointer) in [
        (changed("repository", json!("legal")), "/repository"),
        (changed("repository", json!("acme/..")), "/repository"),
        (
            changed("repository", json!("acme/legal?x=1")),
            "/repository",
        ),
        (
            changed("api_url", json!("http://169.254.169.254")),
            "/api_url",
        ),
        (changed("api_url", json!("https://10.0.0.1")), "/api_url"),
        (changed("api_url", json!(format!("{url}?to=x"))), "/api_url"),
        (changed("context", json!("")), "/context"),
        (changed("comments", json!(true)), "/comments"),
        (changed("token", json!("a\nb")), "/token"),
        (changed("token", json!(null)), "/token"),
        (
            changed(
                "app",
                json!({"app_id": "1", "installation_id": 2, "private_key": KEY}),
            ),
            "/app",
        ),
    ] {
        let (status, answer) = set(&test, &own, &body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
        assert!(!answer.to_string().contains("sesame"), "{answer:#}");
        let problem = problem(answer);
        assert_eq!(problem.errors[0].pointer, pointer, "{problem:#?}");
    }
    assert_eq!(set(&test, &own, &good).await.0, StatusCode::OK);
    // Without credentials those that are stored stay, but for the same host only.
    let renamed = json!({"host": "github", "repository": "acme/new", "api_url": url});
    assert_eq!(set(&test, &own, &renamed).await.0, StatusCode::OK);
    let elsewhere =
        json!({"host": "github", "repository": "acme/new", "api_url": format!("{url}/other")});
    let (status, answer) = set(&test, &own, &elsewhere).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    started(&test, &own, "1", None).await;
    sent(&test).await;
    let asked = host.taken();
    assert_eq!(
        (asked[0].what.as_str(), asked[0].authorization.as_str()),
        (
            &*format!("POST /api/repos/acme/new/statuses/{COMMIT}"),
            &*format!("Bearer {TOKEN}")
        )
    );
    // Only an admin of the project.
    let editor = test.key(test.project, Role::Editor).await;
    let other = test.other_project().await;
    let stranger = test.key(other, Role::Admin).await;
    let path = format!("/v1/ci-templates/{}/commit-status", own.id);
    for (key, expected) in [
        (&editor, StatusCode::FORBIDDEN),
        (&stranger, StatusCode::NOT_FOUND),
    ] {
        let asked = test.request(reqwest::Method::PUT, &path, key).json(&good);
        assert_eq!(test.send(asked).await.0, expected);
    }
    let asked = test.request(reqwest::Method::GET, &path, &stranger);
    assert_eq!(test.send(asked).await.0, StatusCode::NOT_FOUND);
}
