//! What holds of money when AWS, the database or a row of it is not as it should be: nothing is
//! booked that cannot have been billed, and nothing stays reserved or unbooked for long.

use bakeoff_domain::event::EventSeverity;
use bakeoff_domain::ids::JobId;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_service::tasks::watcher::Memory;
use bakeoff_service::tasks::{scheduler, warm_pools};
use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::fault_proxy::{Act, Between};
use crate::support::{TestApp, number, on_p5, spot_spec};

pub(crate) async fn run(pool: &PgPool, statement: &'static str) {
    sqlx::query(statement).execute(pool).await.unwrap();
}

pub(crate) async fn alarms(test: &TestApp, experiment: &str) -> Vec<String> {
    let events = test.events(experiment).await.into_iter();
    let alarms = events.filter(|event| event.severity == EventSeverity::Alarm);
    alarms.map(|event| event.message).collect()
}

/// The service was away for three days; a clean-up script has deleted the job meanwhile.
#[sqlx::test(migrations = false)]
async fn a_job_that_vanished_is_never_booked_beyond_what_was_reserved_for_it(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    test.advance(TimeDelta::hours(4)).await;
    let job = test.jobs().await.remove(0);
    let delete = test
        .client
        .post(&test.region.url)
        .header("x-amz-target", "SageMaker.DeleteTrainingJob");
    assert!(
        delete
            .json(&json!({"TrainingJobName": job.name}))
            .send()
            .await
            .unwrap()
            .status()
            .is_success()
    );
    test.advance(TimeDelta::days(3)).await;
    test.run_until_ended(&id, 24).await;
    let booked = test.experiment(&id).await.settled_usd.as_f64();
    let billed = job.usd();
    let reserved = number(
        &pool,
        "SELECT (reserved_training_usd * 100)::bigint FROM jobs",
    )
    .await;
    let seconds = number(&pool, "SELECT billable_seconds FROM jobs").await;
    let most = f64::from(i32::try_from(reserved).unwrap()) / 100.0;
    println!(
        "vanished: ${billed:.2} billed by the region, ${most:.2} reserved, ${booked:.2} booked for {seconds} s"
    );
    assert!(
        booked <= most + 0.1,
        "${booked:.2} are booked, ${billed:.2} were billed, ${most:.2} were reserved"
    );
}

/// BillableTimeInSeconds may be missing: then what spot waited for capacity is not billed either.
#[sqlx::test(migrations = false)]
async fn an_estimate_of_spot_leaves_out_what_it_waited(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let mut spot = spot_spec();
    spot["candidates"][0]["purchase_options"] = json!(["spot"]);
    spot["candidates"][0]["repeats"] = json!(3);
    let rule =
        |_: &str, _: &Value| Act::Replace(b"BillableTimeInSeconds", b"BillableTimeUnknown__");
    let silent = Between::start(&test.region.url, rule).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&silent.url, &s3_url).await;
    let id = test.start(&spot).await;
    test.run_until_ended(&id, 60).await;
    let (mut waited, mut over) = (0, Vec::new());
    for job in test.jobs().await {
        let ran = i64::try_from(job.training_seconds).unwrap();
        let attempt: JobId = job.attempt.unwrap().parse().unwrap();
        let (booked, whole): (i64, i64) = sqlx::query_as(
            "SELECT billable_seconds, extract(epoch FROM ended_at - started_at)::bigint FROM jobs WHERE id = $1",
        )
        .bind(attempt.0)
        .fetch_one(&pool)
        .await
        .unwrap();
        waited += whole - ran;
        if booked > ran + 60 {
            over.push(format!("{booked} s booked, and it ran for {ran}"));
        }
    }
    assert!(
        waited > 600,
        "no job waited for capacity, {waited} s: the test proves nothing"
    );
    assert_eq!(
        over,
        Vec::<String>::new(),
        "they waited {waited} s together"
    );
}

