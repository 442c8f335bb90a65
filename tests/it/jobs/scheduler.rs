//! The scheduler against the region: exactly one job for each attempt, through lost replies,
//! cancels and lost leases.

use bakeoff_api::comparison::ComparisonRow;
use bakeoff_api::events::EventView;
use bakeoff_domain::event::EventSeverity;
use bakeoff_domain::lifecycle::state::{AttemptState, ExperimentState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_service::tasks::scheduler;
use chrono::TimeDelta;
use serde_json::json;
use sqlx::PgPool;

use crate::support::{TestApp, create_job, holder, number, on_p5, spec, spot_spec};

async fn state(test: &TestApp, experiment: &str) -> ExperimentState {
    test.experiment(experiment).await.state
}

#[sqlx::test(migrations = false)]
async fn two_trials_run_to_a_recommendation(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    assert_eq!(state(&test, &id).await, ExperimentState::Completed);
    let verdict = test.recommendation(&id).await.recommendation;
    assert_eq!(verdict.conclusion, Conclusion::Clear, "{verdict:?}");
    assert_eq!(verdict.ranked[0].candidate, "p5");
    assert!(!verdict.provisional);
    for row in test.comparison(&id).await.rows {
        assert!(row.tokens_per_second.unwrap() > 1000.0, "{row:?}");
        // 94 % of one GPU, not 752 % of eight.
        assert!(
            (85.0..=100.0).contains(&row.gpu_utilization_percent.unwrap()),
            "{row:?}"
        );
    }
}

#[sqlx::test(migrations = false)]
async fn a_create_whose_reply_is_lost_is_adopted_and_not_repeated(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--lost-reply", "1"]).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    assert_eq!(
        test.jobs().await.len(),
        2,
        "both were created although the replies were lost"
    );
    assert_eq!(test.trials(&id).await[0].state, TrialState::Submitting);
    test.advance(TimeDelta::minutes(2)).await;
    test.tick().await;
    let trials = test.trials(&id).await;
    assert_eq!(trials[0].state, TrialState::Running);
    assert_eq!(trials[0].attempts.len(), 1);
    test.run_to_end(&id, 12).await;
    assert_eq!(test.jobs().await.len(), 2);
}

/// The reply is lost, and then the permission is gone: "no" to the second create says nothing of
/// the first.
#[sqlx::test(migrations = false)]
async fn a_definite_no_after_a_lost_reply_does_not_abandon_the_job(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--lost-reply", "1", "--deny-again", "1"]).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    assert_eq!(state(&test, &id).await, ExperimentState::Completed);
    let rows = test.comparison(&id).await.rows;
    let is_done = |row: &&ComparisonRow| row.state == TrialState::Completed && row.attempts == 1;
    assert_eq!(rows.iter().filter(is_done).count(), 2, "{rows:?}");
    assert_eq!(test.jobs().await.len(), 2);
}

/// A price that falls between two attempts: the second is reserved and settled at the new one.
#[sqlx::test(migrations = false)]
async fn a_later_attempt_is_priced_when_it_is_planned(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut tight = spec();
    tight["budget_usd"] = json!(330);
    let id = test.start(&tight).await;
    test.tick().await;
    let body = json!({"region": "us-east-1", "usd_per_hour": 20, "source": "contract"});
    for kind in ["ml.p4de.24xlarge", "ml.p5.48xlarge"] {
        test.send(
            test.request(
                reqwest::Method::PUT,
                &format!("/v1/prices/{kind}"),
                &test.admin,
            )
            .json(&body),
        )
        .await;
    }
    test.run_to_end(&id, 24).await;
    let trials = test.trials(&id).await;
    let attempts = trials.iter().flat_map(|trial| &trial.attempts);
    let mut rates: Vec<f64> = attempts
        .map(|attempt| attempt.usd_per_hour.as_f64())
        .collect();
    rates.sort_by(f64::total_cmp);
    assert!(
        (rates[0] - 20.0).abs() < 1e-9 && rates[1] > 30.0,
        "{rates:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_throttled_region_only_takes_longer(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--throttle", "0.4"]).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 24).await;
    assert_eq!(state(&test, &id).await, ExperimentState::Completed);
    assert_eq!(test.jobs().await.len(), 2);
}

