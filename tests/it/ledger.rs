//! Money: the ledger against the region's own bill, and the budget as a hard cap.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, spec, spot_spec};

async fn settled(test: &TestApp, experiment: &str) -> BTreeMap<String, f64> {
    let page = test
        .get(&format!(
            "/v1/experiments/{experiment}/ledger?page_size=500"
        ))
        .await;
    let entries = page["items"].as_array().unwrap().clone();
    let is_job = |entry: &&Value| entry["kind"] == "settled" && entry["component"] == "training";
    entries
        .iter()
        .filter(is_job)
        .map(|entry| {
            (
                entry["attempt_id"].as_str().unwrap().to_owned(),
                entry["usd"].as_f64().unwrap(),
            )
        })
        .collect()
}

#[sqlx::test(migrations = false)]
async fn the_ledger_agrees_with_the_regions_bill_to_the_cent(pool: PgPool) {
    agrees(TestApp::new(pool).await).await;
}

/// SageMaker's times for the bill are absent for a while after the end, or too low.
#[sqlx::test(migrations = false)]
async fn a_bill_that_comes_late_is_waited_for(pool: PgPool) {
    agrees(TestApp::with_faults(pool, &["--billing-late", "0.7", "--billing-low", "0.7"]).await)
        .await;
}

async fn agrees(test: TestApp) {
    for spec in [spec(), spot_spec()] {
        let id = test.start(&spec).await;
        test.run_to_end(&id, 60).await;
        let trials = test.get(&format!("/v1/experiments/{id}/trials")).await;
        let attempts = trials["items"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|trial| trial["attempts"].as_array().unwrap());
        assert!(
            attempts.clone().count() == 2
                && attempts
                    .clone()
                    .all(|attempt| attempt["billing_estimated"] == false)
        );
        let settled = settled(&test, &id).await;
        assert_eq!(settled.len(), 2);
        let jobs = test.record().await["jobs"].as_array().unwrap().clone();
        for (attempt, usd) in settled {
            let job = jobs
                .iter()
                .find(|job| job["attempt"] == attempt.as_str())
                .unwrap();
            let billed = job["micro_usd"].as_f64().unwrap() / 1e6;
            assert!(
                (billed - usd).abs() < 0.005,
                "{attempt}: billed {billed}, in the ledger {usd}"
            );
            assert!(usd > 1.0);
        }
    }
}

#[sqlx::test(migrations = false)]
async fn reading_metrics_is_booked_as_the_region_counts_it(pool: PgPool) {
    is_booked_as_counted(TestApp::new(pool).await).await;
}

/// Each page is billed, and so is a read of which half was told.
#[sqlx::test(migrations = false)]
async fn pages_of_metrics_are_booked_one_by_one(pool: PgPool) {
    let faults = [
        "--metric-pages",
        "0.5",
        "--failed-series",
        "0.1",
        "--partial-metrics",
        "0.2",
        "--throttle",
        "0.2",
    ];
    is_booked_as_counted(TestApp::with_faults(pool, &faults).await).await;
}

