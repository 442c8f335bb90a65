//! Many trials and several replicas: leases, the queue, quotas, warm pools, pushes, strange
//! regions.

use std::time::Duration;

use bakeoff::api::ExperimentView;
use bakeoff::leader::Leader;
use bakeoff::tasks::{scheduler, watcher};
use bakeoff_domain::lifecycle::watch::Change;
use chrono::TimeDelta;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{SNS_TOPIC, TestApp, jobs, spec, spot_spec};
fn in_progress(record: &Value) -> usize {
    jobs(record)
        .iter()
        .filter(|job| job.get("ended_at") == Some(&Value::Null))
        .count()
}

/// One candidate, so many repeats.
fn repeats(count: u32) -> Value {
    let mut spec = spec();
    spec["candidates"].as_array_mut().unwrap().truncate(1);
    spec["candidates"][0]["repeats"] = json!(count);
    spec["budget_usd"] = json!(100_000);
    spec
}

async fn events(test: &TestApp, experiment: &str, kind: &str) -> Vec<String> {
    let page = test
        .get(&format!(
            "/v1/experiments/{experiment}/events?page_size=500"
        ))
        .await;
    let of_kind = page["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["kind"] == kind)
        .cloned();
    of_kind
        .map(|event| event["message"].as_str().unwrap().to_owned())
        .collect()
}

async fn expire_leases(pool: &PgPool) {
    sqlx::query("UPDATE leases SET expires_at = clock_timestamp() - interval '1 second'")
        .execute(pool)
        .await
        .unwrap();
}

#[sqlx::test(migrations = false)]
async fn a_lease_is_renewed_only_by_its_owner_in_its_term(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let (store, ttl) = (&test.app.store, Duration::from_mins(1));
    let first = store
        .acquire_lease("work", "a", ttl)
        .await
        .unwrap()
        .unwrap();
    assert!(
        store
            .acquire_lease("work", "b", ttl)
            .await
            .unwrap()
            .is_none(),
        "it is held"
    );
    assert!(store.renew_lease(&first, ttl).await.unwrap());
    expire_leases(&pool).await;
    assert!(
        !store.renew_lease(&first, ttl).await.unwrap(),
        "a lease that has run out is lost, not prolonged"
    );
    let second = store
        .acquire_lease("work", "b", ttl)
        .await
        .unwrap()
        .unwrap();
    assert!(second.term > first.term);
    assert!(
        !store.renew_lease(&first, ttl).await.unwrap(),
        "the old holder steps down"
    );
    // The same owner in a later term is another holder: a process that came back under its old
    // name.
    expire_leases(&pool).await;
    let third = store
        .acquire_lease("work", "a", ttl)
        .await
        .unwrap()
        .unwrap();
    assert!(
        !store.renew_lease(&first, ttl).await.unwrap()
            && store.renew_lease(&third, ttl).await.unwrap()
    );
}

/// Three replicas: one is frozen in the middle of a listing, one is killed, the third ends the
/// work. What the frozen one brings when it wakes belongs to an old term and changes nothing.
#[sqlx::test(migrations = false)]
async fn a_listing_of_an_old_term_has_no_effect(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    let leader = |owner: &str| Leader::new("watcher", owner.to_owned(), Duration::from_mins(1));
    let (frozen, killed) = (leader("frozen"), leader("killed"));
    expire_leases(&pool).await;
    let old = frozen.term(&test.app.store).await.unwrap().unwrap();
    let known = test.app.store.running_attempts(None).await.unwrap();
    expire_leases(&pool).await;
    killed.term(&test.app.store).await.unwrap().unwrap();
    expire_leases(&pool).await;
    let before = watched(&pool).await;
    // The frozen one wakes with what it has seen.
    let change = |known: &bakeoff_domain::lifecycle::watch::Known| Change {
        attempt: known.attempt,
        trial: known.trial,
        status: bakeoff_domain::sagemaker::observed::JobStatus::Stopped,
        secondary_status: "Stopped".into(),
        modified_at: Some(test.app.clock.now()),
    };
    let changes: Vec<Change> = known.iter().map(change).collect();
    let looks: Vec<_> = known.iter().map(|known| known.trial).collect();
    assert!(
        !test
            .app
            .store
            .notice(&old, &changes, &looks, test.app.clock.now())
            .await
            .unwrap()
    );
    assert_eq!(watched(&pool).await, before);
    // The third takes over, and the work is done.
    test.watch().await;
    assert_ne!(watched(&pool).await, before);
    assert!(
        !test
            .app
            .store
            .notice(&old, &changes, &looks, test.app.clock.now())
            .await
            .unwrap()
    );
    assert!(
        frozen.term(&test.app.store).await.unwrap().is_none(),
        "it steps down"
    );
    test.run_to_end(&id, 12).await;
}

async fn watched(pool: &PgPool) -> Vec<(String, Option<String>)> {
    let query = "SELECT job_name, secondary_status FROM attempts ORDER BY job_name";
    sqlx::query_as(query).fetch_all(pool).await.unwrap()
}

/// $200, 40 eager trials, three replicas: at no point of the ledger is more reserved and spent.
#[sqlx::test(migrations = false)]
async fn a_budget_holds_at_every_point_of_the_ledger(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut eager = repeats(20);
    let mut twin = eager["candidates"][0].clone();
    twin["name"] = json!("twin");
    eager["candidates"].as_array_mut().unwrap().push(twin);
    eager["budget_usd"] = json!(200);
    eager["max_runtime_seconds"] = json!(5400);
    eager["workload"]["trial_tokens"] = json!(20_000_000);
    let id = test.start(&eager).await;
    let replicas: Vec<_> = ["one", "two", "three"]
        .map(|owner| test.replica(owner))
        .into();
    for _ in 0..400 {
        futures::future::try_join_all(replicas.iter().map(scheduler::tick))
            .await
            .unwrap();
        test.tick().await;
        if !test.get(&format!("/v1/experiments/{id}")).await["ended_at"].is_null() {
            break;
        }
        test.advance(TimeDelta::minutes(10)).await;
    }
    let most: rust_decimal::Decimal = sqlx::query_scalar(
        "SELECT max(total) FROM (
             SELECT sum(CASE kind WHEN 'released' THEN -usd ELSE usd END) OVER (ORDER BY id) AS total FROM ledger) t",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert!(
        most <= rust_decimal::Decimal::from(200) && most > rust_decimal::Decimal::from(150),
        "{most}"
    );
    let ended = test.get(&format!("/v1/experiments/{id}")).await;
    assert!(
        ended["settled_usd"].as_f64().unwrap() <= 200.0 && !ended["ended_at"].is_null(),
        "{ended}"
    );
    let table = test.get(&format!("/v1/experiments/{id}/comparison")).await;
    let of = |state: &str| {
        table["rows"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|row| row["state"] == state)
            .count()
    };
    assert!(
        of("completed") > 3 && of("completed") + of("refused") == 40,
        "{} completed, {} refused",
        of("completed"),
        of("refused")
    );
}

