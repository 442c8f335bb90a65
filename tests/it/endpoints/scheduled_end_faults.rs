//! The end of an endpoint at AWS where it comes too early, too late or not at all: after it was carried out, after a
//! deletion that was refused, of a create that waited, and of a schedule that somebody has deleted.

use std::sync::Arc;

use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::sagemaker::endpoint::EndpointRequest;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_process::clock::Clock;
use bakeoff_service::tasks::scheduler;
use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::endpoints::lives::{body, created, until};
use crate::endpoints::scheduled_end::{
    WEEKEND, assert_within_reservations, dollars, extend, read, schedules_left, until_all_are_over,
};
use crate::pipelines::steps::turn;
use crate::support::fault_proxy::{Act, Between};
use crate::support::{TestApp, jobs, number};

/// From now on AWS throttles some operations, until the proxy is told otherwise.
async fn throttling(test: &mut TestApp, operations: &'static [&'static str]) -> Between {
    let busy = |operation: &str, _: &Value| {
        if operations.contains(&operation) {
            let code = json!({"__type": "ThrottlingException", "message": "Rate exceeded"});
            Act::Answer(400, code)
        } else {
            Act::Pass
        }
    };
    let between = Between::start(&test.region.url, busy).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    between
}

/// The endpoint is created, and no reply comes.
async fn until_created_unheard(test: &TestApp) {
    test.region_post("/_sim/faults", &json!({"lost_reply": 1.0}))
        .await;
    while jobs(&test.record().await).is_empty() {
        turn(test).await;
        test.advance(TimeDelta::seconds(20)).await;
    }
    test.region_post("/_sim/faults", &json!({})).await;
}

/// What is booked is an estimate, and what AWS bills, within ten cents.
async fn assert_booked_as_ended(test: &TestApp) {
    let of = dollars(test, &jobs(&test.record().await)[0]).await;
    assert!(
        of.is_estimated && (of.booked - of.billed).abs() < 0.1,
        "billed {}, booked {}",
        of.billed,
        of.booked
    );
}

#[sqlx::test(migrations = false)]
async fn an_extension_that_comes_too_late_for_aws_is_booked_until_the_end_before_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    // The service is gone before it can move the end, and is back while the extension would last.
    extend(&test, &id, 9).await;
    test.advance(TimeDelta::hours(2)).await;
    until_all_are_over(&test).await;
    let view = read(&test, &id).await;
    println!("{:?}: {:?}", view.state, view.reason);
    assert_within_reservations(&test).await;
    assert_booked_as_ended(&test).await;
    let record = test.record().await;
    let over = record["schedules"]["over"].as_array().unwrap();
    assert_eq!(over.len(), 1, "no other schedule was made: {over:#?}");
}

/// AWS has ended it while the service was away; back again, the service asks for its deletion, and hears nothing.
#[sqlx::test(migrations = false)]
async fn a_deletion_that_comes_after_aws_s_own_and_is_not_heard_costs_nothing_more(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    test.advance(WEEKEND).await;
    test.region_post("/_sim/faults", &json!({"server_error": 1.0}))
        .await;
    let asked = "SELECT count(*) FROM jobs WHERE delete_asked_at IS NOT NULL";
    while number(test.app.store.pool(), asked).await == 0 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    test.region_post("/_sim/faults", &json!({})).await;
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
    assert_booked_as_ended(&test).await;
}

/// AWS has ended it while the service was away, and what it leaves behind cannot be deleted yet: that is tried again, and
/// when it ended is not forgotten meanwhile.
#[sqlx::test(migrations = false)]
async fn an_end_that_cannot_be_cleaned_up_at_once_is_booked_when_it_was(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    test.advance(WEEKEND).await;
    let between = throttling(&mut test, &["DeleteModel", "DeleteEndpointConfig"]).await;
    while between.count("DeleteEndpointConfig") + between.count("DeleteModel") == 0 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(1)).await;
    }
    between.follow(|_, _| Act::Pass);
    until_all_are_over(&test).await;
    let view = read(&test, &id).await;
    assert_eq!(view.state, EndpointState::Deleted, "{view:#?}");
    assert_within_reservations(&test).await;
    assert_booked_as_ended(&test).await;
}

