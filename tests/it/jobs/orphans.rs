//! Alarms of orphaned jobs: one for a job that ran after its attempt had ended, and none for any other.

use std::sync::Arc;

use bakeoff_api::events::{EventData, EventView};
use bakeoff_api::page::Page;
use bakeoff_domain::event::EventSeverity;
use bakeoff_service::replica::fence::Fence;
use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, number, spec, spot_spec};

/// What sweeps make of settled jobs, while the region shows them with a fault.
async fn sweeps_show(pool: PgPool, fault: Value) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let stops_before = test.calls("StopTrainingJob").await;
    test.region_post("/_sim/faults", &fault).await;
    for _ in 0..4 {
        // Each of these is a new term, which begins with a sweep.
        test.watch().await;
        test.advance(TimeDelta::minutes(5)).await;
    }
    let record = test.record().await;
    let happened = record["faults"].as_object().expect("faults");
    assert!(
        happened.values().any(|count| count.as_u64() > Some(0)),
        "the region was kind: {happened:?}"
    );
    assert_eq!(number(&pool, "SELECT count(*) FROM orphaned_jobs").await, 0);
    let events = test.events(&id).await;
    let alarms = events
        .iter()
        .filter(|event| event.severity == EventSeverity::Alarm);
    assert_eq!(alarms.count(), 0, "an alarm of jobs that are settled");
    assert_eq!(
        test.calls("StopTrainingJob").await,
        stops_before,
        "a settled job was stopped"
    );
}

#[sqlx::test(migrations = false)]
async fn a_settled_job_that_is_being_deleted_is_no_orphan(pool: PgPool) {
    sweeps_show(pool, json!({"deleting": 1.0})).await;
}

#[sqlx::test(migrations = false)]
async fn a_settled_job_with_an_unknown_status_is_no_orphan(pool: PgPool) {
    sweeps_show(pool, json!({"odd_status": 1.0})).await;
}

/// A region that tells what it bills only hours later.
async fn with_late_bills(pool: PgPool) -> TestApp {
    let late = ["--billing-late", "1", "--billing-seconds", "40000"];
    TestApp::with_faults(pool, &late).await
}