/// Points are worth less than money that stays reserved.
#[sqlx::test(migrations = false)]
async fn a_trial_settles_although_its_points_cannot_be_written(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.watch().await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    for statement in [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'disk full'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON series FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
        "CREATE TRIGGER refuse BEFORE INSERT ON samples FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
    ] {
        run(&pool, statement).await;
    }
    test.advance(TimeDelta::hours(4)).await;
    test.watch().await;
    for _ in 0..3 {
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
        run(
            &pool,
            "UPDATE trials SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE lease_owner IS NOT NULL",
        )
        .await;
    }
    let state = test.trials(&id).await[0].state;
    let released = number(
        &pool,
        "SELECT count(*) FROM ledger WHERE kind = 'released' AND component = 'training'",
    )
    .await;
    let held = test.experiment(&id).await.reserved_usd;
    assert_eq!(
        (state, released),
        (TrialState::Completed, 1),
        "{held} are still reserved"
    );
}

/// Its job is over, and its pool waits.
pub(crate) async fn with_a_pool(test: &TestApp, keep_alive_seconds: u32) -> String {
    let mut warm = on_p5(1);
    warm["keep_alive_seconds"] = json!(keep_alive_seconds);
    let id = test.start(&warm).await;
    test.watch().await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    for _ in 0..5 * 12 {
        test.advance(TimeDelta::minutes(5)).await;
        test.watch().await;
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
        if test.jobs().await[0].idle_pool {
            break;
        }
    }
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    id
}

const RETAINED: &str = "SELECT count(*) FROM warm_pools WHERE state = 'retained'";

/// Looks once at a pool that waits while AWS answers in a strange way; then again and again as it
/// is.
async fn looked_at_once(pool: &PgPool, strange: impl FnMut(&str, &Value) -> Act + Send + 'static) {
    let mut test = TestApp::new(pool.clone()).await;
    with_a_pool(&test, 14_400).await;
    assert_eq!(number(pool, RETAINED).await, 1);
    let between = Between::start(&test.region.url, strange).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    warm_pools::tick(&test.app).await.unwrap();
    let (retained, exposed) = (number(pool, RETAINED).await, 4.0 * 63.296);
    assert_eq!(
        retained, 1,
        "pools that are looked after; nobody ends it, and its keep-alive costs ${exposed:.2}"
    );
    between.follow(|_, _| Act::Pass);
    for _ in 0..10 {
        test.advance(TimeDelta::minutes(2)).await;
        while warm_pools::tick(&test.app).await.unwrap() > 0 {}
    }
    let waits = test.jobs().await[0].idle_pool;
    assert_eq!(
        (number(pool, RETAINED).await, waits),
        (0, false),
        "in the end it is let go"
    );
}

#[sqlx::test(migrations = false)]
async fn a_pool_is_not_given_up_because_its_job_was_not_found_once(pool: PgPool) {
    let unknown =
        json!({"__type": "ValidationException", "message": "Requested resource not found."});
    looked_at_once(&pool, move |_, _| Act::Answer(400, unknown.clone())).await;
}

#[sqlx::test(migrations = false)]
async fn a_pool_is_not_given_up_because_its_status_was_missing_once(pool: PgPool) {
    looked_at_once(&pool, |_, _| {
        Act::Replace(b"WarmPoolStatus", b"WarmPoolSilence")
    })
    .await;
}

/// Ten minutes of a p5 are $10: nobody pays them for a figure that is on its way.
#[sqlx::test(migrations = false)]
async fn a_pool_is_ended_while_the_bill_of_its_job_is_waited_for(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let untold = |operation: &str, _: &Value| match operation {
        "DescribeTrainingJob" => {
            Act::Replace(b"BillableTimeInSeconds", b"SecondsThatNobodyKnowsYet")
        }
        _ => Act::Pass,
    };
    let between = Between::start(&test.region.url, untold).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    with_a_pool(&test, 14_400).await;
    while warm_pools::tick(&test.app).await.unwrap() > 0 {}
    let still_open = number(&pool, "SELECT count(*) FROM trials WHERE ended_at IS NULL").await;
    let waits = test.jobs().await[0].idle_pool;
    assert_eq!((still_open, waits), (1, false));
}