/// AWS throttles its create until after the end that was scheduled: what never served costs nothing, and it has its whole
/// life once AWS takes a create.
#[sqlx::test(migrations = false)]
async fn a_create_that_was_only_ever_throttled_costs_nothing(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let between = throttling(&mut test, &["CreateEndpoint"]).await;
    let id = created(&test, &body("one")).await;
    for _ in 0..30 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(10)).await;
    }
    let asked = between.count("CreateEndpoint");
    assert!(asked > 1, "asked {asked} times");
    between.follow(|_, _| Act::Pass);
    until(&test, &id, EndpointState::InService).await;
    until_all_are_over(&test).await;
    let view = read(&test, &id).await;
    assert_eq!(view.state, EndpointState::Deleted, "{view:#?}");
    let lives = jobs(&test.record().await);
    assert_eq!(lives.len(), 1, "{lives:#?}");
    let billed = dollars(&test, &lives[0]).await.billed;
    let booked = view.cost_usd.as_f64();
    assert!(
        (booked - billed).abs() < 0.01 && booked > 0.5,
        "billed {billed}, booked {booked}"
    );
    assert_within_reservations(&test).await;
}

/// What AWS refuses ends nothing: it is billed until the end that AWS has for it.
#[sqlx::test(migrations = false)]
async fn a_deletion_that_aws_refused_is_no_end(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut long = body("one");
    long["endpoint"]["time_to_live_hours"] = json!(24);
    let id = created(&test, &long).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    let deny = json!({"deny": ["sagemaker:DeleteEndpoint"]});
    test.region_post("/_sim/setup", &deny).await;
    test.delete(&format!("/v1/endpoints/{id}")).await;
    for _ in 0..3 {
        turn(&test).await;
        test.advance(TimeDelta::minutes(3)).await;
    }
    let alarms = "SELECT count(*) FROM events WHERE data->>'kind' = 'trial.stop_refused'";
    assert_eq!(number(test.app.store.pool(), alarms).await, 1);
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
    let record = test.record().await;
    let of = dollars(&test, &jobs(&record)[0]).await;
    assert!(
        of.billed > 30.0 && (of.booked - of.billed).abs() < 0.5,
        "billed {}, booked {}",
        of.billed,
        of.booked
    );
}

/// A create that waited for hours: its end is not in the past.
#[sqlx::test(migrations = false)]
async fn an_endpoint_that_is_created_late_has_an_end_all_the_same(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    test.region_post("/_sim/faults", &json!({"server_error": 1.0}))
        .await;
    turn(&test).await;
    test.advance(TimeDelta::hours(5)).await;
    test.region_post("/_sim/faults", &json!({})).await;
    let view = until(&test, &id, EndpointState::InService).await;
    let end = view.scheduled_end_at.unwrap();
    assert!(end > test.app.clock.now(), "{view:#?}");
    let alarms = "SELECT count(*) FROM events WHERE data->>'kind' = 'trial.end_refused'";
    assert_eq!(number(test.app.store.pool(), alarms).await, 0);
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
}

/// The same, and nobody hears that it was created: once AWS has ended it, no more is booked than is reserved, although
/// it was planned long before.
#[sqlx::test(migrations = false)]
async fn an_endpoint_that_was_created_late_and_unheard_is_booked_within_its_reservation(
    pool: PgPool,
) {
    let test = TestApp::new(pool).await;
    created(&test, &body("one")).await;
    test.region_post("/_sim/faults", &json!({"server_error": 1.0}))
        .await;
    turn(&test).await;
    test.advance(TimeDelta::hours(5)).await;
    until_created_unheard(&test).await;
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
}

