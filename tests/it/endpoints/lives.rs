//! Endpoints: put into service, tested, updated, rolled back, extended, deleted in time and billed.

use std::time::Duration;

use bakeoff_api::endpoints::{CreatedEndpoint, EndpointView};
use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::EntryKind;
use bakeoff_process::clock::real_sleep;
use bakeoff_service::tasks::{deployer, scheduler};
use bakeoff_store::endpoints::{EndpointNext, Extended, Extension, WhichEndpoints};
use chrono::TimeDelta;
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::pipelines::steps::{
    assert_billed, pipeline, prepare, run_pipeline, started, step, turn, with_data,
};
use crate::support::fault_proxy::{Act, Between};
use crate::support::{TestApp, jobs, number};

const SERVES: &str =
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312";

/// One that serves for an hour.
pub(crate) fn endpoint(model: &str) -> Value {
    json!({"model": {"image": SERVES, "model_s3_uri": format!("s3://tests/models/{model}/model.tar.gz")},
        "instance_type": "ml.g5.xlarge", "time_to_live_hours": 1,
        "role_arn": "arn:aws:iam::111122223333:role/serve",
        "smoke_test": {"body": "{\"inputs\": \"Guten\"}", "expect": "generated_text"}})
}

pub(crate) fn body(model: &str) -> Value {
    json!({"name": "legal-de", "region": "us-east-1", "owner": "the legal team", "endpoint": endpoint(model)})
}

pub(crate) async fn created(test: &TestApp, body: &Value) -> String {
    let (status, answer) = test.post("/v1/endpoints", body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    let created: CreatedEndpoint = serde_json::from_value(answer).unwrap();
    created.id.to_string()
}

async fn read(test: &TestApp, id: &str) -> EndpointView {
    test.read(&format!("/v1/endpoints/{id}")).await
}

/// Until it is in a state, minute by minute.
pub(crate) async fn until(test: &TestApp, id: &str, state: EndpointState) -> EndpointView {
    for _ in 0..300 {
        turn(test).await;
        let view = read(test, id).await;
        if view.state == state {
            return view;
        }
        assert!(!view.state.is_over(), "{view:#?}");
        test.advance(TimeDelta::minutes(1)).await;
    }
    panic!("it is not {}: {:#?}", state.as_str(), read(test, id).await);
}

/// Nothing serves, no part is left, and everything is booked to the cent.
async fn assert_nothing_is_left(test: &TestApp) {
    let record = test.record().await;
    assert_eq!(record["models_and_configs"], 0, "{record:#}");
    assert_eq!(record["schedules"]["left"], json!([]), "{record:#}");
    for job in jobs(&record).iter().filter(|job| job["kind"] == "endpoint") {
        assert_eq!(job["status"], "Deleted", "{job:#}");
    }
    assert_billed(test).await;
    let held = "SELECT coalesce(sum(reserved_usd), 0)::bigint FROM experiments";
    assert_eq!(number(test.app.store.pool(), held).await, 0);
}

#[sqlx::test(migrations = false)]
async fn an_endpoint_serves_is_announced_and_is_deleted_in_time(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    let view = until(&test, &id, EndpointState::InService).await;
    let outcome = view.revisions[0].outcome.clone().unwrap();
    assert!(outcome.contains("smoke test has passed"), "{outcome}");
    assert_eq!(view.owner, "the legal team");
    let (rate, budget) = (view.usd_per_hour.unwrap(), view.budget_usd);
    assert!(
        budget > rate && budget.as_f64() < 3.0 * rate.as_f64(),
        "{budget} at {rate}"
    );
    assert!(view.cost_usd.as_f64() > 0.0 && view.cost_usd < view.reserved_usd);
    let view = until(&test, &id, EndpointState::Deleted).await;
    assert_eq!(view.reason.as_deref(), Some("its time to live is over"));
    let served = view.ended_at.unwrap() - view.in_service_at.unwrap();
    assert!(served < TimeDelta::minutes(70), "{served}");
    let alarms = "SELECT count(*) FROM events WHERE data->>'kind' = 'endpoint.expiring'";
    assert_eq!(number(test.app.store.pool(), alarms).await, 1);
    let ended = "SELECT count(*) FROM experiments WHERE state = 'completed'";
    assert_eq!(
        number(test.app.store.pool(), ended).await,
        1,
        "it has done what it was for"
    );
    // Where the answer says that its dollars and its events are.
    let of = view.experiment_id.to_string();
    let entries = test.ledger(&of).await;
    let paid = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Settled);
    let paid: Usd = paid.map(|entry| entry.usd).sum();
    assert_eq!(paid, view.settled_usd);
    let told = test.events(&of).await;
    assert!(told.iter().any(|event| event.kind == "endpoint.expiring"));
    assert_nothing_is_left(&test).await;
}