#[sqlx::test(migrations = false)]
async fn a_pool_that_cost_more_than_its_reservation_raises_an_alarm_and_pauses(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let id = with_a_pool(&test, 3600).await;
    let longer = |_: &str, _: &Value| {
        Act::Replace(
            b"\"ResourceRetainedBillableTimeInSeconds\":",
            b"\"ResourceRetainedBillableTimeInSeconds\":99",
        )
    };
    let between = Between::start(&test.region.url, longer).await;
    let s3_url = test.region.s3_url.clone();
    test.call_aws_at(&between.url, &s3_url).await;
    for _ in 0..6 {
        while warm_pools::tick(&test.app).await.unwrap() > 0 {}
        test.advance(TimeDelta::minutes(2)).await;
    }
    let over =
        "SELECT count(*) FROM warm_pools WHERE state = 'settled' AND retained_seconds > 3600";
    assert_eq!(
        number(&pool, over).await,
        1,
        "it was settled at what SageMaker says"
    );
    let paused = test.experiment(&id).await.paused_reason;
    let alarms = alarms(&test, &id).await;
    assert!(
        !alarms.is_empty() && paused.is_some(),
        "alarms {alarms:?}, paused: {paused:?}"
    );
}

/// What the pools of the region were billed and what is booked for them: seconds, and millionths of
/// a dollar.
async fn billed_and_booked(test: &TestApp, pool: &PgPool) -> [(i64, i64); 2] {
    let jobs = test.jobs().await;
    let seconds: u64 = jobs.iter().filter_map(|job| job.retained_seconds).sum();
    let micro_usd: i64 = jobs.iter().map(|job| job.pool_micro_usd).sum();
    let kept =
        "SELECT coalesce(sum(retained_seconds), 0)::bigint FROM warm_pools WHERE state = 'settled'";
    let booked = "SELECT coalesce(sum(usd) * 1000000, 0)::bigint FROM ledger
                  WHERE component = 'warm_pool' AND kind IN ('settled', 'adjusted')";
    [
        (i64::try_from(seconds).unwrap(), number(pool, kept).await),
        (micro_usd, number(pool, booked).await),
    ]
}

/// Watches and looks at pools for so long, as production does.
async fn go_on(test: &TestApp, memory: &mut Memory, minutes: u32) {
    for _ in 0..minutes {
        test.watch_as_production(memory, TimeDelta::minutes(1))
            .await;
        while warm_pools::tick(&test.app).await.unwrap() > 0 {}
    }
}

/// A pool waits, and nobody looks after it.
async fn found_again(test: &TestApp, pool: &PgPool, id: &str, memory: &mut Memory) {
    assert_eq!(number(pool, RETAINED).await, 0, "nobody looks after it");
    assert!(test.jobs().await[0].idle_pool, "and it waits");
    go_on(test, memory, 3).await;
    assert!(
        !test.jobs().await[0].idle_pool,
        "it is ended at the next listing"
    );
    go_on(test, memory, 5).await;
    let once = billed_and_booked(test, pool).await;
    let [seconds, usd] = once;
    assert!(
        seconds.0 > 0 && seconds.0 == seconds.1 && (usd.0 - usd.1).abs() <= 5000,
        "billed and booked: {once:?}"
    );
    let alarms = alarms(test, id).await;
    assert!(
        alarms
            .iter()
            .any(|alarm| alarm.contains("left a warm pool")),
        "{alarms:?}"
    );
    // Told again and again, it is booked once.
    go_on(test, memory, 10).await;
    assert_eq!(billed_and_booked(test, pool).await, once);
    let paused = test.experiment(id).await.paused_reason;
    assert_eq!(paused, None, "the budget holds it");
}

/// SageMaker showed no pool at six looks, for longer than a listing goes back by itself.
#[sqlx::test(migrations = false)]
async fn a_pool_that_shows_after_it_was_settled_at_nothing_is_ended_and_billed(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let id = with_a_pool(&test, 14_400).await;
    let (api, s3_url) = (test.region.url.clone(), test.region.s3_url.clone());
    let between = Between::start(&api, |_, _| {
        Act::Replace(b"WarmPoolStatus", b"WarmPoolSilence")
    })
    .await;
    test.call_aws_at(&between.url, &s3_url).await;
    let mut memory = Memory::default();
    go_on(&test, &mut memory, 60).await;
    between.follow(|_, _| Act::Pass);
    found_again(&test, &pool, &id, &mut memory).await;
}

