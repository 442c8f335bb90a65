//! Events, ignored settings, checkpoints, failures and listings of a fleet of jobs.

use bakeoff_api::comparison::ComparisonRow;
use bakeoff_api::operations::AwsUsage;
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_service::tasks::{scheduler, watcher};
use chrono::TimeDelta;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::jobs::fleet::{events, repeats, watched};
use crate::support::reads::RegionJob;
use crate::support::{SNS_TOPIC, TestApp, create_job, problem, request_of, spec, spot_spec};

fn pushed(job: &RegionJob, status: &str, secondary: &str) -> Value {
    json!({
        "version": "0", "id": "1", "detail-type": "SageMaker Training Job State Change", "source": "aws.sagemaker",
        "account": "111122223333", "region": "us-east-1", "time": "2026-11-20T00:00:00Z", "resources": [],
        "detail": {"TrainingJobName": job.name, "TrainingJobStatus": status, "SecondaryStatus": secondary,
                   "Environment": {"BAKEOFF_ATTEMPT_ID": job.attempt}},
    })
}

/// A pushed event is a hint: it makes us look, and an event that lies changes nothing that counts.
#[sqlx::test(migrations = false)]
async fn a_pushed_event_makes_us_look_and_settles_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    let job = test.jobs().await.remove(0);
    let key = bakeoff_service::auth::secrets::events_key(&[7; 32]);
    let push = |key: &str, body: Value| {
        test.send(
            test.request(Method::POST, "/v1/aws-events", key)
                .json(&body),
        )
    };
    assert_eq!(
        push("bke_00", pushed(&job, "Completed", "Completed"))
            .await
            .0,
        401
    );
    assert_eq!(
        push(&test.admin, pushed(&job, "Completed", "Completed"))
            .await
            .0,
        401,
        "a project's key is another thing"
    );
    // A lie, twice: the look finds a job in progress.
    for _ in 0..2 {
        assert_eq!(
            push(&key, pushed(&job, "Completed", "Completed")).await.0,
            202
        );
    }
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    assert_eq!(test.trials(&id).await[0].state, TrialState::Running);
    // The truth, without any listing.
    test.advance(TimeDelta::hours(3)).await;
    for job in test.jobs().await {
        push(&key, pushed(&job, "Completed", "Completed")).await;
    }
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    assert_eq!(test.trials(&id).await[0].state, TrialState::Completed);
    assert_eq!(
        push(&key, json!({"source": "aws.ec2", "detail-type": "other"}))
            .await
            .0,
        202,
        "not ours, and no error"
    );
    test.run_to_end(&id, 3).await;
}

/// A job of our name in another account is another job: a process that was frozen before its create
/// may make one with other credentials.
#[sqlx::test(migrations = false)]
async fn an_event_of_another_account_is_not_ours(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&repeats(1)).await;
    test.tick().await;
    let job = test.jobs().await.remove(0);
    let key = bakeoff_service::auth::secrets::events_key(&[7; 32]);
    let status_after = async |account: &str| {
        let mut event = pushed(&job, "InProgress", "Uploading");
        event["account"] = json!(account);
        let request = test.request(Method::POST, "/v1/aws-events", &key);
        assert_eq!(test.send(request.json(&event)).await.0, 202);
        let attempts = test.trials(&id).await.remove(0).attempts;
        attempts[0].secondary_status.clone()
    };
    let own = Some("Uploading".to_owned());
    assert_ne!(status_after("999988887777").await, own);
    assert_eq!(status_after("111122223333").await, own);
}

