//! Money: the ledger against the region's own bill, and the budget as a hard cap.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, spec, spot_spec};

async fn settled(test: &TestApp, experiment: &str) -> BTreeMap<String, f64> {
    let page = test.get(&format!("/v1/experiments/{experiment}/ledger?page_size=500")).await;
    let entries = page["items"].as_array().unwrap().clone();
    let is_job = |entry: &&Value| entry["kind"] == "settled" && entry["component"] == "training";
    entries
        .iter()
        .filter(is_job)
        .map(|entry| (entry["attempt_id"].as_str().unwrap().to_owned(), entry["usd"].as_f64().unwrap()))
        .collect()
}

#[sqlx::test(migrations = false)]
async fn the_ledger_agrees_with_the_regions_bill_to_the_cent(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for spec in [spec(), spot_spec()] {
        let id = test.start(&spec).await;
        test.run_to_end(&id, 60).await;
        let settled = settled(&test, &id).await;
        assert_eq!(settled.len(), 2);
        let jobs = test.record().await["jobs"].as_array().unwrap().clone();
        for (attempt, usd) in settled {
            let job = jobs.iter().find(|job| job["attempt"] == attempt.as_str()).unwrap();
            let billed = job["micro_usd"].as_f64().unwrap() / 1e6;
            assert!((billed - usd).abs() < 0.005, "{attempt}: billed {billed}, in the ledger {usd}");
            assert!(usd > 1.0);
        }
    }
}

#[sqlx::test(migrations = false)]
async fn reading_metrics_is_booked_as_the_region_counts_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let page = test.get(&format!("/v1/experiments/{id}/ledger?page_size=500")).await;
    let is_metrics = |entry: &&Value| entry["kind"] == "settled" && entry["component"] == "cloudwatch";
    let booked: i64 = page["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_metrics)
        .map(|entry| entry["quantity"].as_i64().unwrap())
        .sum();
    let record = test.record().await;
    let counted: i64 =
        record["jobs"].as_array().unwrap().iter().map(|job| job["metrics_requested"].as_i64().unwrap()).sum();
    assert_eq!(booked, counted);
}

#[sqlx::test(migrations = false)]
async fn the_budget_holds_back_what_it_cannot_bound_yet(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut tight = spec();
    // The worst case of p4de is about $135 and of p5 about $271: together more than the budget, one after the other less.
    tight["budget_usd"] = json!(330);
    let id = test.start(&tight).await;
    test.tick().await;
    assert_eq!(test.record().await["jobs"].as_array().unwrap().len(), 1, "only one fits at a time");
    let seen = test.get(&format!("/v1/experiments/{id}")).await;
    assert!(seen["reserved_usd"].as_f64().unwrap() <= 330.0);
    let ended = test.run_to_end(&id, 24).await;
    assert_eq!(ended["state"], "completed");
    assert_eq!(test.record().await["jobs"].as_array().unwrap().len(), 2, "the other ran when money was released");
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
    assert!(p5["reason"].as_str().unwrap().contains("raise budget_usd"), "{p5}");
    assert_eq!(table["rows"][0]["state"], "completed");
}

/// Eight trials want to reserve at once, and the budget holds three.
#[sqlx::test(migrations = false)]
async fn concurrent_reservations_never_pass_the_cap(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut many = spec();
    many["candidates"][0]["repeats"] = json!(8);
    many["candidates"].as_array_mut().unwrap().truncate(1);
    many["budget_usd"] = json!(410);
    let id = test.start(&many).await;
    let ticks = (0..4).map(|_| bakeoff::tasks::scheduler::tick(&test.app));
    futures::future::try_join_all(ticks).await.unwrap();
    let seen = test.get(&format!("/v1/experiments/{id}")).await;
    assert!(seen["reserved_usd"].as_f64().unwrap() <= 410.0, "{seen}");
    assert_eq!(test.record().await["jobs"].as_array().unwrap().len(), 3);
}

#[sqlx::test(migrations = false)]
async fn the_projects_budget_caps_all_its_experiments(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let put = test
        .request(reqwest::Method::PUT, "/v1/projects/current/budget", &test.admin)
        .json(&json!({"budget_usd": 600}));
    let (status, project) = test.send(put).await;
    assert_eq!((status, &project["budget_usd"]), (reqwest::StatusCode::OK, &json!(600.0)));
    let (one, two) = (test.start(&spec()).await, test.start(&spec()).await);
    test.tick().await;
    assert!(test.get("/v1/projects/current").await["reserved_usd"].as_f64().unwrap() <= 600.0);
    // Worst cases of about $135 and $271, twice: the four together do not fit.
    assert!(test.record().await["jobs"].as_array().unwrap().len() < 4);
    for id in [one, two] {
        test.run_until_ended(&id, 48).await;
    }
    assert_eq!(test.record().await["jobs"].as_array().unwrap().len(), 4, "each ran when its turn came");
    assert!(test.get("/v1/projects/current").await["settled_usd"].as_f64().unwrap() < 600.0);
}
