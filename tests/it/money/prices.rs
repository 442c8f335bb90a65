//! Prices: read from AWS's list, effective-dated, and applied to what depends on them. The price
//! cut of June 2025, replayed.

use std::sync::Arc;

use bakeoff_api::catalog::{PriceView, RateView};
use bakeoff_api::decisions::RecommendationView;
use bakeoff_api::page::Page;
use bakeoff_api::prices::Refreshed;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{Component, PriceStatus};
use bakeoff_service::app::Settings;
use bakeoff_service::tasks::price_refresher;
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::{Method, StatusCode};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::money::ledger::unbilled_spot_seconds;
use crate::support::reads::RegionJob;
use crate::support::{TestApp, number, on_p5, problem, spec, spot_spec, usual};

async fn refresh(test: &TestApp) -> Refreshed {
    let (status, body) = test.post("/v1/prices/refresh", &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_value(body).unwrap()
}

/// What the region's account is billed from a day on.
async fn change(
    test: &TestApp,
    instance_type: &str,
    micro_usd: i64,
    effective_from: DateTime<Utc>,
) {
    let body = json!({"instance_type": instance_type, "micro_usd": micro_usd, "effective_from": effective_from});
    test.region_post("/_sim/prices", &body).await;
}

async fn ledger_total(pool: &PgPool, experiment: &str) -> f64 {
    let uuid = uuid::Uuid::try_parse(experiment.rsplit_once('_').unwrap().1).unwrap();
    sqlx::query_scalar(
        "SELECT sum(usd)::float8 FROM ledger
         WHERE experiment_id = $1 AND kind IN ('settled', 'adjusted') AND component <> 'cloudwatch'",
    )
    .bind(uuid)
    .fetch_one(pool)
    .await
    .unwrap()
}

/// Once a day, whoever asks: one replica reads the list, and a list that cannot be read is tried
/// again in an hour.
#[sqlx::test(migrations = false)]
async fn the_price_list_is_read_once_a_day(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut app = test.app.clone();
    app.settings = Arc::new(Settings {
        price_refresh: Some(TimeDelta::hours(24)),
        ..(*app.settings).clone()
    });
    let reads = async || test.calls("GetProducts").await;
    assert_eq!(reads().await, 0);
    let new = price_refresher::tick(&app).await.unwrap();
    assert!(new > 5, "{new}");
    let once = reads().await;
    assert!(once > 0);
    // A second replica, and a restart.
    assert_eq!(price_refresher::tick(&app).await.unwrap(), 0);
    test.advance(TimeDelta::hours(23)).await;
    price_refresher::tick(&app).await.unwrap();
    assert_eq!(reads().await, once);
    test.advance(TimeDelta::hours(2)).await;
    price_refresher::tick(&app).await.unwrap();
    assert_eq!(reads().await, 2 * once);
    // It fails: nothing else does, and an hour later it is tried again.
    let (there, region) = (app.place.region.clone(), "eu-nowhere-9".to_owned());
    app.place.region = region;
    assert_eq!(price_refresher::tick(&app).await.unwrap(), 0);
    let due = "SELECT extract(epoch FROM due_at)::bigint FROM price_refreshes WHERE region = 'eu-nowhere-9'";
    let hour = test.app.clock.now() + TimeDelta::hours(1);
    assert_eq!(number(&pool, due).await, hour.timestamp());
    app.place.region = there;
}

#[sqlx::test(migrations = false)]
async fn the_list_is_read_past_all_that_it_is_full_of(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let first = refresh(&test).await;
    // The rate card has 22 types, of which 17 also process, 16 transform and 21 serve, and volumes; the other products
    // are spot and free ones.
    let all = 22 + 17 + 16 + 21 + 1;
    assert_eq!((first.listed, first.new.len()), (all, all), "{first:?}");
    assert!(
        first.skipped.is_empty(),
        "what is something else by design is not told of: {:?}",
        first.skipped
    );
    let again = refresh(&test).await.new;
    assert!(again.is_empty(), "twice changes nothing: {again:?}");
    let prices: Page<PriceView> = test
        .read(
            "/v1/prices?instance_type=ml.p4d.24xlarge&region=us-east-1&as_of=2026-11-21T00:00:00Z",
        )
        .await;
    let [price] = prices.items.as_slice() else {
        panic!("{prices:?}")
    };
    assert_eq!(
        (price.usd_per_hour, price.status),
        (Usd(Decimal::new(25_251_288, 6)), PriceStatus::Listed)
    );
    let (status, answer) = test
        .send(test.request(
            Method::POST,
            "/v1/prices/refresh?region=mars-north-1",
            &test.admin,
        ))
        .await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::BAD_GATEWAY, "price_list_empty")
    );
    let rates: Page<RateView> = test.read("/v1/rates?region=us-east-1").await;
    let components: Vec<Component> = rates.items.iter().map(|rate| rate.component).collect();
    assert_eq!(
        components,
        [
            Component::Cloudwatch,
            Component::Storage,
            Component::Storage
        ]
    );
}

