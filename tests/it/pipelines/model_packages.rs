//! Models of trials in SageMaker's Model Registry: the service over HTTP, the registry of the region over the
//! wire.

use bakeoff_api::model_packages::{ApproveModel, ModelPackageView};
use bakeoff_api::page::Page;
use bakeoff_api::trials::TrialView;
use bakeoff_domain::model_package::decide::{AfterError, PackageChange, PackageNext, after};
use bakeoff_domain::model_package::{Approval, ModelPackageRequest, RegistryState};
use bakeoff_service::auth::keys::Role;
use bakeoff_service::tasks::registrar;
use bakeoff_store::model_packages::ModelPackage;
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::clients::sdk_requests::captured;
use crate::support::{Region, TestApp, on_p5, ports_of, problem, usual};

const IMAGE: &str =
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312";

/// An experiment whose trials have completed, and its first trial.
pub(crate) async fn trained(test: &TestApp, repeats: u32) -> Vec<TrialView> {
    let experiment = test.start(&on_p5(repeats)).await;
    test.run_to_end(&experiment, 24).await;
    test.page(&format!("/v1/experiments/{experiment}/trials?"))
        .await
}

pub(crate) fn asked(trial: &TrialView) -> Value {
    json!({"trial_id": trial.id, "group": "legal-de", "image": IMAGE,
        "realtime_instance_types": ["ml.g5.2xlarge", "ml.p5.48xlarge"], "transform_instance_types": ["ml.g5.2xlarge"],
        "environment": {"X": "1"}, "metadata": {"team": "legal"}})
}

async fn register(test: &TestApp, body: &Value) -> (StatusCode, ModelPackageView) {
    let (status, answer) = test.post("/v1/model-packages", body).await;
    let view = serde_json::from_value(answer.clone()).unwrap_or_else(|_| panic!("{answer:#}"));
    (status, view)
}

/// The registrar's ticks until nothing is due, also not in the minutes after.
async fn work(test: &TestApp) {
    while registrar::tick(&test.app).await.unwrap() > 0 {}
    test.advance(TimeDelta::minutes(3)).await;
    while registrar::tick(&test.app).await.unwrap() > 0 {}
}

async fn read(test: &TestApp, package: &ModelPackageView) -> ModelPackageView {
    test.read(&format!("/v1/model-packages/{}", package.id))
        .await
}

async fn patch(test: &TestApp, package: &ModelPackageView, body: &Value) -> (StatusCode, Value) {
    let path = format!("/v1/model-packages/{}", package.id);
    test.send(test.request(Method::PATCH, &path, &test.admin).json(body))
        .await
}

/// What would be written of a package that is given up.
fn given_up(package: &ModelPackage, why: &str, now: DateTime<Utc>) -> PackageNext {
    let why = why.to_owned();
    let change = PackageChange::Failed(AfterError::GiveUp { why });
    after(&package.facts(), change, now)
}

/// What the region's registry has.
async fn packages(test: &TestApp) -> Vec<Value> {
    let record = test.record().await;
    record["model_packages"].as_array().cloned().unwrap()
}

