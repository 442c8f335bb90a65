//! States: the drawing against the enum, and the database's own refusals.

use std::collections::BTreeSet;

use bakeoff_domain::lifecycle::state::{AttemptState, TrialState};
use sqlx::PgPool;

use crate::support::{TestApp, spec};

/// Edges of the n-th drawing, without those from and to the outside.
fn drawn(nth: usize) -> BTreeSet<(String, String)> {
    let text = include_str!("../../../docs/reference/states.md");
    let drawing = text
        .split("```mermaid")
        .nth(nth)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let edges = drawing.lines().filter_map(|line| line.split_once("-->"));
    edges
        .map(|(from, to)| {
            (
                from.trim().to_owned(),
                to.split(':').next().unwrap().trim().to_owned(),
            )
        })
        .filter(|(from, _)| from != "[*]")
        .collect()
}

#[test]
fn the_drawings_are_the_enums() {
    let trials = TrialState::ALL.iter().flat_map(|from| {
        from.followers()
            .iter()
            .map(|to| (from.as_str(), to.as_str()))
    });
    let trials: BTreeSet<(String, String)> = trials
        .map(|(from, to)| (from.to_owned(), to.to_owned()))
        .collect();
    assert_eq!(drawn(1), trials);
    let attempts = AttemptState::ALL.iter().flat_map(|from| {
        from.followers()
            .iter()
            .map(|to| (from.as_str(), to.as_str()))
    });
    let attempts: BTreeSet<(String, String)> = attempts
        .map(|(from, to)| (from.to_owned(), to.to_owned()))
        .collect();
    assert_eq!(drawn(2), attempts);
}

async fn refused(pool: &PgPool, statement: &'static str) {
    let outcome = sqlx::query(statement).execute(pool).await;
    let error = outcome.expect_err(statement).to_string();
    assert!(
        error.contains("violates") || error.contains("it is over"),
        "{statement}: {error}"
    );
}

/// Each of these would be a lie, and the database says no.
#[sqlx::test(migrations = false)]
async fn the_database_refuses_illegal_states(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    for statement in [
        "UPDATE trials SET state = 'lost'",
        "UPDATE trials SET state = 'completed'",
        "UPDATE trials SET ended_at = created_at",
        "UPDATE trials SET lease_owner = 'me', lease_expires_at = NULL",
        "UPDATE trials SET priority = 1000",
        "UPDATE jobs SET state = 'unheard_of'",
        "UPDATE jobs SET state = 'completed'",
        "UPDATE jobs SET quarantine_until = planned_at",
        "UPDATE jobs SET reserved_training_usd = 0",
        "INSERT INTO jobs (id, kind, region, project_id, experiment_id, trial_id, number, job_name, state, price_id, usd_per_hour,
                           reserved_training_usd, reserved_metrics_usd, planned_at)
         SELECT gen_random_uuid(), kind, region, project_id, experiment_id, trial_id, 99, 'another', 'planned', price_id, 1, 1,
                1, now()
         FROM jobs LIMIT 1",
        "UPDATE jobs SET kind = 'batch'",
        "UPDATE jobs SET region = NULL",
        "UPDATE jobs SET account = 'ours'",
        "UPDATE jobs SET trial_id = NULL",
        "UPDATE jobs SET experiment_id = NULL",
        "UPDATE experiments SET state = 'completed'",
        "UPDATE experiments SET reserved_usd = -1",
        "UPDATE projects SET settled_usd = -0.01",
        "UPDATE ledger SET component = 'tips'",
        "UPDATE ledger SET resource = 'warm_pool' WHERE component = 'training'",
        "UPDATE ledger SET experiment_id = NULL",
        "UPDATE ledger SET settlement = -1",
    ] {
        refused(&pool, statement).await;
    }
    test.run_to_end(&id, 12).await;
    refused(&pool, "UPDATE trials SET state = 'queued', ended_at = NULL").await;
    refused(
        &pool,
        "UPDATE jobs SET state = 'running', settled_at = NULL",
    )
    .await;
}
