//! The full run of an answer: what is sent, what it is refused for, and what is said of it.

use std::process::Command;

use bakeoff_api::calibration::Calibration;
use bakeoff_api::checkpoints::{
    CheckpointState, CheckpointView, CheckpointsView, CopyState, CopyView,
};
use bakeoff_api::decisions::RecommendationView;
use bakeoff_api::experiments::CreatedExperiment;
use bakeoff_api::full_runs::FullRunPreview;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::measure::calibration::Figure;
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_http::FieldError;
use bakeoff_service::auth::keys::Role;
use chrono::TimeDelta;
use reqwest::StatusCode;
use rust_decimal::Decimal;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, jobs, problem, spec};

/// Two types, of which one is far cheaper; with a place for checkpoints.
fn clear() -> Value {
    let mut spec = spec();
    spec["checkpoint"] = json!({"s3_uri": "s3://tests/checkpoints", "interval_seconds": 1800});
    spec["workload"]["trial_tokens"] = json!(300_000_000);
    spec["workload"]["total_tokens"] = json!(1_200_000_000);
    spec["keep_alive_seconds"] = json!(600);
    spec
}

async fn answered(test: &TestApp, spec: &Value) -> String {
    let id = test.start(spec).await;
    test.run_to_end(&id, 24).await;
    id
}

/// The body of a job as the region received it.
async fn body_of(test: &TestApp, job: &Value) -> Value {
    let name = job["name"].as_str().unwrap();
    let url = format!("{}/_sim/requests/{name}", test.region.url);
    let answer = test.client.get(url).send().await.unwrap();
    answer.json().await.unwrap()
}

async fn newest_body(test: &TestApp) -> Value {
    let record = test.record().await;
    body_of(test, jobs(&record).last().unwrap()).await
}

/// The id of what was started.
fn started((status, answer): (StatusCode, Value)) -> String {
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    let created: CreatedExperiment = serde_json::from_value(answer).unwrap();
    created.id.to_string()
}

/// The first thing that a wish is refused for.
fn refused((status, answer): (StatusCode, Value)) -> FieldError {
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
    problem(answer).errors.remove(0)
}

async fn recommendation(test: &TestApp, id: &str) -> RecommendationView {
    test.read(&format!("/v1/experiments/{id}/recommendation"))
        .await
}

