//! What a person does with a running experiment: stop one trial, change the budget, the priority, the deadline.

use bakeoff_api::events::EventData;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::endpoints::lives;
use crate::support::{TestApp, number, problem, spec};

async fn stop(test: &TestApp, trial: &str, body: &Value) -> StatusCode {
    let (status, _) = test.post(&format!("/v1/trials/{trial}/stop"), body).await;
    status
}

async fn change(test: &TestApp, id: &str, body: &Value) -> (StatusCode, Value) {
    test.patch(&format!("/v1/experiments/{id}"), body).await
}

async fn change_of(test: &TestApp, id: &str, revision: &str, body: &Value) -> StatusCode {
    let path = format!("/v1/experiments/{id}");
    let request = test
        .request(Method::PATCH, &path, &test.admin)
        .header("if-match", revision)
        .json(body);
    test.send(request).await.0
}

/// A trial that cannot start is given up, with the reason, and the others go on.
#[sqlx::test(migrations = false)]
async fn one_trial_is_stopped_and_the_others_go_on(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota-of", "ml.p4de.24xlarge=0"]).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    let trials = test.trials(&id).await;
    assert_eq!(
        [trials[0].state, trials[1].state],
        [TrialState::Parked, TrialState::Running]
    );
    let parked = trials[0].id.to_string();
    let reason = json!({"reason": "no quota this week"});
    assert_eq!(stop(&test, &parked, &reason).await, StatusCode::ACCEPTED);
    test.tick().await;
    let trials = test.trials(&id).await;
    assert_eq!(
        [trials[0].state, trials[1].state],
        [TrialState::Stopped, TrialState::Running]
    );
    assert!(
        trials[0]
            .reason
            .as_deref()
            .unwrap()
            .contains("no quota this week"),
        "{:?}",
        trials[0].reason
    );
    test.run_to_end(&id, 12).await;
    assert_eq!(test.experiment(&id).await.state, ExperimentState::Completed);
    // Over, another's, or none.
    assert_eq!(stop(&test, &parked, &json!({})).await, StatusCode::ACCEPTED);
    assert_eq!(test.trials(&id).await[0].reason, trials[0].reason);
    let none = "trl_00000000000000000000000000000000";
    assert_eq!(stop(&test, none, &json!({})).await, StatusCode::NOT_FOUND);
    // An endpoint's is the endpoint's.
    let endpoint = lives::created(&test, &lives::body("one")).await;
    let own = "SELECT 'trl_' || replace(trial_id::text, '-', '') FROM endpoints";
    let own: String = sqlx::query_scalar(own)
        .fetch_one(test.app.store.pool())
        .await
        .unwrap();
    assert_eq!(
        stop(&test, &own, &json!({})).await,
        StatusCode::CONFLICT,
        "{endpoint}"
    );
    let long = json!({"reason": "x".repeat(1001)});
    assert_eq!(
        stop(&test, &parked, &long).await,
        StatusCode::UNPROCESSABLE_ENTITY
    );
}

/// What a stopped job has run is billed, and no more.
#[sqlx::test(migrations = false)]
async fn the_job_of_a_stopped_trial_is_stopped_and_billed(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    let first = test.trials(&id).await[0].id.to_string();
    assert_eq!(stop(&test, &first, &json!({})).await, StatusCode::ACCEPTED);
    for _ in 0..3 {
        test.tick().await;
        test.advance(TimeDelta::minutes(2)).await;
    }
    let jobs = test.jobs().await;
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        let is_first = job.trial.as_deref() == Some(first.as_str());
        assert_eq!(job.status, if is_first { "Stopped" } else { "InProgress" });
    }
    test.run_to_end(&id, 12).await;
    let trials = test.trials(&id).await;
    assert_eq!(
        [trials[0].state, trials[1].state],
        [TrialState::Stopped, TrialState::Completed]
    );
    assert!(
        (test.billed_usd().await - test.experiment(&id).await.settled_usd.as_f64()).abs() < 0.5
    );
}

#[sqlx::test(migrations = false)]
async fn a_raised_budget_lets_what_waits_for_it_start(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let mut small = spec();
    small["budget_usd"] = json!(320);
    let id = test.start(&small).await;
    test.tick().await;
    assert_eq!(test.jobs().await.len(), 1, "both do not fit");
    let view = test.experiment(&id).await;
    assert_eq!(view.revision, 1);
    let committed = view.reserved_usd + view.settled_usd;
    // Not below what is spoken for, not by somebody who has not seen the last change, not nothing.
    let (status, answer) =
        change(&test, &id, &json!({"budget_usd": committed.as_f64() - 1.0})).await;
    assert_eq!(
        (status, problem(answer).errors[0].pointer.as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, "/budget_usd")
    );
    let raise = json!({"budget_usd": 1000, "priority": 5, "deadline_hours": 24});
    assert_eq!(
        change_of(&test, &id, "\"2\"", &raise).await,
        StatusCode::PRECONDITION_FAILED
    );
    assert_eq!(
        change_of(&test, &id, "x", &raise).await,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(test.experiment(&id).await.revision, 1);
    assert_eq!(change_of(&test, &id, "\"1\"", &raise).await, StatusCode::OK);
    test.tick().await;
    assert_eq!(test.jobs().await.len(), 2);
    let view = test.experiment(&id).await;
    assert_eq!((view.budget_usd.as_f64(), view.revision), (1000.0, 2));
    let changed = "SELECT count(*) FROM trials WHERE priority = 5 AND give_up_at = created_at + interval '24 hours'";
    assert_eq!(number(&pool, changed).await, 2);
    let events = test.events(&id).await;
    let told = events
        .iter()
        .find(|one| matches!(one.data, Some(EventData::ExperimentChanged(_))));
    assert_eq!(
        told.unwrap().message,
        "changed by hand: budget $1000.00, priority 5, waits 24 h for capacity"
    );
    for wrong in [
        json!({}),
        json!({"budget_usd": 0}),
        json!({"priority": 101}),
        json!({"deadline_hours": 9000}),
    ] {
        assert_eq!(
            change(&test, &id, &wrong).await.0,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{wrong}"
        );
    }
    // Lowered to what is spoken for: nothing new starts, and what runs goes on.
    let view = test.experiment(&id).await;
    let least = json!({"budget_usd": (view.reserved_usd + view.settled_usd).as_f64()});
    assert_eq!(change(&test, &id, &least).await.0, StatusCode::OK);
    test.run_to_end(&id, 12).await;
    let (status, answer) = change(&test, &id, &raise).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "not_running")
    );
}

/// It may have waited for a quota beyond the experiment's deadline: whoever resumes it gives it as long again.
#[sqlx::test(migrations = false)]
async fn a_trial_that_is_resumed_after_its_deadline_has_time_again(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--quota-of", "ml.p4de.24xlarge=0"]).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    test.advance(TimeDelta::hours(100)).await;
    let (status, _) = test
        .post(&format!("/v1/experiments/{id}/resume"), &json!({}))
        .await;
    assert_eq!(status, StatusCode::OK);
    let in_time = "SELECT count(*) FROM trials WHERE state = 'queued' AND give_up_at > $1";
    let in_time: i64 = sqlx::query_scalar(in_time)
        .bind(test.app.clock.now() + TimeDelta::hours(71))
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(in_time, 1);
}
