//! Money: the ledger against the region's own bill, and the budget as a hard cap.

use std::collections::BTreeMap;

use bakeoff_api::money::{LedgerEntryView, Spending};
use bakeoff_api::projects::ProjectView;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::ledger::{EntryComponent, EntryKind};
use chrono::TimeDelta;
use serde_json::json;
use sqlx::PgPool;

use crate::support::reads::RegionJob;
use crate::support::{TestApp, spec, spot_spec, usual};

async fn settled(test: &TestApp, experiment: &str) -> BTreeMap<String, f64> {
    let entries = test.ledger(experiment).await;
    let is_job = |entry: &&LedgerEntryView| {
        entry.kind == EntryKind::Settled && entry.component == EntryComponent::Training
    };
    entries
        .iter()
        .filter(is_job)
        .map(|entry| (entry.job_id.to_string(), entry.usd.as_f64()))
        .collect()
}

/// Seconds that spot jobs trained and are not billed.
pub(crate) fn unbilled_spot_seconds(jobs: &[RegionJob]) -> u32 {
    let seconds: u64 = jobs
        .iter()
        .filter(|job| job.spot)
        .map(|job| job.training_seconds - job.billable_seconds)
        .sum();
    u32::try_from(seconds).unwrap()
}

async fn project(test: &TestApp) -> ProjectView {
    test.read("/v1/projects/current").await
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
        let trials = test.trials(&id).await;
        let mut attempts = trials.iter().flat_map(|trial| &trial.attempts);
        assert!(
            attempts.clone().count() == 2 && attempts.all(|attempt| !attempt.billing_estimated)
        );
        let settled = settled(&test, &id).await;
        assert_eq!(settled.len(), 2);
        let jobs = test.jobs().await;
        for (attempt, usd) in settled {
            let job = jobs
                .iter()
                .find(|job| job.attempt.as_ref() == Some(&attempt))
                .unwrap();
            let billed = job.usd();
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

/// The region's own rate, and none of elsewhere, however new that is.
#[sqlx::test(migrations = false)]
async fn metrics_are_booked_at_the_rate_of_their_region(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let another = test.other_project().await;
    let rates = [
        (None, "us-east-1", "listed", 0.02, 6),
        (None, "eu-west-1", "listed", 7.0, 24),
        (Some(another.0), "us-east-1", "negotiated", 7.0, 24),
    ];
    for (project, region, status, usd, hours) in rates {
        sqlx::query(
            "INSERT INTO prices (id, project_id, component, region, usd, effective_from, confirmed_at,
                                 source, status, note, created_at)
             VALUES ($1, $2, 'cloudwatch', $3, $7::float8::numeric, $4, $5, 'test', $6, '', $5)",
        )
        .bind(bakeoff_process::ids::fresh())
        .bind(project)
        .bind(region)
        .bind(usual() - TimeDelta::days(1))
        .bind(usual() + TimeDelta::hours(hours))
        .bind(status)
        .bind(usd)
        .execute(&pool)
        .await
        .unwrap();
    }
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let total = test.spending("group_by=project").await.total;
    let jobs = test.jobs().await;
    let read: i64 = jobs.iter().map(|job| job.metrics_requested).sum();
    let cost = rust_decimal::Decimal::from(read) * rust_decimal::Decimal::new(2, 5);
    assert_eq!(total.cloudwatch_usd.0, cost, "{read} at $0.02 per thousand");
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
    let entries = test.ledger(&id).await;
    let is_metrics = |entry: &&LedgerEntryView| {
        entry.kind == EntryKind::Settled && entry.component == EntryComponent::Cloudwatch
    };
    let booked: i64 = entries
        .iter()
        .filter(is_metrics)
        .map(|entry| entry.quantity)
        .sum();
    let jobs = test.jobs().await;
    let counted: i64 = jobs.iter().map(|job| job.metrics_requested).sum();
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
    assert_eq!(test.jobs().await.len(), 1, "only one fits at a time");
    assert!(test.experiment(&id).await.reserved_usd.as_f64() <= 330.0);
    test.run_to_end(&id, 24).await;
    assert_eq!(test.experiment(&id).await.state, ExperimentState::Completed);
    assert_eq!(
        test.jobs().await.len(),
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
    let rows = test.comparison(&id).await.rows;
    let p5 = &rows[1];
    assert_eq!(p5.state, TrialState::Refused);
    assert!(
        p5.reason.as_ref().unwrap().contains("raise budget_usd"),
        "{p5:?}"
    );
    assert_eq!(rows[0].state, TrialState::Completed);
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
    let ticks = (0..4).map(|_| bakeoff_service::tasks::scheduler::tick(&test.app));
    futures::future::try_join_all(ticks).await.unwrap();
    let seen = test.experiment(&id).await;
    assert!(seen.reserved_usd.as_f64() <= 420.0, "{seen:?}");
    assert_eq!(test.jobs().await.len(), 3);
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
    let (status, answer) = test.send(put).await;
    assert_eq!(status, reqwest::StatusCode::OK, "{answer}");
    let capped: ProjectView = serde_json::from_value(answer).unwrap();
    assert_eq!(capped.budget_usd, Some(Usd(600.into())));
    let (one, two) = (test.start(&spec()).await, test.start(&spec()).await);
    test.tick().await;
    assert!(project(&test).await.reserved_usd.as_f64() <= 600.0);
    // Worst cases of about $135 and $271, twice: the four together do not fit.
    assert!(test.jobs().await.len() < 4);
    for id in [one, two] {
        test.run_until_ended(&id, 48).await;
    }
    assert_eq!(test.jobs().await.len(), 4, "each ran when its turn came");
    assert!(project(&test).await.settled_usd.as_f64() < 600.0);
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
    let total = |table: &Spending| table.total.total_usd.as_f64();
    let sum = |table: &Spending| {
        let amounts = table.rows.iter().map(|row| row.total_usd);
        amounts.sum::<Usd>().as_f64()
    };
    let days = test.spending("group_by=day").await;
    assert!(days.rows.len() >= 2, "{days:?}");
    for group_by in ["day", "experiment", "trial", "project"] {
        let table = test.spending(&format!("group_by={group_by}")).await;
        assert!(
            (total(&table) - total(&days)).abs() < 1e-4
                && (sum(&table) - total(&table)).abs() < 1e-4,
            "{table:?}"
        );
    }
    let jobs = test.jobs().await;
    let billed: f64 = jobs.iter().map(RegionJob::usd).sum();
    let metrics = days.total.cloudwatch_usd.as_f64();
    assert!(
        (total(&days) - metrics - billed).abs() < 0.005,
        "{days:?} {billed}"
    );
    let spot = f64::from(unbilled_spot_seconds(&jobs)) * 7.09 / 3600.0;
    assert!(
        (days.total.spot_saved_usd.as_f64() - spot).abs() < 0.01 && spot > 1.0,
        "{days:?} {spot}"
    );
    let own = test
        .spending(&format!("group_by=trial&experiment_id={second}"))
        .await;
    assert_eq!(own.rows.len(), 2);
    let name = spot_spec()["name"].clone();
    let names = own.rows.iter().map(|row| row.experiment_name.as_deref());
    assert!(names.eq([name.as_str(); 2]), "{own:?}");
    assert!(days.rows.iter().all(|row| row.experiment_name.is_none()));
    // A day's cost is what ran on it: half of a job that ran half before midnight.
    let midnight = "2026-11-21T00:00:00Z";
    let of = async |period: &str| {
        let query = format!("group_by=project&{period}");
        total(&test.spending(&query).await)
    };
    let before = of(&format!("from=2026-11-01T00:00:00Z&until={midnight}")).await;
    let after = of(&format!("from={midnight}")).await;
    assert!(
        (before + after - total(&days)).abs() < 1e-4,
        "{before} {after}"
    );
    assert!(before > 1.0 && after > 1.0, "{before} {after}");
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
        let table = test.comparison(id).await;
        let costs = table.rows.iter().map(|row| row.total_usd.unwrap());
        let cost = costs.sum::<Usd>().as_f64();
        assert!(
            cost >= so_far - 1e-9,
            "minute {minute}: {cost} after {so_far}"
        );
        so_far = cost;
        for row in &table.rows {
            let is_running = row.state == TrialState::Running;
            live += u32::from(is_running && row.total_usd.unwrap().as_f64() > 1.0);
        }
        if table.state == ExperimentState::Completed {
            break;
        }
        test.advance(TimeDelta::minutes(1)).await;
    }
    let settled = test.experiment(id).await.settled_usd.as_f64();
    assert!(
        (settled - so_far).abs() < 1e-6 && so_far > 1.0,
        "settled {settled}, {so_far} so far"
    );
    assert!(live > 10, "what runs has cost something, and is seen to");
}
