//! The gate: from a push to a verdict, for a commit that is dearer, for equal ones, for one that fails; measured again,
//! accepted, and told to CI.

use std::path::Path;
use std::process::{Command, Output};

use bakeoff_api::ci::CiSecret;
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::events::EventData;
use bakeoff_domain::ci::commit_status::CiState;
use bakeoff_domain::ci::gate::Verdict;
use bakeoff_domain::event::EventSeverity;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_service::tasks;
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::ci::commit_status;
use crate::ci::triggers::{REPOSITORY, created, from_github, led_to, pointers, run_of, trigger};
use crate::support::{TestApp, number, on_p5, problem, scratch, spec};

const GOOD: &str = "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60";
const DEARER: &str = "b00b1e5d7e55d3b0a8c6f4e2019b7d5c3a1f8e61";
/// 8 % dearer per token.
const AT_THE_SPEED: &str = "b00b1e5=0.9259";

/// A gate on dollars per token, for pushes to main.
fn template(repeats: u32) -> Value {
    let mut spec = on_p5(repeats);
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    json!({"name": "nightly", "spec": spec, "settings": {"branches": ["main"], "pull_requests": true, "gate": {
        "limits": [{"measure": "usd_per_million_tokens"}], "baseline_branch": "main"}}})
}

fn push(commit: &str) -> String {
    json!({"ref": "refs/heads/main", "after": commit, "deleted": false,
        "repository": {"full_name": "acme/legal"}, "head_commit": {"id": commit}})
    .to_string()
}

