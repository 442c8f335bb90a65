//! Tuning and batch transform as steps: one tuning job for each type, billed by its trials; models used and deleted.

use bakeoff_api::logs::LogPartView;
use bakeoff_api::model_packages::ModelPackageView;
use bakeoff_api::tuning::TuningView;
use bakeoff_domain::pipeline::{PipelineState, StepState};
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::pipelines::steps::{
    assert_billed, pipeline, prepare, run, run_pipeline, run_until, started, step, with_data,
};
use crate::support::{TestApp, jobs, number, problem};

const TRAINS: &str =
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-gpu-py312";
const SERVES: &str =
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312";

/// Six trials, two at a time, on two types.
fn tuning(changes: &Value) -> Value {
    let mut all = json!({
        "strategy": "random", "random_seed": 7, "trials": 6, "parallel": 2, "image": TRAINS,
        "objective": {"metric": "eval:loss"}, "max_runtime_seconds": 3600,
        "metrics": [{"name": "eval:loss", "regex": "eval_loss=([0-9.]+)", "meaning": "validation_loss"}],
        "channels": [{"name": "train", "s3_uri": "s3://tests/train/"}],
        "hyperparameters": {"epochs": "3"},
        "ranges": {"lr": {"min": "1e-5", "max": "1e-2", "scaling": "logarithmic"}, "batch": {"min": 2, "max": 16, "integer": true}},
        "candidates": [{"instance_type": "ml.g5.2xlarge"}, {"instance_type": "ml.g5.8xlarge"}]});
    for (name, value) in changes.as_object().unwrap() {
        all[name] = value.clone();
    }
    json!({"name": "tune", "tuning": all})
}

async fn ran(test: &TestApp, step: Value) -> bakeoff_api::pipelines::PipelineView {
    let id = started(test, &pipeline(&json!([step]))).await;
    run(test, &id).await
}

#[sqlx::test(migrations = false)]
async fn the_same_trials_on_two_types_and_the_best_of_all_feeds_the_next_step(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut after = prepare("after");
    after["processing"]["arguments"] = json!([
        "--rate",
        "${tune.best.hyperparameters.lr}",
        "--type",
        "${tune.best.instance_type}"
    ]);
    let id = started(&test, &pipeline(&json!([tuning(&json!({})), after]))).await;
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    let tune = step(&view, "tune");
    let outputs = tune.outputs.clone().unwrap();
    let candidates = outputs["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 2);
    let (one, two) = (&candidates[0], &candidates[1]);
    // The same seed, the same trials: only what they cost differs.
    assert_eq!(one["best_objective"], two["best_objective"], "{outputs:#}");
    assert_eq!((&one["trials"], &two["trials"]), (&json!(6), &json!(6)));
    assert_ne!(one["cost_usd"], two["cost_usd"]);
    assert_eq!(outputs["best"]["objective"], one["best_objective"]);
    let rate = outputs["best"]["hyperparameters"]["lr"].as_str().unwrap();
    let record = test.record().await;
    let sent = jobs(&record)
        .iter()
        .filter(|job| job["kind"] == "tuning")
        .count();
    assert_eq!(sent, 2);
    let after = step(&view, "after").jobs[0].clone().job_name.unwrap();
    let url = format!("{}/_sim/requests/{after}", test.region.url);
    let request: Value = test
        .client
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        request["AppSpecification"]["ContainerArguments"][1],
        json!(rate)
    );
    assert_billed(&test).await;
    let tuned =
        "SELECT count(DISTINCT job_id) FROM ledger WHERE component = 'tuning' AND kind = 'settled'";
    assert_eq!(number(test.app.store.pool(), tuned).await, 2);
    // Its trials are shown, and what each was billed.
    let path = format!("/v1/trials/{}/tuned", tune.jobs[0].clone().trial_id);
    let shown: TuningView = test.read(&path).await;
    assert_eq!(shown.trials.len(), 6, "{shown:#?}");
    assert!(shown.trials.iter().all(|one| one.billed_seconds > 0));
    let best = shown.best.unwrap();
    assert_eq!(json!(best.objective.unwrap()), one["best_objective"]);
}