#[sqlx::test(migrations = false)]
async fn a_model_becomes_a_version_that_says_where_it_comes_from(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 2).await;
    let (status, first) = register(&test, &asked(&trials[0])).await;
    assert_eq!(
        (status, first.state, first.version),
        (StatusCode::CREATED, RegistryState::Registering, None)
    );
    // Asked for twice, before and after: one package.
    let (status, again) = register(&test, &asked(&trials[0])).await;
    assert_eq!((status, again.id), (StatusCode::OK, first.id));
    work(&test).await;
    let first = read(&test, &first).await;
    assert_eq!(
        (first.state, first.version, first.approval),
        (RegistryState::Registered, Some(1), Approval::Pending)
    );
    let arn = first.arn.clone().unwrap();
    assert!(arn.ends_with(":model-package/legal-de/1"), "{arn}");
    assert_eq!(register(&test, &asked(&trials[0])).await.1.id, first.id);
    let mut other = asked(&trials[0]);
    other["image"] = json!("other:1");
    let (status, answer) = test.post("/v1/model-packages", &other).await;
    let refused = problem(answer);
    assert_eq!(
        (status, refused.code.as_str()),
        (StatusCode::CONFLICT, "model_registered")
    );
    let detail = refused.detail;
    assert!(
        detail.contains("another image: reject that one first"),
        "{detail}"
    );

    let (_, second) = register(&test, &asked(&trials[1])).await;
    work(&test).await;
    assert_eq!(read(&test, &second).await.version, Some(2));
    let there = packages(&test).await;
    assert_eq!(there.len(), 2);
    let request = &there[0]["request"];
    let container = &request["InferenceSpecification"]["Containers"][0];
    assert_eq!(
        *container,
        json!({"Image": IMAGE, "ModelDataUrl": first.model_s3_uri, "Environment": {"X": "1"}})
    );
    let metadata = &request["CustomerMetadataProperties"];
    assert_eq!(metadata["bakeoff:model_package"], first.id.to_string());
    assert_eq!(metadata["bakeoff:trial"], trials[0].id.to_string());
    assert_eq!(metadata["bakeoff:data_version"], "1");
    assert_eq!(metadata["bakeoff:instance_type"], "ml.p5.48xlarge");
    assert_eq!(metadata["team"], "legal");
    assert_eq!(
        metadata["bakeoff:evidence_sha256"].as_str().map(str::len),
        Some(64)
    );
    assert_eq!(metadata["bakeoff:kind"], "trial");
    let speed = metadata["bakeoff:tokens_per_second"].as_str().unwrap();
    let speed: f64 = speed.parse().unwrap();
    assert!(speed > 1000.0, "{speed}");
    // The statistics are where the package says that they are.
    let statistics = &request["ModelMetrics"]["ModelQuality"]["Statistics"];
    assert_eq!(statistics["S3Uri"], first.statistics_s3_uri);
    let written = test.ports.objects.get(&first.statistics_s3_uri).await;
    let written: Value = serde_json::from_slice(&written.unwrap().unwrap()).unwrap();
    assert_eq!(written["measured"]["tokens_per_second"], speed);
    assert!(
        first.statistics_s3_uri.contains("/bakeoff/mpk_"),
        "{first:?}"
    );

    let page: Page<ModelPackageView> = test
        .read("/v1/model-packages?group=legal-de&page_size=1")
        .await;
    assert_eq!(page.items[0].id, second.id);
    let token = page.next_page_token.unwrap();
    let rest = format!("/v1/model-packages?group=legal-de&page_size=1&page_token={token}");
    let rest: Page<ModelPackageView> = test.read(&rest).await;
    assert_eq!(rest.items[0].id, first.id);
    assert_eq!(rest.next_page_token, None);
    let none: Page<ModelPackageView> = test.read("/v1/model-packages?group=other").await;
    assert!(none.items.is_empty());
}

