//! What trials leave in S3: models, output files and checkpoints, against the region's real S3.

use std::collections::BTreeMap;

use bakeoff_api::artifacts::AttemptArtifactsView;
use bakeoff_api::checkpoints::{CheckpointState, CheckpointsView, PrunedView};
use bakeoff_api::diagnosis::{AttemptDiagnosisView, TrialDiagnosisView};
use bakeoff_api::trials::TrialView;
use bakeoff_domain::checkpoint::Writer;
use bakeoff_domain::checkpoint::keep::KeptFor;
use bakeoff_service::auth::keys::Role;
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, on_p5, problem};

/// One trial of some hours, which saves every half hour.
fn saving() -> Value {
    let mut spec = on_p5(1);
    spec["checkpoint"] = json!({"s3_uri": "s3://tests/checkpoints"});
    spec["workload"]["trial_tokens"] = json!(600_000_000);
    spec["max_runtime_seconds"] = json!(72_000);
    spec
}

async fn trial_of(test: &TestApp, experiment: &str) -> TrialView {
    let trials: Vec<TrialView> = test
        .page(&format!("/v1/experiments/{experiment}/trials?"))
        .await;
    test.read(&format!("/v1/trials/{}", trials[0].id)).await
}

#[sqlx::test(migrations = false)]
async fn checkpoints_are_listed_and_the_old_ones_go(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let experiment = test.start(&saving()).await;
    test.tick().await;
    for _ in 0..20 {
        test.advance(TimeDelta::minutes(5)).await;
        test.tick().await;
    }
    let trial = trial_of(&test, &experiment).await;
    let path = format!("/v1/trials/{}/checkpoints", trial.id);
    let running: CheckpointsView = test.read(&path).await;
    assert!(running.checkpoints.len() >= 2, "{running:?}");
    let copy = format!("{path}/copy");
    let viewer = test.key(test.project, Role::Viewer).await;
    let stranger = test.key(test.other_project().await, Role::Admin).await;
    for (key, expected) in [
        (&viewer, StatusCode::FORBIDDEN),
        (&stranger, StatusCode::NOT_FOUND),
    ] {
        let wish = json!({"checkpoint": running.checkpoints[0].name});
        let request = test.request(Method::POST, &copy, key).json(&wish);
        assert_eq!(test.send(request).await.0, expected);
    }
    let prune = |body: Value, key: &str| {
        let path = format!("/v1/trials/{}/checkpoints/prune", trial.id);
        let request = test.request(Method::POST, &path, key);
        test.send(request.json(&body))
    };
    let real = json!({"keep": 1, "dry_run": false});
    let (status, answer) = prune(real.clone(), &test.admin).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "checkpoints_in_use")
    );

    test.run_to_end(&experiment, 24).await;
    // One that was cut off, older than the last whole one, and one that is newer.
    let folder = running.s3_uri.strip_prefix("s3://tests/").unwrap();
    test.region
        .put_object("tests", &format!("{folder}/checkpoint-150/optimizer.pt"));
    test.region
        .put_object("tests", &format!("{folder}/checkpoint-99999/optimizer.pt"));
    // Files of the test have the machine's time: by the domain's clock, they are as old as they may be.
    test.advance(TimeDelta::days(4000)).await;
    let listed: CheckpointsView = test.read(&path).await;
    let steps: Vec<u64> = listed
        .checkpoints
        .iter()
        .filter_map(|one| one.step)
        .collect();
    assert!(
        steps.is_sorted() && steps.len() == listed.checkpoints.len(),
        "{steps:?}"
    );
    assert!(
        listed
            .checkpoints
            .iter()
            .all(|one| one.writer == Writer::HuggingFace)
    );
    let cut = listed
        .checkpoints
        .iter()
        .find(|one| one.step == Some(150))
        .unwrap();
    assert_eq!(cut.state, CheckpointState::Incomplete);
    assert!(cut.missing.as_ref().unwrap().contains("trainer_state.json"));
    let whole: Vec<u64> = listed
        .checkpoints
        .iter()
        .filter(|one| one.state == CheckpointState::Complete)
        .filter_map(|one| one.step)
        .collect();
    assert_eq!(whole.len(), steps.len() - 2);

    // What the trainer calls best is kept, and nothing is deleted while that cannot be read.
    let state = format!(
        "{folder}/checkpoint-{}/trainer_state.json",
        whole[whole.len() - 1]
    );
    let best = format!(
        r#"{{"loss": NaN, "best_model_checkpoint": "/opt/ml/checkpoints/checkpoint-{}"}}"#,
        whole[0]
    );
    test.region
        .write_object("tests", &state, &" ".repeat(17 * 1024 * 1024));
    let (status, answer) = prune(json!({"keep": 2, "dry_run": false}), &test.admin).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "checkpoints_unread")
    );
    test.region.write_object("tests", &state, &best);
    // Another trainer's folder below the same prefix names a best of its own.
    let files = [
        "model.safetensors",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
    ];
    for step in [1, 2, 3, 4] {
        for file in files {
            let key = format!("{folder}/other/checkpoint-{step}/{file}");
            test.region.put_object("tests", &key);
        }
        let key = format!("{folder}/other/checkpoint-{step}/trainer_state.json");
        let state = r#"{"best_model_checkpoint": "/opt/ml/checkpoints/other/checkpoint-2"}"#;
        test.region.write_object("tests", &key, state);
    }
    let viewer = test.key(test.project, Role::Viewer).await;
    assert_eq!(prune(real.clone(), &viewer).await.0, StatusCode::FORBIDDEN);
    assert_eq!(
        prune(json!({"keep": 0}), &test.admin).await.0,
        StatusCode::UNPROCESSABLE_ENTITY
    );
    let (_, dry) = prune(json!({"keep": 2}), &test.admin).await;
    let dry: PrunedView = serde_json::from_value(dry).unwrap();
    assert!(dry.dry_run && dry.deleted_objects == 0 && dry.freed_bytes > 0);
    let again: CheckpointsView = test.read(&path).await;
    assert_eq!(again.checkpoints.len(), listed.checkpoints.len() + 4);
    let (status, done) = prune(json!({"keep": 2, "dry_run": false}), &test.admin).await;
    assert_eq!(status, StatusCode::OK, "{done}");
    let done: PrunedView = serde_json::from_value(done).unwrap();
    let kept = |kept_for: KeptFor| -> Vec<u64> {
        let kept = done
            .checkpoints
            .iter()
            .filter(|one| one.kept_for == Some(kept_for));
        kept.filter_map(|one| one.step).collect()
    };
    assert_eq!(kept(KeptFor::Best), [2, whole[0]]);
    assert_eq!(
        kept(KeptFor::Newest),
        [&[3, 4], &whole[whole.len() - 2..]].concat()
    );
    assert_eq!(kept(KeptFor::Unfinished), [99_999]);
    let left: CheckpointsView = test.read(&path).await;
    let left: Vec<u64> = left.checkpoints.iter().filter_map(|one| one.step).collect();
    assert_eq!(
        left,
        [
            &[2, 3, 4],
            &whole[..1],
            &whole[whole.len() - 2..],
            &[99_999][..]
        ]
        .concat()
    );
}

