//! Pipelines: the service over HTTP, processing jobs in the region over the wire.

use bakeoff_api::diagnosis::TrialDiagnosisView;
use bakeoff_api::experiments::{ExperimentSummary, ExperimentView};
use bakeoff_api::money::LedgerEntryView;
use bakeoff_api::pipelines::{CreatedPipeline, PipelineView, StepView};
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::EntryKind;
use bakeoff_domain::pipeline::{PipelineState, StepState};
use bakeoff_service::tasks::{conductor, deployer, registrar};
use chrono::TimeDelta;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, jobs, number, on_p5, problem, spec};

const IMAGE: &str =
    "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn:1.2-1-cpu-py3";
const SERVES: &str =
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312";

/// Splits raw data.
pub(crate) fn prepare(name: &str) -> Value {
    json!({"name": name, "processing": {
        "image": IMAGE, "script_s3_uri": "s3://tests/code/prepare.py", "arguments": ["--validation-share", "0.1"],
        "instance_type": "ml.m5.xlarge", "inputs": [{"name": "raw", "s3_uri": "s3://tests/raw/"}],
        "outputs": [{"name": "train"}, {"name": "validation"}]}})
}

pub(crate) fn pipeline(steps: &Value) -> Value {
    json!({"name": "legal-de", "region": "us-east-1", "role_arn": "arn:aws:iam::111122223333:role/prep",
        "output_s3_uri": "s3://tests/pipelines/", "budget_usd": 5000, "steps": steps})
}

/// Preparation, comparison on its outputs, evaluation, registration.
fn whole() -> Value {
    let mut compare = on_p5(1);
    compare["budget_usd"] = json!(2000);
    compare["stopping_policy"] = json!("full");
    compare["workload"]["channels"] =
        json!([{"name": "train", "s3_uri": "${prepare.outputs.train}", "size_gb": 0}]);
    compare["workload"]["data_version"] = json!("${prepare.message.data_sha256}");
    let evaluate = json!({"image": IMAGE, "script_s3_uri": "s3://tests/code/evaluate.py", "instance_type": "ml.g5.xlarge",
        "inputs": [{"name": "model", "s3_uri": "${compare.winner.model_s3_uri}"}, {"name": "data", "s3_uri": "${prepare.outputs.validation}"}],
        "outputs": [{"name": "report"}]});
    pipeline(
        &json!([prepare("prepare"), {"name": "compare", "experiment": compare},
        // One candidate alone only leads.
        {"name": "evaluate", "if": {"at_least": 0.5}, "processing": evaluate},
        {"name": "register", "after": ["evaluate"], "model": {"trial_id": "${compare.winner.trial_id}", "group": "legal-de",
            "image": SERVES, "metadata": {"exact_match": "${evaluate.message.metrics.exact_match.value}"}}}]),
    )
}

pub(crate) async fn with_data(pool: PgPool, faults: &[&str]) -> TestApp {
    let test = TestApp::with_faults(pool, faults).await;
    for key in [
        "raw/a.jsonl",
        "code/prepare.py",
        "code/evaluate.py",
        "train/x",
    ] {
        test.region.put_object("tests", key);
    }
    test
}

pub(crate) async fn started(test: &TestApp, body: &Value) -> String {
    let (status, answer) = test.post("/v1/pipelines", body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    let started: CreatedPipeline = serde_json::from_value(answer).unwrap();
    started.id.to_string()
}

pub(crate) async fn read(test: &TestApp, id: &str) -> PipelineView {
    test.read(&format!("/v1/pipelines/{id}")).await
}

pub(crate) fn step<'a>(view: &'a PipelineView, name: &str) -> &'a StepView {
    view.steps.iter().find(|step| step.name == name).unwrap()
}

/// One tick of every loop.
pub(crate) async fn turn(test: &TestApp) {
    while conductor::tick(&test.app).await.unwrap() > 0 {}
    test.tick().await;
    while registrar::tick(&test.app).await.unwrap() > 0 {}
    while deployer::tick(&test.app).await.unwrap() > 0 {}
    while conductor::tick(&test.app).await.unwrap() > 0 {}
}

/// In steps of some minutes, later half hours, until it is over; then nothing may leak.
pub(crate) async fn run(test: &TestApp, id: &str) -> PipelineView {
    let view = run_pipeline(test, id).await;
    test.assert_nothing_leaks(&[]).await;
    view
}