/// The same events through an SNS topic: only what SNS signed, and only of our topic.
#[sqlx::test(migrations = false)]
async fn events_come_through_sns_when_it_signed_them(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&repeats(1)).await;
    test.tick().await;
    test.advance(TimeDelta::hours(3)).await;
    let job = test.jobs().await.remove(0);
    let sign = async |topic: &str, kind: &str, message: &Value| -> Value {
        let body = json!({"topic": topic, "kind": kind, "message": message.to_string()});
        let signed = test
            .client
            .post(format!("{}/_sim/sns", test.region.url))
            .json(&body)
            .send()
            .await
            .unwrap();
        signed.json().await.unwrap()
    };
    let push = async |message: &Value| {
        let request = test
            .client
            .post(format!("{}/v1/aws-events", test.url))
            .json(message);
        test.send(request.header("x-amz-sns-message-type", "Notification"))
            .await
    };
    let ended = pushed(&job, "Completed", "Completed");

    let (status, _) = push(&sign(SNS_TOPIC, "SubscriptionConfirmation", &json!("")).await).await;
    assert_eq!(
        (status.as_u16(), &test.record().await["subscriptions"]),
        (202, &json!(1))
    );

    let (status, answer) = push(
        &sign(
            "arn:aws:sns:us-east-1:999999999999:evil",
            "Notification",
            &ended,
        )
        .await,
    )
    .await;
    assert_eq!(status, 401, "{answer}");
    let good = sign(SNS_TOPIC, "Notification", &ended).await;
    for (field, value, says) in [
        (
            "Message",
            json!(pushed(&job, "Failed", "Failed").to_string()),
            "signature",
        ),
        ("Signature", json!("AAAA"), "signature"),
        ("SignatureVersion", json!("1"), "SignatureVersion to 2"),
        (
            "SigningCertURL",
            json!("http://127.0.0.1:1/cert.pem"),
            "not an SNS URL",
        ),
    ] {
        let mut forged = good.clone();
        forged[field] = value;
        let (status, answer) = push(&forged).await;
        assert_eq!(status, 401, "{field}: {answer}");
        let refused = problem(answer);
        assert!(refused.detail.contains(says), "{field}: {refused:?}");
    }
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let state = async || test.trials(&id).await[0].state;
    assert_eq!(
        state().await,
        TrialState::Running,
        "nothing of it made us look"
    );

    assert_eq!(push(&good).await.0, 202);
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    assert_eq!(state().await, TrialState::Completed);
    test.run_to_end(&id, 3).await;
}

#[sqlx::test(migrations = false)]
async fn what_sagemaker_drops_without_a_word_is_reported_once(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--silent-drop", "1"]).await;
    let mut warm = repeats(1);
    warm["keep_alive_seconds"] = json!(3600);
    let id = test.start(&warm).await;
    test.run_to_end(&id, 12).await;
    let dropped = events(&test, &id, "trial.setting_ignored").await;
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert!(
        dropped[0].contains("KeepAlivePeriodInSeconds 0, but 3600 was requested"),
        "{dropped:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn checkpoints_that_stop_raise_an_alarm_with_the_dollars_at_risk(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--checkpoint-stall", "1"]).await;
    let id = test.start(&spot_spec()).await;
    test.run_to_end(&id, 60).await;
    let stalled = events(&test, &id, "trial.checkpoint_stalled").await;
    assert!(
        !stalled.is_empty() && stalled.iter().all(|text| text.contains('$')),
        "{stalled:?}"
    );
    let spot = test.trials(&id).await.remove(1).attempts.remove(0);
    assert!(
        spot.checkpoint_at.is_some() && spot.savings_percent.unwrap() > 10.0,
        "{spot:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn healthy_checkpoints_raise_no_alarm(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spot_spec()).await;
    test.run_to_end(&id, 60).await;
    assert_eq!(
        events(&test, &id, "trial.checkpoint_stalled").await,
        Vec::<String>::new()
    );
}

#[sqlx::test(migrations = false)]
async fn statuses_that_nobody_knows_are_survived(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--odd-status", "0.4"]).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 24).await;
    let rows = test.comparison(&id).await.rows;
    let is_done = |row: &&ComparisonRow| row.state == TrialState::Completed;
    assert_eq!(rows.iter().filter(is_done).count(), 2, "{rows:?}");
}

/// Somebody deletes the finished job before we have looked: nobody will tell what it cost.
#[sqlx::test(migrations = false)]
async fn a_deleted_job_is_given_up_and_its_cost_estimated(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&repeats(1)).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(15)).await;
    test.tick().await;
    test.advance(TimeDelta::hours(3)).await;
    let name = test.jobs().await.remove(0).name;
    let delete = bakeoff_process::tls::http_client()
        .build()
        .unwrap()
        .post(&test.region.url)
        .header("x-amz-target", "SageMaker.DeleteTrainingJob");
    assert!(
        delete
            .json(&json!({"TrainingJobName": name}))
            .send()
            .await
            .unwrap()
            .status()
            .is_success()
    );
    test.run_until_ended(&id, 24).await;
    let row = test.comparison(&id).await.rows.remove(0);
    assert!(
        row.state == TrialState::Failed
            && row.cost_estimated
            && row.cost_usd.unwrap().as_f64() > 50.0,
        "{row:?}"
    );
}

