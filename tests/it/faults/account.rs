//! What holds when the credentials suddenly belong to another account: a deploy with the wrong role.

use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::lifecycle::state::{AttemptState, TrialState};
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_planner::render::request;
use bakeoff_service::tasks::scheduler;
use chrono::TimeDelta;
use serde_json::json;
use sqlx::PgPool;

use crate::endpoints::lives;
use crate::faults::money::run;
use crate::jobs::fleet::repeats;
use crate::support::{TestApp, create_job, on_p5, request_of};

/// The account of the installation's jobs.
const OWN: &str = "111122223333";
const OTHER: &str = "999988887777";

async fn use_account(test: &TestApp, account: &str) {
    test.region_post("/_sim/account", &json!({ "account": account }))
        .await;
}

/// The credentials change after they were confirmed: the role is refused there, and nothing is
/// wrong with the request.
#[sqlx::test(migrations = false)]
async fn a_create_refused_in_another_account_fails_no_trial(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.app.place.aws.confirm_account().await.unwrap();
    let id = test.start(&repeats(1)).await;
    use_account(&test, OTHER).await;
    test.tick().await;
    let trial = test.trials(&id).await.remove(0);
    assert!(
        trial.ended_at.is_none() && trial.attempts.len() == 1,
        "{trial:?}"
    );
    assert_eq!(test.jobs().await.len(), 0, "it runs in another account");
    use_account(&test, OWN).await;
    test.run_to_end(&id, 12).await;
    let trial = test.trials(&id).await.remove(0);
    assert_eq!(
        (trial.state, trial.attempts.len()),
        (TrialState::Completed, 1),
        "{trial:?}"
    );
}

/// The model of an endpoint comes before the endpoint: it too is refused there, and leaves nothing behind.
#[sqlx::test(migrations = false)]
async fn an_endpoint_refused_in_another_account_waits(pool: PgPool) {
    let test = TestApp::new(pool).await;
    test.app.place.aws.confirm_account().await.unwrap();
    let id = lives::created(&test, &lives::body("one")).await;
    use_account(&test, OTHER).await;
    test.tick().await;
    assert_eq!(test.record().await["models_and_configs"], 0);
    use_account(&test, OWN).await;
    lives::until(&test, &id, EndpointState::InService).await;
}

/// A job of our name and marker in another account is not ours, whatever it says.
#[sqlx::test(migrations = false)]
async fn a_job_of_our_name_in_another_account_settles_nothing(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&on_p5(1)).await;
    test.tick().await;
    let trial = test.trials(&id).await.remove(0);
    let attempt = &trial.attempts[0];
    let mut theirs = request::for_attempt(
        &request_of(&pool).await,
        &attempt.job_name,
        &attempt.id.to_string(),
        &trial.id.to_string(),
    );
    theirs.role_arn = format!("arn:aws:iam::{OTHER}:role/train");
    use_account(&test, OTHER).await;
    create_job(&test.ports, &theirs).await.unwrap();
    test.advance(TimeDelta::minutes(3)).await;
    let (jobs, kind) = (&test.ports.jobs, JobKind::Training);
    jobs.stop(kind, &attempt.job_name).await.unwrap();
    test.advance(TimeDelta::minutes(5)).await;
    let theirs = jobs.describe(kind, &attempt.job_name).await.unwrap();
    assert!(
        theirs.status.is_over() && theirs.marker.is_some(),
        "{theirs:?}"
    );
    use_account(&test, OWN).await;
    // Confirmed, and changed a moment later.
    test.app.place.aws.confirm_account().await.unwrap();
    use_account(&test, OTHER).await;
    run(&pool, "UPDATE trials SET due_at = created_at").await;
    while scheduler::tick(&test.app).await.unwrap() > 0 {}
    let trial = test.trials(&id).await.remove(0);
    assert_eq!(trial.attempts[0].state, AttemptState::Running, "{trial:?}");
    assert_ne!(trial.attempts[0].job_status.as_deref(), Some("Stopped"));
}