/// As in a backup that was made before the job was: a new term begins. The first looks at the pool
/// fail.
#[sqlx::test(migrations = false)]
async fn a_pool_without_a_row_is_ended_and_billed(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let id = with_a_pool(&test, 14_400).await;
    run(&pool, "DELETE FROM warm_pools").await;
    let (api, s3_url) = (test.region.url.clone(), test.region.s3_url.clone());
    let refused = json!({"__type": "ThrottlingException", "message": "Rate exceeded"});
    let throttled = move |operation: &str, _: &Value| match operation {
        "DescribeTrainingJob" => Act::Answer(400, refused.clone()),
        _ => Act::Pass,
    };
    let between = Between::start(&api, throttled).await;
    test.call_aws_at(&between.url, &s3_url).await;
    let mut memory = Memory::default();
    go_on(&test, &mut memory, 2).await;
    between.follow(|_, _| Act::Pass);
    found_again(&test, &pool, &id, &mut memory).await;
}

/// Its job was orphaned, and it did not show when that was settled.
#[sqlx::test(migrations = false)]
async fn a_pool_of_an_orphaned_job_is_ended_and_billed_although_it_shows_late(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    let id = with_a_pool(&test, 14_400).await;
    run(&pool, "DELETE FROM warm_pools").await;
    run(&pool, "UPDATE jobs SET billing_estimated = true").await;
    let (api, s3_url) = (test.region.url.clone(), test.region.s3_url.clone());
    let between = Between::start(&api, |_, _| {
        Act::Replace(b"WarmPoolStatus", b"WarmPoolSilence")
    })
    .await;
    test.call_aws_at(&between.url, &s3_url).await;
    let mut memory = Memory::default();
    go_on(&test, &mut memory, 2).await;
    let looked_after = "SELECT count(*) FROM warm_pools WHERE due_at IS NOT NULL";
    let settled = "SELECT count(*) FROM orphaned_jobs WHERE settled_at IS NOT NULL";
    assert_eq!(
        (
            number(&pool, settled).await,
            number(&pool, looked_after).await
        ),
        (1, 1)
    );
    between.follow(|_, _| Act::Pass);
    go_on(&test, &mut memory, 5).await;
    assert!(
        !test.jobs().await[0].idle_pool,
        "{id}: it is ended at the next look"
    );
    let [seconds, usd] = billed_and_booked(&test, &pool).await;
    assert!(
        seconds.0 > 0 && seconds.0 == seconds.1 && (usd.0 - usd.1).abs() <= 5000,
        "{seconds:?} {usd:?}"
    );
}

/// It was estimated, and SageMaker tells later that it was kept for longer.
#[sqlx::test(migrations = false)]
async fn a_pool_that_cost_more_than_was_estimated_is_booked_at_what_it_cost(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    with_a_pool(&test, 14_400).await;
    for _ in 0..6 {
        while warm_pools::tick(&test.app).await.unwrap() > 0 {}
        test.advance(TimeDelta::minutes(2)).await;
    }
    let before = billed_and_booked(&test, &pool).await;
    // As if only half of it had been booked.
    run(
        &pool,
        "UPDATE warm_pools SET retained_seconds = retained_seconds / 2",
    )
    .await;
    run(
        &pool,
        "UPDATE ledger SET usd = usd / 2 WHERE component = 'warm_pool' AND kind = 'settled'",
    )
    .await;
    go_on(&test, &mut Memory::default(), 5).await;
    let [seconds, usd] = billed_and_booked(&test, &pool).await;
    assert_eq!(seconds, before[0]);
    assert!(
        seconds.0 > 1 && (usd.0 - usd.1).abs() <= 1_000_000 / 50,
        "{usd:?}: half of a second is lost"
    );
}