#[sqlx::test(migrations = false)]
async fn approval_reaches_sagemaker_and_is_not_taken_back(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 1).await;
    let (_, package) = register(&test, &asked(&trials[0])).await;
    // Before it is registered: it gets there with the package.
    let note = json!({"approval": "rejected", "note": "not yet"});
    let (status, answer) = patch(&test, &package, &note).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let shown: ModelPackageView = serde_json::from_value(answer).unwrap();
    assert_eq!(shown.approval, Approval::Pending);
    work(&test).await;
    let there = packages(&test).await;
    assert_eq!(
        (&there[0]["approval"], &there[0]["approval_note"]),
        (&json!("Rejected"), &json!("not yet"))
    );
    let approve = serde_json::to_value(ApproveModel {
        approval: Approval::Approved,
        note: None,
    });
    patch(&test, &package, &approve.unwrap()).await;
    work(&test).await;
    let shown = read(&test, &package).await;
    assert_eq!(
        (shown.approval, shown.wanted_approval, shown.reason),
        (Approval::Approved, Approval::Approved, None)
    );
    assert_eq!(packages(&test).await[0]["approval"], "Approved");
    let (status, answer) = patch(&test, &package, &json!({"approval": "pending"})).await;
    assert_eq!(
        (status, problem(answer).errors[0].pointer.as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "/approval")
    );
    // What SageMaker refuses now is said, and tried again when somebody asks again.
    test.region_post(
        "/_sim/setup",
        &json!({"deny": ["sagemaker:UpdateModelPackage"]}),
    )
    .await;
    patch(&test, &package, &json!({"approval": "rejected"})).await;
    work(&test).await;
    let shown = read(&test, &package).await;
    assert_eq!(
        (shown.state, shown.approval),
        (RegistryState::Registered, Approval::Approved)
    );
    let reason = shown.reason.unwrap();
    assert!(
        reason.contains("Allow the service sagemaker:UpdateModelPackage"),
        "{reason}"
    );
    test.region_post("/_sim/setup", &json!({})).await;
    patch(&test, &package, &json!({"approval": "rejected"})).await;
    work(&test).await;
    assert_eq!(read(&test, &package).await.approval, Approval::Rejected);
}

/// SageMaker may not find a group everywhere as soon as it is made; nor does it where the credentials have become
/// another account's since the group was made.
#[sqlx::test(migrations = false)]
async fn a_group_that_is_not_found_yet_is_waited_for(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 1).await;
    test.region_post("/_sim/faults", &json!({"late_group": 1.0}))
        .await;
    let (_, package) = register(&test, &asked(&trials[0])).await;
    registrar::tick(&test.app).await.unwrap();
    let waiting = read(&test, &package).await;
    assert_eq!(waiting.state, RegistryState::Registering, "{waiting:?}");
    let reason = waiting.reason.unwrap();
    assert!(
        reason.starts_with("CreateModelPackage: not found"),
        "{reason}"
    );
    work(&test).await;
    let shown = read(&test, &package).await;
    assert_eq!(shown.state, RegistryState::Registered, "{shown:?}");
    assert_eq!(packages(&test).await.len(), 1);
}

/// Answers are lost, calls are throttled, a process dies between the create and the record: one version.
#[sqlx::test(migrations = false)]
async fn a_lost_answer_or_a_crash_leaves_one_version(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 2).await;
    // SageMaker's clock is behind ours, and client tokens do not count for ever.
    test.app.clock.advance(TimeDelta::minutes(4));
    let lost = json!({"lost_reply": 1.0, "forgotten_token": 1.0});
    test.region_post("/_sim/faults", &lost).await;
    let (_, package) = register(&test, &asked(&trials[0])).await;
    for _ in 0..3 {
        work(&test).await;
        test.advance(TimeDelta::minutes(5)).await;
    }
    let shown = read(&test, &package).await;
    assert_eq!(shown.state, RegistryState::Registered, "{shown:?}");
    assert_eq!(packages(&test).await.len(), 1, "found by its marker");

    // With another account's credentials nothing is registered, and the way out is said.
    test.region_post("/_sim/account", &json!({"account": "999988887777"}))
        .await;
    test.advance(TimeDelta::minutes(1)).await;
    let (_, package) = register(&test, &asked(&trials[1])).await;
    work(&test).await;
    let waiting = read(&test, &package).await;
    let reason = waiting.reason.unwrap();
    assert!(
        reason.contains("start the service with credentials for 111122223333")
            && !reason.contains("Allow"),
        "{reason}"
    );
    assert_eq!(packages(&test).await.len(), 1);
    test.region_post("/_sim/account", &json!({"account": "111122223333"}))
        .await;

    // Throttled on the way: later.
    test.region_post("/_sim/faults", &json!({"throttle": 1.0}))
        .await;
    test.advance(TimeDelta::minutes(20)).await;
    work(&test).await;
    let waiting = read(&test, &package).await;
    assert_eq!(waiting.state, RegistryState::Registering);
    assert!(waiting.reason.unwrap().contains("throttled"));
    test.region_post("/_sim/faults", &json!({"forgotten_token": 1.0}))
        .await;
    test.advance(TimeDelta::minutes(20)).await;
    // A process claims it, creates it, and dies.
    let store = &test.app.store;
    let region = &test.app.place.region;
    let claimed = store
        .claim_due_model_package(region, test.app.clock.now(), TimeDelta::minutes(5))
        .await
        .unwrap()
        .unwrap();
    let created = test.ports.registry.create(&claimed.request).await.unwrap();
    assert_eq!(registrar::tick(&test.app).await.unwrap(), 0, "it is held");
    test.advance(TimeDelta::minutes(6)).await;
    work(&test).await;
    let shown = read(&test, &package).await;
    assert_eq!(
        (shown.state, shown.arn),
        (RegistryState::Registered, Some(created))
    );
    assert_eq!(packages(&test).await.len(), 2);
    // What the dead process would write now changes nothing.
    let late = given_up(&claimed, "late", test.app.clock.now());
    let now = test.app.clock.now();
    store
        .record_model_package(&claimed, &late, now)
        .await
        .unwrap();
    assert_eq!(read(&test, &package).await.state, RegistryState::Registered);
}