#[sqlx::test(migrations = false)]
async fn no_capacity_is_tried_again_until_the_deadline_and_costs_nothing(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--no-capacity", "1"]).await;
    let mut impatient = spec();
    impatient["deadline_hours"] = json!(6);
    let id = test.start(&impatient).await;
    test.run_to_end(&id, 8).await;
    for row in test.comparison(&id).await.rows {
        assert_eq!(
            (row.state, row.cost_usd),
            (TrialState::Failed, Some(Usd::ZERO))
        );
        assert!(row.attempts > 4, "{row:?}");
    }
    let verdict = test.recommendation(&id).await.recommendation;
    assert_eq!(verdict.conclusion, Conclusion::NotEnoughEvidence);
    let reason = &verdict.not_ranked[0].reason;
    assert!(
        reason.contains("CapacityError") && reason.contains("deadline_hours"),
        "{verdict:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_cancel_stops_what_runs_and_settles_it(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    let (status, _) = test
        .post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    assert_eq!(status, 202);
    test.run_to_end(&id, 2).await;
    let ended = test.experiment(&id).await;
    assert_eq!(ended.state, ExperimentState::Cancelled);
    for job in test.jobs().await {
        assert_eq!(job.status, "Stopped");
        assert!(job.billable_seconds < 1800, "{job:?}");
    }
    assert!(ended.settled_usd > Usd::ZERO);
}

#[sqlx::test(migrations = false)]
async fn a_stop_that_aws_refuses_raises_one_alarm_and_is_asked_for_until_it_is_accepted(
    pool: PgPool,
) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    let deny = |denied: &[&str]| json!({"deny": denied});
    let stop = ["sagemaker:StopTrainingJob"];
    test.region_post("/_sim/setup", &deny(&stop)).await;
    let path = format!("/v1/experiments/{id}/cancel");
    test.post(&path, &json!({})).await;
    for _ in 0..4 {
        test.tick().await;
        test.advance(TimeDelta::minutes(3)).await;
    }
    let events = test.events(&id).await;
    let alarms: Vec<&EventView> = events
        .iter()
        .filter(|event| event.kind == "trial.stop_refused")
        .collect();
    assert_eq!(
        alarms.len(),
        test.jobs().await.len(),
        "one for each job: {alarms:#?}"
    );
    for alarm in alarms {
        let told = &alarm.message;
        assert!(
            told.contains("goes on being billed") && told.contains(stop[0]),
            "{told}"
        );
        assert_eq!(alarm.severity, EventSeverity::Alarm);
    }
    test.region_post("/_sim/setup", &deny(&[])).await;
    test.run_to_end(&id, 2).await;
    assert!(test.jobs().await.iter().all(|job| job.status == "Stopped"));
}

#[sqlx::test(migrations = false)]
async fn a_cancel_before_the_first_tick_creates_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 1).await;
    assert_eq!(state(&test, &id).await, ExperimentState::Cancelled);
    assert_eq!(test.jobs().await.len(), 0);
}

/// A create that may have been sent, then a cancel: the reservation is kept until a look after the
/// quarantine finds nothing.
#[sqlx::test(migrations = false)]
async fn a_cancelled_attempt_that_may_have_been_sent_is_quarantined(pool: PgPool) {
    // Everything is throttled: the attempt is planned and no job comes of it.
    let test = TestApp::with_faults(pool, &["--throttle", "1"]).await;
    let id = test.start(&spec()).await;
    scheduler::tick(&test.app).await.unwrap();
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    scheduler::tick(&test.app).await.unwrap();
    let trial = &test.trials(&id).await[0];
    assert_eq!(
        trial.attempts[0].state,
        AttemptState::Quarantined,
        "{trial:?}"
    );
    assert!(
        test.experiment(&id).await.reserved_usd > Usd::ZERO,
        "the reservation is kept"
    );
    // It says what it waits for, also after looks without an answer and looks that found nothing.
    for round in 0..4 {
        if round == 2 {
            test.region_post("/_sim/faults", &json!({})).await;
        }
        test.advance(TimeDelta::minutes(5)).await;
        scheduler::tick(&test.app).await.unwrap();
        let trial = &test.trials(&id).await[0];
        assert_eq!(
            trial.reason.as_deref(),
            Some("cancelled; waiting to confirm that no job exists"),
            "{trial:?}"
        );
    }
}