#[sqlx::test(migrations = false)]
async fn a_model_that_does_not_answer_as_it_should_never_serves(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let broken = created(&test, &body("broken")).await;
    let view = until(&test, &broken, EndpointState::Failed).await;
    let reason = view.reason.unwrap();
    assert!(reason.contains("smoke test failed: ModelError"), "{reason}");
    // A container that never answers its health check takes 24 minutes to fail.
    let crashes = created(&test, &body("crashes")).await;
    let view = until(&test, &crashes, EndpointState::Failed).await;
    let reason = view.reason.unwrap();
    assert!(reason.contains("ping health check"), "{reason}");
    let mut other = body("one");
    other["endpoint"]["smoke_test"]["expect"] = json!("Bonjour");
    let wrong = created(&test, &other).await;
    let view = until(&test, &wrong, EndpointState::Failed).await;
    let reason = view.reason.unwrap();
    assert!(reason.contains("does not contain `Bonjour`"), "{reason}");
    assert_nothing_is_left(&test).await;
}

#[sqlx::test(migrations = false)]
async fn an_update_serves_after_its_test_and_a_bad_one_is_rolled_back(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut long = body("one");
    long["endpoint"]["time_to_live_hours"] = json!(24);
    let id = created(&test, &long).await;
    until(&test, &id, EndpointState::InService).await;
    let path = format!("/v1/endpoints/{id}");
    let to = |model: &str| json!({"model": endpoint(model)["model"]});
    let (status, answer) = test.patch(&path, &to("two")).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let view: EndpointView = serde_json::from_value(answer).unwrap();
    assert_eq!(view.state, EndpointState::Updating, "{view:#?}");
    let (status, answer) = test.patch(&path, &to("three")).await;
    assert_eq!(
        status,
        StatusCode::CONFLICT,
        "one change at a time: {answer:#}"
    );
    let view = until(&test, &id, EndpointState::InService).await;
    assert_eq!((view.revision, view.wanted_revision), (1, 1));
    // The test of the next fails: what served before serves again.
    let (status, _) = test.patch(&path, &to("broken")).await;
    assert_eq!(status, StatusCode::OK);
    until(&test, &id, EndpointState::RollingBack).await;
    let view = until(&test, &id, EndpointState::InService).await;
    assert_eq!((view.revision, view.wanted_revision), (1, 1));
    let outcome = view.revisions[2].outcome.clone().unwrap();
    assert!(
        outcome.contains("rolled back") && outcome.contains("ModelError"),
        "{outcome}"
    );
    // SageMaker itself puts the old one back if the new one never answers.
    let (status, _) = test.patch(&path, &to("crashes")).await;
    assert_eq!(status, StatusCode::OK);
    let view = until(&test, &id, EndpointState::InService).await;
    let outcome = view.revisions[3].outcome.clone().unwrap();
    assert!(outcome.contains("ping health check"), "{outcome}");
    // By hand, to the first.
    let (status, _) = test.patch(&path, &json!({"revision": 0})).await;
    assert_eq!(status, StatusCode::OK);
    let view = until(&test, &id, EndpointState::InService).await;
    assert_eq!(view.revision, 0);
    let (status, answer) = test.delete(&path).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    until(&test, &id, EndpointState::Deleted).await;
    assert_nothing_is_left(&test).await;
}

