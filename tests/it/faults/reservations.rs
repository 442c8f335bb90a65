//! What a reservation covers, what is repriced, and which metrics are paid for, when things go wrong.

use std::time::Duration;

use bakeoff_api::plans::PreviewView;
use bakeoff_api::series::MetricSeries;
use bakeoff_domain::ids::{JobId, PriceId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::Price;
use bakeoff_domain::money::worst_case::{self, Tariff};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_planner::plan::TrialPlan;
use bakeoff_planner::render::request;
use bakeoff_process::ids;
use bakeoff_service::tasks::{ingester, repricer, scheduler};
use bakeoff_store::series::metrics::Requested;
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::faults::money::{alarms, run};
use crate::support::{TestApp, create_job, number, on_p5, request_of};

#[sqlx::test(migrations = false)]
async fn a_reservation_holds_a_price_that_rises_while_the_pool_is_kept(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut warm = on_p5(1);
    warm["keep_alive_seconds"] = json!(21_600);
    test.start(&warm).await;
    let request = request_of(&pool).await;
    let price: Value = sqlx::query_scalar("SELECT plan->'price' FROM trials LIMIT 1")
        .fetch_one(&pool)
        .await
        .unwrap();
    let price: Price = serde_json::from_value(price).unwrap();
    let now = test.app.clock.now();
    let dear = Usd(price.usd_per_hour.0 * Decimal::from(2u32));
    let after_the_job =
        now + TimeDelta::seconds(request.max_runtime_seconds.into()) + TimeDelta::hours(1);
    let id = PriceId(ids::fresh());
    let risen = Price {
        id,
        usd_per_hour: dear,
        usd_per_hour_max: None,
        effective_from: after_the_job,
        ..price.clone()
    };
    let prices = [price.clone(), risen];
    let worst = worst_case::worst_case(
        &Job::Training(Box::new(request.clone())),
        0,
        Tariff {
            prices: &prices,
            rates: &[],
        },
        &price,
        TimeDelta::minutes(5),
        now,
    );
    let needed = Usd(dear.0 * Decimal::from(5u32));
    assert!(
        worst.pool_usd >= needed,
        "{} are reserved for the pool, and its last five hours cost {needed}",
        worst.pool_usd
    );
}

/// Seconds beyond the longest training that a plan's worst case pays for.
async fn allowance(test: &TestApp, spec: &Value) -> f64 {
    let (status, answer) = test.post("/v1/plans", spec).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let preview: PreviewView = serde_json::from_value(answer).unwrap();
    let plan = &preview.candidates[0].plan;
    let (Some(most), Some(price)) = (&plan.worst_case, &plan.price) else {
        panic!("{plan:#?}")
    };
    let worst = most.training_usd.as_f64();
    let rate = price.usd_per_hour.as_f64() * f64::from(plan.instance_count);
    worst / rate * 3600.0 - spec["max_runtime_seconds"].as_f64().unwrap()
}

#[sqlx::test(migrations = false)]
async fn a_reservation_holds_the_upload_of_a_large_model(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let small = allowance(&test, &on_p5(1)).await;
    let mut large = on_p5(1);
    large["workload"]["model"] = json!({"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "intermediate": 28_672,
        "vocabulary": 128_256, "sequence_length": 2048});
    large["candidates"][0]["instance_count"] = json!(4);
    large["candidates"][0]["profile"]["zero_stage"] = json!(3);
    large["candidates"][0]["profile"]["micro_batch_per_gpu"] = json!(1);
    let large = allowance(&test, &large).await;
    println!(
        "seconds beyond the training that are reserved: {small:.0} for 7B, {large:.0} for 70B"
    );
    assert!(
        (500.0..2100.0).contains(&small),
        "7B: {small:.0} s beyond its training"
    );
    assert!(
        large >= 1800.0 + 120.0,
        "70B: {large:.0} s beyond its training, and its upload alone takes half an hour"
    );
}

#[sqlx::test(migrations = false)]
async fn a_reservation_holds_the_download_of_data_whose_size_is_named(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let unnamed = on_p5(1);
    let mut named = unnamed.clone();
    named["workload"]["channels"][0]["size_gb"] = json!(4000);
    let (unnamed, named) = (
        allowance(&test, &unnamed).await,
        allowance(&test, &named).await,
    );
    assert!(
        named >= unnamed + 600.0,
        "4 TB: {named:.0} s beyond its training; without a size: {unnamed:.0} s"
    );
}

#[sqlx::test(migrations = false)]
async fn an_experiment_that_could_not_be_repriced_is_repriced_when_it_can_be_read(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (id, readable) = (test.start(&on_p5(1)).await, test.start(&on_p5(1)).await);
    test.run_to_end(&id, 12).await;
    test.run_to_end(&readable, 12).await;
    let settled = async |id: &str| test.experiment(id).await.settled_usd.as_f64();
    let before = settled(&id).await;
    run(
        &pool,
        "CREATE TABLE kept AS SELECT id, spec FROM experiments ORDER BY id LIMIT 1",
    )
    .await;
    let broken = "UPDATE experiments e SET spec = jsonb_set(e.spec, '{objective}', '\"nonsense\"') FROM kept k
                  WHERE k.id = e.id";
    run(&pool, broken).await;
    let body = json!({"region": "us-east-1", "usd_per_hour": 20, "source": "contract",
                      "effective_from": "2026-11-01T00:00:00Z", "reason": "the contract was signed in October"});
    let put = test
        .request(Method::PUT, "/v1/prices/ml.p5.48xlarge", &test.admin)
        .json(&body);
    let (status, answer) = test.send(put).await;
    assert!(status.is_success(), "{answer}");
    repricer::tick(&test.app).await.ok();
    run(
        &pool,
        "UPDATE experiments e SET spec = k.spec FROM kept k WHERE k.id = e.id",
    )
    .await;
    for _ in 0..12 {
        test.advance(TimeDelta::minutes(10)).await;
        repricer::tick(&test.app).await.ok();
    }
    assert!(
        settled(&readable).await < 0.5 * before,
        "the other one was repriced at once"
    );
    let after = settled(&id).await;
    println!(
        "repricing: ${before:.2} at $63.30 an hour, ${after:.2} two hours after the row could be read again"
    );
    assert!(
        after < 0.5 * before,
        "${before:.2} were booked at $63.30 an hour, and ${after:.2} are at $20"
    );
}

/// A backup of before the attempt: nobody has a row of it, but the job says whose it is. And the
/// operator that there is no copy.
#[sqlx::test(migrations = false)]
async fn a_job_without_a_row_is_alarmed_and_booked_to_the_trial_it_names(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    test.app.fence = std::sync::Arc::new(bakeoff_service::replica::fence::Fence::new(None, true));
    let id = test.start(&on_p5(1)).await;
    let claimed = test.admit("restored", Duration::ZERO).await;
    let trial = claimed.first().unwrap();
    let attempt = JobId(ids::fresh());
    let name = bakeoff_planner::render::attempt::job_name(
        bakeoff_domain::sagemaker::kind::JobKind::Training,
        &test.app.settings.installation,
        attempt.0,
    );
    let template = trial.plan.as_ref().and_then(TrialPlan::training).unwrap();
    let job = request::for_attempt(template, &name, &attempt.to_string(), &trial.id.to_string());
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    create_job(&test.ports, &job).await.unwrap();
    test.advance(TimeDelta::minutes(20)).await;
    let mut memory = bakeoff_service::tasks::watcher::Memory::default();
    for _ in 0..24 {
        test.watch_as_production(&mut memory, TimeDelta::minutes(5))
            .await;
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
    }
    let billed = test.billed_usd().await;
    let status = test.jobs().await.remove(0).status;
    let booked = test.experiment(&id).await.settled_usd.as_f64();
    let alarms = alarms(&test, &id).await;
    println!("a job without a row: {status}, ${billed:.2} billed, ${booked:.2} booked");
    assert!(
        billed > 1.0 && !alarms.is_empty(),
        "it was {status} and ${billed:.2} were billed, without an alarm"
    );
    assert!(
        (booked - billed).abs() < 0.02 * billed,
        "${billed:.2} were billed, ${booked:.2} are booked"
    );
}

/// AWS bills a metric that it has read, whether or not its answer arrives.
#[sqlx::test(migrations = false)]
async fn metrics_whose_reply_was_lost_are_booked_too(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.tick().await;
    for round in 0..8 {
        test.advance(TimeDelta::minutes(12)).await;
        test.watch().await;
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
        let faults = if round % 2 == 0 {
            json!({"reset_after": 1.0})
        } else {
            json!({})
        };
        test.region_post("/_sim/faults", &faults).await;
        ingester::tick(&test.app).await.unwrap();
        test.region_post("/_sim/faults", &json!({})).await;
    }
    test.run_to_end(&id, 12).await;
    let jobs = test.jobs().await;
    let counted: i64 = jobs.iter().map(|job| job.metrics_requested).sum();
    let booked = "SELECT sum(quantity)::bigint FROM ledger WHERE kind = 'settled' AND component = 'cloudwatch'";
    let booked = number(&pool, booked).await;
    assert!(
        booked >= counted,
        "the region counts {counted} metrics, {booked} are booked"
    );
}

/// Another account's CloudWatch knows nothing of our jobs, and says that this is all there is.
#[sqlx::test(migrations = false)]
async fn metrics_of_another_account_are_not_believed(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(12)).await;
    for _ in 0..60 {
        // The account has just been confirmed.
        test.watch().await;
        while scheduler::tick(&test.app).await.unwrap() > 0 {}
        // Whoever reads while the credentials are another's, and the last time too.
        test.region_post("/_sim/account", &json!({"account": "999988887777"}))
            .await;
        ingester::tick(&test.app).await.unwrap();
        test.region_post("/_sim/account", &json!({"account": "111122223333"}))
            .await;
        test.advance(TimeDelta::minutes(5)).await;
    }
    test.run_to_end(&id, 12).await;
    let job = test.jobs().await.remove(0);
    let url = format!("{}/_sim/points/{}", test.region.url, job.name);
    let published: Value = test
        .client
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let series = format!(
        "/v1/trials/{}/metrics?metric=tokens_per_second&resolution=raw",
        job.trial.unwrap()
    );
    let stored = test.read::<MetricSeries>(&series).await.points.unwrap();
    assert_eq!(
        json!(stored.value.len()),
        published["tps"]["points"],
        "points stored, and published"
    );
}

/// A reader that slept past its hold finds that another has read the last time, and settled: it
/// asks for nothing more.
#[sqlx::test(migrations = false)]
async fn nothing_is_counted_on_what_is_settled(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.run_to_end(&id, 12).await;
    let attempt: uuid::Uuid = sqlx::query_scalar("SELECT id FROM jobs")
        .fetch_one(&pool)
        .await
        .unwrap();
    let before = number(&pool, "SELECT metrics_requested FROM jobs").await;
    assert!(
        !test
            .app
            .store
            .count_requested(&[Requested {
                attempt: JobId(attempt),
                metrics: 6,
            }])
            .await
            .unwrap()
    );
    assert_eq!(
        number(&pool, "SELECT metrics_requested FROM jobs").await,
        before
    );
}
