//! What holds when a listing, the clock or capacity fails: it is repeated, nothing is concluded
//! from what is missing, and waiting ends.

use std::sync::Arc;
use std::time::Duration;

use bakeoff_domain::lifecycle::failure::FailureClass;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::sagemaker::limiter::Limiter;
use bakeoff_process::clock::real_sleep;
use bakeoff_service::replica::leader::Leader;
use bakeoff_service::tasks::{scheduler, watcher};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::faults::stalls::{P5_USD_PER_HOUR, long, start};
use crate::support::fault_proxy::{Act, Between};
use crate::support::{REGION, Region, TestApp, holder, number, on_p5, spec, usual};

/// As after a restore: jobs run, and their attempts are over in the database.
async fn without_attempts(test: &TestApp, pool: &PgPool) {
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    for statement in [
        "UPDATE jobs SET state = 'never_created', settled_at = planned_at, metrics_due_at = NULL",
        "UPDATE trials SET state = 'stopped', ended_at = created_at",
    ] {
        sqlx::query(statement).execute(pool).await.unwrap();
    }
}

const ORPHANS: &str = "SELECT count(*) FROM orphaned_jobs";

#[sqlx::test(migrations = false)]
async fn a_first_listing_that_is_throttled_is_repeated_at_once_and_not_after_hours(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&long()).await;
    without_attempts(&test, &pool).await;
    let mut memory = watcher::Memory::default();
    test.region_post("/_sim/faults", &json!({"throttle": 1.0}))
        .await;
    watcher::tick(&test.app, &mut memory).await.unwrap();
    test.region_post("/_sim/faults", &json!({})).await;
    let mut minutes = 0;
    while number(&pool, ORPHANS).await < 1 && minutes < 7 * 60 {
        test.watch_as_production(&mut memory, TimeDelta::minutes(5))
            .await;
        minutes += 5;
    }
    let billed = test.billed_usd().await;
    println!(
        "a throttled first listing: orphan found after {minutes} minutes, ${billed:.2} billed"
    );
    assert!(
        minutes <= 10,
        "the orphan was found after {minutes} minutes, ${billed:.2} billed"
    );
}

#[sqlx::test(migrations = false)]
async fn a_listing_that_was_cut_off_midway_is_not_complete_and_is_repeated(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&spec()).await;
    without_attempts(&test, &pool).await;
    let mut memory = watcher::Memory::default();
    test.region_post("/_sim/faults", &json!({"reset_after": 1.0}))
        .await;
    watcher::tick(&test.app, &mut memory).await.unwrap();
    test.region_post("/_sim/faults", &json!({})).await;
    test.watch_as_production(&mut memory, TimeDelta::minutes(10))
        .await;
    assert_eq!(
        number(&pool, ORPHANS).await,
        2,
        "orphans found ten minutes after a listing whose reply was lost"
    );
}

/// Whatever ended during it is seen at the next one, and costs money until then.
#[sqlx::test(migrations = false)]
async fn a_listing_that_was_cut_off_is_made_again_within_seconds(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut memory = watcher::Memory::default();
    let whole = watcher::tick(&test.app, &mut memory).await.unwrap();
    test.advance(whole).await;
    test.region_post("/_sim/faults", &json!({"reset_after": 1.0}))
        .await;
    let cut_off = watcher::tick(&test.app, &mut memory).await.unwrap();
    assert!(
        cut_off * 5 <= whole,
        "{cut_off} after a listing that was cut off, {whole} after a whole one"
    );
}

/// STS alone is away: jobs of ours are ours by their names, and nothing is concluded from what is
/// missing.
#[sqlx::test(migrations = false)]
async fn an_end_is_noticed_while_the_account_cannot_be_confirmed(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    test.tick().await;
    let sts_is_away = |operation: &str, _: &Value| match operation {
        // Its operation is in a form.
        "" => Act::Answer(500, Value::Null),
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, sts_is_away).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    test.advance(TimeDelta::hours(6)).await;
    sqlx::query("UPDATE trials SET due_at = due_at + interval '1 year'")
        .execute(&pool)
        .await
        .unwrap();
    let listed = "SELECT count(*) FROM leases WHERE listed_at IS NOT NULL";
    let before = number(&pool, listed).await;
    test.watch().await;
    assert!(between.count("") > 0 && between.count("ListTrainingJobs") > 0);
    let due = "SELECT count(*) FROM trials WHERE due_at < (SELECT max(created_at) FROM trials) + interval '1 month'";
    let is_complete = number(&pool, listed).await > before;
    assert_eq!(
        (number(&pool, due).await, is_complete),
        (1, false),
        "trials that are looked at; whether that was all"
    );
}

