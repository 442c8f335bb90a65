//! Workloads, instance profiles and hardware: stored, versioned, read back.

use bakeoff_api::catalog::InstanceTypeView;
use bakeoff_api::events::EventView;
use bakeoff_api::experiments::ExperimentView;
use bakeoff_api::page::Page;
use bakeoff_api::specs::{ProfileView, WorkloadView};
use bakeoff_api::trials::{AttemptView, TrialView};
use bakeoff_domain::lifecycle::state::AttemptState;
use bakeoff_service::auth::keys::Role;
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, problem, spec};

/// What was stored, in its own type.
async fn stored<T: DeserializeOwned>(test: &TestApp, path: &str, body: &Value) -> T {
    let (status, body) = test.post(path, body).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    serde_json::from_value(body).unwrap()
}

#[sqlx::test(migrations = false)]
async fn a_workload_is_versioned_by_its_content(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut workload = spec()["workload"].clone();
    let first: WorkloadView = stored(&test, "/v1/workloads", &workload).await;
    test.advance(TimeDelta::minutes(5)).await;
    let again: WorkloadView = stored(&test, "/v1/workloads", &workload).await;
    assert_eq!((first.id, first.created_at), (again.id, again.created_at));
    workload["code_version"] = json!("2");
    let next: WorkloadView = stored(&test, "/v1/workloads", &workload).await;
    assert_eq!((first.version, next.version), (1, 2));
    let read: WorkloadView = test.read(&format!("/v1/workloads/{}", first.id)).await;
    assert_eq!((read.version, read.spec), (1, first.spec));
    let mut by_reference = spec();
    by_reference.as_object_mut().unwrap().remove("workload");
    by_reference["workload_id"] = json!(next.id);
    let id = test.start(&by_reference).await;
    let experiment: ExperimentView = test.read(&format!("/v1/experiments/{id}")).await;
    assert_eq!(experiment.workload_id, next.id);
}

#[sqlx::test(migrations = false)]
async fn a_profile_is_read_back_as_it_was_stored(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let profile = &spec()["candidates"][0]["profile"];
    let new = json!({"name": "usual", "instance_type": "ml.p4de.24xlarge", "spec": profile});
    let first: ProfileView = stored(&test, "/v1/instance-profiles", &new).await;
    let read: ProfileView = test
        .read(&format!("/v1/instance-profiles/{}", first.id))
        .await;
    assert_eq!((read.name.as_str(), read.version), ("usual", 1));
    assert_eq!(read.spec, first.spec);
    let (stranger, path) = (
        test.other_project().await,
        format!("/v1/instance-profiles/{}", first.id),
    );
    let key = test.key(stranger, Role::Viewer).await;
    let (status, _) = test.send(test.request(Method::GET, &path, &key)).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "of another project");
}

#[sqlx::test(migrations = false)]
async fn instance_types_are_listed_by_family_and_found_by_name(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let p5: Page<InstanceTypeView> = test.read("/v1/instance-types?family=p5").await;
    let names: Vec<&str> = p5
        .items
        .iter()
        .map(|one| one.instance_type.as_str())
        .collect();
    assert!(names.contains(&"ml.p5.48xlarge"), "{names:?}");
    assert!(
        names.iter().all(|name| name.starts_with("ml.p5.")),
        "{names:?}"
    );
    let eight: Page<InstanceTypeView> = test.read("/v1/instance-types?accelerators_min=8").await;
    assert!(eight.items.len() > 5);
    assert!(eight.items.iter().all(|one| one.accelerator_count >= 8));
    let one: InstanceTypeView = test.read("/v1/instance-types/ml.p5.48xlarge").await;
    assert_eq!((one.accelerator_count, one.nvme_gb > 0), (8, true));
    let (status, answer) = test
        .send(test.request(
            Method::GET,
            "/v1/instance-types/ml.p5.48xlrage",
            &test.admin,
        ))
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let detail = problem(answer).detail;
    assert!(detail.contains("did you mean ml.p5.48xlarge"), "{detail}");
}

#[sqlx::test(migrations = false)]
async fn attempts_and_events_of_one_trial(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let trials: Page<TrialView> = test.read(&format!("/v1/experiments/{id}/trials")).await;
    assert_eq!(trials.items.len(), 2);
    for trial in &trials.items {
        let attempts: Page<AttemptView> = test
            .read(&format!("/v1/trials/{}/attempts", trial.id))
            .await;
        let states: Vec<AttemptState> = attempts.items.iter().map(|one| one.state).collect();
        assert_eq!(states, [AttemptState::Completed]);
        let events: Page<EventView> = test
            .read(&format!("/v1/trials/{}/events?page_size=500", trial.id))
            .await;
        assert!(
            events
                .items
                .iter()
                .any(|event| event.kind == "trial.completed")
        );
        assert!(
            events
                .items
                .iter()
                .all(|event| event.trial_id == Some(trial.id))
        );
    }
}

#[sqlx::test(migrations = false)]
async fn what_no_experiment_could_run_is_not_stored(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut workload = spec()["workload"].clone();
    workload["metrics"][0]["regex"] = json!("loss=[0-9.+");
    let (status, answer) = test.post("/v1/workloads", &workload).await;
    assert_eq!(
        (status, problem(answer).errors[0].rule.as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "metric-regex")
    );
    let mut profile = spec()["candidates"][0]["profile"].clone();
    profile["zero_stage"] = json!(9);
    let new = json!({"name": "x", "instance_type": "ml.p5.48xlarge", "spec": profile});
    let (status, answer) = test.post("/v1/instance-profiles", &new).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let error = &problem(answer).errors[0];
    assert_eq!(error.rule, "zero-stage");
    assert_eq!(error.pointer, "/spec/zero_stage");
    // How many instances it is for is not said here: 16 ways are two of these.
    let mut split = spec()["candidates"][0]["profile"].clone();
    for (key, value) in [
        ("tensor_parallel_degree", 8),
        ("pipeline_parallel_degree", 2),
        ("zero_stage", 1),
    ] {
        split[key] = json!(value);
    }
    split["library"] = json!("torchrun");
    let new = json!({"name": "split", "instance_type": "ml.p5.48xlarge", "spec": split});
    let (status, stored) = test.post("/v1/instance-profiles", &new).await;
    assert_eq!(status, StatusCode::CREATED, "{stored:#}");
}

#[sqlx::test(migrations = false)]
async fn a_stored_profile_is_used_on_its_own_type(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut spec = spec();
    let profile = spec["candidates"][1]
        .as_object_mut()
        .unwrap()
        .remove("profile")
        .unwrap();
    let new = json!({"name": "small", "instance_type": "ml.p4de.24xlarge", "spec": profile});
    let small: ProfileView = stored(&test, "/v1/instance-profiles", &new).await;
    spec["candidates"][1]["profile_id"] = json!(small.id);
    let (status, refused) = test.post("/v1/experiments", &spec).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refused}");
    let error = &problem(refused).errors[0];
    assert_eq!(error.rule, "profile-of-another-type");
    assert_eq!(error.pointer, "/candidates/1/profile_id");
    assert_eq!(
        error.detail,
        "the profile `small` was stored for ml.p4de.24xlarge, and is used on ml.p5.48xlarge"
    );
    spec["candidates"][1]["instance_type"] = json!("ml.p4de.24xlarge");
    let (status, started) = test.post("/v1/experiments", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{started}");
}
