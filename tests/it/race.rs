//! The race: what does not start, what is stopped early, what that costs, and what a parked trial
//! does not hold up.

use bakeoff::api::calibration::Calibration;
use bakeoff::api::comparison::ComparisonRow;
use bakeoff::api::decisions::DecisionView;

use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::money::Usd;
use bakeoff_planner::preview::CandidatePreview;
use chrono::TimeDelta;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::fleet::events;
use crate::support::{TestApp, spec};

/// Trials of about three hours, by a policy.
fn raced(policy: &str) -> Value {
    let mut spec = spec();
    spec["stopping_policy"] = json!(policy);
    spec["workload"]["trial_tokens"] = json!(300_000_000);
    spec["max_runtime_seconds"] = json!(36_000);
    spec["budget_usd"] = json!(5000);
    spec
}

async fn answer(test: &TestApp, id: &str) -> DecisionView {
    test.read(&format!("/v1/experiments/{id}/recommendation"))
        .await
}

async fn row(test: &TestApp, id: &str, candidate: &str) -> ComparisonRow {
    let rows = test.comparison(id).await.rows;
    rows.into_iter()
        .find(|row| row.candidate == candidate)
        .unwrap()
}

/// P5 is twice as fast as P4de, and costs as much again by the hour as half of it: by time, P4de
/// cannot win.
#[sqlx::test(migrations = false)]
async fn a_loser_is_stopped_and_the_answer_stays_the_same(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let by_time = |policy| {
        let mut spec = raced(policy);
        spec["objective"] = json!({"minimize": "time"});
        spec
    };
    let full = test.start(&by_time("full")).await;
    test.run_to_end(&full, 24).await;
    let id = test.start(&by_time("race")).await;
    test.run_to_end(&id, 24).await;

    let lost = row(&test, &id, "p4de").await;
    assert_eq!(lost.state, TrialState::Stopped);
    let reason = lost.reason.unwrap();
    assert!(
        reason.starts_with("its full run is the best with P < 0.005"),
        "{reason}"
    );
    assert_eq!(events(&test, &id, "trial.stopping").await.len(), 1);
    assert!(events(&test, &id, "trial.stopped").await[0].ends_with(&reason));
    let whole = row(&test, &full, "p4de").await;
    assert!(
        lost.training_seconds * 2 < whole.training_seconds,
        "{} of {} s",
        lost.training_seconds,
        whole.training_seconds
    );
    assert_eq!(row(&test, &id, "p5").await.state, TrialState::Completed);

    let (long, short) = (answer(&test, &full).await, answer(&test, &id).await);
    let said = |answer: &DecisionView| (answer.conclusion, answer.ranked[0].candidate.clone());
    assert_eq!(said(&long), said(&short));
    assert_eq!(short.ranked.len(), 2, "a stopped trial was measured, too");
    let spend = short.spend.unwrap();
    assert_eq!(
        spend.usd,
        lost.total_usd.unwrap() + row(&test, &id, "p5").await.total_usd.unwrap()
    );
    assert_eq!(spend.losers_usd, lost.total_usd.unwrap());
    // What it says of running everything is what that cost.
    let really = long.spend.unwrap().usd.as_f64();
    let said = spend.full_usd.unwrap().as_f64();
    assert!((said / really - 1.0).abs() < 0.1, "{said} against {really}");
    let told = short
        .reasons
        .iter()
        .any(|reason| reason.contains("every trial to its end would have cost about"));
    assert!(told, "{:?}", short.reasons);
}

/// What was predicted is scored by what was measured, also of a trial that was stopped.
#[sqlx::test(migrations = false)]
async fn predictions_are_scored_by_what_was_measured_since(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let record = async || test.read::<Calibration>("/v1/calibration").await;
    assert_eq!(record().await.rows, []);
    let mut asked = raced("race");
    asked["objective"] = json!({"minimize": "time"});
    let id = test.start(&asked).await;
    test.run_to_end(&id, 24).await;
    let found = record().await;
    assert_eq!(found.experiments, 1);
    let types: Vec<&str> = found
        .rows
        .iter()
        .map(|row| row.instance_type.as_str())
        .collect();
    assert_eq!(types, ["ml.p4de.24xlarge", "ml.p5.48xlarge"]);
    for row in &found.rows {
        let plan = test.plan(&asked).await;
        let of_type = |one: &&CandidatePreview| one.plan.instance_type == row.instance_type;
        let again = plan.candidates.iter().find(of_type).unwrap();
        let moved = again.plan.forecast.as_ref().unwrap();
        assert!(moved.is_rescaled, "a stopped trial teaches, too");
        // The plan that knows of the trial is nearer to what was measured.
        let measured = test.comparison(&id).await.rows;
        let measured = measured
            .iter()
            .find(|one| one.instance_type == row.instance_type)
            .and_then(|one| one.tokens_per_second)
            .unwrap();
        let now = 100.0 * (moved.tokens_per_second.expected / measured - 1.0).abs();
        assert!(
            now < row.median_error_percent && row.trials == 1 && !row.is_adjusted,
            "{now} against {row:?}"
        );
    }
}