/// A process stands still between its claim and its create, longer than its hold: another registers the model,
/// and SageMaker has forgotten the client token when the first goes on.
#[sqlx::test(migrations = false)]
async fn a_process_that_stood_still_does_not_register_again(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 1).await;
    test.region_post("/_sim/faults", &json!({"forgotten_token": 1.0}))
        .await;
    let (_, package) = register(&test, &asked(&trials[0])).await;
    let (store, region) = (&test.app.store, &test.app.place.region);
    let claimed = store
        .claim_due_model_package(region, test.app.clock.now(), TimeDelta::minutes(5))
        .await
        .unwrap()
        .unwrap();
    test.advance(TimeDelta::minutes(6)).await;
    work(&test).await;
    assert_eq!(read(&test, &package).await.state, RegistryState::Registered);
    registrar::work(&test.app, &claimed).await.unwrap();
    assert_eq!(packages(&test).await.len(), 1);
}

#[sqlx::test(migrations = false)]
async fn what_cannot_be_registered_is_said_with_the_way_out(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 1).await;
    let mut wrong = asked(&trials[0]);
    wrong["group"] = json!("legal de");
    wrong["realtime_instance_types"] = json!(["ml.g5.2xlarge", "ml.g4dn.xlarge", "ml.p9.huge"]);
    wrong["transform_instance_types"] = json!(["ml.p5.48xlarge"]);
    wrong["metadata"] = json!({"bakeoff:trial": "mine"});
    let (status, answer) = test.post("/v1/model-packages", &wrong).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let errors = problem(answer).errors;
    let pointers: Vec<&str> = errors.iter().map(|one| one.pointer.as_str()).collect();
    assert_eq!(
        pointers,
        [
            "/metadata/bakeoff:trial",
            "/group",
            "/realtime_instance_types/1",
            "/realtime_instance_types/2",
            "/transform_instance_types/0"
        ],
        "{errors:#?}"
    );
    let fix = &errors[2].fix;
    assert!(fix.starts_with("name ml.g"), "{fix}");

    let viewer = test.key(test.project, Role::Viewer).await;
    let stranger = test.key(test.other_project().await, Role::Admin).await;
    let right = asked(&trials[0]);
    for (key, expected) in [
        (&viewer, StatusCode::FORBIDDEN),
        (&stranger, StatusCode::NOT_FOUND),
    ] {
        let request = test
            .request(Method::POST, "/v1/model-packages", key)
            .json(&right);
        assert_eq!(test.send(request).await.0, expected);
    }

    // A refusal of SageMaker's ends it, with the right that it lacks; then it can be asked for again.
    test.region_post(
        "/_sim/setup",
        &json!({"deny": ["sagemaker:CreateModelPackage"]}),
    )
    .await;
    let (_, package) = register(&test, &right).await;
    work(&test).await;
    let failed = read(&test, &package).await;
    assert_eq!(failed.state, RegistryState::Failed);
    let reason = failed.reason.unwrap();
    assert!(
        reason.contains("Allow the service sagemaker:CreateModelPackage (deploy/iam"),
        "{reason}"
    );
    let (status, _) = patch(&test, &package, &json!({"approval": "approved"})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    test.region_post("/_sim/setup", &json!({})).await;
    let (status, again) = register(&test, &right).await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(again.id, package.id, "its client token is kept");
    work(&test).await;
    assert_eq!(read(&test, &again).await.version, Some(1));

    // Rejected, it makes room for another version, and is not approved beside that.
    patch(&test, &again, &json!({"approval": "rejected"})).await;
    work(&test).await;
    let mut other = right.clone();
    other["image"] = json!("other:1");
    let (status, replacement) = register(&test, &other).await;
    assert_eq!(status, StatusCode::CREATED);
    work(&test).await;
    assert_eq!(read(&test, &replacement).await.version, Some(2));
    let (status, answer) = patch(&test, &again, &json!({"approval": "approved"})).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "model_replaced")
    );

    // A trial that has not completed has no model.
    let running = test.start(&on_p5(1)).await;
    test.tick().await;
    let trials: Vec<TrialView> = test
        .page(&format!("/v1/experiments/{running}/trials?"))
        .await;
    let (status, answer) = test.post("/v1/model-packages", &asked(&trials[0])).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "no_model")
    );
    // Nor has one that was stopped before it had written any.
    test.post(&format!("/v1/experiments/{running}/cancel"), &json!({}))
        .await;
    test.run_to_end(&running, 24).await;
    let (status, answer) = test.post("/v1/model-packages", &asked(&trials[0])).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "no_model")
    );
}

