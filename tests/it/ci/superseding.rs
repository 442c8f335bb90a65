//! A newer commit of a branch ends the runs of earlier ones, in whatever order their webhooks come; a script ends none.

use bakeoff_domain::ci::commit_status::CiState;
use bakeoff_domain::ci::gate::Verdict;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_service::tasks;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::ci::commit_status::{Host, set};
use crate::ci::one_bill::{
    EXPERIMENTS, FIRST, SECOND, THIRD, gated, judged, push, pushed, read, run_in, template,
    unmeasured,
};
use crate::ci::triggers::{created, from_github, led_to, send};
use crate::support::{TestApp, number};

/// A newer push ends the run of the one before: its job is stopped, and its status says by which commit.
#[sqlx::test(migrations = false)]
async fn a_newer_commit_ends_the_runs_before_it(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    let host = Host::default();
    let target = json!({"host": "github", "repository": "acme/legal", "api_url": host.start().await, "token": "ghp_x"});
    assert_eq!(set(&test, &own, &target).await.0, StatusCode::OK);
    let first = run_in(&pushed(&test, &own, &push("topic", THIRD, FIRST)).await);
    let on_main =
        run_in(&pushed(&test, &own, &push("main", THIRD, &FIRST.replace('4', "5"))).await);
    test.tick().await;
    assert_eq!(test.jobs().await.len(), 2);
    let second = run_in(&pushed(&test, &own, &push("topic", FIRST, SECOND)).await);
    run_in(&pushed(&test, &own, &push("main", FIRST, &SECOND.replace('b', "a"))).await);
    test.tick().await;
    let ended = read(&test, &first).await;
    assert_eq!(ended.summary, format!("superseded by {SECOND}"));
    assert_eq!(
        (ended.verdict, ended.state),
        (Some(Verdict::Error), CiState::Error)
    );
    assert_eq!(ended.superseded_by.unwrap().to_string(), second);
    tasks::commit_statuses::tick(&test.app).await.unwrap();
    let shown = host.taken();
    let of_first = format!("POST /api/repos/acme/legal/statuses/{FIRST}");
    let last = shown.iter().rfind(|one| one.what == of_first).unwrap();
    assert_eq!(last.body["description"], format!("superseded by {SECOND}"));
    // The baseline's branch is measured commit by commit.
    assert_eq!(read(&test, &on_main).await.superseded_by, None);
    let experiment = ended.experiment_ids[0].to_string();
    test.run_until_ended(&experiment, 24).await;
    let view = test.experiment(&experiment).await;
    assert_eq!(view.state, ExperimentState::Cancelled, "{view:#?}");
    assert!(judged(&test, &second).await.verdict.is_some());
    // A script whose job waited for long joins what became of its commit, and ends nothing.
    let late = json!({"delivery_id": "1", "commit": FIRST, "branch": "topic"});
    assert_eq!(run_in(&gated(&test, &own, &late).await), first);
    // The branch is put back: the commit is measured after all.
    let back = run_in(&pushed(&test, &own, &push("topic", SECOND, FIRST)).await);
    assert_ne!(back, first);
    assert_eq!(read(&test, &back).await.superseded_by, None);
    // And by two commits at once.
    let fourth = SECOND.replace('b', "d");
    run_in(&pushed(&test, &own, &push("topic", FIRST, SECOND)).await);
    run_in(&pushed(&test, &own, &push("topic", SECOND, &fourth)).await);
    let back = run_in(&pushed(&test, &own, &push("topic", &fourth, FIRST)).await);
    assert_eq!(read(&test, &back).await.superseded_by, None);
}

/// Only the host knows the order of commits: the job of an older commit may arrive later.
#[sqlx::test(migrations = false)]
async fn a_script_ends_no_run(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    let told =
        |id: &str, commit: &str| json!({"delivery_id": id, "commit": commit, "branch": "topic"});
    let before = SECOND.replace('b', "e");
    let newest = run_in(&pushed(&test, &own, &push("topic", &before, THIRD)).await);
    let newer = run_in(&gated(&test, &own, &told("2", SECOND)).await);
    let older = run_in(&gated(&test, &own, &told("1", FIRST)).await);
    test.tick().await;
    for run in [&newest, &newer, &older] {
        let seen = read(&test, run).await;
        assert_eq!((seen.superseded_by, seen.verdict), (None, None));
    }
}

/// Webhooks may come in any order: one that is older than what has come ends nothing, and is not measured.
#[sqlx::test(migrations = false)]
async fn an_older_push_that_comes_late_ends_nothing(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = created(&test, &template()).await;
    let second = run_in(&pushed(&test, &own, &push("topic", FIRST, SECOND)).await);
    let (status, late) = pushed(&test, &own, &push("topic", THIRD, FIRST)).await;
    assert_eq!(status, StatusCode::OK, "{late:#}");
    let why = format!("superseded by {SECOND}, a newer commit whose webhook came first");
    assert_eq!(led_to(&late).ignored, Some(why));
    assert_eq!(unmeasured(&test, &own).await.len(), 1);
    test.tick().await;
    assert_eq!(read(&test, &second).await.superseded_by, None);
    assert_eq!(number(&pool, EXPERIMENTS).await, 1);
}

/// A push with the time of its commit, as GitHub tells it.
fn push_of(before: &str, commit: &str, made_at: &str) -> Value {
    let mut told = push("topic", before, commit);
    told["head_commit"]["timestamp"] = json!(made_at);
    told
}