async fn is_booked_as_counted(test: TestApp) {
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let page = test
        .get(&format!("/v1/experiments/{id}/ledger?page_size=500"))
        .await;
    let is_metrics =
        |entry: &&Value| entry["kind"] == "settled" && entry["component"] == "cloudwatch";
    let booked: i64 = page["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_metrics)
        .map(|entry| entry["quantity"].as_i64().unwrap())
        .sum();
    let record = test.record().await;
    let counted: i64 = record["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["metrics_requested"].as_i64().unwrap())
        .sum();
    assert_eq!(booked, counted);
}

#[sqlx::test(migrations = false)]
async fn the_budget_holds_back_what_it_cannot_bound_yet(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut tight = spec();
    // The worst case of p4de is about $135 and of p5 about $271: together more than the budget, one
    // after the other less.
    tight["budget_usd"] = json!(330);
    let id = test.start(&tight).await;
    test.tick().await;
    assert_eq!(
        test.record().await["jobs"].as_array().unwrap().len(),
        1,
        "only one fits at a time"
    );
    let seen = test.get(&format!("/v1/experiments/{id}")).await;
    assert!(seen["reserved_usd"].as_f64().unwrap() <= 330.0);
    let ended = test.run_to_end(&id, 24).await;
    assert_eq!(ended["state"], "completed");
    assert_eq!(
        test.record().await["jobs"].as_array().unwrap().len(),
        2,
        "the other ran when money was released"
    );
}

#[sqlx::test(migrations = false)]
async fn what_can_never_fit_is_refused_with_the_way_out(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut tiny = spec();
    tiny["budget_usd"] = json!(150);
    let id = test.start(&tiny).await;
    test.run_to_end(&id, 24).await;
    let table = test.get(&format!("/v1/experiments/{id}/comparison")).await;
    let p5 = &table["rows"][1];
    assert_eq!(p5["state"], "refused");
    assert!(
        p5["reason"].as_str().unwrap().contains("raise budget_usd"),
        "{p5}"
    );
    assert_eq!(table["rows"][0]["state"], "completed");
}

/// Eight trials want to reserve at once, and the budget holds three.
#[sqlx::test(migrations = false)]
async fn concurrent_reservations_never_pass_the_cap(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut many = spec();
    many["candidates"][0]["repeats"] = json!(8);
    many["candidates"].as_array_mut().unwrap().truncate(1);
    many["budget_usd"] = json!(420);
    let id = test.start(&many).await;
    let ticks = (0..4).map(|_| bakeoff::tasks::scheduler::tick(&test.app));
    futures::future::try_join_all(ticks).await.unwrap();
    let seen = test.get(&format!("/v1/experiments/{id}")).await;
    assert!(seen["reserved_usd"].as_f64().unwrap() <= 420.0, "{seen}");
    assert_eq!(test.record().await["jobs"].as_array().unwrap().len(), 3);
}

#[sqlx::test(migrations = false)]
async fn the_projects_budget_caps_all_its_experiments(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let put = test
        .request(
            reqwest::Method::PUT,
            "/v1/projects/current/budget",
            &test.admin,
        )
        .json(&json!({"budget_usd": 600}));
    let (status, project) = test.send(put).await;
    assert_eq!(
        (status, &project["budget_usd"]),
        (reqwest::StatusCode::OK, &json!(600.0))
    );
    let (one, two) = (test.start(&spec()).await, test.start(&spec()).await);
    test.tick().await;
    assert!(
        test.get("/v1/projects/current").await["reserved_usd"]
            .as_f64()
            .unwrap()
            <= 600.0
    );
    // Worst cases of about $135 and $271, twice: the four together do not fit.
    assert!(test.record().await["jobs"].as_array().unwrap().len() < 4);
    for id in [one, two] {
        test.run_until_ended(&id, 48).await;
    }
    assert_eq!(
        test.record().await["jobs"].as_array().unwrap().len(),
        4,
        "each ran when its turn came"
    );
    assert!(
        test.get("/v1/projects/current").await["settled_usd"]
            .as_f64()
            .unwrap()
            < 600.0
    );
}

/// The ledger added up by day, experiment and trial comes to the same, is what the region bills,
/// and names a price in every row.
#[sqlx::test(migrations = false)]
async fn spending_adds_up_whatever_it_is_grouped_by(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    // So long that it runs over midnight; and some that spot interrupts.
    let mut long = spec();
    long["workload"]["trial_tokens"] = json!(600_000_000);
    long["max_runtime_seconds"] = json!(72_000);
    long["budget_usd"] = json!(5000);
    let first = test.start(&long).await;
    let second = test.start(&spot_spec()).await;
    test.advance(TimeDelta::hours(19)).await;
    test.run_to_end(&first, 72).await;
    test.run_to_end(&second, 72).await;
    let of = async |query: &str| test.get(&format!("/v1/spending?{query}")).await;
    let total = |table: &Value| table["total"]["total_usd"].as_f64().unwrap();
    let sum = |table: &Value| {
        table["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["total_usd"].as_f64().unwrap())
            .sum::<f64>()
    };
    let days = of("group_by=day").await;
    assert!(days["rows"].as_array().unwrap().len() >= 2, "{days}");
    for group_by in ["day", "experiment", "trial", "project"] {
        let table = of(&format!("group_by={group_by}")).await;
        assert!(
            (total(&table) - total(&days)).abs() < 1e-4
                && (sum(&table) - total(&table)).abs() < 1e-4,
            "{table}"
        );
    }
    let jobs = test.record().await["jobs"].as_array().unwrap().clone();
    let billed: f64 = jobs
        .iter()
        .map(|job| job["micro_usd"].as_f64().unwrap() / 1e6)
        .sum();
    let metrics = days["total"]["cloudwatch_usd"].as_f64().unwrap();
    assert!(
        (total(&days) - metrics - billed).abs() < 0.005,
        "{days} {billed}"
    );
    let spot: f64 = jobs
        .iter()
        .filter(|job| job["spot"] == true)
        .map(|job| {
            (job["training_seconds"].as_f64().unwrap() - job["billable_seconds"].as_f64().unwrap())
                * 7.09
                / 3600.0
        })
        .sum();
    assert!(
        (days["total"]["spot_saved_usd"].as_f64().unwrap() - spot).abs() < 0.01 && spot > 1.0,
        "{days} {spot}"
    );
    let own = of(&format!("group_by=trial&experiment_id={second}")).await;
    assert_eq!(own["rows"].as_array().unwrap().len(), 2);
    // A day's cost is what ran on it: half of a job that ran half before midnight.
    let midnight = "2026-11-21T00:00:00Z";
    let [before, after] = [
        of(&format!(
            "group_by=project&from=2026-11-01T00:00:00Z&until={midnight}"
        ))
        .await,
        of(&format!("group_by=project&from={midnight}")).await,
    ];
    assert!(
        (total(&before) + total(&after) - total(&days)).abs() < 1e-4,
        "{before} {after}"
    );
    assert!(
        total(&before) > 1.0 && total(&after) > 1.0,
        "{before} {after}"
    );
    let unnamed: i64 = sqlx::query_scalar("SELECT count(*) FROM ledger WHERE price_id IS NULL")
        .fetch_one(&pool)
        .await
        .unwrap();
    let cloudwatch: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM ledger l JOIN prices p ON p.id = l.price_id
         WHERE l.component = 'cloudwatch' AND l.kind = 'settled' AND p.component <> 'cloudwatch'",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(
        (unnamed, cloudwatch),
        (0, 0),
        "every row names its own price"
    );
}

/// Dollars so far never fall while it runs, whoever asks and whichever process answers; and the end
/// agrees with them.
#[sqlx::test(migrations = false)]
async fn dollars_so_far_never_fall(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for spec in [spec(), spot_spec()] {
        let id = test.start(&spec).await;
        never_falls(&test, &id).await;
    }
}

async fn never_falls(test: &TestApp, id: &str) {
    let (mut so_far, mut live) = (0.0, 0);
    for minute in 0..4000 {
        // Nobody looks for some minutes, as while the service is away.
        if minute % 7 < 3 {
            test.tick().await;
        }
        // A restart: another process reads the same rows, at a later time of the same clock.
        let table = test.get(&format!("/v1/experiments/{id}/comparison")).await;
        let cost: f64 = table["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["total_usd"].as_f64().unwrap())
            .sum();
        assert!(
            cost >= so_far - 1e-9,
            "minute {minute}: {cost} after {so_far}"
        );
        so_far = cost;
        for row in table["rows"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["state"] == "running")
        {
            live += u32::from(row["total_usd"].as_f64().unwrap() > 1.0);
        }
        if table["state"] == "completed" {
            break;
        }
        test.advance(TimeDelta::minutes(1)).await;
    }
    let experiment = test.get(&format!("/v1/experiments/{id}")).await;
    assert!(
        (experiment["settled_usd"].as_f64().unwrap() - so_far).abs() < 1e-6 && so_far > 1.0,
        "{experiment}"
    );
    assert!(live > 10, "what runs has cost something, and is seen to");
}