#[sqlx::test(migrations = false)]
async fn trials_wait_under_the_accounts_quota_instead_of_being_refused(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota", "2"]).await;
    let id = test.start(&repeats(5)).await;
    test.tick().await;
    assert_eq!(in_progress(&test.record().await), 2);
    test.run_to_end(&id, 24).await;
    let record = test.record().await;
    assert_eq!(
        (jobs(&record).len(), &record["calls"]["CreateTrainingJob"]),
        (5, &json!(5)),
        "none was refused"
    );
}

#[sqlx::test(migrations = false)]
async fn what_the_whole_quota_cannot_hold_is_parked_until_a_person_resumes(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--quota-of", "ml.p4de.24xlarge=0"]).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    let trials = test.get(&format!("/v1/experiments/{id}/trials")).await;
    assert_eq!(
        (&trials["items"][0]["state"], &trials["items"][1]["state"]),
        (&json!("parked"), &json!("running"))
    );
    assert!(
        trials["items"][0]["reason"]
            .as_str()
            .unwrap()
            .contains("ask AWS for more"),
        "{trials}"
    );
    assert_eq!(events(&test, &id, "trial.parked").await.len(), 1);
    assert_eq!(
        test.read::<ExperimentView>(&format!("/v1/experiments/{id}"))
            .await
            .ended_at,
        None
    );
    let (status, _) = test
        .post(&format!("/v1/experiments/{id}/resume"), &json!({}))
        .await;
    assert_eq!(status, 200);
    let doubted = "SELECT coalesce(string_agg(instance_type || '/' || usage, ' '), '') FROM quotas WHERE is_doubted";
    let doubted = async || {
        sqlx::query_scalar::<_, String>(doubted)
            .fetch_one(&pool)
            .await
            .unwrap()
    };
    assert_eq!(
        doubted().await,
        "ml.p4de.24xlarge/on_demand",
        "and no other lane"
    );
    // The quota is still what it was: AWS says so itself this time, and the trial waits without
    // holding money.
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let trials = test.get(&format!("/v1/experiments/{id}/trials")).await;
    assert_eq!(
        trials["items"][0]["state"], "queued",
        "{}",
        trials["items"][0]
    );
    assert_eq!(trials["items"][0]["attempts"][0]["state"], "never_created");
    test.watch().await;
    assert_eq!(doubted().await, "", "it has been read again");
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    assert_eq!(test.run_to_end(&id, 3).await["state"], "cancelled");
}