/// The same, as GitLab tells it.
fn gitlab_push_of(before: &str, commit: &str, made_at: &str) -> Value {
    json!({"object_kind": "push", "ref": "refs/heads/topic", "before": before, "checkout_sha": commit,
        "project": {"id": 9, "path_with_namespace": "acme/legal"},
        "commits": [{"id": THIRD, "timestamp": "2024-01-01T00:00:00Z"}, {"id": commit, "timestamp": made_at}]})
}

/// While a service is away, webhooks are lost; one that is sent again afterwards is older than the head, which names
/// another commit as the one before it.
#[sqlx::test(migrations = false)]
async fn of_pushes_that_were_never_told_the_commits_time_decides(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for is_gitlab in [false, true] {
        let mut body = template();
        body["name"] = json!(format!("{is_gitlab}"));
        let own = created(&test, &body).await;
        let told = async |before: &str, commit: &str, made_at: &str| {
            let answer = if is_gitlab {
                let headers = [("x-gitlab-token", own.secret.as_str())];
                let body = gitlab_push_of(before, commit, made_at);
                send(&test, &own.gitlab_path, &headers, &body.to_string()).await
            } else {
                pushed(&test, &own, &push_of(before, commit, made_at)).await
            };
            run_in(&answer)
        };
        let never_told = SECOND.replace('b', "e");
        let head = told(&never_told, SECOND, "2025-03-01T10:00:00+01:00").await;
        let late = told(THIRD, FIRST, "2025-03-01T08:30:00Z").await;
        test.tick().await;
        for run in [&head, &late] {
            assert_eq!(read(&test, run).await.superseded_by, None, "{is_gitlab}");
        }
        // The next push ends both: it comes after one, and its commit is later than the other's.
        let fourth = SECOND.replace('b', "d");
        let next = told(SECOND, &fourth, "2025-03-01T09:30:00Z").await;
        for run in [&head, &late] {
            let by = read(&test, run).await.superseded_by.unwrap();
            assert_eq!(by.to_string(), next, "{is_gitlab}");
        }
    }
}

/// The event of a pull request, which tells no commit's time.
fn pull_request(before: &str, commit: &str, updated_at: &str) -> Value {
    json!({"action": "synchronize", "number": 12, "before": before, "repository": {"id": 7, "full_name": "acme/legal"},
        "pull_request": {"updated_at": updated_at, "head": {"ref": "topic", "sha": commit, "repo": {"id": 7}},
                         "base": {"repo": {"id": 7}}}})
}

/// The same of a pull request's events; one of a commit whose run has ended does not have it measured again.
#[sqlx::test(migrations = false)]
async fn a_late_event_of_a_pull_request_ends_and_repeats_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let never_told = SECOND.replace('b', "e");
    let asked = async |before: &str, commit: &str, updated_at: &str| {
        let body = pull_request(before, commit, updated_at).to_string();
        run_in(&from_github(&test, &own, "pull_request", &body).await)
    };
    let first = run_in(&pushed(&test, &own, &push_of(THIRD, FIRST, "2025-03-01T08:00:00Z")).await);
    let head = asked(&never_told, SECOND, "2025-03-01T10:00:00Z").await;
    let by = read(&test, &first).await.superseded_by.unwrap();
    assert_eq!(by.to_string(), head);
    // Its pull request's event has waited for long.
    let late = asked(THIRD, FIRST, "2025-03-01T08:00:01Z").await;
    assert_eq!(late, first);
    let fourth = SECOND.replace('b', "d");
    let unseen = asked(FIRST, &fourth, "2025-03-01T09:00:00Z").await;
    assert_ne!(unseen, head);
    assert_eq!(read(&test, &head).await.superseded_by, None);
}

/// A script has told of the commit before its push, whose webhook comes after that of the next one.
#[sqlx::test(migrations = false)]
async fn a_late_push_of_what_a_script_has_told_ends_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let told = json!({"delivery_id": "1", "commit": FIRST, "branch": "topic"});
    let first = run_in(&gated(&test, &own, &told).await);
    let second = run_in(&pushed(&test, &own, &push("topic", FIRST, SECOND)).await);
    let late = run_in(&pushed(&test, &own, &push("topic", THIRD, FIRST)).await);
    assert_eq!(late, first);
    assert_eq!(read(&test, &second).await.superseded_by, None);
    let by = read(&test, &first).await.superseded_by.unwrap();
    assert_eq!(by.to_string(), second);
}

/// A branch comes to a commit that another branch has had measured: nothing new runs, and what it had before ends.
#[sqlx::test(migrations = false)]
async fn a_newer_commit_that_joins_a_run_ends_those_before_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template()).await;
    let measured = run_in(&pushed(&test, &own, &push("other", THIRD, SECOND)).await);
    let first = run_in(&pushed(&test, &own, &push("topic", THIRD, FIRST)).await);
    let joined = run_in(&pushed(&test, &own, &push("topic", FIRST, SECOND)).await);
    assert_eq!(joined, measured);
    let by = read(&test, &first).await.superseded_by.unwrap();
    assert_eq!(by.to_string(), measured);
    assert_eq!(read(&test, &measured).await.superseded_by, None);
}

/// `supersede` turned off, and turned on for all branches.
#[sqlx::test(migrations = false)]
async fn superseding_is_a_setting(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for (setting, branch, is_ended) in [(false, "topic", false), (true, "main", true)] {
        let mut body = template();
        body["name"] = json!(format!("{setting}"));
        body["settings"]["supersede"] = json!(setting);
        let own = created(&test, &body).await;
        let first = run_in(&pushed(&test, &own, &push(branch, THIRD, FIRST)).await);
        pushed(&test, &own, &push(branch, FIRST, SECOND)).await;
        test.tick().await;
        let ended = read(&test, &first).await.superseded_by.is_some();
        assert_eq!(ended, is_ended, "{setting} {branch}");
    }
}
