//! The end of an endpoint at AWS: a schedule that deletes it without us, made before it, moved with its time to live,
//! and deleted with it. What it costs when the service is away, with and without.

use std::sync::Arc;
use std::time::Duration;

use bakeoff_api::endpoints::{CreatedEndpoint, EndpointView};
use bakeoff_api::pipelines::CreatedPipeline;
use bakeoff_domain::endpoint::EndpointState;
use bakeoff_process::clock::real_sleep;
use bakeoff_service::app::Settings;
use bakeoff_service::tasks::{deployer, scheduler};
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::endpoints::lives::{body, created, endpoint, until};
use crate::pipelines::steps::{pipeline, run_pipeline, turn, with_data};
use crate::pipelines::tuning::transform;
use crate::support::{TestApp, jobs, listening, number, problem};

pub(crate) const WEEKEND: TimeDelta = TimeDelta::hours(62);

fn on(instance_type: &str, model: &str) -> Value {
    let mut new = body(model);
    new["endpoint"]["instance_type"] = json!(instance_type);
    new
}

pub(crate) async fn read(test: &TestApp, id: &str) -> EndpointView {
    test.read(&format!("/v1/endpoints/{id}")).await
}

pub(crate) async fn extend(test: &TestApp, id: &str, hours: u32) {
    let longer = json!({ "time_to_live_hours": hours });
    let (status, answer) = test.patch(&format!("/v1/endpoints/{id}"), &longer).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
}

/// Whether the service knows that its endpoint's job runs.
async fn is_running(test: &TestApp, id: &str) -> bool {
    let trial = read(test, id).await.trial_id;
    let running = "SELECT count(*) FROM jobs WHERE trial_id = $1 AND state = 'running'";
    let count: i64 = sqlx::query_scalar(running)
        .bind(trial.0)
        .fetch_one(test.app.store.pool())
        .await
        .unwrap();
    count > 0
}

fn set(test: &mut TestApp, change: impl FnOnce(&mut Settings)) {
    let mut settings = (*test.app.settings).clone();
    change(&mut settings);
    test.app.settings = Arc::new(settings);
}

/// The service without the right to schedule.
async fn without_role(pool: PgPool) -> TestApp {
    let mut test = TestApp::new(pool).await;
    set(&mut test, |settings| settings.scheduler_role_arn = None);
    test.url = listening(&test.app).await;
    test
}

/// Schedules that wait in the region.
pub(crate) async fn schedules_left(test: &TestApp) -> Vec<Value> {
    let record = test.record().await;
    record["schedules"]["left"].as_array().cloned().unwrap()
}

fn moment(value: &Value) -> DateTime<Utc> {
    value.as_str().unwrap().parse().unwrap()
}

/// Minute by minute until all are over.
pub(crate) async fn until_all_are_over(test: &TestApp) {
    for _ in 0..120 {
        turn(test).await;
        let left = "SELECT count(*) FROM endpoints WHERE ended_at IS NULL";
        if number(test.app.store.pool(), left).await == 0 {
            return;
        }
        test.advance(TimeDelta::minutes(1)).await;
    }
    let left: Vec<(String, Option<String>)> =
        sqlx::query_as("SELECT state, reason FROM endpoints WHERE ended_at IS NULL")
            .fetch_all(test.app.store.pool())
            .await
            .unwrap();
    panic!("these are not over: {left:?}");
}

/// Dollars of one job: what the region bills, what was reserved at most, and what is booked.
pub(crate) struct Dollars {
    pub(crate) billed: f64,
    reserved: f64,
    pub(crate) booked: f64,
    pub(crate) is_estimated: bool,
}

pub(crate) async fn dollars(test: &TestApp, job: &Value) -> Dollars {
    let (reserved, booked, is_estimated): (f64, f64, bool) = sqlx::query_as(
        "SELECT coalesce(sum(usd) FILTER (WHERE l.kind = 'reserved'), 0)::float8,
                coalesce(sum(usd) FILTER (WHERE l.kind = 'settled'), 0)::float8,
                coalesce(bool_or(l.estimated) FILTER (WHERE l.kind = 'settled'), false)
         FROM ledger l JOIN jobs j ON j.id = l.job_id WHERE j.job_name = $1",
    )
    .bind(job["name"].as_str())
    .fetch_one(test.app.store.pool())
    .await
    .unwrap();
    let micro = ["micro_usd", "storage_micro_usd"].map(|part| job[part].as_f64().unwrap());
    Dollars {
        billed: micro.iter().sum::<f64>() / 1e6,
        reserved,
        booked,
        is_estimated,
    }
}