/// Not one of the steps between needs a trial of an experiment.
#[sqlx::test(migrations = false)]
async fn the_best_trial_is_registered_served_and_its_log_is_shown(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let register = json!({"name": "register", "model": {"trial_id": "${tune.best.trial_id}", "group": "tuned", "image": SERVES,
        "weights_gib": 15, "realtime_instance_types": ["ml.g5.2xlarge"], "approval": "approved"}});
    let serve = json!({"name": "serve", "endpoint": {"instance_type": "ml.g5.2xlarge", "time_to_live_hours": 2,
        "weights_gib": 15, "model": {"model_package_id": "${register.model_package_id}"}}});
    let steps = json!([tuning(&json!({})), register, serve]);
    let id = started(&test, &pipeline(&steps)).await;
    let view = run_pipeline(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    let best = step(&view, "tune").outputs.clone().unwrap()["best"].clone();
    let registered = step(&view, "register").outputs.clone().unwrap();
    let id = registered["model_package_id"].as_str().unwrap();
    let package: ModelPackageView = test.read(&format!("/v1/model-packages/{id}")).await;
    assert_eq!(best["model_s3_uri"], package.model_s3_uri);
    let origin = &package.metadata;
    assert_eq!(origin["bakeoff:kind"], "tuned_trial");
    assert_eq!(best["job_name"], origin["bakeoff:training_job"]);
    assert_eq!(origin["bakeoff:objective"], best["objective"].to_string());
    assert_eq!(origin.get("bakeoff:tokens"), None);

    let trial = best["trial_id"].as_str().unwrap();
    let job = best["job_name"].as_str().unwrap();
    let path = format!("/v1/trials/{trial}/logs?training_job={job}");
    let log: LogPartView = test.read(&path).await;
    assert_eq!(log.job_name, job);
    let rate = best["hyperparameters"]["lr"].as_str().unwrap();
    let line = &log.lines[0].message;
    assert!(line.contains(&format!("lr={rate}")), "{log:#?}");
    for (path, why) in [
        (format!("/v1/trials/{trial}/logs"), "name one of its trials"),
        (
            format!("/v1/trials/{trial}/logs?training_job=other"),
            "no trial of this name",
        ),
    ] {
        let (status, problem) = test
            .send(test.request(Method::GET, &path, &test.admin))
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem:#}");
        assert!(problem.to_string().contains(why), "{problem:#}");
    }
}

/// Its best trial is known once it is over.
#[sqlx::test(migrations = false)]
async fn a_tuning_that_runs_has_no_model_to_register_yet(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let one = tuning(&json!({"candidates": [{"instance_type": "ml.g5.2xlarge"}]}));
    let id = started(&test, &pipeline(&json!([one]))).await;
    let view = run_until(&test, &id, "tune", StepState::Running).await;
    let trial = step(&view, "tune").jobs[0].trial_id;
    let body = json!({"trial_id": trial, "group": "tuned", "image": SERVES});
    let (status, answer) = test.post("/v1/model-packages", &body).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer:#}");
    let refused = problem(answer);
    assert_eq!(refused.code, "no_model", "{refused:#?}");
    run(&test, &id).await;
    let (status, answer) = test.post("/v1/model-packages", &body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    let package: ModelPackageView = serde_json::from_value(answer).unwrap();
    assert_eq!(package.metadata["bakeoff:instance_type"], "ml.g5.2xlarge");
}

#[sqlx::test(migrations = false)]
async fn spot_is_billed_as_sagemaker_tells_of_each_trial(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let spot = tuning(
        &json!({"spot": true, "max_wait_seconds": 7200, "checkpoint_s3_uri": "s3://tests/checkpoints",
        "strategy": "bayesian", "early_stopping": true, "candidates": [{"instance_type": "ml.g5.2xlarge"}]}),
    );
    let view = ran(&test, spot).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    let record = test.record().await;
    let job = &jobs(&record)[0];
    assert_eq!(job["spot"], true);
    assert_billed(&test).await;
}

#[sqlx::test(migrations = false)]
async fn a_grid_tries_each_combination_and_a_failing_tuning_fails_its_step(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let grid = tuning(
        &json!({"strategy": "grid", "trials": 6, "random_seed": null,
        "ranges": {"lr": {"values": ["0.001", "0.0003", "0.0001"]}, "sched": {"values": ["cosine", "linear"]}},
        "candidates": [{"instance_type": "ml.g5.2xlarge"}]}),
    );
    let view = ran(&test, grid).await;
    let outputs = step(&view, "tune").outputs.clone().unwrap();
    assert_eq!(outputs["candidates"][0]["trials"], 6, "{outputs:#}");
    test.region_post("/_sim/faults", &json!({"algorithm_error": 1.0}))
        .await;
    let view = ran(&test, tuning(&json!({}))).await;
    let tune = step(&view, "tune");
    assert_eq!(tune.state, StepState::Failed);
    let reason = tune.reason.clone().unwrap();
    assert!(reason.contains("No training job succeeded"), "{reason}");
    assert_billed(&test).await;
}

#[sqlx::test(migrations = false)]
async fn a_cancelled_tuning_is_stopped_and_billed_for_what_ran(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let id = started(&test, &pipeline(&json!([tuning(&json!({"trials": 40}))]))).await;
    run_until(&test, &id, "tune", StepState::Running).await;
    test.advance(TimeDelta::minutes(25)).await;
    let (status, _) = test
        .post(&format!("/v1/pipelines/{id}/cancel"), &json!({}))
        .await;
    assert_eq!(status, StatusCode::OK);
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Cancelled);
    for job in jobs(&test.record().await) {
        assert_eq!(job["status"], "Stopped", "{job:#}");
        assert!(job["trials"].as_u64() < Some(12), "{job:#}");
    }
    assert_billed(&test).await;
}

/// What cannot be paid does not begin: all trials at their longest are reserved.
#[sqlx::test(migrations = false)]
async fn all_trials_at_their_longest_must_fit_the_budget(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut body = pipeline(&json!([tuning(
        &json!({"trials": 100, "max_runtime_seconds": 36_000})
    )]));
    body["budget_usd"] = json!(500);
    let id = started(&test, &body).await;
    let view = run_pipeline(&test, &id).await;
    let reason = step(&view, "tune").reason.clone().unwrap();
    assert!(reason.contains("it may cost"), "{reason}");
    assert!(jobs(&test.record().await).is_empty());
}

#[sqlx::test(migrations = false)]
async fn lost_replies_leave_one_tuning_job_and_one_transform_job(pool: PgPool) {
    let faults = [
        "--lost-reply",
        "0.5",
        "--lag",
        "0.3",
        "--lag-seconds",
        "60",
        "--forgotten",
        "0.2",
    ];
    let test = with_data(pool, &faults).await;
    let mut moved = transform("one");
    moved["after"] = json!(["tune"]);
    let one = tuning(&json!({"candidates": [{"instance_type": "ml.g5.2xlarge"}]}));
    let id = started(&test, &pipeline(&json!([one, moved]))).await;
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    let record = test.record().await;
    assert_eq!(jobs(&record).len(), 2, "{record:#}");
    assert_eq!(record["models_and_configs"], 0);
    assert_billed(&test).await;
}

pub(crate) fn transform(model: &str) -> Value {
    json!({"name": "predict", "transform": {
        "model": {"image": SERVES, "model_s3_uri": format!("s3://tests/models/{model}/model.tar.gz")},
        "instance_type": "ml.g5.xlarge", "input_s3_uri": "s3://tests/raw/", "content_type": "application/jsonlines",
        "split_lines": true, "max_runtime_seconds": 3600}})
}

#[sqlx::test(migrations = false)]
async fn a_batch_transform_puts_out_its_folder_and_leaves_no_model(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut after = prepare("after");
    after["processing"]["inputs"][0]["s3_uri"] = json!("${predict.output_s3_uri}");
    let id = started(&test, &pipeline(&json!([transform("one"), after]))).await;
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    assert_eq!(test.record().await["models_and_configs"], 0);
    assert_billed(&test).await;
}

/// SageMaker has no limit for it: we stop it, and bill what ran.
#[sqlx::test(migrations = false)]
async fn a_batch_transform_that_runs_on_is_stopped_at_its_limit(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut endless = transform("one");
    endless["transform"]["environment"] = json!({"MODE": "endless"});
    let view = ran(&test, endless).await;
    assert_eq!(view.state, PipelineState::Failed);
    let reason = step(&view, "predict").reason.clone().unwrap();
    assert!(
        reason.contains("stopped at its maximum runtime"),
        "{reason}"
    );
    let record = test.record().await;
    let seconds = jobs(&record)[0]["billable_seconds"].as_i64().unwrap();
    assert!((3600..4500).contains(&seconds), "{seconds}");
    assert_eq!(record["models_and_configs"], 0);
    assert_billed(&test).await;
}

/// A step is refused before anything is paid, with every mistake at its place.
#[sqlx::test(migrations = false)]
async fn what_sagemaker_would_refuse_is_refused_at_once(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut moved = transform("one");
    moved["transform"]["instance_type"] = json!("ml.p5.48xlarge");
    let bad = tuning(&json!({"strategy": "hyperband", "early_stopping": true, "spot": true}));
    let (status, answer) = test
        .post("/v1/pipelines", &pipeline(&json!([bad, moved])))
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let errors = problem(answer).errors;
    let pointers: Vec<&str> = errors.iter().map(|one| one.pointer.as_str()).collect();
    assert_eq!(
        pointers,
        [
            "/steps/0/tuning/early_stopping",
            "/steps/0/tuning/max_wait_seconds",
            "/steps/1/transform/instance_type"
        ]
    );
}