/// The same, whatever the region has.
pub(crate) async fn run_pipeline(test: &TestApp, id: &str) -> PipelineView {
    for round in 0..700 {
        turn(test).await;
        let view = read(test, id).await;
        if view.state.is_over() {
            return view;
        }
        let minutes = if round < 150 { 4 } else { 30 };
        test.advance(TimeDelta::minutes(minutes)).await;
    }
    panic!("it has not ended: {:#?}", read(test, id).await);
}

/// Until the step is in a state.
pub(crate) async fn run_until(
    test: &TestApp,
    id: &str,
    name: &str,
    state: StepState,
) -> PipelineView {
    for _ in 0..600 {
        turn(test).await;
        let view = read(test, id).await;
        if step(&view, name).state == state {
            return view;
        }
        test.advance(TimeDelta::minutes(1)).await;
    }
    panic!(
        "{name} is not {}: {:#?}",
        state.as_str(),
        read(test, id).await
    );
}

/// The ledger of everything equals the region's bill, to the cent for each job.
pub(crate) async fn assert_billed(test: &TestApp) {
    let record = test.record().await;
    for job in jobs(&record) {
        let booked: rust_decimal::Decimal = sqlx::query_scalar(
            "SELECT coalesce(sum(l.usd), 0) FROM ledger l JOIN jobs j ON j.id = l.job_id
             WHERE j.job_name = $1 AND l.kind IN ('settled', 'adjusted') AND l.component <> 'cloudwatch'",
        )
        .bind(job["name"].as_str())
        .fetch_one(test.app.store.pool())
        .await
        .unwrap();
        let micro = ["micro_usd", "storage_micro_usd"].map(|part| job[part].as_i64().unwrap());
        let billed = rust_decimal::Decimal::new(micro.iter().sum(), 6);
        assert_eq!(booked.round_dp(2), billed.round_dp(2), "{job:#}");
    }
}

pub(crate) fn kinds(record: &Value) -> Vec<String> {
    let mut kinds: Vec<String> = jobs(record)
        .iter()
        .map(|job| job["kind"].as_str().unwrap().to_owned())
        .collect();
    kinds.sort();
    kinds
}

#[sqlx::test(migrations = false)]
async fn a_pipeline_goes_from_raw_data_to_a_registered_model(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let id = started(&test, &whole()).await;
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    let outputs = |name: &str| step(&view, name).outputs.clone().unwrap();
    let prepared = outputs("prepare");
    let train = format!("s3://tests/pipelines/{id}/prepare/train");
    assert_eq!(prepared["outputs"]["train"], json!(train));
    assert_eq!(prepared["message"]["train"]["records"], json!(9000));
    // Its outputs are what the comparison trains on, and what the model says of itself.
    let record = test.record().await;
    assert_eq!(kinds(&record), ["processing", "processing", "training"]);
    let trained = outputs("compare")["winner"]["job_name"]
        .as_str()
        .unwrap()
        .to_owned();
    let url = format!("{}/_sim/requests/{trained}", test.region.url);
    let request: Value = test
        .client
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let channel = &request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"];
    assert_eq!(*channel, json!(train));
    let package = &record["model_packages"][0]["request"]["CustomerMetadataProperties"];
    assert_eq!(
        package["bakeoff:data_version"],
        prepared["message"]["data_sha256"]
    );
    assert_eq!(package["exact_match"], json!("0.71"));
    assert_eq!(outputs("register")["version"], json!(1));
    // Money.
    assert_billed(&test).await;
    let job = step(&view, "prepare").jobs[0].clone();
    assert_eq!(
        (job.state, job.instance_type.as_str()),
        (TrialState::Completed, "ml.m5.xlarge")
    );
    let spent = test.spending("group_by=project").await.total;
    assert!(spent.processing_usd > Usd::ZERO, "{spent:?}");
    let entries: Vec<LedgerEntryView> = test
        .page(&format!("/v1/pipelines/{id}/ledger?page_size=500"))
        .await;
    let paid = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Settled);
    let paid: f64 = paid.map(|entry| entry.usd.as_f64()).sum();
    assert!(
        (paid - view.settled_usd.as_f64()).abs() < 1e-6,
        "{paid} {}",
        view.settled_usd
    );
    let costs: f64 = view
        .steps
        .iter()
        .map(|step| step.settled_usd.as_f64())
        .sum();
    assert!((view.settled_usd.as_f64() - costs).abs() < 1e-9 && view.reserved_usd.as_f64() == 0.0);
    assert!((spent.total_usd.as_f64() - costs).abs() < 1e-6);
    // A step's work is no experiment of anybody's.
    let experiments: Vec<ExperimentSummary> = test.page("/v1/experiments").await;
    assert_eq!(experiments.len(), 1);
}

