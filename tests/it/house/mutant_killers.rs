//! Tests that exist because a mistake would otherwise go unnoticed: each is named in
//! `xtask/src/mutants.rs` as the one that catches a patch of `tests/mutants/`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bakeoff_api::plans::PreviewView;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::observed::JobStatus;
use bakeoff_service::app::App;
use bakeoff_service::aws::{Aws, Ports};
use bakeoff_service::tasks::{scheduler, warm_pools, watcher};
use bakeoff_store::series::Samples;
use bakeoff_store::series::metrics::Progress;
use chrono::TimeDelta;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::service::program::Service;
use crate::support::reads::RegionJob;
use crate::support::{REGION, TestApp, create_job, holder, number, request_of, spec, spot_spec};

/// The first of two trials is over and its instances wait, for two hours at most; the second is
/// queued and matches them.
async fn with_a_pool_that_is_wanted(pool: PgPool) -> (TestApp, String) {
    let test = TestApp::with_faults(pool, &["--quota", "1"]).await;
    let mut warm = spec();
    warm["candidates"].as_array_mut().unwrap().truncate(1);
    warm["candidates"][0]["repeats"] = json!(2);
    warm["budget_usd"] = json!(100_000);
    warm["keep_alive_seconds"] = json!(7200);
    let id = test.start(&warm).await;
    test.tick().await;
    while !test.jobs().await[0].idle_pool {
        test.advance(TimeDelta::minutes(5)).await;
    }
    test.watch().await;
    // Once: the end is settled, and the next tick would admit the second.
    scheduler::tick(&test.app).await.unwrap();
    let trials = test.trials(&id).await;
    assert_eq!(
        (trials[0].state, trials[1].state),
        (TrialState::Completed, TrialState::Queued)
    );
    (test, id)
}

async fn pools_are_looked_at(test: &TestApp) -> RegionJob {
    for _ in 0..3 {
        warm_pools::tick(&test.app).await.unwrap();
        test.advance(TimeDelta::minutes(2)).await;
    }
    test.jobs().await.remove(0)
}

/// What comes between the service and the region: it may answer a call itself, or do something
/// before it passes the call on.
type Intercept =
    dyn Fn(&str, Value) -> Pin<Box<dyn Future<Output = Option<Response>> + Send>> + Send + Sync;