/// One call can take as long as a third of the lease, and several come one after the other.
#[sqlx::test(migrations = false)]
async fn long_work_does_not_cost_the_watcher_its_lease(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let (store, ttl) = (&test.app.store, Duration::from_millis(1500));
    let leader = Leader::new("watcher", REGION, "a", ttl);
    let term = leader.term(store).await.unwrap();
    let mut taken = Vec::new();
    let others = async {
        let begun = std::time::Instant::now();
        while begun.elapsed() < ttl * 2 {
            taken.extend(
                store
                    .acquire_lease("watcher", REGION, "b", ttl)
                    .await
                    .unwrap(),
            );
            real_sleep(ttl / 20).await;
        }
    };
    leader.keep(store, others).await;
    assert_eq!((taken, leader.term(store).await.unwrap()), (vec![], term));
}

/// They may run for 28 days: a backup may be as old, and so may be an attempt that was given up.
#[sqlx::test(migrations = false)]
async fn the_first_listing_of_a_term_finds_jobs_of_days_ago(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&long()).await;
    without_attempts(&test, &pool).await;
    test.advance(TimeDelta::hours(30)).await;
    let before = test.billed_usd().await;
    assert!(test.jobs().await[0].is_running());
    let mut memory = watcher::Memory::default();
    test.watch_as_production(&mut memory, TimeDelta::minutes(20))
        .await;
    let status = test.jobs().await.remove(0).status;
    let each_day = 24.0 * P5_USD_PER_HOUR;
    println!("a job of 30 hours ago: ${before:.2} billed when the watcher came; it is {status}");
    assert_eq!(
        status, "Stopped",
        "${each_day:.2} a day run on that nobody looks for"
    );
}

/// AWS says who we are, and does not list: the sweep of a term's beginning is still to be made.
#[sqlx::test(migrations = false)]
async fn a_sweep_that_was_cut_off_is_made_again_at_once(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let mut longer = long();
    longer["workload"]["trial_tokens"] = json!(20_000_000_000_u64);
    test.start(&longer).await;
    without_attempts(&test, &pool).await;
    // Longer ago than an ordinary listing goes back.
    test.advance(TimeDelta::hours(50)).await;
    let throttled = |operation: &str, _: &Value| match operation {
        "ListTrainingJobs" => Act::Answer(
            400,
            json!({"__type": "ThrottlingException", "message": "Rate exceeded"}),
        ),
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, throttled).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    let mut memory = watcher::Memory::default();
    watcher::tick(&test.app, &mut memory).await.unwrap();
    between.follow(|_, _| Act::Pass);
    test.watch_as_production(&mut memory, TimeDelta::minutes(20))
        .await;
    let status = test.jobs().await.remove(0).status;
    assert_eq!(
        status,
        "Stopped",
        "the next sweep is six hours away: ${:.2}",
        6.0 * P5_USD_PER_HOUR
    );
}

/// A role of another account, after a deploy: Describe says "not found" of every job, List is
/// empty.
#[sqlx::test(migrations = false)]
async fn credentials_of_another_account_make_no_job_vanish(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let mut three = long();
    three["candidates"][0]["repeats"] = json!(3);
    let id = test.start(&three).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    test.advance(TimeDelta::minutes(20)).await;
    let mut memory = watcher::Memory::default();
    test.watch_as_production(&mut memory, TimeDelta::minutes(5))
        .await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let reserved = test.experiment(&id).await.reserved_usd;

    let others = Region::start(&[], usual() + TimeDelta::minutes(25));
    let account = json!({"account": "999988887777"});
    drop(
        test.client
            .post(format!("{}/_sim/account", others.url))
            .json(&account)
            .send()
            .await,
    );
    test.call_aws_at(&others.url, &others.s3_url).await;
    for _ in 0..30 {
        test.advance(TimeDelta::minutes(1)).await;
        watcher::tick(&test.app, &mut memory).await.unwrap();
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
    }
    let vanished = number(
        &pool,
        "SELECT count(*) FROM jobs WHERE settled_at IS NOT NULL",
    )
    .await;
    let held = test.experiment(&id).await.reserved_usd;
    let running = test.in_progress().await;
    let rate = 3.0 * P5_USD_PER_HOUR;
    println!(
        "wrong account: {vanished} of 3 given up, reserved {reserved} then {held}; they run at ${rate:.2}/h"
    );
    assert_eq!(
        (vanished, running, held),
        (0, 3, reserved),
        "attempts given up, jobs that run, dollars reserved"
    );

    let (url, s3_url) = (test.region.url.clone(), test.region.s3_url.clone());
    test.call_aws_at(&url, &s3_url).await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 3).await;
}