/// What somebody does in SageMaker itself, and calls that arrive late, against what is wanted here.
#[sqlx::test(migrations = false)]
async fn the_last_word_on_an_approval_is_the_last_one_here(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 1).await;
    let (_, package) = register(&test, &asked(&trials[0])).await;
    // Created, and approved in the console before the answer that was lost is looked for.
    test.region_post("/_sim/faults", &json!({"lost_reply": 1.0}))
        .await;
    assert_eq!(registrar::tick(&test.app).await.unwrap(), 1);
    test.region_post("/_sim/faults", &json!({})).await;
    let arn = packages(&test).await[0]["arn"].as_str().unwrap().to_owned();
    let registry = &test.ports.registry;
    let note = Some("console");
    registry
        .set_approval(&arn, Approval::Approved, note)
        .await
        .unwrap();
    test.advance(TimeDelta::minutes(5)).await;
    work(&test).await;
    let shown = read(&test, &package).await;
    assert_eq!(
        (
            shown.state,
            shown.approval,
            shown.wanted_approval,
            shown.next_try_at
        ),
        (
            RegistryState::Registered,
            Approval::Approved,
            Approval::Approved,
            None
        ),
        "nobody has decided otherwise here"
    );

    // Rejected here; then a call that was given up long ago arrives.
    patch(
        &test,
        &package,
        &json!({"approval": "rejected", "note": "leaks"}),
    )
    .await;
    assert_eq!(registrar::tick(&test.app).await.unwrap(), 1);
    registry
        .set_approval(&arn, Approval::Approved, None)
        .await
        .unwrap();
    work(&test).await;
    test.advance(TimeDelta::minutes(3)).await;
    work(&test).await;
    assert_eq!(packages(&test).await[0]["approval"], "Rejected");

    // Approved here, rejected in the console, approved here again: that counts.
    patch(&test, &package, &json!({"approval": "approved"})).await;
    work(&test).await;
    registry
        .set_approval(&arn, Approval::Rejected, None)
        .await
        .unwrap();
    patch(
        &test,
        &package,
        &json!({"approval": "approved", "note": "final"}),
    )
    .await;
    work(&test).await;
    let there = packages(&test).await;
    assert_eq!(
        (&there[0]["approval"], &there[0]["approval_note"]),
        (&json!("Approved"), &json!("final"))
    );
}