/// The service of a test, with an interceptor before its region.
async fn intercepted(test: &TestApp, intercept: Arc<Intercept>) -> App {
    let (client, region) = (test.client.clone(), test.region.url.clone());
    let pass = async move |headers: HeaderMap, body: Bytes| -> Response {
        let target = headers
            .get("x-amz-target")
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let parsed = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if let Some(answer) = intercept(target, parsed).await {
            return answer;
        }
        let mut request = client.post(&region).body(body);
        for name in [
            header::CONTENT_TYPE,
            header::AUTHORIZATION,
            "x-amz-target".parse().unwrap(),
        ] {
            request = request.header(
                &name,
                headers.get(&name).unwrap_or(&HeaderValue::from_static("")),
            );
        }
        let answer = request.send().await.expect("the region");
        let (status, headers) = (answer.status(), answer.headers().clone());
        (status, headers, answer.bytes().await.expect("its answer")).into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    tokio::spawn(axum::serve(listener, Router::new().fallback(pass)).into_future());
    let jobs = Arc::new(
        bakeoff_aws::connect_to(&url, &test.region.s3_url, "us-east-1")
            .await
            .sagemaker,
    );
    let mut app = test.app.clone();
    app.place.aws = Arc::new(Aws::new(
        Ports {
            jobs,
            ..test.ports.clone()
        },
        app.clock.clone(),
        100_000.0,
    ));
    app
}

/// 16 TB on a type without local NVMe: the volume is a large part of the bill, and of the
/// reservation.
#[sqlx::test(migrations = false)]
async fn a_reservation_holds_what_the_volume_may_cost(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut lora = spot_spec();
    lora.as_object_mut().unwrap().remove("max_wait_seconds");
    lora["workload"]["precision"] = json!("fp16");
    lora["keep_alive_seconds"] = json!(3600);
    lora["budget_usd"] = json!(100_000);
    lora["candidates"] = json!([{"name": "p3", "instance_type": "ml.p3.8xlarge", "profile": {
        "micro_batch_per_gpu": 1, "gradient_accumulation_steps": 16, "zero_stage": 3, "activation_checkpointing": true,
        "volume_size_gb": 200}}]);
    let mut reserved = async |gb: u32| -> (f64, f64) {
        lora["candidates"][0]["profile"]["volume_size_gb"] = json!(gb);
        let (_, preview) = test.post("/v1/plans", &lora).await;
        let preview: PreviewView = serde_json::from_value(preview).unwrap();
        let plan = &preview.candidates[0].plan;
        assert!(!plan.refused, "{preview:?}");
        let worst = plan.worst_case.as_ref().unwrap();
        (worst.training_usd.as_f64(), worst.pool_usd.as_f64())
    };
    let (small, large) = (reserved(200).await, reserved(16_000).await);
    let usd_per_gb_month = 0.14;
    let hours = |seconds: f64| 15_800.0 * usd_per_gb_month * seconds / (31.0 * 86_400.0);
    assert!(
        large.0 - small.0 >= hours(72_000.0),
        "a job's volume: {small:?} {large:?}"
    );
    assert!(
        large.1 - small.1 >= hours(3600.0),
        "its warm pool's: {small:?} {large:?}"
    );
}

/// A reader that was slow and one that took its work over both bring the last read: money is given
/// back once.
#[sqlx::test(migrations = false)]
async fn a_last_read_that_comes_twice_releases_once(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.watch().await;
    let now = test.app.clock.now() + TimeDelta::days(1);
    let slow = test
        .app
        .store
        .claim_due_metrics(REGION, now, TimeDelta::zero(), 1)
        .await
        .unwrap();
    let fast = test
        .app
        .store
        .claim_due_metrics(REGION, now, TimeDelta::zero(), 500)
        .await
        .unwrap();
    assert_eq!((slow.len(), fast.len()), (1, 2), "the hold has run out");
    let twin = fast
        .into_iter()
        .find(|due| due.job.name == slow[0].job.name)
        .unwrap();
    let held = async || test.experiment(&id).await.reserved_usd;
    let mut after = vec![held().await];
    for due in slow.into_iter().chain([twin]) {
        let last = Progress {
            due,
            cursor: now,
            next_at: None,
        };
        test.app
            .store
            .record_metrics(&Samples::default(), &[last], now)
            .await
            .unwrap();
        after.push(held().await);
    }
    assert!(after[1] < after[0], "the first releases: {after:?}");
    assert_eq!(after[2], after[1], "the second changes nothing: {after:?}");
    let released =
        "SELECT count(*) FROM ledger WHERE kind = 'released' AND component = 'cloudwatch'";
    assert_eq!(number(&pool, released).await, 1);
}

/// Somebody else's job that bears one of our names, and no marker: it lives on, and we pay for
/// nothing.
#[sqlx::test(migrations = false)]
async fn a_strangers_job_of_our_name_is_neither_stopped_nor_billed(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&spec()).await;
    let mut request = request_of(&pool).await;
    request.job_name = bakeoff_planner::render::attempt::job_name(
        JobKind::Training,
        &test.app.settings.installation,
        bakeoff_process::ids::fresh(),
    );
    create_job(&test.ports, &request).await.unwrap();
    for _ in 0..4 {
        test.advance(TimeDelta::minutes(5)).await;
        test.watch().await;
    }
    let jobs = &test.ports.jobs;
    let seen = jobs.describe(JobKind::Training, &request.job_name);
    let seen = seen.await.unwrap();
    assert_eq!(seen.status, JobStatus::InProgress, "it goes on");
    assert!(test.calls("ListTrainingJobs").await >= 4, "it was seen");
    assert_eq!(number(&pool, "SELECT count(*) FROM orphaned_jobs").await, 0);
    assert_eq!(number(&pool, "SELECT count(*) FROM ledger").await, 0);
    // Nor is it called one of ours that nobody knows.
    let alarms = "SELECT count(*) FROM events WHERE kind = 'trial.unknown_job'";
    assert_eq!(number(&pool, alarms).await, 0);
}

#[sqlx::test(migrations = false)]
async fn a_lease_is_given_back_only_by_its_holder(pool: PgPool) {
    let test = TestApp::new(pool).await;
    test.start(&spec()).await;
    let (store, now) = (&test.app.store, test.app.clock.now());
    let stale = test.admit("first", Duration::ZERO).await;
    let held = store
        .claim_due_trials(holder("second", Duration::from_mins(10)), now, 10)
        .await
        .unwrap();
    assert_eq!(
        (stale.len(), held.len()),
        (2, 2),
        "an expired lease passes on"
    );
    for trial in &stale {
        store.release_lease(trial, now, None).await.unwrap();
    }
    let third = store
        .claim_due_trials(holder("third", Duration::from_mins(10)), now, 10)
        .await
        .unwrap();
    assert_eq!(third.len(), 0, "the second holds them still");
    for trial in &held {
        store.release_lease(trial, now, None).await.unwrap();
    }
    let third = store
        .claim_due_trials(holder("third", Duration::from_mins(10)), now, 10)
        .await
        .unwrap();
    assert_eq!(third.len(), 2, "and gives them back when it likes");
}