#[test]
fn after_the_clock_was_set_back_a_call_is_free_within_seconds() {
    let mut limiter = Limiter::at_most(1.0);
    let mut now = start();
    assert!(limiter.take(now).is_ok());
    now -= TimeDelta::hours(1);
    let mut waited = 0;
    while limiter.take(now).is_err() && waited < 7200 {
        now += TimeDelta::seconds(1);
        waited += 1;
    }
    assert!(
        waited <= 5,
        "a call was free {waited} seconds after the clock had been set back by an hour"
    );
}

#[test]
fn a_throttle_before_the_clock_was_set_back_is_still_learnt_from_after_it() {
    let mut limiter = Limiter::learning(10.0);
    limiter.heard(true, start());
    let before = limiter.rate();
    limiter.heard(true, start() - TimeDelta::hours(1) + TimeDelta::seconds(30));
    assert!(
        limiter.rate() < before,
        "a throttle after the step says nothing: {} calls a second",
        limiter.rate()
    );
}

#[sqlx::test(migrations = false)]
async fn listings_go_on_after_the_clock_was_set_back(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    test.advance(TimeDelta::minutes(90)).await;
    let mut memory = watcher::Memory::default();
    test.watch_as_production(&mut memory, TimeDelta::minutes(3))
        .await;
    let lists = async || test.calls("ListTrainingJobs").await;
    let before = lists().await;
    test.app.clock.advance(-TimeDelta::hours(1));
    test.watch_as_production(&mut memory, TimeDelta::minutes(10))
        .await;
    let after = lists().await;
    assert!(
        after > before,
        "no listing in ten minutes after the clock had been set back by an hour"
    );
}

#[sqlx::test(migrations = false)]
async fn a_stop_asked_for_before_the_clock_was_set_back_is_sent_at_once(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut many = long();
    many["candidates"][0]["repeats"] = json!(8);
    let id = test.start(&many).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.app.clock.advance(-TimeDelta::hours(1));
    for _ in 0..4 {
        scheduler::tick(&test.app).await.unwrap();
        test.advance(TimeDelta::seconds(30)).await;
    }
    let going = test.in_progress().await;
    let exposed = P5_USD_PER_HOUR * f64::from(u32::try_from(going).unwrap());
    println!("stops after a step back: {going} of 8 not sent, ${exposed:.2} for the hour");
    assert_eq!(
        going, 0,
        "jobs whose stop was not sent two minutes after the clock had been set back by an hour"
    );
}

/// What had begun before the step writes a time of the old clock after the step was noticed.
#[sqlx::test(migrations = false)]
async fn what_was_under_way_when_the_clock_was_set_back_does_not_wait_for_the_old_time(
    pool: PgPool,
) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    test.tick().await;
    test.app.clock.advance(-TimeDelta::hours(12));
    test.tick().await;
    sqlx::query("UPDATE trials SET due_at = due_at + interval '12 hours'")
        .execute(&pool)
        .await
        .unwrap();
    let mut app = test.replica("two leases later");
    app.settings = Arc::new(bakeoff_service::app::Settings {
        lease: Duration::ZERO,
        ..(*app.settings).clone()
    });
    scheduler::tick(&app).await.unwrap();
    let due_at: DateTime<Utc> = sqlx::query_scalar("SELECT due_at FROM trials")
        .fetch_one(&pool)
        .await
        .unwrap();
    let now = app.clock.now();
    assert!(due_at < now + TimeDelta::hours(12), "{due_at} at {now}");
}

/// A virtual machine that is restored, a clock that is put right and a service that is started
/// again.
#[sqlx::test(migrations = false)]
async fn a_stop_is_sent_at_once_by_a_process_that_started_after_the_clock_was_set_back(
    pool: PgPool,
) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&long()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.app.clock.advance(-TimeDelta::hours(1));
    let mut started = test.replica("started");
    started.place.newest = Arc::default();
    while scheduler::tick(&started).await.unwrap() > 0 {}
    let asked = test.jobs().await[0].stop_asked_at;
    assert!(
        asked.is_some(),
        "a stop waits for the hour by which the clock was set back: {P5_USD_PER_HOUR} dollars"
    );
}