/// The list was read while the clock was ahead, and the clock has been set back since: what AWS says
/// now is newer all the same.
#[sqlx::test(migrations = false)]
async fn a_clock_that_was_ahead_pins_no_price(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    refresh(&test).await;
    let ahead =
        "UPDATE prices SET confirmed_at = confirmed_at + interval '1 day' WHERE project_id IS NULL";
    sqlx::query(ahead).execute(&pool).await.unwrap();
    change(&test, "ml.p5.48xlarge", 70_000_000, usual()).await;
    refresh(&test).await;
    let plan = test.plan(&on_p5(1)).await;
    let price = plan.candidates[0].plan.price.clone().unwrap();
    assert_eq!(price.usd_per_hour, Usd(70.into()));
}

/// Spending and comparison count the time that was not billed at what the billed time cost.
#[sqlx::test(migrations = false)]
async fn what_spot_saved_follows_a_price_that_changes_meanwhile(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut lora = spot_spec();
    lora["budget_usd"] = json!(5000);
    let id = test.start(&lora).await;
    test.run_to_end(&id, 72).await;
    // AWS says so when it is over.
    let doubled = usual() + TimeDelta::hours(1);
    change(&test, "ml.g5.12xlarge", 14_180_000, doubled).await;
    refresh(&test).await;
    for _ in 0..3 {
        test.tick().await;
    }
    let rows = test.comparison(&id).await.rows;
    let saved = rows.iter().filter_map(|row| row.spot_saved_usd);
    let compared = saved.sum::<Usd>().as_f64();
    let spending = test.spending("group_by=project").await;
    let spent = spending.total.spot_saved_usd.as_f64();
    assert!((compared - spent).abs() < 0.01, "{compared} {spent}");
    let jobs = test.jobs().await;
    let real = |seconds: u64| f64::from(u32::try_from(seconds).unwrap());
    let saved = jobs.iter().filter(|job| job.spot).map(|job| {
        let unbilled = real(job.training_seconds - job.billable_seconds);
        job.usd() * unbilled / real(job.billable_seconds)
    });
    let expected: f64 = saved.sum();
    assert!((spent - expected).abs() < 0.01, "{spent} {expected}");
    let at_first = 7.09 * f64::from(unbilled_spot_seconds(&jobs)) / 3600.0;
    assert!(spent > at_first * 1.05, "{spent} {at_first}");
}