/// Whoever asks for something while a create is under way that is then refused.
#[sqlx::test(migrations = false)]
async fn a_refusal_ends_it_whatever_was_asked_meanwhile(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let trials = trained(&test, 1).await;
    let (_, package) = register(&test, &asked(&trials[0])).await;
    let (store, region) = (&test.app.store, &test.app.place.region);
    let now = test.app.clock.now();
    let claimed = store
        .claim_due_model_package(region, now, TimeDelta::minutes(5))
        .await
        .unwrap()
        .unwrap();
    patch(&test, &package, &json!({"approval": "approved"})).await;
    let refused = given_up(&claimed, "refused", now);
    store
        .record_model_package(&claimed, &refused, now)
        .await
        .unwrap();
    test.advance(TimeDelta::minutes(30)).await;
    assert_eq!(registrar::tick(&test.app).await.unwrap(), 0, "it is over");
    let shown = read(&test, &package).await;
    assert_eq!(
        (shown.state, shown.reason.as_deref(), shown.next_try_at),
        (RegistryState::Failed, Some("refused"), None)
    );
}

/// The body that SageMaker's Python SDK sends for the same version, but for what only one of the two says.
#[tokio::test]
async fn a_version_is_sent_as_the_sdk_sends_it() {
    let Some(mut captured) = captured("sdk_requests_pipelines.json") else {
        println!("skipped: no reference data");
        return;
    };
    let mut theirs = captured["register-version"].take();
    let region = Region::start(&[], usual());
    let registry = ports_of(&region.url, &region.s3_url).await.registry;
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let specification = &theirs["InferenceSpecification"];
    let container = &specification["Containers"][0];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let request = ModelPackageRequest {
        group: text(&theirs["ModelPackageGroupName"]),
        description: text(&theirs["ModelPackageDescription"]),
        image: text(&container["Image"]),
        model_s3_uri: text(&container["ModelDataUrl"]),
        environment: serde_json::from_value(container["Environment"].clone()).unwrap(),
        content_types: texts(&specification["SupportedContentTypes"]),
        response_types: texts(&specification["SupportedResponseMIMETypes"]),
        realtime_instance_types: texts(&specification["SupportedRealtimeInferenceInstanceTypes"]),
        transform_instance_types: texts(&specification["SupportedTransformInstanceTypes"]),
        metadata: serde_json::from_value(theirs["CustomerMetadataProperties"].clone()).unwrap(),
        statistics_s3_uri: text(&theirs["ModelMetrics"]["ModelQuality"]["Statistics"]["S3Uri"]),
        statistics: String::new(),
        approval: Approval::Pending,
        client_token: text(&theirs["ClientToken"]),
    };
    registry.create_group(&request.group).await.unwrap();
    registry.create(&request).await.unwrap();
    let record = reqwest::get(format!("{}/_sim/record", region.url)).await;
    let record: Value = record.unwrap().json().await.unwrap();
    let ours = &record["model_packages"][0]["request"];
    // Descriptions for SageMaker's catalog, and empty reports: the SDK's alone. The SDK was told to skip the
    // validation of the container; we let SageMaker do it.
    for only_theirs in ["Domain", "Task", "SkipModelValidation"] {
        assert!(
            theirs
                .as_object_mut()
                .unwrap()
                .remove(only_theirs)
                .is_some()
        );
    }
    for empty in ["Bias", "Explainability"] {
        let metrics = theirs["ModelMetrics"].as_object_mut().unwrap();
        assert_eq!(metrics.remove(empty), Some(json!({})));
    }
    let mut ours = ours.clone();
    let skips = ours.as_object_mut().unwrap().remove("SkipModelValidation");
    assert_eq!(skips, Some(json!("None")));
    assert_eq!(ours, theirs);
}