async fn failing(pool: PgPool, fault: &str) -> ComparisonRow {
    let test = TestApp::with_faults(pool, &[fault, "1"]).await;
    let id = test.start(&repeats(1)).await;
    test.run_to_end(&id, 24).await;
    test.comparison(&id).await.rows.remove(0)
}

#[sqlx::test(migrations = false)]
async fn failures_of_aws_are_tried_again_and_bounded(pool: PgPool) {
    let row = failing(pool, "--internal-error").await;
    assert_eq!((row.state, row.attempts), (TrialState::Failed, 4));
    assert!(
        row.cost_usd.unwrap().as_f64() > 10.0,
        "every attempt is billed: {row:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_failure_of_the_script_is_not_tried_again(pool: PgPool) {
    let row = failing(pool, "--algorithm-error").await;
    assert_eq!((row.state, row.attempts), (TrialState::Failed, 1));
}

/// Ten thousand jobs are a hundred pages: every one is read, however many come back empty.
#[sqlx::test(migrations = false)]
async fn a_listing_goes_on_over_all_pages(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--quota", "1000"]).await;
    let mut many = repeats(20);
    let one = many["candidates"][0].clone();
    for number in 1..10 {
        let mut other = one.clone();
        other["name"] = json!(format!("c{number}"));
        many["candidates"].as_array_mut().unwrap().push(other);
    }
    many["budget_usd"] = json!(1_000_000);
    let id = test.start(&many).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    assert_eq!(test.jobs().await.len(), 200);
    test.advance(TimeDelta::minutes(12)).await;
    let mut memory = watcher::Memory::default();
    watcher::tick(&test.app, &mut memory).await.unwrap();
    assert_eq!(test.calls("ListTrainingJobs").await, 2);
    let unseen: i64 =
        sqlx::query_scalar("SELECT count(*) FROM jobs WHERE secondary_status IS NULL")
            .fetch_one(&pool)
            .await
            .unwrap();
    assert_eq!(unseen, 0);
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
}

/// A page that is cut before it is filtered can be empty and still have a successor.
#[sqlx::test(migrations = false)]
async fn an_empty_page_is_not_the_end_of_a_listing(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--quota", "1000"]).await;
    let id = test.start(&spec()).await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    test.advance(TimeDelta::minutes(12)).await;
    let mut other = request_of(&pool).await;
    for number in 0..120 {
        other.job_name = format!("somebody-elses-{number}");
        create_job(&test.ports, &other).await.unwrap();
    }
    test.watch().await;
    assert!(
        watched(&pool)
            .await
            .iter()
            .all(|(_, status)| status.is_some()),
        "the newest hundred are not ours"
    );
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
}

#[sqlx::test(migrations = false)]
async fn our_own_calls_are_counted_as_the_region_counts_them(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    bakeoff_service::tasks::call_stats::tick(&test.app)
        .await
        .unwrap();
    let usage: AwsUsage = test.read("/v1/aws-usage?hours=24").await;
    for operation in [
        "CreateTrainingJob",
        "DescribeTrainingJob",
        "GetMetricData",
        "ListTrainingJobs",
    ] {
        let mut entries = usage.operations.iter();
        let ours = entries.find(|entry| entry.operation == operation).unwrap();
        let theirs = i64::try_from(test.calls(operation).await).unwrap();
        assert!(theirs > 0, "{operation}");
        assert_eq!(ours.calls, theirs, "{operation}");
    }
    assert!(usage.calls_per_job_hour.unwrap() > 1.0 && usage.metrics_usd > Usd::ZERO);
    assert_eq!(
        test.send(test.request(Method::GET, "/metrics", "bk_no"))
            .await
            .0,
        401
    );
    assert_eq!(
        test.send(test.request(Method::GET, "/metrics", &test.admin))
            .await
            .0,
        200
    );
}
