//! Several regions: each has its own jobs, quotas, listings and pace, and none sees the others'.

use std::sync::Arc;

use bakeoff_api::experiments::ExperimentView;
use bakeoff_api::operations::AwsUsage;
use bakeoff_domain::lifecycle::queue::QuotaPool;
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::sagemaker::quota::Usage;
use bakeoff_service::app::{App, Place, Settings};
use bakeoff_service::aws::Aws;
use bakeoff_service::tasks::{call_stats, scheduler};
use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::reads::RegionJob;
use crate::support::{ACCOUNT, REGION, Region, TestApp, listening, number, on_p5, ports_of};

const WEST: &str = "us-west-2";

/// From now on the service also runs jobs in the west: the same service, as it works there.
async fn also_in_west(east: &mut TestApp, faults: &[&str]) -> TestApp {
    let named = [&["--region", WEST], faults].concat();
    let region = Region::start(&named, east.app.clock.now());
    let ports = ports_of(&region.url, &region.s3_url).await;
    let aws = Aws::new(ports.clone(), east.app.clock.clone(), 100_000.0);
    aws.expect_account(ACCOUNT);
    let settings = &east.app.settings;
    let place = Place::new(WEST, aws, &settings.owner, settings.lease);
    let mut places = (*east.app.places).clone();
    places.insert(WEST.to_owned(), place.clone());
    east.app.settings = Arc::new(Settings {
        regions: [REGION, WEST].map(str::to_owned).to_vec(),
        ..(**settings).clone()
    });
    east.app.places = Arc::new(places);
    east.url = listening(&east.app).await;
    TestApp {
        app: App {
            place,
            ..east.app.clone()
        },
        region,
        url: east.url.clone(),
        admin: east.admin.clone(),
        project: east.project,
        ports,
        client: east.client.clone(),
    }
}

fn within(region: &str, mut spec: Value) -> Value {
    spec["region"] = json!(region);
    spec
}

async fn advance(east: &TestApp, west: &TestApp, by: TimeDelta) {
    east.advance(by).await;
    west.advance_region(by).await;
}

async fn run_until_ended(east: &TestApp, west: &TestApp, id: &str) -> ExperimentView {
    for _ in 0..48 {
        east.tick().await;
        west.tick().await;
        let seen = east.experiment(id).await;
        if seen.ended_at.is_some() {
            return seen;
        }
        advance(east, west, TimeDelta::minutes(5)).await;
    }
    panic!("it has not ended after four hours");
}

#[sqlx::test(migrations = false)]
async fn each_region_runs_lists_and_bills_its_own_jobs(pool: PgPool) {
    let mut east = TestApp::new(pool.clone()).await;
    let west = also_in_west(&mut east, &[]).await;
    let here = east.start(&on_p5(1)).await;
    let there = east.start(&within(WEST, on_p5(1))).await;
    // The work of one region leaves that of the other alone.
    east.tick().await;
    assert_eq!((east.jobs().await.len(), west.jobs().await.len()), (1, 0));
    west.tick().await;
    assert_eq!((east.jobs().await.len(), west.jobs().await.len()), (1, 1));
    let ended = [
        run_until_ended(&east, &west, &here).await,
        run_until_ended(&east, &west, &there).await,
    ];
    assert!(
        ended
            .iter()
            .all(|one| one.state == ExperimentState::Completed),
        "{ended:#?}"
    );
    let rows: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT j.region, j.job_name, (sum(l.usd) * 1000000)::bigint FROM jobs j JOIN ledger l ON l.job_id = j.id
         WHERE l.kind = 'settled' AND l.component = 'training' GROUP BY 1, 2 ORDER BY 1",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let own = |region: &'static str, jobs: Vec<RegionJob>| {
        let bills = jobs.into_iter();
        bills.map(move |job| (region.to_owned(), job.name, job.micro_usd))
    };
    let expected: Vec<_> = own(REGION, east.jobs().await)
        .chain(own(WEST, west.jobs().await))
        .collect();
    assert_eq!(
        rows, expected,
        "a row for each job, where it is and at its price"
    );
    assert_eq!(number(&pool, "SELECT count(*) FROM orphaned_jobs").await, 0);
    let listed = "SELECT count(*) FROM leases WHERE name = 'watcher' AND listed_at IS NOT NULL";
    assert_eq!(number(&pool, listed).await, 2, "a lister in each");
}

#[sqlx::test(migrations = false)]
async fn a_quota_that_is_full_in_one_region_holds_back_no_other(pool: PgPool) {
    let mut east = TestApp::new(pool.clone()).await;
    let west = also_in_west(&mut east, &["--quota-of", "ml.p5.48xlarge=1"]).await;
    for spec in [on_p5(2), within(WEST, on_p5(2))] {
        east.start(&spec).await;
    }
    east.tick().await;
    west.tick().await;
    assert_eq!(
        (east.in_progress().await, west.in_progress().await),
        (2, 1),
        "what runs in one counts in that one"
    );
    let p5 = QuotaPool {
        instance_type: "ml.p5.48xlarge".to_owned(),
        usage: Usage::OnDemand,
    };
    let now = east.app.clock.now();
    let until = now + TimeDelta::days(1);
    let held = west.app.store.hold_quota_pool(WEST, &p5, until, now).await;
    held.unwrap();
    east.start(&on_p5(1)).await;
    while scheduler::tick(&east.app).await.unwrap() > 0 {}
    assert_eq!(east.in_progress().await, 3);
}

#[sqlx::test(migrations = false)]
async fn what_is_said_of_calls_and_refused_names_the_regions(pool: PgPool) {
    let mut east = TestApp::new(pool).await;
    let west = also_in_west(&mut east, &[]).await;
    east.start(&on_p5(1)).await;
    east.start(&within(WEST, on_p5(1))).await;
    for place in [&east, &west] {
        place.tick().await;
        call_stats::tick(&place.app).await.unwrap();
    }
    let usage: AwsUsage = east.read("/v1/aws-usage").await;
    let creates = usage.operations.iter();
    let creates = creates.filter(|one| one.operation == "CreateTrainingJob");
    let creates: Vec<_> = creates
        .map(|one| {
            (
                one.region.as_str(),
                one.calls,
                one.paced_at_calls_per_second.is_some(),
            )
        })
        .collect();
    assert_eq!(creates, [(REGION, 1, true), (WEST, 1, true)]);
    let (status, refused) = east
        .post("/v1/experiments", &within("ap-south-1", on_p5(1)))
        .await;
    assert_eq!(status, 422, "{refused}");
    let said = refused.to_string();
    assert!(said.contains("us-east-1, us-west-2 only"), "{said}");
}