/// For each endpoint: billed is at most what was reserved, and booked is billed, or an estimate within the reservation.
pub(crate) async fn assert_within_reservations(test: &TestApp) {
    let record = test.record().await;
    for job in jobs(&record) {
        let of = dollars(test, &job).await;
        println!(
            "{} {}: billed ${:.2} of ${:.2} reserved, booked ${:.2}{}",
            job["instance_type"],
            job["status"],
            of.billed,
            of.reserved,
            of.booked,
            if of.is_estimated { " (estimated)" } else { "" }
        );
        assert_eq!(job["status"], "Deleted", "{job:#}");
        assert!(of.billed <= of.reserved, "{job:#}");
        let is_exact = (of.billed - of.booked).abs() < 0.01;
        assert!(
            is_exact || of.is_estimated && of.booked <= of.reserved + 1e-6,
            "booked {}: {job:#}",
            of.booked
        );
    }
    assert_eq!(schedules_left(test).await, Vec::<Value>::new());
    assert_eq!(record["models_and_configs"], 0, "{record:#}");
    let held = "SELECT coalesce(sum(reserved_usd), 0)::bigint FROM experiments";
    assert_eq!(number(test.app.store.pool(), held).await, 0);
}

#[sqlx::test(migrations = false)]
async fn a_weekend_without_the_service_costs_no_endpoint_more_than_its_reservation(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let half_way = created(&test, &on("ml.g5.xlarge", "one")).await;
    let large = created(&test, &on("ml.p4d.24xlarge", "two")).await;
    let extended = created(&test, &on("ml.g5.12xlarge", "three")).await;
    let mut long = on("ml.g5.2xlarge", "four");
    long["endpoint"]["time_to_live_hours"] = json!(6);
    let updating = created(&test, &long).await;
    for id in [&half_way, &large, &extended, &updating] {
        until(&test, id, EndpointState::InService).await;
    }
    test.advance(TimeDelta::minutes(20)).await;
    turn(&test).await;
    extend(&test, &extended, 9).await;
    let other = json!({"model": endpoint("five")["model"]});
    let (status, answer) = test
        .patch(&format!("/v1/endpoints/{updating}"), &other)
        .await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let starting = created(&test, &on("ml.p5.48xlarge", "six")).await;
    turn(&test).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    assert_eq!(
        read(&test, &starting).await.status.as_deref(),
        Some("Creating")
    );
    assert_eq!(schedules_left(&test).await.len(), 5);
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    for id in [&half_way, &large, &extended, &updating] {
        let view = read(&test, id).await;
        assert_eq!(view.state, EndpointState::Deleted);
        assert_eq!(view.reason.as_deref(), Some("its time to live is over"));
        assert_eq!((view.scheduled_end_at, view.end_at_aws), (None, None));
    }
    assert_within_reservations(&test).await;
    let alarms = "SELECT count(*) FROM events WHERE data->>'kind' = 'trial.over_reservation'";
    assert_eq!(number(test.app.store.pool(), alarms).await, 0);
    let record = test.record().await;
    let over = record["schedules"]["over"].as_array().unwrap();
    assert_eq!(over.len(), 5, "{over:#?}");
    assert!(
        over.iter().all(|one| one["outcome"] == "fired"),
        "{over:#?}"
    );
}

#[sqlx::test(migrations = false)]
async fn without_a_schedule_the_weekend_costs_what_was_told_for_each_day(pool: PgPool) {
    let test = without_role(pool).await;
    let (status, answer) = test
        .post("/v1/endpoints", &on("ml.p4d.24xlarge", "one"))
        .await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    let new: CreatedEndpoint = serde_json::from_value(answer).unwrap();
    let per_day = new.absent_service_usd_per_day.unwrap().as_f64();
    let told = new.end_at_aws;
    assert!(
        told.contains("no end at AWS: each day that the service is away costs $")
            && told.contains("--scheduler-role-arn"),
        "{told}"
    );
    let id = new.id.to_string();
    let view = until(&test, &id, EndpointState::InService).await;
    assert_eq!(view.scheduled_end_at, None);
    let rate = view.usd_per_hour.unwrap().as_f64();
    assert!((per_day - 24.0 * rate).abs() < 0.01, "{per_day} at {rate}");
    let shown = view.absent_service_usd_per_day.unwrap().as_f64();
    assert!((shown - per_day).abs() < 1e-9, "{shown}");
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    let record = test.record().await;
    let of = dollars(&test, &jobs(&record)[0]).await;
    println!("billed ${:.2} of ${:.2} reserved", of.billed, of.reserved);
    let days = WEEKEND.as_seconds_f64() / 86_400.0;
    assert!(of.billed > 20.0 * of.reserved && of.billed < of.reserved + days * per_day);
    assert_eq!(record["schedules"]["over"], json!([]));
}