/// Every answer to a create is lost, and nothing is listed at first.
#[sqlx::test(migrations = false)]
async fn a_job_whose_create_was_not_answered_is_found_and_billed_once(pool: PgPool) {
    let faults = [
        "--lost-reply",
        "1",
        "--lag",
        "1",
        "--lag-seconds",
        "60",
        "--short-pages",
        "0.5",
    ];
    let test = with_data(pool, &faults).await;
    let steps = json!([prepare("one"), prepare("two"), prepare("three")]);
    let mut body = pipeline(&steps);
    for place in 0..3 {
        body["steps"][place]["processing"]["reuse_if_unchanged"] = json!(false);
    }
    let view = run(&test, &started(&test, &body).await).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    assert_eq!(jobs(&test.record().await).len(), 3);
    assert_billed(&test).await;
}

#[sqlx::test(migrations = false)]
async fn a_failure_skips_what_needs_it_and_is_taken_up_again(pool: PgPool) {
    let test = with_data(pool, &["--algorithm-error", "1"]).await;
    let mut steps = json!([prepare("prepare"), prepare("more"), prepare("other")]);
    steps[1]["processing"]["inputs"][0]["s3_uri"] = json!("${prepare.outputs.train}");
    steps[0]["retries"] = json!(1);
    let id = started(&test, &pipeline(&steps)).await;
    let view = run(&test, &id).await;
    let states = |view: &PipelineView| view.steps.iter().map(|step| step.state).collect::<Vec<_>>();
    let (failed, skipped) = (StepState::Failed, StepState::Skipped);
    assert_eq!(
        (view.state, states(&view)),
        (PipelineState::Failed, vec![failed, skipped, failed])
    );
    let first = step(&view, "prepare");
    assert_eq!(first.tries, 2);
    let reason = first.reason.clone().unwrap();
    assert!(
        reason.contains("AlgorithmError") && reason.contains("KeyError: 'text'"),
        "{reason}"
    );
    assert!(
        first.jobs[0]
            .exit_message
            .clone()
            .unwrap()
            .contains("KeyError")
    );
    assert!(
        reason.contains("prepare.py") || reason.contains("Traceback") || reason.contains("raised"),
        "{reason}"
    );
    // Its log is that of its own group.
    let trial = first.jobs[0].clone().trial_id;
    let log = test.get(&format!("/v1/trials/{trial}/logs")).await;
    assert!(
        log.to_string().contains("KeyError: 'text'") && log.to_string().contains("ProcessingJobs"),
        "{log:#}"
    );
    let diagnosis: TrialDiagnosisView = test.read(&format!("/v1/trials/{trial}/diagnosis")).await;
    assert!(diagnosis.attempts[0].diagnosis.is_some(), "{diagnosis:#?}");
    assert_eq!(jobs(&test.record().await).len(), 3);
    // Mended: what has not completed is run.
    test.region_post("/_sim/faults", &json!({})).await;
    let (status, _) = test
        .post(&format!("/v1/pipelines/{id}/resume"), &json!({}))
        .await;
    assert_eq!(status, StatusCode::OK);
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    assert_eq!(step(&view, "prepare").tries, 1);
    // What failed before is paid for all the same.
    assert_billed(&test).await;
    let billed: f64 = jobs(&test.record().await)
        .iter()
        .map(|job| job["micro_usd"].as_f64().unwrap() / 1e6)
        .sum();
    assert!(
        view.settled_usd.as_f64() >= billed,
        "{} {billed}",
        view.settled_usd
    );
    let (status, answer) = test
        .post(&format!("/v1/pipelines/{id}/resume"), &json!({}))
        .await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "pipeline_not_resumable")
    );
}

