//! What CI runs run: the commit's image, waited for until it is in the repository, and then run by its digest, by all
//! trials and in every round.

use bakeoff_api::ci::CiSecret;
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_domain::ci::gate::Verdict;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_service::tasks;
use chrono::TimeDelta;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::ci::triggers::{REPOSITORY, created, led_to, run_of, trigger};
use crate::support::{TestApp, number, on_p5};

const COMMIT: &str = "4f2a9c1d7e55d3b0a8c6f4e2019b7d5c3a1f8e60";

fn template(repeats: u32) -> Value {
    let mut spec = on_p5(repeats);
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    json!({"name": "nightly", "spec": spec, "settings": {"branches": ["main"]}})
}

async fn started(test: &TestApp, own: &CiSecret) -> CiRunView {
    let body = json!({"delivery_id": "1", "commit": COMMIT, "branch": "main"});
    let (status, answer) = trigger(test, own, &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    read(test, &run_of(&answer)).await
}

async fn read(test: &TestApp, id: &str) -> CiRunView {
    test.read(&format!("/v1/ci-runs/{id}")).await
}

/// The images that the region was asked for.
async fn images(test: &TestApp) -> Vec<String> {
    let mut images = Vec::new();
    for job in test.jobs().await {
        let url = format!("{}/_sim/requests/{}", test.region.url, job.name);
        let sent: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        let image = &sent["AlgorithmSpecification"]["TrainingImage"];
        images.push(image.as_str().unwrap().to_owned());
    }
    images
}

/// The webhook comes before the image: nothing is created, and nothing is held of the budget, until it is there.
#[sqlx::test(migrations = false)]
async fn a_run_waits_for_its_image_and_pins_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    test.region_post("/_sim/setup", &json!({"no_image": true}))
        .await;
    let own = created(&test, &template(2)).await;
    let run = started(&test, &own).await;
    let experiment = run.experiment_ids[0].to_string();
    for _ in 0..5 {
        test.tick().await;
        test.advance(TimeDelta::minutes(10)).await;
    }
    assert_eq!(test.jobs().await.len(), 0);
    let view = test.experiment(&experiment).await;
    assert!(view.reserved_usd.as_f64() < 0.01, "{view:#?}");
    for trial in test.trials(&experiment).await {
        let reason = trial.reason.unwrap();
        assert!(
            trial.state == TrialState::Queued && reason.contains("waits for its image"),
            "{reason}"
        );
    }
    test.region_post("/_sim/setup", &json!({})).await;
    test.run_to_end(&experiment, 24).await;
    let view = test.experiment(&experiment).await;
    assert_eq!(view.state, ExperimentState::Completed, "{view:#?}");
    let run = read(&test, &run.id.to_string()).await;
    let digest = run.image_digest.unwrap();
    let images = images(&test).await;
    assert_eq!(images, vec![format!("{REPOSITORY}@{digest}"); 2]);
    // Asked for once, for both trials.
    let asked = test.calls("BatchGetImage").await;
    assert!(asked <= 7, "{asked}");
    let plan = test.trials(&experiment).await.remove(0).plan.unwrap();
    let plan = serde_json::to_string(&plan).unwrap();
    assert!(plan.contains(&digest), "{plan}");
}

/// An image that was never built: the run is an error, in hours and not in days.
#[sqlx::test(migrations = false)]
async fn an_image_that_never_comes_is_an_error(pool: PgPool) {
    let test = TestApp::new(pool).await;
    test.region_post("/_sim/setup", &json!({"no_image": true}))
        .await;
    let own = created(&test, &template(1)).await;
    let run = started(&test, &own).await;
    for _ in 0..14 {
        test.tick().await;
        test.advance(TimeDelta::minutes(10)).await;
    }
    test.tick().await;
    let run = read(&test, &run.id.to_string()).await;
    assert_eq!(run.verdict, Some(Verdict::Error), "{run:#?}");
    assert!(
        run.summary.contains("its image did not appear"),
        "{}",
        run.summary
    );
    assert_eq!(test.jobs().await.len(), 0);
    test.assert_nothing_leaks(&[]).await;
}

/// ECR's silence says nothing of an image, however long the trial has waited for something else.
#[sqlx::test(migrations = false)]
async fn a_registry_that_does_not_answer_ends_nothing(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let own = created(&test, &template(1)).await;
    let run = started(&test, &own).await;
    let experiment = run.experiment_ids[0].to_string();
    test.advance(TimeDelta::hours(3)).await;
    let (region, s3) = (test.region.url.clone(), test.region.s3_url.clone());
    test.call_aws_at("http://127.0.0.1:9", &s3).await;
    while tasks::scheduler::tick(&test.app).await.unwrap() > 0 {}
    let trial = test.trials(&experiment).await.remove(0);
    assert_eq!(trial.state, TrialState::Queued, "{trial:?}");
    assert!(trial.reason.unwrap().contains("waits for ECR"));
    test.call_aws_at(&region, &s3).await;
    test.run_to_end(&experiment, 24).await;
    let view = test.experiment(&experiment).await;
    assert_eq!(view.state, ExperimentState::Completed, "{view:#?}");
}