#[sqlx::test(migrations = false)]
async fn an_extension_moves_the_end_at_aws_and_it_lives_until_then(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    let before = read(&test, &id).await;
    let (end, expires) = (before.scheduled_end_at.unwrap(), before.expires_at.unwrap());
    assert!(
        end > expires && end <= expires + TimeDelta::minutes(5),
        "{before:#?}"
    );
    assert_eq!(before.absent_service_usd_per_day, None);
    let told = before.end_at_aws.unwrap();
    assert!(told.contains("AWS itself deletes it at 20"), "{told}");
    extend(&test, &id, 30).await;
    turn(&test).await;
    let after = read(&test, &id).await;
    assert_eq!(after.scheduled_end_at.unwrap() - end, TimeDelta::hours(29));
    let left = schedules_left(&test).await;
    assert_eq!(left.len(), 1);
    assert_eq!(moment(&left[0]["at"]), after.scheduled_end_at.unwrap());
    // It serves on until then, and not longer, without us.
    test.advance(TimeDelta::hours(28)).await;
    assert_eq!(jobs(&test.record().await)[0]["status"], "InService");
    test.advance(TimeDelta::hours(34)).await;
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
}

#[sqlx::test(migrations = false)]
async fn a_failed_move_is_retried_told_once_and_never_dearer(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    let before = read(&test, &id).await.scheduled_end_at.unwrap();
    // AWS does not answer: it is tried again at each look.
    extend(&test, &id, 3).await;
    test.region_post("/_sim/faults", &json!({"server_error": 1.0}))
        .await;
    while deployer::tick(&test.app).await.unwrap() > 0 {}
    assert_eq!(read(&test, &id).await.scheduled_end_at, Some(before));
    test.region_post("/_sim/faults", &json!({})).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    let moved = read(&test, &id).await.scheduled_end_at.unwrap();
    assert_eq!(moved - before, TimeDelta::hours(2));
    // AWS refuses: told once, with what is at AWS.
    let deny = json!({"deny": ["scheduler:UpdateSchedule"]});
    test.region_post("/_sim/setup", &deny).await;
    extend(&test, &id, 8).await;
    for _ in 0..3 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    let view = read(&test, &id).await;
    assert_eq!(view.scheduled_end_at, Some(moved));
    let told = view.end_at_aws.unwrap();
    assert!(
        told.contains("its end at AWS is still 20") && told.contains("scheduler:UpdateSchedule"),
        "{told}"
    );
    let alarms = "SELECT count(*) FROM events WHERE data->>'kind' = 'trial.end_refused' AND severity = 'alarm'";
    assert_eq!(number(test.app.store.pool(), alarms).await, 1);
    // Mended, it is moved within the hour.
    test.region_post("/_sim/setup", &json!({})).await;
    test.advance(TimeDelta::minutes(61)).await;
    turn(&test).await;
    let mended = read(&test, &id).await;
    assert_eq!(
        mended.scheduled_end_at.unwrap() - moved,
        TimeDelta::hours(5)
    );
    // Refused again, and away: it ends at the old end, within what is reserved.
    test.region_post("/_sim/setup", &deny).await;
    extend(&test, &id, 40).await;
    turn(&test).await;
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
}

#[sqlx::test(migrations = false)]
async fn a_schedule_that_someone_deleted_is_put_back(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut long = body("one");
    long["endpoint"]["time_to_live_hours"] = json!(12);
    let id = created(&test, &long).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    let view = read(&test, &id).await;
    let url = format!(
        "{}/schedules/{}",
        test.region.url,
        view.endpoint_name.unwrap()
    );
    let deleted = test.client.delete(url).send().await.unwrap();
    assert!(deleted.status().is_success());
    for _ in 0..8 {
        test.advance(TimeDelta::minutes(10)).await;
        turn(&test).await;
    }
    let left = schedules_left(&test).await;
    assert_eq!(left.len(), 1);
    assert_eq!(moment(&left[0]["at"]), view.scheduled_end_at.unwrap());
}

