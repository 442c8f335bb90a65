//! Waits that end: a run whose experiment is paused, a commit that is not measured, a host that cannot say what a template
//! needs, a process that dies or stands still before it sends, and a copy of the database that must not send at all.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bakeoff_api::ci::{CiNotMeasured, CiSecret};
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::page::Page;
use bakeoff_domain::ci::commit_status::CiState;
use bakeoff_domain::ci::gate::Verdict;
use bakeoff_domain::delivery::DeliveryState;
use bakeoff_process::clock::real_sleep;
use bakeoff_service::app::{App, Settings};
use bakeoff_service::replica::fence::Fence;
use bakeoff_service::tasks::{commit_statuses, courier};
use chrono::TimeDelta;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::sync::Notify;

use crate::ci::commit_status::{Asked, Host, KEY, set};
use crate::ci::triggers::{REPOSITORY, created, from_github, led_to, run_of, trigger};
use crate::endpoints::lives::{body as served, created as created_endpoint};
use crate::service::webhook_endpoints::{Receiver, created as hooked, deliveries};
use crate::support::{TestApp, listening, number, on_p5, problem};

const FIRST: &str = "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60";
const SECOND: &str = "b00b1e5d7e55d3b0a8c6f4e2019b7d5c3a1f8e61";

fn template(pull_requests: bool) -> Value {
    let mut spec = on_p5(1);
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    json!({"name": "nightly", "spec": spec, "settings": {"branches": ["main"], "pull_requests": pull_requests}})
}

fn push(reference: &str, commit: &str) -> String {
    json!({"ref": reference, "before": SECOND, "after": commit, "deleted": false,
        "repository": {"id": 7, "full_name": "acme/legal"}, "head_commit": {"id": commit}})
    .to_string()
}

/// A template whose statuses a host is told.
async fn told(test: &TestApp, template: &Value) -> (CiSecret, Host) {
    let own = created(test, template).await;
    let host = Host::default();
    let target = json!({"host": "github", "repository": "acme/legal", "api_url": host.start().await, "token": "ghp_x"});
    let (status, answer) = set(test, &own, &target).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    (own, host)
}