/// A required check does not hang for ever: after a day without an answer its run is an error that says why.
#[sqlx::test(migrations = false)]
async fn a_registry_that_never_answers_ends_the_run_after_a_day(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let own = created(&test, &template(1)).await;
    let run = started(&test, &own).await;
    let s3 = test.region.s3_url.clone();
    test.call_aws_at("http://127.0.0.1:9", &s3).await;
    let hours = async |count: u32| {
        for _ in 0..count {
            tasks::scheduler::tick(&test.app).await.unwrap();
            tasks::ci_waits::tick(&test.app).await.unwrap();
            // While a claim asks the registry, its trial is submitting, and the run goes on waiting all the same.
            submitting(&test, true).await;
            tasks::ci_waits::tick(&test.app).await.unwrap();
            submitting(&test, false).await;
            test.advance(TimeDelta::hours(1)).await;
        }
    };
    hours(24).await;
    let waiting = read(&test, &run.id.to_string()).await;
    assert_eq!(waiting.verdict, None, "{}", waiting.summary);
    assert!(
        waiting.summary.starts_with("pending: waits for ECR"),
        "{}",
        waiting.summary
    );
    hours(2).await;
    let ended = read(&test, &run.id.to_string()).await;
    assert_eq!(ended.verdict, Some(Verdict::Error), "{ended:#?}");
    let expected =
        "error: not measured, and cancelled: nothing could be created for 24 h (waits for ECR";
    assert!(ended.summary.starts_with(expected), "{}", ended.summary);
    let experiment = test.experiment(&run.experiment_ids[0].to_string()).await;
    assert!(experiment.reserved_usd.as_f64() < 0.01, "{experiment:#?}");
}

async fn submitting(test: &TestApp, is_so: bool) {
    let (from, to) = if is_so {
        ("queued", "submitting")
    } else {
        ("submitting", "queued")
    };
    sqlx::query("UPDATE trials SET state = $2 WHERE state = $1 AND reason LIKE 'waits for ECR%'")
        .bind(from)
        .bind(to)
        .execute(test.app.store.pool())
        .await
        .unwrap();
}

/// Who may not look runs what is written, which has the commit in its tag.
#[sqlx::test(migrations = false)]
async fn without_the_right_to_look_the_tag_is_sent(pool: PgPool) {
    let test = TestApp::new(pool).await;
    test.region_post("/_sim/setup", &json!({"deny": ["ecr:BatchGetImage"]}))
        .await;
    let own = created(&test, &template(1)).await;
    let run = started(&test, &own).await;
    test.tick().await;
    assert_eq!(images(&test).await, [format!("{REPOSITORY}:{COMMIT}")]);
    let run = read(&test, &run.id.to_string()).await;
    assert_eq!(run.image_digest, None);
    // Whatever its trials wait for later, it is no image.
    let waits = "SELECT count(*) FROM experiments WHERE pins_image";
    assert_eq!(number(test.app.store.pool(), waits).await, 0);
}

/// Only CI runs: an experiment of a person's sends what is written.
#[sqlx::test(migrations = false)]
async fn an_experiment_by_hand_asks_nobody(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut spec = on_p5(1);
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:1"));
    test.start(&spec).await;
    test.tick().await;
    assert_eq!(images(&test).await, [format!("{REPOSITORY}:1")]);
    assert_eq!(test.calls("BatchGetImage").await, 0);
}

/// The commit is in the request that SageMaker gets, and not in a label only.
#[sqlx::test(migrations = false)]
async fn what_runs_is_the_commit(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut open = template(1);
    open["spec"]["workload"]["image"] = json!("${ci.image}");
    open["spec"]["workload"]["hyperparameters"] = json!({"learning_rate": "${ci.hyperparameters.learning_rate}", "sha": "${ci.short_commit}"});
    open["settings"]["hyperparameters"] = json!({"learning_rate": "2e-5"});
    let own = created(&test, &open).await;
    let digest = format!("{REPOSITORY}@sha256:{}", "ab".repeat(32));
    let tagged = format!("{REPOSITORY}:ci-{}", &COMMIT[..7]);
    let bodies = [
        json!({"delivery_id": "1", "commit": COMMIT, "image": digest}),
        json!({"delivery_id": "2", "commit": COMMIT, "image": tagged, "hyperparameters": {"learning_rate": "1e-4"}}),
    ];
    for (body, (image, rate)) in bodies.iter().zip([(&digest, "2e-5"), (&tagged, "1e-4")]) {
        let (status, answer) = trigger(&test, &own, body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
        test.tick().await;
        let experiment = led_to(&answer).experiment_id.unwrap().to_string();
        let trial = test.trials(&experiment).await[0].id.to_string();
        let jobs = test.jobs().await;
        let job = jobs
            .iter()
            .find(|job| job.trial.as_deref() == Some(trial.as_str()))
            .unwrap();
        let url = format!("{}/_sim/requests/{}", test.region.url, job.name);
        let sent: Value = reqwest::get(url).await.unwrap().json().await.unwrap();
        // By the digest that the tag has now.
        let run = read(&test, &run_of(&answer)).await;
        let pinned = run
            .image_digest
            .map(|digest| format!("{REPOSITORY}@{digest}"));
        assert_eq!(
            sent["AlgorithmSpecification"]["TrainingImage"],
            *pinned.as_ref().unwrap_or(image)
        );
        assert_eq!(pinned.is_some(), *image == tagged);
        assert_eq!(sent["HyperParameters"]["learning_rate"], rate);
        assert_eq!(sent["HyperParameters"]["sha"], COMMIT[..12]);
    }
}