#[sqlx::test(migrations = false)]
async fn a_projects_limit_and_a_pause_hold_trials_back(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let put = |body: Value| {
        test.send(
            test.request(Method::PUT, "/v1/projects/current/limits", &test.admin)
                .json(&body),
        )
    };
    assert_eq!(put(json!({"concurrent_trials_max": 0})).await.0, 422);
    assert_eq!(
        put(json!({"concurrent_trials_max": 2})).await.1["concurrent_trials_max"],
        2
    );
    let id = test.start(&repeats(4)).await;
    test.tick().await;
    assert_eq!(in_progress(&test.record().await), 2);
    put(json!({"concurrent_trials_max": null})).await;
    let (status, paused) = test
        .post(&format!("/v1/experiments/{id}/pause"), &json!({}))
        .await;
    assert_eq!(
        (status.as_u16(), &paused["paused_reason"]),
        (200, &json!("paused by hand"))
    );
    test.tick().await;
    assert_eq!(
        in_progress(&test.record().await),
        2,
        "what runs goes on, nothing new is started"
    );
    test.post(&format!("/v1/experiments/{id}/resume"), &json!({}))
        .await;
    test.tick().await;
    assert_eq!(in_progress(&test.record().await), 4);
    test.run_to_end(&id, 12).await;
}

/// The second trial takes over the first one's instances; the last pool is let go at once; and it
/// is all in the ledger.
#[sqlx::test(migrations = false)]
async fn a_warm_pool_is_reused_and_then_let_go(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota", "1"]).await;
    let mut warm = repeats(2);
    warm["keep_alive_seconds"] = json!(3600);
    let id = test.start(&warm).await;
    test.run_to_end(&id, 12).await;
    let record = test.record().await;
    let jobs = jobs(&record);
    let reused_by = |job: &Value| job.get("pool_reused_by").cloned();
    assert_eq!(
        [reused_by(&jobs[0]), reused_by(&jobs[1])],
        [Some(jobs[1]["name"].clone()), Some(Value::Null)],
        "{jobs:#?}"
    );
    assert!(
        jobs[1]["retained_seconds"].as_i64().unwrap() < 600,
        "it was let go at once: {}",
        jobs[1]
    );
    let page = test
        .get(&format!("/v1/experiments/{id}/ledger?page_size=500"))
        .await;
    for job in &jobs {
        let own = |entry: &&Value| {
            entry["attempt_id"] == job["attempt"]
                && entry["component"] == "warm_pool"
                && entry["kind"] == "settled"
        };
        let booked = page["items"].as_array().unwrap().iter().find(own).unwrap()["usd"]
            .as_f64()
            .unwrap();
        let billed = job["pool_micro_usd"].as_f64().unwrap() / 1e6;
        assert!(
            (booked - billed).abs() < 0.005,
            "billed {billed}, booked {booked}"
        );
    }
    let table = test.get(&format!("/v1/experiments/{id}/comparison")).await;
    assert!(table["rows"][0]["other_cost_usd"].as_f64().unwrap() > 0.0);
}