#[sqlx::test(migrations = false)]
async fn the_model_is_named_with_its_files(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let experiment = test.start(&on_p5(1)).await;
    test.run_to_end(&experiment, 12).await;
    let trial = trial_of(&test, &experiment).await;
    let path = format!("/v1/trials/{}/artifacts?", trial.id);
    let found: Vec<AttemptArtifactsView> = test.page(path.trim_end_matches('?')).await;
    let job = &trial.attempts[0].job_name;
    let model = format!("s3://tests/out/{job}/output/model.tar.gz");
    assert_eq!(found[0].model_s3_uri.as_ref(), Some(&model));
    assert_eq!(found[0].files.len(), 1);
    assert_eq!(found[0].files[0].s3_uri, model);
    assert!(found[0].console_url.ends_with(job));
    let none = format!("/v1/trials/{}/checkpoints", trial.id);
    let (status, answer) = test
        .send(test.request(Method::GET, &none, &test.admin))
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{answer}");
    assert!(problem(answer).detail.contains("`checkpoint`"));
}

/// SageMaker evaluates rules in jobs of its own, which end after the training job: what was stored
/// with it is not the last word, and the profiler's reports come with it.
#[sqlx::test(migrations = false)]
async fn results_of_rules_come_after_the_job_and_are_explained(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--launch-seconds", "1500"]).await;
    let mut spec = on_p5(1);
    spec["max_runtime_seconds"] = json!(72_000);
    spec["workload"]["techniques"] = json!({
        "profiler": {"interval_milliseconds": 1000, "rules": ["ProfilerReport", "LowGPUUtilization"]},
        "debugger": {"rules": ["LossNotDecreasing"]},
    });
    let experiment = test.start(&spec).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(60)).await;
    test.tick().await;
    let trial = trial_of(&test, &experiment).await;
    let path = format!("/v1/trials/{}/diagnosis", trial.id);
    let shown = async || -> AttemptDiagnosisView {
        let mut found: TrialDiagnosisView = test.read(&path).await;
        found.attempts.remove(0)
    };
    let statuses = |attempt: &AttemptDiagnosisView| -> BTreeMap<String, String> {
        let rules = attempt.rules.iter();
        rules
            .map(|rule| (rule.name.clone(), rule.status.clone()))
            .collect()
    };
    let names = ["LossNotDecreasing", "LowGPUUtilization", "ProfilerReport"];
    let told = |status: [&str; 3]| -> BTreeMap<String, String> {
        let told = names.into_iter().zip(status);
        told.map(|(name, status)| (name.to_owned(), status.to_owned()))
            .collect()
    };
    let early = shown().await;
    assert_eq!(statuses(&early), told(["InProgress"; 3]));
    assert!(early.profiler_reports.is_empty());

    test.run_to_end(&experiment, 48).await;
    test.advance(TimeDelta::minutes(10)).await;
    let late = shown().await;
    let expected = told(["NoIssuesFound", "NoIssuesFound", "IssuesFound"]);
    assert_eq!(statuses(&late), expected);
    let reports: Vec<&str> = late
        .profiler_reports
        .iter()
        .map(|report| report.rule.as_str())
        .collect();
    assert_eq!(reports, ["MaxInitializationTime"]);
    let report = &late.profiler_reports[0];
    assert!(
        report.finding.contains("20 minutes") && report.times == 1,
        "{report:?}"
    );

    // What SageMaker does not tell any more is shown as it was stored.
    test.region_post(
        "/_sim/setup",
        &json!({"deny": ["sagemaker:DescribeTrainingJob", "s3:GetObject"]}),
    )
    .await;
    assert_eq!(statuses(&shown().await), told(["InProgress"; 3]));
}