async fn started(test: &TestApp, own: &CiSecret, commit: &str) -> String {
    let (status, answer) = from_github(test, own, "push", &push("refs/heads/main", commit)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    run_of(&answer)
}

async fn read(test: &TestApp, id: &str) -> CiRunView {
    test.read(&format!("/v1/ci-runs/{id}")).await
}

async fn sent(test: &TestApp) {
    while commit_statuses::tick(&test.app).await.unwrap() > 0 {}
}

/// Each state with its description, of what a host was asked.
fn said(asked: &[Asked]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let each = asked.iter().map(|one| &one.body);
    each.map(|body| format!("{}: {}", text(&body["state"]), text(&body["description"])))
        .collect()
}

impl Host {
    /// From now on no App gets its token until the answer is notified.
    fn hold_tokens(&self) -> Arc<Notify> {
        let until = Arc::new(Notify::new());
        *self.tokens_wait.lock().unwrap() = Some(Arc::clone(&until));
        until
    }

    /// Later ones get theirs at once.
    fn let_tokens_pass(&self) {
        *self.tokens_wait.lock().unwrap() = None;
    }

    fn waiting(&self) -> usize {
        self.tokens_waiting.load(Ordering::SeqCst)
    }
}

async fn unmeasured(test: &TestApp, own: &CiSecret) -> Vec<CiNotMeasured> {
    let page: Page<CiNotMeasured> = test
        .read(&format!("/v1/ci-templates/{}/unmeasured", own.id))
        .await;
    page.items
}

#[sqlx::test(migrations = false)]
async fn a_paused_run_says_so_and_ends_after_a_day(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (own, host) = told(&test, &template(false)).await;
    let run = started(&test, &own, FIRST).await;
    let experiment = read(&test, &run).await.experiment_ids[0];
    let pause = format!("/v1/experiments/{experiment}/pause");
    assert_eq!(test.post(&pause, &json!({})).await.0, StatusCode::OK);
    test.tick().await;
    sent(&test).await;
    let paused = read(&test, &run).await;
    assert_eq!(
        (paused.state, paused.summary.as_str()),
        (CiState::Pending, "pending: paused: paused by hand")
    );
    assert_eq!(
        said(&host.taken()).last().unwrap(),
        "pending: pending: paused: paused by hand"
    );
    for _ in 0..23 {
        test.advance(TimeDelta::hours(1)).await;
        test.tick().await;
    }
    assert_eq!(read(&test, &run).await.verdict, None);
    test.advance(TimeDelta::hours(2)).await;
    test.tick().await;
    sent(&test).await;
    let ended = read(&test, &run).await;
    assert_eq!(
        (ended.verdict, ended.state),
        (Some(Verdict::Error), CiState::Error),
        "{ended:#?}"
    );
    assert!(
        ended
            .summary
            .starts_with("error: not measured, and cancelled: paused for 24 h (paused by hand)"),
        "{}",
        ended.summary
    );
    assert!(
        said(&host.taken())
            .last()
            .unwrap()
            .starts_with("error: error: not measured")
    );
    // Nothing was spent on it: whoever tells of the commit tries again.
    let body = json!({"delivery_id": "1", "commit": FIRST, "branch": "main"});
    let (_, answer) = trigger(&test, &own, &body).await;
    assert_ne!(run_of(&answer), run, "{answer:#}");
    assert!(!led_to(&answer).duplicate, "{answer:#}");
}

/// Jobs that run while the experiment is paused are waited for: their run is judged by them.
#[sqlx::test(migrations = false)]
async fn a_run_that_is_paused_while_it_runs_is_judged(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (own, _host) = told(&test, &template(false)).await;
    let run = started(&test, &own, FIRST).await;
    test.tick().await;
    let experiment = read(&test, &run).await.experiment_ids[0];
    test.post(&format!("/v1/experiments/{experiment}/pause"), &json!({}))
        .await;
    for _ in 0..100 {
        test.tick().await;
        test.advance(TimeDelta::minutes(30)).await;
    }
    let run = read(&test, &run).await;
    assert_eq!(run.verdict, Some(Verdict::Passed), "{run:#?}");
}

#[sqlx::test(migrations = false)]
async fn a_run_that_waits_for_its_image_says_so(pool: PgPool) {
    let test = TestApp::new(pool).await;
    test.region_post("/_sim/setup", &json!({"no_image": true}))
        .await;
    let (own, host) = told(&test, &template(false)).await;
    let run = started(&test, &own, FIRST).await;
    test.tick().await;
    sent(&test).await;
    let waiting = read(&test, &run).await;
    let expected = format!("pending: waits for its image: {REPOSITORY}:{FIRST} is not in ECR");
    assert_eq!(waiting.summary, expected);
    let shown = said(&host.taken());
    assert!(
        shown
            .last()
            .unwrap()
            .starts_with("pending: pending: waits for its image"),
        "{shown:?}"
    );
    test.region_post("/_sim/setup", &json!({})).await;
    test.advance(TimeDelta::minutes(2)).await;
    test.tick().await;
    sent(&test).await;
    let running = read(&test, &run).await;
    assert_eq!(running.summary, "pending: round 1 is being measured");
    assert_eq!(
        said(&host.taken()),
        ["pending: pending: round 1 is being measured"]
    );
}

/// Branches, tags, forks, missing inputs and refusals: each is kept, and shown beside its commit.
#[sqlx::test(migrations = false)]
async fn a_commit_that_is_not_measured_has_a_status_with_its_reason(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (own, host) = told(&test, &template(false)).await;
    let other = FIRST.replace('4', "5");
    for (reference, commit) in [("refs/heads/feature/x", FIRST), ("refs/tags/v1", SECOND)] {
        let (status, answer) = from_github(&test, &own, "push", &push(reference, commit)).await;
        assert_eq!(status, StatusCode::OK, "{answer:#}");
        sent(&test).await;
    }
    let shown = host.taken();
    assert_eq!(
        said(&shown),
        [
            "success: not measured: this template does not take feature/x",
            "success: not measured: this template does not take refs/tags/v1"
        ]
    );
    assert!(shown[0].what.ends_with(FIRST), "{}", shown[0].what);
    let kept = unmeasured(&test, &own).await;
    let last = kept[0].commit_status.as_ref().unwrap();
    assert_eq!(
        (kept.len(), last.state, last.attempts),
        (2, DeliveryState::Delivered, 1)
    );
    // A commit with a run shows the run, and not that another branch of it is not measured.
    started(&test, &own, &other).await;
    sent(&test).await;
    host.taken();
    let (status, _) = from_github(&test, &own, "push", &push("refs/heads/topic", &other)).await;
    assert_eq!(status, StatusCode::OK);
    sent(&test).await;
    assert_eq!(host.taken().len(), 0);
    // What the template cannot start is an error, to its sender and beside the commit.
    let body = json!({"delivery_id": "1", "commit": SECOND.replace('b', "c"), "image": "x:latest"});
    let (status, _) = trigger(&test, &own, &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    sent(&test).await;
    let shown = said(&host.taken());
    assert!(
        shown[0].starts_with("error: not measured: /image: "),
        "{shown:?}"
    );
    // Beside a fork's commit too.
    let (own, host) = told(&test, &json!({"name": "requests", "spec": template(true)["spec"], "settings": {"pull_requests": true, "branches": ["main"]}})).await;
    let request = json!({"action": "opened", "number": 12, "repository": {"id": 7, "full_name": "acme/legal"}, "pull_request": {
        "head": {"ref": "main", "sha": FIRST, "repo": {"id": 8}}, "base": {"repo": {"id": 7}}}});
    from_github(&test, &own, "pull_request", &request.to_string()).await;
    sent(&test).await;
    let shown = said(&host.taken());
    assert!(
        shown[0].starts_with("error: not measured: #12 is from a fork"),
        "{shown:?}"
    );
    // Where pull requests are measured, a push may be about to have one.
    from_github(&test, &own, "push", &push("refs/heads/topic", SECOND)).await;
    sent(&test).await;
    assert_eq!(host.taken().len(), 0);
    test.advance(TimeDelta::minutes(11)).await;
    sent(&test).await;
    assert_eq!(
        said(&host.taken()),
        ["success: not measured: this template does not take topic"]
    );
}

/// A required check that no webhook could end is refused when it is set, and when the template changes.
#[sqlx::test(migrations = false)]
async fn a_check_that_no_webhook_can_end_is_refused(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut open = template(false);
    open["spec"]["workload"]["image"] = json!("${ci.image}");
    let own = created(&test, &open).await;
    let host = Host::default();
    let mut target = json!({"host": "github", "repository": "acme/legal", "api_url": host.start().await, "token": "ghp_x"});
    let (status, answer) = set(&test, &own, &target).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let error = problem(answer).errors.remove(0);
    assert_eq!(error.pointer, "/gate_only");
    assert!(error.detail.contains("${ci.image}"), "{error:#?}");
    target["gate_only"] = json!(true);
    assert_eq!(set(&test, &own, &target).await.0, StatusCode::OK);
    // Its pushes are left to the gate.
    from_github(&test, &own, "push", &push("refs/heads/main", FIRST)).await;
    sent(&test).await;
    assert_eq!(host.taken().len(), 0);
    assert!(
        unmeasured(&test, &own).await[0].commit_status.is_none(),
        "it has no status"
    );
    // One that was set before is held to its word when the template changes.
    let (own, host) = told(&test, &json!({"name": "other", "spec": template(false)["spec"], "settings": {"branches": ["main"]}})).await;
    open["name"] = json!("other");
    let path = format!("/v1/ci-templates/{}", own.id);
    let (status, answer) = test.put(&path, &open).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    assert_eq!(problem(answer).errors[0].pointer, "/spec");
    let number = "${ci.pull_request}";
    let mut numbered = template(false);
    numbered["name"] = json!("other");
    numbered["spec"]["workload"]["hyperparameters"] = json!({"number": number});
    let (status, _) = test.put(&path, &numbered).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    // With pull requests it can be said; a push that does not say it is an error beside its commit.
    numbered["settings"]["pull_requests"] = json!(true);
    assert_eq!(test.put(&path, &numbered).await.0, StatusCode::OK);
    from_github(&test, &own, "push", &push("refs/heads/main", FIRST)).await;
    sent(&test).await;
    let shown = said(&host.taken());
    assert!(
        shown[0].starts_with("error: not measured: this template needs ${ci.pull_request}"),
        "{shown:?}"
    );
}

/// A status leads to its run, where the service knows its own address.
#[sqlx::test(migrations = false)]
async fn a_status_has_a_link_to_its_run(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    test.app.settings = Arc::new(Settings {
        public_url: Some("https://bakeoff.example.com".to_owned()),
        ..(*test.app.settings).clone()
    });
    test.url = listening(&test.app).await;
    let (own, host) = told(&test, &template(false)).await;
    let run = started(&test, &own, FIRST).await;
    sent(&test).await;
    let asked = host.taken();
    assert_eq!(
        asked[0].body["target_url"],
        format!("https://bakeoff.example.com/v1/ci-runs/{run}/report")
    );
}

/// A copy of the database sends nothing: neither webhooks nor statuses.
#[sqlx::test(migrations = false)]
async fn a_copy_of_the_database_sends_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let receiver = Receiver::default();
    let url = receiver.start().await;
    hooked(&test, &json!({"url": url, "kinds": ["experiment.*"]})).await;
    let (own, host) = told(&test, &template(false)).await;
    started(&test, &own, FIRST).await;
    from_github(&test, &own, "push", &push("refs/heads/topic", SECOND)).await;
    let mut copy: App = test.replica("copy");
    copy.fence = Arc::new(Fence::new(Some("s3://tests/fence.json".to_owned()), false));
    assert_eq!(courier::tick(&copy).await.unwrap(), 0);
    assert_eq!(commit_statuses::tick(&copy).await.unwrap(), 0);
    assert_eq!((receiver.taken().len(), host.taken().len()), (0, 0));
    courier::tick(&test.app).await.unwrap();
    sent(&test).await;
    assert_eq!((receiver.taken().len(), host.taken().len()), (1, 2));
}

/// A courier that dies after its claim has used up no try; one that dies each time is given up after a day of claims.
#[sqlx::test(migrations = false)]
async fn a_courier_that_dies_before_it_sends_uses_up_no_try(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let receiver = Receiver::default();
    let url = receiver.start().await;
    let own = hooked(&test, &json!({"url": url, "kinds": ["experiment.created"]})).await;
    test.start(&on_p5(1)).await;
    let hold = TimeDelta::minutes(5);
    for _ in 0..12 {
        let now = test.app.clock.now();
        let claimed = test
            .app
            .store
            .claim_deliveries(own.id, now, hold, 4)
            .await
            .unwrap();
        assert_eq!((claimed.len(), claimed[0].number), (1, 1));
        test.advance(TimeDelta::minutes(6)).await;
    }
    receiver.answers(&[500]);
    courier::tick(&test.app).await.unwrap();
    assert_eq!(receiver.taken().len(), 1);
    let seen = deliveries(&test, &own, "").await;
    assert_eq!(
        (seen[0].attempts, seen[0].state),
        (1, DeliveryState::Pending)
    );
    test.advance(TimeDelta::minutes(1)).await;
    courier::tick(&test.app).await.unwrap();
    let seen = deliveries(&test, &own, "").await;
    assert_eq!(
        (seen[0].attempts, seen[0].state),
        (2, DeliveryState::Delivered)
    );
    // For ever is bounded.
    test.start(&on_p5(1)).await;
    for _ in 0..300 {
        let now = test.app.clock.now();
        let store = &test.app.store;
        store.claim_deliveries(own.id, now, hold, 4).await.unwrap();
        test.app.clock.advance(TimeDelta::minutes(6));
    }
    let seen = deliveries(&test, &own, "?state=failed").await;
    assert_eq!(seen[0].attempts, 0, "{seen:#?}");
    let pending = "SELECT count(*) FROM webhook_deliveries WHERE state = 'pending'";
    assert_eq!(number(&pool, pending).await, 0);
}

/// A delivery that is replayed is tried for another day, however often it was tried before.
#[sqlx::test(migrations = false)]
async fn a_replay_has_all_its_tries(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let receiver = Receiver::default();
    let url = receiver.start().await;
    let own = hooked(&test, &json!({"url": url, "kinds": ["experiment.created"]})).await;
    test.start(&on_p5(1)).await;
    receiver.answers(&[500; 12]);
    for _ in 0..30 {
        courier::tick(&test.app).await.unwrap();
        test.advance(TimeDelta::hours(3)).await;
    }
    let tried = receiver.taken().len();
    let failed = deliveries(&test, &own, "?state=failed").await;
    let replay = format!("/v1/webhook-deliveries/{}/replay", failed[0].id);
    let (status, answer) = test.post(&replay, &json!({})).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    receiver.answers(&[500; 3]);
    for _ in 0..6 {
        courier::tick(&test.app).await.unwrap();
        test.advance(TimeDelta::hours(1)).await;
    }
    assert_eq!(receiver.taken().len(), 4, "{tried} tries before");
    let seen = deliveries(&test, &own, "?state=delivered").await;
    assert_eq!(usize::try_from(seen[0].attempts).unwrap(), tried + 4);
}

/// A process that stands still while it gets its token sends nothing once another one has shown what is newer.
#[sqlx::test(migrations = false)]
async fn a_status_is_not_sent_by_a_process_that_stood_still(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template(false)).await;
    let host = Host::default();
    let app = json!({"app_id": "Iv23abc", "installation_id": 77, "private_key": KEY});
    let target = json!({"host": "github", "repository": "acme/legal", "api_url": host.start().await, "app": app});
    assert_eq!(set(&test, &own, &target).await.0, StatusCode::OK);
    let run = started(&test, &own, FIRST).await;
    let until = host.hold_tokens();
    let slow = test.replica("slow");
    let held = tokio::spawn(async move { commit_statuses::tick(&slow).await.unwrap() });
    while host.waiting() == 0 {
        real_sleep(Duration::from_millis(10)).await;
    }
    // Its claim runs out, and another process shows the run as it is now.
    host.let_tokens_pass();
    test.advance(TimeDelta::minutes(4)).await;
    sent(&test).await;
    let shown = host.taken();
    let shown = shown.iter().filter(|one| one.what.contains("check-runs"));
    assert_eq!(shown.count(), 1);
    until.notify_one();
    held.await.unwrap();
    let late = host.taken();
    assert!(
        !late.iter().any(|one| one.what.contains("check-runs")),
        "{late:#?}"
    );
    let status = read(&test, &run).await.commit_status.unwrap();
    assert_eq!(status.state, DeliveryState::Delivered);
}