#[sqlx::test(migrations = false)]
async fn a_cancelled_experiments_pool_is_let_go(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota", "1"]).await;
    let mut warm = repeats(2);
    warm["keep_alive_seconds"] = json!(7200);
    let id = test.start(&warm).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(30)).await;
    test.tick().await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 3).await;
    let jobs = jobs(&test.record().await);
    assert!(
        jobs.len() == 1 && jobs[0]["idle_pool"] == false && jobs[0]["pool_ran_out"] == false,
        "{jobs:#?}"
    );
}

fn pushed(job: &Value, status: &str, secondary: &str) -> Value {
    json!({
        "version": "0", "id": "1", "detail-type": "SageMaker Training Job State Change", "source": "aws.sagemaker",
        "account": "111122223333", "region": "us-east-1", "time": "2026-11-20T00:00:00Z", "resources": [],
        "detail": {"TrainingJobName": job["name"], "TrainingJobStatus": status, "SecondaryStatus": secondary,
                   "Environment": {"BAKEOFF_ATTEMPT_ID": job["attempt"]}},
    })
}

/// A pushed event is a hint: it makes us look, and an event that lies changes nothing that counts.
#[sqlx::test(migrations = false)]
async fn a_pushed_event_makes_us_look_and_settles_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    let job = jobs(&test.record().await)[0].clone();
    let key = bakeoff::auth::secrets::events_key(&[7; 32]);
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
    let trials = test.get(&format!("/v1/experiments/{id}/trials")).await;
    assert_eq!(trials["items"][0]["state"], "running");
    // The truth, without any listing.
    test.advance(TimeDelta::hours(3)).await;
    for job in jobs(&test.record().await) {
        push(&key, pushed(&job, "Completed", "Completed")).await;
    }
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let trials = test.get(&format!("/v1/experiments/{id}/trials")).await;
    assert_eq!(trials["items"][0]["state"], "completed");
    assert_eq!(
        push(&key, json!({"source": "aws.ec2", "detail-type": "other"}))
            .await
            .0,
        202,
        "not ours, and no error"
    );
    test.run_to_end(&id, 3).await;
}

/// The same events through an SNS topic: only what SNS signed, and only of our topic.
#[sqlx::test(migrations = false)]
async fn events_come_through_sns_when_it_signed_them(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&repeats(1)).await;
    test.tick().await;
    test.advance(TimeDelta::hours(3)).await;
    let job = jobs(&test.record().await)[0].clone();
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

    let (status, problem) = push(
        &sign(
            "arn:aws:sns:us-east-1:999999999999:evil",
            "Notification",
            &ended,
        )
        .await,
    )
    .await;
    assert_eq!(status, 401, "{problem}");
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
            "not an address of SNS's",
        ),
    ] {
        let mut forged = good.clone();
        forged[field] = value;
        let (status, problem) = push(&forged).await;
        assert_eq!(status, 401, "{field}: {problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains(says),
            "{field}: {problem}"
        );
    }
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let state = async || {
        test.get(&format!("/v1/experiments/{id}/trials")).await["items"][0]["state"].clone()
    };
    assert_eq!(state().await, "running", "nothing of it made us look");

    assert_eq!(push(&good).await.0, 202);
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    assert_eq!(state().await, "completed");
    test.run_to_end(&id, 3).await;
}