/// What CI has started for a push.
async fn pushed(test: &TestApp, own: &CiSecret, commit: &str) -> String {
    let (status, answer) = from_github(test, own, "push", &push(commit)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    run_of(&answer)
}

async fn read(test: &TestApp, id: &str) -> CiRunView {
    test.read(&format!("/v1/ci-runs/{id}")).await
}

/// In steps of ten minutes until there is a verdict.
async fn judged(test: &TestApp, id: &str) -> CiRunView {
    for _ in 0..200 {
        test.tick().await;
        let run = read(test, id).await;
        if run.verdict.is_some() {
            return run;
        }
        test.advance(TimeDelta::minutes(10)).await;
    }
    panic!("no verdict: {:#?}", read(test, id).await);
}

async fn judged_push(test: &TestApp, own: &CiSecret, commit: &str) -> CiRunView {
    let id = pushed(test, own, commit).await;
    judged(test, &id).await
}

/// `bakeoff gate` on the machine of CI; in a thread, because it waits for the service.
async fn gate(test: &TestApp, args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bakeoff"));
    command
        .arg("gate")
        .args(args)
        .env("BAKEOFF_URL", &test.url)
        .env("BAKEOFF_API_KEY", &test.admin)
        .current_dir(folder);
    let output = tokio::task::spawn_blocking(move || command.output());
    output.await.unwrap().unwrap()
}

/// Two commits, the second 8 % dearer: the push as GitHub signs it starts the gate, each run's request carries its own
/// image, the verdict says regressed with the figures, and so do the program's exit code and its reports.
#[sqlx::test(migrations = false)]
async fn a_dearer_commit_regresses_and_ci_hears_of_it(pool: PgPool) {
    let faults = ["--image-speed", AT_THE_SPEED, "--host-sd", "0.005"];
    let test = TestApp::with_faults(pool.clone(), &faults).await;
    let own = created(&test, &template(3)).await;
    let host = commit_status::Host::default();
    let target = json!({"host": "github", "repository": "acme/legal", "api_url": host.start().await, "token": "ghp_x"});
    let (status, _) = commit_status::set(&test, &own, &target).await;
    assert_eq!(status, StatusCode::OK);
    let first = judged_push(&test, &own, GOOD).await;
    // There is nothing to compare the first one with: it is the baseline of the next.
    assert_eq!(first.verdict, Some(Verdict::Inconclusive), "{first:#?}");
    assert_eq!(
        (first.state, first.accepted_by.as_deref()),
        (CiState::Success, Some("rule"))
    );
    assert_eq!(
        first.experiment_ids.len(),
        1,
        "another round would not help"
    );
    let second = judged_push(&test, &own, DEARER).await;
    assert_eq!(second.verdict, Some(Verdict::Regressed), "{second:#?}");
    assert_eq!((second.state, second.accepted_at), (CiState::Failure, None));
    test.tick().await;
    let shown = host.taken();
    let last = shown.last().unwrap();
    assert_eq!(
        last.what,
        format!("POST /api/repos/acme/legal/statuses/{DEARER}")
    );
    assert_eq!(
        (&last.body["state"], &last.body["description"]),
        (&json!("failure"), &json!(second.summary))
    );
    // Both commits, pending and judged.
    assert_eq!(shown.len(), 4, "{shown:#?}");
    let change = second.limits[0].change.unwrap();
    assert!(
        (change.percent - 8.0).abs() < 2.0 && change.low_percent > 0.0,
        "{change:?}"
    );
    assert!(
        second.summary.starts_with("regressed: p5: $"),
        "{}",
        second.summary
    );
    for run in [&first, &second] {
        let experiment = run.experiment_ids[0].to_string();
        for trial in test.trials(&experiment).await {
            let job = format!(
                "SELECT job_name FROM jobs WHERE trial_id = '{}'",
                trial.id.0
            );
            let job: String = sqlx::query_scalar(sqlx::AssertSqlSafe(job))
                .fetch_one(&pool)
                .await
                .unwrap();
            let url = format!("{}/_sim/requests/{job}", test.region.url);
            let sent: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
            let digest = run.image_digest.as_ref().unwrap();
            let image = format!("{REPOSITORY}@{digest}");
            assert_eq!(sent["AlgorithmSpecification"]["TrainingImage"], image);
        }
    }
    assert_ne!(first.image_digest, second.image_digest);
    let folder = scratch("gate");
    let id = second.id.to_string();
    let args = [
        "--run",
        &id,
        "--markdown",
        "summary.md",
        "--junit",
        "junit.xml",
    ];
    let output = gate(&test, &args, &folder).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let summary = std::fs::read_to_string(folder.join("summary.md")).unwrap();
    assert!(
        summary.contains("### ❌ regressed — nightly at b00b1e5d7e55"),
        "{summary}"
    );
    let junit = std::fs::read_to_string(folder.join("junit.xml")).unwrap();
    assert!(
        junit.contains("failures=\"1\"") && junit.contains("usd_per_million_tokens"),
        "{junit}"
    );
    let output = gate(&test, &["--run", &first.id.to_string()], &folder).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = gate(
        &test,
        &["--run", &first.id.to_string(), "--by-policy"],
        &folder,
    )
    .await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // The alarm of the feed.
    let events = test.events(&second.experiment_ids[0].to_string()).await;
    let told = events.iter().find_map(|one| match &one.data {
        Some(EventData::CiDecided(news)) => Some((one.severity, news.run_id)),
        _ => None,
    });
    assert_eq!(told, Some((EventSeverity::Warning, second.id)));
}

/// A change that costs more and was meant: once accepted, later commits are compared with it, and the release says how
/// far it has come.
#[sqlx::test(migrations = false)]
async fn an_accepted_change_begins_a_level(pool: PgPool) {
    let faults = ["--image-speed", AT_THE_SPEED, "--host-sd", "0.005"];
    let test = TestApp::with_faults(pool, &faults).await;
    let own = created(&test, &template(3)).await;
    let first = judged_push(&test, &own, GOOD).await;
    let release = format!("/v1/ci-templates/{}/release", own.id);
    let (status, _) = test.put(&release, &json!({"run_id": first.id})).await;
    assert_eq!(status, StatusCode::OK);
    let second = judged_push(&test, &own, DEARER).await;
    let path = format!("/v1/ci-runs/{}/acceptance", second.id);
    let (status, answer) = test.put(&path, &json!({"accepted": true})).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let accepted: CiRunView = serde_json::from_value(answer).unwrap();
    assert_eq!(
        (accepted.begins_level, accepted.state),
        (true, CiState::Success)
    );
    let output = gate(&test, &["--run", &second.id.to_string()], &scratch("gate")).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // The same code again, under another commit.
    let third = DEARER.replace("e61", "e62");
    let third = judged_push(&test, &own, &third).await;
    assert_eq!(third.verdict, Some(Verdict::Passed), "{third:#?}");
    let crept = third.limits[0].release.unwrap();
    assert!(crept.low_percent > 3.0, "{crept:?}");
    // Taken back: the level is the first one again.
    let (status, _) = test.put(&path, &json!({"accepted": false})).await;
    assert_eq!(status, StatusCode::OK);
    let (status, _) = test.put(&release, &json!({"run_id": null})).await;
    assert_eq!(status, StatusCode::OK);
    let good = GOOD.replace("e60", "e63");
    let fourth = judged_push(&test, &own, &good).await;
    assert_ne!(fourth.verdict, Some(Verdict::Regressed), "{fourth:#?}");
    assert!(fourth.limits[0].release.is_none());
}

/// What fails is an error, not a pass; it is no baseline, and cannot be accepted.
#[sqlx::test(migrations = false)]
async fn a_commit_that_fails_is_an_error(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--fails", "ml.p5.48xlarge=cuda-out-of-memory"]).await;
    let own = created(&test, &template(1)).await;
    let run = judged_push(&test, &own, GOOD).await;
    assert_eq!(
        (run.verdict, run.state),
        (Some(Verdict::Error), CiState::Error),
        "{run:#?}"
    );
    assert!(
        run.summary.starts_with("error: p5 was not measured: "),
        "{}",
        run.summary
    );
    assert_eq!((run.unmeasured.len(), run.accepted_at), (1, None));
    let path = format!("/v1/ci-runs/{}/acceptance", run.id);
    let (status, problem) = test.put(&path, &json!({"accepted": true})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem:#}");
    let folder = scratch("gate");
    let output = gate(
        &test,
        &["--run", &run.id.to_string(), "--junit", "junit.xml"],
        &folder,
    )
    .await;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let junit = std::fs::read_to_string(folder.join("junit.xml")).unwrap();
    assert!(junit.contains("errors=\"1\""), "{junit}");
    let wrong = [&["--template", "nonsense"][..], &[], &["--run", "cir_7"]];
    for args in wrong {
        let output = gate(&test, args, &folder).await;
        assert_eq!(output.status.code(), Some(64), "{output:?}");
    }
    let missing = format!("cir_{}", "0".repeat(32));
    let output = gate(&test, &["--run", &missing], &folder).await;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("there is no CI run"), "{said}");
}

/// A trial whose quota is nothing is left out of the verdict. Resumed afterwards, it would be paid for, and the next
/// delivery of its commit would pay for it again.
#[sqlx::test(migrations = false)]
async fn what_a_verdict_left_out_is_not_resumed(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota-of", "ml.p4de.24xlarge=0"]).await;
    test.tick().await;
    let mut body = template(1);
    let image = body["spec"]["workload"]["image"].take();
    body["spec"] = spec();
    body["spec"]["workload"]["image"] = image;
    let own = created(&test, &body).await;
    let run = judged_push(&test, &own, GOOD).await;
    assert!(
        run.summary.contains("p4de was not measured"),
        "{}",
        run.summary
    );
    let experiment = run.experiment_ids[0];
    let path = format!("/v1/experiments/{experiment}/resume");
    let (status, answer) = test.post(&path, &json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer:#}");
    let problem = problem(answer);
    assert_eq!(problem.code, "ci-run-is-judged", "{problem:#?}");
    test.tick().await;
    let states = test.trials(&experiment.to_string()).await;
    assert_eq!(states[0].state, TrialState::Parked);
}

/// What a person has to look at, or has cancelled, is an error: CI does not wait for days, and nothing is accepted.
#[sqlx::test(migrations = false)]
async fn a_run_that_nobody_ends_is_an_error(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--deny", "sagemaker:CreateTrainingJob"]).await;
    let own = created(&test, &template(1)).await;
    let run = judged_push(&test, &own, GOOD).await;
    assert_eq!(
        (run.verdict, run.accepted_at),
        (Some(Verdict::Error), None),
        "{run:#?}"
    );
    assert!(run.summary.contains("denied"), "{}", run.summary);
    // What waited for a person waits no longer: resumed, it would be paid for, and change nothing.
    let left = run.experiment_ids[0].to_string();
    test.run_until_ended(&left, 1).await;
    let resume = format!("/v1/experiments/{left}/resume");
    assert_eq!(test.post(&resume, &json!({})).await.0, StatusCode::OK);
    assert_eq!(
        test.experiment(&left).await.state,
        ExperimentState::Cancelled
    );
    let id = pushed(&test, &own, DEARER).await;
    let experiment = read(&test, &id).await.experiment_ids[0];
    test.post(&format!("/v1/experiments/{experiment}/cancel"), &json!({}))
        .await;
    let run = judged(&test, &id).await;
    assert_eq!(run.verdict, Some(Verdict::Error));
    assert!(run.summary.contains("cancelled"), "{}", run.summary);
}

/// Trials that a race may stop, or that share warm instances, are not what a gate compares.
#[sqlx::test(migrations = false)]
async fn a_gate_takes_only_trials_that_compare(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut racing = template(1);
    racing["spec"]["stopping_policy"] = json!("race");
    racing["spec"]["keep_alive_seconds"] = json!(600);
    racing["settings"]["gate"]["limits"] = json!([]);
    let (status, answer) = test.post("/v1/ci-templates", &racing).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    assert_eq!(
        pointers(answer),
        [
            "/settings/gate/limits",
            "/spec/stopping_policy",
            "/spec/keep_alive_seconds"
        ]
    );
}

/// An inconclusive commit is measured again, once per round, whoever looks; then it has a verdict.
#[sqlx::test(migrations = false)]
async fn an_inconclusive_commit_is_measured_again_and_each_round_once(pool: PgPool) {
    let faults = ["--image-speed", "b00b1e5=0.96", "--host-sd", "0.02"];
    let test = TestApp::with_faults(pool.clone(), &faults).await;
    let own = created(&test, &template(1)).await;
    judged_push(&test, &own, GOOD).await;
    // Against one trial, 4 % are within what hosts differ by.
    let id = pushed(&test, &own, DEARER).await;
    let other = test.replica("other");
    for _ in 0..60 {
        test.tick_without_post_mortems().await;
        let (one, two) = tokio::join!(tasks::gate::tick(&test.app), tasks::gate::tick(&other));
        one.and(two).unwrap();
        if read(&test, &id).await.experiment_ids.len() == 2 {
            break;
        }
        test.advance(TimeDelta::minutes(10)).await;
    }
    let run = judged(&test, &id).await;
    assert_eq!(run.verdict, Some(Verdict::Inconclusive), "{run:#?}");
    assert_eq!((run.experiment_ids.len(), run.limits[0].trials), (3, 3));
    let rounds = "SELECT count(*) FROM ci_rounds";
    assert_eq!(number(&pool, rounds).await, 4);
    assert_eq!(number(&pool, "SELECT count(*) FROM experiments").await, 4);
    assert_eq!(
        number(
            &pool,
            "SELECT count(*) FROM events WHERE kind = 'ci.decided'"
        )
        .await,
        2
    );
    // Names say which round it is.
    let last = test.experiment(&run.experiment_ids[2].to_string()).await;
    assert!(last.name.ends_with(" (3)"), "{last:#?}");
}

/// Equal commits, each on hosts of its own: at most one in twenty is called worse.
#[sqlx::test(migrations = false)]
async fn equal_commits_pass_from_end_to_end(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--host-sd", "0.01"]).await;
    let mut once = template(1);
    // One trial alone would call one in nine worse.
    once["settings"]["gate"]["rounds"] = json!(1);
    let (status, answer) = test.post("/v1/ci-templates", &once).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    assert_eq!(pointers(answer)[0], "/settings/gate/rounds");
    once["settings"]["gate"]["rounds"] = json!(2);
    let own = created(&test, &once).await;
    let mut verdicts = Vec::new();
    for number in 0..21 {
        let commit = GOOD.replace("1f8e60", &format!("{number:06x}"));
        let run = judged_push(&test, &own, &commit).await;
        verdicts.push((run.verdict.unwrap(), run.summary));
    }
    let count = |verdict| verdicts.iter().filter(|one| one.0 == verdict).count();
    assert!(count(Verdict::Regressed) <= 1, "{verdicts:#?}");
    // One trial alone can pass with a spread of 1 %.
    assert!(count(Verdict::Passed) >= 6, "{verdicts:#?}");
}

/// Pull requests are compared with their base, and are no baseline of anything.
#[sqlx::test(migrations = false)]
async fn a_pull_request_is_judged_and_never_a_baseline(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let own = created(&test, &template(5)).await;
    judged_push(&test, &own, GOOD).await;
    let body = json!({"delivery_id": "7", "commit": DEARER, "pull_request": 7, "branch": "main"});
    let (status, answer) = trigger(&test, &own, &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    let run = judged(&test, &run_of(&answer)).await;
    assert_eq!(
        (run.verdict, run.accepted_at),
        (Some(Verdict::Passed), None),
        "{run:#?}"
    );
    let found: Vec<CiRunView> = test
        .page(&format!("/v1/ci-runs?commit={DEARER}&verdict=passed"))
        .await;
    assert_eq!(found.len(), 1);
    let found: Vec<CiRunView> = test.page("/v1/ci-runs?verdict=regressed").await;
    assert_eq!(found.len(), 0);
    let report = test.get(&format!("/v1/ci-runs/{}/report", run.id)).await;
    assert!(
        report
            .as_str()
            .unwrap()
            .starts_with("### ✅ passed — nightly at b00b1e5d7e55"),
        "{report}"
    );
    // With an API key in place of a signature, and the delivery counts once.
    let path = format!("/v1/ci-templates/{}/runs", own.id);
    let body = json!({"delivery_id": "8", "commit": GOOD});
    let other = json!({"delivery_id": "8", "commit": DEARER});
    let (one, two) = (test.post(&path, &body).await, test.post(&path, &body).await);
    assert_eq!(
        (one.0, two.0),
        (StatusCode::ACCEPTED, StatusCode::ACCEPTED),
        "{:#}",
        one.1
    );
    assert_eq!(run_of(&one.1), run_of(&two.1));
    assert!(led_to(&two.1).duplicate, "{:#}", two.1);
    assert_eq!(test.post(&path, &other).await.0, StatusCode::CONFLICT);
    let (status, _) = test
        .send(test.request(Method::GET, "/v1/ci-runs", "nobody"))
        .await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}