#[sqlx::test(migrations = false)]
async fn it_sends_the_measured_body_and_goes_on_from_its_checkpoints(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = answered(&test, &clear()).await;
    let place = format!("/v1/experiments/{id}/full-run");
    let before = recommendation(&test, &id).await.recommendation;
    assert_eq!(before.conclusion, Conclusion::Clear, "{:?}", before.reasons);
    let winner = &before.ranked[0];

    let shown: FullRunPreview = test.read(&place).await;
    assert!(shown.plan.would_start && shown.checkpoint_at.is_some());
    assert_eq!(shown.full_run_of.trial_id, winner.trial_id);
    let [low, high] = shown.full_run_of.hours.unwrap();
    assert!(low < winner.projected_hours && winner.projected_hours < high);
    assert_eq!(test.jobs().await.len(), 2, "nothing was started");

    let wish = json!({"budget_usd": shown.budget_usd});
    let full = started(test.post(&place, &wish).await);
    test.tick().await;
    let record = test.record().await;
    let is_own = |job: &Value| job["trial"] == json!(winner.trial_id);
    let own = jobs(&record).into_iter().find(is_own).unwrap();
    let (of_trial, of_full) = (body_of(&test, &own).await, newest_body(&test).await);
    let folder = |body: &Value| {
        body["CheckpointConfig"]["S3Uri"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(folder(&of_trial), folder(&of_full));
    assert!(folder(&of_full).ends_with(&winner.trial_id.to_string()));
    // What remains different is the length, the limits and the names.
    let bare = |mut body: Value| {
        body["HyperParameters"]["max_steps"].take();
        body["StoppingCondition"].take();
        body["TrainingJobName"].take();
        body["ResourceConfig"]["KeepAlivePeriodInSeconds"].take();
        for key in [
            "BAKEOFF_ATTEMPT_ID",
            "BAKEOFF_TRIAL_ID",
            "BAKEOFF_PUSH_TOKEN",
            "TRAINING_JOB_NAME",
        ] {
            body["Environment"][key].take();
        }
        body["Tags"].take();
        body
    };
    let steps = |body: &Value| {
        body["HyperParameters"]["max_steps"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!(steps(&of_full).div_ceil(4), steps(&of_trial));
    assert_eq!(bare(of_trial), bare(of_full));

    let going = recommendation(&test, &full).await.recommendation;
    assert_eq!(
        (going.conclusion, going.provisional),
        (Conclusion::FullRun, true)
    );
    assert!(going.headline.contains("goes on"), "{}", going.headline);
    test.run_to_end(&full, 48).await;
    let ended = test.experiment(&full).await;
    assert_eq!(ended.state, ExperimentState::Completed);
    let run_of = ended.full_run_of.unwrap();
    assert_eq!(run_of.experiment_id.to_string(), id);
    let after = recommendation(&test, &full).await.recommendation;
    assert!(
        after.headline.contains(" took ") && after.headline.ends_with("as projected."),
        "{}",
        after.headline
    );
    // What the plan said of the trial is scored, and now also what the trial projected.
    let scored: Calibration = test.read("/v1/calibration").await;
    let rows: Vec<_> = (scored.rows.iter())
        .filter(|row| row.figure != Figure::TokensPerSecond)
        .collect();
    let figures: Vec<Figure> = rows.iter().map(|row| row.figure).collect();
    assert_eq!(
        figures,
        [
            Figure::TrialHours,
            Figure::TrialCostUsd,
            Figure::RemainingHours,
            Figure::FullRunHours,
            Figure::FullRunCostUsd
        ],
        "{scored:?}"
    );
    // Its price was as planned: hours and dollars are off by the same.
    let apart = rows[0].bias_percent - rows[1].bias_percent;
    assert!(apart.abs() < 2.0, "{scored:?}");
    // The answer that it came from has not changed.
    assert_eq!(
        recommendation(&test, &id).await.recommendation.headline,
        before.headline
    );
    // Its checkpoints are at the end now: another run starts at its first step, or not at all.
    let at_the_end = refused(test.post(&place, &wish).await);
    assert_eq!(at_the_end.pointer, "/from_checkpoint");
    // It may be run again now; a full run of a full run may not.
    let (status, again) = test
        .post(
            &place,
            &json!({"budget_usd": shown.budget_usd, "from_checkpoint": false}),
        )
        .await;
    assert_eq!(status, StatusCode::CREATED, "{again}");
    test.tick().await;
    assert!(!folder(&newest_body(&test).await).ends_with(&winner.trial_id.to_string()));
    let (status, of_full) = test
        .post(
            &format!("/v1/experiments/{full}/full-run"),
            &json!({"budget_usd": 9000}),
        )
        .await;
    assert_eq!(
        (status, problem(of_full).code.as_str()),
        (StatusCode::CONFLICT, "no_full_run")
    );
}

#[sqlx::test(migrations = false)]
async fn it_starts_once_and_only_when_there_is_an_answer(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&clear()).await;
    let place = format!("/v1/experiments/{id}/full-run");
    let (status, early) = test.post(&place, &json!({"budget_usd": 900})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let early = problem(early);
    assert!(early.detail.contains("still running"), "{early:?}");
    test.run_to_end(&id, 24).await;

    let refused_for = async |wish: Value| refused(test.post(&place, &wish).await);
    let other = refused_for(json!({"budget_usd": 900, "candidate": "p6"})).await;
    assert_eq!(other.pointer, "/candidate");
    assert!(other.detail.contains("ranked are"), "{other:?}");
    let poor = refused_for(json!({"budget_usd": 1})).await;
    assert_eq!(poor.pointer, "/budget_usd");
    assert!(poor.fix.contains("at least"), "{poor:?}");
    let odd = refused_for(json!({"budget_usd": 900, "budget": 1})).await;
    assert_eq!(odd.pointer, "/budget");

    let viewer = test.key(test.project, Role::Viewer).await;
    let foreign = test.key(test.other_project().await, Role::Admin).await;
    for (key, expected) in [
        (viewer, StatusCode::FORBIDDEN),
        (foreign, StatusCode::NOT_FOUND),
    ] {
        let request = test
            .client
            .post(format!("{}{place}", test.url))
            .bearer_auth(key);
        let (status, _) = test.send(request.json(&json!({"budget_usd": 900}))).await;
        assert_eq!(status, expected);
    }
    let short = json!({"budget_usd": 900, "max_runtime_seconds": 3600});
    assert_eq!(refused_for(short).await.pointer, "/max_runtime_seconds");
    // It is shown as it would be started.
    let asked = format!("{place}?from_checkpoint=false&max_runtime_seconds=90000");
    let shown: FullRunPreview = test.read(&asked).await;
    assert!(!shown.full_run_of.from_checkpoint && shown.checkpoint_at.is_none());
    assert_eq!(shown.spec.max_runtime_seconds, 90_000);
    assert_eq!(test.jobs().await.len(), 2, "nothing was started");

    let ask = || {
        let request = test
            .client
            .post(format!("{}{place}", test.url))
            .bearer_auth(&test.admin);
        request
            .header("idempotency-key", "buy")
            .json(&json!({"budget_usd": 900}))
    };
    let first = started(test.send(ask()).await);
    assert_eq!(started(test.send(ask()).await), first);
    let (status, second) = test.post(&place, &json!({"budget_usd": 900})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let second = problem(second);
    assert!(second.detail.contains("already under way"), "{second:?}");
    let cancel = format!("/v1/experiments/{first}/cancel");
    test.post(&cancel, &json!({})).await;
    test.run_to_end(&first, 4).await;
    let cancelled = recommendation(&test, &first).await;
    assert!(
        cancelled
            .recommendation
            .headline
            .contains(" was stopped after "),
        "{}",
        cancelled.recommendation.headline
    );
}

/// What is changed on purpose reaches the script, and what the plan owns cannot be changed.
#[sqlx::test(migrations = false)]
async fn hyperparameters_of_its_own_are_sent(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = answered(&test, &clear()).await;
    let place = format!("/v1/experiments/{id}/full-run");
    let asked = |key: &str| json!({"budget_usd": 900, "hyperparameters": {key: "7"}});
    let owned = refused(test.post(&place, &asked("max_steps")).await);
    assert_eq!(owned.pointer, "/workload/hyperparameters/max_steps");
    started(test.post(&place, &asked("seed")).await);
    test.tick().await;
    let body = newest_body(&test).await;
    assert_eq!(body["HyperParameters"]["seed"], json!("7"));
    assert_eq!(body["HyperParameters"]["num_hidden_layers"], json!("28"));
}

#[sqlx::test(migrations = false)]
async fn the_command_line_shows_it_first_and_starts_it_with_a_budget(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = answered(&test, &clear()).await;
    let buy = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bakeoff"));
        command
            .args(["buy", &id, "--url", &test.url, "--api-key", &test.admin])
            .args(more)
            .env_clear();
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let shown = buy(&[]).await.unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.status.success(),
        "{}",
        String::from_utf8_lossy(&shown.stderr)
    );
    for part in [
        "projected",
        "goes on from the trial's checkpoints",
        "to start it:",
        "--budget-usd",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let budget = text
        .split("--budget-usd ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    let json = buy(&["--json"]).await.unwrap();
    let preview: FullRunPreview = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(preview.budget_usd.0.to_string(), budget);
    let body = preview.plan.candidates[0]
        .create_training_job
        .as_ref()
        .unwrap();
    assert!(body["HyperParameters"]["max_steps"].is_string(), "{body}");
    let other = buy(&["--candidate", "p4de", "--from-scratch"])
        .await
        .unwrap();
    let text = String::from_utf8(other.stdout).unwrap();
    assert!(
        text.contains("--candidate 'p4de' --from-scratch --budget-usd"),
        "{text}"
    );
    assert!(
        !buy(&["--hyperparameter", "a=b"])
            .await
            .unwrap()
            .status
            .success()
    );
    let started = buy(&["--budget-usd", budget]).await.unwrap();
    let text = String::from_utf8(started.stdout).unwrap();
    assert!(
        started.status.success() && text.contains("test: full run"),
        "{text}"
    );
    let refused = buy(&["--budget-usd", budget]).await.unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && why.contains("already under way"),
        "{why}"
    );
    test.advance(TimeDelta::minutes(5)).await;
}

/// A run that goes on from a checkpoint that is not the newest: copied alone, with nothing else to restore.
#[sqlx::test(migrations = false)]
async fn it_goes_on_from_the_checkpoint_that_was_chosen(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--resumes"]).await;
    // What is written between two seconds is written at the first, to S3's headers.
    test.advance(TimeDelta::milliseconds(250)).await;
    let mut spec = clear();
    spec["workload"]["trial_tokens"] = json!(600_000_000);
    let id = answered(&test, &spec).await;
    let place = format!("/v1/experiments/{id}/full-run");
    let shown: FullRunPreview = test.read(&place).await;
    let trial = shown.full_run_of.trial_id;
    let all: CheckpointsView = test.read(&format!("/v1/trials/{trial}/checkpoints")).await;
    let whole: Vec<&CheckpointView> = all
        .checkpoints
        .iter()
        .filter(|one| one.state == CheckpointState::Complete)
        .collect();
    let [.., chosen, newest] = whole.as_slice() else {
        panic!("several checkpoints: {all:?}");
    };
    let step = chosen.step.expect("a step");
    assert!(step < newest.step.unwrap());
    assert_eq!(all.seen_interval_seconds, Some(1_800));
    let half_an_hour = all.losses.iter().find(|one| one.interval_seconds == 1_800);
    assert!(half_an_hour.is_some_and(|loss| loss.expected_usd.0 * Decimal::TWO == loss.most_usd.0));

    // Not before it is copied, and not one that is not there.
    let wish = json!({"budget_usd": shown.budget_usd, "checkpoint": chosen.name});
    let (status, refused) = test.post(&place, &wish).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refused}");
    assert!(
        refused.to_string().contains("checkpoints/copy"),
        "{refused}"
    );
    let copy = format!("/v1/trials/{trial}/checkpoints/copy");
    let (status, absent) = test
        .post(&copy, &json!({"checkpoint": "checkpoint-1"}))
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(absent.to_string().contains(&chosen.name), "{absent}");

    let copied = loop {
        let (status, body) = test.post(&copy, &json!({"checkpoint": chosen.name})).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let view: CopyView = serde_json::from_value(body).expect("a copy");
        if view.state == CopyState::Done {
            break view;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((copied.copied_objects, copied.step), (5, Some(step)));
    let earlier: FullRunPreview = test
        .read(&format!("{place}?checkpoint={}", chosen.name))
        .await;
    let (of, whole) = (&earlier.full_run_of, &shown.full_run_of);
    assert!(of.head_hours < whole.head_hours);
    assert_eq!(of.trial_cost_usd, whole.trial_cost_usd);
    assert_eq!(of.checkpoint.as_ref(), Some(&chosen.name));

    let full = started(test.post(&place, &wish).await);
    test.tick().await;
    let body = newest_body(&test).await;
    assert_eq!(
        body["CheckpointConfig"]["S3Uri"].as_str().unwrap(),
        copied.s3_uri
    );
    // The script goes on at its next step: it trains what is left, and no more.
    test.run_to_end(&full, 48).await;
    let record = test.record().await;
    let job = jobs(&record).pop().expect("its job");
    let hours = job["training_seconds"].as_f64().expect("seconds") / 3600.0;
    let steps: f64 = body["HyperParameters"]["max_steps"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("its length");
    let left = 1.0 - bakeoff_domain::number::real(step) / steps;
    let expected = earlier.full_run_of.projected_hours * left;
    assert!(
        left < 0.8 && (hours - expected).abs() < 0.1 * expected,
        "{hours} h for {left} of the steps, expected {expected} h"
    );
    // What the run wrote there is newer: another one begins with another copy.
    let (status, refused) = test.post(&place, &wish).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refused}");
    let (_, again) = test.post(&copy, &json!({"checkpoint": chosen.name})).await;
    let again: CopyView = serde_json::from_value(again).expect("a copy");
    assert!(
        again.s3_uri != copied.s3_uri && again.state == CopyState::Copying,
        "{again:?}"
    );
}