#[sqlx::test(migrations = false)]
async fn a_cancel_stops_the_job_and_starts_nothing_more(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let id = started(&test, &whole()).await;
    run_until(&test, &id, "prepare", StepState::Running).await;
    // Until its instances are up.
    test.advance(TimeDelta::minutes(5)).await;
    turn(&test).await;
    for _ in 0..2 {
        let (status, _) = test
            .post(&format!("/v1/pipelines/{id}/cancel"), &json!({}))
            .await;
        assert_eq!(status, StatusCode::OK);
    }
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Cancelled);
    assert!(
        view.steps
            .iter()
            .all(|step| step.state == StepState::Cancelled),
        "{view:#?}"
    );
    let record = test.record().await;
    let all = jobs(&record);
    assert_eq!((all.len(), all[0]["status"].as_str()), (1, Some("Stopped")));
    assert_billed(&test).await;
    // It is not lost: resumed, it runs to its end.
    test.post(&format!("/v1/pipelines/{id}/resume"), &json!({}))
        .await;
    assert_eq!(run(&test, &id).await.state, PipelineState::Completed);
    assert_billed(&test).await;
}

/// One that has failed for want of money goes on with more of it; what it has spent stays spent.
#[sqlx::test(migrations = false)]
async fn a_pipeline_that_is_out_of_money_goes_on_with_a_larger_budget(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut second = prepare("second");
    second["processing"]["instance_type"] = json!("ml.g5.2xlarge");
    second["after"] = json!(["prepare"]);
    let mut body = pipeline(&json!([prepare("prepare"), second]));
    body["budget_usd"] = json!(1);
    let id = started(&test, &body).await;
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Failed, "{view:#?}");
    let reason = step(&view, "second").reason.clone().unwrap();
    assert!(reason.contains("it may cost"), "{reason}");
    let resume = format!("/v1/pipelines/{id}/resume");
    let (status, answer) = test.post(&resume, &json!({"budget_usd": 0.5})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    assert_eq!(problem(answer).errors[0].pointer, "/budget_usd");
    let (status, answer) = test.post(&resume, &json!({"budget_usd": 50})).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let view: PipelineView = serde_json::from_value(answer).unwrap();
    assert_eq!(view.budget_usd, Usd::from_f64(50.0).unwrap());
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    assert_eq!(jobs(&test.record().await).len(), 2);
    assert_billed(&test).await;
}