/// A clock that was hours ahead is put right: what waits besides trials is due at once, and a status that was given up stays
/// so, although its last claim's time is still ahead.
#[sqlx::test(migrations = false)]
async fn a_clock_that_is_put_right_leaves_nothing_waiting_for_hours(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (own, _host) = told(&test, &template(false)).await;
    for commit in [FIRST, &FIRST.replace('4', "5")] {
        started(&test, &own, commit).await;
    }
    let endpoint = created_endpoint(&test, &served("one")).await;
    let now = test.app.clock.now();
    let ahead = now + TimeDelta::hours(6);
    for sql in [
        "UPDATE endpoints SET due_at = $1",
        "UPDATE ci_statuses SET due_at = $1, held_until = $1",
    ] {
        sqlx::query(sql).bind(ahead).execute(&pool).await.unwrap();
    }
    let given_up = "UPDATE ci_statuses SET state = 'failed', due_at = NULL
                    WHERE run_id = (SELECT min(run_id::text)::uuid FROM ci_statuses)";
    let done = sqlx::query(given_up).execute(&pool).await.unwrap();
    assert_eq!(done.rows_affected(), 1, "{endpoint}");
    let quarantine = TimeDelta::minutes(10);
    let store = &test.app.store;
    store.clock_stepped_back(now, quarantine).await.unwrap();
    let late = "SELECT (SELECT count(*) FROM endpoints WHERE due_at > $1)
                     + (SELECT count(*) FROM ci_statuses WHERE due_at > $1 OR due_at IS NOT NULL AND held_until > $1)";
    let late: i64 = sqlx::query_scalar(late)
        .bind(now)
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(late, 0);
    let failed = "SELECT count(*) FROM ci_statuses WHERE state = 'failed' AND due_at IS NULL";
    assert_eq!(number(&pool, failed).await, 1);
}