#[test]
fn a_failure_is_classed_by_its_prefix_and_not_by_a_word_in_the_users_message() {
    let reason = "AlgorithmError: ExecuteUserScriptError: ExpertCapacityError: 12 tokens dropped, ExitCode 1";
    assert_eq!(FailureClass::of(reason), FailureClass::Algorithm);
    assert_eq!(
        FailureClass::of("ClientError: CapacityError.txt was not found in S3"),
        FailureClass::Client
    );
    assert_eq!(
        FailureClass::of("InternalServerError: after a CapacityError"),
        FailureClass::Internal
    );
    let capacity = "CapacityError: Unable to provision requested ML compute capacity.";
    assert_eq!(FailureClass::of(capacity), FailureClass::Capacity);
}

#[sqlx::test(migrations = false)]
async fn a_stop_goes_before_any_number_of_looks(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut many = spec();
    many["budget_usd"] = json!(1_000_000);
    let each: Vec<Value> = (0..10)
        .map(|number| {
            let mut one = many["candidates"][0].clone();
            (one["name"], one["repeats"]) = (json!(format!("c{number}")), json!(20));
            one
        })
        .collect();
    many["candidates"] = json!(each);
    let stopped = test.start(&many).await;
    for _ in 0..2 {
        test.start(&many).await;
    }
    let now = test.app.clock.now();
    sqlx::query("UPDATE trials SET state = 'running', due_at = $1 - interval '1 hour'")
        .bind(now)
        .execute(&pool)
        .await
        .unwrap();
    test.post(&format!("/v1/experiments/{stopped}/cancel"), &json!({}))
        .await;
    sqlx::query(
        "UPDATE trials SET stop_requested_at = NULL, due_at = $1 - interval '1 hour'
         WHERE stop_requested_at IS NOT NULL AND id <> (SELECT id FROM trials WHERE stop_requested_at IS NOT NULL ORDER BY id LIMIT 1)",
    )
    .bind(now)
    .execute(&pool)
    .await
    .unwrap();
    let claimed = test
        .app
        .store
        .claim_due_trials(holder("x", Duration::from_secs(30)), now, 10)
        .await
        .unwrap();
    let stops = claimed
        .iter()
        .filter(|trial| trial.stop_requested && trial.state == TrialState::Running)
        .count();
    assert_eq!(
        (claimed.len(), stops),
        (10, 1),
        "of 600 due trials, claimed and to be stopped"
    );
}

#[sqlx::test(migrations = false)]
async fn quotas_that_could_not_be_read_are_read_again_within_minutes(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut memory = watcher::Memory::default();
    test.region_post("/_sim/faults", &json!({"throttle": 1.0}))
        .await;
    watcher::tick(&test.app, &mut memory).await.unwrap();
    test.region_post("/_sim/faults", &json!({})).await;
    test.watch_as_production(&mut memory, TimeDelta::minutes(15))
        .await;
    let known = number(
        &pool,
        "SELECT count(*) FROM quotas WHERE instances IS NOT NULL",
    )
    .await;
    assert!(
        known > 0,
        "no quota is known a quarter of an hour after the first reading failed"
    );
}

/// A p5 drought lasts hours, and waiting costs nothing.
#[sqlx::test(migrations = false)]
async fn a_drought_of_capacity_is_waited_for(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--no-capacity", "1"]).await;
    let id = test.start(&on_p5(1)).await;
    for _ in 0..8 * 12 {
        test.tick().await;
        test.advance(TimeDelta::minutes(5)).await;
    }
    let state = test.experiment(&id).await.state;
    let during = test.billed_usd().await;
    test.region_post("/_sim/faults", &json!({})).await;
    test.run_to_end(&id, 12).await;
    let ended = test.experiment(&id).await;
    let row = test.comparison(&id).await.rows.remove(0);
    println!(
        "eight hours without capacity: {state:?}, ${during:.2} billed; then {:?} ({:?})",
        row.state, row.reason
    );
    assert_eq!(
        (ended.state, row.state),
        (ExperimentState::Completed, TrialState::Completed),
        "{row:?}"
    );
    assert!(
        during < f64::EPSILON,
        "${during} were billed while there was no capacity"
    );
}

/// While it lasts, somebody has had enough.
#[sqlx::test(migrations = false)]
async fn a_drought_of_capacity_ends_with_a_cancel_and_costs_nothing(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--no-capacity", "1"]).await;
    let id = test.start(&on_p5(1)).await;
    for _ in 0..3 * 12 {
        test.tick().await;
        test.advance(TimeDelta::minutes(5)).await;
    }
    assert_eq!(
        test.experiment(&id).await.state,
        ExperimentState::Running,
        "it is waited for"
    );
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 2).await;
    let ended = test.experiment(&id).await;
    assert_eq!(
        (ended.state, ended.settled_usd),
        (ExperimentState::Cancelled, Usd::ZERO)
    );
}