/// P4d and P5 become cheaper by 33 and 44 percent on the first of June, and AWS says so on the
/// fifth. Only what depends on them changes; what ran before the day is billed as it was; every
/// change says why.
#[sqlx::test(migrations = false)]
async fn the_price_cut_of_june_2025(pool: PgPool) {
    let long_ago = "2024-01-01T00:00:00Z".parse().unwrap();
    let cut: DateTime<Utc> = "2025-06-01T00:00:00Z".parse().unwrap();
    let test = TestApp::starting(pool.clone(), cut - TimeDelta::days(3)).await;
    for (kind, micro_usd) in [
        ("ml.p4d.24xlarge", 37_688_000),
        ("ml.p5.48xlarge", 113_068_000),
        ("ml.g5.12xlarge", 7_090_000),
    ] {
        change(&test, kind, micro_usd, long_ago).await;
    }
    refresh(&test).await;
    let mut both = spec();
    both["budget_usd"] = json!(5000);
    both["candidates"][0]["instance_type"] = json!("ml.p4d.24xlarge");
    both["candidates"][0]["name"] = json!("p4d");
    both["candidates"][0]["profile"]["zero_stage"] = json!(3);
    both["candidates"][0]["profile"]["micro_batch_per_gpu"] = json!(2);
    both["candidates"][0]["profile"]["gradient_accumulation_steps"] = json!(4);
    let before = test.start(&both).await;
    test.run_to_end(&before, 24).await;
    let mut lora = spot_spec();
    lora["budget_usd"] = json!(5000);
    let g5 = test.start(&lora).await;
    test.run_to_end(&g5, 72).await;
    let now: DateTime<Utc> = test.record().await["now"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    test.advance(cut + TimeDelta::days(2) - now).await;
    let after = test.start(&both).await;
    test.run_to_end(&after, 24).await;

    let recommendation = async |id: &str| {
        test.get(&format!("/v1/experiments/{id}/recommendation"))
            .await
    };
    let ids = [&before, &g5, &after];
    let mut was = Vec::new();
    for id in ids {
        was.push((ledger_total(&pool, id).await, recommendation(id).await));
    }
    change(&test, "ml.p4d.24xlarge", 25_251_288, cut).await;
    change(&test, "ml.p5.48xlarge", 63_296_000, cut).await;
    test.advance(TimeDelta::days(1)).await;
    let refreshed = refresh(&test).await;
    let changed: Vec<Option<&str>> = refreshed
        .new
        .iter()
        .map(|one| one.instance_type.as_deref())
        .collect();
    // To serve on them and to train on them; neither processes here.
    let both = [Some("ml.p4d.24xlarge"), Some("ml.p5.48xlarge")];
    assert_eq!(changed, [both, both].concat());
    for _ in 0..3 {
        test.tick().await;
    }

    let read = |answer: &Value| {
        let answer = answer.clone();
        serde_json::from_value::<RecommendationView>(answer).unwrap()
    };
    let reasons = |of: &Value| -> Vec<String> {
        let repricings = read(of).repricings.into_iter();
        repricings.map(|one| one.reason).collect()
    };
    // It does not depend on them: nothing of it is another.
    let untouched = recommendation(&g5).await;
    assert_eq!(
        (untouched, ledger_total(&pool, &g5).await),
        (was[1].1.clone(), was[1].0)
    );
    // It ran before: its bill stays, what it recommends is worked out anew.
    let earlier = recommendation(&before).await;
    assert!((ledger_total(&pool, &before).await - was[0].0).abs() < 1e-9);
    let [why] = <[String; 1]>::try_from(reasons(&earlier)).unwrap();
    assert!(
        why.contains("ml.p5.48xlarge in us-east-1 costs $63.296 per hour from 2025-06-01 (previously $113.068, -44.0 %"),
        "{why}"
    );
    assert!(
        why.contains("$25.2513 per hour from 2025-06-01 (previously $37.688, -33.0 %"),
        "{why}"
    );
    assert!(why.ends_with("p5 remains first."), "{why}");
    let [cost, cost_before] = [&earlier, &was[0].1].map(|answer| {
        let decision = read(answer).recommendation;
        decision.ranked[0].projected_cost_usd.as_f64()
    });
    assert!(cost < 0.7 * cost_before, "{cost} {cost_before}");
    // It ran between the day and the news: it is billed less, to the cent of the region's own bill.
    let later = recommendation(&after).await;
    let [why] = <[String; 1]>::try_from(reasons(&later)).unwrap();
    assert!(
        why.contains("Usage since then by 2 attempts is billed $") && why.contains(" less."),
        "{why}"
    );
    let jobs = test.jobs().await;
    let billed: f64 = jobs
        .iter()
        .filter(|job| job.created_at > cut)
        .map(RegionJob::usd)
        .sum();
    let booked = ledger_total(&pool, &after).await;
    assert!(
        (billed - booked).abs() < 0.005 && booked < 0.7 * was[2].0,
        "billed {billed}, booked {booked}, was {}",
        was[2].0
    );
    // The same again changes nothing.
    let again = refresh(&test).await.new;
    assert!(again.is_empty(), "{again:?}");
    test.tick().await;
    assert_eq!(recommendation(&after).await, later);
}

/// What a job waited for is told by its transitions: without them, a correction would be a guess.
#[sqlx::test(migrations = false)]
async fn nothing_is_corrected_of_an_attempt_that_cannot_be_read(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.run_to_end(&id, 12).await;
    let settled = async || test.experiment(&id).await.settled_usd;
    let before = settled().await;
    let attempt = test.trials(&id).await[0].attempts[0].id;
    let path = format!("/v1/jobs/{attempt}/corrections");
    let bill = json!({"billable_seconds": 60, "reason": "the bill of November"});
    let run = async |sql: &'static str| sqlx::query(sql).execute(&pool).await.unwrap();
    run("CREATE TABLE kept AS SELECT id, transitions FROM jobs").await;
    run("UPDATE jobs SET transitions = '[{\"status\": 3}]'").await;
    let (status, answer) = test.post(&path, &bill).await;
    assert_eq!(
        (status.as_u16(), settled().await),
        (500, before),
        "{answer}"
    );
    run("UPDATE jobs j SET transitions = k.transitions FROM kept k WHERE k.id = j.id").await;
    let (status, answer) = test.post(&path, &bill).await;
    assert_eq!(status, 200, "{answer}");
    assert!(
        settled().await < before,
        "{before} were booked, and a minute was billed: {answer}"
    );
}