#[sqlx::test(migrations = false)]
async fn a_pool_is_kept_for_a_trial_that_may_run(pool: PgPool) {
    let (test, _) = with_a_pool_that_is_wanted(pool).await;
    let first = pools_are_looked_at(&test).await;
    assert!(first.idle_pool, "{first:?}");
}

/// A paused experiment may wait for days, and instances that wait with it are billed.
#[sqlx::test(migrations = false)]
async fn a_pool_is_not_kept_for_a_paused_experiment(pool: PgPool) {
    let (test, id) = with_a_pool_that_is_wanted(pool).await;
    test.post(&format!("/v1/experiments/{id}/pause"), &json!({}))
        .await;
    let first = pools_are_looked_at(&test).await;
    assert!(!first.idle_pool && !first.pool_ran_out, "{first:?}");
}

#[sqlx::test(migrations = false)]
async fn a_pool_is_not_kept_for_a_cancelled_experiment(pool: PgPool) {
    let (test, id) = with_a_pool_that_is_wanted(pool).await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    let first = pools_are_looked_at(&test).await;
    assert!(!first.idle_pool && !first.pool_ran_out, "{first:?}");
}

/// What creates are answered: the first with a failure that leaves open whether its job exists,
/// each later one with a refusal.
fn refuse_creates_after_an_unclear_one() -> Arc<Intercept> {
    let creates = Arc::new(AtomicUsize::new(0));
    Arc::new(move |target, _| {
        let is_create = target.ends_with(".CreateTrainingJob");
        let is_first = is_create && creates.fetch_add(1, Ordering::Relaxed) == 0;
        let (status, code) = if is_first {
            (StatusCode::INTERNAL_SERVER_ERROR, "InternalFailure")
        } else {
            (StatusCode::BAD_REQUEST, "ValidationException")
        };
        Box::pin(async move {
            let error = [("x-amzn-errortype", code)];
            is_create.then(|| (status, error, r#"{"message":"no"}"#).into_response())
        })
    })
}

/// The second trial's create was refused after one that may be under way: it sends none for the
/// quarantine's length, and instances that wait for it are billed.
#[sqlx::test(migrations = false)]
async fn a_pool_is_not_kept_for_a_trial_in_quarantine(pool: PgPool) {
    let (test, _) = with_a_pool_that_is_wanted(pool.clone()).await;
    let app = intercepted(&test, refuse_creates_after_an_unclear_one()).await;
    let quarantined = "SELECT count(*) FROM jobs WHERE state = 'quarantined'";
    for _ in 0..30 {
        scheduler::tick(&app).await.unwrap();
        if number(&pool, quarantined).await > 0 {
            break;
        }
        test.advance(TimeDelta::seconds(20)).await;
    }
    assert_eq!(number(&pool, quarantined).await, 1);
    let first = pools_are_looked_at(&test).await;
    assert!(!first.idle_pool && !first.pool_ran_out, "{first:?}");
}

/// Our jobs are on the second page, and AWS throttles it: what was not seen is not missing, and
/// nobody is asked about it.
#[sqlx::test(migrations = false)]
async fn a_listing_that_was_throttled_says_nothing_of_what_it_did_not_reach(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--quota", "1000"]).await;
    test.start(&spec()).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    test.advance(TimeDelta::minutes(12)).await;
    let mut other = request_of(&pool).await;
    for number in 0..120 {
        other.job_name = format!("somebody-elses-{number}");
        create_job(&test.ports, &other).await.unwrap();
    }
    let throttle: Arc<Intercept> = Arc::new(|target, body| {
        let is_second = target.ends_with(".ListTrainingJobs") && !body["NextToken"].is_null();
        Box::pin(async move {
            let error = [("x-amzn-errortype", "ThrottlingException")];
            is_second.then(|| {
                (
                    StatusCode::BAD_REQUEST,
                    error,
                    r#"{"message":"Rate exceeded"}"#,
                )
                    .into_response()
            })
        })
    });
    let app = intercepted(&test, throttle).await;
    let described = async || test.calls("DescribeTrainingJob").await;
    let before = described().await;
    watcher::tick(&app, &mut watcher::Memory::default())
        .await
        .unwrap();
    assert_eq!(
        test.calls("ListTrainingJobs").await,
        1,
        "the first page was read, and the second refused"
    );
    scheduler::tick(&test.app).await.unwrap();
    assert_eq!(described().await, before);
    assert_eq!(
        number(
            &pool,
            "SELECT count(*) FROM leases WHERE listed_at IS NOT NULL"
        )
        .await,
        0
    );
    // The next listing is whole.
    test.watch().await;
    scheduler::tick(&test.app).await.unwrap();
    assert_eq!(described().await, before + 2);
}

/// A create may be under way for as long as a lease is trusted and two calls may take: so long its
/// money is held, whatever is cancelled. That is put together where the program starts.
#[sqlx::test(migrations = false)]
async fn a_quarantine_outlasts_the_lease_and_two_calls(pool: PgPool) {
    // Everything is throttled: the attempt is planned, and nobody can be sure that no job comes of
    // it.
    let test = TestApp::with_faults(pool.clone(), &["--throttle", "1"]).await;
    let service = Service::on(
        &pool,
        &test.region,
        &["--lease-seconds", "120", "--aws-timeout-seconds", "60"],
    )
    .await;
    let id = test.start(&spec()).await;
    let becomes = async |query: &'static str| {
        while number(&pool, query).await < 2 {
            bakeoff_process::clock::real_sleep(Duration::from_millis(20)).await;
        }
    };
    becomes("SELECT count(*) FROM jobs WHERE state = 'planned'").await;
    let cancel = test
        .client
        .post(format!("{}/v1/experiments/{id}/cancel", service.url))
        .bearer_auth(&test.admin);
    assert_eq!(
        cancel.json(&json!({})).send().await.unwrap().status(),
        StatusCode::ACCEPTED
    );
    becomes("SELECT count(*) FROM jobs WHERE state = 'quarantined'").await;
    let held = "SELECT min(extract(epoch FROM j.quarantine_until - t.stop_requested_at))::bigint
                FROM jobs j JOIN trials t ON t.id = j.trial_id";
    let held = number(&pool, held).await;
    assert!(
        held >= (120 + 2 * 60) * 1000,
        "{held} s on a clock that is a thousand times as fast as the lease's"
    );
}

/// An event that was long on its way tells what was; what a listing has told since stays.
#[sqlx::test(migrations = false)]
async fn an_event_older_than_what_is_known_changes_nothing(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut alone = spec();
    alone["candidates"].as_array_mut().unwrap().truncate(1);
    test.start(&alone).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    let job = test.jobs().await.remove(0);
    let status = async || -> (String, i64) {
        let query =
            "SELECT secondary_status, (extract(epoch FROM modified_at) * 1000)::bigint FROM jobs";
        sqlx::query_as(query).fetch_one(&pool).await.unwrap()
    };
    let (known, modified_ms) = status().await;
    assert_eq!(known, "Training");
    let push = async |secondary: &str, at_ms: i64| {
        let event = json!({
            "source": "aws.sagemaker", "detail-type": "SageMaker Training Job State Change", "region": "us-east-1",
            "detail": {"TrainingJobName": job.name, "TrainingJobStatus": "InProgress", "SecondaryStatus": secondary,
                       "LastModifiedTime": at_ms, "Environment": {"BAKEOFF_ATTEMPT_ID": job.attempt}},
        });
        let key = bakeoff_service::auth::secrets::events_key(&[7; 32]);
        let request = test
            .request(Method::POST, "/v1/aws-events", &key)
            .json(&event);
        assert_eq!(test.send(request).await.0, StatusCode::ACCEPTED);
    };
    push("Downloading", modified_ms - 60_000).await;
    assert_eq!(status().await, (known, modified_ms), "it comes late");
    push("Uploading", modified_ms + 60_000).await;
    assert_eq!(
        status().await,
        ("Uploading".to_owned(), modified_ms + 60_000),
        "what is newer is taken"
    );
}

/// The create is under way when somebody cancels: the scheduler that holds the trial cannot know,
/// and the job must not run until the next look in six hours.
#[sqlx::test(migrations = false)]
async fn a_cancel_while_the_create_is_under_way_takes_effect_at_once(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut alone = spec();
    alone["candidates"].as_array_mut().unwrap().truncate(1);
    let id = test.start(&alone).await;
    let url = format!("{}/v1/experiments/{id}/cancel", test.url);
    let cancel = test
        .client
        .post(url)
        .bearer_auth(&test.admin)
        .json(&json!({}));
    let intercept: Arc<Intercept> = Arc::new(move |target, _| {
        let cancel = target
            .ends_with(".CreateTrainingJob")
            .then(|| cancel.try_clone().unwrap());
        Box::pin(async move {
            if let Some(cancel) = cancel {
                assert_eq!(cancel.send().await.unwrap().status(), StatusCode::ACCEPTED);
            }
            None
        })
    });
    let app = intercepted(&test, intercept).await;
    // The same moment: nothing but what is due at once is done.
    while scheduler::tick(&app).await.unwrap() > 0 {}
    assert_eq!(test.jobs().await.len(), 1, "it was created");
    assert_eq!(test.calls("StopTrainingJob").await, 1, "and is stopped");
    test.run_to_end(&id, 2).await;
}