/// SageMaker never told the bill of a job that it had called over; when it does, only the bill is corrected.
#[sqlx::test(migrations = false)]
async fn a_bill_that_comes_late_corrects_the_estimate_without_an_alarm(pool: PgPool) {
    let test = with_late_bills(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let estimated = "SELECT count(*) FROM jobs WHERE billing_estimated";
    assert!(number(&pool, estimated).await > 0, "no bill was late");
    test.advance(TimeDelta::hours(13)).await;
    for _ in 0..3 {
        test.watch().await;
        test.advance(TimeDelta::minutes(15)).await;
    }
    let events = test.events(&id).await;
    let alarms = events
        .iter()
        .filter(|event| event.severity == EventSeverity::Alarm);
    assert_eq!(alarms.count(), 0, "nothing ran after its attempt");
    assert_eq!(test.calls("StopTrainingJob").await, 0);
}

/// The same of spot, which bills less than it ran: what was estimated too high is given back.
#[sqlx::test(migrations = false)]
async fn a_late_bill_that_is_lower_gives_back_what_was_estimated(pool: PgPool) {
    let test = with_late_bills(pool.clone()).await;
    let id = test.start(&spot_spec()).await;
    test.run_to_end(&id, 60).await;
    let estimated = "SELECT count(*) FROM jobs WHERE billing_estimated";
    assert!(number(&pool, estimated).await > 0, "no bill was late");
    let booked = async || test.experiment(&id).await.settled_usd.as_f64();
    let before = booked().await;
    for _ in 0..52 {
        test.watch().await;
        test.advance(TimeDelta::minutes(15)).await;
    }
    let (after, billed) = (booked().await, test.billed_usd().await);
    assert!(
        before > billed + 1.0,
        "estimated ${before}, billed ${billed}"
    );
    assert!(
        (after - billed).abs() < 0.5,
        "booked ${after}, billed ${billed}"
    );
    assert_eq!(number(&pool, estimated).await, 0);
    let corrected = test.events(&id).await;
    let corrected = corrected
        .iter()
        .filter(|event| event.kind == "trial.billing_corrected");
    assert!(corrected.count() > 0);
}

/// What nobody can stop is billed without end: an alarm says so, once.
#[sqlx::test(migrations = false)]
async fn an_orphaned_job_whose_stop_is_denied_raises_one_alarm(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut alone = spec();
    alone["candidates"].as_array_mut().unwrap().truncate(1);
    let id = test.start(&alone).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    sqlx::query(
        "UPDATE jobs SET state = 'never_created', settled_at = planned_at, metrics_due_at = NULL",
    )
    .execute(&pool)
    .await
    .unwrap();
    let deny = json!({"deny": ["sagemaker:StopTrainingJob"]});
    test.region_post("/_sim/setup", &deny).await;
    for _ in 0..4 {
        test.watch().await;
        test.advance(TimeDelta::minutes(2)).await;
    }
    let refused = test.events(&id).await;
    let refused: Vec<&EventView> = refused
        .iter()
        .filter(|event| event.kind == "trial.stop_refused")
        .collect();
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert_eq!(refused[0].severity, EventSeverity::Alarm);
}

/// A job that is being deleted before its end was read has ended, and how it did is in its secondary status.
#[sqlx::test(migrations = false)]
async fn a_job_that_is_being_deleted_ends_its_trial_as_it_ended(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--deleting", "1"]).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 12).await;
    let rows = test.comparison(&id).await.rows;
    let states: Vec<_> = rows.iter().map(|row| row.state.as_str()).collect();
    assert_eq!(states, ["completed", "completed"]);
    let (billed, booked) = (
        test.billed_usd().await,
        rows[0].cost_usd.zip(rows[1].cost_usd),
    );
    let booked = booked
        .map(|(one, other)| (one + other).as_f64())
        .expect("costs");
    assert!(
        (billed - booked).abs() < 0.5,
        "billed {billed}, booked {booked}"
    );
}

/// A backup from before the experiment, restored where its jobs run.
async fn forget_everything(pool: &PgPool) {
    let mut connection = pool.acquire().await.expect("a connection");
    for statement in [
        "SET session_replication_role = replica",
        "DELETE FROM events",
        "DELETE FROM ledger",
        "DELETE FROM jobs",
        "DELETE FROM trials",
        "DELETE FROM experiments",
        "SET session_replication_role = DEFAULT",
    ] {
        sqlx::query(statement)
            .execute(&mut *connection)
            .await
            .expect(statement);
    }
}

async fn alarms(test: &TestApp) -> Vec<EventView> {
    let page: Page<EventView> = test.read("/v1/events?alarms_only=true").await;
    page.items
}

/// Without a fence, jobs that no row knows are left alone, or stopped if the operator says so; in both cases every
/// project's feed says it, once a job.
#[sqlx::test(migrations = false)]
async fn a_job_whose_trial_is_not_in_the_backup_raises_an_alarm(pool: PgPool) {
    let mut test = TestApp::new(pool.clone()).await;
    test.start(&spec()).await;
    for _ in 0..3 {
        test.tick().await;
        test.advance(TimeDelta::minutes(4)).await;
    }
    let running = test.in_progress().await;
    assert!(running > 0, "nothing runs");
    let other = test.other_project().await;
    forget_everything(&pool).await;
    for _ in 0..4 {
        test.watch().await;
        test.advance(TimeDelta::seconds(30)).await;
    }
    assert_eq!(test.in_progress().await, running, "they are left alone");
    let told = alarms(&test).await;
    assert_eq!(told.len(), running, "{told:#?}");
    for alarm in &told {
        let left_alone = matches!(
            &alarm.data,
            Some(EventData::TrialUnknownJob {
                is_stopped: false,
                ..
            })
        );
        assert!(left_alone && alarm.experiment_id.is_none(), "{alarm:#?}");
    }
    let of_other =
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM events WHERE project_id = $1")
            .bind(other.0)
            .fetch_one(&pool)
            .await
            .expect("a count");
    assert_eq!(usize::try_from(of_other), Ok(running));
    // As with `--stop-unknown-jobs`.
    test.app.fence = Arc::new(Fence::new(None, true));
    for _ in 0..6 {
        test.watch().await;
        test.advance(TimeDelta::seconds(30)).await;
    }
    assert_eq!(test.in_progress().await, 0, "they are stopped");
    let stopped = alarms(&test).await.into_iter().filter(|alarm| {
        matches!(
            alarm.data,
            Some(EventData::TrialUnknownJob {
                is_stopped: true,
                ..
            })
        )
    });
    assert_eq!(stopped.count(), running);
}