/// What the deployer decided before a change was asked for is not written over it.
#[sqlx::test(migrations = false)]
async fn a_change_asked_for_while_the_deployer_looks_is_not_lost(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    let path = format!("/v1/endpoints/{id}");
    test.advance(TimeDelta::minutes(15)).await;
    let (region, now) = (&test.app.place.region, test.app.clock.now());
    let store = &test.app.store;
    let claimed = store
        .claim_due_endpoint(region, now, TimeDelta::zero())
        .await;
    let looked_at = claimed.unwrap().unwrap();
    let two = json!({"model": endpoint("two")["model"]});
    let (status, answer) = test.patch(&path, &two).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let waits = EndpointNext {
        due_at: Some(now),
        ..EndpointNext::default()
    };
    let is_written = store.record_endpoint(&looked_at, &waits, now).await;
    assert!(!is_written.unwrap());
    let view = until(&test, &id, EndpointState::InService).await;
    assert_eq!((view.revision, view.wanted_revision), (1, 1));
    // The same extension twice, from the same reading, is one.
    let which = WhichEndpoints::One(looked_at.id);
    let found = store.endpoints(looked_at.project_id, which, 1).await;
    let looked_at = found.unwrap().remove(0);
    let by = Extension {
        hours: 3,
        usd: Usd::from_f64(10.0).unwrap(),
        budget_usd: Some(Usd::from_f64(1000.0).unwrap()),
    };
    let first = store.extend_endpoint(&looked_at, by, now).await.unwrap();
    let second = store.extend_endpoint(&looked_at, by, now).await.unwrap();
    assert_eq!((first, second), (Extended::Done, Extended::Changed));
    let (status, answer) = test.delete(&path).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    until(&test, &id, EndpointState::Deleted).await;
    assert_nothing_is_left(&test).await;
}