/// Somebody deletes the schedule, and the service may not make another: that there is none is said, with its price.
#[sqlx::test(migrations = false)]
async fn a_schedule_that_is_gone_is_not_said_to_stand(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    test.advance(TimeDelta::minutes(1)).await;
    turn(&test).await;
    let left = schedules_left(&test).await;
    let name = left[0]["name"].as_str().unwrap().to_owned();
    test.app.place.aws.unschedule_end(&name).await.unwrap();
    let deny = json!({"deny": ["scheduler:CreateSchedule"]});
    test.region_post("/_sim/setup", &deny).await;
    extend(&test, &id, 9).await;
    turn(&test).await;
    let view = read(&test, &id).await;
    let told = view.end_at_aws.unwrap();
    assert!(
        told.contains("each day that the service is away costs $")
            && told.contains("CreateSchedule")
            && told.contains("deploy/iam/control-plane.json"),
        "{told}"
    );
    assert_eq!(view.scheduled_end_at, None);
    assert!(view.absent_service_usd_per_day.is_some());
}

/// AWS has ended the endpoint, and its name is free again: a replica that stood still right before its create and lost
/// its claim meanwhile begins no second life, whose bill nobody would expect.
#[sqlx::test(migrations = false)]
async fn a_create_whose_claim_is_lost_is_not_sent(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    let name = jobs(&test.record().await)[0]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    test.advance(WEEKEND).await;
    let plan: Value = sqlx::query_scalar("SELECT plan FROM trials")
        .fetch_one(&pool)
        .await
        .unwrap();
    let mut request: EndpointRequest =
        serde_json::from_value(plan["job"]["endpoint"].clone()).unwrap();
    request.job_name = name;
    let job = Job::Endpoint(Box::new(request));
    let create = |holds: bool| test.ports.jobs.create(&job, Arc::new(move || holds));
    let refused = create(false).await.unwrap_err();
    assert!(
        matches!(&refused, AwsError::Unknown(why) if why.contains("not sent")),
        "{refused}"
    );
    assert_eq!(jobs(&test.record().await).len(), 1);
    // It is the claim that keeps it back, and nothing at AWS.
    create(true).await.unwrap();
    assert_eq!(jobs(&test.record().await).len(), 2);
}

/// AWS has ended what nobody heard of, and a clock that is set back does not know that its time is over: the same name
/// again would have a second life, without an end.
#[sqlx::test(migrations = false)]
async fn what_aws_has_ended_is_not_created_again_by_a_clock_that_is_behind(pool: PgPool) {
    let test = TestApp::new(pool).await;
    created(&test, &body("one")).await;
    until_created_unheard(&test).await;
    let mut behind = test.app.clone();
    behind.clock = Clock::manual(test.app.clock.now());
    test.advance(WEEKEND).await;
    for _ in 0..10 {
        scheduler::tick(&behind).await.unwrap();
        behind.clock.advance(TimeDelta::minutes(2));
    }
    assert_eq!(jobs(&test.record().await).len(), 1, "a second life");
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
    let of = dollars(&test, &jobs(&test.record().await)[0]).await;
    assert!(
        of.is_estimated && of.booked >= of.billed - 0.1,
        "billed {}, booked {}",
        of.billed,
        of.booked
    );
}

/// A clock that is hours behind AWS's asks for an end that has passed there. Without an end, such an endpoint would bill
/// until this clock says so: it is not created before the clock is right.
#[sqlx::test(migrations = false)]
async fn a_clock_behind_aws_creates_no_endpoint(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    let mut behind = test.app.clone();
    behind.clock = Clock::manual(test.app.clock.now());
    test.advance(TimeDelta::hours(12)).await;
    for _ in 0..3 {
        scheduler::tick(&behind).await.unwrap();
        behind.clock.advance(TimeDelta::minutes(2));
    }
    assert_eq!(jobs(&test.record().await).len(), 0);
    let reasons = "SELECT count(*) FROM trials WHERE reason LIKE '%clock is behind AWS%'";
    assert_eq!(number(test.app.store.pool(), reasons).await, 1);
    let view = until(&test, &id, EndpointState::InService).await;
    assert!(view.scheduled_end_at.is_some(), "{view:#?}");
    test.advance(WEEKEND).await;
    until_all_are_over(&test).await;
    assert_within_reservations(&test).await;
}