/// What a step's budget has left over when it ends belongs to the other steps: its parked trials stay parked.
#[sqlx::test(migrations = false)]
async fn a_comparison_that_was_a_step_is_not_taken_up_by_itself(pool: PgPool) {
    let test = with_data(pool, &["--quota-of", "ml.p4de.24xlarge=0"]).await;
    test.tick().await;
    let mut compare = spec();
    compare["budget_usd"] = json!(1000);
    let body = pipeline(&json!([{"name": "compare", "experiment": compare}]));
    let view = run(&test, &started(&test, &body).await).await;
    assert_eq!(view.state, PipelineState::Completed, "{view:#?}");
    let id = step(&view, "compare").experiment_id.unwrap().to_string();
    assert!(
        test.trials(&id)
            .await
            .iter()
            .any(|trial| trial.state == TrialState::Parked),
        "nothing that a resume could take up"
    );
    let resume = format!("/v1/experiments/{id}/resume");
    let (status, answer) = test.post(&resume, &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let resumed: ExperimentView = serde_json::from_value(answer).unwrap();
    assert_eq!(resumed.state, ExperimentState::Completed, "{resumed:#?}");
}

/// A conductor that dies after its claim, and one that comes back late, leave one work for each step.
#[sqlx::test(migrations = false)]
async fn two_conductors_start_each_step_once(pool: PgPool) {
    let test = with_data(pool.clone(), &[]).await;
    let id = started(&test, &pipeline(&json!([prepare("prepare")]))).await;
    let (now, hold) = (test.app.clock.now(), TimeDelta::minutes(5));
    let store = &test.app.store;
    let dead = store
        .claim_due_pipeline("us-east-1", now, hold)
        .await
        .unwrap()
        .unwrap();
    assert!(
        store
            .claim_due_pipeline("us-east-1", now, hold)
            .await
            .unwrap()
            .is_none()
    );
    test.advance(hold).await;
    let one = test.replica("one");
    let (first, second) = tokio::join!(conductor::tick(&one), conductor::tick(&test.app));
    assert!(first.unwrap() + second.unwrap() > 0);
    assert_eq!(
        number(
            &pool,
            "SELECT count(*) FROM experiments WHERE kind = 'step'"
        )
        .await,
        1
    );
    // The dead one wakes up: what it says is not written.
    let end = bakeoff_store::pipelines::StepEnd {
        state: StepState::Failed,
        reason: Some("late"),
        outputs: None,
        reused_from: None,
    };
    store
        .end_step(&dead, 0, &end, test.app.clock.now())
        .await
        .unwrap();
    store
        .end_pipeline(&dead, PipelineState::Failed, test.app.clock.now())
        .await
        .unwrap();
    let view = run(&test, &id).await;
    assert_eq!(view.state, PipelineState::Completed);
    assert_eq!(jobs(&test.record().await).len(), 1);
}

#[sqlx::test(migrations = false)]
async fn what_is_wrong_is_told_before_anything_runs(pool: PgPool) {
    let test = with_data(pool.clone(), &[]).await;
    let mut body = whole();
    body["steps"][0]["processing"]["instance_type"] = json!("ml.p5.48xlarge");
    body["steps"][2]["processing"]["inputs"][0]["s3_uri"] = json!("${compre.winner.model_s3_uri}");
    let (status, answer) = test.post("/v1/pipelines", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let errors = problem(answer).errors;
    let pointers: Vec<&str> = errors.iter().map(|one| one.pointer.as_str()).collect();
    assert_eq!(
        pointers,
        [
            "/steps/0/processing/instance_type",
            "/steps/2/processing/inputs/0/s3_uri"
        ],
        "{errors:#?}"
    );
    assert!(errors[1].fix.contains("compare"), "{errors:#?}");
    // The linter's findings, where they stand; and a field that nobody knows.
    let mut body = whole();
    body["steps"][1]["experiment"]["candidates"][0]["instance_type"] = json!("ml.p9.huge");
    body["steps"][0]["processing"]["imputs"] = json!([]);
    let (status, answer) = test.post("/v1/pipelines", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let told = answer.to_string();
    assert!(
        told.contains("/steps/1/experiment/candidates/0/instance_type") && told.contains("imputs"),
        "{answer:#}"
    );
    assert_eq!(number(&pool, "SELECT count(*) FROM pipelines").await, 0);
    // The same key counts once.
    let request = || {
        let request = test.request(reqwest::Method::POST, "/v1/pipelines", &test.admin);
        test.send(request.header("idempotency-key", "one").json(&whole()))
    };
    let (first, second) = (request().await, request().await);
    let created = |answer: Value| serde_json::from_value::<CreatedPipeline>(answer).unwrap();
    let (one, same) = (created(first.1), created(second.1));
    assert_eq!((first.0, one.id), (second.0, same.id));
    assert_eq!(number(&pool, "SELECT count(*) FROM pipelines").await, 1);
    let (status, _) = test
        .post(
            "/v1/pipelines/pip_00000000000000000000000000000007/cancel",
            &json!({}),
        )
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// A reference that turns out to stand for nothing fails its step, with what there is.
#[sqlx::test(migrations = false)]
async fn what_turns_out_to_be_missing_fails_its_step_with_what_there_is(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut second = prepare("second");
    second["processing"]["arguments"] = json!(["${first.message.trian.records}"]);
    let view = run(
        &test,
        &started(&test, &pipeline(&json!([prepare("first"), second]))).await,
    )
    .await;
    let why = step(&view, "second").reason.clone().unwrap();
    assert!(
        why.contains("${first.message.trian.records}") && why.contains("data_sha256"),
        "{why}"
    );
    let mut empty = prepare("empty");
    empty["processing"]["inputs"][0]["s3_uri"] = json!("s3://tests/nothing/");
    let view = run(&test, &started(&test, &pipeline(&json!([empty]))).await).await;
    let why = step(&view, "empty").reason.clone().unwrap();
    assert!(
        why.contains("there is nothing at s3://tests/nothing/"),
        "{why}"
    );
}