#[sqlx::test(migrations = false)]
async fn what_sagemaker_drops_without_a_word_is_reported_once(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--silent-drop", "1"]).await;
    let mut warm = repeats(1);
    warm["keep_alive_seconds"] = json!(3600);
    let id = test.start(&warm).await;
    test.run_to_end(&id, 12).await;
    let dropped = events(&test, &id, "trial.silent_drop").await;
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert!(
        dropped[0].contains("KeepAlivePeriodInSeconds 0, and 3600 was asked for"),
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
    let trials = test.get(&format!("/v1/experiments/{id}/trials")).await;
    let spot = &trials["items"][1]["attempts"][0];
    assert!(
        !spot["checkpoint_at"].is_null() && spot["savings_percent"].as_f64().unwrap() > 10.0,
        "{spot}"
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
    let table = test.get(&format!("/v1/experiments/{id}/comparison")).await;
    let rows = table["rows"].as_array().unwrap();
    let is_done = |row: &&Value| row["state"] == "completed";
    assert_eq!(rows.iter().filter(is_done).count(), 2, "{table}");
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
    let name = jobs(&test.record().await)[0]["name"].clone();
    let delete = reqwest::Client::new()
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
    let table = test.get(&format!("/v1/experiments/{id}/comparison")).await;
    let row = &table["rows"][0];
    assert!(
        row["state"] == "failed"
            && row["cost_estimated"] == true
            && row["cost_usd"].as_f64().unwrap() > 50.0,
        "{row}"
    );
}

async fn failing(pool: PgPool, fault: &str) -> Value {
    let test = TestApp::with_faults(pool, &[fault, "1"]).await;
    let id = test.start(&repeats(1)).await;
    test.run_to_end(&id, 24).await;
    test.get(&format!("/v1/experiments/{id}/comparison")).await["rows"][0].clone()
}

#[sqlx::test(migrations = false)]
async fn failures_of_aws_are_tried_again_and_bounded(pool: PgPool) {
    let row = failing(pool, "--internal-error").await;
    assert_eq!(
        (&row["state"], &row["attempts"]),
        (&json!("failed"), &json!(4))
    );
    assert!(
        row["cost_usd"].as_f64().unwrap() > 10.0,
        "every attempt is billed: {row}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_failure_of_the_script_is_not_tried_again(pool: PgPool) {
    let row = failing(pool, "--algorithm-error").await;
    assert_eq!(
        (&row["state"], &row["attempts"]),
        (&json!("failed"), &json!(1))
    );
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
    assert_eq!(jobs(&test.record().await).len(), 200);
    test.advance(TimeDelta::minutes(12)).await;
    let mut memory = watcher::Memory::default();
    watcher::tick(&test.app, &mut memory).await.unwrap();
    assert_eq!(test.record().await["calls"]["ListTrainingJobs"], 2);
    let unseen: i64 =
        sqlx::query_scalar("SELECT count(*) FROM attempts WHERE secondary_status IS NULL")
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
        test.ports.jobs.create(&other).await.unwrap();
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

async fn request_of(pool: &PgPool) -> bakeoff_domain::sagemaker::request::TrainingJobRequest {
    let plan: Value = sqlx::query_scalar("SELECT plan FROM trials LIMIT 1")
        .fetch_one(pool)
        .await
        .unwrap();
    serde_json::from_value(plan["request"].clone()).unwrap()
}

#[sqlx::test(migrations = false)]
async fn our_own_calls_are_counted_as_the_region_counts_them(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    bakeoff::tasks::accountant::tick(&test.app).await.unwrap();
    let usage = test.get("/v1/aws-usage?hours=24").await;
    let calls = test.record().await["calls"].clone();
    for operation in [
        "CreateTrainingJob",
        "DescribeTrainingJob",
        "GetMetricData",
        "ListTrainingJobs",
    ] {
        let of = |entry: &&Value| entry["operation"] == operation;
        let ours = usage["operations"]
            .as_array()
            .unwrap()
            .iter()
            .find(of)
            .unwrap();
        assert_eq!(ours["calls"], calls[operation], "{operation}");
    }
    assert!(
        usage["calls_per_job_hour"].as_f64().unwrap() > 1.0
            && usage["metrics_usd"].as_f64().unwrap() > 0.0
    );
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