#[sqlx::test(migrations = false)]
async fn an_endpoint_deleted_early_takes_its_schedule_along(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.delete(&format!("/v1/endpoints/{id}")).await;
    until(&test, &id, EndpointState::Deleted).await;
    // Nor does one that was never created leave any.
    let deny = json!({"deny": ["sagemaker:CreateModel"]});
    test.region_post("/_sim/setup", &deny).await;
    let refused = created(&test, &body("two")).await;
    for _ in 0..10 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    assert_ne!(read(&test, &refused).await.state, EndpointState::InService);
    assert_within_reservations(&test).await;
    let record = test.record().await;
    let over = record["schedules"]["over"].as_array().unwrap();
    assert!(
        over.len() == 2 && over.iter().all(|one| one["outcome"] == "cancelled"),
        "{over:#?}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_missing_right_is_told_in_dollars_or_refused_where_required(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let allowed = created(&test, &body("one")).await;
    until(&test, &allowed, EndpointState::InService).await;
    for denied in ["scheduler:CreateSchedule", "iam:PassRole"] {
        test.region_post("/_sim/setup", &json!({"deny": [denied]}))
            .await;
        let id = created(&test, &body("two")).await;
        let view = until(&test, &id, EndpointState::InService).await;
        let per_day = view.absent_service_usd_per_day.unwrap().as_f64();
        let rate = view.usd_per_hour.unwrap().as_f64();
        assert!((per_day - 24.0 * rate).abs() < 0.01, "{view:#?}");
        let told = view.end_at_aws.unwrap();
        assert!(
            told.contains("each day that the service is away costs $") && told.contains(denied),
            "{told}"
        );
        assert_eq!(view.scheduled_end_at, None);
    }
    let alarms = "SELECT count(*) FROM events WHERE data->>'kind' = 'trial.end_refused'";
    assert_eq!(number(test.app.store.pool(), alarms).await, 2);
    assert_eq!(schedules_left(&test).await.len(), 1, "that of {allowed}");
    set(&mut test, |settings| settings.require_scheduled_end = true);
    test.url = listening(&test.app).await;
    let id = created(&test, &body("three")).await;
    let view = until(&test, &id, EndpointState::Failed).await;
    let reason = view.reason.unwrap();
    assert!(
        reason.contains("Allow the service scheduler:CreateSchedule")
            && reason.contains("iam:PassRole")
            && reason.contains("--require-scheduled-end"),
        "{reason}"
    );
    set(&mut test, |settings| settings.scheduler_role_arn = None);
    test.url = listening(&test.app).await;
    let (status, answer) = test.post("/v1/endpoints", &body("four")).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer:#}");
    let detail = problem(answer).detail;
    assert!(detail.contains("--scheduler-role-arn"), "{detail}");
    let kinds = jobs(&test.record().await);
    assert_eq!(kinds.len(), 3, "nothing of the last two was created");
}

#[sqlx::test(migrations = false)]
async fn a_schedule_that_meets_an_update_is_repeated_until_it_deletes(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    let view = until(&test, &id, EndpointState::InService).await;
    let left = view.expires_at.unwrap() - test.app.clock.now();
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    test.advance(left - TimeDelta::minutes(4)).await;
    turn(&test).await;
    // It takes SageMaker 24 minutes to give it up: until then, the endpoint cannot be deleted.
    let silent = json!({"model": endpoint("crashes")["model"]});
    let (status, answer) = test.patch(&format!("/v1/endpoints/{id}"), &silent).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    turn(&test).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    assert_eq!(read(&test, &id).await.status.as_deref(), Some("Updating"));
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
    let record = test.record().await;
    let fired = &record["schedules"]["over"][0];
    assert_eq!(fired["outcome"], "fired");
    assert!(fired["failures"].as_u64().unwrap() >= 3, "{fired:#}");
    let why = fired["last_failure"].as_str().unwrap();
    assert!(why.contains("Cannot update in-progress endpoint"), "{why}");
}

/// A process that dies once the schedule is made and before it has written so: the next one finds it.
#[sqlx::test(migrations = false)]
async fn a_crash_between_the_schedule_and_the_create_leaves_neither(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    for is_cancelled in [false, true] {
        let id = created(&test, &body("one")).await;
        let mut held = pool.begin().await.unwrap();
        sqlx::query("SELECT id FROM endpoints FOR UPDATE")
            .execute(&mut *held)
            .await
            .unwrap();
        let dies = async {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
            while number(&pool, waiting).await == 0 {
                real_sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            _ = scheduler::tick(&test.app) => panic!("it did not wait"),
            () = dies => {}
        }
        held.rollback().await.unwrap();
        sqlx::query("UPDATE trials SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE lease_owner IS NOT NULL")
            .execute(&pool)
            .await
            .unwrap();
        assert_eq!(schedules_left(&test).await.len(), 1);
        if is_cancelled {
            test.delete(&format!("/v1/endpoints/{id}")).await;
            until(&test, &id, EndpointState::Failed).await;
        } else {
            let view = until(&test, &id, EndpointState::InService).await;
            assert_eq!(schedules_left(&test).await.len(), 1);
            assert!(view.scheduled_end_at.is_some(), "{view:#?}");
            until(&test, &id, EndpointState::Deleted).await;
        }
        assert_within_reservations(&test).await;
        assert_eq!(jobs(&test.record().await).len(), 1, "that of the first");
    }
}

/// Nobody heard that it was created, and AWS has ended it since: it is booked as an estimate, and not created again.
#[sqlx::test(migrations = false)]
async fn a_creation_that_was_never_confirmed_is_booked_once_aws_has_ended_it(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--lost-reply", "1"]).await;
    created(&test, &body("one")).await;
    while jobs(&test.record().await).is_empty() {
        turn(&test).await;
        test.advance(TimeDelta::seconds(20)).await;
    }
    test.region_post("/_sim/faults", &json!({})).await;
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    assert_eq!(jobs(&test.record().await).len(), 1);
    assert_within_reservations(&test).await;
}

#[sqlx::test(migrations = false)]
async fn lost_replies_and_errors_leave_one_schedule_for_each_endpoint(pool: PgPool) {
    let faults = ["--lost-reply", "0.4", "--server-error", "0.1"];
    let test = TestApp::with_faults(pool, &faults).await;
    let ids = [
        created(&test, &body("one")).await,
        created(&test, &body("two")).await,
    ];
    for id in &ids {
        until(&test, id, EndpointState::InService).await;
        // It may be seen in service before its creation is confirmed.
        while !is_running(&test, id).await {
            turn(&test).await;
            test.advance(TimeDelta::seconds(20)).await;
        }
        extend(&test, id, 4).await;
    }
    for _ in 0..6 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    let left = schedules_left(&test).await;
    assert_eq!(left.len(), 2);
    for id in &ids {
        let view = read(&test, id).await;
        let own = left
            .iter()
            .find(|one| one["name"] == json!(view.endpoint_name));
        assert_eq!(Some(moment(&own.unwrap()["at"])), view.scheduled_end_at);
        assert!(view.scheduled_end_at > view.expires_at, "{view:#?}");
        test.delete(&format!("/v1/endpoints/{id}")).await;
    }
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
}

/// SageMaker sets a batch transform no maximum, so it gets an end at AWS, too.
#[sqlx::test(migrations = false)]
async fn a_transform_that_runs_on_is_stopped_by_aws_while_the_service_is_away(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut endless = transform("one");
    endless["transform"]["environment"] = json!({"MODE": "endless"});
    let (status, answer) = test
        .post("/v1/pipelines", &pipeline(&json!([endless])))
        .await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    let new: CreatedPipeline = serde_json::from_value(answer).unwrap();
    let told = new.steps[0].end_at_aws.as_deref().unwrap();
    assert!(told.contains("AWS itself ends it"), "{told}");
    while jobs(&test.record().await).is_empty() {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    turn(&test).await;
    assert_eq!(schedules_left(&test).await.len(), 1);
    test.advance(WEEKEND).await;
    run_pipeline(&test, &new.id.to_string()).await;
    let record = test.record().await;
    let job = &jobs(&record)[0];
    let of = dollars(&test, job).await;
    println!("billed ${:.2} of ${:.2} reserved", of.billed, of.reserved);
    assert!(of.billed <= of.reserved, "{job:#}");
    assert!((of.billed - of.booked).abs() < 0.01, "{job:#}");
    assert_eq!(record["schedules"]["over"][0]["outcome"], "fired");
    assert_eq!(schedules_left(&test).await, Vec::<Value>::new());
}

#[sqlx::test(migrations = false)]
async fn a_pipeline_says_what_an_absent_service_costs_for_each_step(pool: PgPool) {
    let mut test = with_data(pool, &[]).await;
    set(&mut test, |settings| settings.scheduler_role_arn = None);
    test.url = listening(&test.app).await;
    let mut serve = endpoint("one");
    serve.as_object_mut().unwrap().remove("role_arn");
    let steps =
        json!([transform("one"), {"name": "serve", "after": ["predict"], "endpoint": serve}]);
    let (status, answer) = test.post("/v1/pipelines", &pipeline(&steps)).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    let new: CreatedPipeline = serde_json::from_value(answer).unwrap();
    for step in &new.steps {
        let usd = step.absent_service_usd_per_day.unwrap().as_f64();
        assert!(usd > 20.0 && usd < 50.0, "one g5.xlarge: {step:#?}");
        let told = step.end_at_aws.as_deref().unwrap();
        assert!(told.contains("no end at AWS: each day"), "{told}");
    }
}