#[sqlx::test(migrations = false)]
async fn a_longer_life_is_reserved_before_it_is_lived(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    let before = until(&test, &id, EndpointState::InService).await;
    let path = format!("/v1/endpoints/{id}");
    for _ in 0..2 {
        let (status, answer) = test.patch(&path, &json!({"time_to_live_hours": 3})).await;
        assert_eq!(status, StatusCode::OK, "{answer:#}");
    }
    let after = read(&test, &id).await;
    let rate = before.usd_per_hour.unwrap().as_f64();
    let more = (after.reserved_usd - before.reserved_usd).as_f64();
    assert!(
        (more - 2.0 * rate).abs() < 0.01,
        "{more} for two hours at {rate}"
    );
    assert_eq!(
        after.expires_at.unwrap() - before.expires_at.unwrap(),
        TimeDelta::hours(2)
    );
    let (status, answer) = test.patch(&path, &json!({"time_to_live_hours": 2})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    // Nobody spends what the project does not have.
    sqlx::query("UPDATE projects SET budget_usd = settled_usd + reserved_usd + 1")
        .execute(test.app.store.pool())
        .await
        .unwrap();
    let (status, answer) = test.patch(&path, &json!({"time_to_live_hours": 30})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer:#}");
    let kept = read(&test, &id).await;
    assert_eq!(
        (kept.expires_at, kept.reserved_usd),
        (after.expires_at, after.reserved_usd)
    );
    let view = until(&test, &id, EndpointState::Deleted).await;
    let served = view.ended_at.unwrap() - view.in_service_at.unwrap();
    assert!(
        served > TimeDelta::hours(3) && served < TimeDelta::minutes(190),
        "{served}"
    );
    assert_nothing_is_left(&test).await;
}

/// One that is being created cannot be deleted: it is tried until it can.
#[sqlx::test(migrations = false)]
async fn one_that_is_being_created_is_deleted_as_soon_as_it_can_be(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    turn(&test).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    let (status, _) = test.delete(&format!("/v1/endpoints/{id}")).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let view = until(&test, &id, EndpointState::Failed).await;
    assert_eq!(view.reason.as_deref(), Some("deleted by hand"));
    assert_eq!(view.in_service_at, None);
    // Before anything was sent, nothing is.
    let early = created(&test, &body("one")).await;
    test.delete(&format!("/v1/endpoints/{early}")).await;
    until(&test, &early, EndpointState::Failed).await;
    assert_nothing_is_left(&test).await;
}

/// Somebody deletes it in the console: it is over, and billed until it was found to be gone at most.
#[sqlx::test(migrations = false)]
async fn one_that_somebody_else_deleted_is_over_and_billed(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    let view = until(&test, &id, EndpointState::InService).await;
    let name = view.endpoint_name.unwrap();
    let call = test
        .client
        .post(&test.region.url)
        .header("x-amz-target", "SageMaker.DeleteEndpoint")
        .body(json!({"EndpointName": name}).to_string());
    assert!(call.send().await.unwrap().status().is_success());
    test.advance(TimeDelta::minutes(5)).await;
    let view = until(&test, &id, EndpointState::Deleted).await;
    assert!(view.settled_usd.as_f64() > 0.0, "{view:#?}");
    let held = "SELECT coalesce(sum(reserved_usd), 0)::bigint FROM experiments";
    assert_eq!(number(test.app.store.pool(), held).await, 0);
}

/// A pipeline waits until somebody has approved the version, and ends once it serves; the endpoint serves on.
#[sqlx::test(migrations = false)]
async fn a_pipeline_deploys_what_somebody_approved(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut serve = endpoint("one");
    serve.as_object_mut().unwrap().remove("role_arn");
    let steps =
        json!([prepare("prepare"), {"name": "serve", "after": ["prepare"], "endpoint": serve}]);
    let id = started(&test, &pipeline(&steps)).await;
    let view = run_pipeline(&test, &id).await;
    let serve = step(&view, "serve");
    let outputs = serve.outputs.clone().unwrap();
    let endpoint = outputs["endpoint_id"].as_str().unwrap();
    let at_work = read(&test, endpoint).await;
    assert_eq!(
        (at_work.state, at_work.owner.as_str()),
        (EndpointState::InService, "pipeline legal-de")
    );
    assert!(serve.reserved_usd.as_f64() > 0.0);
    until(&test, endpoint, EndpointState::Deleted).await;
    assert_nothing_is_left(&test).await;
}

/// A reply that is lost after each call, and a kill at each step, leave one endpoint.
#[sqlx::test(migrations = false)]
async fn lost_replies_leave_one_endpoint(pool: PgPool) {
    let test = TestApp::with_faults(
        pool,
        &["--lost-reply", "0.5", "--lag", "0.3", "--lag-seconds", "60"],
    )
    .await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    let path = format!("/v1/endpoints/{id}");
    let (status, _) = test
        .patch(&path, &json!({"model": endpoint("two")["model"]}))
        .await;
    assert_eq!(status, StatusCode::OK);
    let view = until(&test, &id, EndpointState::InService).await;
    assert_eq!(view.revision, 1);
    until(&test, &id, EndpointState::Deleted).await;
    assert_eq!(jobs(&test.record().await).len(), 1);
    assert_nothing_is_left(&test).await;
}

/// It is written that the deletion is asked for, and AWS carries it out, but nobody hears that.
async fn deleted_unheard(test: &TestApp, id: &str) {
    let view = read(test, id).await;
    let call = test
        .client
        .post(&test.region.url)
        .header("x-amz-target", "SageMaker.DeleteEndpoint")
        .body(json!({"EndpointName": view.endpoint_name}).to_string());
    assert!(call.send().await.unwrap().status().is_success());
    let now = test.app.clock.now();
    sqlx::query("UPDATE jobs SET delete_asked_at = $1")
        .bind(now)
        .execute(test.app.store.pool())
        .await
        .unwrap();
}

/// A process dies after it asked for the deletion and before it heard that this was accepted; by the next look, the
/// endpoint is gone, and nobody tells since when.
#[sqlx::test(migrations = false)]
async fn a_deletion_that_nobody_heard_of_is_billed_until_it_was_asked_for(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    deleted_unheard(&test, &id).await;
    test.delete(&format!("/v1/endpoints/{id}")).await;
    test.advance(TimeDelta::hours(5)).await;
    until(&test, &id, EndpointState::Deleted).await;
    assert_nothing_is_left(&test).await;
    let estimated = "SELECT count(*) FROM ledger WHERE kind = 'settled' AND component = 'hosting' AND estimated";
    assert_eq!(number(&pool, estimated).await, 1);
}

/// The same, and hours later nothing answers looks: the deletion is asked for again, which AWS says there is nothing to
/// do for, and once more, which gets no answer. It was over when the first one was asked for.
#[sqlx::test(migrations = false)]
async fn a_deletion_of_what_is_gone_already_moves_no_end(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    deleted_unheard(&test, &id).await;
    test.delete(&format!("/v1/endpoints/{id}")).await;
    test.advance(TimeDelta::hours(5)).await;
    let failure = json!({"__type": "InternalFailure", "message": "An internal failure occurred"});
    let mut asked = 0;
    let rule = move |operation: &str, _: &Value| match operation {
        "DescribeEndpoint" if asked < 2 => Act::Answer(500, failure.clone()),
        "DeleteEndpoint" => {
            asked += 1;
            if asked == 2 {
                Act::Answer(500, failure.clone())
            } else {
                Act::Pass
            }
        }
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, rule).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    until(&test, &id, EndpointState::Deleted).await;
    assert_eq!(between.count("DeleteEndpoint"), 2);
    assert_nothing_is_left(&test).await;
}

/// Nobody hears that it was created, and the next try comes hours later: it finds the endpoint, whose start is its
/// creation, also if nobody sees it again.
#[sqlx::test(migrations = false)]
async fn a_creation_that_nobody_heard_of_is_billed_from_then_on(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--lost-reply", "1"]).await;
    created(&test, &body("one")).await;
    while jobs(&test.record().await).is_empty() {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    test.region_post("/_sim/faults", &json!({})).await;
    test.advance(TimeDelta::minutes(80)).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let record = test.record().await;
    let ours = jobs(&record);
    let created_at = ours[0]["created_at"].as_str().unwrap();
    let known =
        "SELECT count(*) FROM jobs WHERE state = 'running' AND started_at = $1::text::timestamptz";
    let known: i64 = sqlx::query_scalar(known)
        .bind(created_at)
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(known, 1, "{record:#}");
}

/// A process stands still between writing that it deletes an endpoint and sending that, and never hears the answer:
/// the endpoint is billed until the deletion was sent.
#[sqlx::test(migrations = false)]
async fn a_deletion_that_was_sent_late_is_billed_until_it_was_sent(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.delete(&format!("/v1/endpoints/{id}")).await;
    let mut held = pool.begin().await.unwrap();
    sqlx::query("SELECT id FROM jobs FOR UPDATE")
        .execute(&mut *held)
        .await
        .unwrap();
    let stands_still = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while number(&pool, waiting).await == 0 {
            real_sleep(Duration::from_millis(20)).await;
        }
        test.region_post("/_sim/faults", &json!({"reset_after": 1.0}))
            .await;
        test.advance(TimeDelta::minutes(40)).await;
        held.rollback().await.unwrap();
    };
    tokio::join!(turn(&test), stands_still);
    let deleting_since = test.app.clock.now();
    test.advance(TimeDelta::minutes(30)).await;
    test.region_post("/_sim/faults", &json!({})).await;
    until(&test, &id, EndpointState::Deleted).await;
    let until = "SELECT count(*) FROM ledger WHERE kind = 'settled' AND component = 'hosting' AND used_until >= $1";
    let booked: i64 = sqlx::query_scalar(until)
        .bind(deleting_since)
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(booked, 1);
    assert_nothing_is_left(&test).await;
}

/// An endpoint whose row is lost is stopped and billed like every orphan.
#[sqlx::test(migrations = false)]
async fn an_endpoint_of_no_living_attempt_is_deleted_and_billed(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    // As if its attempt had ended without it.
    for change in [
        "UPDATE jobs SET state = 'never_created', settled_at = now(), ended_at = now(), billable_seconds = 0",
        "UPDATE trials SET state = 'failed', ended_at = now()",
    ] {
        sqlx::query(change)
            .execute(test.app.store.pool())
            .await
            .unwrap();
    }
    for _ in 0..20 {
        test.watch().await;
        while deployer::tick(&test.app).await.unwrap() > 0 {}
        test.advance(TimeDelta::minutes(10)).await;
    }
    let record = test.record().await;
    let job = &jobs(&record)[0];
    assert_eq!(job["status"], "Deleted", "{job:#}");
    let billed = "SELECT count(*) FROM ledger WHERE resource = 'orphaned_job' AND kind = 'settled'";
    assert!(number(test.app.store.pool(), billed).await > 0);
}