/// A create that arrives after looks have found nothing: they say nothing against its job, which
/// one more empty look must not end.
#[sqlx::test(migrations = false)]
async fn looks_before_a_job_arrived_do_not_count_against_it(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    test.tick().await;
    for statement in [
        "UPDATE jobs SET state = 'quarantined', quarantine_until = planned_at, absent = 5",
        "UPDATE trials SET state = 'submitting', due_at = created_at",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    scheduler::tick(&test.app).await.unwrap();
    let adopted: (String, i32) = sqlx::query_as("SELECT state, absent FROM jobs")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(adopted, ("running".to_owned(), 0));
}

#[sqlx::test(migrations = false)]
async fn a_writer_that_lost_its_lease_changes_nothing(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let store = &test.app.store;
    let now = test.app.clock.now();
    let stale = test.admit("first", std::time::Duration::ZERO).await;
    let fresh = store
        .claim_due_trials(
            holder("second", std::time::Duration::from_secs(30)),
            now,
            10,
        )
        .await
        .unwrap();
    assert_eq!(
        (stale.len(), fresh.len()),
        (2, 2),
        "an expired lease passes on"
    );
    for trial in &stale {
        let outcome = store.refuse(trial, "late", now).await.unwrap();
        assert_eq!(outcome, bakeoff_store::jobs::attempts::Applied::Stale);
    }
    assert_eq!(test.trials(&id).await[0].state, TrialState::Submitting);
    // However long it is due: a lease that is alive is nobody else's.
    let much_later = now + TimeDelta::days(3);
    assert!(
        store
            .claim_due_trials(holder("third", std::time::Duration::ZERO), much_later, 10)
            .await
            .unwrap()
            .is_empty()
    );
}

/// Two schedulers at once, on one database and one region.
#[sqlx::test(migrations = false)]
async fn two_replicas_share_the_work_without_a_duplicate(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut many = spec();
    many["budget_usd"] = json!(100_000);
    many["candidates"][0]["repeats"] = json!(8);
    many["candidates"][1]["repeats"] = json!(8);
    let id = test.start(&many).await;
    for _ in 0..4 {
        let (left, right) = tokio::join!(scheduler::tick(&test.app), scheduler::tick(&test.app));
        left.and(right).unwrap();
    }
    assert_eq!(test.jobs().await.len(), 16);
    test.run_to_end(&id, 24).await;
    assert_eq!(test.jobs().await.len(), 16);
}

#[sqlx::test(migrations = false)]
async fn a_job_made_by_hand_with_our_name_is_left_alone(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    let now = test.app.clock.now();
    // Plan only: claim, then commit an attempt whose name somebody takes before it is sent.
    let claimed = test.admit("x", std::time::Duration::ZERO).await;
    let trial = claimed
        .iter()
        .find(|trial| trial.candidate == "p4de")
        .unwrap();
    let attempt = bakeoff_domain::ids::JobId(bakeoff_process::ids::fresh());
    let name = bakeoff_planner::render::attempt::job_name(
        bakeoff_domain::sagemaker::kind::JobKind::Training,
        &test.app.settings.installation,
        attempt.0,
    );
    let plan = trial.plan.as_ref().unwrap();
    let price = plan.price.clone().unwrap();
    test.app
        .store
        .plan_attempt(trial, attempt, &name, plan, &price, now)
        .await
        .unwrap();
    let mut foreign = plan.training().unwrap().clone();
    foreign.job_name.clone_from(&name);
    create_job(&test.ports, &foreign).await.unwrap();
    // By then it trains, and is billed to somebody else.
    test.advance(TimeDelta::minutes(20)).await;
    test.run_to_end_with_foreign_job(&id, 12, &name).await;
    assert_eq!(state(&test, &id).await, ExperimentState::Completed);
    let attempts = &test.trials(&id).await[0].attempts;
    assert_eq!(
        [attempts[0].state, attempts[1].state],
        [AttemptState::NeverCreated, AttemptState::Completed]
    );
    assert_eq!(
        attempts[0].started_at, None,
        "nothing of the other's job is taken for ours: {:?}",
        attempts[0]
    );
}

/// As after a restore from a backup: the region runs a job that the database believes to be over.
/// It is stopped, reported, and billed to its experiment.
#[sqlx::test(migrations = false)]
async fn an_orphaned_job_is_stopped_billed_and_reported(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.watch().await;
    let orphans = "SELECT count(*) FROM orphaned_jobs";
    assert_eq!(
        number(&pool, orphans).await,
        0,
        "living jobs are left alone"
    );
    sqlx::query(
        "UPDATE jobs SET state = 'never_created', settled_at = planned_at, metrics_due_at = NULL WHERE number = 1",
    )
    .execute(&pool)
    .await
    .unwrap();
    test.watch().await;
    assert_eq!(number(&pool, orphans).await, 2);
    test.advance(TimeDelta::minutes(5)).await;
    test.watch().await;
    let jobs = test.jobs().await;
    assert!(jobs.iter().all(|job| job.status == "Stopped"));
    let events = test.events(&id).await;
    let alarms = events
        .iter()
        .filter(|event| event.severity == EventSeverity::Alarm);
    assert_eq!(alarms.count(), 2);
    let billed: i64 = jobs.iter().map(|job| job.micro_usd).sum();
    let booked = "SELECT (sum(usd) * 1000000)::bigint FROM ledger WHERE component = 'orphaned_job' AND kind = 'settled'";
    let booked = number(&pool, booked).await;
    assert!(
        billed > 0 && (booked - billed).abs() < 5000,
        "booked {booked}, billed {billed} (millionths of a dollar)"
    );
}

/// An orphaned job that somebody deletes: nobody will tell what it cost, and it was not nothing.
#[sqlx::test(migrations = false)]
async fn an_orphaned_job_that_vanished_is_billed_for_the_time_it_was_seen(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut alone = spec();
    alone["candidates"].as_array_mut().unwrap().truncate(1);
    test.start(&alone).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    sqlx::query(
        "UPDATE jobs SET state = 'never_created', settled_at = planned_at, metrics_due_at = NULL",
    )
    .execute(&pool)
    .await
    .unwrap();
    test.watch().await;
    let name = test.jobs().await.remove(0).name;
    test.advance(TimeDelta::minutes(5)).await;
    let delete = test
        .client
        .post(&test.region.url)
        .header("x-amz-target", "SageMaker.DeleteTrainingJob");
    let deleted = delete
        .json(&json!({"TrainingJobName": name}))
        .send()
        .await
        .unwrap();
    assert!(
        deleted.status().is_success(),
        "{}",
        deleted.text().await.unwrap()
    );
    let settled = "SELECT count(*) FROM orphaned_jobs WHERE settled_at IS NOT NULL";
    test.watch().await;
    assert_eq!(
        number(&pool, settled).await,
        0,
        "one denial is not believed"
    );
    test.advance(TimeDelta::minutes(61)).await;
    test.watch().await;
    assert_eq!(number(&pool, settled).await, 1);
    let booked = "SELECT quantity FROM ledger WHERE component = 'orphaned_job' AND kind = 'settled' AND estimated";
    assert!(
        (120..=600).contains(&number(&pool, booked).await),
        "{}",
        number(&pool, booked).await
    );
}

/// An orphaned job that was thought to be over, and settled, runs after all: it is stopped, and only what
/// came on top is billed.
#[sqlx::test(migrations = false)]
async fn an_orphaned_job_that_runs_after_all_is_billed_for_the_rest(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut alone = spec();
    alone["candidates"].as_array_mut().unwrap().truncate(1);
    test.start(&alone).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    for statement in [
        "UPDATE jobs SET state = 'never_created', settled_at = planned_at, metrics_due_at = NULL",
        "INSERT INTO orphaned_jobs (job_name, region, job_id, found_at, last_seen_at, settled_at, billed_seconds, settlements)
         SELECT job_name, region, id, planned_at, planned_at, planned_at, 60, 1 FROM jobs",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    test.watch().await;
    test.advance(TimeDelta::minutes(5)).await;
    test.watch().await;
    let job = test.jobs().await.remove(0);
    assert_eq!(job.status, "Stopped");
    let booked = "SELECT quantity FROM ledger WHERE component = 'orphaned_job' AND kind = 'settled' AND settlement = 1";
    assert_eq!(
        u64::try_from(number(&pool, booked).await + 60).unwrap(),
        job.billable_seconds
    );
}

#[sqlx::test(migrations = false)]
async fn spot_survives_interruptions_and_is_billed_less_than_it_trained(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spot_spec()).await;
    test.run_to_end(&id, 60).await;
    let spot = &test.comparison(&id).await.rows[1];
    assert_eq!(
        (spot.purchase_option, spot.state),
        (Some(PurchaseOption::Spot), TrialState::Completed)
    );
    let (trained, billed) = (spot.training_seconds, spot.billable_seconds);
    assert!(
        10 * billed < 6 * trained && 10 * billed > 2 * trained,
        "{billed} of {trained}"
    );
}

/// A replica of SageMaker's lags: it describes what was before the listing.
#[sqlx::test(migrations = false)]
async fn a_look_that_is_older_than_what_is_known_takes_nothing_back(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    let told = "UPDATE jobs SET secondary_status = 'Uploading', modified_at = modified_at + interval '1 minute'
                WHERE state = 'running'";
    sqlx::query(told).execute(&pool).await.unwrap();
    let statuses = async || {
        let events = test.events(&id).await;
        let of_statuses = events.iter().filter(|event| event.kind == "trial.status");
        of_statuses.count()
    };
    let before = statuses().await;
    sqlx::query("UPDATE trials SET due_at = created_at")
        .execute(&pool)
        .await
        .unwrap();
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let uploading = number(
        &pool,
        "SELECT count(*) FROM jobs WHERE secondary_status = 'Uploading'",
    )
    .await;
    assert_eq!(
        (uploading, statuses().await),
        (2, before),
        "jobs that upload, and statuses that people were told"
    );
    test.run_to_end(&id, 12).await;
    assert_eq!(state(&test, &id).await, ExperimentState::Completed);
}