/// 48 sequences a step instead of 64: it would run, but not be ranked.
#[sqlx::test(migrations = false)]
async fn what_would_not_be_ranked_does_not_start_unless_asked_for(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut odd = raced("race");
    let mut other = odd["candidates"][1].clone();
    other["name"] = json!("p5-48");
    other["profile"]["micro_batch_per_gpu"] = json!(6);
    odd["candidates"].as_array_mut().unwrap().push(other);
    let plan = test.plan(&odd).await;
    let skipped: Vec<bool> = plan
        .candidates
        .iter()
        .map(|one| one.plan.skipped.is_some())
        .collect();
    assert_eq!(skipped, [false, false, true]);
    // Its worst case is not part of the sum.
    let worst = plan.candidates.iter().zip(&skipped);
    let worst: Usd = worst
        .filter(|(_, skipped)| !**skipped)
        .map(|(one, _)| one.plan.worst_case.unwrap().total_usd)
        .sum();
    assert_eq!(plan.worst_case_usd, worst);
    // Nothing said about a policy is a race.
    odd.as_object_mut().unwrap().remove("stopping_policy");
    let id = test.start(&odd).await;
    let created = events(&test, &id, "experiment.created").await;
    assert!(created[0].ends_with("1 not started"), "{created:?}");
    test.run_to_end(&id, 24).await;
    let odd_row = row(&test, &id, "p5-48").await;
    assert_eq!((odd_row.state, odd_row.attempts), (TrialState::Stopped, 0));
    let reason = odd_row.reason.unwrap();
    assert!(
        reason.starts_with("not started: it would not be ranked: p5-48 trains 48 sequences"),
        "{reason}"
    );
    odd["stopping_policy"] = json!("full");
    let plan = test.plan(&odd).await;
    assert!(plan.candidates.iter().all(|one| one.plan.skipped.is_none()));
}

#[sqlx::test(migrations = false)]
async fn a_probe_stops_everything_once_it_is_measured(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&raced("probe")).await;
    let ended = test.run_to_end(&id, 24).await;
    assert_eq!(ended["state"], json!("completed"));
    for row in test.comparison(&id).await.rows {
        assert_eq!(row.state, TrialState::Stopped);
        assert!(row.tokens_per_second.is_some(), "{row:?}");
        assert!(row.training_seconds < 3600, "{} s", row.training_seconds);
    }
    assert_eq!(answer(&test, &id).await.ranked.len(), 2);
}

/// With a quota of 0, P4de never runs: the answer does not wait for it, says what is missing, and
/// is made anew once it has run.
#[sqlx::test(migrations = false)]
async fn a_parked_trial_holds_up_nothing_and_may_run_later(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--quota-of", "ml.p4de.24xlarge=0"]).await;
    test.tick().await;
    let mut asked = raced("full");
    asked["workload"]["trial_tokens"] = json!(100_000_000);
    let id = test.start(&asked).await;
    test.run_until_ended(&id, 24).await;
    let parked = row(&test, &id, "p4de").await;
    assert_eq!(parked.state, TrialState::Parked);
    let first = answer(&test, &id).await;
    assert!(first.provisional);
    let missing = &first.not_ranked[0];
    assert!(
        missing.candidate == "p4de" && missing.reason.starts_with("it has not run:"),
        "{missing:?}"
    );
    assert!(missing.odds.is_some(), "it counts by its prediction");
    assert_eq!(events(&test, &id, "experiment.concluded").await.len(), 1);

    // Somebody raises the quota, and says so.
    sqlx::query("UPDATE quotas SET instances = 2 WHERE instance_type = 'ml.p4de.24xlarge'")
        .execute(&pool)
        .await
        .unwrap();
    let resume = format!("/v1/experiments/{id}/resume");
    let (status, resumed) = test.post(&resume, &json!({})).await;
    assert_eq!(
        (status.as_u16(), &resumed["state"]),
        (200, &json!("running"))
    );
    test.advance(TimeDelta::minutes(1)).await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 24).await;
    let ended = test.experiment(&id).await;
    assert_eq!(ended.state, ExperimentState::Cancelled);
    assert!(
        !answer(&test, &id).await.provisional,
        "nothing is left to run"
    );
    // Over is over.
    let (_, again) = test.post(&resume, &json!({})).await;
    assert_eq!(again["state"], json!("cancelled"));
}
